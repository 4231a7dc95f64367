"""Tensor maps as the simulator's TMA reads them, field by field as `TensorMapBits` in src/tensor_copy.h."""

from __future__ import annotations

import struct

from convgen.errors import UsageError
from convgen.tensor_map import MAX_RANK, Im2colMap, TensorMap

NBYTES = 128
ALIGNMENT = 64
_MARK = 0x54656E73
_FORM = struct.Struct("<Q5Q4Q5H5B3BBx6h8xI4x")


def encode(tensor: TensorMap | Im2colMap, address: int) -> bytes:
    """The map of a tensor that lies at an address, 128 bytes. Raises UsageError for one that is no multiple of 16."""
    if address % 16:
        raise UsageError(f"tensor map: address {address:#x}: expected a multiple of 16")
    rank = len(tensor.extents)
    ones = (1,) * (MAX_RANK - rank)
    if isinstance(tensor, Im2colMap):
        box: tuple[int, ...] = (tensor.channels, tensor.pixels, *(1,) * (rank - 2))
        steps: tuple[int, ...] = (1, *tensor.steps, 1)
        missing = (0,) * (MAX_RANK - rank)
        corners: tuple[int, ...] = (*tensor.lower, *missing, *tensor.upper, *missing)
    else:
        box, steps, corners = tensor.copied, tensor.steps, (0,) * 6
    return _FORM.pack(
        address,
        *tensor.extents,
        *ones,
        *tensor.strides,
        *(0 for _ in ones),
        *box,
        *ones,
        *steps,
        *ones,
        rank,
        tensor.dtype.itemsize,
        tensor.swizzle.value,
        isinstance(tensor, Im2colMap),
        *corners,
        _MARK,
    )
