"""The sizes of an implicit GEMM of few channels: what follows from a problem and a config of `wgmma_packed`.

A run is what a filter has in one row of x that lies in memory as one piece: its taps along the last axis and, of
channels-last tensors, their channels. Terms are counted run after run, each padded to whole words of 4 bytes, eight of
which are a step of wgmma.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

from convgen.gather import Axis, Gather
from convgen.strategies import wgmma_block
from convgen.strategies.implicit_gemm_tiling import STEP_BYTES
from convgen.strategies.wgmma_block import (
    LAUNCHED_REGISTERS,
    LINE_BYTES,
    REGISTERS,
    ROWS,
    SHARED_ALIGNMENT,
    WARPGROUP,
    BlockConfig,
)
from convgen.strategies.wgmma_results import Results
from convgen.target import Target
from convgen.tensor_map import MAX_BOX

WORD_BYTES = 4
"""Of a register of wgmma's operand, filled by one load."""
STEP_WORDS = STEP_BYTES // WORD_BYTES
STEPS_OF_LINE = LINE_BYTES // STEP_BYTES
PIECE_BYTES = 16
"""What TMA copies is a multiple of this and begins at one (measured: else it is an illegal instruction)."""
VECTORS = (1, 2, 4)
"""Words of a load."""
WIDTHS = (64, 32, 16, 8, 4)
COPYING = 96
"""Threads that copy pixels where TMA does not."""
BANKS = 32
LANES = 32
QUARTER = 4
"""Lanes of a warp that load words of one row."""


@dataclass(frozen=True)
class PackedConfig(BlockConfig):
    """How the product is tiled, and how its operands come."""

    width: int
    """Results along the last axis of the 64 that a wgmma makes; the others lie in 64 / width rows."""
    tiles: int
    """Times 64 results: those of a warpgroup."""
    block_n: int
    """Result channels of a block's tile."""
    consumers: int
    """Warpgroups that multiply."""
    sharing: int
    """Of them, those that work on one tile (on the same pixels' neighbours and the same tiles of w)."""
    vector: int
    """Words that a thread loads at a time."""
    panel: int
    """Taps, of channels-first tensors channels, of the outermost axis that a stage of x holds."""
    x_stages: int
    w_stages: int
    """Of each tile that a block works on at a time. As many w_stages as there are tiles of w: they stay, and are made
    once, by the block."""
    slabs: int
    """Of a warpgroup, for 64 positions' results each on their way from shared memory to y."""


@dataclass(frozen=True)
class Runs:
    """An axis along which a panel has runs: how many, and how many elements of shared memory lie between two."""

    count: int
    step: int


@dataclass(frozen=True)
class PackedTiling:
    """A gather (fprop, one group) and a config."""

    g: Gather
    c: PackedConfig

    # --- what lies in one piece ----------------------------------------------------------------------

    @property
    def item(self) -> int:
        return self.g.x.dtype.itemsize

    @property
    def elements(self) -> int:
        """Of a word."""
        return WORD_BYTES // self.item

    @functools.cached_property
    def channels_last(self) -> bool:
        return self.g.x_q == 1 or self.g.q_size == 1

    @property
    def pixel(self) -> int:
        """Elements from a pixel to the next in its row."""
        return self.g.q_size if self.channels_last else 1

    @functools.cached_property
    def whole_pixels(self) -> bool:
        """Whether a copy is of pixels, each of whole pieces of 16 bytes; else of elements of a row."""
        return self.channels_last and self.pixel * self.item % PIECE_BYTES == 0 and self.row > MAX_BOX

    @property
    def merged(self) -> bool:
        """Whether the taps along the last axis are neighbours."""
        return self.last.spread == 1 or self.last.taps == 1

    @property
    def last(self) -> Axis:
        return self.g.axes[-1]

    @property
    def run(self) -> int:
        """Elements of a run."""
        return self.pixel * (self.last.taps if self.merged else 1)

    @functools.cached_property
    def run_words(self) -> int:
        """Of a run, in whole loads."""
        return -(-(self.lead + self.run) // (self.elements * self.c.vector)) * self.c.vector

    # --- where it begins -----------------------------------------------------------------------------

    @functools.cached_property
    def by_tma(self) -> bool:
        """Whether TMA brings the pixels: rows that begin at a multiple of 16 bytes; else threads copy words."""
        g = self.g
        planes = [] if self.channels_last else [g.x_q]
        strides = [*(axis.x_stride for axis in g.axes[:-1]), *planes, g.x_batch]
        return all(stride * self.item % PIECE_BYTES == 0 for stride in strides)

    @property
    def phase(self) -> int:
        """Elements of a row before the first that results meet: TMA's rows begin at multiples of 16 bytes."""
        if not self.by_tma:
            return 0
        return -self.last.pad_lo * self.pixel % (PIECE_BYTES // self.item)

    @property
    def step(self) -> int:
        """Elements from a result's first to the next one's, along the last axis."""
        return self.last.step * self.pixel

    @property
    def shifted(self) -> bool:
        """Whether words of some results begin within a word of shared memory, those of others not."""
        return self.step % self.elements > 0

    @property
    def lead(self) -> int:
        """Elements before a run with which its words begin where those of shared memory do, for all results."""
        return 0 if self.shifted else self.phase % self.elements

    @property
    def most_vector(self) -> int:
        """Words that lie alike for all results and runs: those of the longest load."""
        if self.shifted:
            return 1
        starts = (self.phase - self.lead, *self.position_steps, *(runs.step for runs in self.runs))
        return next(v for v in VECTORS[::-1] if all(start % (v * self.elements) == 0 for start in starts))

    # --- panels --------------------------------------------------------------------------------------

    @functools.cached_property
    def outer_axes(self) -> tuple[Axis, ...]:
        """The axes along which runs lie."""
        return self.g.axes[:-1] if self.merged else self.g.axes

    @property
    def counts(self) -> tuple[int, ...]:
        """Runs along each of them, of channels-first tensors behind the channels."""
        taps = tuple(axis.taps for axis in self.outer_axes)
        return taps if self.channels_last else (self.g.q_size, *taps)

    @property
    def most_panel(self) -> int:
        return self.counts[0] if self.counts else 1

    @property
    def panels(self) -> int:
        return self.most_panel // self.c.panel

    @property
    def runs(self) -> tuple[Runs, ...]:
        """Those of a panel, the outermost axis first."""
        rows = {axis.name: step for axis, step in zip(self.g.axes, self._steps, strict=True)}
        steps = [axis.spread * rows[axis.name] for axis in self.outer_axes]
        if not self.channels_last:
            steps.insert(0, self.row * math.prod(self.heights))
        counts = (self.c.panel, *self.counts[1:])[: len(steps)]
        return tuple(Runs(count, step) for count, step in zip(counts, steps, strict=True))

    @property
    def words(self) -> int:
        """Of the runs of a panel."""
        return math.prod(runs.count for runs in self.runs) * self.run_words

    @functools.cached_property
    def k_steps(self) -> int:
        """wgmma of a panel, for each 64 results."""
        together = max(1, self.c.vector // 2)
        return -(-self.words // (STEP_WORDS * together)) * together

    @property
    def lines(self) -> int:
        """Tiles of w of a panel: up to four steps each."""
        return -(-self.k_steps // STEPS_OF_LINE)

    @property
    def w_tiles(self) -> int:
        """Of a tile of results."""
        return self.panels * self.lines

    @property
    def resident(self) -> bool:
        """Whether the tiles of w stay in shared memory."""
        return self.c.w_stages == self.w_tiles

    @property
    def mma_steps(self) -> int:
        """Roundings that a product meets: those of the wgmma behind it."""
        return self.panels * self.k_steps

    # --- pixels --------------------------------------------------------------------------------------

    @property
    def inner(self) -> tuple[Axis, ...]:
        """The axes along which 64 results lie."""
        return self.g.axes[-2:]

    @property
    def square(self) -> tuple[int, ...]:
        """The results of a subtile along each of them."""
        return (ROWS // self.c.width, self.c.width)[-len(self.inner) :]

    @functools.cached_property
    def spans(self) -> tuple[int, ...]:
        """Pixels of a subtile's box along each axis: those that its results and the taps of a panel meet."""
        extents = (1,) * (len(self.g.axes) - len(self.inner)) + self.square
        by_panel = self.channels_last and bool(self.outer_axes)
        taps = [axis.taps for axis in self.g.axes]
        if by_panel:
            taps[0] = self.c.panel
        return tuple(
            (extent - 1) * axis.step + (count - 1) * axis.spread + 1
            for axis, extent, count in zip(self.g.axes, extents, taps, strict=True)
        )

    @functools.cached_property
    def row(self) -> int:
        """Elements of a row of the box."""
        piece = PIECE_BYTES // self.item
        behind = 2 * self.elements if self.shifted else 0
        return -(-(self.phase + self.spans[-1] * self.pixel + behind) // piece) * piece

    @property
    def heights(self) -> tuple[int, ...]:
        return self.spans[:-1]

    @property
    def _steps(self) -> tuple[int, ...]:
        """Elements of shared memory from a pixel to the next along each axis."""
        rows = [self.row * math.prod(self.heights[i + 1 :]) for i in range(len(self.heights))]
        return (*rows, self.pixel)

    @property
    def position_steps(self) -> tuple[int, ...]:
        """And from a result's first pixel to the next one's, along the inner axes."""
        steps = self._steps[-len(self.inner) :]
        return tuple(axis.step * step for axis, step in zip(self.inner, steps, strict=True))

    @property
    def box(self) -> tuple[int, ...]:
        """What TMA brings at a time: elements of a row (channels, pixels), then the other axes, channels, images."""
        inner = (self.pixel, self.spans[-1]) if self.whole_pixels else (self.row,)
        channels = () if self.channels_last else (self.c.panel,)
        return (*inner, *reversed(self.heights), *channels, 1)

    @property
    def box_rows(self) -> tuple[int, ...]:
        """Rows of a box along each axis but the last, of channels-first tensors behind the channels."""
        return self.heights if self.channels_last else (self.c.panel, *self.heights)

    @property
    def box_bytes(self) -> int:
        return math.prod(self.box) * self.item

    @property
    def subtile_bytes(self) -> int:
        return -(-self.box_bytes // SHARED_ALIGNMENT) * SHARED_ALIGNMENT

    @property
    def x_bytes(self) -> int:
        """Of a stage."""
        return self.c.subtiles * self.subtile_bytes

    @property
    def copied_words(self) -> float:
        """Of a panel, by each thread that copies."""
        return self.c.subtiles * math.prod(self.box_rows) * self.row / self.elements / COPYING

    @property
    def wavefronts(self) -> float:
        """Of shared memory, for a warp's load of a word of each lane."""
        ways = _wavefronts(self.position_steps, self.c.width, self.c.vector, self.elements)
        return ways * (2 if self.shifted else 1)

    # --- shared memory -------------------------------------------------------------------------------

    @property
    def w_bytes(self) -> int:
        """Of a tile: four steps of each channel."""
        return self.c.block_n * LINE_BYTES

    @property
    def made_words(self) -> float:
        """Of tiles of w that stay, by each thread that multiplies."""
        return self.c.block_n * self.panels * self.k_steps * STEP_WORDS / (self.c.consumers * WARPGROUP)

    @property
    def w_slots(self) -> int:
        """Sets of tiles of w: one for each tile of results that is worked on, unless they stay."""
        return 1 if self.resident else self.c.slots

    @property
    def w_at(self) -> int:
        return self.c.slots * self.c.x_stages * self.x_bytes

    @property
    def staging_at(self) -> int:
        return self.w_at + self.w_slots * self.c.w_stages * self.w_bytes

    @functools.cached_property
    def results(self) -> Results:
        """Those of 64 positions."""
        straight = self.g.y.dtype.itemsize == 4
        return Results(self.g, self.c.block_n, self.square, self.last.out, straight=straight)

    @property
    def stores(self) -> int:
        """Slabs that a warpgroup fills with a tile's results."""
        return self.c.tiles

    @property
    def mapped(self) -> bool:
        return self.results.mapped

    @property
    def barriers_at(self) -> int:
        return self.staging_at + self.c.consumers * self.c.slabs * self.results.slab_bytes

    @property
    def mbarriers(self) -> int:
        streamed = 0 if self.resident else self.c.w_stages
        return 2 * self.c.slots * (self.c.x_stages + streamed)

    @property
    def shared_bytes(self) -> int:
        return self.barriers_at + 8 * self.mbarriers

    # --- registers -----------------------------------------------------------------------------------

    @property
    def sums(self) -> int:
        """Of a thread."""
        return self.c.tiles * self.c.block_n // 2

    @property
    def registers(self) -> tuple[int, int]:
        """Of a thread that brings pixels and of one that multiplies: threads that copy keep what all start with."""
        if self.by_tma:
            return REGISTERS[self.c.consumers]
        launched = LAUNCHED_REGISTERS[self.c.consumers]
        return launched, launched

    @property
    def fragments(self) -> int:
        """Registers of x of a thread: two lines' steps."""
        return 2 * min(self.k_steps, STEPS_OF_LINE) * self.c.tiles * 4

    # --- work ----------------------------------------------------------------------------------------

    @property
    def units(self) -> int:
        """Subtiles of a batch element."""
        planes = math.prod(axis.out for axis in self.g.axes[: -len(self.inner)])
        return planes * math.prod(-(-a.out // s) for a, s in zip(self.inner, self.square, strict=True))

    @property
    def channel_tiles(self) -> int:
        return -(-self.g.m // self.c.block_n)

    def tiles(self, batch: int) -> int:
        """Of results."""
        return -(-batch * self.units // self.c.subtiles) * self.channel_tiles

    def blocks(self, batch: int, target: Target) -> int:
        """Blocks that are launched."""
        return wgmma_block.blocks(self.tiles(batch), self.channel_tiles, self.resident, target)


@functools.lru_cache(maxsize=4096)
def _wavefronts(steps: tuple[int, ...], width: int, vector: int, elements: int) -> float:
    """Mean of a warpgroup's warps: a load of several words is made for so many fewer lanes at a time."""
    lanes = LANES // vector
    count = 0
    for first in range(0, ROWS * QUARTER, lanes):
        words = set()
        for lane in range(first, first + lanes):
            row = lane // QUARTER
            place = row // width * steps[0] + row % width * steps[-1]
            words |= {place // elements + lane % QUARTER * vector + i for i in range(vector)}
        banks = [word % BANKS for word in words]
        count += max(map(banks.count, banks))
    return count * lanes / (ROWS * QUARTER)
