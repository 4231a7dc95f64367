"""Implicit GEMM on Hopper for pixels of few channels: taps and channels packed into the summed dimension.

`wgmma_implicit_gemm` takes each tap's pixels from shared memory as they lie, which asks for lines of channels of whole
steps of the tensor cores. Here each thread loads its words of the operand from the halo into registers, so a step may
hold terms of several taps and pixels begin anywhere: stems of three channels, patches, layers of 24 channels.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator
from typing import Any

from convgen.errors import ConfigError, UsageError
from convgen.gather import Gather, gather
from convgen.plan import (
    Buffer,
    Launch,
    Numerics,
    Param,
    Placement,
    Plan,
    TensorArg,
    TensorMapArg,
    WorkspaceArg,
    batch_extent,
)
from convgen.problem import Conv, DType
from convgen.space import Space
from convgen.strategies import common, descent, operands, rules, wgmma_block, wgmma_packed_cost
from convgen.strategies import wgmma_packed_tiling as tiling
from convgen.strategies.implicit_gemm_tiling import EPS_ACC
from convgen.strategies.operands import Operand
from convgen.strategies.wgmma_block import wgmma_columns
from convgen.strategies.wgmma_packed_tiling import PackedConfig, PackedTiling
from convgen.target import Target
from convgen.tensor_map import MAX_BOX, Swizzle, TensorMap

MAX_STEPS = 32
"""Steps of a panel, whose loads are written out."""
MAX_RUN_WORDS = MAX_STEPS * tiling.STEP_WORDS
PACK_THREADS = 256
OTHER_REGISTERS = 40
"""That a consumer needs beside its sums, its words and where those lie."""
START_WIDTHS = (64, 128, 256)
START_SHAPES = ((1, 4, 1), (2, 2, 1), (1, 2, 2), (2, 2, 2))
"""Tiles, consumers and those that share a tile."""
MOST_STAGES = 64
"""Tiles of w that are tried to stay."""

_TYPES = (DType.FP16, DType.BF16, DType.TF32, *common.INTEGER_DTYPES)


class WgmmaPacked:
    """See the module's text."""

    solves = Conv
    name = "wgmma_packed"
    template = "conv/wgmma_packed.cu.j2"
    summary = "Hopper's tensor cores (wgmma) for few channels: taps and channels packed, words gathered to registers"
    calibrated = True

    def why_not(self, problem: Conv, target: Target) -> str | None:
        reason = wgmma_block.why_not(problem, target, _TYPES) or _not_packed(gather(problem))
        if reason is not None:
            return reason
        try:
            self.check(problem, self._legal_start(problem, target), target)
        except ConfigError as error:
            return str(error)
        return None

    def space(self, problem: Conv, target: Target) -> Space:
        g = gather(problem)
        plain = self._plain(problem, target)
        tilings = [PackedTiling(g, config) for config in plain]
        most_vector = max((t.most_vector for t in tilings), default=1)
        vectors = tuple(v for v in tiling.VECTORS if v <= most_vector)
        loads = (dataclasses.replace(config, vector=vector) for config in plain for vector in vectors)
        w_tiles = {PackedTiling(g, config).w_tiles for config in loads}
        most_stages = min(max(w_tiles, default=1), MOST_STAGES)
        return Space(
            PackedConfig,
            {
                "width": tuple(dict.fromkeys(config.width for config in plain)),
                "tiles": (1, 2, 3, 4),
                "block_n": _channels(g),
                "consumers": (1, 2, 3, 4),
                "sharing": (1, 2, 3, 4),
                "vector": vectors,
                "panel": tuple(sorted({config.panel for config in plain})),
                "x_stages": (1, 2, 3, 4),
                "w_stages": tuple(sorted(n for n in {2, 3, 4, 6, *w_tiles} if n <= most_stages)),
                "slabs": (1, 2) if any(t.mapped for t in tilings) else (1,),
            },
        )

    def check(self, problem: Conv, config: PackedConfig, target: Target) -> None:
        g = gather(problem)
        c = config
        rules.at_least_one(c)
        if c.width not in _widths(g):
            raise ConfigError(f"width={c.width}: expected one of {', '.join(map(str, _widths(g)))}, so that 64 results "
                              "are whole rows")  # fmt: skip
        wgmma_block.check_warpgroups(c)
        t = PackedTiling(g, c)
        if c.vector not in tiling.VECTORS or c.vector > t.most_vector:
            raise ConfigError(f"vector={c.vector}: expected 1, 2 or 4, and at most {t.most_vector}: all results and "
                              "runs begin at multiples of it")  # fmt: skip
        if t.most_panel % c.panel:
            raise ConfigError(f"panel={c.panel}: expected a divisor of the {t.most_panel} that there are")
        wgmma_block.check_columns(c, g.x.dtype)
        if t.k_steps > MAX_STEPS:
            raise ConfigError(f"panel={c.panel}: {t.k_steps} steps, expected at most {MAX_STEPS} of one stage")
        rules.sums_are_strict(problem, t.mma_steps * EPS_ACC, g.q_size * g.taps)
        self._check_boxes(t)
        wgmma_block.check_stages(t)
        self._check_registers(t)
        rules.shared_fits("stages and results take", t.shared_bytes, target)
        positions = t.units * (problem.max_batch or g.batch_size) * wgmma_block.ROWS
        wgmma_block.check_counts(t, positions)

    def _check_boxes(self, t: PackedTiling) -> None:
        c = t.c
        if not t.by_tma:
            return
        if not t.whole_pixels:
            apart = c.width * t.step * t.item
            if apart % tiling.PIECE_BYTES:
                raise ConfigError(f"width={c.width}: the next 64 results' pixels begin {apart} bytes on, TMA copies "
                                  f"from multiples of {tiling.PIECE_BYTES}")  # fmt: skip
            if t.panels > 1 and t.channels_last and t.outer_axes[0] is t.last:
                raise ConfigError(f"panel={c.panel}: expected all {t.most_panel} taps, which lie in one row")
        try:
            _x_map(t)
        except UsageError as error:
            raise ConfigError(f"width={c.width} panel={c.panel}: {error}") from None

    def _check_registers(self, t: PackedTiling) -> None:
        c = t.c
        registers = t.sums + t.fragments + 2 * t.k_steps + OTHER_REGISTERS
        limit = t.registers[1]
        if registers > limit:
            raise ConfigError(f"{t.sums} sums of a thread, {t.fragments} words and what goes with them take about "
                              f"{registers} registers, with {c.consumers} consumers a thread has {limit}")  # fmt: skip
        wgmma_block.check_instruction(c)

    def default(self, problem: Conv, target: Target) -> PackedConfig:
        config: PackedConfig = wgmma_block.settled(self, problem, target, _starts(gather(problem)), self._legal_start)
        return config

    def _legal_start(self, problem: Conv, target: Target) -> PackedConfig:
        """The first plain config that is legal, or if none is, one of them."""
        return next(iter(self._plain(problem, target)), _plain_configs(gather(problem))[-1])

    def _plain(self, problem: Conv, target: Target) -> list[PackedConfig]:
        """Plain configs of each width and panel: those that are legal, as wherever any is."""
        plain = _plain_configs(gather(problem))
        return [config for config in plain if descent.cost_if_legal(self, problem, target, config) < math.inf]

    def cost(self, problem: Conv, config: PackedConfig, target: Target) -> float:
        return wgmma_packed_cost.seconds(problem, PackedTiling(gather(problem), config), target)

    def lower(self, problem: Conv, config: PackedConfig, target: Target) -> Plan:
        g = gather(problem)
        c = config
        t = PackedTiling(g, c)
        name = common.kernel_name(problem, self.name, c)
        filters = operands.w(g) if t.resident else _w_map(t)
        written = (t.results.map(),) if t.mapped else ()
        pixels = _x_map(t) if t.by_tma else operands.x(g)
        taken = (pixels, filters, *written, *operands.epilogue(problem), operands.y(g), *operands.runtime_batch(g))
        grid = t.blocks(g.batch_size if g.batch is not None else problem.max_batch or g.batch_size, target)
        product = operands.launch(name, taken, (grid, 1, 1), (c.threads, 1, 1), t.shared_bytes, is_early=not t.resident)
        pack = _pack(problem, t)
        launches = (product,) if t.resident else (pack, product)
        return Plan(
            problem, self.name, c, target,
            template=self.template,
            constants=_constants(problem, t, target, product, pack),
            kernels=tuple(launch.kernel for launch in launches),
            steps=launches,
            workspace=() if t.resident else (Buffer("packed", _packed_words(t) * tiling.WORD_BYTES),),
            alignment={g.y.name: t.results.alignment},
            placements=_placements(t),
            numerics=_numerics(problem, t),
            name=name,
        )  # fmt: skip


# --- what it is for -----------------------------------------------------------------------------------


def _not_packed(g: Gather) -> str | None:
    if g.groups > 1:
        return f"{g.groups} groups: the channels of one are no neighbours of those of the next tap; direct covers it"
    t = PackedTiling(g, _start(g, _widths(g)[0], 1))
    if t.run_words > MAX_RUN_WORDS:
        return (f"a row of the filter has {t.run} neighbours, more than the {MAX_RUN_WORDS * t.elements} that are "
                "packed; wgmma_implicit_gemm is for many channels")  # fmt: skip
    if not t.merged and t.pixel * t.last.spread % t.elements:
        return (f"dilation={t.last.spread} along {t.last.name}: the next tap is {t.pixel * t.last.spread} elements on, "
                f"no whole words of {t.elements}")  # fmt: skip
    if g.m * g.q_size * g.taps > wgmma_block.MAX_COUNT:
        return f"{g.w.name} has {g.w.size} elements, kernels count up to {wgmma_block.MAX_COUNT}"
    return None


def _widths(g: Gather) -> tuple[int, ...]:
    """Of 64 results along the last axis; a single axis has all of them."""
    return tiling.WIDTHS[:1] if len(g.axes) == 1 else tiling.WIDTHS


def _panels(g: Gather) -> tuple[int, ...]:
    """Divisors of the outermost axis' taps, or of a channels-first tensor's channels."""
    most = PackedTiling(g, _start(g, tiling.WIDTHS[0], 1)).most_panel
    return tuple(count for count in range(1, min(most, MAX_BOX) + 1) if most % count == 0)


def _channels(g: Gather) -> tuple[int, ...]:
    """Channels of a tile that are worth trying."""
    return wgmma_block.widths(g, (16, 32, 48, 64, 96, 128, 192, 256))


def _plain_configs(g: Gather) -> list[PackedConfig]:
    return [_start(g, width, panel) for width, panel in itertools.product(_widths(g), _panels(g)[::-1])]


def _starts(g: Gather) -> Iterator[PackedConfig]:
    """Configs of the shapes that win."""
    most = max(_channels(g))
    for width, panel, channels, shape in itertools.product(_widths(g), _panels(g), START_WIDTHS, START_SHAPES):
        tiles, consumers, sharing = shape
        w_tiles = PackedTiling(g, _start(g, width, panel)).w_tiles
        for w_stages in {w_tiles, min(4, w_tiles)}:
            yield PackedConfig(width, tiles, min(channels, most), consumers, sharing, 1, panel, 2, w_stages, 1)


def _start(g: Gather, width: int, panel: int) -> PackedConfig:
    channels = min(wgmma_columns(g.m, g.x.dtype), 16)
    c = PackedConfig(width, 1, channels, 1, 1, 1, panel, 1, 1, 1)
    return dataclasses.replace(c, w_stages=min(2, PackedTiling(g, c).w_tiles))


# --- what kernels take --------------------------------------------------------------------------------


def _x_map(t: PackedTiling) -> Operand:
    g, item = t.g, t.item
    axes = tuple(reversed(g.axes))
    outer = tuple(a.x_stride * item for a in axes[1:])
    if t.whole_pixels:
        row: tuple[int, ...] = (t.pixel, g.axes[-1].source)
        strides: tuple[int, ...] = (g.axes[-1].x_stride * item, *outer)
    else:
        row, strides = (g.axes[-1].source * t.pixel,), outer
    channels = () if t.channels_last else (g.q_size,)
    planes = () if t.channels_last else (g.x_q * item,)
    extents = (*row, *(a.source for a in axes[1:]), *channels, g.batch_size)
    found = TensorMap(g.x.dtype, extents, (*strides, *planes, g.x_batch * item), t.box)
    arg = TensorMapArg(TensorArg(g.x.name), found, outermost=batch_extent(1) if g.batch is None else None)
    return Param("x", "const __grid_constant__ TensorMap"), arg


def _packed_words(t: PackedTiling) -> int:
    return t.g.m * t.w_tiles * (wgmma_block.LINE_BYTES // tiling.WORD_BYTES)


def _w_map(t: PackedTiling) -> Operand:
    line = wgmma_block.LINE_BYTES // t.item
    extents, strides = (t.w_tiles * line, t.g.m), (t.w_tiles * wgmma_block.LINE_BYTES,)
    found = TensorMap(t.g.w.dtype, extents, strides, (line, t.c.block_n), swizzle=Swizzle.B128)
    return Param("w_map", "const __grid_constant__ TensorMap"), TensorMapArg(WorkspaceArg("packed"), found)


def _pack(problem: Conv, t: PackedTiling) -> Launch:
    """The launch that lays out tiles of the filter which do not stay."""
    packed = Param("packed", "unsigned*"), WorkspaceArg("packed")
    grid = (-(-_packed_words(t) // PACK_THREADS), 1, 1)
    name = common.kernel_name(problem, STRATEGY.name, t.c, "filter")
    return operands.launch(name, (operands.w(t.g), packed), grid, (PACK_THREADS, 1, 1))


# --- what the template is told ------------------------------------------------------------------------


_SHARED_CONSTANTS = (
    *("problem", "direction", "x_name", "w_name", "y_name", "type_headers", "in_t", "out_t", "offset_t", "batch", "m"),
    *("q", "axes", "x_batch", "x_q", "y_batch", "y_m", "epilogue", "epilogue_params", "activation", "slope"),
    *("accumulate", "value_t"),
)  # fmt: skip


def _constants(problem: Conv, t: PackedTiling, target: Target, product: Launch, pack: Launch) -> dict[str, Any]:
    g, c = t.g, t.c
    shared = common.gather_constants(problem, g)
    runs = t.runs
    known = {name: shared[name] for name in _SHARED_CONSTANTS} | t.results.constants
    return known | {
        "config": str(c),
        "kernel": product.kernel.name,
        "params": product.kernel.params,
        "pack_kernel": pack.kernel.name,
        "pack_params": pack.kernel.params,
        "numerics": _numerics_text(problem),
        "filter_t": common.filter_type(g),
        "multiprocessors": target.sm_count,
        "wgmma_type": problem.dtype.value,
        "wgmma_extents": [c.block_n],
        "patches": "packed",
        "swapped": False,
        "parts": 1,
        "cluster": False,
        "w_multicast": 1,
        "tiles": c.tiles,
        "block_n": c.block_n,
        "w_rows": c.block_n,
        "consumers": c.consumers,
        "sharing": c.sharing,
        "panel": c.panel,
        "panel_axis": t.outer_axes[0].name if t.channels_last and t.outer_axes else "",
        "x_stages": c.x_stages,
        "w_stages": c.w_stages,
        "threads": c.threads,
        "subtiles": c.subtiles,
        "channels_last": t.channels_last,
        "whole_pixels": t.whole_pixels,
        "rank": len(t.box),
        "item": t.item,
        "elements": t.elements,
        "run": t.run,
        "run_words": t.run_words,
        "runs": runs,
        "runs_of_panel": math.prod(r.count for r in runs),
        "panels": t.panels,
        "k_steps": t.k_steps,
        "lines": t.lines,
        "resident": t.resident,
        "units": t.units,
        "square": t.square,
        "position_steps": t.position_steps,
        "by_tma": t.by_tma,
        "copying": tiling.COPYING,
        "phase": t.phase,
        "lead": t.lead,
        "shifted": t.shifted,
        "vector": c.vector,
        "row": t.row,
        "box_rows": t.box_rows,
        "rows_of_box": math.prod(t.box_rows),
        "box_bytes": t.box_bytes,
        "x_bytes": t.x_bytes,
        "w_bytes": t.w_bytes,
        "subtile_bytes": t.subtile_bytes,
        "w_at": t.w_at,
        "staging_at": t.staging_at,
        "barriers_at": t.barriers_at,
        "slabs": c.slabs,
        "reads_y": problem.accumulate or "residual" in problem.epilogue.operands,
        "registers": t.registers,
    }


def _numerics(problem: Conv, t: PackedTiling) -> Numerics:
    if problem.dtype.is_integer:
        return common.EXACT
    eps_in = wgmma_block.EPS_TF32 if problem.dtype is DType.TF32 else 0.0
    return Numerics(steps=t.mma_steps, eps_acc=EPS_ACC, eps_in=eps_in)


def _numerics_text(problem: Conv) -> str:
    if problem.dtype.is_integer:
        return common.exact_text(problem)
    products = "operands cut to TF32" if problem.dtype is DType.TF32 else "exact products"
    return f"{products}, sums in fp32 as tensor cores cut them, in the order of the terms."


def _placements(t: PackedTiling) -> tuple[Placement, ...]:
    g, c = t.g, t.c
    w_why = "all of a block's channels, packed once" if t.resident else "up to four steps at a time, packed before"
    kind = "int32" if g.x.dtype.is_integer else "fp32"
    return (
        Placement(g.x.name, "shared", c.slots * c.x_stages * t.x_bytes, "the pixels that 64 results meet, once"),
        Placement(g.x.name, "registers", 4 * t.fragments, "words of a thread's rows, of two tiles of w"),
        Placement(g.w.name, "shared", t.staging_at - t.w_at, f"{c.w_stages} tiles: {w_why}"),
        Placement("sums", "registers", 4 * t.sums, f"{kind}, in a warpgroup's wgmma fragments"),
    )


STRATEGY = WgmmaPacked()
