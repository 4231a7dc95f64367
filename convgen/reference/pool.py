"""The right answer to a pooling, in float64, and how far from it a right kernel may be.

A maximum is exact. An average is a chain of additions and one division,

    |got - ref| <= eps_out * |ref| + u * |ref| + steps * eps_acc * (sum of |x|) / divisor         u = 2^-24

with a rounding for each of the window's positions unless the kernel says otherwise (`Numerics.steps`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping

import numpy

from convgen.plan import Numerics
from convgen.problem import DType, Pool
from convgen.reference.arrays import Array, Module, quiet
from convgen.reference.inputs import InputKind, draw, plant_specials
from convgen.reference.rounding import FORMATS, INTEGER_RANGE, round_to
from convgen.reference.sampled import Indices

_SMALL_INTEGER = 4


def make_inputs(problem: Pool, seed: int, kind: InputKind = "normal", xp: Module = numpy) -> dict[str, Array]:
    """x by its name, as float64 numbers in logical order that its dtype holds exactly.

    normal          standard normal (integers: over their whole range)
    positive        uniform in (0, 1)
    small_integers  -4 … 4 (0 … 4 if unsigned)
    specials        normal, but one element in 70 or so is NaN or an infinity
    """
    [spec] = problem.inputs
    generator = xp.random.default_rng(seed)
    x = round_to(draw(spec, kind, _SMALL_INTEGER, generator, xp), spec.dtype, xp)
    if kind == "specials" and not spec.dtype.is_integer:
        plant_specials(x, generator, xp)
    return {"x": x}


@quiet
def reference(problem: Pool, inputs: Mapping[str, Array], xp: Module = numpy) -> dict[str, Array]:
    """y in float64. The batch is that of x."""
    x = xp.asarray(inputs["x"], dtype=xp.float64)
    if problem.is_max:
        return {"y": _folded(problem, x, xp.maximum, _lowest(problem), xp)}
    return {"y": _averaged(_folded(problem, x, xp.add, 0.0, xp), _divisors(problem, None, xp), xp)}


@quiet
def reference_at(
    problem: Pool, inputs: Mapping[str, Array], indices: Mapping[str, Indices], xp: Module = numpy
) -> dict[str, Array]:
    """The elements of `reference` at flat indices of y, each as a vector."""
    x, at = xp.asarray(inputs["x"], dtype=xp.float64), _unravelled(problem, inputs, indices)
    if problem.is_max:
        return {"y": _folded_at(problem, x, at, xp.maximum, _lowest(problem), xp)}
    return {"y": _averaged(_folded_at(problem, x, at, xp.add, 0.0, xp), _divisors(problem, at, xp), xp)}


@quiet
def bound(
    problem: Pool,
    inputs: Mapping[str, Array],
    expected: Mapping[str, Array],
    numerics: Numerics,
    xp: Module = numpy,
) -> dict[str, Array]:
    """The largest right |got - expected|: 0 for a maximum, and where what is expected is not finite."""
    if problem.is_max:
        return {"y": xp.zeros(expected["y"].shape)}
    x = xp.abs(xp.asarray(inputs["x"], dtype=xp.float64))
    magnitude = _averaged(_folded(problem, x, xp.add, 0.0, xp), _divisors(problem, None, xp), xp)
    return {"y": _bound(problem, magnitude, expected["y"], numerics, xp)}


@quiet
def bound_at(
    problem: Pool,
    inputs: Mapping[str, Array],
    expected: Mapping[str, Array],
    numerics: Numerics,
    indices: Mapping[str, Indices],
    xp: Module = numpy,
) -> dict[str, Array]:
    """The same at flat indices of y, for what `reference_at` returned."""
    if problem.is_max:
        return {"y": xp.zeros(expected["y"].shape)}
    x, at = xp.abs(xp.asarray(inputs["x"], dtype=xp.float64)), _unravelled(problem, inputs, indices)
    magnitude = _averaged(_folded_at(problem, x, at, xp.add, 0.0, xp), _divisors(problem, at, xp), xp)
    return {"y": _bound(problem, magnitude, expected["y"], numerics, xp)}


# --- windows ------------------------------------------------------------------------------------------


def _lowest(problem: Pool) -> float:
    return INTEGER_RANGE[problem.dtype][0] if problem.dtype.is_integer else -math.inf


def _folded(problem: Pool, x: Array, fold: Array, border: float, xp: Module) -> Array:
    """All windows folded, one tap of all of them at a time; what lies outside x is `border`."""
    ends = [(o - 1) * s + r for o, s, r in zip(problem.out, problem.stride, problem.reach, strict=True)]
    sides = [
        (low, max(end - size - low, 0)) for end, size, low in zip(ends, problem.spatial, problem.pad_lo, strict=True)
    ]
    padded = xp.pad(x, [(0, 0), (0, 0), *sides], constant_values=border)
    folded = xp.full((*x.shape[:2], *problem.out), border)
    for tap in itertools.product(*map(range, problem.filter)):
        window = tuple(
            slice(t * d, t * d + (o - 1) * s + 1, s)
            for t, d, o, s in zip(tap, problem.dilation, problem.out, problem.stride, strict=True)
        )
        folded = fold(folded, padded[(slice(None), slice(None), *window)])
    return folded


def _folded_at(problem: Pool, x: Array, at: tuple[Indices, ...], fold: Array, border: float, xp: Module) -> Array:
    batch, channel, *starts = at
    folded = xp.full(batch.shape, border)
    if not x.size:
        return folded
    for tap in itertools.product(*map(range, problem.filter)):
        positions = [
            o * s + t * d - low
            for o, s, t, d, low in zip(starts, problem.stride, tap, problem.dilation, problem.pad_lo, strict=True)
        ]
        inside = numpy.ones(batch.shape, bool)
        for position, size in zip(positions, problem.spatial, strict=True):
            inside &= (position >= 0) & (position < size)
        clipped = [numpy.clip(p, 0, size - 1) for p, size in zip(positions, problem.spatial, strict=True)]
        pixel = x[tuple(map(xp.asarray, (batch, channel, *clipped)))]
        folded = fold(folded, xp.where(xp.asarray(inside), pixel, border))
    return folded


def _divisors(problem: Pool, at: tuple[Indices, ...] | None, xp: Module) -> Array:
    """The divisor of every window of a channel, or of those at the indices; 0 for one without a position in x."""
    counts, inside = [], []
    axes = zip(
        problem.out, problem.stride, problem.filter, problem.dilation, problem.spatial, problem.pad_lo, problem.pad_hi,
        strict=True,
    )  # fmt: skip
    for axis, (o, s, f, d, size, low, high) in enumerate(axes):
        first = (numpy.arange(o) if at is None else at[2 + axis]) * s - low
        positions = first[:, None] + numpy.arange(f) * d
        seen = ((positions >= 0) & (positions < size)).sum(axis=1)
        counts.append((positions < size + high).sum(axis=1) if problem.count_include_pad else seen)
        inside.append((seen > 0).astype(int))
    if at is None:
        counts, inside = (list(numpy.ix_(*values)) for values in (counts, inside))
    divisor = math.prod(counts) if not problem.divisor_override else problem.divisor_override
    return xp.asarray(numpy.where(math.prod(inside), divisor, 0).astype(numpy.float64))


def _averaged(total: Array, divisors: Array, xp: Module) -> Array:
    return xp.where(divisors == 0, 0.0, total / xp.where(divisors == 0, 1.0, divisors))


def _bound(problem: Pool, magnitude: Array, expected: Array, numerics: Numerics, xp: Module) -> Array:
    steps = math.prod(problem.filter) if numerics.steps is None else numerics.steps
    error = numerics.growth * steps * numerics.eps_acc * magnitude + DType.FP32.eps * xp.abs(expected)
    error = error + FORMATS[DType.FP32].smallest_subnormal
    rounded = error + problem.dtype.eps * (xp.abs(expected) + error) + FORMATS[problem.dtype].smallest_subnormal
    return xp.where(xp.isfinite(expected), rounded, 0.0)


def _unravelled(problem: Pool, inputs: Mapping[str, Array], indices: Mapping[str, Indices]) -> tuple[Indices, ...]:
    batch = inputs["x"].shape[0]
    return tuple(numpy.unravel_index(indices["y"], (batch, *problem.outputs[0].shape[1:])))
