"""Inputs to check a kernel on."""

from __future__ import annotations

import math
from typing import Literal

import numpy

from convgen.problem import Conv, TensorSpec
from convgen.reference.arrays import Array, Module
from convgen.reference.bounds import reduction_length, small_integer
from convgen.reference.rounding import INTEGER_RANGE, round_to, saturated

InputKind = Literal["normal", "positive", "small_integers", "specials"]


def make_inputs(problem: Conv, seed: int, kind: InputKind = "normal", xp: Module = numpy) -> dict[str, Array]:
    """The problem's inputs by name, with `accumulate` also what the output holds before, as float64 arrays in logical
    order that their tensors' dtypes hold exactly.

    normal          standard normal (integers: over their whole range)
    positive        uniform in (0, 1), scaled down by a power of two where long sums would pass fp16's range
    small_integers  -4 … 4 (0 … 4 if unsigned), for long sums less: sums are exact in fp32, so a right answer has no
                    error (see `exact_numerics`)
    specials        normal, but of the first input's elements one in 70 or so is NaN or an infinity

    The same arguments give the same numbers; NumPy and CuPy give different ones.
    """
    specs = (*problem.inputs, *problem.outputs) if problem.accumulate else problem.inputs
    generator = xp.random.default_rng(seed)
    most = small_integer(problem)
    made = {spec.name: round_to(draw(spec, kind, most, generator, xp), spec.dtype, xp) for spec in specs}
    first = problem.inputs[0]
    if kind == "positive" and not first.dtype.is_integer:
        made[first.name] *= 2.0 ** -max(0, math.ceil(math.log2(reduction_length(problem) + 1)) - 15)
        made[first.name] = round_to(made[first.name], first.dtype, xp)
    if kind == "specials" and not first.dtype.is_integer:
        plant_specials(made[first.name], generator, xp)
        made[first.name] = saturated(made[first.name], first.dtype, xp)
    return made


def draw(spec: TensorSpec, kind: InputKind, most: int, generator: Array, xp: Module) -> Array:
    """A tensor's numbers before they are rounded to its dtype; integers of `small_integers` reach `most`."""
    if kind == "small_integers" or spec.dtype.is_integer:
        low, high = INTEGER_RANGE.get(spec.dtype, (-most, most))
        if kind == "small_integers" or spec.name in ("y", "dx", "dw"):
            low, high = max(low, -most), min(high, most)
        elif kind == "positive":
            low = 0
        return generator.integers(low, high + 1, size=spec.shape).astype(xp.float64)
    if kind == "positive":
        return generator.random(spec.shape)
    return generator.standard_normal(spec.shape)


def plant_specials(values: Array, generator: Array, xp: Module) -> None:
    """Make one in 70 elements or so NaN or an infinity."""
    chosen = generator.integers(0, 200, size=values.shape)
    for number, special in enumerate((xp.nan, xp.inf, -xp.inf)):
        values[chosen == number] = special
