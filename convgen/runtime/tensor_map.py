"""Tensor maps for a GPU's TMA, encoded by the driver."""

from __future__ import annotations

import functools
from array import array
from typing import Any

from convgen.binding import TENSOR_MAP_SWIZZLES, TENSOR_MAP_TYPES
from convgen.runtime.driver import check, driver
from convgen.tensor_map import TensorMap

TENSOR_MAP_WORDS = 16
"""Words of 8 bytes in a tensor map."""
MAX_MAPS = 4096


@functools.lru_cache(MAX_MAPS)
def encode(tensor: TensorMap, address: int) -> array[int]:
    """The map of a tensor at an address of device memory: 16 words, to be passed by value. Raises DeviceError."""
    encoded = check(driver().cuTensorMapEncodeTiled(*arguments(tensor, address)))
    return array("Q", [int(word) for word in encoded.opaque])


def arguments(tensor: TensorMap, address: int) -> tuple[Any, ...]:
    """What cuTensorMapEncodeTiled takes."""
    cuda = driver()
    wide, narrow = cuda.cuuint64_t, cuda.cuuint32_t
    return (
        getattr(cuda.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{TENSOR_MAP_TYPES[tensor.dtype]}"),
        len(tensor.extents),
        address,
        [wide(extent) for extent in tensor.extents],
        [wide(stride) for stride in tensor.strides],
        [narrow(extent) for extent in tensor.box],
        [narrow(step) for step in tensor.steps],
        cuda.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        getattr(cuda.CUtensorMapSwizzle, f"CU_TENSOR_MAP_SWIZZLE_{TENSOR_MAP_SWIZZLES[tensor.swizzle]}"),
        cuda.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
        cuda.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )
