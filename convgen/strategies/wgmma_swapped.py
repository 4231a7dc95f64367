"""Implicit GEMM on Hopper with its operands swapped: channels are the rows of a wgmma, positions its columns.

What `wgmma_implicit_gemm` does, for few channels and small maps: there a tile has multiples of 64 positions, here any
multiple of eight, so that it fits the map and the multiprocessors; 64 channels meet up to 256 positions at a time, of
which wgmma reads less from shared memory than of 64 positions and 64 channels.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator
from typing import Any

from convgen.errors import ConfigError
from convgen.gather import gather
from convgen.plan import MAX_CLUSTER, Launch, Numerics, Plan
from convgen.problem import Conv, DType
from convgen.space import Space
from convgen.strategies import (
    common,
    descent,
    operands,
    partial_sums,
    rules,
    wgmma_block,
    wgmma_maps,
    wgmma_patches,
    wgmma_rules,
    wgmma_sources,
    wgmma_swapped_cost,
)
from convgen.strategies import wgmma_swapped_tiling as tiling
from convgen.strategies.implicit_gemm_tiling import EPS_ACC
from convgen.strategies.wgmma_block import ROWS
from convgen.strategies.wgmma_patches import SQUARE
from convgen.strategies.wgmma_sources import sources
from convgen.strategies.wgmma_swapped_tiling import SwappedConfig, SwappedTiling
from convgen.target import Target
from convgen.tensor_map import MAX_BOX

START_SHAPES = ((1, 1, 1, 1), (1, 2, 1, 1), (1, 3, 1, 1), (1, 2, 2, 1), (2, 2, 2, 1), (1, 1, 1, 4), (1, 1, 1, 6))
"""Tiles, consumers, those that share a tile, and blocks that share its sums."""
START_STAGES = ((2, 4), (4, 6), (3, 9))
START_WIDTHS = (64, 112, 160, 224)
WIDTHS = (32, 48, 64, 80, 96, 112, 128, 144, 160, 176, 192, 208, 224, 256)
"""Positions of a tile that are worth trying whatever the map."""
PARTS = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16)
"""Of sums that are split."""
MULTICASTS = (1, 2, 4)
LEAST_WIDTH = 24
"""Of those that fit the map."""

_TYPES = (DType.FP16, DType.BF16, DType.TF32)


class WgmmaSwapped:
    """See the module's text."""

    solves = Conv
    name = "wgmma_swapped"
    template = "conv/wgmma_swapped.cu.j2"
    summary = "wgmma_implicit_gemm with its operands swapped: 64 channels by as many positions as fit the map"
    calibrated = True

    def why_not(self, problem: Conv, target: Target) -> str | None:
        reason = wgmma_block.why_not(problem, target, _TYPES) or wgmma_sources.why_not(gather(problem))
        if reason is not None:
            return reason
        try:
            self.check(problem, self._legal_start(problem, target), target)
        except ConfigError as error:
            return str(error)
        return None

    def space(self, problem: Conv, target: Target) -> Space:
        t = _tiling(problem, _start(problem, "im2col"))
        g = t.g
        parts = tuple(s for s in PARTS if s == 1 or (g.batch is not None and s <= t.panels))
        return Space(
            SwappedConfig,
            {
                "patches": tuple(p for p in tiling.PATCHES if _not_copied(problem, p) is None),
                "tiles": (1, 2),
                "block_n": _widths(t),
                "consumers": (1, 2, 3, 4),
                "sharing": (1, 2, 3, 4),
                "x_stages": (2, 3, 4, 6, 8),
                "w_stages": tuple(sorted({2, 3, 4, 5, 6, 8, *([t.w_tiles] if t.w_tiles <= 64 else [])})),
                "slabs": (1, 2),
                "split_k": parts,
                "cluster": tuple(s for s in parts if s <= 8),
                "x_multicast": MULTICASTS,
                "w_multicast": MULTICASTS,
            },
        )

    def check(self, problem: Conv, config: SwappedConfig, target: Target) -> None:
        c = config
        rules.one_of(c, "patches", tiling.PATCHES)
        rules.at_least_one(c)
        reason = _not_copied(problem, c.patches)
        if reason is not None:
            raise ConfigError(f"patches={c.patches}: {reason}")
        wgmma_block.check_warpgroups(c)
        t = _tiling(problem, c)
        g = t.g
        wgmma_block.check_columns(c, g.x.dtype)
        _check_multicast(t)
        if t.is_box and max(t.loaded_box) > MAX_BOX:
            raise ConfigError(f"block_n={c.block_n}: a halo of {' x '.join(map(str, t.loaded_box))} pixels, TMA copies "
                              f"at most {MAX_BOX} along each axis")  # fmt: skip
        if t.w_rows // t.w_multicast > MAX_BOX:
            raise ConfigError(f"tiles={c.tiles} sharing={c.sharing}: TMA brings at most {MAX_BOX} channels of w")
        if t.shared_groups > 1 and g.m % ROWS:
            raise ConfigError(f"{t.shared_groups} groups share a line, so expected a multiple of {ROWS} result "
                              f"channels of each, there are {g.m}")  # fmt: skip
        rules.sums_are_strict(problem, t.mma_steps * EPS_ACC, gather(problem).q_size * g.taps)
        positions = t.units * (problem.max_batch or g.batch_size) * t.positions // t.units_of_block
        wgmma_rules.check(t, positions, target)

    def default(self, problem: Conv, target: Target) -> SwappedConfig:
        config: SwappedConfig = wgmma_block.settled(self, problem, target, _starts(problem), self._legal_start)
        return config

    def _legal_start(self, problem: Conv, target: Target) -> SwappedConfig:
        """A plain config: the first that is legal; the last of them is legal wherever any is."""
        starts = [_start(problem, patches) for patches in tiling.PATCHES]
        legal = (s for s in starts if descent.cost_if_legal(self, problem, target, s) < math.inf)
        return next(legal, starts[-1])

    def cost(self, problem: Conv, config: SwappedConfig, target: Target) -> float:
        packed = sources(problem, config.patches).packed
        return wgmma_swapped_cost.seconds(problem, _tiling(problem, config), packed, target)

    def lower(self, problem: Conv, config: SwappedConfig, target: Target) -> Plan:
        c = config
        found = sources(problem, c.patches)
        g, t = found.g, _tiling(problem, c)
        partial = (partial_sums.stored(g),) if t.split_tiles(g.batch_size, target) else ()
        read = (wgmma_maps.x_map(t, found.place("x")), wgmma_maps.w_map(t, found.place("w")))
        mapped = (*read, *((t.results.map(),) if t.mapped else ()))
        results = (*operands.epilogue(problem), operands.y(g), *operands.runtime_batch(g))
        grid = t.blocks(g.batch_size if g.batch is not None else problem.max_batch or g.batch_size, target)
        name = common.kernel_name(problem, self.name, c)
        packings = wgmma_sources.packings(problem, found)
        packing = wgmma_sources.launches(problem, packings, self.name, c)
        product = operands.launch(name, (*mapped, *partial, *results), (grid, 1, 1), (c.threads, 1, 1), t.shared_bytes,
                                  (max(c.cluster, c.sharers), 1, 1), is_early=bool(packing))  # fmt: skip
        reduce = wgmma_patches.reduce(problem, t, self.name, target, results)
        launches = (*packing, product, *((reduce,) if partial else ()))
        return Plan(
            problem, self.name, c, target,
            template=self.template,
            constants=_constants(problem, t, target, product, reduce) | wgmma_sources.constants(packings, packing),
            kernels=tuple(launch.kernel for launch in launches),
            steps=launches,
            workspace=(*wgmma_sources.workspace(found), *wgmma_patches.workspace(t, target)),
            alignment={g.y.name: t.results.alignment} | wgmma_sources.alignment(packings),
            placements=(*wgmma_sources.placements(found), *wgmma_patches.placements(t, "fp32", t.sums)),
            numerics=_numerics(t),
            name=name,
        )  # fmt: skip


# --- sizes --------------------------------------------------------------------------------------------


def _tiling(problem: Conv, config: SwappedConfig) -> SwappedTiling:
    return SwappedTiling(sources(problem, config.patches).g, config)


def _check_multicast(t: SwappedTiling) -> None:
    c = t.c
    if c.sharers == 1:
        return
    shared = f"x_multicast={c.x_multicast} w_multicast={c.w_multicast}"
    if c.parts > 1:
        raise ConfigError(f"{shared}: expected split_k=1 and cluster=1, blocks that share tiles have whole sums")
    if c.sharers > MAX_CLUSTER:
        raise ConfigError(f"{shared}: {c.sharers} blocks, a cluster has at most {MAX_CLUSTER}")
    if t.tiles_of_group % c.x_multicast:
        raise ConfigError(f"{shared}: expected x_multicast to divide the {t.tiles_of_group} tiles of channels that "
                          "meet a tile of x")  # fmt: skip
    if c.patches == "im2col" and c.block_n % c.x_multicast:
        raise ConfigError(f"{shared}: block_n={c.block_n} positions are not loaded in {c.x_multicast} equal parts")
    if t.w_rows % (SQUARE * c.w_multicast):
        raise ConfigError(f"{shared}: {t.w_rows} channels are not loaded in {c.w_multicast} parts of eights")


def _not_copied(problem: Conv, patches: str) -> str | None:
    return wgmma_maps.not_copied(_tiling(problem, tiling.least(patches)))


def _widths(t: SwappedTiling) -> tuple[int, ...]:
    """Positions of a tile that are worth trying: some of any size, and those that divide the map evenly, in boxes whose
    last axis has eight and in order."""
    rows = t.inner[0].out if len(t.inner) > 1 else 1
    fitting = itertools.chain(
        (SQUARE * -(-rows // parts) for parts in range(1, rows + 1)),
        (SQUARE * -(-t.g.out // (SQUARE * parts)) for parts in range(1, t.g.out // LEAST_WIDTH + 1)),
    )
    return tuple(sorted({*WIDTHS, *(n for n in fitting if LEAST_WIDTH <= n <= MAX_BOX)}))


def _starts(problem: Conv) -> Iterator[SwappedConfig]:
    """Configs of the shapes that win."""
    for patches in tiling.PATCHES:
        plain = _start(problem, patches)
        t = _tiling(problem, plain)
        for width, shape, stages in itertools.product(START_WIDTHS, START_SHAPES, START_STAGES):
            yield dataclasses.replace(
                plain,
                block_n=width,
                tiles=shape[0],
                consumers=shape[1],
                sharing=shape[2],
                cluster=shape[3],
                x_stages=stages[0],
                w_stages=min(stages[1], t.w_tiles),
            )


def _start(problem: Conv, patches: str) -> SwappedConfig:
    t = _tiling(problem, tiling.least(patches))
    return SwappedConfig(patches, 1, 64, 1, 1, 2, min(2, t.w_tiles), 1, 1, 1)


# --- what the template is told ------------------------------------------------------------------------


def _constants(problem: Conv, t: SwappedTiling, target: Target, product: Launch, reduce: Launch) -> dict[str, Any]:
    return wgmma_patches.constants(problem, t, target, product, reduce) | {
        "numerics": _numerics_text(t),
        "swapped": True,
        "products": 1,
        "wgmma_type": problem.dtype.value,
        "sharers": t.c.sharers,
        "part_rows": t.loaded_box[0],
        "slab_positions": t.slab_positions,
    }


def _numerics(t: SwappedTiling) -> Numerics:
    return Numerics(steps=t.mma_steps, eps_acc=EPS_ACC, eps_in=wgmma_block.EPS_TF32 if t.item == 4 else 0.0)


def _numerics_text(t: SwappedTiling) -> str:
    products = "operands cut to TF32" if t.item == 4 else "exact products"
    parts = " Parts are added in order, in fp32." if t.c.parts > 1 else ""
    return f"{products}, sums in fp32 as tensor cores cut them, in the order of the terms.{parts}"


STRATEGY = WgmmaSwapped()
