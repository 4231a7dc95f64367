"""Data that are hard on a transform, and the strategy admitted for any filter."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from convgen.plan import Plan
from convgen.problem import Accuracy, Conv
from convgen.space import Space
from convgen.strategies.fft import STRATEGY
from convgen.target import Target

Floats = npt.NDArray[np.float64]


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


def hard_data(problem: Conv) -> Iterator[tuple[str, Floats, Floats]]:
    """(name, x, w) in fp32 numbers: random, all positive, and what makes errors meet or stand out.

    Flat spectra (Rudin and Shapiro) give every frequency the same part in a result, a filter of one tap the least sum
    of magnitudes for its spectrum; constants and waves have one frequency, whose errors are the same in every result;
    a huge pixel stands beside small ones.
    """
    xs, ws = problem.tensor("x").shape, problem.tensor("w").shape
    random = np.random.default_rng(0)
    one_tap = np.zeros(ws)
    one_tap[..., -1].flat[-1] = 1 / 3
    huge = random.standard_normal(xs)
    huge.flat[huge.size // 2] = 2.0**20
    data = {
        "normal": (random.standard_normal(xs), random.standard_normal(ws)),
        "positive": (random.random(xs), random.random(ws)),
        "constant": (np.full(xs, 1 / 3), np.full(ws, 1 / 3)),
        "one tap": (random.choice([-0.7, 0.7], xs), one_tap),
        "flat spectrum, one tap": (0.9 * _flat(xs), one_tap),
        "flat spectra": (0.9 * _flat(xs), 0.7 * _flat(ws)),
        "huge pixel": (huge, random.standard_normal(ws)),
        "wave": tuple(np.cos(2 * np.pi * np.indices(shape)[2:].sum(0) * 5 / 64) for shape in (xs, ws)),
        "chirp": tuple(np.cos(np.pi * (np.indices(shape)[2:] ** 2).sum(0) / 64) for shape in (xs, ws)),
    }
    for name, (x, w) in data.items():
        yield name, x.astype(np.float32).astype(np.float64), w.astype(np.float32).astype(np.float64)


def _flat(shape: tuple[int, ...]) -> Floats:
    signs = np.ones(shape)
    for axis in range(2, len(shape)):
        line = np.array([(-1.0) ** (i & i >> 1).bit_count() for i in range(shape[axis])])
        signs = signs * line.reshape([-1 if a == axis else 1 for a in range(len(shape))])
    return signs
