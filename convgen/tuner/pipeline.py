"""One problem's search: ask, build on the cores, measure on the card, tell, record; then settle the finalists."""

from __future__ import annotations

import datetime
import itertools
import time
import uuid
from collections import Counter
from collections.abc import Collection, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from threading import Event
from typing import Any, Literal

import convgen
from convgen.lowering import preference
from convgen.measure import Timing
from convgen.problem import Problem
from convgen.ratios import order_interval, ratios
from convgen.strategies import Strategy
from convgen.target import Target
from convgen.tuner.builder import Build, Builder
from convgen.tuner.candidates import Candidate
from convgen.tuner.decide import known
from convgen.tuner.events import Budget, Measured, Progress, ProgressCallback, TuneResult
from convgen.tuner.keys import task_of, toolchains
from convgen.tuner.runner import Outcome, Runner
from convgen.tuner.search import Proposal, Search, random_baseline
from tuning_db import Layers, Run, Trial

FINALISTS = 6
FINAL_ROUNDS = 21
NEAR = 1.05
"""A finalist's first time is at most this many times the best's."""

RECORD_EVERY = 16
SECONDS_FOR_FINALS = 1.0
"""Kept of the time limit for the finalists; a tenth of it if that is less."""

POLL_SECONDS = 0.25

MOST_SEEDS = 8
"""Winners of this problem and its neighbours that are tried first. More would be known mistakes."""

LOOKAHEAD = 2
"""Candidates asked for beyond those being built, so that no core waits. More would be asked for knowing less."""


@dataclass(frozen=True)
class Assignment:
    """What a pipeline works on, and with what."""

    problem: Problem
    target: Target
    family: str
    strategies: Sequence[Strategy]
    budget: Budget
    seed: int
    simulated: bool
    database: Layers | None


@dataclass(frozen=True)
class _Tried:
    """A candidate that gave right answers."""

    measured: Measured
    build: Build
    stage: str
    error: float | None
    bound: float | None
    tied: bool = False

    @property
    def seconds(self) -> float:
        assert self.measured.seconds is not None
        return self.measured.seconds


class Pipeline:
    """The state of one search. Used once, by one thread."""

    def __init__(self, assignment: Assignment, builder: Builder, runner: Runner) -> None:
        self._of = assignment
        self._builder = builder
        self._runner = runner
        self._task = task_of(assignment.problem, assignment.target, assignment.family, simulated=assignment.simulated)
        self._toolchains = toolchains(assignment.strategies)
        self._run = Run(
            id=uuid.uuid4().hex,
            task=self._task,
            started=_now(),
            finished="",
            outcome="running",
            settings={
                "trials": assignment.budget.trials,
                "seconds": assignment.budget.seconds,
                "patience": assignment.budget.patience,
                "seed": assignment.seed,
                "strategies": [s.name for s in assignment.strategies],
            },
            summary={},
        )
        self._untuned = _untuned(assignment)
        self._statuses: Counter[str] = Counter()
        self._right: list[_Tried] = []
        self._sources: dict[str, float | None] = {}
        self._random: list[float] = []
        self._unrecorded: list[Trial] = []
        self._clocks: dict[str, dict[str, float | None]] = {}
        self._since_gain = 0
        self._knows_untuned = False
        self._preparing_since = 0.0
        self._searching_since: float | None = None

    def run(self, cancelled: Event, progress: ProgressCallback | None) -> TuneResult:
        """Search to the budget's end, and record what is known. Raises DeviceError if nothing can be measured.

        The budget's seconds begin when the measuring process is ready and the first candidate is built: on a machine
        that was just started, processes take seconds to begin.
        """
        self._preparing_since = time.monotonic()
        self._record(run=self._run)
        outcome: Literal["finished", "interrupted"] = "interrupted"
        try:
            with ThreadPoolExecutor(1) as starter:
                ready = starter.submit(self._runner.start, self._of.problem, self._of.seed)
                self._search(ready, cancelled, progress)
            self._settle()
            self._clocks["after"] = _clocks(self._runner)
            outcome = "interrupted" if cancelled.is_set() else "finished"
        finally:
            result = self._result(outcome)
            self._record(run=self._closed(result))
            if progress is not None:
                progress(self._progress(None, result))
        return result

    # --- the search -----------------------------------------------------------------------------------

    def _search(self, ready: Future[None], cancelled: Event, progress: ProgressCallback | None) -> None:
        search = self._new_search()
        waiting: dict[Future[Build], Proposal] = {}
        asked = 0
        try:
            while True:
                room = self._room(len(waiting), asked)
                proposals = search.ask(room) if room > 0 and not (cancelled.is_set() or self._is_spent()) else []
                for proposal in proposals:
                    chosen = proposal.candidate
                    waiting[self._builder.submit(self._of.problem, chosen.strategy, chosen.config, self._of.target)] = (
                        proposal
                    )
                asked += len(proposals)
                if self._searching_since is None and not self._begins(ready, waiting, cancelled):
                    break
                if not waiting or cancelled.is_set() or self._is_over():
                    break
                built, _ = wait(waiting, timeout=self._patience(), return_when=FIRST_COMPLETED)
                for future in built:
                    proposal = waiting.pop(future)
                    build = future.result()
                    measured = self._measure(proposal, build)
                    seconds = self._sources.get(build.source_key) if measured is None else measured.seconds
                    search.tell(proposal.candidate, seconds)
                    if progress is not None:
                        progress(self._progress(measured, None))
                    if cancelled.is_set() or self._is_over():
                        break
        finally:
            for future in waiting:
                future.cancel()

    def _begins(self, ready: Future[None], built: Collection[Future[Build]], cancelled: Event) -> bool:
        """Wait until the measuring process is ready and some candidate built, and begin to search; false if somebody
        cancelled before."""
        while not ready.done() or (ready.exception() is None and built and not any(b.done() for b in built)):
            if cancelled.is_set():
                self._runner.close()  # else it would make inputs, and what is right for them, to the end
                return False
            pending: list[Future[Any]] = [ready, *built]
            wait([future for future in pending if not future.done()], POLL_SECONDS, FIRST_COMPLETED)
        ready.result()
        self._searching_since = time.monotonic()
        self._clocks["before"] = _clocks(self._runner)
        return True

    def _new_search(self) -> Search:
        of = self._of
        found: list[Candidate] = []
        if of.database is not None:
            best = known(of.problem, of.target, of.database, of.strategies, simulated=of.simulated)
            found = [Candidate(d.strategy, d.config) for d in itertools.islice(best, MOST_SEEDS)]
        return Search(of.problem, of.target, of.strategies, found, of.seed)

    def _room(self, waiting: int, asked: int) -> int:
        room = self._builder.workers + LOOKAHEAD - waiting
        if self._of.budget.trials is not None:
            # A duplicate costs no trial, so as many more may be asked for.
            room = min(room, self._of.budget.trials + self._statuses["duplicate"] - asked)
        return room

    def _measure(self, proposal: Proposal, build: Build) -> Measured | None:
        """Measure a build and remember it; None for a source that was measured before."""
        incumbent, chosen = self._incumbent, proposal.candidate
        self._knows_untuned = self._knows_untuned or chosen == self._untuned
        if build.source_key and build.source_key in self._sources:
            self._statuses["duplicate"] += 1
            return None
        if build.status == "ok" and self._is_known_bad(build):
            outcome = Outcome("failed", "this source hung or crashed the GPU before; it is not run again")
        elif build.status == "ok":
            outcome = self._runner.measure(build, incumbent)
        else:
            outcome = Outcome(build.status, build.reason)
        origin = "default" if chosen == self._untuned else "prior" if proposal.origin == "default" else proposal.origin
        measured = Measured(chosen.strategy, chosen.config, origin, outcome.status, outcome.reason, outcome.timing)
        if build.source_key:
            self._sources[build.source_key] = measured.seconds
        self._statuses[outcome.status] += 1
        self._since_gain += 1
        if measured.seconds is not None:
            self._right.append(_Tried(measured, build, outcome.stage, outcome.error, outcome.bound))
            if proposal.origin == "random":
                self._random.append(measured.seconds)
            if incumbent is None or measured.seconds < incumbent:
                self._since_gain = 0
        self._unrecorded.append(self._trial(measured, build, outcome))
        if len(self._unrecorded) >= RECORD_EVERY:
            self._record()
        return measured

    def _is_known_bad(self, build: Build) -> bool:
        return self._of.database is not None and self._of.database.is_bad(build.source_key)

    # --- the finalists ---------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Time the fastest, and the untuned default, in one interleaved session; tell ties from wins."""
        if not self._right:
            return
        ranked = sorted(self._right, key=lambda tried: tried.seconds)
        finalists = [t for t in ranked[:FINALISTS] if t.seconds <= NEAR * ranked[0].seconds]
        default = self._default()
        if default is not None and default not in finalists:
            finalists.append(default)
        # One alone too: what is less well known would not be preferred to an earlier search's finalist.
        rounds = self._runner.finals([t.build for t in finalists], FINAL_ROUNDS)
        timed = [(tried, times) for tried, times in zip(finalists, rounds, strict=True) if times]
        if not timed:
            return
        best = min((times for _, times in timed), key=lambda times: Timing.of(times).median)
        for tried, times in timed:
            settled = replace(
                tried,
                measured=replace(tried.measured, timing=Timing.of(times)),
                stage="final",
                tied=times is not best and order_interval(ratios(times, best)).low <= 1.0,
            )
            self._right[self._right.index(tried)] = settled
            self._unrecorded.append(self._trial(settled.measured, settled.build, settled))

    def _default(self) -> _Tried | None:
        """What would run with no database, if it was measured and right."""
        return next((t for t in self._right if t.measured.origin == "default"), None)

    # --- what is told --------------------------------------------------------------------------------------

    @property
    def _incumbent(self) -> float | None:
        best = self._best()
        return None if best is None else best.seconds

    def _best(self) -> _Tried | None:
        settled = [t for t in self._right if t.stage == "final"]
        return min(settled or self._right, key=lambda t: t.seconds, default=None)

    def _is_over(self) -> bool:
        # Without the untuned candidate a short search might settle on what is slower than not tuning at all.
        return self._is_spent() and self._knows_untuned

    def _is_spent(self) -> bool:
        budget, left = self._of.budget, self._seconds_left()
        return self._searching_since is not None and (
            (left is not None and left <= 0)
            or (budget.patience is not None and self._since_gain >= budget.patience)
            or (budget.trials is not None and self._tried >= budget.trials)
        )

    @property
    def _tried(self) -> int:
        return sum(self._statuses.values()) - self._statuses["duplicate"]

    def _seconds_left(self) -> float | None:
        limit = self._of.budget.seconds
        if limit is None:
            return None
        return max(0.0, limit - min(SECONDS_FOR_FINALS, limit / 10) - self._seconds_searched())

    def _seconds_searched(self) -> float:
        return 0.0 if self._searching_since is None else time.monotonic() - self._searching_since

    def _seconds_prepared(self) -> float:
        return (self._searching_since or time.monotonic()) - self._preparing_since

    def _patience(self) -> float:
        """How long to wait for a build before looking at the clock, and whether somebody cancelled."""
        left = self._seconds_left()
        return min(left, POLL_SECONDS) if left else POLL_SECONDS

    def _progress(self, latest: Measured | None, finished: TuneResult | None) -> Progress:
        best = self._best()
        return Progress(
            problem=self._of.problem,
            latest=latest,
            best=None if best is None else best.measured,
            statuses=dict(self._statuses),
            seconds=self._seconds_searched(),
            seconds_left=self._seconds_left(),
            finished=finished,
        )

    def _result(self, outcome: Literal["finished", "interrupted"]) -> TuneResult:
        best, default = self._best(), self._default()
        return TuneResult(
            problem=self._of.problem,
            outcome=outcome,
            best=None if best is None else best.measured,
            default=None if default is None else default.measured,
            ties=tuple(tried.measured for tried in self._right if tried.tied),
            statuses=dict(self._statuses),
            random_draws=len(self._random),
            random_baseline=random_baseline(self._random, self._tried) if self._random else None,
            seconds=self._seconds_searched(),
            preparation_seconds=self._seconds_prepared(),
        )

    # --- what is recorded ------------------------------------------------------------------------------------

    def _trial(self, measured: Measured, build: Build, looked: Outcome | _Tried) -> Trial:
        timing = measured.timing
        return Trial(
            task=self._task,
            run=self._run.id,
            strategy=measured.strategy.name,
            config=measured.config.as_dict(),
            toolchain=self._toolchains[measured.strategy.name],
            status=measured.status,
            reason=measured.reason,
            seconds=None if timing is None else timing.median,
            low=None if timing is None else timing.low,
            high=None if timing is None else timing.high,
            rounds=0 if timing is None else timing.rounds,
            stage=looked.stage,
            tied=isinstance(looked, _Tried) and looked.tied,
            origin=measured.origin,
            error=looked.error,
            bound=looked.bound,
            source_key=build.source_key,
            convgen=convgen.__version__,
            driver=self._runner.driver,
            created=_now(),
        )

    def _closed(self, result: TuneResult) -> Run:
        summary: dict[str, Any] = {
            "statuses": dict(result.statuses),
            "seconds": round(result.seconds, 3),
            "preparation_seconds": round(result.preparation_seconds, 3),
            "random_draws": result.random_draws,
            "random_baseline": result.random_baseline,
            "clocks": self._clocks,
        }
        return replace(self._run, finished=_now(), outcome=result.outcome, summary=summary)

    def _record(self, run: Run | None = None) -> None:
        trials, self._unrecorded = self._unrecorded, []
        if self._of.database is None:
            return
        if run is not None:
            self._of.database.record_run(run)
        if trials:
            self._of.database.record(trials)


def _clocks(runner: Runner) -> dict[str, float | None]:
    info = runner.info()
    return {} if info is None else {"sm_mhz": info.sm_mhz, "celsius": info.celsius}


def _untuned(of: Assignment) -> Candidate:
    """What would run with no database."""
    chosen = min(of.strategies, key=lambda strategy: preference(of.problem, strategy, of.target))
    return Candidate(chosen, chosen.default(of.problem, of.target))


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
