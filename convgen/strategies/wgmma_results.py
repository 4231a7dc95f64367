"""How results leave a warpgroup: through slabs of shared memory by TMA or by threads, or straight from registers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from convgen.gather import Gather
from convgen.plan import Param, TensorArg, TensorMapArg, batch_extent
from convgen.problem import Layout
from convgen.strategies import common, partial_sums
from convgen.strategies.operands import Operand
from convgen.strategies.wgmma_block import LINE_BYTES, ROWS
from convgen.tensor_map import Swizzle, TensorMap

TMA_ALIGNMENT = 16
"""Bytes that what TMA and threads write in pieces begins at a multiple of."""
PIECE = 8
"""Results of two bytes that are stored at a time."""


@dataclass(frozen=True)
class Results:
    """Those of a slab: of `rows` positions and so many channels."""

    g: Gather
    channels: int
    square: tuple[int, ...]
    """Positions along the last axes, if they are a box of y."""
    row: int
    """Positions that are neighbours in y, from each multiple of so many on."""
    in_order: bool = False
    """Whether all positions are counted as they lie in y."""
    whole: bool = True
    """Whether no tile reaches into the next group's channels."""
    straight: bool = False
    """Whether they go from registers to y."""
    rows: int = ROWS

    @property
    def item(self) -> int:
        return self.g.y.dtype.itemsize

    @property
    def channels_first(self) -> bool:
        """Whether the results of a channel, not those of a position, are neighbours."""
        return self.g.y.layout is Layout.CHANNELS_FIRST

    @property
    def staged(self) -> bool:
        """Whether they leave through shared memory: of channels-first those of two bytes, else rows of whole pieces."""
        if self.straight:
            return False
        if self.channels_first:
            return self.item == 2
        rows = (self.g.groups * self.g.m, self.channels)
        return self.whole and all(row * self.item % TMA_ALIGNMENT == 0 for row in rows)

    @property
    def mapped(self) -> bool:
        """Whether TMA writes them: of channels-first results those that lie in a row."""
        if self.channels_first:
            return self.staged and self.whole and self.square[-1:] == (self.rows,) and self.run == PIECE
        return self.staged and (self.in_order or len(self.square) > 0)

    @property
    def run(self) -> int:
        """Of channels-first results, neighbours that all lie in one row of y, at a multiple of their size, or none."""
        return common.power_dividing(math.gcd(*self.square[-1:], self.row), PIECE)

    @property
    def line(self) -> int:
        """Elements of a line of a slab: channels, of the longest that a swizzle has, or all of them; or positions."""
        if self.channels_first:
            return self.rows
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
        return self.rows * self.channels * self.item if self.staged else 0

    @property
    def alignment(self) -> int:
        """Bytes that the start of y is a multiple of."""
        if self.mapped:
            return TMA_ALIGNMENT
        if self.channels_first:
            return (self.run if self.staged else 1) * self.item
        return TMA_ALIGNMENT if self.staged else (2 - self.g.m % 2) * self.item

    def map(self) -> Operand:
        """Of y, as the positions lie in it."""
        g = self.g
        channels = g.groups * g.m
        axes = tuple(reversed(g.axes))
        ones = (1,) * (len(axes) - len(self.square))
        if self.channels_first:
            extents: tuple[int, ...] = (*(a.out for a in axes), channels, g.batch_size)
            steps: tuple[int, ...] = (*(a.y_stride for a in axes[1:]), g.y_m, g.y_batch)
            box: tuple[int, ...] = (*reversed(self.square), *ones, self.channels, 1)
        elif self.in_order:
            extents, steps, box = (channels, g.batch_size * g.out), (channels,), (self.line, self.rows)
        else:
            extents = (channels, *(a.out for a in axes), g.batch_size)
            steps = (*(a.y_stride for a in axes), g.y_batch)
            box = (self.line, *reversed(self.square), *ones, 1)
        found = TensorMap(g.y.dtype, extents, tuple(step * self.item for step in steps), box, swizzle=self.swizzle)
        outermost = batch_extent(g.out if self.in_order else 1) if g.batch is None else None
        return (
            Param("y_map", "const __grid_constant__ TensorMap"),
            TensorMapArg(TensorArg(g.y.name), found, outermost, is_written=True),
        )

    @property
    def constants(self) -> dict[str, Any]:
        """What templates/conv/wgmma_results.cuh.j2 is told."""
        return {
            "staged": self.staged,
            "mapped": self.mapped,
            "slab_bytes": self.slab_bytes,
            "channels_first": self.channels_first,
            "y_run": self.run,
            "y_line": self.line,
            "y_item": self.item,
            "y_swizzle": self.swizzle.value,
            "sum_t": partial_sums.sum_type(self.g),
            "to_out": "static_cast<out_t>" if self.g.y.dtype.is_integer else "from_float<out_t>",
            "pairs": self.g.m % 2 == 0 and not self.channels_first,
        }
