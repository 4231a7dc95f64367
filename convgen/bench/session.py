"""A benchmark from problem to entry: choose, build, verify, time in turn, write down."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from convgen.bench.choices import Decide
from convgen.bench.contest import Arena, Contest, hold, sentence
from convgen.bench.results import Entry
from convgen.bench.settling import DEFAULT, FROZEN, OURS, Lineup, described, quartiles, settled
from convgen.errors import ConvgenError, DeviceError, NotApplicableError
from convgen.measure import PROTOCOL
from convgen.problem import Problem, SuiteEntry
from convgen.target import Target
from convgen.tuner.decide import Decision
from convgen.tuner.keys import task_of
from tuning_db import Layers, Peer

GROUP = 16
"""Problems whose kernels are compiled together, before any of them is timed."""


class Venue(Protocol):
    """What has a GPU: builds our kernels, asks the peers, verifies all of them; its arenas time them."""

    peer_version: str
    driver: str

    def prebuild(self, wanted: Sequence[tuple[Problem, Decision]]) -> None:
        """Compile ahead, on all cores."""

    def open(self, problem: Problem, ours: Mapping[str, Decision]) -> AbstractContextManager[tuple[Arena, Lineup]]:
        """The arena of a problem and who can take part; ours by name, FROZEN with its weights declared constant."""

    def clocks(self) -> Mapping[str, float] | None:
        """What they are now."""

    def is_alive(self) -> bool:
        """Whether the GPU still does what it is asked: some errors end all work of a process."""


class Bench:
    """Benchmarks problems one after the other."""

    def __init__(
        self, target: Target, venue: Venue, decide: Decide, layers: Layers | None = None, rounds: int | None = None
    ) -> None:
        """`layers` are asked for winners, and told the peers' times. `rounds` of a contest are chosen unless given."""
        self.target = target
        self._venue = venue
        self._decide = decide
        self._layers = layers
        self._rounds = rounds

    def run(self, entries: Iterable[SuiteEntry]) -> Iterator[Entry]:
        """One entry each, as they are ready. Raises DeviceError when the GPU is lost, after the entry that lost it."""
        waiting = list(entries)
        for start in range(0, len(waiting), GROUP):
            chosen = [(entry, self._chosen(entry)) for entry in waiting[start : start + GROUP]]
            self._venue.prebuild([(p, d) for _, found in chosen if isinstance(found, tuple) for p, d in _wanted(found)])
            for entry, found in chosen:
                yield self._one(entry, found)
                if not self._venue.is_alive():
                    raise DeviceError(
                        f"the GPU is lost after {entry.id or entry.problem}: what was measured is kept, and the same "
                        "command in a new process goes on behind it"
                    )

    def _chosen(self, entry: SuiteEntry) -> tuple[Problem, Decision, Decision] | str:
        """The problem, the best known kernel and the default for it; or why there are none."""
        problem = entry.problem
        try:
            best = self._decide(problem, self.target, self._layers)
            return problem, best, self._decide(problem, self.target, None)
        except NotApplicableError as error:
            return sentence(error)

    def _one(self, entry: SuiteEntry, found: tuple[Problem, Decision, Decision] | str) -> Entry:
        blank = described(entry, self.target)
        if isinstance(found, str):
            return dataclasses.replace(blank, reason=found)
        problem, best, default = found
        blank = dataclasses.replace(
            blank,
            strategy=best.strategy.name,
            config=best.config.as_dict(),
            origin=best.origin,
            default_strategy=default.strategy.name,
            default_config=default.config.as_dict(),
        )
        same = _is_same(best, default)
        before = self._venue.clocks()
        try:
            ours = {OURS: best, FROZEN: best} if same else {OURS: best, DEFAULT: default, FROZEN: best}
            with self._venue.open(problem, ours) as (arena, lineup):
                contest = hold(arena, lineup.timed(), self._rounds)
        # RuntimeError is what CuPy and PyTorch make of an error of CUDA's.
        except (ConvgenError, MemoryError, RuntimeError) as error:
            return dataclasses.replace(blank, reason=sentence(error))
        made = settled(blank, contest, lineup, same)
        self._record(problem, entry.family, made, contest)
        clocks = {"before": before, "after": self._venue.clocks()}
        return dataclasses.replace(made, clocks=clocks)

    def _record(self, problem: Problem, family: str, entry: Entry, contest: Contest) -> None:
        if self._layers is None or not entry.peers:
            return
        task = task_of(problem, self.target, family)
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        self._layers.record_peers(
            Peer(
                task,
                name,
                *quartiles(contest.times[name]),
                rounds=contest.rounds,
                version=self._venue.peer_version,
                driver=self._venue.driver,
                protocol=PROTOCOL,
                created=now,
            )
            for name in entry.peers
            if name not in entry.out_of_bound
        )


def _is_same(a: Decision, b: Decision) -> bool:
    return (a.strategy.name, a.config) == (b.strategy.name, b.config)


def _wanted(found: tuple[Problem, Decision, Decision]) -> list[tuple[Problem, Decision]]:
    problem, best, default = found
    return [(problem, best)] if _is_same(best, default) else [(problem, best), (problem, default)]
