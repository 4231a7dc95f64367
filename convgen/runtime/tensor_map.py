"""Tensor maps for a GPU's TMA, encoded by the driver."""

from __future__ import annotations

import functools
from array import array
from typing import Any

from convgen.binding import TENSOR_MAP_SWIZZLES, TENSOR_MAP_TYPES
from convgen.runtime.driver import check, driver
from convgen.tensor_map import Im2colMap, TensorMap

TENSOR_MAP_WORDS = 16
"""Words of 8 bytes in a tensor map."""
MAX_MAPS = 4096


@functools.lru_cache(MAX_MAPS)
def encode(tensor: TensorMap | Im2colMap, address: int) -> array[int]:
    """The map of a tensor at an address of device memory: 16 words, to be passed by value. Raises DeviceError."""
    cuda = driver()
    if isinstance(tensor, Im2colMap):
        encoded = check(cuda.cuTensorMapEncodeIm2col(*im2col_arguments(tensor, address)))
    else:
        encoded = check(cuda.cuTensorMapEncodeTiled(*arguments(tensor, address)))
    return array("Q", [int(word) for word in encoded.opaque])


def arguments(tensor: TensorMap, address: int) -> tuple[Any, ...]:
    """What cuTensorMapEncodeTiled takes."""
    narrow = driver().cuuint32_t
    box = [narrow(extent) for extent in tensor.box]
    return (*_tensor(tensor, address), box, [narrow(step) for step in tensor.steps], *_modes(tensor))


def im2col_arguments(tensor: Im2colMap, address: int) -> tuple[Any, ...]:
    """What cuTensorMapEncodeIm2col takes."""
    narrow = driver().cuuint32_t
    corners = (list(tensor.lower), list(tensor.upper))
    steps = [narrow(step) for step in (1, *tensor.steps, 1)]
    return (*_tensor(tensor, address), *corners, tensor.channels, tensor.pixels, steps, *_modes(tensor))


def _tensor(tensor: TensorMap | Im2colMap, address: int) -> tuple[Any, ...]:
    cuda = driver()
    wide = cuda.cuuint64_t
    kind = getattr(cuda.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{TENSOR_MAP_TYPES[tensor.dtype]}")
    extents, strides = ([wide(number) for number in numbers] for numbers in (tensor.extents, tensor.strides))
    return kind, len(tensor.extents), address, extents, strides


def _modes(tensor: TensorMap | Im2colMap) -> tuple[Any, ...]:
    cuda = driver()
    return (
        cuda.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        getattr(cuda.CUtensorMapSwizzle, f"CU_TENSOR_MAP_SWIZZLE_{TENSOR_MAP_SWIZZLES[tensor.swizzle]}"),
        cuda.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
        cuda.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )
