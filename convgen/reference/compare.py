"""Holding an answer against the oracle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy

from convgen.errors import WrongResultError
from convgen.problem import TensorSpec
from convgen.reference.arrays import Array, Module, quiet
from convgen.reference.rounding import FORMATS, decode, saturated
from convgen.reference.sampled import Indices

_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Element:
    """One element of an output, `index` in logical order.

    `ratio` is error / bound, infinite for a wrong NaN or infinity.
    """

    output: str
    index: tuple[int, ...]
    got: float
    reference: float
    bound: float
    ratio: float

    def __str__(self) -> str:
        where = ", ".join(map(str, self.index))
        return f"{self.output}[{where}]: got {self.got:.9g}, expected {self.reference:.9g} within {self.bound:.3g}"


@dataclass(frozen=True, slots=True)
class Comparison:
    """The outcome of `compare`.

    `count` elements were judged: all but numbers whose bound is infinite. Where there are only such, it is not `ok`.
    `max_error` is the largest |got - reference| among elements that are finite in both, `max_ratio` the largest
    error / bound among all, `worst` the element that has it. `finite_mismatch` counts the wrong elements that are NaN
    or infinite on one side, or differently on both. `wrong` holds the first few wrong elements.
    """

    ok: bool
    count: int
    count_wrong: int
    finite_mismatch: int
    max_error: float
    max_ratio: float
    worst: Element | None
    wrong: tuple[Element, ...]

    def report(self) -> str:
        """A few lines for people: how many are wrong, and the first of them with their indices."""
        if self.ok:
            return f"{self.count} elements right, largest error {self.max_error:.3g}, {self.max_ratio:.3g} of its bound"
        if not self.count_wrong:
            return "nothing to judge by: all bounds of an output are infinite, rounding may change it to anything"
        head = f"{self.count_wrong} of {self.count} elements wrong"
        if self.finite_mismatch:
            head += f", {self.finite_mismatch} of them by NaN or infinity"
        shown = [f"  {element}" for element in self.wrong]
        return "\n".join([head, *shown, f"  worst {self.worst}"])


@quiet
def compare(
    spec: TensorSpec, got: Array, reference: Array, bound: Array, xp: Module = numpy, indices: Indices | None = None
) -> Comparison:
    """Compare an output (numbers, or bits of bf16 as uint16 and of fp8 as uint8) with `reference` element by element.

    Shapes are equal: that of the output in logical order, or one vector for flat `indices`. Where the reference is NaN
    or infinite, so must be the answer, sign included; with an infinite bound a NaN or any infinity will do. Where it is
    within `bound` of what `spec`, the output's, rounds to infinity, an infinity of its sign is right too; fp8 has its
    largest number for what is larger. Raises WrongResultError if the shapes differ.
    """
    if got.shape != reference.shape:
        raise WrongResultError(f"output of shape {got.shape}: expected {reference.shape}")
    shape = reference.shape if indices is None else spec.shape
    got = decode(got, spec.dtype, xp).ravel()
    reference, bound = saturated(reference.ravel(), spec.dtype, xp), xp.broadcast_to(bound, reference.shape).ravel()
    comparable = xp.isfinite(got) & xp.isfinite(reference)
    error = xp.where(comparable, xp.abs(got - reference), 0.0)
    right = xp.where(comparable, error <= bound, _same_special(spec, got, reference, bound, xp))
    ratio = xp.where(error == 0, 0.0, error / bound)
    ratio = xp.where(comparable | right, ratio, xp.inf)
    wrong = xp.flatnonzero(~right)
    count = int((xp.isfinite(bound) | ~xp.isfinite(reference) | ~right).sum())

    def element(position: int) -> Element:
        flat = position if indices is None else int(indices[position])
        index = tuple(int(i) for i in numpy.unravel_index(flat, shape))
        values = (float(array[position]) for array in (got, reference, bound, ratio))
        return Element(spec.name, index, *values)

    return Comparison(
        ok=wrong.size == 0 and (count > 0 or reference.size == 0),
        count=count,
        count_wrong=int(wrong.size),
        finite_mismatch=int((~right & ~comparable).sum()),
        max_error=float(error.max()) if error.size else 0.0,
        max_ratio=float(ratio.max()) if ratio.size else 0.0,
        worst=element(int(ratio.argmax())) if ratio.size else None,
        wrong=tuple(element(int(position)) for position in wrong[:_SHOWN]),
    )


def joined(comparisons: Sequence[Comparison]) -> Comparison:
    """Of several outputs: counts together, the largest of errors, the worst of elements."""
    worst = max((c for c in comparisons if c.worst is not None), key=lambda c: c.max_ratio, default=comparisons[0])
    return Comparison(
        ok=all(c.ok for c in comparisons),
        count=sum(c.count for c in comparisons),
        count_wrong=sum(c.count_wrong for c in comparisons),
        finite_mismatch=sum(c.finite_mismatch for c in comparisons),
        max_error=max(c.max_error for c in comparisons),
        max_ratio=max(c.max_ratio for c in comparisons),
        worst=worst.worst,
        wrong=tuple(element for c in comparisons for element in c.wrong)[:_SHOWN],
    )


def _same_special(spec: TensorSpec, got: Array, reference: Array, bound: Array, xp: Module) -> Array:
    same = (xp.isnan(got) & xp.isnan(reference)) | (xp.isinf(got) & (got == reference))
    same |= xp.isinf(bound) & ~xp.isfinite(got)
    if spec.dtype not in FORMATS:
        return same
    overflows = xp.abs(reference) + bound >= FORMATS[spec.dtype].overflow
    return same | (xp.isfinite(reference) & overflows & xp.isinf(got) & (got * reference > 0))
