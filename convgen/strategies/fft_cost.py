"""The cost model of `fft`: what a config asks of the GPU, counted from the loops of its template.

Constants are instructions or cycles, estimated from the emitted code; they are yet to be fitted to measured kernels.
"""

from __future__ import annotations

from convgen.gather import Gather
from convgen.plan import extent_at
from convgen.problem import Conv
from convgen.strategies.cost_model import LAUNCH_SECONDS, LINE, SECTOR, Work, kernel_seconds
from convgen.strategies.fft_tiling import Pass, Tiling
from convgen.target import Target

FLOPS_AN_INSTRUCTION = 1.25
"""Of a transform: mostly additions, and products of which every other operation is fused."""

THREAD, ITEM, MOVE, PIXEL, RESULT = 60, 24, 1.2, 5.0, 7.0
"""Instructions of a thread, of a transform (where its points lie), of a point moved to or from shared memory, of a
pixel (whether it exists) and of a result."""

PASS_WAIT, LOAD_WAIT = 250, 900
"""Cycles that a thread waits in each pass for shared memory and the barrier, and for pixels or a spectrum."""

POINT_WAVEFRONTS = 2.0
"""Banks' turns that a warp's access of 8 bytes a lane takes."""


def seconds(problem: Conv, t: Tiling, target: Target) -> float:
    """Predicted seconds of both kernels: the filters' transform, once only if they are constant, and the tiles'."""
    tiles = kernel_seconds(_work(problem, t, target), target)
    return tiles + kernel_seconds(_spectra(t, target), target) + LAUNCH_SECONDS


def _work(problem: Conv, t: Tiling, target: Target) -> Work:
    g, c = t.g, t.c
    blocks = extent_at(t.blocks, g.typical_batch)
    warps = -(-c.threads // target.warp)
    transforms = g.q_size + c.tile_channel
    rounds = [-(-p.items * c.tiles // c.threads) for p in t.passes]
    transform = sum(count * _item(p) for count, p in zip(rounds, t.passes, strict=True))
    last, first = t.passes[-1], t.passes[0]
    products = rounds[-1] * last.radix * g.q_size * c.tile_channel
    pixels = rounds[0] * 2 * first.radix
    kept = t.image_tiles and g.out / t.image_tiles / (2 * t.points)  # of a tile's pixels, those that are results
    halves = (g.x.dtype.itemsize < 4) + 0.0

    moved = sum(2 * count * p.radix for count, p in zip(rounds, t.passes, strict=True)) - rounds[0] * first.radix
    roots = sum(count * len(p.turns) for count, p in zip(rounds, t.passes, strict=True))
    x_lines, y_lines = _lines(g, g.axes[-1].x_stride), _lines(g, g.axes[-1].y_stride)
    item = g.x.dtype.itemsize
    x_waste, y_waste = (
        max(1.0, min(SECTOR / item, abs(stride))) for stride in (g.axes[-1].x_stride, g.axes[-1].y_stride)
    )
    units = blocks * c.tiles
    return Work(
        blocks=blocks,
        threads=c.threads,
        warps=warps,
        registers=t.registers,
        shared_bytes=t.shared_bytes,
        instructions=THREAD
        + transforms * transform
        + 5 * products
        + g.q_size * pixels * (PIXEL + halves)
        + c.tile_channel * pixels * (2 + RESULT * kept),
        wavefronts=POINT_WAVEFRONTS * (transforms * (moved + roots / 2) + products)
        + g.q_size * pixels * x_lines
        + c.tile_channel * pixels * kept * y_lines,
        waits=transforms * len(t.passes) * PASS_WAIT + 2 * g.q_size * LOAD_WAIT,
        l2_bytes=units * g.q_size * 2 * t.points * item * x_waste
        + units * g.q_size * c.tile_channel * 8 * t.points
        + g.y.nbytes * y_waste,
        dram_bytes=problem.bytes - g.w.nbytes + 8 * t.points * t.spectra,
        least_blocks=resident(t, target),
    )


def _item(p: Pass) -> float:
    """Instructions of one transform of a pass."""
    return p.flops / p.items / FLOPS_AN_INSTRUCTION + ITEM + 2 * MOVE * p.radix + len(p.turns)


def _lines(g: Gather, stride: int) -> float:
    return max(min(32 * abs(stride) * g.x.dtype.itemsize / LINE, 32.0), 1.0)


def _spectra(t: Tiling, target: Target) -> Work:
    c = t.c
    rounds = [-(-p.items // c.threads) for p in t.passes]
    transform = sum(count * _item(p) for count, p in zip(rounds, t.passes, strict=True))
    return Work(
        blocks=t.spectra,
        threads=c.threads,
        warps=-(-c.threads // target.warp),
        registers=3 * max(p.radix for p in t.passes) + 40,
        shared_bytes=t.shared_bytes,
        instructions=THREAD + transform + 30 * rounds[0] * t.passes[0].radix,
        wavefronts=2 * POINT_WAVEFRONTS * sum(n * p.radix for n, p in zip(rounds, t.passes, strict=True)),
        waits=LOAD_WAIT + len(t.passes) * PASS_WAIT,
        l2_bytes=8 * t.points * t.spectra,
        dram_bytes=0.0,
    )


def resident(t: Tiling, target: Target) -> int:
    """Blocks of the second kernel that a multiprocessor shall have room for: what the compiler allots registers by."""
    by_registers = target.registers_per_sm // (t.registers * t.c.threads)
    by_shared = target.shared_per_sm // (t.shared_bytes + target.shared_reserved)
    by_threads = target.max_threads_per_sm // t.c.threads
    return max(min(by_registers, by_shared, by_threads, target.max_blocks_per_sm), 1)
