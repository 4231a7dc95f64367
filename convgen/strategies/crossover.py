"""Which algorithm is predicted to be fastest for which filter: the same problem with smaller and larger filters."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from convgen.errors import ProblemError
from convgen.problem import Conv, Direction
from convgen.strategies.base import Strategy
from convgen.target import Target

COMPARED = ("direct", "halo_tiled", "winograd", "fft")
"""One strategy for each way of doing the arithmetic, and the two that do it in order."""

EXTENTS = {1: tuple(4 << power for power in range(13)), 2: (3, 5, 7, 9, 11, 13, 15, 21, 27, 31, 41, 51, 63)}
"""Extents of filters by the number of axes."""


@dataclass(frozen=True)
class Crossover:
    """Predicted seconds of strategies' defaults over the extent of a filter that is as long along every axis."""

    extents: tuple[int, ...]
    seconds: Mapping[str, tuple[float | None, ...]]
    """By strategy; None where it does not apply."""

    def fastest(self) -> tuple[str | None, ...]:
        """The strategy that is predicted to be fastest, at every extent; None where none applies."""
        columns = zip(*self.seconds.values(), strict=True)
        return tuple(
            min(((s, name) for name, s in zip(self.seconds, column, strict=True) if s is not None), default=(0, None))[
                1
            ]
            for column in columns
        )

    def ahead_from(self, strategy: str) -> int | None:
        """The least extent from which on that strategy stays the fastest; None if it is not at the largest."""
        start = None
        for extent, name in zip(self.extents, self.fastest(), strict=True):
            start = None if name != strategy else start or extent
        return start


def crossover(problem: Conv, strategies: Iterable[Strategy], target: Target) -> Crossover | None:
    """What each strategy is predicted to take for the same problem with filters of EXTENTS.

    Padding is half of the filter's reach; all else is the problem's. Extents that make no valid problem are left out.
    None where the filter's size is not what matters: for volumes, and in wgrad.
    """
    if problem.nd not in EXTENTS or problem.direction is Direction.WGRAD:
        return None
    variants = {e: found for e in EXTENTS[problem.nd] if (found := with_filter(problem, e)) is not None}
    rows = {s.name: tuple(_seconds(s, v, target) for v in variants.values()) for s in strategies if s.name in COMPARED}
    return Crossover(tuple(variants), rows)


def with_filter(problem: Conv, extent: int) -> Conv | None:
    """The problem with a filter of that extent along each axis; None if there is no such problem."""
    reaches = [dilation * (extent - 1) for dilation in problem.dilation]
    low, high = tuple(reach // 2 for reach in reaches), tuple(reach - reach // 2 for reach in reaches)
    try:
        return dataclasses.replace(problem, filter=(extent,) * problem.nd, pad_lo=low, pad_hi=high)
    except ProblemError:
        return None


def _seconds(strategy: Strategy, problem: Conv, target: Target) -> float | None:
    if strategy.why_not(problem, target) is not None:
        return None
    return strategy.cost(problem, strategy.default(problem, target), target)
