"""What a tuner is asked for, tells on the way, and answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from convgen.measure import Timing
from convgen.problem import Problem
from convgen.space import Config
from convgen.strategies import Strategy


@dataclass(frozen=True)
class Budget:
    """When a search ends: at the first limit that is reached, or when nothing is left to try.

    `trials` counts candidates that were compiled; `patience` is how many of them in a row may bring no gain. `seconds`
    are of searching: the problem's inputs, and what is right for them, are prepared before. What would run untuned is
    measured whatever the time, so that a short search never does worse.
    """

    trials: int | None = None
    seconds: float | None = 60.0
    patience: int | None = None


@dataclass(frozen=True)
class Measured:
    """A candidate and what came of it: `status` is "ok" or what went wrong (`tuning_db.Trial`)."""

    strategy: Strategy
    config: Config
    origin: str
    status: str
    reason: str = ""
    timing: Timing | None = None

    @property
    def seconds(self) -> float | None:
        return self.timing.median if self.timing is not None and self.status == "ok" else None


@dataclass(frozen=True)
class TuneResult:
    """What a search, or the database in its place, says of one problem."""

    problem: Problem
    outcome: Literal["served", "finished", "interrupted"]
    """From the database without a trial; searched to its budget; or stopped before that."""
    best: Measured | None
    """The fastest that gave right answers; None if none did."""
    default: Measured | None = None
    """What would run without tuning, measured in the same session."""
    ties: tuple[Measured, ...] = ()
    """Finalists that cannot be told from the best within the noise."""
    statuses: Mapping[str, int] = field(default_factory=dict)
    """Candidates by what came of them; "duplicate" those whose source another had already given."""
    random_draws: int = 0
    """Candidates that were drawn uniformly, and gave right answers."""
    random_baseline: float | None = None
    """Seconds that blind search would be expected to reach with as many trials, by those draws; where the trials are
    more than the draws, the best of the draws. None without one."""
    seconds: float = 0.0
    """What the search took, once everything was prepared; 0 if it came to none."""
    preparation_seconds: float = 0.0
    """What it took before: to start processes, make inputs, compute what is right for them, and build a candidate."""

    @property
    def trials(self) -> int:
        """Candidates compiled."""
        return sum(count for status, count in self.statuses.items() if status != "duplicate")


@dataclass(frozen=True)
class Progress:
    """How far a search has come, after every candidate."""

    problem: Problem
    latest: Measured | None
    best: Measured | None
    statuses: Mapping[str, int]
    seconds: float
    seconds_left: float | None
    finished: TuneResult | None = None


ProgressCallback = Callable[[Progress], None]
