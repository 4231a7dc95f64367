"""The sizes of an implicit GEMM on Hopper: what follows from a problem and a config of `wgmma_implicit_gemm`.

A line of shared memory holds 128 bytes of the channels of a pixel; a wgmma takes 64 lines as rows of its operand, eight
neighbours and then every group of eight the same distance on. So the results of one wgmma are a square of 8 x 8, a line
of 64, or 64 positions in a row, and the lines of a filter's tap are those of the first one moved by a constant.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

from convgen.gather import Axis, Gather
from convgen.problem import DType
from convgen.strategies import wgmma_block
from convgen.strategies.implicit_gemm_tiling import STEP_BYTES
from convgen.strategies.wgmma_block import LINE_BYTES, ROWS, SHARED_ALIGNMENT, BlockConfig
from convgen.strategies.wgmma_results import Results
from convgen.target import Target
from convgen.tensor_map import Swizzle

SQUARE = 8
OTHER_REGISTERS = 44
"""That a consumer needs beside its sums."""
EPS_SPLIT = 2.0**-22
"""Of three TF32 products: either operand loses 2^-23 of itself, and the product of their small parts, 2^-22, is left
out."""
EPS_FP8 = 2.0**-8
"""Of a wgmma of fp8: its 32 products and the sum are cut to 13 bits of the largest of them."""
SPLIT_PRODUCTS = 3
"""TF32 products that make one of fp32 numbers."""

PLANES = "planes"
PATCHES = (PLANES, "square", "line", "rows", "im2col")
BOXES = (PLANES, "square", "line")
"""Those whose subtiles are boxes of x."""
CLUSTER_GAP = 8
"""Sums between those of one position and the next."""


@dataclass(frozen=True)
class WgmmaConfig(BlockConfig):
    """How the product is tiled, and how its operands come."""

    patches: str
    """How pixels come: "square" and "line", the halo of each 8 x 8 or 1 x 64 results; "rows", that of results in a row
    over the ends of rows and images; "im2col", for every tap those it meets; "planes", of a channels-first x, for a
    filter of one tap, 64 positions of each channel."""
    tiles: int
    """Times 64 positions: those of a warpgroup."""
    block_n: int
    """Result channels of a block's tile; of every group that shares a line."""
    consumers: int
    """Warpgroups that multiply."""
    sharing: int
    """Of them, those that work on one tile: all (cooperative), or fewer, which take turns (ping-pong)."""
    x_stages: int
    w_stages: int
    """Tiles of either operand in shared memory. As many w_stages as there are tiles of w: they stay."""
    slabs: int
    """Of a warpgroup, for 64 positions' results each on their way from shared memory to y. 0: results of four bytes go
    straight there."""
    split_k: int
    """Parts of the sums of tiles that leave multiprocessors idle: those after the last one that all have as many of.
    They run in parallel and are added in a fixed order by a second kernel."""
    cluster: int
    """Blocks of a cluster that have a part of each tile's sums, and add them through their shared memory."""

    @property
    def parts(self) -> int:
        """Of a tile's sums, if they are split."""
        return max(self.split_k, self.cluster)


def least(patches: str) -> WgmmaConfig:
    """The smallest config whose pixels come that way, for what does not go with its sizes."""
    return WgmmaConfig(patches, 1, 8, 1, 1, 2, 2, 1, 1, 1)


@dataclass(frozen=True)
class Tiling:
    """A gather (fprop, x and w channels-last but where patches are planes) and a config."""

    g: Gather
    c: WgmmaConfig
    products: int = 1
    """Of tensor cores, that make one of the problem's: 1 or SPLIT_PRODUCTS."""

    @property
    def is_split(self) -> bool:
        """Whether operands are made two numbers each."""
        return self.products == SPLIT_PRODUCTS

    @property
    def is_promoted(self) -> bool:
        """Whether tensor cores' sums of a tap and a line, which they cut short, go on in fp32."""
        return self.g.x.dtype is DType.FP8

    # --- axes and channels ---------------------------------------------------------------------------

    @property
    def inner(self) -> tuple[Axis, ...]:
        """The axes whose taps lie in one halo: the last two."""
        return self.g.axes[-2:]

    @property
    def depth(self) -> tuple[Axis, ...]:
        """The axes before them, whose taps are loaded apart."""
        return self.g.axes[:-2]

    @property
    def is_halo(self) -> bool:
        """Whether the inner taps are shifts within one tile of x."""
        return self.c.patches != "im2col"

    @property
    def item(self) -> int:
        return self.g.x.dtype.itemsize

    @property
    def q(self) -> int:
        return self.g.q_size

    @property
    def line(self) -> int:
        """Elements of a line of x."""
        return LINE_BYTES // self.item

    @functools.cached_property
    def shared_groups(self) -> int:
        """Groups whose channels lie in one line of x."""
        if self.g.groups == 1 or self.q == 0 or self.line % self.q:
            return 1
        return math.gcd(self.line // self.q, self.g.groups)

    @property
    def w_line(self) -> int:
        """Elements of a line of w: a group's part of the line."""
        return self.q if self.shared_groups > 1 else self.line

    @property
    def w_swizzle(self) -> Swizzle:
        return Swizzle(self.w_line * self.item)

    @property
    def chunks(self) -> int:
        """Lines that the channels of a group fill."""
        return -(-self.q // self.line)

    @property
    def k_steps(self) -> int:
        """wgmma of a tap and a line, for each group of it."""
        return -(-min(self.q * self.item, LINE_BYTES) // STEP_BYTES)

    # --- sums ----------------------------------------------------------------------------------------

    @property
    def taps(self) -> int:
        """Taps of a panel: those that one tile of x serves."""
        return math.prod(axis.taps for axis in self.inner) if self.is_halo else 1

    @property
    def panels(self) -> int:
        """Tiles of x of a tile of results: one a line of channels and tap that is loaded apart."""
        return self.chunks * self.g.taps // self.taps

    @property
    def panels_of_part(self) -> int:
        return -(-self.panels // self.c.parts)

    @property
    def w_tiles(self) -> int:
        """Tiles of w of a tile of results."""
        return self.panels * self.taps

    @property
    def resident(self) -> bool:
        """Whether the tiles of w stay in shared memory."""
        return self.c.w_stages == self.w_tiles

    # --- positions -----------------------------------------------------------------------------------

    @property
    def square(self) -> tuple[int, ...]:
        """The results of a subtile along each inner axis."""
        if self.c.patches == "square":
            return (SQUARE, SQUARE)
        return (1,) * (len(self.inner) - 1) + (ROWS,)

    @property
    def box(self) -> tuple[int, ...]:
        """The pixels of a subtile's halo along each inner axis."""
        return tuple(axis.span(extent) for axis, extent in zip(self.inner, self.square, strict=True))

    @property
    def pitch(self) -> tuple[int, ...]:
        """Positions in a row along each inner axis, from a line to the next: zeros at an end serve both sides."""
        return tuple(max(a.out, a.source + max(a.pad_lo, a.pad_hi)) for a in self.inner)

    @property
    def span(self) -> int:
        """Lines from a position to that of its last tap."""
        *rows, last = self.inner
        reach = (last.taps - 1) * last.spread
        return reach + sum((a.taps - 1) * a.spread for a in rows) * self.pitch[-1]

    @property
    def most_rows(self) -> int:
        """Rows of x that a block's positions meet."""
        return (self.pitch[-1] - 1 + self.c.block_m - 1 + self.span) // self.pitch[-1] + 1

    @property
    def planes(self) -> int:
        """Two-dimensional results of one batch element."""
        return math.prod(axis.out for axis in self.depth)

    @property
    def units(self) -> int:
        """What a batch element is counted in: subtiles of squares and lines, else positions."""
        match self.c.patches:
            case "im2col":
                return self.g.out
            case "rows":
                return self.planes * math.prod(self.pitch)
        return self.planes * math.prod(-(-a.out // s) for a, s in zip(self.inner, self.square, strict=True))

    @property
    def units_of_block(self) -> int:
        return self.c.subtiles if self.c.patches in BOXES else self.c.block_m

    @property
    def channel_tiles(self) -> int:
        """Of all groups."""
        return self.g.groups // self.shared_groups * -(-self.g.m // self.c.block_n)

    # --- shared memory -------------------------------------------------------------------------------

    @property
    def subtile_lines(self) -> int:
        """Lines from one subtile's pixels to the next's."""
        return math.prod(self.box) if self.c.patches in BOXES else ROWS

    @property
    def x_lines(self) -> int:
        if self.c.patches == "rows":
            return self.most_rows * self.pitch[-1]
        return self.c.subtiles * self.subtile_lines

    @property
    def x_bytes(self) -> int:
        return self.x_lines * LINE_BYTES

    @property
    def w_rows(self) -> int:
        """Lines of a tile of w."""
        return self.shared_groups * self.c.block_n

    @property
    def w_bytes(self) -> int:
        whole = self.w_rows * self.w_line * self.item * (2 if self.is_split else 1)
        return -(-whole // SHARED_ALIGNMENT) * SHARED_ALIGNMENT

    @property
    def whole(self) -> bool:
        """Whether no tile reaches into the next group's channels."""
        return self.g.groups == 1 or self.shared_groups > 1 or self.g.m % self.c.block_n == 0

    @functools.cached_property
    def results(self) -> Results:
        """Those of 64 positions."""
        match self.c.patches:
            case "im2col":
                row = self.g.out
            case "rows":
                row = math.gcd(self.pitch[-1], self.inner[-1].out)
            case _:
                row = self.inner[-1].out
        return Results(
            self.g,
            self.w_rows,
            self.square if self.c.patches in BOXES else (),
            row,
            in_order=self.c.patches == "im2col",
            whole=self.whole,
            straight=self.c.slabs == 0 or self.c.cluster > 1,
        )

    @property
    def mapped(self) -> bool:
        return self.results.mapped

    @property
    def w_at(self) -> int:
        return self.c.x_stages * self.x_bytes

    @property
    def staging_at(self) -> int:
        return self.w_at + self.c.w_stages * self.w_bytes

    @property
    def barriers_at(self) -> int:
        return self.staging_at + self.c.consumers * self.c.slabs * self.results.slab_bytes

    @property
    def ordered(self) -> bool:
        """Whether warpgroups that take turns wait for each other's products.

        A wait for an mbarrier's phase takes the one before the last for it, so nobody may come to a stage while an
        earlier filling of it is on its way. None is where all stages before were waited for by those who went before,
        or where the earlier filling was one's own: where the rings come around with one's own tiles.
        """
        slots = self.c.slots
        own_x = self.c.x_stages % (slots * self.panels) == 0
        own = own_x and (self.resident or self.c.w_stages % (slots * self.w_tiles) == 0)
        return slots > 1 and not (own and self.c.split_k == 1)

    @property
    def mbarriers(self) -> int:
        """Two a stage, full and empty; tiles that stay are never empty."""
        turns = self.c.slots if self.ordered else 0
        return 2 * self.c.x_stages + self.c.w_stages * (1 if self.resident else 2) + turns

    @property
    def shared_bytes(self) -> int:
        return self.barriers_at + 8 * self.mbarriers

    # --- registers -----------------------------------------------------------------------------------

    @property
    def sums(self) -> int:
        """Of a thread."""
        return self.c.tiles * self.w_rows // 2

    @property
    def sum_registers(self) -> int:
        """Of a thread: of small products or of fresh sums there are as many again."""
        return self.sums * (2 if self.is_split or self.is_promoted else 1)

    @property
    def x_sets(self) -> int:
        """Sets of registers for the numbers that x is split into: one is multiplied while another is filled."""
        steps = self.shared_groups * self.k_steps
        return 2 if steps == 4 else steps

    @property
    def registers(self) -> int:
        """About what a consumer needs."""
        split = self.c.tiles * (8 * self.x_sets + 4) if self.is_split else 0
        return self.sum_registers + split + OTHER_REGISTERS

    # --- work ----------------------------------------------------------------------------------------

    def tiles(self, batch: int) -> int:
        """Of results."""
        return -(-batch * self.units // self.units_of_block) * self.channel_tiles

    def split_tiles(self, batch: int, target: Target) -> int:
        """Of them, those whose sums are split."""
        return self.tiles(batch) % target.sm_count if self.c.split_k > 1 else 0

    def blocks(self, batch: int, target: Target) -> int:
        """Blocks that are launched."""
        if self.c.cluster > 1:
            return self.tiles(batch) * self.c.cluster
        tiles = self.tiles(batch) + (self.c.split_k - 1) * self.split_tiles(batch, target)
        return wgmma_block.blocks(tiles, self.channel_tiles, self.resident, target)

    @property
    def cluster_bytes(self) -> int:
        """Of a block's part of the sums where a cluster adds them, rows apart for the sake of the banks."""
        return 4 * self.c.block_m * (self.w_rows + CLUSTER_GAP)

    @property
    def part_bytes(self) -> int:
        """Of a part of a tile's sums."""
        return 4 * self.c.block_m * self.w_rows

    @property
    def mma_steps(self) -> int:
        """Roundings that a product meets, of EPS_ACC: those of the wgmma behind it; and of the small products' sum. Of
        EPS_FP8 those of a tap and a line, and that of its sum with the others, in fp32."""
        if self.is_promoted:
            return self.k_steps + 1
        steps = self.w_tiles * self.k_steps
        return steps + (1 + steps // 512 if self.is_split else 0)
