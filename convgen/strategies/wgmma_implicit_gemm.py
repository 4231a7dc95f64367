"""Implicit GEMM on Hopper: tiles brought by the copy engine (TMA), multiplied by warpgroups where they lie (wgmma).

Where `implicit_gemm` copies every pixel once a tap into its tiles, here the halo of a tile of results is loaded once
and each tap's operand is the same pixels from another line on. Blocks stay on their multiprocessor and work on tile
after tile: one warpgroup calls for what comes next while the others multiply and store.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator
from typing import Any

from convgen.errors import ConfigError
from convgen.gather import Gather, gather
from convgen.plan import Launch, Numerics, Plan
from convgen.problem import Conv, DType
from convgen.space import Space
from convgen.strategies import (
    common,
    descent,
    operands,
    partial_sums,
    rules,
    wgmma_block,
    wgmma_cost,
    wgmma_maps,
    wgmma_patches,
    wgmma_rules,
    wgmma_runs,
    wgmma_sources,
)
from convgen.strategies import wgmma_tiling as tiling
from convgen.strategies.implicit_gemm_tiling import EPS_ACC
from convgen.strategies.wgmma_block import wgmma_columns
from convgen.strategies.wgmma_sources import sources
from convgen.strategies.wgmma_tiling import Tiling, WgmmaConfig
from convgen.target import Target
from convgen.tensor_map import MAX_BOX

START_WIDTHS = (64, 96, 128, 192)
START_SHAPES = ((2, 2, 1, 1), (1, 4, 2, 1), (1, 3, 3, 1), (3, 1, 1, 1), (1, 1, 1, 4), (1, 2, 2, 8))
"""Tiles, consumers, those that share a tile, and blocks that share its sums."""
START_STAGES = ((2, 4), (4, 4), (6, 6), (4, 9))

_TYPES = (DType.FP16, DType.BF16, DType.TF32, DType.FP32, DType.FP8, *common.INTEGER_DTYPES)


class WgmmaImplicitGemm:
    """See the module's text."""

    solves = Conv
    name = "wgmma_implicit_gemm"
    template = "conv/wgmma_implicit_gemm.cu.j2"
    summary = "Hopper's tensor cores (wgmma) on halo tiles that its copy engine (TMA) brings"
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
        most = t.panels
        return Space(
            WgmmaConfig,
            {
                "patches": tuple(p for p in tiling.PATCHES if wgmma_maps.why_not(problem, p) is None),
                "tiles": (1, 2, 3, 4),
                "block_n": _widths(g, t),
                "consumers": (1, 2, 3, 4),
                "sharing": (1, 2, 3, 4),
                "x_stages": (2, 3, 4, 6, 8),
                "w_stages": tuple(sorted({2, 3, 4, 5, 6, 8, *([t.w_tiles] if t.w_tiles <= 64 else [])})),
                "slabs": (0, 1, 2) if t.results.item == 4 else (1, 2),
                "split_k": tuple(s for s in (1, 2, 4, 8, 16) if s == 1 or (g.batch is not None and s <= most)),
                "cluster": tuple(s for s in (1, 2, 4, 8) if s == 1 or (g.batch is not None and s <= most)),
            },
        )  # fmt: skip

    def check(self, problem: Conv, config: WgmmaConfig, target: Target) -> None:
        c = config
        rules.one_of(c, "patches", tiling.PATCHES)
        rules.at_least_one(c, but="slabs" if problem.outputs[0].dtype.itemsize == 4 else "")
        reason = wgmma_maps.why_not(problem, c.patches)
        if reason is not None:
            raise ConfigError(f"patches={c.patches}: {reason}")
        wgmma_block.check_warpgroups(c)
        t = _tiling(problem, c)
        g = t.g
        self._check_channels(g, t)
        if not t.is_promoted:  # of fp8 there are no sums more exact
            rate = t.mma_steps * EPS_ACC + (2 * tiling.EPS_SPLIT if t.is_split else 0.0)
            rules.sums_are_strict(problem, rate, gather(problem).q_size * g.taps)
        positions = t.units * (problem.max_batch or g.batch_size) * t.positions // t.units_of_block
        wgmma_rules.check(t, positions, target)

    def _check_channels(self, g: Gather, t: Tiling) -> None:
        c = t.c
        wgmma_block.check_columns(c, g.x.dtype)
        if t.w_rows > MAX_BOX:
            raise ConfigError(f"block_n={c.block_n} of {t.shared_groups} groups: TMA brings at most {MAX_BOX} rows")
        if t.shared_groups > 1 and c.block_n != g.m:
            raise ConfigError(f"block_n={c.block_n}: {t.shared_groups} groups share a line, so expected all {g.m} "
                              "channels of each")  # fmt: skip

    def default(self, problem: Conv, target: Target) -> WgmmaConfig:
        config: WgmmaConfig = wgmma_block.settled(self, problem, target, _starts(problem), self._legal_start)
        return config

    def _legal_start(self, problem: Conv, target: Target) -> WgmmaConfig:
        """A plain config: the first that is legal; the last of them is legal wherever any is."""
        starts = [_start(problem, patches) for patches in tiling.PATCHES]
        legal = (s for s in starts if descent.cost_if_legal(self, problem, target, s) < math.inf)
        return next(legal, starts[-1])

    def cost(self, problem: Conv, config: WgmmaConfig, target: Target) -> float:
        return wgmma_cost.seconds(problem, _tiling(problem, config), sources(problem, config.patches).packed, target)

    def lower(self, problem: Conv, config: WgmmaConfig, target: Target) -> Plan:
        c = config
        found = sources(problem, c.patches)
        g, t = found.g, _tiling(problem, c)
        split = t.split_tiles(g.batch_size, target)
        partial = (partial_sums.stored(g),) if split else ()
        read = (wgmma_maps.x_map(t, found.place("x")), wgmma_maps.w_map(t, found.place("w"), t.is_split))
        mapped = (*read, *((t.results.map(),) if t.mapped else ()))
        results = (*operands.epilogue(problem), operands.y(g), *operands.runtime_batch(g))
        grid = t.blocks(g.batch_size if g.batch is not None else problem.max_batch or g.batch_size, target)
        name = common.kernel_name(problem, self.name, c)
        packings = wgmma_sources.packings(problem, found)
        packing = wgmma_sources.launches(problem, packings, self.name, c)
        product = operands.launch(name, (*mapped, *partial, *results), (grid, 1, 1), (c.threads, 1, 1), t.shared_bytes,
                                  (c.cluster, 1, 1), is_early=bool(packing))  # fmt: skip
        reduce = wgmma_patches.reduce(problem, t, self.name, target, results)
        launches = (*packing, product, *((reduce,) if partial else ()))
        return Plan(
            problem, self.name, c, target,
            template=self.template,
            constants=_constants(problem, t, target, product, reduce) | wgmma_sources.constants(packings, packing),
            kernels=tuple(launch.kernel for launch in launches),
            steps=launches,
            workspace=(*wgmma_sources.workspace(found), *wgmma_patches.workspace(t, target)),
            alignment={g.y.name: t.results.alignment} | wgmma_sources.alignment(packings) | wgmma_runs.alignment(t),
            placements=(
                *wgmma_sources.placements(found),
                *wgmma_patches.placements(t, "int32" if g.x.dtype.is_integer else "fp32", t.sum_registers),
            ),
            numerics=_numerics(problem, t),
            name=name,
        )  # fmt: skip


# --- sizes --------------------------------------------------------------------------------------------


def _tiling(problem: Conv, config: WgmmaConfig) -> Tiling:
    products = tiling.SPLIT_PRODUCTS if wgmma_sources.is_split(problem) else 1
    return Tiling(sources(problem, config.patches).g, config, products)


def _widths(g: Gather, t: Tiling) -> tuple[int, ...]:
    """Channels of a tile that are worth trying."""
    if t.shared_groups > 1:
        return (g.m,)
    return wgmma_block.widths(g, (32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256))


def _starts(problem: Conv) -> Iterator[WgmmaConfig]:
    """Configs of the shapes that win."""
    for patches, width, shape, stages in itertools.product(tiling.PATCHES, START_WIDTHS, START_SHAPES, START_STAGES):
        plain = _start(problem, patches)
        t = _tiling(problem, plain)
        yield dataclasses.replace(
            plain,
            block_n=plain.block_n if t.shared_groups > 1 else min(width, wgmma_columns(t.g.m, t.g.x.dtype)),
            tiles=shape[0],
            consumers=shape[1],
            sharing=shape[2],
            cluster=shape[3],
            x_stages=stages[0],
            w_stages=min(stages[1], t.w_tiles),
        )


def _start(problem: Conv, patches: str) -> WgmmaConfig:
    t = _tiling(problem, tiling.least(patches))
    g = t.g
    width = g.m if t.shared_groups > 1 else min(wgmma_columns(g.m, g.x.dtype), 64)
    return WgmmaConfig(patches, 1, width, 1, 1, 2, min(2, t.w_tiles), 0 if t.results.item == 4 else 1, 1, 1)


# --- what the template is told ------------------------------------------------------------------------


def _constants(problem: Conv, t: Tiling, target: Target, product: Launch, reduce: Launch) -> dict[str, Any]:
    return wgmma_patches.constants(problem, t, target, product, reduce) | {
        "numerics": _numerics_text(problem, t),
        "swapped": False,
        "products": t.products,
        "promoted": t.is_promoted,
        "x_sets": t.x_sets,
        "wgmma_type": "tf32" if problem.dtype is DType.FP32 else problem.dtype.value,
        "subtile_bytes": t.subtile_lines * wgmma_block.LINE_BYTES,
        "runs": wgmma_runs.runs(problem, t),
    }


def _numerics(problem: Conv, t: Tiling) -> Numerics:
    if problem.dtype.is_integer:
        return common.EXACT
    if t.is_promoted:
        return Numerics(steps=t.mma_steps, eps_acc=tiling.EPS_FP8)
    eps_in = tiling.EPS_SPLIT if t.is_split else wgmma_block.EPS_TF32 if t.item == 4 else 0.0
    return Numerics(steps=t.mma_steps, eps_acc=EPS_ACC, eps_in=eps_in)


def _numerics_text(problem: Conv, t: Tiling) -> str:
    if problem.dtype.is_integer:
        return common.exact_text(problem)
    parts = " Parts are added in order, in fp32." if t.c.parts > 1 else ""
    if t.is_split:
        return f"3xTF32: an fp32 number is two TF32 numbers; of their four products the smallest is left out.{parts}"
    if t.is_promoted:
        return ("exact products, sums of a tap and a line as tensor cores cut them to 13 bits, added in order in fp32."
                f"{parts}")  # fmt: skip
    products = "operands cut to TF32" if t.item == 4 else "exact products"
    return f"{products}, sums in fp32 as tensor cores cut them, in the order of the terms.{parts}"


STRATEGY = WgmmaImplicitGemm()
