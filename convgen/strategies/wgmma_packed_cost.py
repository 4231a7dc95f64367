"""The cost model of `wgmma_packed`: the busiest multiprocessor's tiles, by what they ask and how long each takes.

A block works on as many tiles at a time as it has slots. So its multiprocessor needs as long as the products, words and
copies of all its tiles, or as long as the tiles of one slot take, each from its pixels' arrival to its results.
"""

from __future__ import annotations

import math

from convgen.problem import Conv
from convgen.strategies.cost_model import LAUNCH_SECONDS
from convgen.strategies.wgmma_packed_tiling import PackedTiling
from convgen.target import Target

COLUMNS_PER_CYCLE = 2.45
"""Of a wgmma's 64 rows and 32 bytes of terms."""
LEAST_WGMMA = 36
"""Cycles of a wgmma, however narrow."""
WAVEFRONT = 1.3
"""Cycles of shared memory for a wavefront of a warp's load."""
ALONE = 15
"""Cycles of a warp from a word's wavefront to the wgmma of its step."""
PANEL = 95
"""Cycles of a warpgroup from a stage's arrival to its first product."""
LATENCY = 400
"""Cycles from a call for a stage to its arrival."""
START = 620
"""Cycles until the first tile has come, and from the last sum to its result in memory."""
TILE = 480
"""Cycles of a tile's results beside those that follow."""
RESULT = 6.7
"""Cycles a result of a thread."""
BYTES_PER_CYCLE = 107
"""From L2 to each multiprocessor by TMA."""
CALL = 90
"""Cycles of a call for a box."""
ROW = 2.6
"""Cycles of a row of a box."""
COPIED_WORD = 250
"""Cycles of a thread that copies a word of pixels. Not measured."""
MADE_WORD = 130
"""Cycles of a thread that makes a word of the tiles of w that stay. Estimated: 370 while two were made at a time."""


def seconds(problem: Conv, t: PackedTiling, target: Target) -> float:
    """Predicted seconds of both kernels."""
    c, batch = t.c, t.g.batch_size
    turns = math.ceil(t.tiles(batch) / t.blocks(batch, target))
    steps = t.panels * t.k_steps
    # Power, not the clock, sets the rate of long products.
    slowed = target.peak.of(problem.dtype.value) / target.attainable.of(problem.dtype.value)
    columns = c.block_n / COLUMNS_PER_CYCLE * slowed
    # Of a step each thread of four warps loads four words.
    words = 16 * WAVEFRONT * t.wavefronts
    products = steps * c.subtiles * math.hypot(max(columns, LEAST_WGMMA), words)

    calls, loads = _copies(t)
    chain = t.panels * PANEL + steps * c.tiles * (columns + ALONE * t.wavefronts)
    # A stage is filled again once its words are in registers, a tile of w once the next one's products have begun.
    waits = (t.panels * (LATENCY + calls) + chain) / c.x_stages
    if not t.resident:
        waits = max(waits, (t.panels * t.lines * LATENCY + 2 * chain) / c.w_stages)
    alone = math.hypot(chain, waits) + TILE + RESULT * t.sums
    cycles = START + math.hypot(turns * products, turns * loads, math.ceil(turns / c.slots) * alone)
    if t.resident:
        cycles += MADE_WORD * t.made_words
    total = math.hypot(cycles / target.clock_hz, problem.bytes / target.attainable.bandwidth) + LAUNCH_SECONDS
    return total if t.resident else total + LAUNCH_SECONDS


def _copies(t: PackedTiling) -> tuple[float, float]:
    """Cycles of the calls for a panel's copies, and of a tile's copies."""
    calls = COPIED_WORD * t.copied_words
    if t.by_tma:
        calls = t.c.subtiles * (CALL + ROW * math.prod(t.box_rows))
    nbytes = t.x_bytes
    if not t.resident:
        calls += t.lines * CALL
        nbytes += t.lines * t.w_bytes
    return calls, t.panels * max(nbytes / BYTES_PER_CYCLE, calls)
