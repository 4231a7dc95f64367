"""How results leave a warpgroup: through slabs of shared memory by TMA or by threads, or straight from registers."""

from __future__ import annotations

from dataclasses import dataclass

from convgen.gather import Gather
from convgen.plan import Param, TensorArg, TensorMapArg, batch_extent
from convgen.strategies.operands import Operand
from convgen.strategies.wgmma_tiling import LINE_BYTES, ROWS
from convgen.tensor_map import Swizzle, TensorMap


@dataclass(frozen=True)
class Results:
    """Those of 64 positions that are a box of y, of as many channels as a block's tile has."""

    g: Gather
    channels: int
    square: tuple[int, ...]
    """Positions along the last two axes."""

    @property
    def item(self) -> int:
        return self.g.y.dtype.itemsize

    @property
    def mapped(self) -> bool:
        """Whether TMA writes them: those of two bytes, in rows of a multiple of 16 bytes."""
        return self.item == 2 and self.g.m % 8 == 0

    @property
    def line(self) -> int:
        """Channels of a line of a slab: the longest that a swizzle has, or all of them."""
        for swizzle in (Swizzle.B128, Swizzle.B64, Swizzle.B32):
            if self.channels * self.item % swizzle.value == 0:
                return int(swizzle.value) // self.item
        return self.channels

    @property
    def swizzle(self) -> Swizzle:
        line = self.line * self.item
        return Swizzle(line) if line % 32 == 0 and line <= LINE_BYTES and line != 96 else Swizzle.NONE

    @property
    def slab_bytes(self) -> int:
        return ROWS * self.channels * self.item if self.mapped else 0

    def map(self) -> Operand:
        """Of y, as the positions lie in it."""
        g = self.g
        axes = tuple(reversed(g.axes))
        extents = (g.m, *(a.out for a in axes), g.batch_size)
        strides = (*(a.y_stride * self.item for a in axes), g.y_batch * self.item)
        ones = (1,) * (len(axes) - len(self.square) + 1)
        found = TensorMap(g.y.dtype, extents, strides, (self.line, *reversed(self.square), *ones), swizzle=self.swizzle)
        outermost = batch_extent(1) if g.batch is None else None
        return (
            Param("y_map", "const __grid_constant__ TensorMap"),
            TensorMapArg(TensorArg(g.y.name), found, outermost, is_written=True),
        )
