"""The epilogue in float64, one stage at a time, with what each stage does to an error."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy

from convgen.problem import Activation, Epilogue
from convgen.reference.arrays import Array, Module


@dataclass(frozen=True, slots=True)
class Stage:
    """The value after a stage. An error e before it is at most gain * e + roundings * eps * |rounded| after it."""

    value: Array
    gain: Array | float
    rounded: Array
    roundings: float


_GAIN = {
    Activation.RELU: 1.0,
    Activation.RELU6: 1.0,
    Activation.GELU: 1.13,
    Activation.SILU: 1.1,
    Activation.HARDSWISH: 1.5,
}
"""Lipschitz constants: the largest slopes are 1.129 (gelu), 1.0998 (silu) and 1.5 (hardswish)."""

_ROUNDINGS = {
    Activation.RELU: 0.0,
    Activation.RELU6: 0.0,
    Activation.LEAKY_RELU: 2.0,
    Activation.HARDSWISH: 4.0,
    Activation.GELU: 8.0,
    Activation.SILU: 8.0,
}
"""In units of eps times the activation's argument: 8 covers an erf or exp that is good to 2 ulp, and what follows."""


def stages(epilogue: Epilogue, value: Array, operands: Mapping[str, Array], xp: Module) -> Iterator[Stage]:
    """Apply `epilogue` to the accumulator `value` (float64), one stage for each operation.

    `operands` holds scale, shift, bias and residual as they are needed, of shapes that broadcast against `value`.
    """
    if epilogue.scale:
        value = value * operands["scale"]
        yield Stage(value, xp.abs(operands["scale"]), value, 1.0)
    for name in ("shift", "bias", "residual"):
        if name in epilogue.operands:
            value = value + operands[name]
            yield Stage(value, 1.0, value, 1.0)
    activation = epilogue.activation
    if activation is not Activation.NONE:
        gain = _GAIN.get(activation, max(1.0, abs(epilogue.slope)))
        yield Stage(_activate(epilogue, value, xp), gain, value, _ROUNDINGS[activation])


def _activate(epilogue: Epilogue, value: Array, xp: Module) -> Array:
    match epilogue.activation:
        case Activation.RELU:
            return xp.maximum(value, 0.0)
        case Activation.RELU6:
            return xp.minimum(xp.maximum(value, 0.0), 6.0)
        case Activation.LEAKY_RELU:
            return xp.where(value < 0, epilogue.slope * value, value)
        case Activation.HARDSWISH:
            return value * xp.minimum(xp.maximum(value + 3.0, 0.0), 6.0) / 6.0
        case Activation.GELU:
            return 0.5 * value * (1.0 + _erf(value * math.sqrt(0.5), xp))
        case Activation.SILU:
            return value / (1.0 + xp.exp(-value))
    return value


def _erf(value: Array, xp: Module) -> Array:
    if xp is numpy:
        return numpy.vectorize(math.erf, otypes=[float])(value)
    from cupyx.scipy.special import erf

    return erf(value)
