"""From a plain config to one nearby that the cost model prefers: how strategies settle their defaults."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence
from typing import Any

from convgen.errors import ConfigError
from convgen.problem import Conv
from convgen.space import Config
from convgen.strategies.base import Strategy
from convgen.target import Target

ROUNDS = 4
GAIN = 0.995
"""A config is taken if it is predicted to need less than this much of the time: finer the model does not know."""


@functools.lru_cache(maxsize=512)
def settled(strategy: Strategy, problem: Conv, target: Target, start: Config) -> Any:
    """The config that a walk downhill on the predicted cost ends at; legal if `start` is.

    Of two walks, since which field is settled first decides which valley is found. Of bounded length; the same call is
    answered from memory.
    """
    fields = list(strategy.space(problem, target).choices)
    ends = [_walk(strategy, problem, target, start, order) for order in (fields, fields[::-1])]
    return min(ends, key=lambda end: end[1])[0]


def _walk(
    strategy: Strategy, problem: Conv, target: Target, start: Config, fields: Sequence[str]
) -> tuple[Config, float]:
    """ROUNDS times at most: every value of every field, one field after the other, then every exchange of a step."""
    space = strategy.space(problem, target)
    chosen, least = start, strategy.cost(problem, start, target)

    def move(others: Iterable[Config]) -> None:
        nonlocal chosen, least
        for other in others:
            cost = cost_if_legal(strategy, problem, target, other)
            if cost < least * GAIN:
                chosen, least = other, cost

    for _ in range(ROUNDS):
        before = chosen
        for field in fields:
            move(space.neighbours(chosen, field))
        move(space.exchanges(chosen))
        if chosen == before:
            break
    return chosen, least


def cost_if_legal(strategy: Strategy, problem: Conv, target: Target, config: Config) -> float:
    """The predicted cost; infinite for a config that is not legal."""
    try:
        strategy.check(problem, config, target)
    except ConfigError:
        return math.inf
    return strategy.cost(problem, config, target)
