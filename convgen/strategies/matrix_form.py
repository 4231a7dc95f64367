"""A gather as a matrix product: how its columns and terms are ordered, and where neighbours lie in memory.

Each group of a gather is y[m, column] = sum over terms of w[m, term] * unrolled[term, column]: a column is a batch
element and a position, a term is a summed channel and a tap. Both are ordered as x lies in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from convgen.gather import Gather
from convgen.strategies import common

Index = tuple[int, int]
"""The extent of an index and the distance in memory, in elements, of its neighbours."""


def q_fastest(g: Gather) -> bool:
    """Terms are (taps, q) where summed channels are neighbours in x, else (q, taps)."""
    return g.x_q < g.axes[-1].x_stride


def batch_fastest(g: Gather) -> bool:
    """Columns are (o, b) where batch elements (in wgrad: channels) are neighbours in x, else (b, o)."""
    return g.x_batch < g.axes[-1].x_stride


def largest_pack(fits: Callable[[int], bool]) -> int:
    """4, 2 or 1 elements an access: the most that `fits`."""
    return common.largest((4, 2), fits)


def merged(indices: Iterable[Index]) -> tuple[Index, ...]:
    """The same indices (outermost first), those that run on in memory made one; at least one is left."""
    result: list[Index] = []
    for extent, step in indices:
        if extent == 1:
            continue
        if result and result[-1][1] == extent * step:
            extent *= result.pop()[0]
        result.append((extent, step))
    return tuple(result) or ((1, 0),)


def aligned(count: int, indices: tuple[Index, ...], others: tuple[int, ...]) -> bool:
    """True if `count` neighbours along the last of the indices are an aligned vector, wherever the others stand."""
    *outer, (extent, step) = indices
    return step == 1 and extent % count == 0 and all(s % count == 0 for s in (*common.steps(*outer), *others))


def _batch(g: Gather) -> int:
    return 2 if g.batch is None else g.batch  # at run time there may be several


# --- the filter --------------------------------------------------------------------------------------


def filter_step(g: Gather) -> int | None:
    """The distance in w of neighbouring terms, if it is the same for all."""
    indices = _filter_terms(g)
    return indices[0][1] if len(indices) == 1 else None


def filter_access(g: Gather) -> tuple[bool, int]:
    """Whether packs of w run along the terms (else along m), and how many elements they have."""
    terms, channels, group = _filter_terms(g), (g.m, g.w_m), common.steps((g.groups, g.w_group))
    along_terms = terms[-1][1] == 1 or g.w_m != 1
    if along_terms:
        return True, largest_pack(lambda count: aligned(count, terms, (*group, *common.steps(channels))))
    return False, largest_pack(lambda count: aligned(count, (channels,), (*group, *common.steps(*terms))))


def _filter_terms(g: Gather) -> tuple[Index, ...]:
    return merged(_ordered_terms(g, g.w_q, tuple(a.w_stride for a in g.axes)))


def _ordered_terms(g: Gather, q_step: int, tap_steps: tuple[int, ...]) -> tuple[Index, ...]:
    q, taps = (g.q_size, q_step), tuple((a.taps, step) for a, step in zip(g.axes, tap_steps, strict=True))
    return (*taps, q) if q_fastest(g) else (q, *taps)


# --- x -----------------------------------------------------------------------------------------------


def channel_pack(g: Gather) -> int:
    """Summed channels of one pixel that a load of x can bring, as neighbouring terms."""
    if not q_fastest(g):
        return 1
    pixels = tuple((a.source, a.x_stride) for a in g.axes)
    others = common.steps((g.batch, g.x_batch), (g.groups, g.x_group), *pixels)
    return largest_pack(lambda count: aligned(count, ((g.q_size, g.x_q),), others))


def is_matrix(g: Gather) -> bool:
    """True if x is the unrolled matrix as it stands: each element once at most, none outside x, and the offset
    of (term, column) is the term's plus the column's."""
    return not g.preimages and all(
        a.divisor == 1
        and a.offset == 0
        and (a.out - 1) * a.step + (a.taps - 1) * max(a.spread, 0) < a.source
        and (a.taps == 1 or (a.out == 1 and a.spread > 0))
        for a in g.axes
    )


def matrix_access(g: Gather, chunk_batch: int, chunk_rows: int) -> tuple[bool, int]:
    """Where x is the matrix: whether packs of it run along the terms (else along the columns), and how many elements
    they have."""
    terms = merged(_ordered_terms(g, g.x_q, tuple(a.spread * a.x_stride for a in g.axes)))
    positions = tuple((a.out, a.step * a.x_stride) for a in g.axes)
    batch, group = (_batch(g), g.x_batch), common.steps((g.groups, g.x_group))
    if terms[-1][1] == 1:
        return True, largest_pack(lambda count: aligned(count, terms, (*group, *common.steps(batch, *positions))))
    others = (*group, *common.steps(*terms))
    return False, largest_pack(
        lambda count: _aligned_columns(g, count, batch, positions, others, chunk_batch, chunk_rows)
    )


def rows_suit(g: Gather) -> bool:
    """True if a patch as a row of the unrolled matrix is read from x in fewer sectors than as a column."""
    terms = merged(_ordered_terms(g, g.x_q, tuple(a.spread * a.x_stride for a in g.axes)))
    positions = tuple((a.out, a.step * a.x_stride) for a in g.axes)
    batch = (_batch(g), g.x_batch)
    columns = merged((*positions, batch) if batch_fastest(g) else (batch, *positions))
    return _sectors(terms[-1]) < _sectors(columns[-1])


def _sectors(index: Index) -> float:
    extent, step = index
    return max(1 / extent, min(abs(step), 8) / 8)  # an element, where a sector holds eight


# --- y -----------------------------------------------------------------------------------------------


def channels_stored_together(g: Gather, count: int) -> bool:
    """True if every `count` result channels are an aligned vector in y."""
    positions = tuple((a.out, a.y_stride) for a in g.axes)
    others = common.steps((g.batch, g.y_batch), (g.groups, g.y_group), *positions)
    return count > 1 and aligned(count, ((g.m, g.y_m),), others)


def columns_stored_together(g: Gather, count: int, chunk_batch: int, chunk_rows: int) -> bool:
    """True if every `count` columns of a chunk are an aligned vector in y."""
    positions = tuple((a.out, a.y_stride) for a in g.axes)
    batch, others = (_batch(g), g.y_batch), common.steps((g.groups, g.y_group), (g.m, g.y_m))
    return count > 1 and _aligned_columns(g, count, batch, positions, others, chunk_batch, chunk_rows)


def _aligned_columns(
    g: Gather,
    count: int,
    batch: Index,
    positions: tuple[Index, ...],
    others: tuple[int, ...],
    chunk_batch: int,
    chunk_rows: int,
) -> bool:
    if batch_fastest(g):
        return chunk_batch % count == 0 and aligned(count, (batch,), (*others, *common.steps(*positions)))
    chunk_out = g.out // g.axes[0].out * chunk_rows
    return chunk_out % count == 0 and aligned(count, merged(positions), (*others, *common.steps(batch)))
