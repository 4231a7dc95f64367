"""What several strategies need alike: names, template constants, extents, alignment."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

from convgen.gather import NARROW, Gather
from convgen.plan import Extent, Numerics, Placement, batch_extent, extent_at
from convgen.problem import Activation, Conv, DType, PadMode, Problem
from convgen.space import Config
from convgen.strategies import operands

SIMT_DTYPES = (DType.FP32, DType.TF32, DType.FP16, DType.BF16)
"""What the CUDA-core kernels compute: fp32 arithmetic on these storage types (TF32 problems too, more exactly)."""

INTEGER_DTYPES = (DType.INT8, DType.UINT8)
"""Operands whose products are summed in int32."""

EXACT = Numerics(steps=1)
"""Of sums of integers: they are exact, and rounded once where fp32 takes them."""

_HEADERS = {
    "float": "device/fp32.cuh",
    "__half": "device/fp16.cuh",
    "__nv_bfloat16": "device/bf16.cuh",
    "__nv_fp8_e4m3": "device/fp8.cuh",
}
_BORDERS = {
    PadMode.ZEROS: "kZeros",
    PadMode.REPLICATE: "kReplicate",
    PadMode.REFLECT: "kReflect",
    PadMode.CIRCULAR: "kCircular",
}
_ACTIVATIONS = {
    Activation.NONE: "kNone",
    Activation.RELU: "kRelu",
    Activation.RELU6: "kRelu6",
    Activation.GELU: "kGelu",
    Activation.SILU: "kSilu",
    Activation.HARDSWISH: "kHardswish",
    Activation.LEAKY_RELU: "kLeakyRelu",
}


def not_covered(problem: Conv, integers: bool = False, fp8: bool = False) -> str | None:
    """Why a kernel cannot take the problem's types or extents; None if it can.

    `integers`: it also sums in int32; `fp8`: it also takes and stores that.
    """
    if integers and problem.dtype in INTEGER_DTYPES:
        reason = _integers_not_covered(problem)
        if reason is not None:
            return reason
    else:
        for role, dtype in (("dtype", problem.dtype), ("out_dtype", problem.out_dtype)):
            if dtype not in SIMT_DTYPES and not (fp8 and dtype is DType.FP8):
                names = ", ".join(d.value for d in (*SIMT_DTYPES, *INTEGER_DTYPES * integers))
                return f"{role}={dtype.value} has no kernel yet; CUDA cores compute {names}"
    coarse = problem.spatial if problem.transposed else problem.out
    reach = max(
        (extent - 1) * s + (f - 1) * d + 1
        for extent, s, f, d in zip(coarse, problem.stride, problem.filter, problem.dilation, strict=True)
    )
    mirrored = 2 * max(problem.spatial) if problem.pad_mode is PadMode.REFLECT else 0
    extents = (*problem.spatial, *problem.out, problem.c, problem.k, problem.max_batch or 1)
    largest = max(reach, mirrored, *extents)
    if largest > NARROW:
        return f"an index along one axis reaches {largest}; kernels keep coordinates in 32 bits, up to {NARROW}"
    return None


def _integers_not_covered(problem: Conv) -> str | None:
    stored = (DType.INT32, *SIMT_DTYPES)
    if problem.out_dtype not in stored:
        names = ", ".join(dtype.value for dtype in stored if dtype is not DType.TF32)
        return f"out_dtype={problem.out_dtype.value} has no kernel yet; sums of integers are stored as {names}"
    if problem.out_dtype is DType.INT32 and not problem.epilogue.is_identity:
        return (f"epilogue={problem.epilogue} is computed in fp32, which does not hold every int32; a floating-point "
                "out_dtype takes it")  # fmt: skip
    return None


def exact_text(problem: Conv) -> str:
    """What a kernel says of its numerics that sums integers."""
    stored = "" if problem.out_dtype is DType.INT32 else ", rounded to fp32 before what follows"
    return f"exact: products and sums in int32, which wrap past 2^31{stored}."


def kernel_name(problem: Conv, strategy: str, config: Config, part: str = "") -> str:
    """A name a profiler can show: operation, strategy, sizes, types, layout, and a digest that tells all else apart.

    Two problems or configs have two names, so that their files and launchers can stand side by side.
    """

    def dims(values: tuple[int, ...]) -> str:
        return "x".join(map(str, values)) if len(set(values)) > 1 else str(values[0])

    batch = "any" if problem.is_runtime_batch else str(problem.n)
    name = f"{problem.op}_{problem.direction.value}_{strategy}{'_' + part if part else ''}"
    name += (
        f"_n{batch}c{problem.c}i{'x'.join(map(str, problem.spatial))}_k{problem.k}f{'x'.join(map(str, problem.filter))}"
    )
    for letter, values, usual in (("s", problem.stride, 1), ("p", problem.pad_lo, 0), ("d", problem.dilation, 1)):
        if set(values) != {usual}:
            name += f"{letter}{dims(values)}"
    if problem.groups != 1:
        name += f"g{problem.groups}"
    digest = hashlib.sha256(f"{problem} {strategy} {config}".encode()).hexdigest()[:8]
    return f"{name}_{problem.dtype.value}_{problem.layout.text(problem.nd)}_{digest}"


def type_headers(*ctypes: str) -> list[str]:
    """The device headers of float and of these types, each once; integers need none."""
    return [_HEADERS[ctype] for ctype in dict.fromkeys(("float", *ctypes)) if ctype in _HEADERS]


def filter_type(g: Gather) -> str:
    """What a kernel calls the type of w: that of x, but where integers of one are signed and of the other not."""
    return "in_t" if g.w.dtype is g.x.dtype else g.w.dtype.ctype


def activation_name(activation: Activation) -> str:
    """What device/activation.cuh calls it."""
    return _ACTIVATIONS[activation]


def gather_constants(problem: Conv, g: Gather) -> dict[str, Any]:
    """The template constants every gather kernel uses. Extents of an empty result are given as 1: it has no launch."""
    return {
        "problem": str(problem),
        "direction": problem.direction.value,
        "x_name": g.x.name,
        "w_name": g.w.name,
        "y_name": g.y.name,
        "type_headers": type_headers(g.x.dtype.ctype, g.y.dtype.ctype),
        "in_t": g.x.dtype.ctype,
        "out_t": g.y.dtype.ctype,
        "offset_t": "long long" if g.wide else "int",
        "batch": None if g.batch is None else max(g.batch, 1),
        "groups": g.groups,
        "m": max(g.m, 1),
        "q": g.q,
        "axes": g.axes,
        "border": _BORDERS[g.pad_mode],
        "terms_vanish": g.terms_vanish,
        "x_batch": g.x_batch, "x_group": g.x_group, "x_q": g.x_q,
        "w_group": g.w_group, "w_m": g.w_m, "w_q": g.w_q,
        "y_batch": g.y_batch, "y_group": g.y_group, "y_m": g.y_m,
        "epilogue": problem.epilogue.operands,
        "epilogue_params": [param for param, _ in operands.epilogue(problem)],
        "activation": activation_name(problem.epilogue.activation),
        "slope": repr(float(problem.epilogue.slope)),
        "accumulate": problem.accumulate,
        "value_t": "int" if problem.out_dtype is DType.INT32 else "float",
    }  # fmt: skip


def per_batch(g: Gather, total: int, by: int = 1) -> Extent:
    """ceil(total / by), where `total` counts the whole of a fixed batch or of the typical one.

    A runtime batch appears in y only as the outer extent (fprop, dgrad), so the count is proportional to it.
    """
    if g.batch is None:
        return batch_extent(total // g.typical_batch, by)
    return -(-total // by)


def largest_extent(problem: Problem, extent: Extent) -> int:
    """The extent at the largest batch the problem admits (its typical one if that has no bound)."""
    return extent_at(extent, problem.largest or problem.sizes)


def steps(*indices: tuple[int | None, int]) -> tuple[int, ...]:
    """The distances of those (extent, distance) that move at all; an extent of None is known at run time only."""
    return tuple(step for extent, step in indices if extent is None or extent > 1)


def most_results(problem: Conv, g: Gather) -> int:
    """Elements of y at the largest batch the problem admits (its typical one if that has no bound)."""
    if g.batch is not None:
        return g.y.size
    return g.y.size // g.typical_batch * (problem.max_batch or g.typical_batch)


def dense_pack(count: int, contiguous_stride: int, other_strides: tuple[int, ...]) -> bool:
    """True if `count` neighbours along an axis of that stride form an aligned vector at every other index."""
    return contiguous_stride == 1 and all(stride % count == 0 for stride in other_strides)


def sums_placement(results: int, dtype: str = "fp32") -> Placement:
    """Where the sums of a thread's results live."""
    return Placement("sums", "registers", 4 * results, f"one {dtype} a result, written once")


def largest(values: tuple[int, ...], fits: Callable[[int], bool]) -> int:
    """The first of the (descending) values that fits, else 1."""
    return next((value for value in values if fits(value)), 1)


def up_to(limit: int, values: tuple[int, ...]) -> tuple[int, ...]:
    """Those of the values that are at most `limit`; 1 always is."""
    return tuple(value for value in values if value <= max(limit, 1))


def power_of_two_at_most(value: int) -> int:
    """The largest power of two up to `value`; 1 for anything less."""
    return 1 << (max(value, 1).bit_length() - 1)


def power_of_two_at_least(value: int) -> int:
    return 1 << (max(value, 1) - 1).bit_length()


def power_dividing(value: int, limit: int) -> int:
    """The largest power of two that divides `value` and is at most `limit`, itself a power of two."""
    return min(value & -value, limit)
