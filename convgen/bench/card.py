"""The GPU as an arena: one problem's rotating buffers, our kernels as contestants, and the clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from convgen import measure
from convgen.bench.contest import Contestant
from convgen.bench.judge import Judge
from convgen.compiler import Binary
from convgen.measure import BufferSets, Replay, SharedWorkspace
from convgen.plan import Plan
from convgen.problem import TensorSpec
from convgen.runtime.cuda import CudaProgram, load
from convgen.runtime.prepared import PreparedWeights

SHORT_SECONDS = 100e-6
"""A call that seems to take less may mostly be the launching of it: then a small graph tells."""

GLIMPSE = 16
"""Calls in that graph."""


class Answering(Contestant, Protocol):
    """A contestant whose answer can be judged."""

    def answers(self, specs: Sequence[TensorSpec]) -> Mapping[str, Any]:
        """The outputs for the first set of buffers, in logical order."""


class Card:
    """One problem (its batch fixed) on the current GPU. See `contest.Arena`."""

    def __init__(self, judge: Judge, l2_bytes: int, stream: Any) -> None:
        """Raises MemoryError if there is none for one set of buffers. An `l2_bytes` of 0 asks for the fewest sets."""
        import cupy

        self._cupy = cupy
        self.problem = judge.problem
        self.stream = stream
        self.buffers = BufferSets(self.problem, judge.arrays, l2_bytes, cupy)
        self.sets = len(self.buffers)
        self._old = {"old": judge.arrays[self.problem.outputs[0].name]} if self.problem.accumulate else {}
        cupy.cuda.Device().synchronize()

    def is_cold(self, l2_bytes: int) -> bool:
        """Whether the sets exceed the L2, so that every call finds it cold."""
        return self.sets * self.problem.bytes > 2 * l2_bytes

    def kernel(self, name: str, plan: Plan, binary: Binary, *, frozen: bool = False) -> Kernel | None:
        """One of our kernels; `frozen`: with its weights declared constant, None if that spares nothing."""
        program = load(plan, binary)
        if frozen and not program.preparation.steps:
            return None
        return Kernel(name, program, self, frozen)

    def inputs(self) -> list[dict[str, Any]]:
        """For the peers: every set's inputs, and as `old` what `accumulate` adds to."""
        return [{**arrays, **self._old} for arrays in self.buffers.inputs]

    def once(self, contestant: Contestant) -> float:
        """See `contest.Arena`."""
        contestant.run(0)
        self.stream.synchronize()
        seconds = min(self._elapsed(partial(contestant.run, 0)) for _ in range(2))
        if seconds > SHORT_SECONDS:
            return seconds
        replay = contestant.capture(min(GLIMPSE, self.sets))
        return min(self._elapsed(replay.launch) for _ in range(2)) / replay.repetitions

    def times(self, replays: Mapping[str, Replay], rounds: int) -> dict[str, list[float]]:
        """See `contest.Arena`."""
        return measure.interleave(self.stream, replays, rounds)

    def poisoned(self) -> Mapping[str, Any]:
        """The first set's outputs as they are before anything ran."""
        self.buffers.refill(0)
        self._cupy.cuda.Device().synchronize()
        return self.buffers.outputs[0]

    def _elapsed(self, launch: Any) -> float:
        begin, end = self._cupy.cuda.Event(), self._cupy.cuda.Event()
        begin.record(self.stream)
        launch()
        end.record(self.stream)
        end.synchronize()
        return float(self._cupy.cuda.get_elapsed_time(begin, end)) * 1e-3


class Kernel:
    """A plan of ours on the card's buffers. See `contest.Contestant`."""

    def __init__(self, name: str, program: CudaProgram, card: Card, frozen: bool) -> None:
        self.name = name
        self._program = program
        self._card = card
        self._frozen = frozen
        self._prepared: dict[int, PreparedWeights] = {}
        self._workspace = SharedWorkspace()

    def run(self, index: int) -> None:
        """One call."""
        buffers, stream = self._card.buffers, self._card.stream
        inputs = dict(buffers.inputs[index])
        prepared = None
        if self._frozen:
            prepared = self._weights(index)
            del inputs["w"]
        with self._workspace.one_call():
            self._program.run(inputs, buffers.outputs[index], stream=stream, prepared=prepared)

    def answers(self, specs: Sequence[TensorSpec]) -> Mapping[str, Any]:
        """The outputs for the first set of buffers, in logical order."""
        outputs = self._card.poisoned()
        self.run(0)
        self._card.stream.synchronize()
        return outputs

    def capture(self, repetitions: int) -> Replay:
        """See `measure.capture`."""
        sets = self._card.sets
        if self._frozen:
            for index in range(min(repetitions, sets)):
                self._weights(index)  # it cannot be done while the graph is captured
        return measure.capture(self._card.stream, [partial(self.run, index % sets) for index in range(repetitions)])

    def close(self) -> None:
        """Unload it, after the graphs captured of it are gone."""
        self._prepared.clear()
        self._program.close()

    def _weights(self, index: int) -> PreparedWeights:
        # Constant memory is a module's, and one module serves all: there the first set's weights stand for all sets'.
        index = 0 if self._program.preparation.constants else index
        if index not in self._prepared:
            weights = self._card.buffers.inputs[index]["w"]
            self._prepared[index] = self._program.prepare(weights, stream=self._card.stream)
            self._card.stream.synchronize()
        return self._prepared[index]
