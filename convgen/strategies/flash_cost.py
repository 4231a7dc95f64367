"""The cost model of `flash_attention`: what a config asks of the GPU, counted from the loops of its template.

Rates of instructions are those of cost_model; constants are instructions, estimated from the compiled kernels of three
widths.
"""

from __future__ import annotations

import math

from convgen.problem import Attention
from convgen.problem.attention_words import Align
from convgen.strategies import flash_tiling as tiling
from convgen.strategies.cost_model import LAUNCH_SECONDS, Work, kernel_seconds
from convgen.strategies.flash_tiling import FlashAttentionConfig
from convgen.target import Target

MMA_SYNC = 0.37
"""Of the rate of tensor cores on a GPU whose full rate needs wgmma."""

THREAD, STEP, COPY = 1280, 132, 4.8
"""Instructions of a thread, of a step over keys, of a copy of 16 bytes to shared memory."""

SCORE, EXPONENT_CYCLES = 4.4, 6
"""Instructions of a score on its way to a weight, and cycles of its exponential."""

STEP_WAIT, BUFFERED_WAIT = 572, 246
"""Cycles that a step waits for its tiles, with one buffer for them and with more."""

START_WAIT = 1145
"""Cycles that a block waits for its rows and the first tile."""


def seconds(problem: Attention, c: FlashAttentionConfig, target: Target) -> float:
    """Predicted seconds of the kernel, and of the one that joins parts."""
    blocks = _blocks(problem, c)
    # Under a causal mask blocks differ: the longest takes its time however few the others are.
    total = max(
        _attend_seconds(problem, c, target, blocks, _steps(problem, c)),
        _attend_seconds(problem, c, target, min(blocks, target.sm_count), _most_steps(problem, c)),
    )
    if c.splits > 1:
        batch, queries, _ = problem.typical_sizes
        partial = 4.0 * c.splits * batch * problem.heads_q * queries * tiling.width_v(problem)
        total += LAUNCH_SECONDS + 2 * partial / target.attainable.bandwidth
    return total


def _attend_seconds(problem: Attention, c: FlashAttentionConfig, target: Target, blocks: int, steps: float) -> float:
    """Of `blocks` blocks of `steps` steps over keys each."""
    item = problem.dtype.itemsize
    width_k, width_v = tiling.width_k(problem, c), tiling.width_v(problem)
    rows, warp_keys = 16 * c.row_tiles, c.warp_keys
    copies = c.block_kv * (width_k + width_v) * item / 16 / c.threads
    scores = rows * warp_keys / 32
    pairs = rows * warp_keys * (width_k + width_v)
    if c.products == "mma":
        products = pairs / 2048
        loads = warp_keys * (width_k + width_v) / 256 + (0 if c.q_in_registers else rows * width_k / 256)
        wavefronts = 4 * loads
    else:
        products = pairs / 32
        loads = products / (2 * c.row_tiles) / 2
        wavefronts = 1.5 * loads
    per_step = products + loads + SCORE * scores + COPY * copies + STEP
    work = Work(
        blocks=blocks,
        threads=c.threads,
        warps=c.threads / target.warp,
        registers=tiling.registers(problem, c),
        shared_bytes=tiling.shared_bytes(problem, c),
        instructions=THREAD + 2 * c.row_tiles * width_v / 4 + steps * per_step,
        wavefronts=steps * (wavefronts + 4 * copies),
        waits=START_WAIT + steps * (STEP_WAIT if c.buffers == 1 else BUFFERED_WAIT),
        l2_bytes=blocks * _read_bytes(problem, c, steps),
        dram_bytes=problem.bytes,
        least_blocks=tiling.resident(problem, c, target),
    )
    pipes = _pipes(problem, c, target, blocks * steps * c.warps_q * c.warps_kv, pairs, scores)
    return math.hypot(kernel_seconds(work, target), pipes)


def l2_bytes(problem: Attention, c: FlashAttentionConfig) -> float:
    """What blocks read: their rows once, keys and values that any of the rows sees once a tile of rows."""
    return _blocks(problem, c) * _read_bytes(problem, c, _steps(problem, c))


def _read_bytes(problem: Attention, c: FlashAttentionConfig, steps: float) -> float:
    of_keys = steps * c.block_kv * (problem.head_dim + problem.head_dim_v)
    return (of_keys + c.block_q * problem.head_dim) * problem.dtype.itemsize


def _blocks(problem: Attention, c: FlashAttentionConfig) -> int:
    units = problem.typical_sizes[0] * problem.heads_q // tiling.pack(problem, c)
    return max(units * -(-tiling.row_count(problem, c) // c.block_q) * c.splits, 1)


def _steps(problem: Attention, c: FlashAttentionConfig) -> float:
    """Over keys, of a block on average."""
    _, queries, keys = problem.typical_sizes
    share = problem.visible_pairs / max(queries * keys, 1)
    margin = 0.5 * (c.block_q / tiling.pack(problem, c) + c.block_kv) / max(keys, 1) if share < 1 else 0.0
    return max(-(-min(share + margin, 1.0) * keys // c.block_kv) / c.splits, 1.0)


def _most_steps(problem: Attention, c: FlashAttentionConfig) -> float:
    """Of the block that sees the most keys, in the longest part of them."""
    _, queries, keys = problem.typical_sizes
    left, right = problem.window
    offset = keys - queries if problem.align is Align.BOTTOM_RIGHT else 0
    last = keys if right is None else min(max(queries + offset + right, 0), keys)
    seen = last if left is None else min(left + 1 + c.block_q // tiling.pack(problem, c) + (right or 0), last)
    return max(-(-seen // c.block_kv) / c.splits, 1.0)


def _pipes(
    problem: Attention, c: FlashAttentionConfig, target: Target, warp_steps: float, pairs: float, scores: float
) -> float:
    """Seconds of the tensor cores and of the exponentials, which hardly overlap within a warp."""
    exponentials = warp_steps * scores * EXPONENT_CYCLES / (4 * target.sm_count * target.clock_hz)
    if c.products != "mma":
        return exponentials
    rate = target.peak.of(problem.dtype.value) * (MMA_SYNC if target.compute_capability >= (9, 0) else 0.9)
    return math.hypot(2 * warp_steps * pairs / rate, exponentials)
