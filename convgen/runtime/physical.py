"""Arrays as they lie in memory: a tensor's element type and the dense strides of its layout.

`with_strides`, `flat` and `unflat` take NumPy's arrays and CuPy's.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from convgen.errors import UsageError
from convgen.problem import TensorSpec
from convgen.reference.arrays import Array, Module
from convgen.reference.rounding import decode, encode
from convgen.runtime.arrays import ACCEPTED_DTYPES


def to_physical(spec: TensorSpec, logical: npt.ArrayLike) -> npt.NDArray[Any]:
    """`logical` (shape `spec.shape`) rounded to the tensor's type, in an array with the tensor's strides.

    bf16 is kept as its bits (uint16), fp16 as float16. Raises UsageError for another shape.
    """
    values = np.asarray(logical)
    if values.shape != spec.shape:
        raise UsageError(f"{spec.name}: shape {values.shape}, expected {spec.shape}")
    physical: npt.NDArray[Any] = with_strides(spec, np.asarray(encode(values, spec.dtype)))
    return physical


def to_logical(spec: TensorSpec, physical: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """The values of an array that holds this tensor, as float64 in C order."""
    return np.ascontiguousarray(decode(physical, spec.dtype), np.float64).reshape(spec.shape)


def with_strides(spec: TensorSpec, array: Array, xp: Module = np) -> Array:
    """The same elements in an array of the same shape that is dense in the tensor's memory order."""
    return unflat(spec, xp.ascontiguousarray(flat(spec, array)))


def stored_dtype(spec: TensorSpec) -> np.dtype[Any]:
    """The array dtype that holds the tensor's elements: bf16 is kept as its bits."""
    return np.dtype(ACCEPTED_DTYPES[spec.dtype.storage.value][-1])


def check_array(spec: TensorSpec, array: Any) -> None:
    """Raise UsageError unless `array` is a NumPy array with the tensor's shape and, in native byte order, its type.

    bf16 is `ml_dtypes.bfloat16` or its bits as uint16.
    """
    if not isinstance(array, np.ndarray):
        kind = f"{type(array).__module__}.{type(array).__qualname__}"
        raise UsageError(f"{spec.name} is a {kind}, not a NumPy array: numpy.asarray makes one")
    check_unmasked(spec.name, array)
    if array.shape != spec.shape:
        raise UsageError(f"{spec.name} has shape {array.shape}, expected {spec.shape}")
    names = ACCEPTED_DTYPES[spec.dtype.storage.value]
    if array.dtype.name not in names or not array.dtype.isnative:
        order = "" if array.dtype.isnative else " in this machine's byte order"
        raise UsageError(f"{spec.name} is {array.dtype}, expected {' or '.join(names)}{order}")


def check_unmasked(name: str, array: npt.NDArray[Any]) -> None:
    """Raise UsageError for NumPy's masked array: what is masked would be read, or the mask not written."""
    if isinstance(array, np.ma.MaskedArray):
        raise UsageError(f"{name} is a masked array, and masks are not heeded: expected {name}.filled(value)")


def check_writable(spec: TensorSpec, array: npt.NDArray[Any]) -> None:
    """Raise UsageError if the array is read-only or several of its elements share memory."""
    if not array.flags.writeable:
        raise UsageError(f"{spec.name} is read-only, so it cannot be written: pass a copy of it")
    if array.size and any(
        extent > 1 and stride == 0 for extent, stride in zip(array.shape, array.strides, strict=True)
    ):
        raise UsageError(f"{spec.name} has stride 0: several of its elements share memory, so it cannot be written")


def flat(spec: TensorSpec, array: Array) -> Array:
    """The elements in the tensor's memory order, one-dimensional; a view where the array is dense in that order."""
    return array.transpose(spec.layout.order(len(spec.shape))).reshape(-1)


def unflat(spec: TensorSpec, elements: Array) -> Array:
    """View of `elements` (in memory order, one-dimensional) with the tensor's shape and strides."""
    order = spec.layout.order(len(spec.shape))
    logical = sorted(range(len(order)), key=order.__getitem__)
    return elements.reshape([spec.shape[axis] for axis in order]).transpose(logical)
