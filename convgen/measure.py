"""Timing on the GPU: captured in graphs, cold or warm caches, interleaved.

What is timed is a CUDA graph that holds a piece of work several times over, so that the launch latency of short
kernels is hidden as it is in a real program. Caches are cold when successive repetitions use different buffers that
together exceed the L2 several times; warm when they use one. All contestants of a comparison are replayed in turn,
forwards and backwards (ABBA), so that drifting clocks touch them alike. How often is decided as the times come in: a
few rounds tell that a candidate is not worth more (`adaptive`).
"""

from __future__ import annotations

import contextlib
import itertools
import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from convgen.problem import Problem, TensorSpec
from convgen.runtime.physical import flat, stored_dtype, unflat
from convgen.toolkit import load_cupy

PROTOCOL = 2
"""Raised whenever the way of timing changes, so that stored times are never compared across.

1  a graph of every set of buffers, the first launch of a round on an idle GPU; quartiles extrapolated
2  whole cycles through the sets, long work launched without a graph, the GPU busy when a round begins; quartiles
   between the times that were taken
"""

COLD_FACTOR = 4
"""Buffers of cold repetitions exceed the L2 by this factor."""

MAX_SETS = 1024
"""Sets of buffers at most, since each is a node of a graph. A problem of less than COLD_FACTOR * L2 / MAX_SETS bytes
(about 230 KB on an H200) finds some of its data in the L2, as it would in a program that runs it between others."""

REPLAY_SECONDS = 100e-6
"""A graph is repeated until it takes about so long: its own launch is then a small part of it."""

DIRECT_SECONDS = 2e-3
"""Work that takes so long is launched as it is: no graph, and no whole cycle through the sets in a round."""

SCREEN_ROUNDS = 3
SLOW_SECONDS = 50e-3
"""A screen has SCREEN_ROUNDS rounds, and two where a round takes so long."""

NEAR = 1.10
"""A candidate whose screen is less than this many times the incumbent is worth confirming."""

CONFIRM_LEAST, CONFIRM_MOST = 7, 10 * SCREEN_ROUNDS
CONFIRM_SECONDS = 0.5
"""Rounds of a confirmation, the screen's included, and what they may take together."""

SETTLED = 0.01
"""A confirmation ends when the quartiles are this near, relative to the median."""

Stage = Literal["screen", "confirm"]


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
        low, _, high = statistics.quantiles(seconds, n=4, method="inclusive")
        return cls(statistics.median(seconds), low, high, len(seconds))

    @property
    def spread(self) -> float:
        """The distance of the quartiles, relative to the median."""
        return (self.high - self.low) / self.median


@dataclass(frozen=True, slots=True)
class Replay:
    """Captured work: `launch` enqueues it on the stream it was made for; it holds `repetitions` of what is timed.

    `seconds` is about what one repetition takes, where that is known.
    """

    launch: Callable[[], None]
    repetitions: int
    seconds: float = 0.0


# --- how much is enough -----------------------------------------------------------------------------------


def buffer_sets(nbytes: int, l2_bytes: int) -> int:
    """How many sets of buffers of `nbytes` make every repetition find a cold L2; from 2 to MAX_SETS."""
    return min(max(2, -(-COLD_FACTOR * l2_bytes // max(nbytes, 1))), MAX_SETS)


def repetitions(seconds: float, sets: int) -> int:
    """Repetitions of a graph, for work of `seconds`: REPLAY_SECONDS of them, in whole cycles through the sets.

    A part of a cycle would leave the sets it ends and begins with in the L2.
    """
    cycles = REPLAY_SECONDS / max(seconds * sets, 1e-9)
    return sets * max(1, math.ceil(cycles - 0.001))


def adaptive(
    next_round: Callable[[], float],
    incumbent: float | None,
    round_seconds: float,
    known: Sequence[float] = (),
) -> tuple[Timing, Stage]:
    """Time until the result is good enough: a screen, and a confirmation if it comes near the incumbent's seconds.

    `next_round` gives the seconds of a repetition in one more round, which takes about `round_seconds`; `known` are
    those that there are already. Without an incumbent the candidate is confirmed.
    """
    times = list(known)
    while len(times) < (SCREEN_ROUNDS if round_seconds < SLOW_SECONDS else 2):
        times.append(next_round())
    screened = Timing.of(times)
    if incumbent is not None and screened.median >= NEAR * incumbent:
        return screened, "screen"
    most = min(CONFIRM_MOST, int(CONFIRM_SECONDS / max(round_seconds, 1e-9)))
    while len(times) < most and (len(times) < CONFIRM_LEAST or Timing.of(times).spread >= SETTLED):
        times.append(next_round())
    return Timing.of(times), "confirm"


# --- what is timed ----------------------------------------------------------------------------------------


class BufferSets:
    """Copies of a problem's arrays to go round, so many that each finds a cold L2 (see `buffer_sets`).

    `arrays` has the inputs, and with `accumulate` what the output holds before, as they lie in memory; `xp` is the
    module they belong to. Every set has the same numbers. Where memory is short there are fewer sets; raises
    MemoryError if there is none for one.
    """

    def __init__(self, problem: Problem, arrays: Mapping[str, Any], l2_bytes: int, xp: Any) -> None:
        self.problem = problem
        self._arrays = arrays
        self._xp = xp
        self.inputs: list[dict[str, Any]] = []
        self.outputs: list[dict[str, Any]] = []
        for _ in range(buffer_sets(problem.bytes, l2_bytes)):
            try:
                inputs, outputs = self._copies(problem.inputs), self._copies(problem.outputs)
            except MemoryError:
                if not self.inputs:
                    raise
                if len(self.inputs) > 2:  # a workspace may be needed too
                    self.inputs.pop()
                    self.outputs.pop()
                break
            self.inputs.append(inputs)
            self.outputs.append(outputs)

    def __len__(self) -> int:
        return len(self.inputs)

    def refill(self, index: int) -> None:
        """Make a set's outputs what they are before a run: poisoned, or what `accumulate` adds to."""
        for name, output in self.outputs[index].items():
            if name in self._arrays:
                output[...] = self._arrays[name]
            else:
                flat(self.problem.tensor(name), output).view(self._xp.uint8)[...] = 0xFF

    def _copies(self, specs: Sequence[TensorSpec]) -> dict[str, Any]:
        return {spec.name: self._copy(spec) for spec in specs}

    def _copy(self, spec: TensorSpec) -> Any:
        values = self._arrays.get(spec.name)
        if values is None:
            return unflat(spec, self._xp.empty(spec.size, stored_dtype(spec)))
        return unflat(spec, flat(spec, values).copy())


class SharedWorkspace:
    """Gives every call the same temporary memory, as CuPy's pool does outside of a graph.

    While a graph is captured the pool would give each call memory of its own, which stays with the graph.
    """

    def __init__(self) -> None:
        self._blocks: list[Any] = []
        self._next = 0

    @contextlib.contextmanager
    def one_call(self) -> Iterator[None]:
        """In it, the thread's n-th allocation is what the n-th of the call before was."""
        self._next = 0
        with load_cupy().cuda.using_allocator(self._allocate):
            yield

    def _allocate(self, nbytes: int) -> Any:
        pool = load_cupy().get_default_memory_pool()
        number, self._next = self._next, self._next + 1
        if number == len(self._blocks):
            self._blocks.append(pool.malloc(nbytes))
        elif self._blocks[number].mem.size < nbytes:
            self._blocks[number] = pool.malloc(nbytes)
        return self._blocks[number]


def capture(stream: Any, work: Sequence[Callable[[], None]]) -> Replay:
    """Capture each callable once, in order, on a CuPy stream, after running them once outside the graph."""
    for run in work:
        run()
    stream.synchronize()
    return _captured(stream, work)


def repeat(stream: Any, run: Callable[[int], None], sets: int) -> tuple[Replay, tuple[float, ...]]:
    """Work to be timed, `run(i)` putting it on a CuPy stream with the i-th set of buffers; it must have run before.

    A graph of whole cycles through the sets, as many as make about REPLAY_SECONDS; work of DIRECT_SECONDS or more as it
    is, with the sets in turn. In that case one time has been taken, which is returned beside it.
    """
    once = _elapsed(stream, partial(run, 0))
    if once >= DIRECT_SECONDS:
        turn = itertools.cycle((*range(1, sets), 0))
        return Replay(lambda: run(next(turn)), 1, once), (once,)
    while True:
        count = repetitions(once, sets)
        replay = _captured(stream, [partial(run, i % sets) for i in range(count)])
        # A short kernel's first time is mostly that of launching it.
        seconds = min(_elapsed(stream, replay.launch) for _ in range(2)) / count
        if repetitions(seconds, sets) < 2 * count or seconds >= once:
            return Replay(replay.launch, count, seconds), ()
        once = seconds


def _captured(stream: Any, work: Sequence[Callable[[], None]]) -> Replay:
    stream.begin_capture()
    try:
        for run in work:
            run()
    except BaseException:
        with contextlib.suppress(Exception):  # the stream must be usable again; why it failed is already known
            stream.end_capture()
        raise
    graph = stream.end_capture()
    return Replay(lambda: graph.launch(stream), len(work))


# --- the clock --------------------------------------------------------------------------------------------


class Rounds:
    """Contestants replayed in turn on one CuPy stream, every other round in reverse."""

    def __init__(self, stream: Any, replays: Mapping[str, Replay]) -> None:
        self._stream = stream
        self._order = list(replays.items())
        self._first_seconds = self._order[0][1].seconds * self._order[0][1].repetitions

    def next(self) -> dict[str, float]:
        """Seconds of one repetition of every contestant in one more round."""
        cuda = load_cupy().cuda
        if self._first_seconds < DIRECT_SECONDS:
            # Once unrecorded, so that the GPU is busy while all the rest is put on the stream.
            self._order[0][1].launch()
        events = []
        for name, replay in self._order:
            begin, end = cuda.Event(), cuda.Event()
            begin.record(self._stream)
            replay.launch()
            end.record(self._stream)
            events.append((name, replay, begin, end))
        self._stream.synchronize()
        elapsed = {name: cuda.get_elapsed_time(begin, end) * 1e-3 for name, _, begin, end in events}
        self._order.reverse()
        self._first_seconds = elapsed[self._order[0][0]]
        return {name: elapsed[name] / replay.repetitions for name, replay, _, _ in events}


def interleave(stream: Any, replays: Mapping[str, Replay], rounds: int) -> dict[str, list[float]]:
    """Seconds of one repetition of every contestant in every round, replayed in turn on one CuPy stream.

    One unrecorded round first; then odd rounds run the contestants in reverse.
    """
    timed = Rounds(stream, replays)
    timed.next()
    times: dict[str, list[float]] = {name: [] for name in replays}
    for _ in range(rounds):
        for name, seconds in timed.next().items():
            times[name].append(seconds)
    return times


def _elapsed(stream: Any, launch: Callable[[], None]) -> float:
    cuda = load_cupy().cuda
    begin, end = cuda.Event(), cuda.Event()
    begin.record(stream)
    launch()
    end.record(stream)
    end.synchronize()
    return float(cuda.get_elapsed_time(begin, end)) * 1e-3
