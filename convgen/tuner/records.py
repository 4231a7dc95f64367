"""What a search knows of one strategy: which of its configs are under way, which were measured, with what result."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from convgen.space import Config
from convgen.tuner.candidates import Array, Domain

Places = npt.NDArray[np.int64]

CLOSE = 0.3
"""Logs of time up to which differences count in full; beyond, ever less: what is ten times slower is just bad."""

FAILED = 1.0
"""What a failure counts as at least, in the same units: about nine times slower than the best."""

WATCHED = 3
"""Measured configs, the fastest, whose surroundings join the pool."""


@dataclass
class Record:
    """`measured` holds, by place in the domain's pool, the log of the seconds, infinite for a failure."""

    domain: Domain
    measured: dict[int, float] = field(default_factory=dict)
    pending: dict[int, None] = field(default_factory=dict)
    _watched: set[int] = field(default_factory=set)

    @property
    def best(self) -> float:
        """The least log of seconds; infinite before the first success."""
        return min(self.measured.values(), default=math.inf)

    @property
    def bias(self) -> float:
        """The median of what the log of the predicted seconds lacks; 0 before the first success."""
        cost = self.domain.cost
        lacks = [value - cost[place] for place, value in self.measured.items() if value < math.inf]
        return float(np.median(lacks)) if lacks else 0.0

    @property
    def ranked(self) -> list[int]:
        """Places measured with success, fastest first."""
        return sorted((p for p, value in self.measured.items() if value < math.inf), key=self.measured.__getitem__)

    @property
    def untried(self) -> Places:
        """Places neither measured nor under way."""
        left = np.ones(len(self.domain.pool), dtype=bool)
        left[self.tried] = False
        return np.flatnonzero(left)

    def is_untried(self, place: int) -> bool:
        return place not in self.measured and place not in self.pending

    @property
    def tried(self) -> list[int]:
        return [*self.measured, *self.pending]

    def ask(self, config: Config) -> bool:
        """Note that a config is under way; False if it was before, or is measured."""
        place = self.domain.place(config)
        if not self.is_untried(place):
            return False
        self.pending[place] = None
        return True

    def tell(self, config: Config, seconds: float | None) -> None:
        """Note a result; None is a failure. A later result replaces the earlier."""
        place = self.domain.place(config)
        self.pending.pop(place, None)
        self.measured[place] = math.inf if seconds is None else math.log(seconds)
        for near in self.ranked[:WATCHED]:
            if near not in self._watched:
                self._watched.add(near)
                self.domain.add(self.domain.neighbours(self.domain.pool[near]))
                self.domain.add(self.domain.exchanges(self.domain.pool[near]))


def loss(slower: Array) -> Array:
    """What being that much slower than the best, in logs of seconds, counts; 0 for no slower."""
    result: Array = CLOSE * np.log1p(np.maximum(slower, 0.0) / CLOSE)
    return result


def losses(record: Record, best: float) -> Array:
    """For each measured config, in order, its loss to `best` (log of seconds); a failure's is FAILED or the worst."""
    values = np.array(list(record.measured.values()))
    failed = np.isinf(values)
    lost = loss(values[~failed] - best)
    result = np.full(len(values), max(FAILED, lost.max(initial=0.0)))
    result[~failed] = lost
    return result


def incumbent(records: Sequence[Record]) -> Record | None:
    """The record that holds the fastest config; None before the first success."""
    best = min(records, key=lambda record: record.best)
    return best if best.best < math.inf else None
