"""The strategies, found by scanning this folder: every module that defines `STRATEGY` is one.

Adding an algorithm is adding `strategies/<name>.py` and `templates/conv/<name>.cu.j2`; no list is edited.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil

from convgen.errors import UsageError
from convgen.problem import Problem
from convgen.strategies.base import Strategy

__all__ = ["Strategy", "all_strategies", "get_strategy", "strategies_of"]


@functools.cache
def all_strategies() -> tuple[Strategy, ...]:
    """Every strategy, sorted by name."""
    modules = (importlib.import_module(f"{__name__}.{m.name}") for m in pkgutil.iter_modules(__path__))
    found = [m.STRATEGY for m in modules if hasattr(m, "STRATEGY")]
    return tuple(sorted(found, key=lambda s: s.name))


def strategies_of(problem: Problem) -> tuple[Strategy, ...]:
    """Those that are for problems of that type, sorted by name."""
    return tuple(strategy for strategy in all_strategies() if isinstance(problem, strategy.solves))


def get_strategy(name: str) -> Strategy:
    """The strategy of that name. Raises UsageError that lists the names there are."""
    for strategy in all_strategies():
        if strategy.name == name:
            return strategy
    raise UsageError(f"strategy {name!r}: expected one of {', '.join(s.name for s in all_strategies())}")
