"""Tensor maps as the simulator's TMA reads them, field by field as `TensorMapBits` in src/tensor_copy.h."""

from __future__ import annotations

import struct

from convgen.errors import UsageError
from convgen.tensor_map import MAX_RANK, TensorMap

NBYTES = 128
ALIGNMENT = 64
_MARK = 0x54656E73
_FORM = struct.Struct("<Q5Q4Q5H5B3B22xI4x")


def encode(tensor: TensorMap, address: int) -> bytes:
    """The map of a tensor that lies at an address, 128 bytes. Raises UsageError for one that is no multiple of 16."""
    if address % 16:
        raise UsageError(f"tensor map: address {address:#x}: expected a multiple of 16")
    rank = len(tensor.extents)
    ones = (1,) * (MAX_RANK - rank)
    return _FORM.pack(
        address,
        *tensor.extents,
        *ones,
        *tensor.strides,
        *(0 for _ in ones),
        *tensor.copied,
        *ones,
        *tensor.steps,
        *ones,
        rank,
        tensor.dtype.itemsize,
        tensor.swizzle.value,
        _MARK,
    )
