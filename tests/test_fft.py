"""The fft strategy: the conformance suite, every dimension of its space, its numbers and its counters."""

from __future__ import annotations

import dataclasses
from typing import Any

from conformance import StrategyConformance

from convgen.plan import Plan
from convgen.problem import Accuracy, Conv
from convgen.space import Space
from convgen.strategies.fft import STRATEGY
from convgen.target import Target


class Admitted:
    """The strategy for problems as if they said accuracy=fast: small filters, which the strict bound is too tight for,
    are what can be checked in numbers."""

    solves = STRATEGY.solves
    name = STRATEGY.name
    template = STRATEGY.template
    summary = STRATEGY.summary

    def why_not(self, problem: Conv, target: Target) -> str | None:
        return STRATEGY.why_not(fast(problem), target)

    def space(self, problem: Conv, target: Target) -> Space:
        return STRATEGY.space(fast(problem), target)

    def check(self, problem: Conv, config: Any, target: Target) -> None:
        STRATEGY.check(fast(problem), config, target)

    def default(self, problem: Conv, target: Target) -> Any:
        return STRATEGY.default(fast(problem), target)

    def cost(self, problem: Conv, config: Any, target: Target) -> float:
        return STRATEGY.cost(fast(problem), config, target)

    def lower(self, problem: Conv, config: Any, target: Target) -> Plan:
        return STRATEGY.lower(fast(problem), config, target)


def fast(problem: Conv) -> Conv:
    return dataclasses.replace(problem, accuracy=Accuracy.FAST)


class TestFft(StrategyConformance):
    strategy = Admitted()
