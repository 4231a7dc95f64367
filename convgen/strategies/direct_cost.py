"""The cost model of `direct`: what a config asks of the GPU, counted from the loops of its template.

Constants are instructions or cycles, fitted to measured kernels of five problems on an H200 (tests/tables).
"""

from __future__ import annotations

import math

from convgen.gather import Gather
from convgen.problem import Conv
from convgen.strategies import common
from convgen.strategies import direct_tiling as tiling
from convgen.strategies.cost_model import (
    CONSTANT_COPY_SECONDS,
    LAUNCH_SECONDS,
    SECTOR,
    Work,
    kernel_seconds,
    pieces,
)
from convgen.strategies.direct_tiling import DirectConfig
from convgen.target import Target

THREAD, LOOP, ROW, LOAD, STORE = 60, 17, 4, 3, 4
"""Instructions of a thread, of a pass of the innermost loop that is not written out, of a row of taps, of a load of
pixels (where it lies, whether it exists) and of a store."""

ELEMENT, TERM_TEST = 3.5, 0.6
"""Of each loaded pixel: chosen or zero; of each product whose pixel may not exist."""

INTEGER_PRODUCT = 2
"""Issue slots of an int32 multiply-add, which has half of fp32's rate."""

CONSTANT_WEIGHT, SHARED_WEIGHT = 0.7, 17
"""Of reading a weight from constant memory; of bringing one to shared memory."""

LOAD_WAIT = 270
"""Cycles a pass waits for its loads."""

ISSUE_WAVEFRONTS, STORE_WAVEFRONTS, TEXTURE_WAVEFRONTS = 0.3, 6.0, 2.0
"""Lines' worth of L1 that an access takes beside its lines; that a line of a store does; the least of a texture's."""

REREAD = 0.3
"""Of x, by every block of channels, that L1 does not have."""

REGISTERS, REGISTERS_PER_PIXEL = 24, 0.7


def seconds(problem: Conv, g: Gather, c: DirectConfig, target: Target) -> float:
    """Predicted seconds of the kernel, the copy to constant memory and the sum of the parts."""
    parts = c.split_q * c.split_taps
    total = kernel_seconds(_work(problem, g, c, target), target)
    return total + CONSTANT_COPY_SECONDS * (c.filter == "constant") + LAUNCH_SECONDS * (parts > 1)


def _work(problem: Conv, g: Gather, c: DirectConfig, target: Target) -> Work:
    parts = c.split_q * c.split_taps
    batches = max(min(c.tile_b, g.batch_size), 1)
    lanes = _Lanes(g, c, target)
    tile_g, tiled, window = tiling.tile_g(g, c), tiling.tile_axis(g, c), tiling.window(g, c)
    item, half = g.x.dtype.itemsize, g.x.dtype.itemsize < 4

    split = tiling.split_axis(g)
    taps = {a.name: -(-a.taps // c.split_taps) if a.name == split else a.taps for a in g.axes}
    passes = max(-(-(g.q_size // c.vector) // c.split_q), 1) * batches
    unrolled = tiling.unrolled(g, c)
    loops = passes * math.prod(count for name, count in taps.items() if name not in unrolled)
    rows = passes * math.prod(taps.values()) // max(taps[tiled.name], 1)
    computed = rows * lanes.existing  # those that a warp does not skip
    weights = computed * taps[tiled.name] * c.tile_channel

    packed = tiling.reads_channel_packs(g, c)
    elements_a_load = c.vector if c.vector > 1 else tile_g if packed else 1
    pixels = window or taps[tiled.name] * c.tile_position
    loads = computed * pixels * (tile_g if elements_a_load == 1 else 1)
    load_lines = lanes.pixels(item * elements_a_load)
    if c.input == "texture":
        load_lines = max(load_lines, TEXTURE_WAVEFRONTS)

    whole = c.vector > 1 and c.filter == "global" and common.dense_pack(c.vector, g.w_q, tiling.other_w_strides(g))
    reads = weights * (1 if whole else c.vector)
    weight_lines = 0.0
    converted = loads * elements_a_load
    instructions = loads * (LOAD + ELEMENT * elements_a_load)
    if c.filter == "constant":
        instructions += CONSTANT_WEIGHT * reads
        converted += reads
    else:
        shared = c.filter == "shared"
        instructions += reads
        weight_lines = reads * ((lanes.shared_weights() if shared else lanes.weights(whole)) + ISSUE_WAVEFRONTS)
        converted += 0 if shared else weights * c.vector
    products = weights * c.tile_position * c.vector
    store = tiling.store(g, c)
    results = c.tile_channel * c.tile_position * batches
    stores = results / {"channels": c.tile_channel, "positions": c.tile_position, "elements": 1}[store]
    store_lines, waste = lanes.results(store)
    brought = tiling.shared_bytes(g, c) / 4 / math.prod(tiling.block(c)) if c.filter == "shared" else 0.0

    instructions += (
        products * ((INTEGER_PRODUCT if problem.dtype.is_integer else 1) + TERM_TEST * g.terms_vanish)
        + converted * half
        + ROW * rows
        + LOOP * loops
        + STORE * stores
        + results
        + SHARED_WEIGHT * brought
        + THREAD
    )
    wavefronts = loads * (load_lines + ISSUE_WAVEFRONTS) + weight_lines + stores * store_lines * STORE_WAVEFRONTS
    stored = g.y.nbytes if parts == 1 else 4 * g.y.size
    return Work(
        blocks=lanes.channel_blocks * lanes.column_blocks * parts,
        threads=math.prod(tiling.block(c)),
        warps=lanes.live_warps,
        registers=REGISTERS
        + c.tile_channel * c.tile_position
        + REGISTERS_PER_PIXEL * (window or c.tile_position) * tile_g * c.vector
        + (c.tile_channel * c.vector if whole else 1),
        shared_bytes=tiling.shared_bytes(g, c) if c.filter == "shared" else 0,
        instructions=instructions,
        wavefronts=wavefronts,
        waits=LOAD_WAIT * loops + wavefronts,
        l2_bytes=REREAD * g.x.nbytes * (lanes.channel_blocks if g.m > 1 else 1)
        + g.w.nbytes * lanes.column_blocks
        + stored * waste,
        dram_bytes=problem.bytes + (8 * parts * g.y.size if parts > 1 else 0),
    )


class _Lanes:
    """How the threads of a block and of its warps lie over channels and columns."""

    def __init__(self, g: Gather, c: DirectConfig, target: Target) -> None:
        self.g, self.c = g, c
        tile_g, tile_m, tiled = tiling.tile_g(g, c), tiling.tile_m(g, c), tiling.tile_axis(g, c)
        self.last, self.before = g.axes[-1], g.axes[-2] if len(g.axes) > 1 else None
        self.tiles_last = tiled is self.last
        tiles = -(-tiled.out // c.tile_position)
        channels = max(-(-g.groups // tile_g) * -(-g.m // tile_m), 1)
        columns = max(g.out // max(tiled.out, 1) * tiles * -(-g.batch_size // c.tile_b), 1)
        self.channel_blocks = -(-channels // c.threads_channel)
        self.column_blocks = -(-columns // c.threads_column)

        along = (c.threads_channel, channels / self.channel_blocks), (c.threads_column, columns / self.column_blocks)
        (x, live_x), (y, live_y) = along if c.along_x == "channel" else along[::-1]
        lanes_x = min(x, target.warp)
        lanes_y = min(target.warp // lanes_x, y)
        self.live_warps = max(math.ceil(live_x / lanes_x) * math.ceil(live_y / lanes_y), 1)
        lanes_channel, lanes_column = (lanes_x, lanes_y) if c.along_x == "channel" else (lanes_y, lanes_x)
        self.channel = min(lanes_channel, channels)
        across = tiles if self.tiles_last else self.last.out
        self.column, self.row = min(lanes_column, across), -(-lanes_column // max(across, 1))
        # A warp skips a row of taps that does not exist where its lanes agree on that.
        self.existing = 1.0
        for axis in g.axes:
            apart = self.column if axis is self.last else self.row
            if axis is not tiled and apart == 1:
                self.existing /= axis.divisor

    def pixels(self, access: int) -> float:
        """Lines of a load of pixels."""
        g, c = self.g, self.c
        item = g.x.dtype.itemsize
        step = self.last.step * self.last.x_stride / self.last.divisor * (c.tile_position if self.tiles_last else 1)
        down = float(g.x_batch)
        if self.before is not None:
            down = self.before.step * self.before.x_stride / self.before.divisor
            down *= 1 if self.tiles_last else c.tile_position
        group = tiling.tile_g(g, c) * g.x_group if g.m == 1 else 0
        return pieces(access, (self.channel, group * item), (self.column, step * item), (self.row, down * item))

    def weights(self, whole: bool) -> float:
        """Lines of a load of weights from global memory."""
        g, c = self.g, self.c
        item = g.w.dtype.itemsize
        apart = tiling.tile_m(g, c) * g.w_m if g.m > 1 else tiling.tile_g(g, c) * g.w_group
        return pieces(item * (c.vector if whole else 1), (self.channel, apart * item))

    def shared_weights(self) -> float:
        """Bank conflicts of a read of weights from shared memory."""
        apart = self.c.tile_channel * self.g.q_size * self.g.taps
        return max(self.channel * math.gcd(apart, 32) / 32, 1.0)

    def results(self, store: str) -> tuple[float, float]:
        """Lines of a store, and the bytes of its sectors over those it writes."""
        g, c = self.g, self.c
        item = g.y.dtype.itemsize if c.split_q * c.split_taps == 1 else 4
        access = item * {"channels": c.tile_channel, "positions": c.tile_position, "elements": 1}[store]
        apart = tiling.tile_m(g, c) * g.y_m if g.m > 1 else tiling.tile_g(g, c) * g.y_group
        step = self.last.y_stride * (c.tile_position if self.tiles_last else 1)
        down = self.before.y_stride if self.before is not None else 0
        lanes = (self.channel, apart * item), (self.column, step * item), (self.row, down * item)
        written = access * min(self.channel * self.column * self.row, 32)
        return pieces(access, *lanes), pieces(access, *lanes, size=SECTOR) * SECTOR / written
