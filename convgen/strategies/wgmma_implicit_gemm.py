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
from convgen.plan import MAX_CLUSTER, Buffer, Launch, Numerics, Param, Placement, Plan, WorkspaceArg
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
    wgmma_sources,
)
from convgen.strategies import wgmma_tiling as tiling
from convgen.strategies.implicit_gemm_tiling import EPS_ACC, STEP_BYTES
from convgen.strategies.operands import Operand
from convgen.strategies.wgmma_block import wgmma_columns
from convgen.strategies.wgmma_sources import Packing, Sources, sources
from convgen.strategies.wgmma_tiling import Tiling, WgmmaConfig
from convgen.target import Target
from convgen.tensor_map import MAX_BOX

MAX_SPLITS = 64
MAX_PARTIAL_BYTES = 1 << 30
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
        if c.patches == "im2col" and c.block_m > MAX_BOX:
            raise ConfigError(f"a tile of {c.block_m} positions: patches=im2col loads at most {MAX_BOX} at once")
        if t.resident and c.parts > 1:
            raise ConfigError(f"w_stages={c.w_stages}: all tiles of w stay, those of {c.parts} parts of the sums "
                              "do not")  # fmt: skip
        if c.x_stages < 2 and t.panels > 1:
            raise ConfigError("x_stages=1: expected at least 2, one is filled while another is multiplied")
        wgmma_block.check_stages(t)
        limit = wgmma_block.REGISTERS[c.consumers][1]
        if t.registers > limit:
            raise ConfigError(f"{t.sums} sums of a thread and what goes with them take about {t.registers} registers, "
                              f"with {c.consumers} consumers a thread has {limit}")  # fmt: skip
        wgmma_block.check_instruction(c)
        if not t.is_promoted:  # of fp8 there are no sums more exact
            rate = t.mma_steps * EPS_ACC + (2 * tiling.EPS_SPLIT if t.is_split else 0.0)
            rules.sums_are_strict(problem, rate, gather(problem).q_size * g.taps)
        self._check_parts(t, target)
        rules.shared_fits("stages and results take", t.shared_bytes, target)
        positions = t.units * (problem.max_batch or g.batch_size) * t.c.block_m // t.units_of_block
        wgmma_block.check_counts(t, positions)

    def _check_channels(self, g: Gather, t: Tiling) -> None:
        c = t.c
        wgmma_block.check_columns(c, g.x.dtype)
        if t.w_rows > MAX_BOX:
            raise ConfigError(f"block_n={c.block_n} of {t.shared_groups} groups: TMA brings at most {MAX_BOX} rows")
        if t.shared_groups > 1 and c.block_n != g.m:
            raise ConfigError(f"block_n={c.block_n}: {t.shared_groups} groups share a line, so expected all {g.m} "
                              "channels of each")  # fmt: skip

    def _check_parts(self, t: Tiling, target: Target) -> None:
        c = t.c
        if c.cluster > 1 and c.split_k > 1:
            raise ConfigError(f"cluster={c.cluster} split_k={c.split_k}: sums are split in one of the ways")
        if c.cluster > MAX_CLUSTER:
            raise ConfigError(f"cluster={c.cluster}: a cluster has at most {MAX_CLUSTER} blocks")
        if c.split_k > MAX_SPLITS:
            raise ConfigError(f"split_k={c.split_k}: at most {MAX_SPLITS}, every part is written and read once more")
        if t.panels_of_part * (c.parts - 1) >= t.panels:
            way = f"cluster={c.cluster}" if c.cluster > 1 else f"split_k={c.split_k}"
            raise ConfigError(f"{way}: {t.panels} panels leave a part with none")
        if c.split_k > 1:
            self._check_split(t, target)
        if c.cluster > 1:
            self._check_cluster(t)

    def _check_split(self, t: Tiling, target: Target) -> None:
        split = t.c.split_k
        if t.g.batch is None:
            raise ConfigError(f"split_k={split}: which sums are split goes with the batch, and with it what an image's "
                              "results are rounded to; a batch known at run time has split_k=1")  # fmt: skip
        tiles = t.split_tiles(t.g.batch, target)
        if not tiles:
            raise ConfigError(f"split_k={split}: {t.tiles(t.g.batch_size)} tiles leave none of {target.sm_count} "
                              "multiprocessors idle")  # fmt: skip
        if split * tiles * t.part_bytes > MAX_PARTIAL_BYTES:
            raise ConfigError(f"split_k={split}: partial results of {split * tiles * t.part_bytes} bytes, more than "
                              f"{MAX_PARTIAL_BYTES}")  # fmt: skip

    def _check_cluster(self, t: Tiling) -> None:
        c = t.c
        if c.sharing != c.consumers:
            raise ConfigError(f"cluster={c.cluster} sharing={c.sharing}: a block of a cluster has one tile, so "
                              f"expected all {c.consumers} consumers")  # fmt: skip
        if t.g.batch is None:
            raise ConfigError(f"cluster={c.cluster}: a grid of a block for each part goes with the batch; a batch "
                              "known at run time has cluster=1")  # fmt: skip
        if t.cluster_bytes > t.staging_at:
            raise ConfigError(f"cluster={c.cluster}: a block's part of the sums has {t.cluster_bytes} bytes, the "
                              f"stages where it is left have {t.staging_at}")  # fmt: skip

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
        read = (wgmma_maps.x_map(t, found.place("x")), wgmma_maps.w_map(t, found.place("w")))
        mapped = (*read, *((t.results.map(),) if t.mapped else ()))
        results = (*operands.epilogue(problem), operands.y(g), *operands.runtime_batch(g))
        grid = t.blocks(g.batch_size if g.batch is not None else problem.max_batch or g.batch_size, target)
        name = common.kernel_name(problem, self.name, c)
        packings = wgmma_sources.packings(problem, found, self.name, c)
        product = operands.launch(name, (*mapped, *partial, *results), (grid, 1, 1), (c.threads, 1, 1), t.shared_bytes,
                                  (c.cluster, 1, 1), is_early=bool(packings))  # fmt: skip
        reduce = _reduce(problem, t, target, results)
        launches = (*(p.launch for p in packings.values()), product, *((reduce,) if partial else ()))
        return Plan(
            problem, self.name, c, target,
            template=self.template,
            constants=_constants(problem, t, target, product, reduce, packings),
            kernels=tuple(launch.kernel for launch in launches),
            steps=launches,
            workspace=(
                *wgmma_sources.workspace(found),
                *((Buffer("partial", c.split_k * split * t.part_bytes),) if partial else ()),
            ),
            alignment={g.y.name: t.results.alignment} | wgmma_sources.alignment(packings),
            placements=_placements(t, found),
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


# --- the sums that are split --------------------------------------------------------------------------


def _reduce(problem: Conv, t: Tiling, target: Target, results: tuple[Operand, ...]) -> Launch:
    """The launch that adds the parts of split tiles, two results a thread, and applies the epilogue."""
    parts = Param("partial", f"const {partial_sums.sum_type(t.g)}*"), WorkspaceArg("partial")
    pairs = t.c.block_m * t.w_rows // 2
    grid = (-(-pairs // partial_sums.THREADS), max(t.split_tiles(t.g.batch_size, target), 1), 1)
    name = common.kernel_name(problem, STRATEGY.name, t.c, "reduce")
    return operands.launch(name, (parts, *results), grid, (partial_sums.THREADS, 1, 1), is_early=True)


# --- what the template is told ------------------------------------------------------------------------


_SHARED_CONSTANTS = (
    *(
        "problem",
        "direction",
        "x_name",
        "w_name",
        "y_name",
        "type_headers",
        "in_t",
        "out_t",
        "batch",
        "groups",
        "m",
        "q",
    ),
    *("axes", "y_batch", "y_m", "epilogue", "epilogue_params", "activation", "slope", "accumulate", "value_t"),
)


def _constants(
    problem: Conv, t: Tiling, target: Target, product: Launch, reduce: Launch, packings: dict[str, Packing]
) -> dict[str, Any]:
    g, c = t.g, t.c
    shared = common.gather_constants(problem, g)
    known = {name: shared[name] for name in _SHARED_CONSTANTS} | t.results.constants
    return known | {
        "config": str(c),
        "kernel": product.kernel.name,
        "params": product.kernel.params,
        "numerics": _numerics_text(problem, t),
        "offset_t": "long long" if g.wide else "int",
        "reduce_kernel": reduce.kernel.name,
        "reduce_params": reduce.kernel.params,
        "products": t.products,
        "promoted": t.is_promoted,
        "x_sets": t.x_sets,
        "parts": c.parts,
        "cluster": c.cluster > 1,
        "is_early": product.is_early,
        "multiprocessors": target.sm_count,
        "wgmma_type": "tf32" if problem.dtype is DType.FP32 else problem.dtype.value,
        "wgmma_extents": [c.block_n],
        "patches": c.patches,
        "tiles": c.tiles,
        "block_n": c.block_n,
        "consumers": c.consumers,
        "sharing": c.sharing,
        "x_stages": c.x_stages,
        "w_stages": c.w_stages,
        "threads": c.threads,
        "subtiles": c.subtiles,
        "shared_groups": t.shared_groups,
        "line": t.line,
        "step": STEP_BYTES // t.item,
        "k_steps": t.k_steps,
        "taps": t.taps,
        "panels": t.panels,
        "panels_of_part": t.panels_of_part,
        "chunks": t.chunks,
        "resident": t.resident,
        "ordered": t.ordered,
        "units": t.units,
        "square": t.square,
        "pitch": t.pitch,
        "span": t.span,
        "group_lines": t.box[-1] if c.patches == "square" else tiling.SQUARE,
        "row_lines": t.pitch[-1] if c.patches == "rows" else t.box[-1],
        "x_bytes": t.x_bytes,
        "w_bytes": t.w_bytes,
        "w_rows": t.w_rows,
        "w_line_bytes": t.w_line * t.item,
        "subtile_bytes": t.subtile_lines * wgmma_block.LINE_BYTES,
        "w_at": t.w_at,
        "staging_at": t.staging_at,
        "barriers_at": t.barriers_at,
        "slabs": c.slabs,
        "packings": packings,
        "reads_y": problem.accumulate or "residual" in problem.epilogue.operands,
        "registers": wgmma_block.REGISTERS[c.consumers],
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


def _placements(t: Tiling, found: Sources) -> tuple[Placement, ...]:
    g, c = t.g, t.c
    x_why = "the halo of a tile of results, once for all its taps" if t.is_halo else "the pixels that a tap meets"
    w_why = "all of a block's channels, loaded once" if t.resident else "a tap at a time, for the channels of a tile"
    return (
        *wgmma_sources.placements(found),
        Placement(g.x.name, "shared", c.x_stages * t.x_bytes, f"{c.x_stages} stages: {x_why}"),
        Placement(g.w.name, "shared", c.w_stages * t.w_bytes, f"{c.w_stages} tiles: {w_why}"),
        Placement(
            "sums",
            "registers",
            4 * t.sum_registers,
            f"{'int32' if g.x.dtype.is_integer else 'fp32'}, in a warpgroup's wgmma fragments",
        ),
    )


STRATEGY = WgmmaImplicitGemm()
