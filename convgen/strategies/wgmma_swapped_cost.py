"""The cost model of `wgmma_swapped`: the busiest multiprocessor's tiles, one after the other."""

from __future__ import annotations

import math
from collections.abc import Collection

from convgen.problem import Conv
from convgen.strategies import wgmma_block
from convgen.strategies.cost_model import LAUNCH_SECONDS
from convgen.strategies.wgmma_swapped_tiling import SwappedTiling
from convgen.target import Target

COLUMNS_PER_CYCLE = 2.27
"""Of a wgmma's 64 rows and 32 bytes of terms."""
LEAST_WGMMA = 37.8
"""Cycles of a wgmma, however narrow: its 64 rows come from shared memory."""
ALONE = 27.5
"""Cycles of a tap in which nothing is multiplied where one warpgroup multiplies."""
TOGETHER = 7.01
"""Cycles of a tap in which warpgroups that share a tile wait for each other."""
LATENCY = 854
"""Cycles from a call for a tile to its arrival."""
START = 288
"""Cycles until the first tile has come, and from the last sum to its result in memory."""
TILE = 426
"""Cycles of a tile's results beside those that follow."""
RESULT = 4.4
"""Cycles a result of a thread."""
SLAB = 119
"""Cycles of a slab that is filled and handed on."""
STRAIGHT_RESULT = 122
"""Cycles of a result of a thread that goes straight to y."""
COPIED_RESULT = 6.44
"""Further ones of one that a thread, not TMA, copies from its slab to y."""
CLUSTER_START = 3828
"""Cycles in which a cluster's blocks start and end, one tile each."""
SHARING = 1400
"""Cycles by which a cluster whose blocks share tiles starts and ends later than blocks alone do. What sharing spares L2
is not counted: of 38 layers it showed in four."""
CLUSTER_RESULT = 24.9
"""Cycles a result of a thread whose parts lie in several blocks."""
TURN = 296
"""Cycles from the last product that a warpgroup gives to the next one's first, where they take turns in order."""
BYTES_PER_CYCLE = 78.7
"""From L2 to each multiprocessor by TMA."""
CALL = 35
"""Cycles of a call for a box."""
PARTIAL = 0.744
"""Times that parts of sums cross memory at its rate."""


def seconds(problem: Conv, t: SwappedTiling, packed: Collection[str], target: Target) -> float:
    """Predicted seconds of all kernels; `packed`: the operands that are packed first, by one kernel."""
    c, batch = t.c, t.g.batch_size
    tiles, split = t.tiles(batch), t.split_tiles(batch, target)
    turns: float = math.ceil((tiles - split) / t.blocks(batch, target))
    if c.cluster > 1:
        turns = math.ceil(tiles / wgmma_block.clusters_at_a_time(c.cluster, target))
    if split:
        turns += math.ceil(split * c.split_k / target.sm_count) * t.panels_of_part / t.panels
    panel = _panel(problem, t, target)
    results = _results(t)
    products = (t.panels_of_part if c.cluster > 1 else t.panels) * panel + (TURN if t.ordered else 0)
    slots = c.slots
    tile = max(products, (products + results) / slots) if slots > 1 else products + results
    cycles = START + turns * tile + (results if slots > 1 else 0) + (SHARING if c.sharers > 1 else 0)
    if t.resident:
        cycles += t.w_tiles * t.w_bytes / BYTES_PER_CYCLE
    partial = c.split_k * split * t.part_bytes
    dram = (problem.bytes + partial) / target.attainable.bandwidth
    total = math.hypot(cycles / target.clock_hz, dram) + LAUNCH_SECONDS
    if partial:
        total += LAUNCH_SECONDS + PARTIAL * partial / target.attainable.bandwidth
    return total + wgmma_block.packing_seconds(t.g, packed, target)


def _panel(problem: Conv, t: SwappedTiling, target: Target) -> float:
    """Cycles of a panel's products, or of its tiles' way."""
    c = t.c
    # Power, not the clock, sets the rate of long products.
    slowed = target.peak.of(problem.dtype.value) / target.attainable.of(problem.dtype.value)
    wgmma = max(c.block_n / COLUMNS_PER_CYCLE, LEAST_WGMMA) * t.k_steps * c.subtiles
    step = wgmma * slowed + (ALONE if c.consumers == 1 else TOGETHER * c.sharing)
    boxes = t.most_rows if c.patches == "rows" else 1
    loaded = t.x_bytes + (0 if t.resident else t.taps * t.w_bytes)
    loads = max(loaded / BYTES_PER_CYCLE, boxes * CALL)
    # One stage is multiplied, the others are on their way.
    waits = LATENCY * max(1 / max(c.x_stages - 1, 0.5), 0 if t.resident else t.taps / max(c.w_stages - 1, 0.5))
    return math.hypot(t.taps * step, waits, loads)


def _results(t: SwappedTiling) -> float:
    """Cycles from a tile's sums to its results."""
    if t.c.cluster > 1:
        return CLUSTER_START + CLUSTER_RESULT * t.sums
    if not t.results.staged:
        return TILE + STRAIGHT_RESULT * t.sums
    return TILE + (RESULT + (0 if t.mapped else COPIED_RESULT)) * t.sums + SLAB * t.stores / t.c.slabs
