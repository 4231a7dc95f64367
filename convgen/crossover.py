"""Which strategy is predicted to be fastest for which filter: the same problem with smaller and larger filters."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from convgen.errors import ConfigError, ProblemError
from convgen.lowering import refusal
from convgen.problem import Conv, Direction
from convgen.strategies import Strategy
from convgen.target import Target

LANDMARKS = ("direct", "winograd", "fft")
"""One strategy for each way of doing the arithmetic: they are shown wherever they apply."""

EXTENTS = {1: tuple(4 << power for power in range(13)), 2: (3, 5, 7, 9, 11, 13, 15, 21, 27, 31, 41, 51, 63)}
"""Extents of filters by the number of axes."""


@dataclass(frozen=True)
class Crossover:
    """Predicted seconds of strategies' defaults over the extent of a filter that is as long along every axis."""

    extents: tuple[int, ...]
    seconds: Mapping[str, tuple[float | None, ...]]
    """By strategy, of all that apply at some extent; None where one does not."""

    @property
    def fastest(self) -> tuple[str | None, ...]:
        """The strategy that is predicted to be fastest, at every extent; None where none applies."""
        return tuple(self._fastest_at(place) for place in range(len(self.extents)))

    @property
    def shown(self) -> tuple[str, ...]:
        """The strategies worth a column: those that are the fastest somewhere, and the landmarks."""
        return tuple(name for name in self.seconds if name in self.fastest or name in LANDMARKS)

    def _fastest_at(self, place: int) -> str | None:
        times = {name: seconds for name, row in self.seconds.items() if (seconds := row[place]) is not None}
        return min(times, key=times.__getitem__, default=None)

    def ahead_from(self, strategy: str) -> int | None:
        """The least extent from which on that strategy stays the fastest; None if it is not at the largest."""
        start = None
        for extent, name in zip(self.extents, self.fastest, strict=True):
            start = None if name != strategy else start or extent
        return start


def crossover(problem: Conv, strategies: Iterable[Strategy], target: Target) -> Crossover | None:
    """What each strategy is predicted to take for the same problem with filters of EXTENTS.

    Padding is half of the filter's reach; all else is the problem's. Extents that make no valid problem are left out.
    Cost models that are not calibrated are left out: their times say nothing beside others'. None where the filter's
    size is not what matters, for volumes and in wgrad, and where nothing applies.
    """
    if problem.nd not in EXTENTS or problem.direction is Direction.WGRAD:
        return None
    variants = {e: found for e in EXTENTS[problem.nd] if (found := with_filter(problem, e)) is not None}
    rows = {s.name: tuple(_seconds(s, v, target) for v in variants.values()) for s in strategies if s.calibrated}
    seconds = {name: row for name, row in rows.items() if any(row)}
    return Crossover(tuple(variants), seconds) if seconds else None


def with_filter(problem: Conv, extent: int) -> Conv | None:
    """The problem with a filter of that extent along each axis; None if there is no such problem."""
    reaches = [dilation * (extent - 1) for dilation in problem.dilation]
    low, high = tuple(reach // 2 for reach in reaches), tuple(reach - reach // 2 for reach in reaches)
    try:
        return dataclasses.replace(problem, filter=(extent,) * problem.nd, pad_lo=low, pad_hi=high)
    except ProblemError:
        return None


def _seconds(strategy: Strategy, problem: Conv, target: Target) -> float | None:
    if refusal(problem, strategy, target) is not None:
        return None
    default = strategy.default(problem, target)
    try:
        strategy.check(problem, default, target)
    except ConfigError:
        return None
    return strategy.cost(problem, default, target)
