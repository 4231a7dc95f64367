"""The cost model of `winograd`: what a config asks of the GPU, counted from the loops of its template."""

from __future__ import annotations

import math

from convgen.plan import extent_at
from convgen.problem import Sizes
from convgen.strategies.cost_model import LAUNCH_SECONDS, Work, kernel_seconds
from convgen.strategies.winograd_tiling import Tiling
from convgen.strategies.winograd_transform import program
from convgen.target import Target

THREAD, STEP, FRAGMENT, PACK = 84, 11.9, 2.3, 3
"""Instructions of a thread, of a step, of a read of operands from shared memory, and of a pack on its way there."""

PIXEL, STORE = 15.3, 7.2
"""Instructions of a pixel that a transform reads, and of an element it writes."""

STEP_WAIT = 134
"""Cycles that a step waits for the next stage."""

MMA_FRACTION = 0.6
"""Of the tensor cores' rate, what mma.sync attains."""
SPLIT = 3.1
"""Instructions that split a factor, for each of its products."""

REGISTERS = 6.1
"""Of a thread, beside what the tiling counts."""

KEPT = 0.5
"""Of L2, what holds a chunk's transformed data between the kernel that writes it and the one that reads it."""


def seconds(t: Tiling, target: Target) -> float:
    """Predicted seconds of all kernels, the filter's transform included."""
    bandwidth = target.attainable.bandwidth
    total = LAUNCH_SECONDS + (t.g.w.nbytes + t.filter_bytes) / bandwidth
    if t.c.fused:
        return total + kernel_seconds(_product(t, target), target)
    chunks = len(t.chunk_starts)
    tiles = extent_at(t.blocks(t.c.block_n), Sizes.of(n=t.g.typical_batch))
    run = 4 * t.components * t.g.groups * tiles
    between = run * (t.padded_q + t.padded_m)
    spilled = max(between / chunks - KEPT * target.l2_bytes, 0.0) * chunks
    total += kernel_seconds(_product(t, target), target) + LAUNCH_SECONDS * (3 * chunks - 1)
    # Each of the transforms moves its side of the data between; what L2 keeps is read from there, at twice the rate.
    moved = t.g.x.nbytes + t.g.y.nbytes + between + (between - spilled) / 2 + spilled
    threads = tiles * t.g.groups * (t.padded_q + t.g.m)
    issue = threads / target.warp * (THREAD + (PIXEL + STORE) * t.components + _additions(t))
    return total + max(moved / bandwidth, issue / (target.peak.fp32 / (2 * target.warp)))


def _additions(t: Tiling) -> float:
    f = t.transform
    lines = 1 if len(t.transformed) == 1 else 2 * f.alpha
    return lines * program(f.input).additions


def _of_channel(t: Tiling, target: Target) -> tuple[float, float]:
    """Instructions of a thread for the products of one channel, those on tensor cores by their time; wavefronts."""
    c = t.c
    results = c.thread_m * c.thread_n
    if not c.tensor_cores:
        lanes_n = min(c.block_n // c.thread_n, 8)
        runs = [(thread // min(thread, 4), min(thread, 4), lanes) for thread, lanes in (
            (c.thread_m, target.warp // lanes_n), (c.thread_n, lanes_n))]  # fmt: skip
        reads = sum(count for count, _, _ in runs)
        return results + FRAGMENT * reads, sum(count * max(lanes * run / 32, 1.0) for count, run, lanes in runs)
    parts = 3 if c.product == "3xtf32" else 1
    factors = c.thread_m / 4 + c.thread_n / 8
    issue = (1 + SPLIT * parts) * factors + (results / 8 if parts > 1 else 0) + parts * results / 32
    return math.hypot(issue, results * parts * target.peak.fp32 / (MMA_FRACTION * target.peak.tf32)), factors


def _product(t: Tiling, target: Target) -> Work:
    c = t.c
    blocks = extent_at(
        t.blocks(t.tiles_m * t.g.groups * (1 if c.fused else t.components)), Sizes.of(n=t.g.typical_batch)
    )
    steps = t.padded_q // c.block_k
    terms = steps * c.block_k * c.share
    each, lines = _of_channel(t, target)
    instructions = each * terms + STEP * steps + THREAD
    wavefronts = lines * terms
    filter_packs = steps * t.stage_components * c.block_k * c.block_m / 4 / t.threads
    instructions += PACK * filter_packs
    wavefronts += 8 * filter_packs
    l2_bytes = float(blocks * steps * t.stage_components * c.block_k * c.block_m * 4)
    dram_bytes = float(t.filter_bytes)
    results = c.share * c.thread_m * c.thread_n
    if c.fused:
        items = steps * c.block_k * c.block_n / t.threads
        instructions += items * ((PIXEL + STORE) * t.components + _additions(t))
        wavefronts += items * t.components * (1 + min(t.transform.m, 8))
        l2_bytes += blocks * t.padded_q * c.block_n * t.results * t.g.x.dtype.itemsize * 1.5
        inverse = c.block_m * c.block_n / t.threads
        instructions += results * 2 + inverse * (THREAD / 2 + STORE * t.components + _additions(t))
        wavefronts += results + inverse * t.components
        dram_bytes += t.g.x.nbytes + t.g.y.nbytes
    else:
        packs = steps * c.block_k * c.block_n / 4 / t.threads
        instructions += PACK * packs + results
        wavefronts += 8 * packs + results
        l2_bytes += blocks * t.padded_q * c.block_n * 4
    return Work(
        blocks=blocks,
        threads=t.threads,
        warps=t.threads // target.warp,
        registers=t.registers + REGISTERS,
        shared_bytes=t.shared_bytes,
        instructions=instructions,
        wavefronts=wavefronts,
        waits=STEP_WAIT * steps,
        l2_bytes=l2_bytes,
        dram_bytes=dram_bytes,
        least_blocks=t.resident(target),
    )
