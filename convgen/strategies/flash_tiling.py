"""The sizes of a flash attention: what follows from a problem and a config of `flash_attention`."""

from __future__ import annotations

from dataclasses import dataclass

from convgen.problem import Attention
from convgen.space import Config
from convgen.target import Target

PIECE = 16
"""Bytes of a copy to shared memory; rows there are an odd number of them apart."""


@dataclass(frozen=True)
class FlashAttentionConfig(Config):
    """How rows and keys are shared out, and where operands wait."""

    products: str
    """"mma": tensor cores; "fma": CUDA cores, in fp32."""
    row_tiles: int
    """Tiles of 16 rows that a warp has: more of them share what it loads of k and v."""
    warps_q: int
    warps_kv: int
    """Warps of a block, along rows and along the keys of a step."""
    block_kv: int
    """Keys a step."""
    buffers: int
    """For tiles of k, and as many for v."""
    q_in_registers: bool
    pack_heads: bool
    """Whether the query heads that share keys are rows of one tile."""
    splits: int
    """Blocks that share the keys of a tile of rows; a second kernel joins their sums."""

    @property
    def threads(self) -> int:
        return 32 * self.warps_q * self.warps_kv

    @property
    def block_q(self) -> int:
        return 16 * self.row_tiles * self.warps_q

    @property
    def warp_keys(self) -> int:
        return self.block_kv // self.warps_kv


def pack(problem: Attention, c: FlashAttentionConfig) -> int:
    """Query heads in a tile of rows."""
    return problem.heads_q // problem.heads_kv if c.pack_heads else 1


def width_k(problem: Attention, c: FlashAttentionConfig) -> int:
    """Elements of a row of q or k in shared memory: whole steps of the product."""
    step = 16 if c.products == "mma" else PIECE // problem.dtype.itemsize
    return _up_to(problem.head_dim, step)


def width_v(problem: Attention) -> int:
    """Elements of a row of v: whole tiles of 8 results."""
    return _up_to(problem.head_dim_v, 8)


def pitch(width: int, itemsize: int) -> int:
    """Elements from a row in shared memory to the next: an odd number of pieces."""
    return (-(-width * itemsize // PIECE) | 1) * PIECE // itemsize


def pitch_p(c: FlashAttentionConfig) -> int:
    """Floats from a row of a warp's weights to the next; fma only."""
    return pitch(c.warp_keys, 4)


def shared_bytes(problem: Attention, c: FlashAttentionConfig) -> int:
    """What the steps need, or what the end does if that is more."""
    item = problem.dtype.itemsize
    k, v = pitch(width_k(problem, c), item), pitch(width_v(problem), item)
    steps = item * (c.block_q * k + c.buffers * c.block_kv * (k + v))
    if c.products == "fma":
        steps += 4 * 16 * c.row_tiles * c.warps_q * c.warps_kv * pitch_p(c)
    end = joined_bytes(problem, c)
    if c.splits == 1:
        end += problem.out_dtype.itemsize * c.block_q * pitch(width_v(problem), problem.out_dtype.itemsize)
    return max(steps, end)


def joined_bytes(problem: Attention, c: FlashAttentionConfig) -> int:
    """Sums of the warps that share rows with another."""
    per_thread = 4 * c.row_tiles + 4 * c.row_tiles * (width_v(problem) // 8)
    return 4 * 32 * c.warps_q * (c.warps_kv - 1) * per_thread


def registers(problem: Attention, c: FlashAttentionConfig) -> int:
    """About what a thread needs: both results, operands, and what else there is."""
    sums = c.row_tiles * width_v(problem) // 2
    scores = c.row_tiles * c.warp_keys // 2
    rest = 32 if c.products == "mma" else 64
    held = c.row_tiles * width_k(problem, c) // 4 if c.q_in_registers else 0
    return sums + scores + held + 4 * c.row_tiles + rest


def resident(problem: Attention, c: FlashAttentionConfig, target: Target) -> int:
    """Blocks that a multiprocessor shall have room for: what the compiler allots registers by."""
    by_registers = target.registers_per_sm // (min(registers(problem, c), target.max_registers_per_thread) * c.threads)
    by_shared = target.shared_per_sm // (shared_bytes(problem, c) + target.shared_reserved)
    by_threads = target.max_threads_per_sm // c.threads
    return max(min(by_registers, by_shared, by_threads, 8), 1)


def row_count(problem: Attention, c: FlashAttentionConfig) -> int:
    """Rows of a unit: a head's queries, or those of all heads that share keys."""
    return problem.typical_sizes[1] * pack(problem, c)


def heads_together(problem: Attention, c: FlashAttentionConfig, target: Target) -> int:
    """Heads whose tiles run side by side: as many as have their keys and values in half of the L2.

    Where rows see as many keys as any, one head after the other does as well.
    """
    units = problem.heads_q // pack(problem, c)
    batch, _, keys = problem.typical_sizes
    if problem.window[1] is None:
        return 1
    per_unit = keys * (problem.head_dim + problem.head_dim_v) * problem.dtype.itemsize * problem.heads_kv / units
    fits = max(int(target.l2_bytes / 2 / max(per_unit, 1)), 1)
    together = min(fits, max(batch, 1) * units)
    sharing = units // problem.heads_kv
    return max(together // sharing * sharing, 1)


def _up_to(value: int, step: int) -> int:
    return -(-value // step) * step
