"""The cost model of `fft`: what a config asks of the GPU, counted from the loops of its template.

Constants are instructions or cycles, estimated from the emitted code and fitted to kernels measured on an H200
(benchmarks/fit_costs.py).
"""

from __future__ import annotations

from convgen.gather import Gather
from convgen.plan import extent_at
from convgen.problem import Conv, Sizes
from convgen.strategies.cost_model import LAUNCH_SECONDS, LINE, SECTOR, Work, kernel_seconds
from convgen.strategies.fft_tiling import PRODUCT_THREADS, PRODUCT_TILES, Pass, Tiling
from convgen.target import Target

FLOPS_AN_INSTRUCTION = 1.25
"""Of a transform: mostly additions, and products of which every other operation is fused."""

THREAD, ITEM, MOVE, PIXEL, RESULT = 40, 12.8, 0.65, 2.7, 4.8
"""Instructions of a thread, of a transform (where its points lie), of a point moved to or from shared memory, of a
pixel (whether it exists) and of a result."""

PRODUCT, TAP = 3.3, 37
"""Of a complex product with its factor's load, and of a position of the filter's tile (which tap it holds)."""

PASS_WAIT, LOAD_WAIT = 86, 1578
"""Cycles that a thread waits in each pass for shared memory and the barrier, and for pixels or a spectrum."""

POINT_WAVEFRONTS = 2.8
"""Banks' turns that a warp's access of 8 bytes a lane takes."""

KEPT = 0.5
"""Of L2, what holds spectra between the kernel that writes them and the one that reads them."""


def seconds(problem: Conv, t: Tiling, target: Target) -> float:
    """Predicted seconds of all kernels: the filters' spectra, needed once only if they are constant, and the tiles'."""
    works = [_spectra(t, target), *(_batched(problem, t, target) if t.c.is_batched else [_fused(problem, t, target)])]
    return sum(kernel_seconds(work, target) for work in works) + (len(works) - 1) * LAUNCH_SECONDS


def resident(t: Tiling, target: Target) -> int:
    """Blocks of the fused kernel that a multiprocessor shall have room for: what the compiler allots registers by."""
    by_registers = target.registers_per_sm // (t.registers * t.c.threads)
    by_shared = target.shared_per_sm // (t.shared_bytes + target.shared_reserved)
    by_threads = target.max_threads_per_sm // t.c.threads
    return max(min(by_registers, by_shared, by_threads, target.max_blocks_per_sm), 1)


class _Tile:
    """What a thread does for a block's tiles, one channel one way."""

    def __init__(self, t: Tiling) -> None:
        g, c = t.g, t.c
        self.rounds = [-(-p.items * c.tiles // c.threads) for p in t.passes]
        counted = list(zip(self.rounds, t.passes, strict=True))
        self.instructions = sum(count * _item(p) for count, p in counted)
        self.pixels = self.rounds[0] * 2 * t.passes[0].radix
        self.points = self.rounds[-1] * t.passes[-1].radix
        moved = sum(2 * count * p.radix for count, p in counted) - self.rounds[0] * t.passes[0].radix
        roots = sum(count * len(p.turns) for count, p in counted)
        self.wavefronts = POINT_WAVEFRONTS * (moved + roots / 2)
        self.waits = len(t.passes) * PASS_WAIT
        kept = g.out / t.image_tiles / (2 * t.points)  # of a tile's pixels, those that are results
        self.half = g.x.dtype.itemsize < 4
        self.read_instructions = self.pixels * (PIXEL + self.half)
        self.write_instructions = self.pixels * (2 + RESULT * kept)
        self.read_wavefronts = self.pixels * _lines(g, g.axes[-1].x_stride)
        self.write_wavefronts = self.pixels * kept * _lines(g, g.axes[-1].y_stride)


def _fused(problem: Conv, t: Tiling, target: Target) -> Work:
    g, c, tile = t.g, t.c, _Tile(t)
    blocks = extent_at(t.blocks, Sizes.of(n=g.typical_batch))
    transforms = g.q_size + c.tile_channel
    products = tile.points * g.q_size * c.tile_channel
    return Work(
        blocks=blocks,
        threads=c.threads,
        warps=-(-c.threads // target.warp),
        registers=t.registers,
        shared_bytes=t.shared_bytes,
        instructions=THREAD
        + transforms * tile.instructions
        + PRODUCT * products
        + g.q_size * tile.read_instructions
        + c.tile_channel * tile.write_instructions,
        wavefronts=transforms * tile.wavefronts
        + POINT_WAVEFRONTS * products
        + g.q_size * tile.read_wavefronts
        + c.tile_channel * tile.write_wavefronts,
        waits=transforms * tile.waits + 2 * g.q_size * LOAD_WAIT,
        l2_bytes=blocks * c.tiles * g.q_size * t.points * (_pixel_bytes(t) + 8 * c.tile_channel) + _result_bytes(t),
        dram_bytes=problem.bytes - g.w.nbytes + 8 * t.points * t.spectra,
        least_blocks=resident(t, target),
    )


def _batched(problem: Conv, t: Tiling, target: Target) -> list[Work]:
    """Forward, products, inverse."""
    g, c, tile = t.g, t.c, _Tile(t)
    warps = -(-c.threads // target.warp)
    stored = POINT_WAVEFRONTS * tile.points
    units = g.groups * t.image_tiles * g.batch_size
    inputs, results = 8 * t.points * units * g.q_size, 8 * t.points * units * g.m
    filters = 8 * t.points * t.spectra
    spilled = max(inputs + results - KEPT * target.l2_bytes, 0.0)
    registers = 2 * max(p.radix for p in t.passes) + 32
    forward = Work(
        blocks=extent_at(t.transforms(g.q_size), Sizes.of(n=g.typical_batch)),
        threads=c.threads,
        warps=warps,
        registers=registers,
        shared_bytes=t.shared_bytes,
        instructions=THREAD + tile.instructions + tile.read_instructions + 2 * tile.points,
        wavefronts=tile.wavefronts + tile.read_wavefronts + stored,
        waits=tile.waits + LOAD_WAIT,
        l2_bytes=units * g.q_size * t.points * _pixel_bytes(t) + inputs,
        dram_bytes=g.x.nbytes + min(spilled, inputs),
    )
    inverse = Work(
        blocks=extent_at(t.transforms(g.m), Sizes.of(n=g.typical_batch)),
        threads=c.threads,
        warps=warps,
        registers=registers,
        shared_bytes=t.shared_bytes,
        instructions=THREAD + tile.instructions + tile.write_instructions + 2 * tile.points,
        wavefronts=tile.wavefronts + tile.write_wavefronts + stored,
        waits=tile.waits + LOAD_WAIT,
        l2_bytes=results + _result_bytes(t),
        dram_bytes=problem.bytes - g.x.nbytes - g.w.nbytes + min(spilled, results),
    )
    warps_m = t.product_warps_m
    warps_u = PRODUCT_THREADS // target.warp // warps_m
    blocks = extent_at(t.product_blocks, Sizes.of(n=g.typical_batch))
    loads = c.tile_channel + PRODUCT_TILES
    product = Work(
        blocks=blocks,
        threads=PRODUCT_THREADS,
        warps=PRODUCT_THREADS // target.warp,
        registers=t.product_registers,
        shared_bytes=0,
        instructions=THREAD + g.q_size * (4 * c.tile_channel * PRODUCT_TILES + 3 * loads) + 40,
        wavefronts=POINT_WAVEFRONTS * (g.q_size * loads + c.tile_channel * PRODUCT_TILES),
        waits=g.q_size * LOAD_WAIT / 4,
        l2_bytes=blocks * 256 * g.q_size * (warps_m * c.tile_channel + warps_u * PRODUCT_TILES) + results,
        dram_bytes=filters + spilled,
    )
    return [forward, product, inverse]


def _spectra(t: Tiling, target: Target) -> Work:
    c = t.c
    rounds = [-(-p.items // c.threads) for p in t.passes]
    transform = sum(count * _item(p) for count, p in zip(rounds, t.passes, strict=True))
    return Work(
        blocks=t.spectra,
        threads=c.threads,
        warps=-(-c.threads // target.warp),
        registers=2 * max(p.radix for p in t.passes) + 32,
        shared_bytes=8 * t.plane,
        instructions=THREAD + transform + 2 * TAP * rounds[0] * t.passes[0].radix,
        wavefronts=2 * POINT_WAVEFRONTS * sum(n * p.radix for n, p in zip(rounds, t.passes, strict=True)),
        waits=LOAD_WAIT + len(t.passes) * PASS_WAIT,
        l2_bytes=8 * t.points * t.spectra,
        dram_bytes=t.g.w.nbytes,
    )


def _item(p: Pass) -> float:
    """Instructions of one transform of a pass."""
    return p.flops / p.items / FLOPS_AN_INSTRUCTION + ITEM + 2 * MOVE * p.radix + len(p.turns)


def _lines(g: Gather, stride: int) -> float:
    """Lines of a warp's access to pixels that lie so far apart."""
    return max(min(32 * abs(stride) * g.x.dtype.itemsize / LINE, 32.0), 1.0)


def _pixel_bytes(t: Tiling) -> float:
    """Bytes that the two pixels of a point bring from L2."""
    item = t.g.x.dtype.itemsize
    return 2 * item * _waste(t.g.axes[-1].x_stride, item)


def _result_bytes(t: Tiling) -> float:
    return t.g.y.nbytes * _waste(t.g.axes[-1].y_stride, t.g.y.dtype.itemsize)


def _waste(stride: int, item: int) -> float:
    """Bytes of a sector over those of it that neighbouring lanes take."""
    return float(max(1, min(SECTOR // item, abs(stride))))
