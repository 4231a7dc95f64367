"""The cost model of `im2col`: what a config asks of the GPU, counted from the loops of its template.

Constants are instructions or cycles, fitted to measured kernels of three problems on an H200 (tests/tables).
"""

from __future__ import annotations

from convgen.gather import Gather
from convgen.plan import extent_at
from convgen.problem import Conv, Sizes
from convgen.strategies import im2col_tiling as tiling
from convgen.strategies import matrix_form
from convgen.strategies.cost_model import LAUNCH_SECONDS, LINE, Work, kernel_seconds
from convgen.strategies.im2col_tiling import PACK, Chunks, Im2colConfig
from convgen.target import Target

THREAD, STEP, FRAGMENT, LOAD, IN_PLACE_LOAD = 100, 12, 3, 8, 12
"""Instructions of a thread, of a step from tile to tile, of a read of operands from shared memory, of a load of a pack
of a tile, and what the place of a pack of x takes beside."""

RESULT, STORE = 3, 2

STEP_WAIT = 210
"""Cycles that a step waits for the next tile."""

LOAD_WAVEFRONTS, TILE_WAVEFRONTS = 2.3, 1.5
"""Lines' worth of L1 that a line of a load takes, and a bank's turn of a store to the tile."""

UNROLL_THREAD, UNROLL_GATHER = 54, 16
"""Instructions of a thread of the unrolling, and of a pixel it gathers."""

REGISTERS = 6
"""Of a thread, beside what the strategy counts."""

KEPT = 0.5
"""Of L2, what holds the unrolled matrix between the kernel that writes it and the one that reads it."""


def seconds(problem: Conv, g: Gather, c: Im2colConfig, target: Target) -> float:
    """Predicted seconds of all kernels: the unrolling, the product and the sum of the parts."""
    chunks = tiling.chunks(problem, g, c)
    launches, parts = len(chunks.starts), c.split_k * chunks.parts
    item = g.x.dtype.itemsize
    matrix = 0 if c.patches == "in_place" else launches * g.groups * chunks.terms * chunks.columns * item
    spilled = max(matrix / launches - KEPT * target.l2_bytes, 0.0) * launches
    partial = 4 * parts * g.y.size if parts > 1 else 0

    work = _product(problem, g, c, chunks, target, dram_bytes=problem.bytes + spilled, l2_bytes=partial)
    total = kernel_seconds(work, target) + LAUNCH_SECONDS * (launches - 1)
    if matrix:
        total += LAUNCH_SECONDS * launches + _unrolling(g, c, chunks, matrix, target)
    if parts > 1:
        total += LAUNCH_SECONDS + 3 * partial / target.attainable.bandwidth
    return total


def _unrolling(g: Gather, c: Im2colConfig, chunks: Chunks, matrix: int, target: Target) -> float:
    along_terms, x_pack = tiling.matrix_access(g, c, chunks)
    gathers = PACK // x_pack if along_terms else PACK
    warps = matrix / g.x.dtype.itemsize / PACK / target.warp
    rate = target.peak.fp32 / (2 * target.warp)  # instructions of warps a second
    issue = warps * (UNROLL_THREAD + UNROLL_GATHER * gathers) / rate
    return max(issue, (matrix + g.x.nbytes) / target.attainable.bandwidth)


def _product(
    problem: Conv, g: Gather, c: Im2colConfig, chunks: Chunks, target: Target, *, dram_bytes: float, l2_bytes: float
) -> Work:
    item, half = g.x.dtype.itemsize, g.x.dtype.itemsize < 4
    in_place = c.patches == "in_place"
    along_terms, x_pack = tiling.matrix_access(g, c, chunks)
    tiles = len(chunks.starts) * extent_at(
        tiling.column_tiles(g, c, chunks, tiling.channel_tiles(g, c)), Sizes.of(n=g.typical_batch)
    )
    steps = -(-(chunks.terms // c.block_k) // c.split_k)
    terms = steps * c.block_k

    instructions = terms * c.thread_m * c.thread_n + STEP * steps + RESULT * c.thread_m * c.thread_n + THREAD
    wavefronts = 0.0
    # Of either operand: the extent of its tile, a thread's and a warp's share, how packs of it lie and are found.
    for extent, thread, lanes, along, pack, place in (
        (c.block_m, c.thread_m, 4, *matrix_form.filter_access(g), 0),
        (c.block_n, c.thread_n, 8, along_terms, x_pack if in_place else PACK, IN_PLACE_LOAD * in_place),
    ):
        run = min(thread, 4)
        instructions += FRAGMENT * terms * (thread // run)
        wavefronts += terms * (thread // run) * max(lanes * run / 32, 1.0)
        loads = steps * -(-(extent * c.block_k // pack) // c.threads)
        instructions += loads * (LOAD + place + pack * (1 + half))
        wavefronts += loads * LOAD_WAVEFRONTS * _lines((c.block_k if along else extent) // pack, pack * item)
        # Packs along the terms are stored element by element, with a conflict each.
        wavefronts += loads * TILE_WAVEFRONTS * (2 * pack if along else pack)
    stores = c.thread_m * c.thread_n / tiling.store(g, c, chunks)[1]
    return Work(
        blocks=tiles * c.split_k,
        threads=c.threads,
        warps=max(c.threads // target.warp, 1),
        registers=tiling.registers(g, c) + REGISTERS,
        shared_bytes=tiling.shared_bytes(c),
        instructions=instructions + STORE * stores,
        wavefronts=wavefronts + stores,
        waits=STEP_WAIT * steps,
        l2_bytes=l2_bytes + tiles * (c.block_m + c.block_n) * chunks.terms * item,
        dram_bytes=dram_bytes,
        least_blocks=tiling.resident(g, c, target),
    )


def _lines(packs: int, nbytes: int) -> float:
    """Lines of a warp's load of packs of `nbytes`, of which `packs` lie side by side."""
    lanes = min(packs, 32)
    return 32 / lanes * max(lanes * nbytes / LINE, 1.0)
