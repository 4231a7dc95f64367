"""Timing on the GPU: captured in graphs, cold or warm caches, interleaved.

What is timed is a CUDA graph that holds a piece of work several times over, so that the launch latency of short
kernels is hidden as it is in a real program. Caches are cold when successive repetitions use different buffers that
together exceed the L2 several times; warm when they use one. All contestants of a comparison are replayed in turn,
forwards and backwards (ABBA), so that drifting clocks touch them alike.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

PROTOCOL = 1
"""Raised whenever the way of timing changes, so that stored times are never compared across."""

COLD_FACTOR = 4
"""Buffers of cold repetitions exceed the L2 by this factor."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of one repetition: the median of the rounds and its quartiles."""

    median: float
    low: float
    high: float
    rounds: int

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Timing:
        """From one time a round, at least two."""
        low, _, high = statistics.quantiles(seconds, n=4)
        return cls(statistics.median(seconds), low, high, len(seconds))


@dataclass(frozen=True, slots=True)
class Replay:
    """Captured work: `launch` enqueues it on the stream it was made for; it holds `repetitions` of what is timed."""

    launch: Callable[[], None]
    repetitions: int


def buffer_sets(nbytes: int, l2_bytes: int) -> int:
    """How many sets of buffers of `nbytes` make every repetition find a cold L2; at least 2."""
    return max(2, -(-COLD_FACTOR * l2_bytes // max(nbytes, 1)))


def capture(stream: Any, work: Sequence[Callable[[], None]]) -> Replay:
    """Capture each callable once, in order, on a CuPy stream, after running them once outside the graph."""
    for run in work:
        run()
    stream.synchronize()
    stream.begin_capture()
    for run in work:
        run()
    graph = stream.end_capture()
    return Replay(lambda: graph.launch(stream), len(work))


def interleave(stream: Any, replays: Mapping[str, Replay], rounds: int) -> dict[str, list[float]]:
    """Seconds of one repetition of every contestant in every round, replayed in turn on one CuPy stream.

    One unrecorded round first; then odd rounds run the contestants in reverse.
    """
    import cupy

    times: dict[str, list[float]] = {name: [] for name in replays}
    order = list(replays.items())
    for round_number in range(rounds + 1):
        pairs = []
        for name, replay in order:
            begin, end = cupy.cuda.Event(), cupy.cuda.Event()
            begin.record(stream)
            replay.launch()
            end.record(stream)
            pairs.append((name, replay, begin, end))
        stream.synchronize()
        if round_number > 0:
            for name, replay, begin, end in pairs:
                times[name].append(cupy.cuda.get_elapsed_time(begin, end) * 1e-3 / replay.repetitions)
        order.reverse()
    return times
