"""NumPy arrays to GPU memory and back."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import numpy.typing as npt

from convgen.toolkit import load_cupy


@functools.cache
def has_gpu() -> bool:
    """Whether CuPy is installed and finds a GPU."""
    try:
        return bool(load_cupy().cuda.runtime.getDeviceCount())
    # Without a driver, a device or a library of CUDA, CuPy raises an error of another type each.
    except Exception:
        return False


def to_gpu(array: npt.NDArray[Any]) -> Any:
    """A CuPy array on the current device with the same elements in the same memory order."""
    order = _memory_order(array.strides)
    dense = np.ascontiguousarray(array.transpose(order))
    return load_cupy().asarray(dense.view(_bits(dense))).view(dense.dtype).transpose(np.argsort(order))


def to_host(array: Any) -> npt.NDArray[Any]:
    """A NumPy array with the elements of a CuPy array in the same memory order; waits for them."""
    order = _memory_order(array.strides)
    dense: npt.NDArray[Any] = array.transpose(order).view(_bits(array)).get()
    typed: npt.NDArray[Any] = dense.view(array.dtype).transpose(np.argsort(order))
    return typed


def _bits(array: Any) -> str:
    # CuPy moves no elements of types that it has no kernels for.
    return f"u{array.itemsize}"


def _memory_order(strides: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(sorted(range(len(strides)), key=lambda axis: -abs(strides[axis])))
