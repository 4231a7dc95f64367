"""What Winograd's transforms cost in accuracy, and which of them a problem's `accuracy` admits.

To first order the error of a result is at most

    steps * eps * |A^T| ((|G| |w|) * (|B^T| |x|)),   steps = roundings of the transforms and of the sums,

(Barabasz, Anderson, Soodhalter and Gregg, 2020), so that with |x| the largest within a tile and |w| the largest tap it
is growth * steps * eps * (|x| * |w|), where growth is `Transform.growth` to the power of the transformed axes.

Products on tensor cores: a step of 8 channels rounds by up to 2^-22, whatever its terms. TF32 factors are rounded once
more. As sums of two TF32 numbers they are not, but for 2^-22 each; the product of the two low parts, as much, is left
out, and each step of 8 is added up apart in three steps and then added to the sum in fp32.
"""

from __future__ import annotations

import dataclasses
import functools

from convgen.errors import ConfigError
from convgen.plan import Numerics, Taps
from convgen.problem import Accuracy, DType
from convgen.strategies.winograd_tiling import Tiling
from convgen.strategies.winograd_transform import Transform, program

EPS = DType.FP32.eps
"""The unit that bounds are told in."""

SMALL_INTEGER = 4
"""The largest magnitude of operands that sums are to be exact for."""

MMA_TERMS, MMA_EPS = 8, 4
"""Of a step of tensor cores: channels, and the rounding in units of EPS."""


@functools.lru_cache(maxsize=64)
def roundings(transform: Transform, axes: int) -> int:
    """Of the transforms of input, filter and sums, along the longest way of an operand into a result."""
    return axes * sum(program(matrix).roundings for matrix in (transform.input, transform.filter, transform.inverse))


@functools.lru_cache(maxsize=64)
def growth(transform: Transform, axes: int) -> float:
    return float(transform.growth**axes)


def product_arithmetic(product: str, channels: int) -> tuple[int, float]:
    """Roundings by EPS of a sum over so many channels, and the unit roundoff of its factors."""
    pieces = -(-channels // MMA_TERMS)
    match product:
        case "tf32":
            return MMA_EPS * pieces, DType.TF32.eps
        case "3xtf32":
            return pieces + 3 * MMA_EPS, 1.5 * 2.0**-22
    return channels, 0.0


def arithmetic(transform: Transform, axes: int, product: str, channels: int) -> Numerics:
    """Of a sum over so many channels, but for the reach."""
    steps, eps_in = product_arithmetic(product, channels)
    terms = channels * transform.r**axes
    largest = growth(transform, axes) * transform.grain**axes * terms * SMALL_INTEGER**2
    return Numerics(
        steps=steps + roundings(transform, axes),
        eps_in=eps_in,
        growth=growth(transform, axes),
        taps=Taps.LARGEST,
        exact_on_integers=transform.is_dyadic and largest < 1 << 24,
    )


def numerics(t: Tiling) -> Numerics:
    """The arithmetic of a plan."""
    found = arithmetic(t.transform, len(t.transformed), t.c.product, t.g.q_size)
    return dataclasses.replace(found, reach=tuple(a.alpha - 1 for a in t.axes))


def require_admitted(t: Tiling) -> None:
    """Raise ConfigError if the problem is strict and the config's bound is larger than the direct kernel's.

    That one rounds once a term, and on tensor cores the operands of a TF32 problem.
    """
    found = numerics(t)
    direct = t.g.q_size * t.g.taps + (2 * DType.TF32.eps / EPS if t.problem.dtype is DType.TF32 else 0)
    bound = found.growth * found.units
    if t.problem.accuracy is Accuracy.STRICT and bound > direct:
        shape = "x".join([str(t.transform.m)] * len(t.transformed))
        taps = "x".join([str(t.transform.r)] * len(t.transformed))
        raise ConfigError(
            f"points={t.c.points}, product={t.c.product}: F({shape}, {taps}) errs by up to {bound:.0f} * 2^-24 of the "
            f"sum of magnitudes (growth {found.growth:.3g} times {found.units:.0f} roundings), a direct kernel by "
            f"{direct:.0f}; accuracy=fast admits it"
        )
