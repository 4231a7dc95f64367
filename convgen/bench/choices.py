"""Which of our kernels take part: the best known, and what is answered without a database."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from convgen.errors import NotApplicableError
from convgen.lowering import why_not
from convgen.problem import Problem
from convgen.strategies import Strategy
from convgen.target import Target
from convgen.tuner.decide import Decision, decide, stored
from tuning_db import Layers

Decide = Callable[[Problem, Target, Any], Decision]
"""As `tuner.decide.decide`: the best known kernel by what is known to some layers, None for no database."""


def decider(strategy: Strategy | None = None) -> Decide:
    """`tuner.decide.decide`, or the same among one strategy's configs."""
    return decide if strategy is None else lambda problem, target, layers: best_of(strategy, problem, target, layers)


def best_of(strategy: Strategy, problem: Problem, target: Target, layers: Layers | None) -> Decision:
    """The strategy's tuned config for this very problem, else its default. Raises NotApplicableError."""
    reason = why_not(problem, strategy, target)
    if reason is not None:
        raise NotApplicableError(f"{strategy.name} does not apply: {reason}")
    if layers is not None:
        tuned = stored(problem, target, layers, (strategy,))
        if tuned is not None:
            return tuned
    return Decision(strategy, strategy.default(problem, target), "predicted")
