"""Who proposes what to measure next. A sampler sees every strategy's record and names a config, or nothing."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from convgen.space import Config
from convgen.tuner.candidates import Array
from convgen.tuner.records import Places, Record, incumbent, loss, losses
from convgen.tuner.surrogate import GaussianProcess, log_expected_improvement

Choice = tuple[Record, Config]

VARIETY = 0.5, 3
"""Spreads of the predicted cost that a differing field is worth to the prior, and how many fields count."""

SHORTLIST = 64
"""Best predicted configs that the prior chooses from."""

CROWDING = 0.1
"""Logs of predicted time that each trial of a strategy counts against it, while only predictions are known."""

LEAST_KNOWN = 2
"""Trials that every strategy is given, and results before the surrogate judges it."""

SCANNED = 2048
"""Untried configs, those predicted fastest, of which the surrogate weighs each."""

DOUBT, DOUBTED = 0.3, 2
"""The spread of losses expected of a strategy, and how many results outweigh that."""

PESSIMISM = 0.1
"""Added to the mean loss, for what is far from anything measured."""

TRUST = 0.5
"""In the cost model: the part of a predicted loss that is expected where nothing near is measured."""


class Sampler(Protocol):
    origin: str
    """What a proposal is filed under."""

    def propose(self, records: Sequence[Record]) -> Choice | None:
        """A config that is not tried; None if the sampler has nothing to say."""


def is_known(record: Record) -> bool:
    """True if a strategy had the trials that each is given; one bad default is not to decide."""
    return len(record.tried) >= min(LEAST_KNOWN, len(record.domain.pool))


class Prior:
    """The cost model's best, made to differ from what was tried; first of strategies that had too few trials."""

    origin = "prior"

    def propose(self, records: Sequence[Record]) -> Choice | None:
        offers = [offer for record in records if (offer := self._offer(record)) is not None]
        if not offers:
            return None
        _, record, place = min(offers, key=lambda offer: offer[0])
        return record, record.domain.pool[place]

    def _offer(self, record: Record) -> tuple[tuple[bool, float], Record, int] | None:
        untried = record.untried
        if untried.size == 0:
            return None
        cost = record.domain.cost
        few = untried[np.argsort(cost[untried], kind="stable")[:SHORTLIST]]
        place = int(few[0])
        if record.tried:
            worth, most = VARIETY
            rows = record.domain.digits
            apart = (rows[few][:, None, :] != rows[record.tried][None]).sum(axis=2).min(axis=1)
            spread = max(float(cost.std()), 1e-9)
            place = int(few[np.argmin(cost[few] / spread - worth * np.minimum(apart, most))])
        predicted = float(cost[few[0]]) + record.bias
        return (is_known(record), predicted + CROWDING * len(record.tried)), record, place


class Surrogate:
    """The largest expected improvement on the best of all strategies, by a Gaussian process of each one's losses."""

    origin = "surrogate"

    def __init__(self) -> None:
        self._processes: dict[int, GaussianProcess] = {}

    def propose(self, records: Sequence[Record]) -> Choice | None:
        best = min(record.best for record in records)
        if best == math.inf:
            return None
        offers = []
        for position, record in enumerate(records):
            untried = self._scanned(record)
            if len(record.measured) < LEAST_KNOWN or untried.size == 0:
                continue
            gains = self._gains(position, record, untried, best)
            chosen = int(np.argmax(gains))
            offers.append((float(gains[chosen]), -position, int(untried[chosen])))
        if not offers:
            return None
        _, position, place = max(offers)
        return records[-position], records[-position].domain.pool[place]

    @staticmethod
    def _scanned(record: Record) -> Places:
        untried = record.untried
        if untried.size <= SCANNED:
            return untried
        return np.sort(untried[np.argsort(record.domain.cost[untried], kind="stable")[:SCANNED]])

    def _gains(self, position: int, record: Record, untried: Places, best: float) -> Array:
        """Log of the expected improvement at each untried place, in losses."""
        features, cost = record.domain.features, record.domain.cost
        process = self._processes.setdefault(position, GaussianProcess(features.shape[1]))
        measured = list(record.measured)
        # The process explains what the cost model, shifted to what was measured, gets wrong.
        expected = TRUST * loss(cost + record.bias - best)
        missed = losses(record, best) - expected[measured]
        n, center = len(missed), float(missed.mean()) + PESSIMISM
        scale = math.sqrt((DOUBTED * DOUBT**2 + n * float(missed.var())) / (DOUBTED + n))
        points, values = features[measured], (missed - center) / scale
        process.fit(points, values)
        mean, deviation = process.predict(points, values, features[list(record.pending)], features[untried])
        return log_expected_improvement(expected[untried] + center + scale * mean, scale * deviation, 0.0)


class Local:
    """Greedy: the neighbours of the fastest config, those predicted fastest first; then of the next."""

    origin = "local"

    def propose(self, records: Sequence[Record]) -> Choice | None:
        record = incumbent(records)
        if record is None:
            return None
        domain = record.domain
        for place in record.ranked:
            near = [domain.place(config) for config in domain.neighbours(domain.pool[place])]
            untried = [p for p in near if record.is_untried(p)]
            if untried:
                cost = domain.cost
                return record, domain.pool[min(untried, key=lambda p: cost[p])]
        return None


class Uniform:
    """Any legal config of any strategy, each strategy equally often: what blind search would draw."""

    origin = "random"

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def propose(self, records: Sequence[Record]) -> Choice | None:
        left = list(records)
        while left:
            record = left.pop(self._random.randrange(len(left)))
            config = record.domain.draw(self._random, (record.domain.pool[place] for place in record.tried))
            if config is not None:
                return record, config
        return None
