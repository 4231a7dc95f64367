"""The sizes of an explicit im2col: what follows from a problem and a config of `im2col`."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from convgen.errors import ConfigError
from convgen.gather import Gather
from convgen.plan import Extent, batch_extent
from convgen.problem import Conv
from convgen.space import Config
from convgen.strategies import matrix_form
from convgen.target import Target

PACK = 4
"""Elements an aligned access of the unrolled matrix brings."""
SKEW = 4
"""Floats between the rows of a tile in shared memory, kSkew in device/tile.cuh."""
MAX_COLUMNS = 1 << 30


@dataclass(frozen=True)
class Im2colConfig(Config):
    """How the matrix is laid out and how the product is tiled."""

    patches: str
    """"rows": a patch is contiguous; "columns": neighbouring patches are; "in_place": x is the matrix already."""
    block_m: int
    block_n: int
    block_k: int
    """Result channels, columns and terms of a block's tiles."""
    thread_m: int
    thread_n: int
    split_k: int
    """Parts of the sum that run in parallel, added in a fixed order by a third kernel."""
    workspace_mib: int
    """The most the unrolled matrix may take, and the partial results."""

    @property
    def threads(self) -> int:
        return self.block_m // self.thread_m * (self.block_n // self.thread_n)

    @property
    def workspace_bytes(self) -> int:
        return self.workspace_mib << 20


@dataclass(frozen=True, slots=True)
class Chunks:
    """The part of the matrix that is unrolled at a time: the columns of `batch` elements by `rows` of the outermost
    axis, and `terms` of their terms."""

    batch: int | None
    """None: the whole of a runtime batch."""
    rows: int
    out: int
    """Columns of one batch element."""
    terms: int
    """A multiple of block_k; the last chunk is filled with zeros."""
    starts: tuple[tuple[int, int, int], ...]
    """First element, first row and first term of each chunk."""
    parts: int
    """Chunks that add to the same results."""
    columns: int
    """At the largest batch, in whole packs."""


def chunks(problem: Conv, g: Gather, c: Im2colConfig) -> Chunks:
    most = g.batch if g.batch is not None else problem.max_batch or problem.typical_batch
    rows, width = g.axes[0].out, g.out // g.axes[0].out
    terms, columns = g.q_size * g.taps, most * g.out
    room = c.workspace_bytes // (g.groups * g.x.dtype.itemsize)
    if c.patches == "in_place":
        room = 4 * MAX_COLUMNS**2  # nothing is written, so one chunk will do
    if g.batch is not None and terms > columns:
        steps, step = -(-terms // c.block_k), c.block_k * -(-columns // PACK) * PACK
        require(c, room // step, f"{c.block_k} terms of all columns", g.groups * step * g.x.dtype.itemsize)
        chunk_rows, chunk_batch, chunk_terms = rows, most, c.block_k * even(steps, room // step)
    else:
        chunk_terms = -(-terms // c.block_k) * c.block_k
        room = room // chunk_terms // PACK * PACK
        row = width * (most if g.batch is None else 1)
        what = "a row of the whole batch" if g.batch is None else "a row of one element"
        require(c, room // row, what, g.groups * chunk_terms * row * g.x.dtype.itemsize)
        chunk_rows = even(rows, room // row)
        chunk_batch = most if g.batch is None else even(most, max(room // g.out, 1))
    starts = tuple(
        itertools.product(range(0, most, chunk_batch), range(0, rows, chunk_rows), range(0, terms, chunk_terms))
    )
    out = chunk_rows * width
    padded = -(-chunk_batch * out // PACK) * PACK
    batch = None if g.batch is None else chunk_batch
    return Chunks(batch, chunk_rows, out, chunk_terms, starts, -(-terms // chunk_terms), padded)


def require(c: Im2colConfig, fits: int, what: str, nbytes: int) -> None:
    if fits < 1:
        raise ConfigError(f"workspace_mib={c.workspace_mib}: {what} already unrolls into {nbytes} bytes")


def even(total: int, most: int) -> int:
    """The size of the fewest equal parts of at most `most` that `total` splits into."""
    parts = -(-total // max(most, 1))
    return -(-total // parts)


def column_tiles(g: Gather, c: Im2colConfig, chunks: Chunks, scale: int) -> Extent:
    """`scale` for every tile of a chunk's columns."""
    if chunks.batch is None:
        return batch_extent(chunks.out, c.block_n, scale)
    return scale * -(-chunks.batch * chunks.out // c.block_n)


def column_packs(chunks: Chunks, scale: int) -> Extent:
    """`scale` for every pack of a chunk's columns."""
    return batch_extent(chunks.out, PACK, scale) if chunks.batch is None else scale * (chunks.columns // PACK)


def channel_tiles(g: Gather, c: Im2colConfig) -> int:
    return g.groups * -(-g.m // c.block_m)


def registers(g: Gather, c: Im2colConfig) -> int:
    """About what a thread of the product needs: sums, a row of operands, elements under way, addresses."""
    under_way = -(-(c.block_m + c.block_n) * c.block_k * g.x.dtype.itemsize // (4 * c.threads))
    return c.thread_m * c.thread_n + c.thread_m + c.thread_n + under_way + 40


def resident(g: Gather, c: Im2colConfig, target: Target) -> int:
    """Blocks of the product that a multiprocessor shall have room for: what the compiler allots registers by."""
    threads = min(target.registers_per_sm // registers(g, c), target.max_threads_per_sm)
    blocks = min(threads // c.threads, target.shared_per_sm // (shared_bytes(c) + target.shared_reserved))
    return min(max(blocks, 1), target.max_blocks_per_sm)


def shared_bytes(c: Im2colConfig) -> int:
    return 2 * 4 * c.block_k * (c.block_m + c.block_n + 2 * SKEW)


def matrix_access(g: Gather, c: Im2colConfig, chunks: Chunks) -> tuple[bool, int]:
    """Whether packs of the matrix run along the terms, and how many elements a read of x brings."""
    if c.patches == "in_place":
        return matrix_form.matrix_access(g, chunks.batch or 1, chunks.rows)
    return c.patches == "rows", matrix_form.channel_pack(g) if c.patches == "rows" else 1


def store(g: Gather, c: Im2colConfig, chunks: Chunks) -> tuple[str, int]:
    """What a store writes, "channels" or "positions" that are neighbours in y or else "elements", and how many."""
    if c.split_k * chunks.parts == 1:
        if matrix_form.channels_stored_together(g, min(c.thread_m, PACK)):
            return "channels", min(c.thread_m, PACK)
        if matrix_form.columns_stored_together(g, min(c.thread_n, PACK), chunks.batch or 1, chunks.rows):
            return "positions", min(c.thread_n, PACK)
    return "elements", 1
