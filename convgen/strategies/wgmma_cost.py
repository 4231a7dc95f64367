"""The cost model of `wgmma_implicit_gemm`: the busiest multiprocessor's tiles, one after the other."""

from __future__ import annotations

import math
from collections.abc import Collection

from convgen.problem import Conv, DType
from convgen.strategies import wgmma_block, wgmma_runs
from convgen.strategies.cost_model import LAUNCH_SECONDS
from convgen.strategies.wgmma_tiling import Tiling
from convgen.target import Target

COLUMNS_PER_CYCLE = 2.28
"""Of a wgmma's 64 rows and 32 bytes of terms."""
LEAST_WGMMA = 33
"""Cycles of a wgmma, however narrow: its 64 rows come from shared memory."""
ALONE = 35
"""Cycles of a tap in which nothing is multiplied where one warpgroup multiplies."""
LATENCY = 880
"""Cycles from a call for a tile to its arrival."""
START = 420
"""Cycles until the first tile has come, and from the last sum to its result in memory."""
TILE = 680
"""Cycles of a tile's results beside those that follow."""
RESULT = 6
"""Cycles a result of a thread."""
STRAIGHT_RESULT = 16
"""Of one straight to y: the pairs of a warp are pieces of eight rows, and the memory unit takes a row a cycle."""
CLUSTER_START = 2500
"""Cycles in which a cluster's blocks start and end, one tile each."""
CLUSTER_RESULT = 15
"""Cycles a result of a thread whose parts lie in several blocks."""
STORE = 8
"""Cycles a store of a thread, where channels-first results leave by threads."""
PROMOTION = 0.6
"""Cycles of a thread's sum that goes on in fp32, where no other warpgroup multiplies meanwhile."""
TURN = 300
"""Cycles from the last product that a warpgroup gives to the next one's first, where they take turns in order."""
BYTES_PER_CYCLE = 86
"""From L2 to each multiprocessor by TMA."""
CALL = 35
"""Cycles of a call for a box."""
COPY = 40
"""Cycles of a warp from a copy of runs to its next: eight bytes a thread, which L1 takes in several turns."""
HAND_OVER = 150
"""Cycles in which a warp that copies finds a stage empty, and those that multiply fence what it brought."""
SPLIT = 20
"""Cycles of 64 pixels' step from shared memory through registers, two numbers each, that no product hides."""


def seconds(problem: Conv, t: Tiling, packed: Collection[str], target: Target) -> float:
    """Predicted seconds of all kernels; `packed`: the operands that are packed first, by one kernel."""
    c, batch = t.c, t.g.batch_size
    tiles, split = t.tiles(batch), t.split_tiles(batch, target)
    turns: float = math.ceil((tiles - split) / t.blocks(batch, target))
    if c.cluster > 1:
        turns = math.ceil(tiles / wgmma_block.clusters_at_a_time(c.cluster, target))
    if split:
        turns += math.ceil(split * c.split_k / target.sm_count) * t.panels_of_part / t.panels
    slots = c.slots
    # Power, not the clock, sets the rate of long products.
    unit = "tf32" if problem.dtype is DType.FP32 else problem.dtype.value
    slowed = target.peak.of(unit) / target.attainable.of(unit)
    steps = t.shared_groups * t.k_steps * c.subtiles
    wgmma = max(t.c.block_n / COLUMNS_PER_CYCLE, LEAST_WGMMA) * steps * t.products
    step = wgmma * slowed + ALONE * (c.consumers == 1) + SPLIT * steps * t.is_split
    if t.is_promoted and c.consumers == 1:
        step += PROMOTION * t.sums
    if c.copies:
        calls = HAND_OVER + wgmma_runs.copies(t) * COPY
    else:
        calls = {"rows": t.most_rows, "im2col": 1}.get(c.patches, c.subtiles) * CALL
    loaded = t.x_bytes + (0 if t.resident else t.taps * t.w_bytes)
    loads = max(loaded / BYTES_PER_CYCLE, calls)
    # One stage is multiplied, the others are on their way.
    waits = LATENCY * max(1 / max(c.x_stages - 1, 0.5), 0 if t.resident else t.taps / max(c.w_stages - 1, 0.5))
    panel = math.hypot(t.taps * step, waits, loads)
    results = _results(t)
    products = (t.panels_of_part if c.cluster > 1 else t.panels) * panel + (TURN if t.ordered else 0)
    tile = max(products, (products + results) / slots) if slots > 1 else products + results
    cycles = START + turns * tile + (results if slots > 1 else 0)
    if t.resident:
        cycles += t.w_tiles * t.w_bytes / BYTES_PER_CYCLE
    partial = c.split_k * split * t.part_bytes
    dram = (problem.bytes + partial) / target.attainable.bandwidth
    total = math.hypot(cycles / target.clock_hz, dram) + LAUNCH_SECONDS
    if partial:
        total += LAUNCH_SECONDS + 2 * partial / target.attainable.bandwidth
    return total + wgmma_block.packing_seconds(t.g, packed, target)


def _results(t: Tiling) -> float:
    """Cycles from a tile's sums to its results."""
    c = t.c
    if c.cluster > 1:
        return CLUSTER_START + CLUSTER_RESULT * t.sums
    cycles: float = TILE + (RESULT if c.slabs else STRAIGHT_RESULT) * t.sums
    if t.results.channels_first and not t.mapped:
        cycles += STORE * t.sums / (t.results.run if t.results.staged else 1)
    return cycles
