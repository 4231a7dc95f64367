"""The sizes of an implicit GEMM on Hopper: what follows from a problem and a config of `wgmma_implicit_gemm`.

The results of one wgmma are its 64 rows: those of a square of 8 x 8, a line of 64, or 64 positions in a row.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

from convgen.problem import DType
from convgen.strategies.wgmma_block import ROWS
from convgen.strategies.wgmma_patches import SQUARE, Patches, PatchesConfig
from convgen.strategies.wgmma_results import Results

EPS_SPLIT = 2.0**-22
"""Of three TF32 products: either operand loses 2^-23 of itself, and the product of their small parts, 2^-22, is left
out."""
EPS_FP8 = 2.0**-8
"""Of a wgmma of fp8: its 32 products and the sum are cut to 13 bits of the largest of them."""
SPLIT_PRODUCTS = 3
"""TF32 products that make one of fp32 numbers."""

PLANES, RUNS = "planes", "runs"
"""Those of a channels-first x, which is read as it lies."""
PATCHES = (PLANES, RUNS, "square", "line", "rows", "im2col")


@dataclass(frozen=True)
class WgmmaConfig(PatchesConfig):
    """How the product is tiled, and how its operands come."""

    patches: str
    """How pixels come: "square" and "line", the halo of each 8 x 8 or 1 x 64 results; "rows", that of results in a row
    over the ends of rows and images; "im2col", for every tap those it meets; "planes", of a channels-first x, for a
    filter of one tap, 64 positions of each channel; "runs", of such an x, a few positions of a channel at a time, which
    threads copy."""
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
    cluster: int

    @property
    def copies(self) -> bool:
        return self.patches == RUNS


def least(patches: str) -> WgmmaConfig:
    """The smallest config whose pixels come that way, for what does not go with its sizes."""
    return WgmmaConfig(patches, 1, 8, 1, 1, 2, 2, 1, 1, 1)


@dataclass(frozen=True)
class Tiling(Patches):
    """A gather and a config of `wgmma_implicit_gemm`."""

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

    @property
    def mma_steps(self) -> int:
        """Roundings that a product meets, of EPS_ACC: those of the wgmma behind it; and of the small products' sum. Of
        EPS_FP8 those of a tap and a line, and that of its sum with the others, in fp32."""
        if self.is_promoted:
            return self.k_steps + 1
        steps = super().mma_steps
        return steps + (1 + steps // 512 if self.is_split else 0)

    # --- the tile ------------------------------------------------------------------------------------

    @property
    def positions(self) -> int:
        return self.c.block_m

    @property
    def square(self) -> tuple[int, ...]:
        if self.c.patches == "square":
            return (SQUARE, SQUARE)
        return (1,) * (len(self.inner) - 1) + (ROWS,)

    @property
    def boxes(self) -> int:
        return self.c.subtiles

    @property
    def channel_tiles(self) -> int:
        return self.g.groups // self.shared_groups * -(-self.g.m // self.c.block_n)

    @property
    def subtile_lines(self) -> int:
        """Lines from one subtile's pixels to the next's."""
        return math.prod(self.box) if self.is_box else ROWS

    @property
    def w_rows(self) -> int:
        return self.shared_groups * self.c.block_n

    @property
    def w_bytes(self) -> int:
        return super().w_bytes * (2 if self.is_split else 1)

    # --- results -------------------------------------------------------------------------------------

    @property
    def whole(self) -> bool:
        """Whether no tile reaches into the next group's channels."""
        return self.g.groups == 1 or self.shared_groups > 1 or self.g.m % self.c.block_n == 0

    @functools.cached_property
    def results(self) -> Results:
        """Those of 64 positions."""
        match self.c.patches:
            case "im2col" | "runs":
                row = self.g.out
            case "rows":
                row = math.gcd(self.pitch[-1], self.inner[-1].out)
            case _:
                row = self.inner[-1].out
        return Results(
            self.g,
            self.w_rows,
            self.square if self.is_box else (),
            row,
            in_order=self.c.patches in ("im2col", "runs"),
            whole=self.whole,
            straight=self.c.slabs == 0 or self.c.cluster > 1,
        )

    @property
    def stores(self) -> int:
        return self.c.tiles

    @property
    def cluster_gap(self) -> int:
        return 8

    # --- registers -----------------------------------------------------------------------------------

    @property
    def sums(self) -> int:
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
        split = self.c.tiles * (8 * self.x_sets + 4) if self.is_split else 0
        return super().registers + self.sum_registers - self.sums + split
