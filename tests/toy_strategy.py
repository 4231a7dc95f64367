"""A strategy of two numbers and a word, small enough to list, for tests of what searches over strategies."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

from convgen.errors import ConfigError
from convgen.plan import Plan
from convgen.problem import Conv
from convgen.space import Config, Space
from convgen.target import Target

TARGET = Target.preset("h200")
PROBLEM = Conv.parse("conv1d n=1 c=1 k=1 in=8 filter=1")
POWERS = (1, 2, 4, 8, 16, 32)
WORDS = ("near", "far", "never")


@dataclass(frozen=True)
class ToyConfig(Config):
    wide: int
    high: int
    home: str


@dataclass(eq=False)
class Toy:
    """Legal while wide * high is at most 64 and the home is one of two; predicted best where both are `preferred`."""

    solves = Conv
    template = "none"
    calibrated = True
    name: str = "toy"
    summary: str = "for tests"
    preferred: int = 4
    slowness: float = 1.0
    choices: tuple[int, ...] = POWERS

    def why_not(self, problem: Conv, target: Target) -> str | None:
        return None

    def space(self, problem: Conv, target: Target) -> Space:
        return Space(ToyConfig, {"wide": self.choices, "high": self.choices, "home": WORDS})

    def check(self, problem: Conv, config: Any, target: Target) -> None:
        if config.wide * config.high > 64 or config.home == "never":
            raise ConfigError(f"{config}: not legal")

    def default(self, problem: Conv, target: Target) -> ToyConfig:
        return ToyConfig(1, 1, "near")

    def cost(self, problem: Conv, config: Any, target: Target) -> float:
        off = abs(math.log2(config.wide / self.preferred)) + abs(math.log2(config.high / self.preferred))
        return self.slowness * 1e-6 * (1 + off)

    def lower(self, problem: Conv, config: Any, target: Target) -> Plan:
        raise NotImplementedError

    def legal(self) -> list[ToyConfig]:
        every = itertools.starmap(ToyConfig, itertools.product(self.choices, self.choices, WORDS))
        return [c for c in every if c.wide * c.high <= 64 and c.home != "never"]


def toy_seconds(config: ToyConfig) -> float:
    """The truth, which the cost model does not know: best at 16 x 2, far."""
    off = abs(math.log2(config.wide / 16)) + abs(math.log2(config.high / 2)) + 0.5 * (config.home == "near")
    return 1e-6 * (1 + off)
