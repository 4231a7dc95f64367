"""Decisions from the tuning database, and tuning what it lacks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from convgen.api.decision import Decider, Decision
from convgen.problem import Conv
from convgen.target import Target

if TYPE_CHECKING:
    from tuning_db import Layers


class Tuned:
    """A `Decider` over the layers of the tuning database."""

    def __init__(self, layers: Layers) -> None:
        self._layers = layers

    def ranked(self, problem: Conv, target: Target) -> Iterable[Decision]:
        from convgen.tuner.decide import ranked

        return ranked(problem, target, self._layers)

    def tune(self, problem: Conv, target: Target, device: int, *, time_limit: float | None, trials: int | None) -> None:
        from convgen.tuner.events import Budget
        from convgen.tuner.session import Tuner

        budget = Budget(trials=trials, seconds=time_limit)
        with Tuner(target, database=self._layers, budget=budget, devices=(device,)) as tuner:
            tuner.tune(problem)


def connect() -> Decider:
    """The decider of the database that the environment names."""
    from tuning_db import open_layers

    return Tuned(open_layers())
