"""The caller's side of measuring: one process a GPU, which candidates may hang, crash or corrupt."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Sequence

from convgen.errors import DeviceError
from convgen.problem import Problem
from convgen.processes import Child, ChildDied, ChildHung, ChildLost, ChildRaised
from convgen.target import Target
from convgen.tuner.builder import Backend, Build
from convgen.tuner.limits import Limits
from convgen.tuner.measurer import Finals, Info, Verdict
from convgen.tuner.outcome import BAD, Outcome
from convgen.tuner.worker import Ask, Compare, Measure, Refusal, Start, measuring_server

__all__ = ["Info", "Outcome", "Runner"]

BACK_OFF = (0.5, 1.0, 2.0, 4.0)
"""Seconds to wait before each further attempt to start the process."""

FINALS_ATTEMPTS = 2


class Runner:
    """Measures builds for one problem at a time on one device, in a process that is replaced when it cannot be trusted.

    That process alone has a CUDA context. It is replaced after a deadline, a death, a sticky CUDA error, a wrong
    answer, or a write out of bounds, and starts anew with the same problem. Used by one thread; `close` by any.
    """

    def __init__(
        self, target: Target, backend: Backend = "cuda", device: int = 0, limits: Limits | None = None
    ) -> None:
        self._limits = limits if limits is not None else Limits()
        self._child = Child(measuring_server, target, backend, device, name="measuring")
        self._assignment: Start | None = None
        self._info: Info | None = None
        self._bad: dict[str, Outcome] = {}
        self._lost = 0
        self._closing = threading.Event()

    @property
    def driver(self) -> str:
        """The GPU's, "580.159.04"; "" if it is not known, as before the first start and in the simulator."""
        return self._info.driver if self._info is not None else ""

    @property
    def pid(self) -> int | None:
        """The measuring process; None while there is none."""
        return self._child.pid

    def start(self, problem: Problem, seed: int = 0) -> None:
        """Make ready for a problem; the process is kept. Raises DeviceError if it cannot be measured here."""
        self._assignment = Start(problem, seed)
        self._lost = 0
        self._begin()

    def measure(self, build: Build, incumbent: float | None = None) -> Outcome:
        """Verify a build and, if it is right, time it: well if it may beat the incumbent's seconds (None: always).

        Whatever the candidate does is an outcome. A source that harmed a process before is not run again. Raises
        DeviceError if processes are lost one after the other, or cannot be started at all, or if the machine lacks
        what measuring takes, as a compiler, memory or space for the simulator.
        """
        if build.status != "ok":
            return Outcome(build.status, build.reason, source_key=build.source_key)
        known = self._bad.get(build.source_key)
        if known is not None:
            return dataclasses.replace(known, reason=f"known bad: {known.reason}")
        self._ensure()
        verdict = self._judged(build, incumbent)
        outcome = verdict.outcome
        if outcome.status == "ok":
            self._lost = 0
        if outcome.status in BAD and build.source_key:
            self._bad[build.source_key] = outcome
        if not verdict.trusted:
            self._replace(outcome.reason)
        return outcome

    def finals(self, builds: Sequence[Build], rounds: int) -> list[list[float]]:
        """For each of some builds that were right the seconds of every round, interleaved; none where that failed.

        Rounds of work that takes long are fewer than asked, at least seven. Raises DeviceError as `measure` does.
        """
        usable = [build.status == "ok" and build.source_key not in self._bad for build in builds]
        timed = iter(self._compared([build for build, use in zip(builds, usable, strict=True) if use], rounds))
        return [next(timed) if use else [] for use in usable]

    def info(self) -> Info | None:
        """The device, its clock and temperature now, or when they could last be read; None before the first start."""
        if self._child.pid is not None:
            with contextlib.suppress(ChildLost, ChildRaised):
                self._info = self._child.call(Ask(), self._limits.load)
        return self._info

    def close(self) -> None:
        """End the process, whatever it is doing."""
        self._closing.set()
        self._child.close()

    def _judged(self, build: Build, incumbent: float | None) -> Verdict:
        key = build.source_key
        try:
            answer: Verdict | Refusal = self._child.call(
                Measure(build, incumbent), self._limits.load, self._limits.phases
            )
        except ChildHung as error:
            if error.phase == "build":
                reason = f"building it took longer than {error.seconds:g} s and was stopped"
                return Verdict(Outcome("compile_timeout", reason, source_key=key), trusted=False)
            if error.phase == "simulate":
                reason = f"simulating it took longer than {error.seconds:g} s and was stopped"
                return Verdict(Outcome("run_timeout", reason, source_key=key), trusted=False)
            during = {"run": "its kernels ran", "time": "it was timed"}.get(error.phase, f"it was in {error.phase!r}")
            reason = f"no end after {error.seconds:g} s while {during}; it was stopped"
            return Verdict(Outcome("hang", reason, source_key=key), trusted=False)
        except ChildDied as error:
            if self._closing.is_set():
                raise DeviceError("the measuring process was closed while it measured") from error
            return Verdict(Outcome("worker_died", str(error), source_key=key), trusted=False)
        except ChildRaised as error:
            return Verdict(Outcome("failed", str(error), source_key=key), trusted=False)
        if isinstance(answer, Refusal):
            raise DeviceError(answer.reason)
        return answer

    def _compared(self, builds: Sequence[Build], rounds: int) -> list[list[float]]:
        for _ in range(FINALS_ATTEMPTS if builds else 0):
            self._ensure()
            try:
                finals: Finals = self._child.call(Compare(builds, rounds), self._limits.load, self._limits.phases)
            except (ChildLost, ChildRaised) as error:
                self._replace(str(error))
                continue
            if finals.trusted:
                return finals.seconds
            self._replace("a finalist that had been right failed")
        return [[] for _ in builds]

    def _ensure(self) -> None:
        if self._child.pid is None:
            self._begin()

    def _replace(self, reason: str) -> None:
        """End the process; the next measurement starts another."""
        self._child.stop()
        self._lost += 1
        if self._lost > self._limits.replacements:
            raise DeviceError(f"{self._lost} measuring processes were lost one after the other, the last: {reason}")

    def _begin(self) -> None:
        """Start on the problem, in the process there is or a new one. That the device works is part of it."""
        assert self._assignment is not None, "no problem was started"
        reason = ""
        for delay in (*BACK_OFF, None):
            is_first = self._child.pid is None and self._lost == 0
            try:
                answer = self._child.call(self._assignment, self._limits.start)
                if not isinstance(answer, Refusal):
                    self._info = answer
                    return
                reason = answer.reason
            except ChildRaised as error:
                reason = str(error)
            except ChildLost as error:
                reason, is_first = str(error), False
            self._child.stop()
            if is_first or delay is None or self._closing.wait(delay):
                break  # what a fresh process says where no candidate has done anything yet, the next would say too
        raise DeviceError(reason)
