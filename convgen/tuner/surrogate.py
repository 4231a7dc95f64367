"""A Gaussian process over a strategy's configs: what an untried one is expected to take, and how sure that is.

Matern 5/2 with a length scale a field (Rasmussen and Williams, "Gaussian Processes for Machine Learning", 4.17 and
5.1), fitted by a few steps along the gradient of the log posterior of its scales, from where the last fit ended.
Expected improvement: Jones, Schonlau and Welch, "Efficient Global Optimization of Expensive Black-Box Functions", 1998.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

LENGTH, NOISE = 2.0, 0.01
"""Where the scales are expected: lengths in spreads of a field, variance of the noise in that of the values."""

SPREADS = 0.7, 1.0, 1.0
"""How far off, in logs: of the lengths, the signal's variance, the noise's."""

FIRST_STEPS, STEPS, RATE = 40, 5, 0.15
JITTER = 1e-3
FAR = -20.0
"""Deviations below the best from which the expected improvement is an asymptote."""


@dataclass
class GaussianProcess:
    """A zero-mean process on standardised points of `fields` dimensions; `scales` are the logs of all it fits."""

    fields: int
    scales: Array = field(init=False)
    _fitted_to: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self.scales = self._expected.copy()

    @property
    def _expected(self) -> Array:
        return np.array([math.log(LENGTH)] * self.fields + [0.0, math.log(NOISE)])

    @property
    def _spread(self) -> Array:
        lengths, signal, noise = SPREADS
        return np.array([lengths] * self.fields + [signal, noise])

    def fit(self, points: Array, values: Array) -> None:
        """Move the scales towards what explains `values` (n,), of zero mean, at `points` (n, fields)."""
        # A tenth more values hardly move the scales, and a step takes time that grows with their cube.
        if len(values) < self._fitted_to * 1.1:
            return
        steps = FIRST_STEPS if self._fitted_to == 0 else STEPS
        self._fitted_to = len(values)
        apart = [np.subtract.outer(column, column) ** 2 for column in points.T]
        first, second = np.zeros_like(self.scales), np.zeros_like(self.scales)
        for step in range(1, steps + 1):
            gradient = self._gradient(apart, values) - (self.scales - self._expected) / self._spread**2
            first = 0.9 * first + 0.1 * gradient
            second = 0.9 * second + 0.1 * gradient**2
            advance = first / (np.sqrt(second / (1 - 0.9**step)) + 1e-8) / (1 - 0.9**step)
            self.scales = np.clip(self.scales + RATE * advance, -7.0, 4.0)

    def predict(self, points: Array, values: Array, pending: Array, at: Array) -> tuple[Array, Array]:
        """Mean (m,) and standard deviation (m,) at `at` (m, fields), after `values` (n,) at `points` (n, fields).

        Points that are `pending` (k, fields) are taken to turn out as expected: the mean stays, the deviation shrinks.
        """
        known = np.concatenate([points, pending])
        covariance = self._covariance(known, known) + self._noise * np.eye(len(known))
        across = self._covariance(known, at)
        mean = across[: len(points)].T @ np.linalg.solve(covariance[: len(points), : len(points)], values)
        half = np.linalg.solve(np.linalg.cholesky(covariance), across)
        variance = math.exp(self.scales[-2]) - np.einsum("ij,ij->j", half, half)
        return mean, np.sqrt(np.maximum(variance, 1e-9))

    @property
    def _noise(self) -> float:
        return math.exp(self.scales[-1]) + JITTER

    def _covariance(self, a: Array, b: Array) -> Array:
        lengths = np.exp(self.scales[:-2])
        a, b = a / lengths, b / lengths
        squares = (a * a).sum(1)[:, None] + (b * b).sum(1)[None] - 2 * a @ b.T
        shape: Array = math.exp(self.scales[-2]) * _matern(np.maximum(squares, 0.0))[0]
        return shape

    def _gradient(self, apart: list[Array], values: Array) -> Array:
        """Of the log marginal likelihood (Rasmussen and Williams, 5.9)."""
        lengths, signal = np.exp(self.scales[:-2]), math.exp(self.scales[-2])
        squares = np.zeros_like(apart[0])
        for distance, length in zip(apart, lengths, strict=True):
            squares += distance / length**2
        shape, slope = _matern(squares)
        inverse = np.linalg.inv(signal * shape + self._noise * np.eye(len(values)))
        weights = inverse @ values
        pull = np.outer(weights, weights) - inverse
        sloped = pull * slope * signal
        return 0.5 * np.array(
            [
                *(np.vdot(sloped, distance) / length**2 for distance, length in zip(apart, lengths, strict=True)),
                np.vdot(pull, shape) * signal,
                np.trace(pull) * math.exp(self.scales[-1]),
            ]
        )


def _matern(squares: Array) -> tuple[Array, Array]:
    """Matern 5/2 of squared distances, and the factor of d(squares)/d(log length) / -2 in its derivative."""
    r = np.sqrt(5.0 * squares)
    decay = np.exp(-r)
    return (1 + r + r * r / 3) * decay, 5.0 / 3.0 * (1 + r) * decay


def log_expected_improvement(mean: Array, deviation: Array, best: float) -> Array:
    """Log of the expected fall below `best` of a normal variable; finite however unlikely that is."""
    z = (best - mean) / deviation
    log_density = -0.5 * z**2 - 0.5 * math.log(2 * math.pi)
    near = np.maximum(z, FAR)
    gain = near * 0.5 * _erfc(-near / math.sqrt(2)) + np.exp(-0.5 * near**2) / math.sqrt(2 * math.pi)
    # Far out the two terms cancel; to first order they leave the density by z squared.
    result: Array = np.where(z > FAR, np.log(gain), log_density - 2 * np.log(np.abs(np.minimum(z, FAR))))
    return result + np.log(deviation)


_erfc = np.vectorize(math.erfc, otypes=[np.float64])
