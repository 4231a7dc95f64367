"""The cost model of `cache_halo`: what a config asks of the GPU, counted from the loops of its template.

Constants are instructions or cycles, fitted to measured kernels of one problem on an H200 (tests/tables).
"""

from __future__ import annotations

import math

from convgen.gather import Gather
from convgen.plan import extent_at
from convgen.problem import Conv, Sizes
from convgen.strategies import cache_halo_tiling as tiling
from convgen.strategies.cache_halo_tiling import AxisCore, CacheHaloConfig
from convgen.strategies.cost_model import CONSTANT_COPY_SECONDS, Work, kernel_seconds, pieces
from convgen.target import Target

THREAD, LOOP, LOAD, READ, RESULT = 80, 8, 16, 4, 4
"""Instructions of a thread, of a pass of the innermost loop that is not written out, of a load to the core, of a read
of a pixel and of a result."""

HALO_READ = 20
"""Instructions more where a lane of the warp is in the halo, since the warp then goes both ways."""

CONSTANT_WEIGHT, WEIGHT_WAVEFRONTS = 0.6, 0.4

HALO_WAIT, LOOP_WAIT, CHUNK_WAIT = 140, 33, 300
"""Cycles a thread waits for pixels of the halo, for those of a pass, and for the core of the next chunk."""

REREAD = 0.5
"""Of the pixels a block reads, those that L1 does not have."""

REGISTERS = 30


def seconds(problem: Conv, g: Gather, c: CacheHaloConfig, target: Target) -> float:
    """Predicted seconds of the kernel and the copy to constant memory."""
    return kernel_seconds(_work(problem, g, c, target), target) + CONSTANT_COPY_SECONDS * (c.filter == "constant")


def _work(problem: Conv, g: Gather, c: CacheHaloConfig, target: Target) -> Work:
    item, half = g.x.dtype.itemsize, g.x.dtype.itemsize < 4
    cores, constant = tiling.cores(g, c), c.filter == "constant"
    threads = math.prod(tiling.block(c))
    blocks = extent_at(tiling.grid_x(g, c), Sizes.of(n=g.typical_batch))
    unrolled = tiling.unrolled(g, c)
    loops = g.q_size * math.prod(a.taps for a in g.axes if a.name not in unrolled)
    reads = g.q_size * g.taps
    weights = reads * c.tile_channel
    loads = g.q_size * tiling.core_elements(g, c) / threads

    lanes_x = min(c.threads_x, target.warp)
    lanes_y = min(max(target.warp // c.threads_x, 1), c.threads_y)
    lanes_z = min(max(target.warp // (c.threads_x * c.threads_y), 1), c.threads_z)
    mixed = 1 - math.prod(
        _in_core(core, lanes) for core, lanes in zip(reversed(cores), (lanes_x, lanes_y, lanes_z), strict=False)
    )
    down = g.axes[-2].x_stride * item if len(g.axes) > 1 else 0
    lines = pieces(item, (lanes_x, g.axes[-1].x_stride * g.axes[-1].step * item), (target.warp // lanes_x, down))
    span = math.prod(core.span for core in cores)
    return Work(
        blocks=blocks,
        threads=threads,
        warps=-(-threads // target.warp),
        registers=REGISTERS + 2 * c.tile_channel,
        shared_bytes=tiling.shared_bytes(g, c),
        instructions=weights * (1 + (CONSTANT_WEIGHT if constant else 1))
        + reads * (READ + half + HALO_READ * mixed)
        + LOAD * loads
        + LOOP * loops
        + RESULT * c.tile_channel
        + THREAD,
        wavefronts=reads * (1 + lines * mixed)
        + (0 if constant else WEIGHT_WAVEFRONTS * weights)
        + 2 * loads
        + 2 * c.tile_channel,
        waits=CHUNK_WAIT * -(-g.q_size // c.chunk) + LOOP_WAIT * loops + HALO_WAIT * mixed * reads,
        l2_bytes=REREAD * blocks * g.q_size * span * item + g.y.nbytes,
        dram_bytes=problem.bytes,
    )


def _in_core(core: AxisCore, lanes: int) -> float:
    """The fraction of reads along an axis where all of a warp's lanes read the core."""
    step, apart, ahead, end = core.axis.step, abs(core.axis.spread), core.lead, core.core + core.lead
    inside = 0
    firsts = range(0, core.block, lanes)
    for first in firsts:
        last = min(first + lanes, core.block) - 1
        # The taps at which the first lane has come to the core, and the last has not left it.
        least = max(-(-(ahead - first * step) // apart), 0)
        inside += max(min(-(-(end - last * step) // apart), core.axis.taps) - least, 0)
    return inside / (core.axis.taps * len(firsts))
