"""The sizes of Winograd's algorithm: what follows from a problem and a config of `winograd`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from convgen.gather import Axis, Gather
from convgen.plan import Extent, batch_extent
from convgen.problem import Conv
from convgen.space import Config
from convgen.strategies import common, matrix_form
from convgen.strategies.winograd_transform import Transform, parse_points, transform
from convgen.target import Target

TAPS = 3
"""Of the filter along an axis that is transformed."""
MOST_AXES = 2
"""That are transformed: along three, a tile of one channel would not fit in a thread's registers."""
SKEW = 8
"""Floats between rows in shared memory where a warp's access goes over four rows: moves them to other banks."""


@dataclass(frozen=True)
class WinogradConfig(Config):
    """The transform, where its parts run, and how the product is tiled."""

    kernels: str
    """"fused": transform, product and inverse in one; "separate": three kernels, the transformed data in between."""
    points: str
    """Where the polynomials are evaluated beside infinity: two more than a tile has results, less the taps."""
    product: str
    """"fp32": FMA on CUDA cores; "tf32": tensor cores; "3xtf32": tensor cores on factors in two parts, nearly fp32."""
    block_m: int
    block_n: int
    block_k: int
    """Result channels, tiles and summed channels of a block's step."""
    thread_m: int
    thread_n: int
    share: int
    """Components of a thread; 1 in separate kernels, where a block has one."""
    workspace_mib: int
    """The most that transformed input and sums may take."""

    @property
    def fused(self) -> bool:
        return self.kernels == "fused"

    @property
    def tensor_cores(self) -> bool:
        return self.product != "fp32"

    @property
    def lanes(self) -> int:
        """Threads that share a component."""
        return self.block_m // self.thread_m * (self.block_n // self.thread_n)


@dataclass(frozen=True, slots=True)
class TileAxis:
    """One spatial axis: of the gather's, and the tile along it."""

    axis: Axis
    tile: int
    """Results; 1 where the axis is not transformed."""
    alpha: int
    """Pixels that a tile reads."""

    @property
    def name(self) -> str:
        return self.axis.name

    @property
    def out(self) -> int:
        return self.axis.out

    @property
    def source(self) -> int:
        return self.axis.source

    @property
    def step(self) -> int:
        return self.axis.step

    @property
    def x_stride(self) -> int:
        return self.axis.x_stride

    @property
    def w_stride(self) -> int:
        return self.axis.w_stride

    @property
    def y_stride(self) -> int:
        return self.axis.y_stride

    @property
    def first(self) -> int:
        """From a result's index to the first pixel it reads."""
        return min((self.axis.taps - 1) * self.axis.spread, 0) - self.axis.offset

    @property
    def flipped(self) -> bool:
        """Whether later taps read earlier pixels, as in dgrad."""
        return self.axis.spread < 0

    @property
    def tiles(self) -> int:
        return -(-self.axis.out // self.tile)


@dataclass(frozen=True)
class Tiling:
    """All sizes of a config on a problem. Sizes in floats unless they are said to be bytes."""

    problem: Conv
    g: Gather
    c: WinogradConfig

    @cached_property
    def transform(self) -> Transform:
        return transform(parse_points(self.c.points), TAPS)

    @cached_property
    def axes(self) -> tuple[TileAxis, ...]:
        f = self.transform
        return tuple(TileAxis(a, f.m, f.alpha) if a.taps == TAPS else TileAxis(a, 1, 1) for a in self.g.axes)

    @property
    def transformed(self) -> tuple[TileAxis, ...]:
        return tuple(a for a in self.axes if a.axis.taps == TAPS)

    @property
    def components(self) -> int:
        """Products of a tile and a pair of channels."""
        return math.prod(a.alpha for a in self.axes)

    @property
    def results(self) -> int:
        """Results of a tile."""
        return math.prod(a.tile for a in self.axes)

    @cached_property
    def tiles(self) -> int:
        """Of a batch element."""
        return math.prod(a.tiles for a in self.axes)

    # --- threads --------------------------------------------------------------------------------------

    @property
    def threads(self) -> int:
        return self.c.lanes * (self.components // self.c.share if self.c.fused else 1)

    @property
    def along_channels(self) -> bool:
        """Whether neighbouring threads of the inverse write neighbouring channels, as they lie in y."""
        return self.g.y_m == 1 and self.g.m > 1

    @property
    def along_q(self) -> int:
        """Neighbouring threads of the input's transform that read neighbouring channels."""
        return 4 if self.g.x_q == 1 and (self.g.q_size > 1) else 1

    @property
    def registers(self) -> int:
        """About what a thread of the product needs: sums, a row of operands, elements under way, addresses."""
        c = self.c
        under_way = self.components * -(-c.block_k * c.block_n // self.threads) if c.fused else 0
        operands = c.thread_m + c.thread_n
        if c.tensor_cores:  # the factors of a step of 8, in parts, and the sums of a row of pieces
            operands = (c.thread_n + 4) * (2 if c.product == "3xtf32" else 1) + 2 * c.thread_n
        return c.share * c.thread_m * c.thread_n + operands + under_way + 28

    def resident(self, target: Target) -> int:
        """Blocks of the product that a multiprocessor shall have room for: what the compiler allots registers by."""
        threads = min(target.registers_per_sm // self.registers, target.max_threads_per_sm)
        blocks = min(threads // self.threads, target.shared_per_sm // (self.shared_bytes + target.shared_reserved))
        return min(max(blocks, 1), target.max_blocks_per_sm)

    # --- shared memory --------------------------------------------------------------------------------

    @property
    def stage_components(self) -> int:
        return self.components if self.c.fused else 1

    @property
    def pitch_m(self) -> int:
        """From one row of a stage's U to the next."""
        return self.c.block_m + (SKEW if self.c.tensor_cores else 0)

    @property
    def pitch_n(self) -> int:
        """From one row of a stage's V to the next."""
        return self.c.block_n + (SKEW if self.c.tensor_cores or (self.c.fused and self.along_q > 1) else 0)

    @property
    def stages_bytes(self) -> int:
        return 2 * 4 * self.stage_components * self.c.block_k * (self.pitch_m + self.pitch_n)

    @property
    def exchange_run(self) -> int:
        """Channels of a thread whose components meet in shared memory at a time: as many as find room in the stages."""
        fits = (run for run in (4, 2) if run <= self.c.thread_m and self._exchange_bytes(run) <= self.stages_bytes)
        return next(fits, 1)

    @property
    def exchange_rows(self) -> int:
        return self.c.block_m // self.c.thread_m * self.exchange_run

    def _exchange_bytes(self, run: int) -> int:
        rows = self.c.block_m // self.c.thread_m * run + (4 if self.along_channels else 0)
        return 4 * self.components * rows * self.c.block_n

    @property
    def shared_bytes(self) -> int:
        return max(self.stages_bytes, self._exchange_bytes(self.exchange_run) if self.c.fused else 0)

    # --- workspace ------------------------------------------------------------------------------------

    @property
    def padded_q(self) -> int:
        return -(-self.g.q_size // self.c.block_k) * self.c.block_k

    @property
    def tiles_m(self) -> int:
        return -(-self.g.m // self.c.block_m)

    @property
    def padded_m(self) -> int:
        return self.tiles_m * self.c.block_m

    @property
    def filter_bytes(self) -> int:
        """The transformed filter."""
        return 4 * self.components * self.g.groups * self.padded_q * self.padded_m

    @property
    def block_bytes(self) -> int:
        """Transformed input and sums of one block of tiles."""
        return 4 * self.components * self.g.groups * (self.padded_q + self.padded_m) * self.c.block_n

    @property
    def most_blocks(self) -> int:
        """Blocks of tiles at the largest batch (the typical one if that has no bound)."""
        return common.largest_extent(self.problem, self.blocks())

    def blocks(self, scale: int = 1) -> Extent:
        """`scale` for each block of tiles of the whole batch."""
        if self.g.batch is None:
            return batch_extent(self.tiles, self.c.block_n, scale)
        return scale * -(-self.g.batch * self.tiles // self.c.block_n)

    @cached_property
    def chunk(self) -> int | None:
        """Blocks of tiles that are transformed at a time; None: all, of a batch known at run time."""
        if self.g.batch is None:
            return None
        most = self.most_blocks
        room = max((self.c.workspace_mib << 20) // self.block_bytes, 1)
        return -(-most // -(-most // room))

    def of_chunk(self, scale: int, first: int = 0) -> Extent:
        """`scale` for each block of tiles of the chunk that begins at block `first`."""
        if self.chunk is None:
            return self.blocks(scale)
        return scale * min(self.chunk, self.most_blocks - first)

    @property
    def chunk_starts(self) -> tuple[int, ...]:
        return (0,) if self.chunk is None else tuple(range(0, self.most_blocks, self.chunk))

    # --- stores ---------------------------------------------------------------------------------------

    @cached_property
    def y_pack(self) -> int:
        """Results along the last transformed axis that a store writes."""
        column, g = self.transformed[-1], self.g
        others = common.steps(
            (2 if g.batch is None else g.batch, g.y_batch),
            (g.groups, g.y_group),
            (g.m, g.y_m),
            *((a.out, a.y_stride) for a in self.axes if a != column),
        )

        def fits(count: int) -> bool:
            return column.tile % count == 0 and matrix_form.aligned(count, ((column.out, column.y_stride),), others)

        return matrix_form.largest_pack(fits)
