"""Flash attention: softmax(scores) v without the scores in memory, keys block by block.

A block keeps a tile of query rows and walks over the keys that any of them sees. Both products are tensor cores' for
fp16 and bf16, FMA's for fp32; the softmax is fp32 always. Few queries share a tile with the heads that read the same
keys, and their keys are split over blocks whose sums a second kernel joins in a fixed order.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import struct
from collections.abc import Iterator
from typing import Any

from convgen.errors import ConfigError
from convgen.plan import Buffer, Extent, Launch, Numerics, Param, Placement, Plan, SizeExtent, SizeFactor, WorkspaceArg
from convgen.problem import Attention, DType, RuntimeSize
from convgen.space import Space
from convgen.strategies import attention_common as common
from convgen.strategies import flash_cost, operands, rules
from convgen.strategies import flash_tiling as tiling
from convgen.strategies.flash_tiling import FlashAttentionConfig
from convgen.target import Target

MAX_HEAD_DIM_V = 256
MAX_HEAD_DIM = 576
MAX_SPLITS = 128
MAX_GRID = (1 << 31) - 1
COMBINE_THREADS = 64
FEWEST_BLOCKS, EVEN_ENOUGH = 1.9, 0.85
"""Of a multiprocessor, so that one computes while another waits; and of the best use of all of them."""
FEW_ROWS = 32
"""Of a tile, up to which its warps share out the keys."""
MOSTLY_BUSY = 0.8
LEAST_SCALE, MOST_SCALE = 1e-30, 1e30
"""Between which the scale is part of the exponent: the largest score is then the largest logit, and nothing overflows
that would not as a logit."""


class FlashAttention:
    """See the module's text."""

    name = "flash_attention"
    summary = "online softmax over blocks of keys: scores stay in registers, products on tensor cores for fp16 and bf16"
    calibrated = True
    solves = Attention
    template = "attention/flash_attention.cu.j2"

    def why_not(self, problem: Attention, target: Target) -> str | None:
        reason = common.not_covered(problem)
        if reason is not None:
            return reason
        if problem.head_dim_v > MAX_HEAD_DIM_V:
            return f"sums of head_dim_v={problem.head_dim_v} do not fit in registers, at most {MAX_HEAD_DIM_V} do"
        if problem.head_dim > MAX_HEAD_DIM:
            return f"tiles of head_dim={problem.head_dim} do not fit in shared memory, at most {MAX_HEAD_DIM} do"
        if next(self._starts(problem, target), None) is None:
            return f"its tiles do not fit in {target.shared_per_block} bytes of shared memory"
        return None

    def space(self, problem: Attention, target: Target) -> Space:
        mma = _has_mma(problem, target)
        _, queries, keys = problem.typical_sizes
        few = queries * problem.heads_q // problem.heads_kv <= 256
        return Space(
            FlashAttentionConfig,
            {
                "products": ("mma", "fma") if mma else ("fma",),
                "row_tiles": (1, 2),
                "warps_q": (1, 2, 4, 8),
                "warps_kv": (1, 2, 4, 8) if few else (1, 2),
                "block_kv": (16, 32, 48, 64, 80, 96, 112, 128, 160, 192, 256),
                "buffers": (1, 2, 3),
                "q_in_registers": (False, True) if mma else (False,),
                "pack_heads": (False, True) if problem.heads_q != problem.heads_kv else (False,),
                "splits": tuple(
                    s for s in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128) if s == 1 or 16 * s <= keys
                ),
            },
        )

    def check(self, problem: Attention, config: FlashAttentionConfig, target: Target) -> None:
        c = config
        rules.one_of(c, "products", ("mma", "fma"))
        if c.products == "mma" and not _has_mma(problem, target):
            raise ConfigError(
                f"products=mma: no tensor core of {target.arch} multiplies {problem.dtype.value} as exactly"
            )
        if c.products == "fma" and c.q_in_registers:
            raise ConfigError("q_in_registers=yes: products=fma reads rows of q where it multiplies them")
        for field in ("row_tiles", "warps_q", "warps_kv", "block_kv", "buffers", "splits"):
            if getattr(c, field) < 1:
                raise ConfigError(f"{field}={getattr(c, field)}: expected at least 1")
        if c.row_tiles > 2:
            raise ConfigError(f"row_tiles={c.row_tiles}: expected 1 or 2, more results than that fit in no thread")
        if c.block_kv % (16 * c.warps_kv):
            raise ConfigError(f"block_kv={c.block_kv}: expected a multiple of 16 keys for each of {c.warps_kv} warps")
        if c.buffers > 4:
            raise ConfigError(f"buffers={c.buffers}: expected 1 to 4, what is under way longer than that waits")
        if c.pack_heads and problem.heads_q == problem.heads_kv:
            raise ConfigError("pack_heads=yes: no two heads share keys here")
        rules.block_fits((c.threads, 1, 1), target)
        needed = tiling.registers(problem, c)
        limit = min(target.max_registers_per_thread, target.registers_per_sm // c.threads)
        if needed > limit:
            raise ConfigError(f"row_tiles={c.row_tiles}, block_kv={c.block_kv}: scores and sums take about {needed} "
                              f"registers, a thread has {limit}")  # fmt: skip
        rules.shared_fits("q and the tiles of k and v take", tiling.shared_bytes(problem, c), target)
        if c.splits > MAX_SPLITS:
            raise ConfigError(f"splits={c.splits}: at most {MAX_SPLITS}, every part is written and read once more")
        rows = common.largest_size(problem, "seq_q") * tiling.pack(problem, c)
        tiles = {"batch": 1, "seq_q": 1}
        blocks = common.largest_extent(problem, tiles, problem.heads_q * c.splits)
        if max(blocks, rows) > MAX_GRID and max(rows, blocks // c.block_q) > MAX_GRID // 2:
            raise ConfigError(f"{blocks} rows of all parts: kernels count up to {MAX_GRID}")

    def default(self, problem: Attention, target: Target) -> FlashAttentionConfig:
        return next(self._starts(problem, target))

    def _starts(self, problem: Attention, target: Target) -> Iterator[FlashAttentionConfig]:
        """Legal configs, best first by what is known of tiles: widths decide, then how many rows there are."""
        mma = _has_mma(problem, target)
        group = problem.heads_q // problem.heads_kv
        _, queries, _ = problem.typical_sizes
        packs = group > 1 and queries <= 16
        rows = queries * (group if packs else 1)
        few = rows <= FEW_ROWS
        if few:
            buffers = 2 if max(problem.head_dim, problem.head_dim_v) <= 128 else 1
            tiles = [(1, -(-rows // 16), 4, 64, buffers), (1, -(-rows // 16), 2, 32, 1)]
        elif mma and problem.head_dim_v <= 64:
            tiles = [(2, 4, 1, 64, 2)]
        elif mma and problem.head_dim_v <= 128:
            tiles = [(2, 4, 1, 64, 1)]
        elif mma:
            tiles = [(1, 8, 1, 64, 1), (1, 4, 1, 64, 1)]
        else:
            tiles = [(2, 4, 1, 32, 1), (1, 4, 1, 32, 1)]
        tiles += [(1, 4, 1, 32, 1), (1, 2, 1, 16, 1), (1, 1, 1, 16, 1)]
        for (row_tiles, warps_q, warps_kv, block_kv, buffers), held in itertools.product(tiles, (True, False)):
            while warps_q > 1 and 16 * row_tiles * (warps_q // 2) >= rows:
                warps_q //= 2
            config = FlashAttentionConfig(
                "mma" if mma else "fma", row_tiles, warps_q, warps_kv, block_kv, buffers,
                mma and held and row_tiles * max(problem.head_dim, problem.head_dim_v) <= 128, packs, 1,
            )  # fmt: skip
            try:
                self.check(problem, config, target)
            except ConfigError:
                continue
            yield self._split(problem, config, target)

    def _split(self, problem: Attention, config: FlashAttentionConfig, target: Target) -> FlashAttentionConfig:
        """The config with keys split no further than keeps nearly all multiprocessors busy.

        Every part writes the sums of all its rows, so where those are many, idle multiprocessors cost less.
        """
        batch, _, keys = problem.typical_sizes
        blocks = max(batch * problem.heads_q // tiling.pack(problem, config), 1)
        blocks *= max(-(-tiling.row_count(problem, config) // config.block_q), 1)
        most = max(min(keys // config.block_kv // 2, MAX_SPLITS), 1)
        if blocks >= MOSTLY_BUSY * target.sm_count and tiling.row_count(problem, config) > FEW_ROWS:
            return config

        def even(splits: int) -> float:
            each = blocks * splits / target.sm_count
            return min(each / FEWEST_BLOCKS, 1.0) * each / math.ceil(each)

        best = max(map(even, range(1, most + 1)))
        return dataclasses.replace(config, splits=next(s for s in range(1, most + 1) if even(s) >= EVEN_ENOUGH * best))

    def cost(self, problem: Attention, config: FlashAttentionConfig, target: Target) -> float:
        return flash_cost.seconds(problem, config, target)

    def lower(self, problem: Attention, config: FlashAttentionConfig, target: Target) -> Plan:
        attend, combine = self._attend(problem, config), self._combine(problem, config)
        launches = (attend, combine) if config.splits > 1 else (attend,)
        return Plan(
            problem, self.name, config, target,
            template=self.template,
            constants=self._constants(problem, config, target, attend, combine),
            kernels=tuple(launch.kernel for launch in launches),
            steps=launches,
            workspace=_workspace(problem, config),
            alignment=_alignment(problem, config),
            placements=_placements(problem, config),
            numerics=Numerics(eps_in=problem.dtype.eps if config.products == "mma" else 0.0),
            name=common.kernel_name(problem, self.name, config),
        )  # fmt: skip

    def _attend(self, problem: Attention, c: FlashAttentionConfig) -> Launch:
        q, k, v = (common.tensor(problem, name) for name in ("q", "k", "v"))
        results = _parts("") if c.splits > 1 else (*_sink(problem), common.tensor(problem, "o"), *_lse(problem))
        name = common.kernel_name(problem, self.name, c, "attend" if c.splits > 1 else "")
        taken = (q, k, v, *common.options(problem), *results, *common.sizes(problem))
        grid = (_tiles(problem, c), 1, 1)
        return operands.launch(name, taken, grid, (c.threads, 1, 1), tiling.shared_bytes(problem, c))

    def _combine(self, problem: Attention, c: FlashAttentionConfig) -> Launch:
        taken = (*_parts("const "), *_sink(problem), common.tensor(problem, "o"), *_lse(problem))
        name = common.kernel_name(problem, self.name, c, "combine")
        grid = (common.extent(problem, {"batch": 1, "seq_q": 1}, problem.heads_q), 1, 1)
        return operands.launch(name, (*taken, *common.sizes(problem)), grid, (COMBINE_THREADS, 1, 1))

    def _constants(
        self, problem: Attention, c: FlashAttentionConfig, target: Target, attend: Launch, combine: Launch
    ) -> dict[str, Any]:
        item = problem.dtype.itemsize
        partial = common.largest_extent(problem, _ROWS, c.splits * problem.heads_q * tiling.width_v(problem))
        return common.constants(problem, c, results=partial) | {
            "attend_kernel": attend.kernel.name,
            "attend_params": attend.kernel.params,
            "combine_kernel": combine.kernel.name,
            "combine_params": combine.kernel.params,
            "combine_threads": COMBINE_THREADS,
            "products": c.products,
            "row_tiles": c.row_tiles,
            "warps_q": c.warps_q,
            "warps_kv": c.warps_kv,
            "warp_keys": c.warp_keys,
            "block_q": c.block_q,
            "block_kv": c.block_kv,
            "buffers": c.buffers,
            "threads": c.threads,
            "resident": tiling.resident(problem, c, target),
            "q_in_registers": c.q_in_registers,
            "pack": tiling.pack(problem, c),
            "splits": c.splits,
            "heads_together": tiling.heads_together(problem, c, target),
            "width_k": tiling.width_k(problem, c),
            "width_v": tiling.width_v(problem),
            "pitch_k": tiling.pitch(tiling.width_k(problem, c), item),
            "pitch_v": tiling.pitch(tiling.width_v(problem), item),
            "pitch_p": tiling.pitch_p(c),
            "pitch_o": tiling.pitch(tiling.width_v(problem), problem.out_dtype.itemsize),
            "joined_bytes": tiling.joined_bytes(problem, c),
            "folds_scale": LEAST_SCALE <= problem.scale <= MOST_SCALE,
            "scale_log2e": common.number(_single(problem.scale * 1.4426950408889634)),
        }


_ROWS = {"batch": 1, "seq_q": 1}


def _has_mma(problem: Attention, target: Target) -> bool:
    """Whether tensor cores multiply the type without rounding its numbers."""
    return problem.dtype is DType.FP16 or (problem.dtype is DType.BF16 and target.compute_capability >= (8, 0))


def _single(value: float) -> float:
    """The nearest fp32, so that the text of a constant is the constant."""
    return float(struct.unpack("f", struct.pack("f", value))[0]) if abs(value) < 3e38 else value


def _sink(problem: Attention) -> tuple[operands.Operand, ...]:
    return (common.tensor(problem, "sink"),) if problem.sink else ()


def _lse(problem: Attention) -> tuple[operands.Operand, ...]:
    return (common.tensor(problem, "lse"),) if problem.lse else ()


def _parts(constant: str) -> tuple[operands.Operand, ...]:
    names = ("partial", "partial_rows")
    return tuple((Param(name, f"{constant}float*"), WorkspaceArg(name)) for name in names)


def _tiles(problem: Attention, c: FlashAttentionConfig) -> Extent:
    """Blocks: tiles of rows of every unit, once a part of the keys."""
    pack = tiling.pack(problem, c)
    scale = problem.heads_q // pack * c.splits
    factors = []
    for name, times, by in (("batch", 1, 1), ("seq_q", pack, c.block_q)):
        size = getattr(problem, name)
        if isinstance(size, RuntimeSize):
            factors.append(SizeFactor(name, times, by))
        else:
            scale *= -(-size * times // by)
    return SizeExtent(tuple(factors), scale) if factors else scale


def _workspace(problem: Attention, c: FlashAttentionConfig) -> tuple[Buffer, ...]:
    if c.splits == 1:
        return ()
    parts = c.splits * problem.heads_q
    return (
        Buffer("partial", common.extent(problem, _ROWS, 4 * parts * tiling.width_v(problem))),
        Buffer("partial_rows", common.extent(problem, _ROWS, 4 * parts * 2)),
    )


def _alignment(problem: Attention, c: FlashAttentionConfig) -> dict[str, int]:
    """Pieces of rows are copied whole: as much of 16 bytes as divides a row."""
    found = {}
    for name in ("q", "k", "v", "o"):
        spec = problem.tensor(name)
        if name == "o" and c.splits > 1:
            continue
        piece = min(spec.shape[3] & -spec.shape[3], tiling.PIECE // spec.dtype.itemsize)
        if piece > 1:
            found[name] = piece * spec.dtype.itemsize
    return found


def _placements(problem: Attention, c: FlashAttentionConfig) -> tuple[Placement, ...]:
    item = problem.dtype.itemsize
    row_k, row_v = tiling.pitch(tiling.width_k(problem, c), item), tiling.pitch(tiling.width_v(problem), item)
    tiles = item * c.buffers * c.block_kv * (row_k + row_v)
    partial = common.largest_extent(problem, _ROWS, 4 * c.splits * problem.heads_q * (tiling.width_v(problem) + 2))
    q_home = "registers" if c.q_in_registers else "shared"
    return (
        Placement("q", q_home, item * c.block_q * row_k, "read once; its rows stay while keys pass"),
        Placement("k, v", "shared", tiles, f"{c.buffers} tiles of each, one multiplied while the next ones travel"),
        Placement("scores", "registers", 2 * c.row_tiles * c.warp_keys, "never in memory; as weights, an operand"),
        Placement("sums", "registers", 2 * c.row_tiles * tiling.width_v(problem), "fp32, scaled when the shift moves"),
        *(
            (Placement("partial", "global", partial, "sums of each part of the keys, joined in order"),)
            * (c.splits > 1)
        ),
    )


STRATEGY = FlashAttention()
