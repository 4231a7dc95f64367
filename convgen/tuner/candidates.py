"""What can be tried: a strategy's legal configs for one problem, too many to list, explored where they look good."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from convgen.errors import ConfigError
from convgen.problem import Problem
from convgen.space import Config, Value, is_number
from convgen.strategies import Strategy
from convgen.target import Target

ENUMERATED = 16384
"""Points of a box that is listed whole; of a larger one a sample is drawn."""

SAMPLED, CHECKS = 512, 6144
"""Legal configs that a sample holds, and the most points looked at to find them."""

CLIMBS, STEPS = 6, 12
"""Walks downhill on the predicted cost, from the best points of the sample, and the longest of them."""

DRAWS = 20000
"""Points looked at for one uniform draw before the rest of the box is taken to be illegal."""

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Candidate:
    """A strategy with one of its configs: what a trial measures."""

    strategy: Strategy
    config: Config


class Domain:
    """The legal configs of one strategy for one problem and target.

    `pool` holds those known so far, each once: all of a box of up to ENUMERATED points, else a sample, what walking
    downhill on the predicted cost has met, and whatever is added since. Deterministic for a seed; it bounds the number
    of checks, never the time. `features` has a row and `cost` (log of predicted seconds) an element for each.
    """

    def __init__(self, strategy: Strategy, problem: Problem, target: Target, seed: int = 0) -> None:
        self.strategy = strategy
        self.pool: list[Config] = []
        self._problem, self._target = problem, target
        self._space = strategy.space(problem, target)
        self._names = tuple(self._space.choices)
        self._choices = tuple(self._space.choices.values())
        self._places: dict[Config, int] = {}
        self._legal: dict[Config, bool] = {}
        self._digits: list[list[int]] = []
        self._rows: list[list[float]] = []
        self._costs: list[float] = []
        self._random = random.Random(f"{seed} {strategy.name}")
        self.size = math.prod(map(len, self._choices))
        self.whole = self.size <= ENUMERATED
        self._explore()
        self._listed = len(self.pool)
        self._normal = self._measure_spread()
        self._cached = self._as_arrays()

    @property
    def features(self) -> Array:
        """(len(pool), fields): numbers as log2, words as one column a value, each of unit spread over the pool."""
        return self._arrays()[0]

    @property
    def digits(self) -> npt.NDArray[np.int64]:
        """(len(pool), fields): the position of each value in its field's choices, -1 for one that is not there."""
        return self._arrays()[1]

    @property
    def cost(self) -> Array:
        """(len(pool),): the log of the predicted seconds."""
        return self._arrays()[2]

    @property
    def choices(self) -> dict[str, tuple[Value, ...]]:
        """The values of each field of the box."""
        return dict(zip(self._names, self._choices, strict=True))

    def place(self, config: Config) -> int:
        """Where a config stands in the pool, which it joins if it is new; it must be legal."""
        self.add([config])
        return self._places[config]

    def predicted(self, config: Config) -> float:
        """The log of a legal config's predicted seconds; it joins the pool."""
        place = self.place(config)  # first: what is looked up grows with it
        return self._costs[place]

    def legal(self, config: Config) -> bool:
        """Whether `check` lets it pass."""
        if config not in self._legal:
            try:
                self.strategy.check(self._problem, config, self._target)
                self._legal[config] = True
            except ConfigError:
                self._legal[config] = False
        return self._legal[config]

    def add(self, configs: Iterable[Config]) -> None:
        """Let legal configs join the pool."""
        for config in configs:
            if config not in self._places:
                self._legal[config] = True
                self._places[config] = len(self.pool)
                self.pool.append(config)
                self._digits.append(self._digit(config))
                self._rows.append(self._row(config))
                self._costs.append(math.log(self.strategy.cost(self._problem, config, self._target)))

    def neighbours(self, config: Config) -> Iterator[Config]:
        """Legal configs of the box that differ in one field, in any way."""
        moved = (other for name in self._names for other in self._space.neighbours(config, name))
        return filter(self.legal, moved)

    def exchanges(self, config: Config) -> Iterator[Config]:
        """Legal configs where a step is exchanged between two numbers."""
        return filter(self.legal, self._space.exchanges(config))

    def draw(self, rng: random.Random, seen: Iterable[Config]) -> Config | None:
        """One of the legal configs of the box that are not in `seen`, each equally likely; None if none is found."""
        tried = set(seen)
        if self.whole:
            left = [config for config in self.pool[: self._listed] if config not in tried]
            return rng.choice(left) if left else None
        for _ in range(DRAWS):
            config = self._point(rng.randrange(self.size))
            if config not in tried and self.legal(config):
                return config
        return None

    def _explore(self) -> None:
        if self.whole:
            self.add(filter(self.legal, map(self._point, range(self.size))))
            return
        points = self._random.sample(range(self.size), CHECKS)
        self.add(itertools.islice(filter(self.legal, map(self._point, points)), SAMPLED))
        starts = sorted(range(len(self.pool)), key=self._costs.__getitem__)[:CLIMBS]
        for config in [self.strategy.default(self._problem, self._target), *(self.pool[place] for place in starts)]:
            self.climb(config)

    def climb(self, config: Config) -> None:
        """Walk from a legal config to where no neighbour has less predicted cost; all neighbours join the pool."""
        place = self.place(config)
        for _ in range(STEPS):
            near = [self.place(moved) for moved in self.neighbours(self.pool[place])]
            best = min(near, key=self._costs.__getitem__, default=place)
            if self._costs[best] >= self._costs[place]:
                break
            place = best

    def _point(self, index: int) -> Config:
        values = []
        for choices in reversed(self._choices):
            index, digit = divmod(index, len(choices))
            values.append(choices[digit])
        return self._space.config_type(*reversed(values))

    def _digit(self, config: Config) -> list[int]:
        values = (getattr(config, name) for name in self._names)
        return [c.index(v) if v in c else -1 for v, c in zip(values, self._choices, strict=True)]

    def _row(self, config: Config) -> list[float]:
        row = []
        for name, choices in zip(self._names, self._choices, strict=True):
            value = getattr(config, name)
            if all(map(is_number, choices)):
                row.append(math.log2(max(value, 0.5)))
            else:
                row += [float(value == choice) for choice in choices]
        return row

    def _measure_spread(self) -> tuple[Array, Array]:
        rows = np.asarray(self._rows if self._rows else [[0.0]])
        spread = rows.std(axis=0)
        return rows.mean(axis=0), np.where(spread > 0, spread, 1.0)

    def _arrays(self) -> tuple[Array, npt.NDArray[np.int64], Array]:
        if len(self._cached[2]) < len(self.pool):
            self._cached = self._as_arrays()
        return self._cached

    def _as_arrays(self) -> tuple[Array, npt.NDArray[np.int64], Array]:
        center, scale = self._normal
        rows = np.asarray(self._rows).reshape(len(self.pool), -1 if self.pool else len(center))
        digits = np.asarray(self._digits, dtype=np.int64).reshape(len(self.pool), len(self._names))
        return (rows - center) / scale, digits, np.asarray(self._costs)
