"""The cost models of batch normalisation: what a config asks of the GPU, counted from the loops of its templates.

Memory sets the time of nearly all of them, so constants are rough: instructions of a warp, or cycles.
"""

from __future__ import annotations

import math

from convgen.problem import BatchNorm
from convgen.strategies.cost_model import Work, kernel_seconds, pieces
from convgen.strategies.normalisation import Tiled, View
from convgen.target import Target

THREAD, ITEM = 60, 12
"""Instructions of a thread, and of an item: where it lies, whether it exists, its load and its store."""

SUM, SQUARE, NORMALISE, COMBINE = 2, 3, 4, 30
"""Instructions of a value in each pass, and of combining what a thread loads together with what it has."""

LOAD_WAIT, SUM_WAIT = 800, 150
"""Cycles a thread waits for a round of loads from memory, and for the sum of a block."""

REGISTERS = 28


def one_read_seconds(problem: BatchNorm, v: View, c: Tiled, items: int, shared_bytes: int, target: Target) -> float:
    """Of the kernel that holds `items` items a thread, in registers if no shared memory is counted for them."""
    values = items * v.vector
    held = values * v.itemsize / 4 if shared_bytes < values * v.itemsize * c.threads_channel * c.threads_item else 0
    work = _work(
        problem, v, c, target,
        blocks=v.channel_blocks(c.threads_channel),
        registers=REGISTERS + held + 4 * v.lanes,
        shared_bytes=shared_bytes,
        instructions=THREAD + items * ITEM + values * (SUM + SQUARE + NORMALISE),
        items=2 * items * (1 + problem.residual / 2),
        waits=LOAD_WAIT + 2 * SUM_WAIT,
        dram_bytes=problem.bytes,
    )  # fmt: skip
    return kernel_seconds(work, target)


def statistics_seconds(problem: BatchNorm, v: View, c: Tiled, unroll: int, parts: int, target: Target) -> float:
    """Of the first of two passes."""
    items, rounds = _of_thread(problem, v, c, unroll, parts)
    x = problem.inputs[0].nbytes
    work = _work(
        problem, v, c, target,
        blocks=v.channel_blocks(c.threads_channel) * parts,
        registers=REGISTERS + unroll * v.vector * v.itemsize / 4 + 3 * v.lanes,
        shared_bytes=0,
        instructions=THREAD + items * (ITEM + v.vector * (SUM + SQUARE)) + rounds * COMBINE * v.lanes**0.5,
        items=items,
        waits=rounds * LOAD_WAIT + 2 * SUM_WAIT,
        dram_bytes=x + 8 * parts * problem.c,
    )  # fmt: skip
    return kernel_seconds(work, target)


def normalise_seconds(problem: BatchNorm, v: View, c: Tiled, unroll: int, parts: int, target: Target) -> float:
    """Of the last pass, which in training finds in L2 what fits there of x."""
    items, rounds = _of_thread(problem, v, c, unroll, parts)
    x = problem.inputs[0].nbytes
    kept = min(x, target.l2_bytes // 2) if problem.is_training else 0
    work = _work(
        problem, v, c, target,
        blocks=v.channel_blocks(c.threads_channel) * parts,
        registers=REGISTERS + unroll * v.vector * v.itemsize / 4 * (1 + problem.residual) + 3 * v.lanes,
        shared_bytes=0,
        instructions=THREAD + items * (ITEM + v.vector * NORMALISE),
        items=items * (2 + problem.residual),
        waits=rounds * LOAD_WAIT + problem.is_training * 2 * SUM_WAIT,
        dram_bytes=problem.bytes - kept + 8 * parts * problem.c * problem.is_training,
    )  # fmt: skip
    return kernel_seconds(work, target)


def _of_thread(problem: BatchNorm, v: View, c: Tiled, unroll: int, parts: int) -> tuple[float, int]:
    part = -(-max(problem.typical_batch * v.image_items, 1) // parts)
    items = -(-part // c.threads_item)
    return items, -(-items // unroll)


def _work(
    problem: BatchNorm,
    v: View,
    c: Tiled,
    target: Target,
    *,
    blocks: int,
    registers: float,
    shared_bytes: int,
    instructions: float,
    items: float,
    waits: float,
    dram_bytes: float,
) -> Work:
    threads = c.threads_channel * c.threads_item
    access = v.vector * v.itemsize
    if v.rows:
        across = min(c.threads_channel, target.warp)
        lanes = (across, access), (target.warp // across, v.channels * v.itemsize)
    else:
        along = min(c.threads_item, target.warp, max(v.image_items, 1))
        lanes = (along, access), (target.warp // along, v.positions * v.itemsize)
    lines = pieces(access, *lanes)
    sectors = pieces(access, *lanes, size=32) * 32 / (access * target.warp)
    return Work(
        blocks=blocks,
        threads=threads,
        warps=math.ceil(threads / target.warp),
        registers=registers,
        shared_bytes=shared_bytes,
        instructions=instructions,
        wavefronts=items * lines,
        waits=waits,
        l2_bytes=problem.bytes * max(sectors, 1.0),
        dram_bytes=dram_bytes,
    )
