"""Rounding float64 values to an element type, and the bit patterns that lie in memory.

All roundings are to nearest, ties to even, straight from float64 (no double rounding through fp32).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy

from convgen.problem import DType
from convgen.reference.arrays import Array, Module, pieces, quiet


@dataclass(frozen=True, slots=True)
class FloatFormat:
    """A binary floating-point format: significant bits (the hidden one included), exponent of the smallest normal
    number, and largest finite value."""

    digits: int
    least_exponent: int
    largest: float

    @property
    def smallest_subnormal(self) -> float:
        return 2.0 ** (self.least_exponent - self.digits + 1)

    @property
    def overflow(self) -> float:
        """The smallest magnitude that rounds past the largest finite value."""
        exponent = int(numpy.frexp(self.largest)[1])
        return self.largest + 2.0 ** (exponent - self.digits - 1)


FORMATS = {
    DType.FP32: FloatFormat(24, -126, float(numpy.finfo(numpy.float32).max)),
    DType.TF32: FloatFormat(11, -126, (2 - 2.0**-10) * 2.0**127),
    DType.FP16: FloatFormat(11, -14, 65504.0),
    DType.BF16: FloatFormat(8, -126, (2 - 2.0**-7) * 2.0**127),
    DType.FP8: FloatFormat(4, -6, 448.0),
}
"""fp8 is e4m3 without infinities: its overflow saturates."""

INTEGER_RANGE = {DType.INT8: (-128, 127), DType.UINT8: (0, 255), DType.INT32: (-(2**31), 2**31 - 1)}


BYTES_OF_ELEMENT = 48
"""Temporaries while one is rounded. Those of a tensor past 2^31 elements would fill a GPU at once."""


@quiet
def round_to(values: Array, dtype: DType, xp: Module = numpy) -> Array:
    """`values` (float64, any shape) rounded to `dtype`, as float64. tf32 here is the rounding a multiply applies.

    Floats overflow to infinity (fp8, which has none, saturates to 448), integers saturate; NaN stays NaN in floats.
    """
    return _in_pieces(lambda piece: _rounded(piece, dtype, xp), xp.asarray(values, dtype=xp.float64), xp)


def _rounded(values: Array, dtype: DType, xp: Module) -> Array:
    if dtype.is_integer:
        return xp.clip(xp.rint(values), *INTEGER_RANGE[dtype])
    if dtype is DType.FP32:  # the processor's own rounding, which large problems need
        return values.astype(xp.float32).astype(xp.float64)
    form = FORMATS[dtype]
    exponent = xp.maximum(xp.frexp(values)[1], form.least_exponent + 1) - form.digits
    rounded = xp.ldexp(xp.rint(xp.ldexp(values, -exponent)), exponent)
    if dtype is DType.FP8:
        return saturated(rounded, dtype, xp)
    rounded = xp.where(xp.abs(rounded) > form.largest, xp.copysign(xp.inf, values), rounded)
    return xp.where(xp.isfinite(values), rounded, values)


def encode(values: Array, dtype: DType, xp: Module = numpy) -> Array:
    """`values` rounded to `dtype` and stored as it lies in memory.

    fp32 and tf32 become float32, fp16 float16, integers their own type; bf16 becomes its bits as uint16, fp8 as uint8.
    """
    return _in_pieces(lambda piece: _encoded(piece, dtype, xp), xp.asarray(values, dtype=xp.float64), xp)


def _encoded(values: Array, dtype: DType, xp: Module) -> Array:
    rounded = round_to(values, dtype.storage, xp)
    if dtype is DType.FP8:
        magnitude = xp.searchsorted(_fp8_magnitudes(xp), xp.abs(rounded))
        magnitude = xp.where(xp.isnan(rounded), _FP8_NAN, magnitude)
        return (magnitude + 128 * xp.signbit(rounded)).astype(xp.uint8)
    if dtype is DType.BF16:
        return (rounded.astype(xp.float32).view(xp.uint32) >> 16).astype(xp.uint16)
    return rounded.astype(_stored_as(dtype))


def decode(stored: Array, dtype: DType, xp: Module = numpy) -> Array:
    """The float64 values of an array that `encode` made, or of one that a kernel wrote."""
    if dtype is DType.FP8 and stored.dtype == xp.uint8:
        magnitude = xp.append(_fp8_magnitudes(xp), xp.nan)[(stored & _FP8_NAN).astype(xp.int32)]
        return xp.where(stored & 128, -magnitude, magnitude)
    if dtype is DType.BF16 and stored.dtype == xp.uint16:
        stored = (stored.astype(xp.uint32) << 16).view(xp.float32)
    return stored.astype(xp.float64)


def saturated(values: Array, dtype: DType, xp: Module = numpy) -> Array:
    """`values` with what fp8, which has no infinity, cannot hold become its largest number; others as they are."""
    if dtype is not DType.FP8:
        return values
    largest = FORMATS[dtype].largest
    return xp.clip(values, -largest, largest)


def _in_pieces(one: Callable[[Array], Array], values: Array, xp: Module) -> Array:
    """What `one`, which works on elements apart, makes of `values`."""
    flat = values.reshape(-1)
    parts = [one(flat[piece]) for piece in pieces(flat.size, BYTES_OF_ELEMENT)]
    whole = parts[0] if len(parts) == 1 else xp.concatenate(parts) if parts else one(flat)
    return whole.reshape(values.shape)


_FP8_NAN = 0x7F


def _fp8_magnitudes(xp: Module) -> Array:
    """The values of the bits 0 to 0x7e: they grow with them."""
    bits = xp.arange(_FP8_NAN)
    exponent, mantissa = bits >> 3, (bits & 7).astype(xp.float64)
    return xp.ldexp(mantissa + 8 * (exponent > 0), xp.maximum(exponent, 1) - 10)


def _stored_as(dtype: DType) -> str:
    names = {DType.FP32: "float32", DType.FP16: "float16"}
    names |= {DType.INT8: "int8", DType.UINT8: "uint8", DType.INT32: "int32"}
    return names[dtype.storage]
