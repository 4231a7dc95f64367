"""The sizes of a halo tile: what follows from a problem and a config of `halo_tiled`."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from convgen.gather import Gather
from convgen.plan import Extent
from convgen.space import Config
from convgen.strategies import common
from convgen.strategies.halo import AxisBlock

BANKS = 32
BYTES_IN_FLIGHT = 160
ROW_REGISTERS = 32
UNROLLED_TERMS, UNROLLED_TERMS_OF_CHANNELS = 4096, 1024

Reads = tuple[tuple[int, int, int], int, int, int, int]
"""How a block reads its tile: its threads, elements a read, elements between neighbours along x, rows between those
along y and along z."""


@dataclass(frozen=True)
class HaloTiledConfig(Config):
    """The block's threads, what a thread computes, and how the tile is brought in."""

    threads_x: int
    """Threads along the last axis."""
    threads_y: int
    """Threads along the axis before it."""
    threads_channel: int
    """Threads along result channels (groups, where each has one channel)."""
    tile_w: int
    tile_h: int
    tile_d: int
    """Neighbouring positions a thread keeps along each axis."""
    tile_channel: int
    """Result channels a thread keeps."""
    chunk: int
    """Summed channels in shared memory at a time."""
    vector: int
    """Elements a load from global memory brings."""
    filter: str
    """"constant" or "shared"."""
    min_blocks: int
    """Blocks that are to fit a multiprocessor: what the compiler budgets registers for."""


@dataclass(frozen=True)
class AxisTile(AxisBlock):
    """The same with what a thread does: it computes `tile` neighbouring results and takes `reads` pixels."""

    tile: int
    reads: int


@dataclass(frozen=True)
class Tiling:
    """The sizes that follow from a problem and a config; in elements unless said otherwise."""

    g: Gather
    c: HaloTiledConfig

    @cached_property
    def per_group(self) -> bool:
        """True if groups play the part of result channels, because each has one."""
        return self.g.m == 1

    @cached_property
    def block_g(self) -> int:
        return self.c.threads_channel if self.per_group else 1

    @cached_property
    def block_m(self) -> int:
        return 1 if self.per_group else self.c.threads_channel * self.c.tile_channel

    @cached_property
    def threads_of_block(self) -> tuple[int, int, int]:
        return self.c.threads_x, self.c.threads_y, self.c.threads_channel

    @cached_property
    def threads(self) -> int:
        return math.prod(self.threads_of_block)

    @cached_property
    def planes(self) -> int:
        return self.block_g * self.c.chunk

    @cached_property
    def buffers(self) -> int:
        return 2 if self.g.q_size > self.c.chunk else 1

    @cached_property
    def planes_fastest(self) -> bool:
        """True if channels, not columns, are neighbours in x."""
        return self.g.axes[-1].x_stride != 1

    @cached_property
    def segment(self) -> int:
        """Taps of a row worked on at a time: as many as leave the row of pixels in registers."""
        last = self.g.axes[-1]
        fits = (s for s in range(last.taps, 1, -1) if last.taps % s == 0 and self._row(s) <= ROW_REGISTERS)
        return next(fits, 1)

    def _row(self, segment: int) -> int:
        last = self.g.axes[-1]
        return (self.c.tile_w - 1) * last.step + (segment - 1) * abs(last.spread) + 1

    @cached_property
    def lead(self) -> int:
        """Columns loaded ahead of the first that is needed, so that vector loads are aligned."""
        last = self.g.axes[-1]
        before = (last.taps - 1) * max(-last.spread, 0)
        return 0 if self.planes_fastest else (-last.offset - before) % self.c.vector

    @cached_property
    def skip(self) -> int:
        """Pixels a thread reads ahead of the first that it needs, so that its vector reads are aligned."""
        return self.lead % self.read

    @cached_property
    def read(self) -> int:
        """Elements of a vector read from the tile: a multiple of it lies between the rows of threads and segments."""
        last = self.g.axes[-1]
        starts = [self.c.tile_w * last.step] + [self.segment * abs(last.spread)] * (self.segment < last.taps)
        return common.power_dividing(math.gcd(*starts), 4)

    @cached_property
    def reads_w(self) -> int:
        return -(-(self.skip + self._row(self.segment)) // self.read) * self.read

    @cached_property
    def tiles(self) -> tuple[AxisTile, ...]:
        c = self.c
        sizes = {"w": (c.tile_w, c.threads_x), "h": (c.tile_h, c.threads_y), "d": (c.tile_d, 1)}
        tiles = [AxisTile(a, math.prod(sizes[a.name]), sizes[a.name][0], a.span(sizes[a.name][0])) for a in self.g.axes]
        return (*tiles[:-1], dataclasses.replace(tiles[-1], reads=self.reads_w))

    @cached_property
    def columns(self) -> int:
        """Columns loaded: those that are needed and those that vector reads touch."""
        c, last = self.c, self.g.axes[-1]
        touched = ((c.threads_x - 1) * c.tile_w * last.step + (last.taps - self.segment) * abs(last.spread)
                   + self.lead - self.skip + self.reads_w)  # fmt: skip
        vector = 1 if self.planes_fastest else c.vector
        return -(-max(self.lead + self.tiles[-1].span, touched) // vector) * vector

    @cached_property
    def pitch(self) -> int:
        """Elements from row to row, so that the first warp's reads have few bank conflicts."""
        step = max(self.read, 1 if self.planes_fastest else min(self.c.vector, 4))
        start = -(-self.columns // step) * step
        return _least_conflicting(range(start, start + BANKS, step), *self._reads)

    @cached_property
    def conflicts(self) -> int:
        """Words that the busiest bank delivers, one after the other, for a read of the first warp."""
        return _conflicts(self.pitch, *self._reads)

    @cached_property
    def _reads(self) -> Reads:
        rows = self.tiles[-2] if len(self.tiles) > 1 else None
        return (
            self.threads_of_block,
            self.read,
            self.c.tile_w * self.g.axes[-1].step,
            rows.tile * rows.axis.step if rows else 0,
            self.c.chunk * self.rows if self.per_group else 0,
        )

    @cached_property
    def rows(self) -> int:
        return math.prod(t.span for t in self.tiles[:-1])

    @cached_property
    def plane(self) -> int:
        """Elements from plane to plane, a multiple of 4 so that what follows the tile is aligned."""
        return -(-self.rows * self.pitch // 4) * 4

    @cached_property
    def line(self) -> int:
        """Loads of a line: a row of pixels, with all planes where channels are neighbours."""
        return self.columns * (self.planes if self.planes_fastest else 1) // self.c.vector

    @cached_property
    def lines(self) -> int:
        return self.rows * (1 if self.planes_fastest else self.planes)

    @cached_property
    def across(self) -> int:
        """Threads that load a line together."""
        return min(self.line, self.threads)

    @cached_property
    def down(self) -> int:
        """Lines loaded at a time."""
        return self.threads // self.across

    @cached_property
    def in_flight(self) -> int:
        """Loads a thread has under way at a time: all it does for a tile, or equal parts of it."""
        rounds = -(-self.lines // self.down)
        # From the second chunk on the sums are alive beside the loads.
        nbytes = BYTES_IN_FLIGHT // (3 if self.buffers > 1 else 1)
        most = min(10, nbytes // (self.c.vector * self.g.x.dtype.itemsize))
        return -(-rounds // -(-rounds // most))

    @cached_property
    def results(self) -> int:
        """Results of a thread."""
        return self.c.tile_channel * math.prod(t.tile for t in self.tiles)

    @cached_property
    def registers(self) -> int:
        """What a thread needs at least: its sums, a row of pixels, a row of taps or the loads in flight, addresses."""
        loads = self.in_flight * (self.c.vector * self.g.x.dtype.itemsize // 4 + 2) if self.buffers > 1 else 0
        weights = self.segment if self.c.filter == "shared" else 0
        return self.results + max(self.reads_w + weights, loads) + 12

    @cached_property
    def filter_read(self) -> int:
        taps = self.g.axes[-1].taps
        return (
            common.power_dividing(self.segment, 4)
            if self.segment < taps
            else min(4, common.power_of_two_at_least(taps))
        )

    @cached_property
    def filter_pitch(self) -> int:
        """Elements from one row of taps to the next in shared memory."""
        return -(-self.g.axes[-1].taps // self.filter_read) * self.filter_read

    @cached_property
    def filter_chunk(self) -> int:
        """Elements of the block's filter in shared memory, for one chunk."""
        taps = self.g.taps // self.g.axes[-1].taps * self.filter_pitch
        return self.block_g * self.block_m * self.c.chunk * taps if self.c.filter == "shared" else 0

    @cached_property
    def shared_bytes(self) -> int:
        return 4 * self.buffers * (self.planes * self.plane + self.filter_chunk)

    @cached_property
    def blocks(self) -> int:
        """Blocks of one batch element."""
        channel_blocks = -(-self.g.groups // self.block_g) * -(-self.g.m // self.block_m)
        return channel_blocks * math.prod(t.blocks for t in self.tiles)

    @cached_property
    def grid_x(self) -> Extent:
        return common.per_batch(self.g, self.blocks * self.g.batch_size)

    @cached_property
    def unrolled(self) -> list[str]:
        """Outer axes whose loop over rows of pixels is written out: from the innermost, while the body stays small."""
        names: list[str] = []
        terms = self.c.tile_channel * self.c.tile_w * self.segment
        # The compiler keeps weights that several rows of results use; those of several channels would spill.
        most = UNROLLED_TERMS_OF_CHANNELS if self.c.tile_channel > 1 else UNROLLED_TERMS
        for t in reversed(self.tiles[:-1]):
            terms *= t.axis.taps * t.tile
            if terms > most or self.segment < self.g.axes[-1].taps:
                break
            names.append(t.axis.name)
        return names

    @cached_property
    def store(self) -> tuple[str, int]:
        """What a store writes, "channels" or "positions" that are neighbours in y, and how many."""
        g, widest = self.g, 16 // self.g.y.dtype.itemsize
        last, rows = g.axes[-1], tuple((a.out, a.y_stride) for a in g.axes)
        outer = common.steps((g.batch, g.y_batch), (g.groups, g.y_group), *rows[:-1])
        if not self.per_group and g.y_m == 1:
            count = common.power_dividing(math.gcd(self.c.tile_channel, g.m), widest)
            if common.dense_pack(count, g.y_m, (*outer, *common.steps(rows[-1]))):
                return "channels", count
        count = common.power_dividing(math.gcd(self.c.tile_w, last.out), widest)
        dense = common.dense_pack(count, last.y_stride, (*outer, *common.steps((g.m, g.y_m))))
        return "positions", count if dense else 1


@functools.lru_cache(maxsize=8192)
def _least_conflicting(pitches: range, *reads: *Reads) -> int:
    """The first pitch whose product with the bank conflicts of the first warp's reads is the least."""
    best, least = pitches.start, math.inf
    for pitch in pitches:
        # Without any conflict the product is the pitch itself, so that no larger one is less.
        if pitch >= least:
            break
        product = pitch * _conflicts(pitch, *reads)
        if product < least:
            best, least = pitch, product
    return best


@functools.lru_cache(maxsize=8192)
def _conflicts(
    pitch: int, threads: tuple[int, int, int], read: int, across: int, rows_down: int, rows_deep: int
) -> int:
    x, y, z = threads
    addresses = [
        (i // x % y * rows_down + i // (x * y) * rows_deep) * pitch + i % x * across
        for i in range(min(BANKS, x * y * z))
    ]
    lanes = BANKS // read
    return max(_fullest_bank(addresses[first : first + lanes], read) for first in range(0, len(addresses), lanes))


def _fullest_bank(addresses: Sequence[int], read: int) -> int:
    """Distinct words that the busiest bank must deliver for one vector read."""
    words = {address + i for address in addresses for i in range(read)}
    counts = [0] * BANKS
    for word in words:
        counts[word % BANKS] += 1
    return max(counts)
