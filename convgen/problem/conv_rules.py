"""What makes a convolution meaningful: the checks behind `Conv`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from convgen.problem import values
from convgen.problem.dtype import Accuracy, Direction, DType, Layout, PadMode
from convgen.problem.epilogue import Epilogue
from convgen.problem.size import RuntimeSize
from convgen.problem.text import LIMIT, refusal

if TYPE_CHECKING:
    from convgen.problem.conv import Conv

DTYPES = tuple(dtype for dtype in DType if dtype is not DType.INT32)
"""Of the operands."""

DIRECTIONS = (Direction.FPROP, Direction.DGRAD, Direction.WGRAD)

_TYPES = {
    "pad_mode": PadMode,
    "dtype": DType,
    "out_dtype": DType,
    "layout": Layout,
    "direction": Direction,
    "epilogue": Epilogue,
    "transposed": bool,
    "accumulate": bool,
    "accuracy": Accuracy,
}


def out_dtypes(dtype: DType) -> tuple[DType, ...]:
    """The output types of a convolution with operands of type `dtype`."""
    return tuple(d for d in DType if d is not DType.TF32 and (dtype.is_integer or not d.is_integer))


def pad_modes(transposed: bool) -> tuple[PadMode, ...]:
    """The border modes of a convolution or of a transposed one."""
    return (PadMode.ZEROS,) if transposed else tuple(PadMode)


def check(conv: Conv) -> None:
    """Raise ProblemError for the first rule that the convolution breaks."""
    _check_fields(conv)
    _check_channels(conv)
    _check_dtypes(conv)
    _check_output(conv)
    _check_border(conv)
    _check_transposed(conv)
    _check_direction(conv)
    _check_sizes(conv)


def _check_fields(conv: Conv) -> None:
    for name, kind in _TYPES.items():
        if not isinstance(getattr(conv, name), kind):
            raise refusal(name, getattr(conv, name), f"a {kind.__name__}")
    if not isinstance(conv.n, RuntimeSize):
        values.size("n", conv.n)
    values.size("c", conv.c)
    values.size("k", conv.k)
    values.size("groups", conv.groups, at_least=1)
    if not isinstance(conv.spatial, tuple) or not 1 <= len(conv.spatial) <= 3:
        raise refusal("in", conv.spatial, "a tuple of 1, 2 or 3 extents")
    tuples = {
        "in": (conv.spatial, 0),
        "filter": (conv.filter, 1),
        "stride": (conv.stride, 1),
        "dilation": (conv.dilation, 1),
        "pad": (conv.pad_lo, 0),
        "pad_hi": (conv.pad_hi, 0),
        "output_padding": (conv.output_padding, 0),
    }
    for key, (value, at_least) in tuples.items():
        if not isinstance(value, tuple) or len(value) != conv.nd:
            raise refusal(key, value, f"a tuple of {conv.nd}, one for each spatial dimension")
        values.dims(key, value, conv.nd, at_least)


def _check_channels(conv: Conv) -> None:
    for key in ("c", "k"):
        channels = getattr(conv, key)
        if channels % conv.groups:
            raise refusal("groups", conv.groups, f"a divisor of {key}={channels}")


def _check_dtypes(conv: Conv) -> None:
    if conv.dtype is DType.INT32:
        raise refusal("dtype", conv.dtype, f"one of {', '.join(DTYPES)}; int32 is for out_dtype")
    if conv.out_dtype is DType.TF32:
        raise refusal("out_dtype", conv.out_dtype, "fp32, because tf32 is a way to multiply and not to store")
    if conv.out_dtype.is_integer and not conv.dtype.is_integer:
        raise refusal("out_dtype", conv.out_dtype, f"a floating-point type, because dtype is {conv.dtype}")


def _check_output(conv: Conv) -> None:
    if min(conv.out) >= 1:
        return
    shape = f"in={'x'.join(map(str, conv.spatial))}"
    if conv.transposed:
        raise refusal("pad", conv.pad_lo, f"less padding: with {shape} the output would be {_extents(conv.out)}")
    needed = (
        max(d * (f - 1) + 1 - low - high, 0)
        for d, f, low, high in zip(conv.dilation, conv.filter, conv.pad_lo, conv.pad_hi, strict=True)
    )
    raise refusal("in", conv.spatial, f"at least {_extents(tuple(needed))}, so that the dilated filter fits once")


def _extents(extents: tuple[int, ...]) -> str:
    return "x".join(map(str, extents))


def _check_border(conv: Conv) -> None:
    for size, *pads in zip(conv.spatial, conv.pad_lo, conv.pad_hi, strict=True):
        pad = max(pads)
        if conv.pad_mode is PadMode.REFLECT and pad and pad >= size:
            raise refusal("pad", pad, f"less than the extent {size}, because pad_mode is reflect")
        if conv.pad_mode is PadMode.CIRCULAR and pad > size:
            raise refusal("pad", pad, f"at most the extent {size}, because pad_mode is circular")
        if conv.pad_mode is PadMode.REPLICATE and pad and not size:
            raise refusal("pad", pad, "0, because an extent of 0 has nothing to replicate")


def _check_transposed(conv: Conv) -> None:
    if conv.transposed and conv.pad_mode is not PadMode.ZEROS:
        raise refusal("pad_mode", conv.pad_mode, "zeros, the only mode of a transposed convolution")
    if not conv.transposed and any(conv.output_padding):
        raise refusal("output_padding", conv.output_padding, "0, because only a transposed convolution has one")
    for extra, stride, dilation in zip(conv.output_padding, conv.stride, conv.dilation, strict=True):
        if extra and extra >= max(stride, dilation):
            raise refusal("output_padding", extra, f"less than the larger of stride={stride} and dilation={dilation}")


def _check_direction(conv: Conv) -> None:
    if conv.direction not in DIRECTIONS:
        raise refusal("direction", conv.direction, f"one of {', '.join(DIRECTIONS)}")
    if conv.direction is not Direction.FPROP and not conv.epilogue.is_identity:
        raise refusal("epilogue", str(conv.epilogue), f"none, because direction is {conv.direction}")


def _check_sizes(conv: Conv) -> None:
    for size, low, high in zip(conv.out if conv.transposed else conv.spatial, conv.pad_lo, conv.pad_hi, strict=True):
        if size + low + high >= LIMIT:
            raise refusal("in", conv.spatial, "padded extents below 2^63")
    if isinstance(conv.n, RuntimeSize):
        conv.at(conv.n.bound or conv.n.typical)
        return
    for tensor in (*conv.inputs, *conv.outputs):
        if max(tensor.size, tensor.nbytes) >= LIMIT:
            raise refusal(tensor.name, tensor.shape, "fewer than 2^63 bytes")
    if conv.macs >= LIMIT:
        raise refusal("macs", conv.macs, "fewer than 2^63 multiply-adds")
