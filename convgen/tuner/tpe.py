"""Optuna's tree-structured Parzen estimator on a strategy's fields, each a category, kept in memory."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from convgen.tuner.quiet import quiet_optuna
from convgen.tuner.records import Record, incumbent
from convgen.tuner.samplers import Choice

STARTUP = 5
"""Results before the estimator is asked; fewer are answered at random."""

WORST = 100.0
"""What a failure counts as, in logs of seconds: slower than anything measured."""


class Tpe:
    """Proposes for the strategy that holds the fastest config; the drawn point is moved to the nearest untried one."""

    origin = "tpe"

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._studies: dict[int, _Study] = {}

    def propose(self, records: Sequence[Record]) -> Choice | None:
        record = incumbent(records)
        if record is None:
            return None
        untried = record.untried
        if untried.size == 0:
            return None
        position = next(i for i, r in enumerate(records) if r is record)
        if position not in self._studies:
            self._studies[position] = _Study(record, self._seed + position)
        drawn = self._studies[position].draw()
        apart = (record.domain.digits[untried] != drawn).sum(axis=1)
        nearest = untried[np.lexsort((record.domain.cost[untried], apart))[0]]
        return record, record.domain.pool[int(nearest)]


class _Study:
    def __init__(self, record: Record, seed: int) -> None:
        import optuna

        self._record = record
        self._told: set[int] = set()
        self._choices = record.domain.choices
        self._distributions: dict[str, optuna.distributions.BaseDistribution] = {
            name: optuna.distributions.CategoricalDistribution(values) for name, values in self._choices.items()
        }
        sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=STARTUP, constant_liar=False)
        with quiet_optuna():
            self._study = optuna.create_study(sampler=sampler, direction="minimize")

    def draw(self) -> list[int]:
        """A point of the box, as positions in the lists of choices; it need not be legal."""
        import optuna

        self._sync()
        trial = self._study.ask(self._distributions)
        # What will be measured is another point, told as a trial of its own; a failed one counts for nothing.
        self._study.tell(trial, state=optuna.trial.TrialState.FAIL)
        return [values.index(trial.params[name]) for name, values in self._choices.items()]

    def _sync(self) -> None:
        import optuna

        for place, value in self._record.measured.items():
            params = self._record.domain.pool[place].as_dict()
            in_box = all(params[name] in values for name, values in self._choices.items())
            if place not in self._told and in_box:
                self._told.add(place)
                self._study.add_trial(
                    optuna.trial.create_trial(params=params, distributions=self._distributions, value=min(value, WORST))
                )
