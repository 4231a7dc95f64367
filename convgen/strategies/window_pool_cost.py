"""The cost model of `window_pool`: what a config asks of the GPU, counted from the loops of its template.

Memory sets the time of nearly all poolings, so constants are rough: instructions of a warp, or cycles.
"""

from __future__ import annotations

import math

from convgen.problem import Pool
from convgen.strategies import pooling
from convgen.strategies.cost_model import Work, kernel_seconds, pieces
from convgen.strategies.pooling import PoolAxis
from convgen.target import Target

THREAD, LOAD, EXISTS, STORE, DIVIDE = 60, 2, 2, 4, 10
"""Instructions of a thread, of a load, of asking whether its pixel exists, of a store, and of a division."""

LOAD_WAIT = 600
"""Cycles a row of pixels takes to come, where the loop over rows is not written out."""

REGISTERS, HELD = 24, 1.0
"""Of a thread; and of the pixels that it reads in one go, the share that the compiler has in registers at a time."""


def seconds(
    problem: Pool,
    axes: tuple[PoolAxis, ...],
    block: int,
    threads: int,
    vector: int,
    windowed: bool,
    target: Target,
) -> float:
    """Predicted seconds of the kernel of `threads` threads, `block` to a block."""
    channels_last = pooling.is_channels_last(problem)
    item = problem.dtype.itemsize
    w, outer = axes[-1], axes[:-1]
    lanes = vector if channels_last else 1
    rows = math.prod(axis.span if axis.tile > 1 else axis.taps for axis in outer)
    tile_h = axes[-2].tile if len(axes) > 1 else 1
    columns = w.span if windowed else w.taps
    loads = rows * -(-columns // (1 if channels_last else vector))
    folds = rows * w.taps * w.tile * lanes + math.prod(axis.taps for axis in outer) * tile_h * w.tile * lanes
    results = tile_h * w.tile * lanes
    checked = any(axis.checked for axis in axes)
    instructions = (
        THREAD
        + loads * (LOAD + EXISTS * checked)
        + folds
        + rows * columns * lanes * ((item < 4) + checked)
        + results * (1 + (0 if problem.is_max else DIVIDE))
        + STORE * tile_h * w.tile
    )
    access, stored = item * vector, item * (lanes if channels_last else min(w.tile, 4))
    if channels_last:
        across = min(problem.c // vector, target.warp)
        near = (across, access), (target.warp // max(across, 1), w.tile * w.step * problem.c * item)
        apart = (across, access), (target.warp // max(across, 1), w.tile * problem.c * item)
    else:
        along = min(-(-w.out // w.tile), target.warp)
        below = axes[-2].tile * axes[-2].step * w.source if len(axes) > 1 else w.source
        near = (along, w.tile * w.step * item), (target.warp // along, below * item)
        apart = (along, w.tile * item), (target.warp // along, w.out * item)
    stores = results * item / stored
    wavefronts = loads * pieces(access, *near) + stores * pieces(stored, *apart)
    rounds = 1 if rows * columns <= 192 else rows
    # Rows that tiles share are read by each of them; L1 keeps most.
    reread = math.prod(max(axis.span / (axis.tile * axis.step), 1.0) for axis in axes)
    return kernel_seconds(
        Work(
            blocks=-(-threads // block),
            threads=block,
            warps=block / target.warp,
            registers=REGISTERS + results + HELD * rows / rounds * columns * lanes,
            shared_bytes=0,
            instructions=instructions,
            wavefronts=wavefronts,
            waits=rounds * LOAD_WAIT + wavefronts,
            l2_bytes=problem.inputs[0].nbytes * (1 + 0.3 * (reread - 1)) + problem.outputs[0].nbytes,
            dram_bytes=problem.bytes,
        ),
        target,
    )
