"""What TMA is told of a tensor: the arguments of cuTensorMapEncodeTiled, checked, with nothing of CUDA."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass

from convgen.errors import UsageError
from convgen.problem import DType

MAX_RANK = 5
MAX_BOX = 256
MAX_PIXELS = 1024
MAX_ELEMENT_STRIDE = 8
MAX_EXTENT = 1 << 32
MAX_STRIDE = 1 << 40


class Swizzle(enum.Enum):
    """By how many bytes a box's rows repeat in shared memory, their 16-byte pieces changing places in between."""

    NONE = 0
    B32 = 32
    B64 = 64
    B128 = 128


@dataclass(frozen=True, slots=True)
class TensorMap:
    """A tensor in global memory and the boxes that TMA copies of it. Dimensions count from the innermost.

    `extents` in elements; `strides` in bytes, of all dimensions but the first, whose elements are neighbours; `box` in
    elements of the tensor, of which every `element_strides`-th is copied (empty: all; never of dimension 0). Elements
    outside the tensor are loaded as zeros. Raises UsageError for what CUDA refuses, and for a swizzle over boxes whose
    rows are not as long as its period, for which no layout is documented.
    """

    dtype: DType
    extents: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    element_strides: tuple[int, ...] = ()
    swizzle: Swizzle = Swizzle.NONE

    def __post_init__(self) -> None:
        rank = len(self.extents)
        steps = self.steps
        _require(1 <= rank <= MAX_RANK, "extents", self.extents, f"1 to {MAX_RANK} of them")
        _require(len(self.strides) == rank - 1, "strides", self.strides, f"{rank - 1}, one less than extents")
        _require(len(self.box) == rank, "box", self.box, f"{rank}, as many as extents")
        _require(len(steps) == rank and steps[0] == 1, "element_strides", steps, f"{rank} with 1 in front")
        _require(all(1 <= e <= MAX_EXTENT for e in self.extents), "extents", self.extents, "each from 1 to 2^32")
        good = all(0 < s < MAX_STRIDE and s % 16 == 0 for s in self.strides)
        _require(good, "strides", self.strides, "multiples of 16 below 2^40")
        _require(all(1 <= b <= MAX_BOX for b in self.box), "box", self.box, f"each from 1 to {MAX_BOX}")
        _require(all(1 <= s <= MAX_ELEMENT_STRIDE for s in steps), "element_strides", steps, "each from 1 to 8")
        row = self.box[0] * self.dtype.itemsize
        _require(row % 16 == 0, "box", self.box, "rows of a multiple of 16 bytes")
        fits = self.swizzle is Swizzle.NONE or row == self.swizzle.value
        _require(fits, "box", self.box, f"rows of {self.swizzle.value} bytes, as the swizzle's")

    @property
    def steps(self) -> tuple[int, ...]:
        """The element strides, 1 where none are given."""
        return self.element_strides or (1,) * len(self.extents)

    @property
    def copied(self) -> tuple[int, ...]:
        """The box in elements of shared memory."""
        return tuple(-(-extent // step) for extent, step in zip(self.box, self.steps, strict=True))

    @property
    def box_bytes(self) -> int:
        """Bytes of a box in shared memory: what a load counts on its mbarrier."""
        return math.prod(self.copied) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class Im2colMap:
    """A channels-last tensor and the pixels that TMA's im2col mode copies of it: cuTensorMapEncodeIm2col's arguments.

    `extents` (C, spatial, innermost first, N) and `strides` are as of `TensorMap`. A copy brings `pixels` rows of
    `channels` elements: from its pixel on along a box, the innermost axis first, then from image to image. Along each
    spatial axis, the innermost first, the box goes from `lower` to the tensor's last pixel plus `upper`, by
    `element_strides`. For a convolution `lower` is -pad_lo, `upper` pad_hi - (filter - 1) * dilation, and a tap is an
    offset that the copy adds to every pixel: what lies outside the tensor is loaded as zeros. Raises UsageError for
    what CUDA refuses.
    """

    dtype: DType
    extents: tuple[int, ...]
    strides: tuple[int, ...]
    lower: tuple[int, ...]
    upper: tuple[int, ...]
    channels: int
    pixels: int
    element_strides: tuple[int, ...] = ()
    swizzle: Swizzle = Swizzle.NONE

    def __post_init__(self) -> None:
        rank = len(self.extents)
        _require(3 <= rank <= MAX_RANK, "extents", self.extents, f"3 to {MAX_RANK} of them")
        corners = (("lower", self.lower), ("upper", self.upper))
        reach = 1 << 16 // (rank - 2) - 1
        for name, corner in corners:
            _require(len(corner) == rank - 2, name, corner, f"{rank - 2}, one a spatial axis")
            _require(all(-reach <= c < reach for c in corner), name, corner, f"each from {-reach} to {reach - 1}")
        _require(1 <= self.pixels <= MAX_PIXELS, "pixels", self.pixels, f"1 to {MAX_PIXELS}")
        steps = self.steps
        _require(len(steps) == rank - 2, "element_strides", steps, f"{rank - 2}, one a spatial axis")
        # What is left is checked as for the box of one pixel.
        ones = (1,) * (rank - 1)
        TensorMap(self.dtype, self.extents, self.strides, (self.channels, *ones), (1, *steps, 1), self.swizzle)

    @property
    def steps(self) -> tuple[int, ...]:
        """The element strides of the spatial axes, 1 where none are given."""
        return self.element_strides or (1,) * (len(self.extents) - 2)

    @property
    def box_bytes(self) -> int:
        """Bytes of a copy in shared memory: what it counts on its mbarrier."""
        return self.channels * self.pixels * self.dtype.itemsize


def _require(holds: bool, name: str, value: object, expected: str) -> None:
    if not holds:
        raise UsageError(f"tensor map: {name}={value}: expected {expected}")
