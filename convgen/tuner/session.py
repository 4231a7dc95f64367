"""The tuner: the best kernel for a problem, searched on the card and remembered.

    with Tuner(database=open_layers(), budget=Budget(seconds=10)) as tuner:
        result = tuner.tune(problem)

Candidates are built on the CPU cores while one isolated process a GPU verifies and times them. What is known when a
search ends, by whatever cause, is in the database.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Iterable, Iterator, Sequence
from types import NoneType, TracebackType
from typing import Self, get_args

from convgen.errors import ConvgenError, UsageError
from convgen.lowering import nothing_applies, why_not
from convgen.measure import Timing
from convgen.problem import Problem
from convgen.space import Config
from convgen.strategies import Strategy, all_strategies
from convgen.target import DEFAULT_TARGET, Target
from convgen.tuner.builder import Backend, Builder
from convgen.tuner.decide import known
from convgen.tuner.events import Budget, Measured, ProgressCallback, TuneResult
from convgen.tuner.limits import Limits
from convgen.tuner.pipeline import Assignment, Pipeline
from convgen.tuner.runner import Runner
from tuning_db import Layers, Trial


class Tuner:
    """Searches problems one after the other, or several at once on as many GPUs. No global state; thread-safe.

    `target` is the GPU of this machine unless given; `database` is asked first and told everything (None: neither).
    `strategies` narrows the search. `backend="sim"` verifies in the simulator and takes the cost model's times: it
    needs no GPU, and its results are filed under a device of their own. `progress` is called after every candidate,
    from the thread that searches. Raises DeviceError from `tune` if there is no GPU to measure on.
    """

    def __init__(
        self,
        target: Target | None = None,
        *,
        database: Layers | None = None,
        strategies: Sequence[Strategy] | None = None,
        budget: Budget | None = None,
        backend: Backend = "cuda",
        devices: Sequence[int] = (0,),
        build_workers: int | None = None,
        limits: Limits | None = None,
        seed: int = 0,
        progress: ProgressCallback | None = None,
        retune: bool = False,
    ) -> None:
        if not devices:
            raise UsageError("devices=(): expected at least one")
        if backend not in get_args(Backend):
            raise UsageError(f"backend={backend!r}: expected one of {', '.join(get_args(Backend))}")
        if not isinstance(target, (Target, NoneType)):
            raise UsageError(f"target={target!r}: expected a Target, as Target.preset('h200') is, or None")
        self.target = target if target is not None else _target(backend, devices[0])
        self.database = database
        self.strategies = tuple(strategies) if strategies is not None else all_strategies()
        self.budget = budget if budget is not None else Budget()
        self._simulated = backend == "sim"
        self.seed = seed
        self.retune = retune
        self._progress = progress
        self._cancelled = threading.Event()
        self._limits = limits if limits is not None else Limits()
        self._builder = Builder(build_workers or os.cpu_count() or 1, self._limits.build, backend=backend)
        self._runners = [Runner(self.target, backend, device, self._limits) for device in devices]
        self._busy = [threading.Lock() for _ in devices]

    def tune(self, problem: Problem, family: str = "") -> TuneResult:
        """The best kernel: from the database if it holds one of a finished search of these strategies by code as it is
        now, else by a search, which begins with the best known.

        Raises NotApplicableError if no strategy applies, DeviceError if nothing can be measured. Ctrl-C and `cancel`
        end the search; what was found is recorded, and returned in the case of `cancel`.
        """
        return self._tune(problem, family, 0)

    def tune_many(self, problems: Iterable[tuple[Problem, str]]) -> Iterator[TuneResult | ConvgenError]:
        """One result for each (problem, family), as they are ready, on all the devices; an error stands for its result.

        Ends early when cancelled. Ctrl-C in the main thread cancels, and is raised when what was found has been given.
        Left before its end, by an error or a second Ctrl-C, it closes the tuner: what is being measured is given up.
        """
        waiting: queue.SimpleQueue[tuple[Problem, str]] = queue.SimpleQueue()
        done = _Answers()
        for item in problems:
            waiting.put(item)
        threads = [
            threading.Thread(target=self._serve, args=(device, waiting, done), daemon=True)
            for device in range(len(self._runners))
        ]
        for thread in threads:
            thread.start()
        running = len(threads)
        interrupted = False
        try:
            while running:
                try:
                    done.wait()
                except KeyboardInterrupt:
                    if interrupted:
                        raise
                    interrupted = True
                    self.cancel()
                    continue
                result = done.take()
                if result is None:
                    running -= 1
                elif isinstance(result, BaseException) and not isinstance(result, ConvgenError):
                    raise result
                else:
                    yield result
            if interrupted:
                raise KeyboardInterrupt
        finally:
            if running:
                self.close()
            for thread in threads:
                thread.join()

    def cancel(self) -> None:
        """End all searches as soon as their current candidates are done, for good; may be called from any thread."""
        self._cancelled.set()

    def close(self) -> None:
        """End every process of the tuner."""
        self.cancel()
        self._builder.close()
        for runner in self._runners:
            runner.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _serve(
        self,
        device: int,
        waiting: queue.SimpleQueue[tuple[Problem, str]],
        done: _Answers,
    ) -> None:
        try:
            while not self._cancelled.is_set():
                try:
                    problem, family = waiting.get_nowait()
                except queue.Empty:
                    break
                try:
                    done.put(self._tune(problem, family, device))
                except ConvgenError as error:
                    done.put(error)
        except BaseException as error:
            done.put(error)
        finally:
            done.put(None)

    def _tune(self, problem: Problem, family: str, device: int) -> TuneResult:
        served = None if self.retune else self._served(problem)
        if served is not None:
            return served
        usable = self._applicable(problem)
        with self._busy[device]:
            assignment = Assignment(
                problem, self.target, family, usable, self.budget, self.seed, self._simulated, self.database
            )
            return Pipeline(assignment, self._builder, self._runners[device]).run(self._cancelled, self._progress)

    def _applicable(self, problem: Problem) -> list[Strategy]:
        of_its_kind = [s for s in self.strategies if isinstance(problem, s.solves)]
        reasons = {s: why_not(problem, s, self.target) for s in of_its_kind or self.strategies}
        usable = [s for s, reason in reasons.items() if reason is None]
        if not usable:
            raise nothing_applies(problem, reasons)
        return usable

    def _served(self, problem: Problem) -> TuneResult | None:
        if self.database is None:
            return None
        best = next(known(problem, self.target, self.database, self.strategies, simulated=self._simulated), None)
        if best is None or best.origin != "tuned" or best.trial is None:
            return None
        return TuneResult(problem, "served", _measured(best.strategy, best.config, best.trial))


class _Answers:
    """What threads have to say, in turn. An interrupt while one waits loses none: they are kept beside the bell."""

    def __init__(self) -> None:
        self._said: list[TuneResult | ConvgenError | BaseException | None] = []
        self._taken = 0
        self._bell: queue.SimpleQueue[None] = queue.SimpleQueue()

    def put(self, answer: TuneResult | ConvgenError | BaseException | None) -> None:
        self._said.append(answer)
        self._bell.put(None)

    def wait(self) -> None:
        """Until there is one to take."""
        while self._taken == len(self._said):
            self._bell.get()

    def take(self) -> TuneResult | ConvgenError | BaseException | None:
        self._taken += 1
        return self._said[self._taken - 1]


def _measured(strategy: Strategy, config: Config, trial: Trial) -> Measured:
    """A recorded trial as it was when it was measured."""
    timing = None
    if trial.seconds is not None:
        low, high = (trial.seconds if edge is None else edge for edge in (trial.low, trial.high))
        timing = Timing(trial.seconds, low, high, trial.rounds)
    return Measured(strategy, config, trial.origin, trial.status, trial.reason, timing)


def _target(backend: Backend, device: int) -> Target:
    return Target.preset(DEFAULT_TARGET) if backend == "sim" else Target.current(device)
