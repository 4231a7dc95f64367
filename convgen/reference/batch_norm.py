"""The right answer to a batch normalisation, in float64, and how far from it a right kernel may be.

The mean m of a channel is a sum and a division, the variance v a sum of squared distances from means that are
themselves rounded. With `steps` roundings on the way of a value into a sum, u = 2^-24 and q the root of the mean of x²,

    dm <= (steps * eps_acc + 2 u) * q
    dv <= (steps * eps_acc + 6 u) * v + 2 * dm * sqrt(v) + dm^2

which holds for two passes over x, and for parts of a channel whose own means and sums of squares are combined (Chan,
Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances", 1979): an error of the
parts' means reaches the squares of their distances from m. It does not hold for the mean of squares less the square of
the mean, whose error grows with q^2. 1 / sqrt(v + eps) follows by interval, and

    y = ((x - m) * inv_std) * scale + bias

by |(x - m) scale| d(inv_std) + |inv_std scale| dm and a rounding for each operation; in inference dm = dv = 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy

from convgen.plan import Numerics
from convgen.problem import BatchNorm, DType, Epilogue
from convgen.reference.arrays import Array, Module, quiet
from convgen.reference.epilogue import stages
from convgen.reference.inputs import InputKind, draw, plant_specials
from convgen.reference.rounding import FORMATS, round_to
from convgen.reference.sampled import Indices

_U = DType.FP32.eps
_SMALLEST = FORMATS[DType.FP32].smallest_subnormal
_SMALL_INTEGER = 4


def make_inputs(problem: BatchNorm, seed: int, kind: InputKind = "normal", xp: Module = numpy) -> dict[str, Array]:
    """The problem's inputs by name, as float64 arrays in logical order that their tensors' dtypes hold exactly.

    normal          channels of different means and spreads, each of about 1
    positive        uniform in (0, 1)
    small_integers  -4 … 4
    specials        normal, but one element of x in 70 or so is NaN or an infinity

    var is between 1/4 and 4 whatever the kind.
    """
    generator = xp.random.default_rng(seed)
    made: dict[str, Array] = {}
    for spec in problem.inputs:
        values = draw(spec, kind, _SMALL_INTEGER, generator, xp)
        if spec.name == "var":
            values = 4.0 ** (2 * generator.random(spec.shape) - 1)
        elif spec.name == "x" and kind in ("normal", "specials"):
            spread, centre = (_column(generator.standard_normal((problem.c,)), problem) for _ in range(2))
            values = values * 2.0**spread + centre
        made[spec.name] = round_to(values, spec.dtype, xp)
    if kind == "specials":
        plant_specials(made["x"], generator, xp)
    return made


@quiet
def reference(problem: BatchNorm, inputs: Mapping[str, Array], xp: Module = numpy) -> dict[str, Array]:
    """Every output in float64. The batch is that of x."""
    known = _Statistics.of(problem, inputs, xp)
    value = known.normalised * known.scale
    for stage in stages(_epilogue(problem), value, _operands(problem, inputs, xp), xp):
        value = stage.value
    return {"y": value} | known.updates(problem, inputs, xp)


def reference_at(
    problem: BatchNorm, inputs: Mapping[str, Array], indices: Mapping[str, Indices], xp: Module = numpy
) -> dict[str, Array]:
    """The elements of `reference` at flat indices of each output. Statistics need all of x anyhow."""
    return _chosen(reference(problem, inputs, xp), indices, xp)


@quiet
def bound(
    problem: BatchNorm,
    inputs: Mapping[str, Array],
    expected: Mapping[str, Array],
    numerics: Numerics,
    xp: Module = numpy,
) -> dict[str, Array]:
    """The largest right |got - expected| of every element; 0 where what is expected is not finite."""
    known = _Statistics.of(problem, inputs, xp)
    errors = known.errors(problem, numerics, xp)
    value = known.normalised * known.scale
    slope = xp.abs(known.inv_std * known.scale)
    error = xp.abs(known.distance * known.scale) * errors.inv_std + slope * errors.mean + 4 * _U * xp.abs(value)
    error = xp.where(xp.isfinite(value), error, 0.0)
    for stage in stages(_epilogue(problem), value, _operands(problem, inputs, xp), xp):
        rounding = xp.where(xp.isfinite(stage.rounded), stage.roundings * _U * xp.abs(stage.rounded), 0.0)
        error = xp.where(xp.isfinite(stage.value), stage.gain * error + rounding, 0.0)
    limits = {"y": error + problem.dtype.eps * (xp.abs(expected["y"]) + error) + _floor(problem.dtype)}
    limits |= errors.of_updates(problem, inputs, known, xp)
    return {name: xp.where(xp.isfinite(expected[name]), limit, 0.0) for name, limit in limits.items()}


def bound_at(
    problem: BatchNorm,
    inputs: Mapping[str, Array],
    expected: Mapping[str, Array],
    numerics: Numerics,
    indices: Mapping[str, Indices],
    xp: Module = numpy,
) -> dict[str, Array]:
    """The same at flat indices of each output, for what `reference_at` returned."""
    whole = reference(problem, inputs, xp)
    return _chosen(bound(problem, inputs, whole, numerics, xp), indices, xp)


# --- statistics ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Statistics:
    """What x is normalised by, as arrays that broadcast against x: (1, C, 1, …)."""

    mean: Array
    var: Array
    inv_std: Array
    scale: Array
    root_mean_square: Array
    distance: Array
    """x - mean, of x's shape; `normalised` too."""
    normalised: Array
    count: int

    @classmethod
    def of(cls, problem: BatchNorm, inputs: Mapping[str, Array], xp: Module) -> _Statistics:
        x = xp.asarray(inputs["x"], dtype=xp.float64)
        axes = tuple(axis for axis in range(x.ndim) if axis != 1)
        if problem.is_training:
            mean = x.mean(axis=axes, keepdims=True)
            var = ((x - mean) ** 2).mean(axis=axes, keepdims=True)
        else:
            mean, var = (_column(inputs[name], problem, xp) for name in ("mean", "var"))
        inv_std = 1.0 / xp.sqrt(var + problem.eps)
        scale = _column(inputs["scale"], problem, xp) if problem.affine else xp.ones(mean.shape)
        return cls(
            mean=mean,
            var=var,
            inv_std=inv_std,
            scale=scale,
            root_mean_square=xp.sqrt((x**2).mean(axis=axes, keepdims=True)) if problem.is_training else mean,
            distance=x - mean,
            normalised=(x - mean) * inv_std,
            count=math.prod(x.shape[axis] for axis in axes),
        )

    def updates(self, problem: BatchNorm, inputs: Mapping[str, Array], xp: Module) -> dict[str, Array]:
        """The other outputs of training."""
        if not problem.is_training:
            return {}
        mean, var, inv_std = (array.ravel() for array in (self.mean, self.var, self.inv_std))
        saved = {"save_mean": mean, "save_inv_std": inv_std}
        if not problem.running:
            return saved
        keep, weight = 1.0 - problem.momentum, problem.momentum
        old_mean, old_var = (xp.asarray(inputs[name], dtype=xp.float64) for name in ("mean", "var"))
        return saved | {
            "running_mean": keep * old_mean + weight * mean,
            "running_var": keep * old_var + weight * var * (self.count / (self.count - 1)),
        }

    def errors(self, problem: BatchNorm, numerics: Numerics, xp: Module) -> _Errors:
        """How far the statistics of a right kernel may be from these."""
        mean = var = xp.zeros(self.mean.shape)
        if problem.is_training:
            steps = self.count if numerics.steps is None else numerics.steps
            rate = numerics.growth * steps * numerics.eps_acc
            mean = (rate + 2 * _U) * self.root_mean_square + _SMALLEST
            var = (rate + 6 * _U) * self.var + 2 * mean * xp.sqrt(self.var) + mean**2 + _SMALLEST
        least = 1.0 / xp.sqrt(self.var + var + problem.eps)
        most = 1.0 / xp.sqrt(xp.maximum(self.var - var, 0.0) + problem.eps) if problem.is_training else least
        inv_std = xp.maximum(most - self.inv_std, self.inv_std - least) + 4 * _U * self.inv_std
        return _Errors(mean, var, inv_std)


@dataclass(frozen=True)
class _Errors:
    mean: Array
    var: Array
    inv_std: Array

    def of_updates(
        self, problem: BatchNorm, inputs: Mapping[str, Array], known: _Statistics, xp: Module
    ) -> dict[str, Array]:
        """Of the other outputs of training. Each update rounds its weights, its products and its sum."""
        if not problem.is_training:
            return {}
        mean, var, inv_std = (array.ravel() for array in (self.mean, self.var, self.inv_std))
        saved = {"save_mean": mean, "save_inv_std": inv_std}
        if not problem.running:
            return saved
        keep, weight = 1.0 - problem.momentum, problem.momentum
        unbiased = weight * known.count / (known.count - 1)
        old_mean, old_var = (xp.abs(xp.asarray(inputs[name], dtype=xp.float64)) for name in ("mean", "var"))
        sum_mean = keep * old_mean + weight * xp.abs(known.mean.ravel())
        sum_var = keep * old_var + unbiased * known.var.ravel()
        return saved | {
            "running_mean": weight * mean + 4 * _U * sum_mean + _SMALLEST,
            "running_var": unbiased * var + 6 * _U * sum_var + _SMALLEST,
        }


def _column(vector: Array, problem: BatchNorm, xp: Module = numpy) -> Array:
    return vector.astype(xp.float64).reshape(1, -1, *(1,) * problem.nd)


def _epilogue(problem: BatchNorm) -> Epilogue:
    return Epilogue(bias=problem.affine, residual=problem.residual, activation=problem.activation, slope=problem.slope)


def _operands(problem: BatchNorm, inputs: Mapping[str, Array], xp: Module) -> dict[str, Array]:
    operands = {"bias": _column(inputs["bias"], problem, xp)} if problem.affine else {}
    return operands | ({"residual": xp.asarray(inputs["residual"], dtype=xp.float64)} if problem.residual else {})


def _floor(dtype: DType) -> float:
    return FORMATS[dtype].smallest_subnormal + _SMALLEST


def _chosen(outputs: Mapping[str, Array], indices: Mapping[str, Indices], xp: Module) -> dict[str, Array]:
    return {name: outputs[name].ravel()[xp.asarray(chosen)] for name, chosen in indices.items()}
