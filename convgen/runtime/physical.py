"""NumPy arrays as they lie in memory: a tensor's element type and the dense strides of its layout."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from convgen.errors import UsageError
from convgen.problem import TensorSpec
from convgen.reference.rounding import decode, encode


def to_physical(spec: TensorSpec, logical: npt.ArrayLike) -> npt.NDArray[Any]:
    """`logical` (shape `spec.shape`) rounded to the tensor's type, in an array with the tensor's strides.

    bf16 is kept as its bits (uint16), fp16 as float16. Raises UsageError for another shape.
    """
    values = np.asarray(logical)
    if values.shape != spec.shape:
        raise UsageError(f"{spec.name}: shape {values.shape}, expected {spec.shape}")
    return with_strides(spec, np.asarray(encode(values, spec.dtype)))


def to_logical(spec: TensorSpec, physical: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """The values of an array that holds this tensor, as float64 in C order."""
    return np.ascontiguousarray(decode(physical, spec.dtype), np.float64).reshape(spec.shape)


def with_strides(spec: TensorSpec, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The same elements in an array of the same shape that is dense in the tensor's memory order."""
    order = spec.layout.order(len(spec.shape))
    dense = np.ascontiguousarray(array.transpose(order))
    return dense.transpose(np.argsort(order))


def flat(spec: TensorSpec, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The elements in the tensor's memory order, one-dimensional; a view where the array is dense in that order."""
    return array.transpose(spec.layout.order(len(spec.shape))).reshape(-1)


def unflat(spec: TensorSpec, elements: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """View of `elements` (in memory order, one-dimensional) with the tensor's shape and strides."""
    order = spec.layout.order(len(spec.shape))
    return elements.reshape([spec.shape[axis] for axis in order]).transpose(np.argsort(order))
