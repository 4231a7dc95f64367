"""The cost model of `wgmma_packed`: the busiest multiprocessor's tiles, one after the other."""

from __future__ import annotations

import math

from convgen.problem import Conv
from convgen.strategies.cost_model import LAUNCH_SECONDS
from convgen.strategies.wgmma_packed_tiling import PackedTiling
from convgen.target import Target

COLUMNS_PER_CYCLE = 2.45
"""Of a wgmma's 64 rows and 32 bytes of terms."""
STEP = 24
"""Cycles in which 64 rows' words of a step are loaded, however narrow the product."""
LATENCY = 950
"""Cycles from a call for a stage to its arrival."""
START = 1500
"""Cycles until the first tile has come, and from the last sum to its result in memory."""
TILE = 640
"""Cycles of a tile's results beside those that follow."""
RESULT = 5.6
"""Cycles a result of a thread."""
PANEL = 120
"""Cycles of a warpgroup from a stage's arrival to its first product."""
BYTES_PER_CYCLE = 70
"""From L2 to each multiprocessor by TMA."""
CALL = 35
"""Cycles of a call for a box."""
ROW = 2
"""Cycles of a row of a box."""
WORD = 12
"""Cycles in which each thread makes a word of the tiles of w that stay."""


def seconds(problem: Conv, t: PackedTiling, target: Target) -> float:
    """Predicted seconds of both kernels."""
    c, batch = t.c, t.g.batch_size
    turns = math.ceil(t.tiles(batch) / t.blocks(batch, target))
    slots = c.slots
    # Power, not the clock, sets the rate of long products.
    slowed = target.peak.of(problem.dtype.value) / target.attainable.of(problem.dtype.value)
    step = c.subtiles * max(c.block_n / COLUMNS_PER_CYCLE * slowed, STEP * (1 + t.shifted))
    boxes = c.subtiles
    loaded = t.x_bytes + (0 if t.resident else t.lines * t.w_bytes)
    rows = boxes * math.prod(t.box[1:] if not t.whole_pixels else t.box[2:])
    loads = max(loaded / BYTES_PER_CYCLE, boxes * CALL + rows * ROW)
    waits = LATENCY / max(c.x_stages * slots - 1, 0.5)
    if not t.resident:
        waits = max(waits, LATENCY * t.lines / max(c.w_stages * slots - 1, 0.5))
    panel = math.hypot(t.k_steps * step, waits, loads)
    products = t.panels * panel
    results = TILE + RESULT * t.sums
    alone = products + results + t.panels * PANEL
    cycles = START + turns * max(products, alone / slots) + (results if slots > 1 else 0)
    if t.resident:
        cycles += WORD * c.block_n * t.panels * t.k_steps * 8 / (c.consumers * 128)
    total = math.hypot(cycles / target.clock_hz, problem.bytes / target.attainable.bandwidth) + LAUNCH_SECONDS
    return total if t.resident else total + LAUNCH_SECONDS
