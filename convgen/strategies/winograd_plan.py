"""What a Winograd plan is made of: its launches, buffers and template constants, and what `explain` tells of it."""

from __future__ import annotations

from typing import Any

from convgen.plan import Buffer, Launch, Param, Placement, ScalarArg, WorkspaceArg
from convgen.strategies import common, operands
from convgen.strategies.operands import Operand
from convgen.strategies.winograd_numerics import numerics
from convgen.strategies.winograd_tiling import TAPS, Tiling
from convgen.strategies.winograd_transform import parse_points, program
from convgen.target import Target

THREADS = 256
"""Threads a block of the transforms."""
MAX_INDEX = (1 << 31) - 1

NUMERICS = {
    "fp32": "products by FMA in the order of q",
    "tf32": "products of factors rounded to TF32, on tensor cores",
    "3xtf32": "products in three parts on tensor cores, summed in fp32",
}


# --- launches ----------------------------------------------------------------------------------------


def product_blocks(t: Tiling) -> int:
    """Blocks of the product for each block of tiles."""
    return t.tiles_m * t.g.groups * (1 if t.c.fused else t.components)


def launches(t: Tiling) -> dict[str, tuple[Launch, ...]]:
    """By part, one a chunk. Fused kernels have no input and inverse of their own; theirs are not in the plan."""
    g, c = t.g, t.c
    batch, x = operands.runtime_batch(g), operands.x(g)
    results = (*operands.epilogue(t.problem), operands.y(g))
    transformed = _buffer("filters", read=True)

    def launch(part: str, taken: tuple[Operand, ...], scale: int, first: int, threads: int, shared: int = 0) -> Launch:
        name = common.kernel_name(t.problem, "winograd", c, part)
        grid = t.blocks(scale) if c.fused else t.of_chunk(scale, first)
        return operands.launch(name, taken, (grid, 1, 1), (threads, 1, 1), shared)

    def of_elements(channels: int) -> int:
        return -(-g.groups * channels * c.block_n // THREADS)

    filter_blocks = -(-g.groups * t.padded_q * t.padded_m // THREADS)
    name = common.kernel_name(t.problem, "winograd", c, "filter")
    found: dict[str, list[Launch]] = {"input": [], "product": [], "inverse": []}
    filters = operands.launch(
        name, (operands.w(g), _buffer("filters", read=False)), (filter_blocks, 1, 1), (THREADS, 1, 1)
    )
    for first in (0,) if c.fused else t.chunk_starts:
        place: tuple[Operand, ...] = ()
        if len(t.chunk_starts) > 1 and not c.fused:
            place = ((Param("first_block", "int"), ScalarArg(first)),)
        taken = (x, _buffer("inputs", read=False), *batch, *place)
        found["input"].append(launch("input", taken, of_elements(t.padded_q), first, THREADS))
        taken = (transformed, _buffer("inputs", read=True), _buffer("sums", read=False))
        if c.fused:
            taken = (x, transformed, *results, *batch)
        found["product"].append(launch("product", taken, product_blocks(t), first, t.threads, t.shared_bytes))
        taken = (_buffer("sums", read=True), *results, *batch, *place)
        found["inverse"].append(launch("inverse", taken, of_elements(g.m), first, THREADS))
    return {"filter": (filters,), **{part: tuple(launches) for part, launches in found.items()}}


def _buffer(name: str, *, read: bool) -> Operand:
    return Param(name, "const float*" if read else "float*"), WorkspaceArg(name)


def workspace(t: Tiling) -> tuple[Buffer, ...]:
    filters = Buffer("filters", t.filter_bytes)
    if t.c.fused:
        return (filters,)
    run = 4 * t.components * t.g.groups * t.c.block_n
    return (
        filters,
        Buffer("inputs", t.of_chunk(run * t.padded_q)),
        Buffer("sums", t.of_chunk(run * t.padded_m)),
    )


def constants(t: Tiling, target: Target, launches: dict[str, tuple[Launch, ...]]) -> dict[str, Any]:
    g, c, f = t.g, t.c, t.transform
    found = numerics(t)
    *rows, column = t.transformed
    blocks = 1 if c.fused else t.most_blocks if t.chunk is None else t.chunk
    largest = blocks * t.components * g.groups * c.block_n * max(t.padded_q, t.padded_m)
    unbounded = t.problem.is_runtime_batch and t.problem.max_batch is None
    wide = g.wide or max(largest, t.filter_bytes // 4) > MAX_INDEX or unbounded
    names = {f"{part}_kernel": of_part[0].kernel.name for part, of_part in launches.items()}
    parameters = {f"{part}_params": of_part[0].kernel.params for part, of_part in launches.items()}
    return common.gather_constants(t.problem, g) | names | parameters | {
        "config": str(c),
        "offset_t": "long long" if wide else "int",
        "kernels": c.kernels,
        "points": [str(point) for point in parse_points(c.points)],
        "axes": t.axes,
        "row": rows[0] if rows else None,
        "column": column,
        "tile": f.m,
        "alpha": f.alpha,
        "components": t.components,
        "plain_products": TAPS ** len(t.transformed) * t.results,
        "input_matrix": f.input,
        "filter_matrix": f.filter,
        "inverse_matrix": f.inverse,
        "input_program": program(f.input),
        "filter_program": program(f.filter),
        "inverse_program": program(f.inverse),
        "product": c.product,
        "numerics_of_product": NUMERICS,
        "bound_units": f"{found.units:.0f}",
        "growth": found.growth,
        "exact": found.exact_on_integers,
        "block_m": c.block_m,
        "block_n": c.block_n,
        "block_k": c.block_k,
        "thread_m": c.thread_m,
        "thread_n": c.thread_n,
        "share": c.share,
        "threads": t.threads,
        "resident": t.resident(target),
        "stage_components": t.stage_components,
        "pitch_m": t.pitch_m,
        "pitch_n": t.pitch_n,
        "along_q": t.along_q,
        "along_channels": t.along_channels,
        "exchange_run": t.exchange_run,
        "exchange_rows": t.exchange_rows,
        "chunk_count": 1 if c.fused else len(t.chunk_starts),
        "y_pack": t.y_pack,
    }  # fmt: skip


# --- what explain tells ------------------------------------------------------------------------------


def placements(t: Tiling) -> tuple[Placement, ...]:
    g, c = t.g, t.c
    run = 4 * t.components * g.groups * c.block_n * (1 if t.chunk is None else t.chunk)
    count = len(t.chunk_starts)
    between = (
        Placement("V = B^T x B", "global", run * t.padded_q, f"{count} chunks in the workspace, each read once a row"),
        Placement("M = U V", "global", run * t.padded_m, f"{count} chunks in the workspace: written once, read once"),
    )
    return (
        Placement(g.x.name, "L1/L2", g.x.nbytes, "read once a tile; neighbouring tiles overlap by two pixels"),
        Placement("U = G w G^T", "global", t.filter_bytes, "workspace: made from w alone, read once a block of tiles"),
        *(() if c.fused else between),
        Placement("stages", "shared", t.shared_bytes, "U and V of two steps: one is filled, one multiplied"),
        common.sums_placement(c.share * c.thread_m * c.thread_n),
    )


def notes(t: Tiling) -> tuple[str, ...]:
    f, axes = t.transform, len(t.transformed)
    lines = {"input": (f.alpha, f.alpha), "filter": (f.r, f.alpha), "inverse": (f.alpha, f.m)}
    matrices = {"input": f.input, "filter": f.filter, "inverse": f.inverse}
    # Along the second axis as many lines are transformed as the first left elements.
    additions = {part: program(matrices[part]).additions * (1 if axes == 1 else sum(lines[part])) for part in lines}
    shape, taps = "x".join([str(f.m)] * axes), "x".join([str(f.r)] * axes)
    plain = f.r**axes * t.results
    found = numerics(t)
    return (
        f"F({shape}, {taps}) at {t.c.points} and infinity: {t.components} multiplications a tile and pair of channels "
        f"instead of {plain} ({plain / t.components:.3g}x fewer)",
        f"additions a tile: {additions['input']} a channel of x, {additions['inverse']} a channel of y; "
        f"{additions['filter']} a pair of channels of w, once",
        f"error: up to {found.growth * found.units:.0f} * 2^-24 of the sum of magnitudes, "
        f"growth {found.growth:.3g} times {found.units:.0f} roundings",
    )
