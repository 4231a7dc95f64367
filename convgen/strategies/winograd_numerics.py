"""What Winograd's transforms cost in accuracy, and which of them a problem's `accuracy` admits.

To first order the error of a result is at most

    steps * eps * |A^T| ((|G| |w|) * (|B^T| |x|)),   steps = channels + roundings of the three transforms,

(Barabasz, Anderson, Soodhalter and Gregg, 2020), so that with |x| the largest within a tile and |w| the largest tap it
is growth * steps * eps * (|x| * |w|), where growth is `Transform.growth` to the power of the transformed axes.
"""

from __future__ import annotations

from convgen.errors import ConfigError
from convgen.plan import Numerics
from convgen.problem import Accuracy, DType
from convgen.strategies.winograd_tiling import Tiling
from convgen.strategies.winograd_transform import Transform, program

SMALL_INTEGER = 4
"""The largest magnitude of operands that sums are to be exact for."""


def roundings(transform: Transform, axes: int) -> int:
    """Of the transforms of input, filter and sums, along the longest way of an operand into a result."""
    return axes * sum(program(matrix).roundings for matrix in (transform.input, transform.filter, transform.inverse))


def growth(transform: Transform, axes: int) -> float:
    return float(transform.growth**axes)


def numerics(t: Tiling) -> Numerics:
    """The arithmetic of a plan."""
    axes, f = len(t.transformed), t.transform
    terms = t.g.q_size * t.g.taps
    largest = growth(f, axes) * f.grain**axes * terms * SMALL_INTEGER**2
    return Numerics(
        steps=t.g.q_size + roundings(f, axes),
        growth=growth(f, axes),
        reach=tuple(a.alpha - 1 for a in t.axes),
        mixes_taps=True,
        exact_on_integers=f.is_dyadic and largest < 1 << 24,
    )


def require_admitted(t: Tiling) -> None:
    """Raise ConfigError if the problem is strict and the config's bound is larger than the direct kernel's."""
    found = numerics(t)
    terms = t.g.q_size * t.g.taps
    assert found.steps is not None
    bound = found.growth * (found.steps + 2 * found.eps_in / DType.FP32.eps)
    if t.problem.accuracy is Accuracy.STRICT and bound > terms:
        shape = "x".join([str(t.transform.m)] * len(t.transformed))
        taps = "x".join([str(t.transform.r)] * len(t.transformed))
        raise ConfigError(
            f"points={t.c.points}: F({shape}, {taps}) errs by up to {bound:.0f} * 2^-24 of the sum of magnitudes "
            f"(growth {found.growth:.3g}, {found.steps} roundings), a direct kernel by {terms} (one a term); "
            "accuracy=fast admits it"
        )
