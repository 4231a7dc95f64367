"""The cost model of `halo_tiled`: what a config asks of the GPU, counted from the loops of its template.

Constants are instructions or cycles, fitted to measured kernels of three problems on an H200 (tests/tables).
"""

from __future__ import annotations

import math

from convgen.problem import Conv
from convgen.strategies.cost_model import CONSTANT_COPY_SECONDS, LINE, SECTOR, Work, kernel_seconds, pieces
from convgen.strategies.halo_tiling import BANKS, Tiling
from convgen.target import Target

THREAD, LOAD, STORE, RESULT = 80, 12, 4, 1.5
"""Instructions of a thread, of a load of pixels from global memory, of a store and of a result."""

ELEMENT, PIXELS, SHARED_WEIGHTS, ROW = 1.2, 0.6, 2.75, 1.5
"""Of an element brought to the tile, of a read of pixels and of weights from it, of a row of pixels."""

FILTER_ELEMENT = 64
"""Of an element of the filter brought to shared memory: its place is found by divisions."""

LOAD_WAIT, BARRIER = 3000, 60
"""Cycles from the loads of a thread to their arrival, with all blocks loading; of a barrier."""

OVERLAPPED = 0.6
"""Of that wait, what the products of the chunk before do not hide."""

STORE_WAVEFRONTS, TILE_WAVEFRONTS = 1.6, 0.3
"""Lines' worth of L1 that a line of a store takes, and an element brought to the tile."""

L2_BYTES = 2.7
"""Of L2 traffic for a byte of a tile: the rows of tiles are short, and loads of cold memory wait."""

REGISTERS = 24
"""Of a thread, beside what a config needs."""


def seconds(problem: Conv, t: Tiling, target: Target) -> float:
    """Predicted seconds of the kernel and the copy to constant memory."""
    return kernel_seconds(_work(problem, t, target), target) + CONSTANT_COPY_SECONDS * (t.c.filter == "constant")


def _work(problem: Conv, t: Tiling, target: Target) -> Work:
    g, c, last = t.g, t.c, t.g.axes[-1]
    item, half = g.x.dtype.itemsize, g.x.dtype.itemsize < 4
    blocks = t.blocks * g.batch_size
    chunks = -(-g.q_size // c.chunk)

    segments = last.taps // t.segment
    rows = g.q_size * math.prod(tile.reads for tile in t.tiles[:-1]) * segments
    reads = rows * (t.reads_w // t.read)
    # Where the rows of pixels are written out, the compiler keeps a weight for all rows of results.
    written_out = len(t.unrolled) == len(t.tiles) - 1
    times = 1 if written_out else t.results // (c.tile_w * c.tile_channel)
    weights = g.q_size * c.tile_channel * (g.taps // last.taps) * times * segments
    loads = chunks * -(-t.line // t.across) * -(-t.lines // t.down)
    filter_loads = chunks * -(-t.filter_chunk // t.threads)
    run = t.store[1]
    stores = t.results // run

    if c.filter == "shared":
        weight_reads = weights * -(-t.segment // t.filter_read)
        weight_instructions, weight_lines = SHARED_WEIGHTS * weight_reads, weight_reads
    else:
        weight_instructions, weight_lines = weights * t.segment * (1 + half), 0
    instructions = (
        t.results * g.taps * g.q_size
        + PIXELS * reads
        + weight_instructions
        + loads * (LOAD + (ELEMENT + half) * c.vector)
        + FILTER_ELEMENT * filter_loads
        + STORE * stores
        + RESULT * t.results
        + ROW * rows * (1 if written_out else 3)
        + THREAD
    )
    wait = LOAD_WAIT * loads / max(t.in_flight, 1) / chunks
    groups_filled = g.groups / (-(-g.groups // t.block_g) * t.block_g)
    return Work(
        blocks=blocks,
        threads=t.threads,
        warps=-(-t.threads // target.warp) * groups_filled,
        registers=t.registers + REGISTERS,
        shared_bytes=t.shared_bytes,
        instructions=instructions,
        wavefronts=reads * t.read * t.conflicts
        + weight_lines
        + loads * (_load_lines(t, item) + TILE_WAVEFRONTS * c.vector)
        + 2 * filter_loads
        + stores * _store_lines(t, run) * STORE_WAVEFRONTS,
        waits=wait * (1 + OVERLAPPED * (chunks - 1)) + BARRIER * chunks,
        l2_bytes=L2_BYTES * blocks * chunks * t.planes * t.rows * t.columns * item * _waste(t, item)
        + g.y.nbytes
        + blocks * chunks * t.filter_chunk * item,
        dram_bytes=problem.bytes,
        least_blocks=c.min_blocks,
    )


def _load_lines(t: Tiling, item: int) -> float:
    """Lines of a load of pixels: a warp spans several rows of the tile where these are short."""
    lanes = min(BANKS, t.across)
    return BANKS / lanes * max(lanes * t.c.vector * item / LINE, 1.0)


def _store_lines(t: Tiling, run: int) -> float:
    g, c, item = t.g, t.c, t.g.y.dtype.itemsize
    lanes_y = max(min(c.threads_y, BANKS // c.threads_x), 1)
    lanes_z = max(BANKS // (c.threads_x * c.threads_y), 1)
    down = g.axes[-2].y_stride * c.tile_h if len(g.axes) > 1 else 0
    channel = g.y_group if t.per_group else g.y_m * c.tile_channel
    return pieces(
        item * run,
        (min(c.threads_x, BANKS), g.axes[-1].y_stride * c.tile_w * item),
        (lanes_y, down * item),
        (lanes_z, channel * item),
    )


def _waste(t: Tiling, item: int) -> float:
    """Bytes of the sectors that a tile's runs of memory touch, over those it takes."""
    if t.planes_fastest:
        return max(SECTOR / (t.planes * item), 1.0)
    return 1 + SECTOR / (t.columns * item)
