"""Explicit im2col: the input unrolled into a matrix of patches, then a matrix product of our own.

With columns that are (batch element, position) and terms that are (summed channel, tap), every group is
y[m, column] = sum over terms of w[m, term] * unrolled[term, column]. The unrolled matrix lies in the workspace in the
operand's storage type. When it would pass the cap it is cut into chunks along its longer side, each unrolled and
multiplied before the next: columns by batch element and then by row (fprop, dgrad), or terms, whose partial results are
added in a fixed order at the end (wgrad).
"""

from __future__ import annotations

import dataclasses
from typing import Any

from convgen.errors import ConfigError
from convgen.gather import Gather, gather
from convgen.plan import (
    Buffer,
    Extent,
    Launch,
    Param,
    Placement,
    Plan,
    ScalarArg,
    Step,
    WorkspaceArg,
    batch_extent,
)
from convgen.problem import Conv
from convgen.space import Space
from convgen.strategies import common, descent, im2col_cost, matrix_form, operands, partial_sums, rules
from convgen.strategies import im2col_tiling as tiling
from convgen.strategies.im2col_tiling import MAX_COLUMNS, PACK, Chunks, Im2colConfig
from convgen.strategies.operands import Operand
from convgen.target import Target

THREADS = 256
"""Threads a block of the unrolling."""
MAX_CHUNKS = 1024
MAX_MATRIX_BYTES = 1 << 40
MAX_SPLITS = 64


class Im2col:
    """See the module's text."""

    solves = Conv
    name = "im2col"
    template = "conv/im2col.cu.j2"
    summary = "the input unrolled into a matrix of patches in the workspace, then a register-blocked GEMM"
    calibrated = True

    def why_not(self, problem: Conv, target: Target) -> str | None:
        reason = common.not_covered(problem)
        if reason is not None:
            return reason
        g = gather(problem)
        if g.preimages:
            return (f"in the dgrad of pad_mode={problem.pad_mode.value} several padded positions read one pixel, so "
                    "the unrolled matrix has no fixed height; direct covers it")  # fmt: skip
        if g.q is None:
            return ("the sums run over the batch, which is known at run time only, so the unrolled matrix has no fixed "
                    "height; direct covers it")  # fmt: skip
        if g.batch is None and problem.max_batch is None:
            return "the batch has no bound, so neither has the unrolled matrix; give one as in n=*<=128"
        if g.is_empty or not g.has_terms:
            return "there is nothing to multiply; direct writes what is left"
        columns = (g.batch if g.batch is not None else problem.max_batch or 1) * g.out
        nbytes = g.groups * g.q * g.taps * columns * g.x.dtype.itemsize
        if nbytes > MAX_MATRIX_BYTES and not matrix_form.is_matrix(g):
            return (
                f"the unrolled matrix would have {nbytes} bytes, and even writing it would take longer than direct does"
            )
        if max(g.q * g.taps, columns) > MAX_COLUMNS:
            return f"the matrix has {g.q * g.taps} terms and {columns} columns, kernels count up to {MAX_COLUMNS}"
        return None

    def space(self, problem: Conv, target: Target) -> Space:
        g = gather(problem)
        terms = g.q_size * g.taps
        return Space(
            Im2colConfig,
            {
                "patches": ("rows", "columns", *(("in_place",) if matrix_form.is_matrix(g) else ())),
                "block_m": (4, 8, 16, 32, 64, 128, 256),
                "block_n": (32, 64, 128, 256),
                "block_k": (4, 8, 16, 32),
                "thread_m": (1, 2, 4, 8, 16),
                "thread_n": (1, 2, 4, 8, 16),
                "split_k": tuple(s for s in (1, 2, 4, 8, 16, 32, 64) if s == 1 or s * 16 <= terms),
                "workspace_mib": (16, 32, 64, 256, 1024, 4096),
            },
        )

    def check(self, problem: Conv, config: Im2colConfig, target: Target) -> None:
        g = gather(problem)
        c = config
        rules.one_of(c, "patches", ("rows", "columns", "in_place"))
        if c.patches == "in_place" and not matrix_form.is_matrix(g):
            raise ConfigError("patches=in_place: x is the unrolled matrix only without padding and with a single tap "
                              "or a single position along every axis")  # fmt: skip
        for field in ("block_m", "block_n", "block_k", "thread_m", "thread_n"):
            value = getattr(c, field)
            if value < 1 or value & (value - 1):
                raise ConfigError(f"{field}={value}: expected a power of two, so that tiles are shared out evenly")
        rules.at_least_one(c)
        if c.block_k % PACK:
            raise ConfigError(f"block_k={c.block_k}: expected a multiple of {PACK}, what a load of a patch brings")
        if c.block_m % (4 * c.thread_m) or c.block_n % (8 * c.thread_n):
            raise ConfigError(f"block {c.block_m} x {c.block_n} of threads' {c.thread_m} x {c.thread_n}: a warp is "
                              "4 x 8 threads, so that its shared loads have no bank conflict")  # fmt: skip
        rules.block_fits((c.threads, 1, 1), target)
        registers = tiling.registers(g, c)
        limit = min(target.max_registers_per_thread, target.registers_per_sm // c.threads)
        if registers > limit:
            raise ConfigError(f"thread_m={c.thread_m}, thread_n={c.thread_n}, block_k={c.block_k}: sums, operands and "
                              f"elements under way take about {registers} registers, a thread has {limit}")  # fmt: skip
        rules.shared_fits("tiles take", tiling.shared_bytes(c), target)
        self._check_sizes(problem, g, c)

    def _check_sizes(self, problem: Conv, g: Gather, c: Im2colConfig) -> None:
        chunks = tiling.chunks(problem, g, c)
        if c.split_k > MAX_SPLITS:
            raise ConfigError(f"split_k={c.split_k}: at most {MAX_SPLITS}, every part is written and read once more")
        if c.split_k > chunks.terms // c.block_k:
            raise ConfigError(
                f"split_k={c.split_k}: a chunk has {chunks.terms // c.block_k} tiles of terms to share out"
            )
        parts = c.split_k * chunks.parts
        if len(chunks.starts) > MAX_CHUNKS:
            raise ConfigError(f"workspace_mib={c.workspace_mib}: {len(chunks.starts)} chunks, and launching more than "
                              f"{MAX_CHUNKS} would take longer than the work")  # fmt: skip
        partial = 4 * parts * common.most_results(problem, g)
        if parts > 1 and partial > c.workspace_bytes:
            raise ConfigError(f"split_k={c.split_k}: partial results of {partial} bytes pass {c.workspace_mib} MiB")
        rules.grid_fits(problem, tiling.column_tiles(g, c, chunks, tiling.channel_tiles(g, c)), "larger tiles")

    def default(self, problem: Conv, target: Target) -> Im2colConfig:
        settled: Im2colConfig = descent.settled(self, problem, target, self._start(problem, target))
        return settled

    def _start(self, problem: Conv, target: Target) -> Im2colConfig:
        g = gather(problem)
        columns = g.batch_size * g.out
        block_m = min(max(common.power_of_two_at_least(g.m), 4), 128)
        block_n = min(max(common.power_of_two_at_least(columns), 32), 128)

        def blocks() -> int:
            return g.groups * -(-g.m // block_m) * -(-columns // block_n)

        if blocks() < target.sm_count and block_n > 64:
            block_n = 64
        if blocks() < target.sm_count and block_m > 64:
            block_m = 64
        patches = "in_place" if matrix_form.is_matrix(g) else "rows" if matrix_form.rows_suit(g) else "columns"
        block_k = 8 if g.x.dtype.itemsize == 4 else 16
        config = Im2colConfig(patches, block_m, block_n, block_k, max(block_m // 16, 1), block_n // 16, 1, 256)
        config = _with_room(problem, g, config)
        chunks = tiling.chunks(problem, g, config)
        wanted = min(-(-2 * target.sm_count // blocks()), MAX_SPLITS, max(chunks.terms // 128, 1))
        affordable = config.workspace_bytes // (4 * chunks.parts * common.most_results(problem, g))
        return dataclasses.replace(config, split_k=common.power_of_two_at_most(min(wanted, affordable)))

    def cost(self, problem: Conv, config: Im2colConfig, target: Target) -> float:
        return im2col_cost.seconds(problem, gather(problem), config, target)

    def lower(self, problem: Conv, config: Im2colConfig, target: Target) -> Plan:
        g = gather(problem)
        c = config
        chunks = tiling.chunks(problem, g, c)
        parts = c.split_k * chunks.parts
        unrolls = [self._unroll(problem, g, c, chunks, start) for start in chunks.starts]
        gemms = [self._gemm(problem, g, c, chunks, start) for start in chunks.starts]
        reduce = partial_sums.reduce(problem, g, self.name, c)
        steps: list[Step] = []
        for unroll, gemm in zip(unrolls, gemms, strict=True):
            steps += (gemm,) if c.patches == "in_place" else (unroll, gemm)
        if parts > 1:
            steps.append(reduce)
        launches = tuple(step for step in steps if isinstance(step, Launch))
        return Plan(
            problem, self.name, c, target,
            template=self.template,
            constants=self._constants(problem, g, c, chunks, target, unrolls[0], gemms[0])
            | partial_sums.constants(g, reduce, parts),
            kernels=tuple(dict.fromkeys(launch.kernel for launch in launches)),
            steps=tuple(steps),
            workspace=(*_matrix(g, c, chunks), *partial_sums.workspace(g, parts)),
            alignment=_alignment(g, c, chunks),
            placements=_placements(g, c, chunks),
            name=common.kernel_name(problem, self.name, c),
        )  # fmt: skip

    def _unroll(self, problem: Conv, g: Gather, c: Im2colConfig, chunks: Chunks, start: tuple[int, int, int]) -> Launch:
        columns = Param("columns", f"{g.x.dtype.ctype}*"), WorkspaceArg("columns")
        taken = (operands.x(g), columns, *operands.runtime_batch(g), *_place(chunks, start))
        name, grid = common.kernel_name(problem, self.name, c, "unroll"), (_unroll_blocks(g, chunks), 1, 1)
        return operands.launch(name, taken, grid, (THREADS, 1, 1))

    def _gemm(self, problem: Conv, g: Gather, c: Im2colConfig, chunks: Chunks, start: tuple[int, int, int]) -> Launch:
        columns = Param("columns", f"const {g.x.dtype.ctype}*"), WorkspaceArg("columns")
        matrix = operands.x(g) if c.patches == "in_place" else columns
        split = c.split_k * chunks.parts > 1
        stored = (partial_sums.stored(g),) if split else (*operands.epilogue(problem), operands.y(g))
        taken = (matrix, operands.w(g), *stored, *operands.runtime_batch(g), *_place(chunks, start))
        grid = (tiling.column_tiles(g, c, chunks, tiling.channel_tiles(g, c)), c.split_k, 1)
        name = common.kernel_name(problem, self.name, c, "gemm")
        return operands.launch(name, taken, grid, (c.threads, 1, 1), tiling.shared_bytes(c))

    def _constants(
        self, problem: Conv, g: Gather, c: Im2colConfig, chunks: Chunks, target: Target, unroll: Launch, gemm: Launch
    ) -> dict[str, Any]:
        along_terms, x_pack = tiling.matrix_access(g, c, chunks)
        filter_along_terms, filter_pack = matrix_form.filter_access(g)
        unrolled = common.largest_extent(problem, _unroll_blocks(g, chunks)) * THREADS * PACK
        partial = c.split_k * chunks.parts * common.most_results(problem, g) + partial_sums.THREADS
        wide = g.wide or max(unrolled, partial) > (1 << 31) - 1
        return common.gather_constants(problem, g) | {
            "config": str(c),
            "offset_t": "long long" if wide else "int",
            "unroll_kernel": unroll.kernel.name,
            "gemm_kernel": gemm.kernel.name,
            "unroll_params": unroll.kernel.params,
            "gemm_params": gemm.kernel.params,
            "patches": c.patches,
            "chunk_batch": chunks.batch,
            "chunk_rows": chunks.rows,
            "chunk_out": chunks.out,
            "chunk_terms": chunks.terms,
            "chunk_count": len(chunks.starts),
            "q_fastest": matrix_form.q_fastest(g),
            "batch_fastest": matrix_form.batch_fastest(g),
            "block_m": c.block_m,
            "block_n": c.block_n,
            "block_k": c.block_k,
            "thread_m": c.thread_m,
            "thread_n": c.thread_n,
            "threads": c.threads,
            "resident": tiling.resident(g, c, target),
            "splits": c.split_k,
            "along_terms": along_terms,
            "x_pack": x_pack,
            "filter_along_terms": filter_along_terms,
            "filter_pack": filter_pack,
            "filter_step": matrix_form.filter_step(g),
            "store": tiling.store(g, c, chunks)[0],
        }


# --- chunks ------------------------------------------------------------------------------------------


def _place(chunks: Chunks, start: tuple[int, int, int]) -> tuple[Operand, ...]:
    """Where the chunk begins, which a kernel is told if there are several."""
    names = ("first_batch", "first_row", "first_term") if len(chunks.starts) > 1 else ()
    return tuple((Param(name, "int"), ScalarArg(value)) for name, value in zip(names, start, strict=False))


def _matrix(g: Gather, c: Im2colConfig, chunks: Chunks) -> tuple[Buffer, ...]:
    if c.patches == "in_place":
        return ()
    return (Buffer("columns", tiling.column_packs(chunks, g.groups * chunks.terms * PACK * g.x.dtype.itemsize)),)


def _with_room(problem: Conv, g: Gather, c: Im2colConfig) -> Im2colConfig:
    """The config with its cap doubled until a chunk fits, and the chunks and the partial results are few enough."""
    while True:
        try:
            chunks = tiling.chunks(problem, g, c)
        except ConfigError:
            pass
        else:
            partial = 4 * chunks.parts * common.most_results(problem, g) if chunks.parts > 1 else 0
            if len(chunks.starts) <= MAX_CHUNKS and partial <= c.workspace_bytes:
                return c
        c = dataclasses.replace(c, workspace_mib=2 * c.workspace_mib)


def _unroll_blocks(g: Gather, chunks: Chunks) -> Extent:
    if chunks.batch is None:
        return batch_extent(g.groups * chunks.terms * -(-chunks.out // PACK), THREADS)
    return -(-g.groups * chunks.terms * chunks.columns // (PACK * THREADS))


# --- accesses ----------------------------------------------------------------------------------------


def _alignment(g: Gather, c: Im2colConfig, chunks: Chunks) -> dict[str, int]:
    packs = (
        (g.x, tiling.matrix_access(g, c, chunks)[1]),
        (g.w, matrix_form.filter_access(g)[1]),
        (g.y, tiling.store(g, c, chunks)[1]),
    )
    return {spec.name: pack * spec.dtype.itemsize for spec, pack in packs if pack > 1}


def _placements(g: Gather, c: Im2colConfig, chunks: Chunks) -> tuple[Placement, ...]:
    why = f"workspace: {len(chunks.starts)} chunks, each written once and read once a row of tiles"
    nbytes = g.groups * chunks.terms * chunks.columns * g.x.dtype.itemsize
    unrolled = Placement("columns", "global", nbytes, why)
    return (
        Placement(g.x.name, "L1/L2", g.x.nbytes, "read once a tap; neighbouring patches overlap in L1 and L2"),
        *((unrolled,) if c.patches != "in_place" else ()),
        Placement(g.w.name, "L1/L2", g.w.nbytes, "every block of a row of tiles reads the same part"),
        Placement("tiles", "shared", tiling.shared_bytes(c),
                  "fp32, two of each operand: one is filled while the other is multiplied"),
        common.sums_placement(c.thread_m * c.thread_n),
    )  # fmt: skip


STRATEGY = Im2col()
