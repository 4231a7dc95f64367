"""Measuring without a GPU: verified in the simulator, timed by a fake clock.

A time is the cost model's, with a little noise that depends on the program and the round alone: the same program always
takes the same times.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count

from convgen.cache import content_key
from convgen.errors import CompileError, ConvgenError, DeviceError, SimulatorFault
from convgen.measure import adaptive
from convgen.problem import Problem
from convgen.processes import Announce
from convgen.simulator import launch_timeout
from convgen.simulator.toolchain import find_compiler
from convgen.target import Target
from convgen.tuner.builder import Build
from convgen.tuner.measurer import Finals, Info, Verdict
from convgen.tuner.outcome import Outcome, TrialStatus, refusal
from convgen.verify import Settings, sim
from convgen.verify.oracle import Oracles

NOISE = 0.02
"""A time is at most so much over the cost model's, relative to it."""

FIRST_OF_FINALS = 1000
"""Number of the finals' first round, so that they see other noise than the screens before."""


class SimMeasurer:
    """See `Measurer`. Every program runs in memory of its own, so one that fails harms no other."""

    def __init__(self, target: Target) -> None:
        self._target = target

    def start(self, problem: Problem, seed: int) -> None:
        find_compiler()
        launch_timeout()
        self._settings = Settings(self._target, "sim", seed)
        self._oracles = Oracles(self._settings)
        self._oracles.prepare(problem, sim.is_whole)

    def measure(self, build: Build, incumbent: float | None, announce: Announce) -> Verdict:
        assert build.plan is not None
        try:
            announce("build")
            [built] = sim.build_group([build.plan], [build.source], self._settings)
            announce("simulate")
            result = sim.verify_built(built, self._settings, self._oracles)
        except (ConvgenError, MemoryError) as error:
            return Verdict(Outcome(_status(error), str(error) or type(error).__name__, source_key=build.source_key))
        if result.status != "ok":
            return Verdict(refusal(result, build.source_key))
        seconds = _clock(build, 0)
        timing, stage = adaptive(seconds, incumbent, 0.0)
        return Verdict(Outcome("ok", "", timing, stage, result.max_error, result.bound, build.source_key))

    def finals(self, builds: Sequence[Build], rounds: int, announce: Announce) -> Finals:
        clocks = [_clock(build, FIRST_OF_FINALS) for build in builds]
        return Finals([[clock() for _ in range(rounds)] for clock in clocks])

    def info(self) -> Info:
        return Info(f"simulated {self._target.name}")


def _status(error: ConvgenError | MemoryError) -> TrialStatus:
    if isinstance(error, MemoryError):
        return "out_of_memory"
    if isinstance(error, CompileError):
        return "compile_error"
    if isinstance(error, SimulatorFault):  # it did not come to a launch: those report their faults
        return "launch_failure"
    if isinstance(error, DeviceError):
        raise error
    return "failed"


def _clock(build: Build, first: int) -> Callable[[], float]:
    """The seconds of one round after the other."""
    assert build.predicted is not None
    predicted, numbers = build.predicted, count(first)

    def seconds() -> float:
        noise = int(content_key(build.source_key, str(next(numbers)))[:8], 16) / 0xFFFFFFFF
        return predicted * (1 + NOISE * noise)

    return seconds
