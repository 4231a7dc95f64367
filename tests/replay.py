"""Searches replayed against recorded times: a table holds every legal config of a narrowed space, all measured."""

from __future__ import annotations

import gzip
import json
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from convgen.errors import ConfigError
from convgen.problem import Conv
from convgen.space import Config, Space
from convgen.strategies import Strategy, get_strategy
from convgen.target import Target
from convgen.tuner.candidates import Candidate
from convgen.tuner.search import Search

TABLES = Path(__file__).parent / "tables"


@dataclass(eq=False)
class Recorded:
    """A strategy narrowed to a table: legal is what was measured, the search space is the table's."""

    inner: Strategy
    problem: Conv
    choices: Space
    seconds: dict[Config, float | None]
    """None for a config that failed on the card."""
    label: str
    costs: dict[Config, float] = field(default_factory=dict)
    calibrated = True

    @property
    def name(self) -> str:
        return self.inner.name

    @property
    def best(self) -> float:
        return min(value for value in self.seconds.values() if value is not None)

    def space(self, problem: Conv, target: Target) -> Space:
        return self.choices

    def check(self, problem: Conv, config: Any, target: Target) -> None:
        if config not in self.seconds:
            raise ConfigError(f"{config}: not in table {self.label}")

    def default(self, problem: Conv, target: Target) -> Any:
        """The strategy's own if the table has it, else the one of the table that the cost model prefers."""
        own = self.inner.default(self.problem, target)
        if own in self.seconds:
            return own
        return min(self.seconds, key=lambda config: self.cost(problem, config, target))

    def cost(self, problem: Conv, config: Any, target: Target) -> float:
        if config not in self.costs:
            self.costs[config] = self.inner.cost(self.problem, config, target)
        return self.costs[config]

    def fraction(self, config: Config) -> float:
        """Of the best there is: 1 for the best, 0 for a failure."""
        value = self.seconds[config]
        return 0.0 if value is None else self.best / value


def read_table(path: Path) -> Recorded:
    """A table as `benchmarks/exhaustive.py` writes it."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        table = json.load(file)
    problem, strategy = Conv.parse(table["problem"]), get_strategy(table["strategy"])
    kind = strategy.space(problem, Target.preset(table["target"])).config_type
    choices = {name: tuple(values) for name, values in table["choices"].items()}
    configs = [kind(*(values[i] for values, i in zip(choices.values(), row, strict=True))) for row in table["configs"]]
    seconds = {c: None if us is None else us * 1e-6 for c, us in zip(configs, table["us"], strict=True)}
    return Recorded(strategy, problem, Space(kind, choices), seconds, table["name"])


def tables() -> list[Recorded]:
    return [read_table(path) for path in sorted(TABLES.glob("*.json.gz"))]


def replay(
    table: Recorded, trials: int, seed: int = 0, seeds: Sequence[Config] = (), in_flight: int = 1, **portfolio: Any
) -> list[float]:
    """Best fraction of the optimum after each of `trials` results, with `in_flight` candidates asked ahead of them."""
    strategy: Any = table
    target = Target.preset("h200")
    given = [Candidate(strategy, config) for config in seeds]
    search = Search(table.problem, target, [strategy], given, seed, **portfolio)
    curve: list[float] = []
    waiting: list[Config] = []
    while len(curve) < trials:
        asked = search.ask(min(in_flight, trials - len(curve)) - len(waiting))
        waiting += [proposal.candidate.config for proposal in asked]
        if not waiting:
            break
        config = waiting.pop(0)
        search.tell(Candidate(strategy, config), table.seconds[config])
        curve.append(max(table.fraction(config), curve[-1] if curve else 0.0))
    return curve + curve[-1:] * (trials - len(curve))


def random_curve(table: Recorded, trials: int, seed: int) -> list[float]:
    """The same for configs drawn uniformly, none twice."""
    drawn = random.Random(seed).sample(list(table.seconds), trials)
    curve = [table.fraction(config) for config in drawn]
    return [max(curve[: i + 1]) for i in range(trials)]


def geomean(values: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))
