"""Comparing times that were taken in turn, round by round."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

CONFIDENCE = 0.95
"""What an interval aims at. With fewer than six rounds none reaches it, and the widest there is stands in."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A median and where the true one lies: between `low` and `high` with at least `confidence`."""

    median: float
    low: float
    high: float
    confidence: float


def order_interval(values: Sequence[float], confidence: float = CONFIDENCE) -> Interval:
    """The median's distribution-free interval: the k-th smallest to the k-th largest value.

    It misses the true median with a probability of 2 * P(Binomial(n, 1/2) < k), whatever the distribution (David and
    Nagaraja, "Order Statistics", section 7.1). k is the largest for which the interval still has `confidence`.
    """
    ordered = sorted(values)
    n = len(ordered)
    if n == 0:
        raise ValueError("no values: an interval needs at least one")
    k = 1
    while k < (n + 1) // 2 and coverage(n, k + 1) >= confidence:
        k += 1
    return Interval(statistics.median(ordered), ordered[k - 1], ordered[n - k], coverage(n, k))


def coverage(n: int, k: int) -> float:
    """Probability that the k-th smallest to the k-th largest of `n` values encloses the true median."""
    return 1.0 - 2.0 * sum(math.comb(n, i) for i in range(k)) / 2.0**n


def ratios(numerators: Sequence[float], denominators: Sequence[float]) -> list[float]:
    """Round by round."""
    return [a / b for a, b in zip(numerators, denominators, strict=True)]


def geomean(values: Iterable[float | None]) -> float | None:
    """Of those that are known; None if none is."""
    known = [value for value in values if value is not None]
    return statistics.geometric_mean(known) if known else None
