"""The cost model of `implicit_gemm`: what a config asks of the GPU, counted from the loops of its template."""

from __future__ import annotations

import math

from convgen.gather import Gather
from convgen.plan import extent_at
from convgen.problem import Conv, Sizes
from convgen.strategies import implicit_gemm_tiling as tiling
from convgen.strategies import phases
from convgen.strategies.cost_model import LAUNCH_SECONDS, Work, kernel_seconds, resident_blocks
from convgen.strategies.implicit_gemm_tiling import Access, ImplicitGemmConfig
from convgen.target import Target

LEGACY_FRACTION = 0.61
"""Of the tensor cores' rate from sm_90 on, what mma.sync reaches: the rest is wgmma's."""

THREAD, STEP, RESULT, STORE = 176, 29, 15.8, 7.8
"""Instructions of a thread outside its loops, of a step beside its loads, of a result and of a store of results."""

LOAD, TERM, CHECK, HELD = 3.2, 7.8, 4.3, 2.8
"""Instructions of a load, of finding a term, of checking and moving along an axis, of a load through registers."""

SPLIT = 6.8
"""Instructions that make two TF32 numbers of one fp32 number."""

LATENCY = 546
"""Cycles from a copy's issue to its arrival."""

HELD_WAIT = 458
"""Cycles that a step waits for loads through registers, which no stage hides."""

ALONE = 0.21
"""Of the products' time, what a block with a multiprocessor to itself waits at its barriers."""

MMA_WAIT = 8.4
"""Cycles from a warp's mma to one that needs its sum; with few of them in flight a warp waits for it."""


def seconds(problem: Conv, g: Gather, c: ImplicitGemmConfig, target: Target) -> float:
    """Predicted seconds of both kernels."""
    blocks = extent_at(tiling.column_tiles(g, c, g.groups * tiling.channel_tiles(g, c)), Sizes.of(n=g.typical_batch))
    # Phases differ in length: the work is theirs together, a block's that of the mean phase.
    lengths = math.prod(sum(phase.taps for phase in phases.phases(a)) for a in g.axes) / tiling.phase_count(g)
    steps = -(-g.q_size * lengths // c.block_k) if lengths else 0.0
    steps = max(math.ceil(steps / c.split_k), 1)
    blocks *= c.split_k
    warps = c.threads // 32
    item = g.x.dtype.itemsize
    depth = tiling.STEP_BYTES // item

    tiles = (c.warp_n // 16) * (c.warp_m // 8)
    mmas = steps * (c.block_k // depth) * tiles * c.products
    x, w = tiling.x_access(g), tiling.w_access(g)
    x_rounds, w_rounds = tiling.rounds(c.block_n, x, c), tiling.rounds(c.block_m, w, c)
    fragments = c.block_k // depth * (c.warp_n // 16 + c.warp_m // 16) * (1 if _by_ldmatrix(item, x, w) else 4)
    loads = _load_instructions(g, c, x, x_rounds, len(g.axes)) + _load_instructions(g, c, w, w_rounds, 0)
    instructions = mmas + steps * (STEP + loads + fragments) + THREAD
    if item == 4:
        converted = steps * (c.block_k // depth) * (c.warp_n // 16 * 4 + c.warp_m // 8 * 2)
        instructions += converted * (SPLIT if c.products == 3 else 1)
    results = c.block_m * c.block_n // c.threads
    instructions += RESULT * results + STORE * results / tiling.store(g, c)[1]

    traffic = steps * (c.block_n + c.block_m) * c.block_k * item
    wavefronts = fragments * steps * 4 + _wavefronts(x, x_rounds, item) * steps + _wavefronts(w, w_rounds, item) * steps
    partial = 4 * c.split_k * g.y.size if c.split_k > 1 else 0
    held = any(access.width * item < tiling.LEAST_ASYNC for access in (x, w))
    waits = steps * HELD_WAIT * held + steps * max(LATENCY / (c.stages - 1) - mmas / steps * MMA_WAIT / 2, 0) + LATENCY
    work = Work(
        blocks=blocks,
        threads=c.threads,
        warps=warps,
        registers=min(tiling.registers(g, c), 255),
        shared_bytes=tiling.shared_bytes(g, c),
        instructions=instructions,
        wavefronts=wavefronts,
        waits=waits,
        l2_bytes=blocks * traffic + partial,
        dram_bytes=problem.bytes,
        least_blocks=tiling.resident(g, c, target),
    )
    matrix = _matrix_seconds(work, mmas, depth, problem.dtype.value, target)
    total = math.hypot(kernel_seconds(work, target) - LAUNCH_SECONDS, matrix) + LAUNCH_SECONDS
    if partial:
        total += LAUNCH_SECONDS + 2 * partial / target.attainable.bandwidth
    return total


def _matrix_seconds(work: Work, mmas: float, depth: int, dtype: str, target: Target) -> float:
    """Of the tensor cores: the busiest multiprocessor's mma instructions at the rate of mma.sync."""
    rate = target.peak.tf32 if dtype in ("fp32", "tf32") else target.peak.of(dtype)
    rate *= LEGACY_FRACTION if target.compute_capability >= (9, 0) else 1.0
    cycles = 2 * 16 * 8 * depth * target.sm_count * target.clock_hz / rate
    per_sm = work.blocks / target.sm_count
    busiest = math.ceil(per_sm)
    taken = busiest if busiest <= 2 * resident_blocks(work, target) else per_sm + 0.5
    # One warp's mma alone do not fill a quarter of the multiprocessor.
    blocks = min(resident_blocks(work, target), busiest)
    idle = max(1.0, 1.4 / max(blocks * work.warps / 4, 0.25)) + (ALONE if blocks == 1 else 0.0)
    return taken * work.warps * mmas * cycles * idle / target.clock_hz


def _by_ldmatrix(item: int, *accesses: Access) -> bool:
    return item < 4 or all(access.along_terms for access in accesses)


def _load_instructions(g: Gather, c: ImplicitGemmConfig, access: Access, rounds: int, axes: int) -> float:
    item = g.x.dtype.itemsize
    held = HELD if access.loaded * item < tiling.LEAST_ASYNC else 0
    loads = rounds * access.pieces
    found = TERM * (access.pieces if access.along_terms else loads)
    return found + loads * (LOAD + CHECK * axes + held)


def _wavefronts(access: Access, rounds: int, item: int) -> float:
    """Lines of L1 and shared memory that a warp's loads of a tile touch."""
    if access.pieces > 1:  # four to a bank where threads go across the lines of the tile
        return rounds * (access.pieces + (1 if access.along_terms else 4))
    return rounds * max(access.width * item * 32 / 128, 1.0) * 2
