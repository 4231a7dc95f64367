"""Implicit GEMM on tensor cores: the convolution as a matrix product whose patches of x are never written out.

One kernel for every direction: with columns that are (batch element, position) and terms that are (summed channel,
tap), every group is y[m, column] = sum over terms of w[m, term] * patches[term, column]. A block gathers the pixels of
its tile of patches while it copies them to shared memory, several tiles ahead of the tensor cores. The dgrad of a
strided convolution is one dense product for each residue of the position (`phases`). Long sums are split over blocks,
their parts added in a fixed order.
"""

from __future__ import annotations

from typing import Any

from convgen.errors import ConfigError
from convgen.gather import Axis, Gather, gather
from convgen.plan import Launch, Numerics, Placement, Plan
from convgen.problem import Accuracy, Conv, DType
from convgen.space import Space
from convgen.strategies import common, descent, implicit_gemm_cost, matrix_form, operands, partial_sums, phases, rules
from convgen.strategies import implicit_gemm_tiling as tiling
from convgen.strategies.implicit_gemm_tiling import ImplicitGemmConfig
from convgen.target import Target

MAX_COUNT = 1 << 30
"""Columns and terms that kernels count to."""
MIN_CHANNELS = 4
"""Summed channels of a group that are worth a tensor core's step."""
MAX_SPLITS = 64
MAX_PARTIAL_BYTES = 1 << 30
MAX_ROUNDS = 32
MAX_GRID_Y = 65535

_MMA_TYPES = {
    DType.FP16: "kMmaFp16",
    DType.BF16: "kMmaBf16",
    DType.FP32: "kMmaTf32",
    DType.TF32: "kMmaTf32",
    DType.INT8: "kMmaInt8",
    DType.UINT8: "kMmaUint8",
}


class ImplicitGemm:
    """See the module's text."""

    solves = Conv
    name = "implicit_gemm"
    template = "conv/implicit_gemm.cu.j2"
    summary = "a matrix product on tensor cores that gathers its operand from x as it goes"
    calibrated = True

    def why_not(self, problem: Conv, target: Target) -> str | None:
        reason = common.not_covered(problem, integers=True) or _no_tensor_core(problem, target)
        if reason is not None:
            return reason
        g = gather(problem)
        if g.w.dtype is DType.UINT8:
            return f"{g.w.name} is uint8 and in this product's place of the filter, which is multiplied as int8 only"
        if g.preimages:
            return (f"in the dgrad of pad_mode={problem.pad_mode.value} several padded positions read one pixel, "
                    "which no copy into a tile can add up; direct covers it")  # fmt: skip
        if g.is_empty or not g.has_terms:
            return "there is nothing to multiply; direct writes what is left"
        if problem.groups > 1 and min(problem.c, problem.k) // problem.groups < MIN_CHANNELS:
            c, k = problem.c // problem.groups, problem.k // problem.groups
            return (f"a group has {c} input and {k} output channels, and fewer than {MIN_CHANNELS} leave tensor cores "
                    "idle; direct and halo_tiled cover it")  # fmt: skip
        columns = (g.batch if g.batch is not None else problem.max_batch or 1) * g.out
        if max(columns, (problem.max_batch or 1) * g.taps if g.q is None else tiling.terms(g)) > MAX_COUNT:
            return f"a sum has {tiling.terms(g)} terms and there are {columns} columns, kernels count up to {MAX_COUNT}"
        start = self._start(problem, target)
        try:
            self.check(problem, start, target)
        except ConfigError as error:
            return str(error)
        return None

    def space(self, problem: Conv, target: Target) -> Space:
        g = _product(problem)
        step = tiling.STEP_BYTES // g.x.dtype.itemsize
        return Space(
            ImplicitGemmConfig,
            {
                "block_m": (16, 32, 64, 128, 256),
                "block_n": (32, 64, 128, 256),
                "block_k": (2 * step, 4 * step),
                "warps_m": (1, 2, 4),
                "warps_n": (1, 2, 4, 8),
                "stages": (2, 3, 4, 5, 6),
                "split_k": tuple(s for s in (1, 2, 4, 8, 16, 32, 64) if s == 1 or s * 64 <= tiling.terms(g)),
                "raster": (1, 2, 4, 8),
                "products": (3, 1) if problem.dtype is DType.FP32 and problem.accuracy is Accuracy.FAST
                else (3,) if problem.dtype is DType.FP32 else (1,),
            },
        )  # fmt: skip

    def check(self, problem: Conv, config: ImplicitGemmConfig, target: Target) -> None:
        g = _product(problem)
        c = config
        rules.at_least_one(c)
        for field in ("block_m", "block_n", "block_k", "warps_m", "warps_n"):
            value = getattr(c, field)
            if value & (value - 1):
                raise ConfigError(f"{field}={value}: expected a power of two, so that tiles are shared out evenly")
        if c.block_m % (16 * c.warps_m) or c.block_n % (16 * c.warps_n):
            raise ConfigError(f"block {c.block_m} x {c.block_n} of {c.warps_m} x {c.warps_n} warps: a warp loads "
                              "fragments of 16 channels and 16 columns")  # fmt: skip
        least = 2 * tiling.STEP_BYTES // g.x.dtype.itemsize
        if c.block_k < least:
            raise ConfigError(f"block_k={c.block_k}: expected at least {least}, two steps of an mma, one of which is "
                              "multiplied while the other is loaded")  # fmt: skip
        if c.stages < 2:
            raise ConfigError("stages=1: expected at least 2, one is filled while another is multiplied")
        rules.block_fits((c.threads, 1, 1), target)
        self._check_numerics(problem, g, c)
        for extent, access in ((c.block_n, tiling.x_access(g)), (c.block_m, tiling.w_access(g))):
            loads = tiling.rounds(extent, access, c) * access.pieces
            if loads > MAX_ROUNDS:
                raise ConfigError(f"a thread makes {loads} loads a step, more than "
                                  f"{MAX_ROUNDS}; use more warps or smaller tiles")  # fmt: skip
        registers = tiling.registers(g, c)
        limit = min(target.max_registers_per_thread, target.registers_per_sm // c.threads)
        if registers > limit:
            raise ConfigError(f"a warp's {c.warp_m} x {c.warp_n} sums, fragments and loads take about {registers} "
                              f"registers, a thread has {limit}")  # fmt: skip
        rules.shared_fits("stages take", tiling.shared_bytes(g, c), target)
        self._check_parts(problem, g, c)
        rules.grid_fits(problem, tiling.column_tiles(g, c, g.groups * tiling.channel_tiles(g, c)), "larger tiles")

    def _check_numerics(self, problem: Conv, g: Gather, c: ImplicitGemmConfig) -> None:
        allowed = (1, 3) if problem.dtype is DType.FP32 else (1,)
        if c.products not in allowed:
            raise ConfigError(
                f"products={c.products}: expected {' or '.join(map(str, allowed))} for {problem.dtype.value}"
            )
        eps_in = 0.0 if problem.dtype is DType.TF32 else tiling.eps_in(problem.dtype, c)
        rate = 2 * eps_in + tiling.mma_steps(g, c) * tiling.EPS_ACC
        rules.sums_are_strict(problem, rate, tiling.sum_length(g))

    def _check_parts(self, problem: Conv, g: Gather, c: ImplicitGemmConfig) -> None:
        if c.split_k == 1:
            return
        if c.split_k > min(MAX_SPLITS, MAX_GRID_Y):
            raise ConfigError(f"split_k={c.split_k}: at most {MAX_SPLITS}, every part is written and read once more")
        if c.split_k > tiling.steps(g, c):
            raise ConfigError(f"split_k={c.split_k}: there are {tiling.steps(g, c)} tiles of terms to share out")
        partial = 4 * c.split_k * common.most_results(problem, g)
        if partial > MAX_PARTIAL_BYTES:
            raise ConfigError(f"split_k={c.split_k}: partial results of {partial} bytes, more than {MAX_PARTIAL_BYTES}")

    def default(self, problem: Conv, target: Target) -> ImplicitGemmConfig:
        settled: ImplicitGemmConfig = descent.settled(self, problem, target, self._start(problem, target))
        return settled

    def _start(self, problem: Conv, target: Target) -> ImplicitGemmConfig:
        """A plain config: legal wherever the accuracy admits any."""
        g = _product(problem)
        columns = g.batch_size * tiling.phase_out(g)
        products = 3 if problem.dtype is DType.FP32 else 1
        least = 2 if g.x.dtype.itemsize == 1 else 1  # bytes that are fetched one by one need more threads
        block_m = min(max(common.power_of_two_at_least(g.m), least * 16), 64)
        block_n = min(max(common.power_of_two_at_least(columns), least * 32), 64)
        block_k = 2 * tiling.STEP_BYTES // g.x.dtype.itemsize
        return ImplicitGemmConfig(block_m, block_n, block_k, min(block_m // 16, 2), block_n // 16, 2, 1, 1, products)

    def cost(self, problem: Conv, config: ImplicitGemmConfig, target: Target) -> float:
        return implicit_gemm_cost.seconds(problem, _product(problem), config, target)

    def lower(self, problem: Conv, config: ImplicitGemmConfig, target: Target) -> Plan:
        g = _product(problem)
        c = config
        split = c.split_k > 1
        stored = (partial_sums.stored(g),) if split else (*operands.epilogue(problem), operands.y(g))
        taken = (operands.x(g), operands.w(g), *stored, *operands.runtime_batch(g))
        grid = (tiling.column_tiles(g, c, g.groups * tiling.channel_tiles(g, c)), c.split_k, 1)
        name = common.kernel_name(problem, self.name, c)
        product = operands.launch(name, taken, grid, (c.threads, 1, 1), tiling.shared_bytes(g, c))
        reduce = partial_sums.reduce(problem, g, self.name, c)
        launches = (product, reduce) if split else (product,)
        return Plan(
            problem, self.name, c, target,
            template=self.template,
            constants=self._constants(problem, g, c, target, product) | partial_sums.constants(g, reduce, c.split_k),
            kernels=tuple(launch.kernel for launch in launches),
            steps=launches,
            workspace=partial_sums.workspace(g, c.split_k),
            alignment=_alignment(g, c),
            placements=_placements(g, c),
            numerics=_numerics(problem, g, c),
            name=name,
        )  # fmt: skip

    def _constants(
        self, problem: Conv, g: Gather, c: ImplicitGemmConfig, target: Target, product: Launch
    ) -> dict[str, Any]:
        x, w = tiling.x_access(g), tiling.w_access(g)
        channels, run = tiling.store(g, c)
        inside = [_stays_inside(axis) for axis in g.axes]
        partial = c.split_k * common.most_results(problem, g) if c.split_k > 1 else 0
        constants = common.gather_constants(problem, g)
        return constants | {
            "config": str(c),
            "offset_t": "long long" if g.wide or partial > MAX_COUNT else "int",
            "border": "kZeros" if all(inside) else constants["border"],
            "kernel": product.kernel.name,
            "params": product.kernel.params,
            "numerics": _numerics_text(problem, c),
            "mma_type": _MMA_TYPES[g.x.dtype if problem.dtype.is_integer else problem.dtype],
            "bytes": g.x.dtype.itemsize == 1,
            "w_t": common.filter_type(g),
            "products": c.products,
            "q_fastest": matrix_form.q_fastest(g),
            "batch_fastest": matrix_form.batch_fastest(g),
            "phased": tiling.phased(g),
            "phases": [phases.phases(axis) for axis in g.axes],
            "phase_count": tiling.phase_count(g),
            "spreads": [phases.spread(axis) for axis in g.axes],
            "tap_steps": [phases.tap_step(axis) for axis in g.axes],
            "inside": inside,
            "whole_terms": _whole_terms(g, c),
            "filter_step": tiling.filter_step(g),
            "block_m": c.block_m,
            "block_n": c.block_n,
            "block_k": c.block_k,
            "warps_m": c.warps_m,
            "warps_n": c.warps_n,
            "warp_m": c.warp_m,
            "warp_n": c.warp_n,
            "threads": c.threads,
            "resident": tiling.resident(g, c, target),
            "stages": c.stages,
            "raster": c.raster,
            "x_along": x.along_terms,
            "x_width": x.width,
            "x_pieces": x.pieces,
            "w_along": w.along_terms,
            "w_width": w.width,
            "w_pieces": w.pieces,
            "store_channels": channels,
            "run": run,
            "table_offset": max(c.stages * tiling.stage_bytes(g, c), tiling.staging_bytes(g, c)),
        }


def _product(problem: Conv) -> Gather:
    return tiling.flattened(gather(problem))


def _no_tensor_core(problem: Conv, target: Target) -> str | None:
    if target.compute_capability < (8, 0) and problem.dtype not in (DType.FP16, *common.INTEGER_DTYPES):
        return f"tensor cores of {target.arch} multiply fp16 and int8 only; {problem.dtype.value} needs sm_80 or newer"
    return None


def _stays_inside(axis: Axis) -> bool:
    """Whether every tap of every result along the axis reads a pixel of x."""
    spread, step = phases.spread(axis), axis.step if axis.divisor == 1 else 1
    reaches = [(phase, (phase.taps - 1) * spread) for phase in phases.phases(axis) if phase.taps]
    return all(
        phase.start + min(reach, 0) >= 0 and phase.start + (phase.out - 1) * step + max(reach, 0) < axis.source
        for phase, reach in reaches
    )


def _whole_terms(g: Gather, c: ImplicitGemmConfig) -> bool:
    """Whether every phase has whole tiles of terms."""
    if g.q is None:
        return False
    return g.q % c.block_k == 0 or (not tiling.phased(g) and tiling.terms(g) % c.block_k == 0)


def _alignment(g: Gather, c: ImplicitGemmConfig) -> dict[str, int]:
    widths = ((g.x, tiling.x_access(g).loaded), (g.w, tiling.w_access(g).loaded), (g.y, tiling.store(g, c)[1]))
    return {spec.name: width * spec.dtype.itemsize for spec, width in widths if width > 1}


def _numerics(problem: Conv, g: Gather, c: ImplicitGemmConfig) -> Numerics:
    if problem.dtype.is_integer:
        return common.EXACT
    eps_in = tiling.eps_in(problem.dtype, c)
    if g.q is None:  # the sums' length is known at run time only: the direct kernel's class, which a strict one is in
        return Numerics(eps_in=eps_in)
    return Numerics(steps=tiling.mma_steps(g, c), eps_acc=tiling.EPS_ACC, eps_in=eps_in)


def _numerics_text(problem: Conv, c: ImplicitGemmConfig) -> str:
    if problem.dtype.is_integer:
        return common.exact_text(problem)
    parts = " The parts are added in order, in fp32." if c.split_k > 1 else ""
    if c.products == 3:
        return f"3xTF32: an fp32 number is two TF32 numbers; of their four products the smallest is left out.{parts}"
    if problem.dtype in (DType.FP32, DType.TF32):
        return f"operands rounded to TF32, sums in fp32 as tensor cores cut them.{parts}"
    return f"exact products, sums in fp32 as tensor cores cut them, in the order of the terms.{parts}"


def _placements(g: Gather, c: ImplicitGemmConfig) -> tuple[Placement, ...]:
    sums = "int32" if g.x.dtype.is_integer else "fp32"
    return (
        Placement(g.x.name, "L1/L2", g.x.nbytes, "read once a tap and row of tiles; neighbouring patches meet in L2"),
        Placement(g.w.name, "L1/L2", g.w.nbytes, "every block of a row of tiles reads the same part"),
        Placement("tiles", "shared", tiling.shared_bytes(g, c),
                  f"{c.stages} stages of both operands: one is multiplied while the others are on their way"),
        Placement("sums", "registers", 4 * c.warp_m * c.warp_n // 32, f"{sums}, in a warp's mma fragments"),
    )  # fmt: skip


STRATEGY = ImplicitGemm()
