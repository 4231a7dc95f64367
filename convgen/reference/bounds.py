"""How far from the oracle a right kernel may be.

    |got - ref| <= eps_out * |ref| + (2 * eps_in + steps * eps_acc) * (|x| * |w|)

where |x| * |w| is the same convolution of absolute values, times what an algorithm's transforms add (`Numerics`). A
chain of n fused multiply-adds of unit roundoff u errs by at most n * u * sum |x_i w_i| (Jeannerod and Rump, "Improved
error bounds for inner products in floating-point arithmetic", 2013). The second term is carried through the epilogue,
where each operation rounds once more in fp32.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy

from convgen.plan import Numerics, Taps
from convgen.problem import Conv, DType, PadMode
from convgen.reference.arrays import Array, Module, quiet
from convgen.reference.correlation import Correlation
from convgen.reference.mixed import mixed_magnitudes
from convgen.reference.oracle import Roles, accumulator, finishing
from convgen.reference.rounding import FORMATS
from convgen.reference.sampled import Indices

_EPILOGUE_EPS = DType.FP32.eps
_NUMPY_MODES = {PadMode.REPLICATE: "edge", PadMode.REFLECT: "reflect", PadMode.CIRCULAR: "wrap"}


@dataclass(frozen=True, slots=True)
class ErrorModel:
    """The arithmetic of a kernel, as unit roundoffs and the length of its longest chain of additions.

    `eps_in` is for operands that are rounded before they are multiplied, as TF32 tensor cores do; it is 0 for a kernel
    that reads its operands exactly, also from fp16 or bf16. `growth` and what follows are those of
    `plan.Numerics`.
    """

    eps_out: float
    eps_in: float
    steps: int
    eps_acc: float
    growth: float = 1.0
    reach: tuple[int, ...] = ()
    taps: Taps = Taps.APART


def strict_model(problem: Conv) -> ErrorModel:
    """The direct kernel's class: operands read exactly, one fp32 (integers: int32) FMA for each term of the sum."""
    return model_of(problem, Numerics())


def model_of(problem: Conv, numerics: Numerics) -> ErrorModel:
    """The arithmetic of a plan's kernels on the problem."""
    steps = reduction_length(problem) if numerics.steps is None else numerics.steps
    # Sums of integers are exact; they are rounded where what follows, or the output, is a floating-point number.
    eps_acc = 0.0 if problem.out_dtype.is_integer else numerics.eps_acc
    return ErrorModel(
        problem.out_dtype.eps, numerics.eps_in, steps, eps_acc, numerics.growth, numerics.reach, numerics.taps
    )  # fmt: skip


def small_integer(problem: Conv) -> int:
    """The largest magnitude of operands, up to 4, whose sums of products all stay below 2^23; at least 1."""
    return max(min(4, math.isqrt((1 << 23) // max(reduction_length(problem), 1))), 1)


def exact_numerics(problem: Conv, numerics: Numerics = Numerics()) -> Numerics:  # noqa: B008 - frozen
    """For operands that are integers up to `small_integer`: in fp32 every order of adding them up is exact.

    The strict bound grows with the square of a long sum's length, so that it admits even a sum that was left out; this
    one does not. The numerics as they are where a sum could pass 2^24, and for kernels that are not exact on integers.
    """
    if not numerics.exact_on_integers or reduction_length(problem) * small_integer(problem) ** 2 >= 1 << 24:
        return numerics
    return Numerics(steps=0, eps_acc=0.0)


def reduction_length(problem: Conv) -> int:
    """Terms in the longest sum of any output element."""
    roles, shape = Roles.of(problem), Correlation.of(problem)
    if roles.output == roles.filters:
        return problem.typical_batch * math.prod(shape.coarse)
    fine_channels, coarse_channels = (problem.k, problem.c) if problem.transposed else (problem.c, problem.k)
    if roles.output == roles.coarse:
        return fine_channels // problem.groups * math.prod(shape.taps)
    return coarse_channels // problem.groups * math.prod(axis.most_meetings for axis in shape.axes)


@quiet
def bound(
    problem: Conv,
    inputs: Mapping[str, Array],
    reference: Array,
    model: ErrorModel,
    xp: Module = numpy,
    indices: Indices | None = None,
) -> Array:
    """The largest right |got - reference| of each element: of the output's shape, or a vector for flat `indices`.

    `reference` is what `reference` (or `reference_sampled`) returned for the same arguments. 0 where a value is not
    finite, since such a value has to match exactly; infinite where a value that is not finite shares intermediate
    values with the element, which it may spoil.
    """
    total = _magnitudes(problem, inputs, model, xp, indices)
    spoiled = ~xp.isfinite(total) if any(model.reach) else xp.zeros(total.shape, dtype=bool)
    error = model.growth * (2 * model.eps_in + model.steps * model.eps_acc) * total
    if model.eps_acc:
        error = error + model.steps * FORMATS[DType.FP32].smallest_subnormal
    if not problem.epilogue.is_identity or (problem.accumulate and not problem.out_dtype.is_integer):
        value = accumulator(problem, inputs, xp, indices)
        error = xp.where(xp.isfinite(value), error, 0.0)
        for stage in finishing(problem, value, inputs, xp, indices):
            rounding = stage.roundings * _EPILOGUE_EPS * xp.abs(stage.rounded)
            error = stage.gain * error + xp.where(xp.isfinite(stage.rounded), rounding, 0.0)
            error = xp.where(xp.isfinite(stage.value), error, 0.0)
    rounded = error + model.eps_out * (xp.abs(reference) + error) + _conversion_floor(problem)
    return xp.where(spoiled, xp.inf, xp.where(xp.isfinite(reference), rounded, 0.0))


def _spread_accumulator(
    problem: Conv, magnitudes: Mapping[str, Array], reach: tuple[int, ...], xp: Module, indices: Indices | None
) -> Array:
    """The sum where each element of the first operand is the largest within `reach`, the border's included.

    A result at the edge mixes with pixels that only its neighbours' taps read, so all its taps are counted: the operand
    is enlarged on every side, and of the larger result the middle is taken.
    """
    name, output = problem.inputs[0].name, problem.outputs[0]
    fine = name == Roles.of(problem).fine
    margins = [d * f + low + high for d, f, low, high in zip(
        problem.dilation, problem.filter, problem.pad_lo, problem.pad_hi, strict=True)]  # fmt: skip
    coarse = [-(-margin // s) for margin, s in zip(margins, problem.stride, strict=True)]
    finer = [margin * s for margin, s in zip(coarse, problem.stride, strict=True)]
    grown, cropped = (finer, coarse) if fine else (coarse, finer)
    own = finer if not problem.transposed else coarse
    values = _enlarged(problem, magnitudes[name], grown, fine, xp)
    larger = dataclasses.replace(
        problem.at(values.shape[0]),
        spatial=tuple(extent + 2 * margin for extent, margin in zip(problem.spatial, own, strict=True)),
        pad_mode=PadMode.ZEROS,
    )
    shape = (values.shape[0], *larger.outputs[0].shape[1:])
    if indices is not None:
        n, k, *place = numpy.unravel_index(indices, (values.shape[0], *output.shape[1:]))
        moved = [at + margin for at, margin in zip(place, cropped, strict=True)]
        indices = numpy.ravel_multi_index((n, k, *moved), shape)
    total = accumulator(larger, dict(magnitudes) | {name: _largest_near(values, reach, xp)}, xp, indices)
    if indices is not None:
        return total
    return total[(..., *(slice(m, m + extent) for m, extent in zip(cropped, output.shape[2:], strict=True)))]


def _enlarged(problem: Conv, values: Array, margins: Sequence[int], has_border: bool, xp: Module) -> Array:
    """The operand with `margins` on both sides of each axis: its border written out if it has one, zeros beyond."""
    mode = _NUMPY_MODES.get(problem.pad_mode)
    ends = [(margin, margin) for margin in margins]
    if has_border and mode is not None:
        border = list(zip(problem.pad_lo, problem.pad_hi, strict=True))
        values = xp.pad(values, ((0, 0), (0, 0), *border), mode=mode)
        ends = [(margin - low, margin - high) for margin, (low, high) in zip(margins, border, strict=True)]
    return xp.pad(values, ((0, 0), (0, 0), *ends))


def _magnitudes(
    problem: Conv, inputs: Mapping[str, Array], model: ErrorModel, xp: Module, indices: Indices | None
) -> Array:
    """What errors go with: |x| * |w|, or what an algorithm that mixes them leaves of it."""
    if model.taps is Taps.ALL:
        return mixed_magnitudes(problem, inputs, model.reach, xp, indices)
    magnitudes = dict(inputs) | {name: xp.abs(inputs[name]) for name in Roles.of(problem).operands}
    if model.taps is Taps.LARGEST:
        taps = tuple(range(2, 2 + problem.nd))
        magnitudes["w"] = xp.broadcast_to(magnitudes["w"].max(axis=taps, keepdims=True), magnitudes["w"].shape)
    if any(model.reach):
        return _spread_accumulator(problem, magnitudes, model.reach, xp, indices)
    return accumulator(problem, magnitudes, xp, indices)


def _largest_near(values: Array, reach: tuple[int, ...], xp: Module) -> Array:
    """For each element of (N, C, spatial…) the largest within `reach` along each spatial axis, itself included."""
    for axis, distance in enumerate(reach, start=values.ndim - len(reach)):
        extent, done = values.shape[axis], 0
        # By doubling: after steps that add up to d, an element holds the largest within d.
        while done < min(distance, extent - 1):
            step = min(max(done, 1), distance - done, extent - 1 - done)
            lower, upper = _along(values, axis, slice(None, extent - step)), _along(values, axis, slice(step, None))
            spread = values.copy()
            _along(spread, axis, slice(step, None))[...] = xp.maximum(_along(spread, axis, slice(step, None)), lower)
            _along(spread, axis, slice(None, extent - step))[...] = xp.maximum(
                _along(spread, axis, slice(None, extent - step)), upper
            )
            values, done = spread, done + step
    return values


def _along(array: Array, axis: int, part: slice) -> Array:
    return array[(slice(None),) * axis + (part,)]


def _conversion_floor(problem: Conv) -> float:
    # Below the smallest normal number the error of a rounding is absolute.
    if problem.out_dtype.is_integer:
        return 0.0 if problem.epilogue.is_identity else 0.5
    return FORMATS[problem.out_dtype].smallest_subnormal
