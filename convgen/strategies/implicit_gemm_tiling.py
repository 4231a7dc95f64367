"""The sizes of an implicit GEMM: what follows from a problem and a config of `implicit_gemm`."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass

from convgen.gather import Axis, Gather
from convgen.plan import Extent, batch_extent
from convgen.problem import DType, PadMode
from convgen.space import Config
from convgen.strategies import common, matrix_form, phases
from convgen.target import Target

COPY_BYTES = 16
"""The most that one load brings."""
LEAST_ASYNC = 4
"""The fewest bytes of an asynchronous copy: smaller loads go through registers, single bytes four together."""
STEP_BYTES = 32
"""Bytes of the summed index that one mma takes."""
MMA_COLUMNS, MMA_CHANNELS = 16, 8
EPS_ACC = 2.0**-22
"""Of a tensor core's step: sums are cut, not rounded."""
EPS_TF32 = 2.0**-11
EPS_SPLIT = 1.5 * 2.0**-22
"""Of three TF32 products: both operands lose 2^-22 of themselves, and the product of their low parts is left out."""


@dataclass(frozen=True)
class ImplicitGemmConfig(Config):
    """How the product is tiled and pipelined."""

    block_m: int
    block_n: int
    block_k: int
    """Result channels, columns and terms of a block's tiles."""
    warps_m: int
    warps_n: int
    stages: int
    """Tiles of terms in shared memory: one is multiplied while the next are on their way."""
    split_k: int
    """Parts of the sum that run in parallel, added in a fixed order by a second kernel."""
    raster: int
    """Channel tiles that blocks next to each other sweep before they go on to the next columns."""
    products: int
    """TF32 products that make one product of fp32 numbers: 1 or 3. 1 for other types."""

    @property
    def threads(self) -> int:
        return 32 * self.warps_m * self.warps_n

    @property
    def warp_m(self) -> int:
        return self.block_m // self.warps_m

    @property
    def warp_n(self) -> int:
        return self.block_n // self.warps_n


@dataclass(frozen=True, slots=True)
class Access:
    """How an operand is read.

    Neighbouring threads go along the terms, or else along the tile's other index. What goes to shared memory together
    is `width` neighbours, brought by `pieces` loads: 1, but for bytes that are no neighbours in memory `width`.
    """

    along_terms: bool
    width: int
    pieces: int = 1

    @property
    def loaded(self) -> int:
        """Elements that one load brings."""
        return self.width // self.pieces


# --- the problem as a matrix product ------------------------------------------------------------------


def flattened(g: Gather) -> Gather:
    """The gather with neighbouring axes made one where x and its partner in memory run on from one to the next."""
    axes: list[Axis] = []
    for axis in g.axes:
        if axes and _run_on(axes[-1], axis):
            outer = axes.pop()
            axis = dataclasses.replace(
                axis, out=outer.out * axis.out, source=outer.source * axis.source, taps=outer.taps * axis.taps
            )
        axes.append(axis)
    return dataclasses.replace(g, axes=tuple(axes))


def _run_on(outer: Axis, inner: Axis) -> bool:
    dense = all(
        a.divisor == 1
        and a.offset == 0
        and (
            (a.taps == 1 and a.step == 1 and a.out == a.source) or (a.out == 1 and a.spread == 1 and a.taps == a.source)
        )
        for a in (outer, inner)
    )
    return (
        dense
        and (outer.taps == 1) == (inner.taps == 1)
        and outer.x_stride == inner.source * inner.x_stride
        and (outer.out == 1 or outer.y_stride == inner.out * inner.y_stride)
        and (outer.taps == 1 or outer.w_stride == inner.taps * inner.w_stride)
    )


def phased(g: Gather) -> bool:
    return any(axis.divisor > 1 for axis in g.axes)


def phase_count(g: Gather) -> int:
    return math.prod(len(phases.phases(axis)) for axis in g.axes)


def phase_out(g: Gather) -> int:
    """Positions of the largest phase."""
    return math.prod(max(phase.out for phase in phases.phases(axis)) for axis in g.axes)


def phase_taps(g: Gather) -> int:
    """Taps of the phase that has most."""
    return math.prod(max(phase.taps for phase in phases.phases(axis)) for axis in g.axes)


def terms(g: Gather) -> int:
    """Terms of the longest sum as the kernel counts them."""
    return g.q_size * phase_taps(g)


def sum_length(g: Gather) -> int:
    """Terms of the longest sum that are there."""
    met = [phases.most_terms(axis) if g.terms_vanish else axis.taps for axis in g.axes]
    return g.q_size * math.prod(met)


def macs(g: Gather) -> int:
    """Multiply-adds of all phases, padding included."""
    met = math.prod(sum(phase.out * phase.taps for phase in phases.phases(axis)) for axis in g.axes)
    return g.batch_size * g.channels * g.q_size * met


# --- accesses -----------------------------------------------------------------------------------------


def x_access(g: Gather) -> Access:
    along = matrix_form.rows_suit(g)
    outer = common.steps((_batch(g), g.x_batch), (g.groups, g.x_group), (g.q_size, g.x_q))
    *before, last = g.axes
    pixels = common.steps(*((a.source, a.x_stride) for a in before))

    def fits(width: int) -> bool:
        if along and matrix_form.q_fastest(g):
            others = common.steps((_batch(g), g.x_batch), (g.groups, g.x_group), *_pixels(g))
            return matrix_form.aligned(width, ((g.q_size, g.x_q),), others)
        if not along and matrix_form.batch_fastest(g):
            others = common.steps((g.q_size, g.x_q), (g.groups, g.x_group), *_pixels(g))
            return matrix_form.aligned(width, ((_batch(g), g.x_batch),), others)
        moved, extent, other = (last.spread, last.taps, last.step) if along else (last.step, last.out, last.spread)
        stays = last.out if along else last.taps
        return (
            g.pad_mode is PadMode.ZEROS
            and last.divisor == 1
            and moved == 1
            and (stays == 1 or other % width == 0)
            and last.offset % width == 0
            and extent % width == 0
            and matrix_form.aligned(width, ((last.source, last.x_stride),), (*outer, *pixels))
        )

    return _access(g.x.dtype.itemsize, along, fits)


def w_access(g: Gather) -> Access:
    group = common.steps((g.groups, g.w_group))
    channels = common.steps((g.m, g.w_m))
    term_indices = _filter_terms(g)
    along = term_indices[-1][1] == 1 or g.w_m != 1

    def fits(width: int) -> bool:
        if along:
            return matrix_form.aligned(width, term_indices, (*group, *channels))
        return matrix_form.aligned(width, ((g.m, g.w_m),), (*group, *common.steps(*term_indices)))

    return _access(g.w.dtype.itemsize, along, fits)


def filter_step(g: Gather) -> int | None:
    """The distance in w of neighbouring terms, if it is the same for all."""
    indices = _filter_terms(g)
    return indices[0][1] if len(indices) == 1 and not phased(g) else None


def _filter_terms(g: Gather) -> tuple[matrix_form.Index, ...]:
    taps = tuple((max(phase.taps for phase in phases.phases(a)), a.w_stride * phases.tap_step(a)) for a in g.axes)
    if g.q is None:  # the outermost index, of an extent that is not known, never runs on
        return ((2, g.w_q), *matrix_form.merged(taps))
    q = (g.q, g.w_q)
    ordered = (*taps, q) if matrix_form.q_fastest(g) else (q, *taps)
    # The taps of phases differ in number, so their terms are no one run even where the largest's would be.
    if phased(g):
        return tuple(index for index in ordered if index[0] > 1) or ((1, 0),)
    return matrix_form.merged(ordered)


def _pixels(g: Gather) -> tuple[matrix_form.Index, ...]:
    return tuple((a.source, a.x_stride) for a in g.axes)


def _batch(g: Gather) -> int:
    return 2 if g.batch is None else g.batch  # at run time there may be several


def _access(item: int, along_terms: bool, fits: Callable[[int], bool]) -> Access:
    """The widest access that fits. Tiles of bytes lie along the terms: across them, bytes are fetched one by one."""
    widths = [w for w in (16, 8, 4, 2) if LEAST_ASYNC <= w * item <= COPY_BYTES]
    width = common.largest(tuple(widths), fits) if along_terms or item > 1 else 1
    if item == 1 and width == 1:
        return Access(along_terms, LEAST_ASYNC, LEAST_ASYNC)
    return Access(along_terms, width)


def store(g: Gather, c: ImplicitGemmConfig) -> tuple[bool, int]:
    """Whether a store's lanes go along the channels (else along the columns), and elements a store."""
    item = 4 if c.split_k > 1 else g.y.dtype.itemsize
    most = COPY_BYTES // item
    runs = tuple(run for run in (8, 4, 2) if run <= most)
    if g.y_m == 1 or g.batch_size * phase_out(g) == 1:
        return True, common.largest(runs, lambda run: matrix_form.channels_stored_together(g, run))
    if phased(g):
        return False, 1
    rows = g.axes[0].out
    return False, common.largest(runs, lambda run: matrix_form.columns_stored_together(g, run, g.batch or 1, rows))


# --- tiles --------------------------------------------------------------------------------------------


def steps(g: Gather, c: ImplicitGemmConfig) -> int:
    """Tiles of terms of the longest sum."""
    return -(-terms(g) // c.block_k)


def column_tiles(g: Gather, c: ImplicitGemmConfig, scale: int = 1) -> Extent:
    """`scale` for every tile of every phase's columns."""
    scale *= phase_count(g)
    if g.batch is None:
        return batch_extent(phase_out(g), c.block_n, scale)
    return scale * -(-g.batch * phase_out(g) // c.block_n)


def channel_tiles(g: Gather, c: ImplicitGemmConfig) -> int:
    return -(-g.m // c.block_m)


def rounds(extent: int, access: Access, c: ImplicitGemmConfig) -> int:
    """Loads of a tile that a thread makes."""
    return -(-extent * c.block_k // (access.width * c.threads))


def stage_bytes(g: Gather, c: ImplicitGemmConfig) -> int:
    return (c.block_m + c.block_n) * c.block_k * g.x.dtype.itemsize


def staging_bytes(g: Gather, c: ImplicitGemmConfig) -> int:
    """What the warps' results pass through on their way to y, a slice a warp."""
    line = c.warp_m + 8 if store(g, c)[0] else c.warp_n + 4
    return 4 * 16 * line * c.warps_m * c.warps_n


def shared_bytes(g: Gather, c: ImplicitGemmConfig) -> int:
    table = c.block_n * (8 if g.wide else 4)
    return max(c.stages * stage_bytes(g, c), staging_bytes(g, c)) + table


def registers(g: Gather, c: ImplicitGemmConfig) -> int:
    """About what a thread needs: sums, two sets of fragments, the places of its loads, addresses."""
    sums = c.warp_m * c.warp_n // 32 * (2 if c.products == 3 else 1)
    fragments = c.warp_n // MMA_COLUMNS * 4 + c.warp_m // MMA_CHANNELS * 2
    fragments *= 3 if c.products == 3 else 2
    item, x, w = g.x.dtype.itemsize, x_access(g), w_access(g)
    places = (rounds(c.block_n, x, c) * (2 + len(g.axes)) if x.along_terms else 4) + 2 * rounds(c.block_m, w, c)
    others = 36
    for extent, access, is_run in ((c.block_n, x, x.along_terms), (c.block_m, w, filter_step(g) == 1)):
        if access.loaded * item < LEAST_ASYNC:
            others += rounds(extent, access, c) * access.pieces  # on their way
        if not access.along_terms:  # a term to find for each load, elements of 32 bits to read one by one
            others += rounds(extent, access, c) // 2 + (12 if item == 4 else 0)
        if access.pieces > 1 and not is_run:  # an address each, and whether it exists
            others += 3 * rounds(extent, access, c) * access.pieces
    return sums + fragments + places + others


def resident(g: Gather, c: ImplicitGemmConfig, target: Target) -> int:
    """Blocks that a multiprocessor shall have room for: what the compiler allots registers by."""
    threads = min(target.registers_per_sm // min(registers(g, c), 255), target.max_threads_per_sm)
    blocks = min(threads // c.threads, target.shared_per_sm // (shared_bytes(g, c) + target.shared_reserved))
    return min(max(blocks, 1), target.max_blocks_per_sm)


# --- numerics -----------------------------------------------------------------------------------------


def mma_steps(g: Gather, c: ImplicitGemmConfig) -> int:
    """Roundings of EPS_ACC that a product meets: those of the mma steps behind it, and of the parts' sum."""
    depth = STEP_BYTES // g.x.dtype.itemsize
    part = -(-steps(g, c) // c.split_k) * c.block_k
    summed = -(-min(part, terms(g)) // depth)
    # Rounded, not cut, the sum of the parts errs by a quarter of EPS_ACC a part; so does that of the low products.
    return summed + -(-(c.split_k - 1) // 4) + (1 + summed // 512 if c.products == 3 else 0)


def eps_in(dtype: DType, c: ImplicitGemmConfig) -> float:
    if dtype not in (DType.FP32, DType.TF32):
        return 0.0
    return EPS_SPLIT if c.products == 3 else EPS_TF32
