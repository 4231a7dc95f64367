"""What TMA is told of the operands of a product of patches, and what it cannot be told."""

from __future__ import annotations

from convgen.errors import UsageError
from convgen.gather import Gather, gather
from convgen.plan import Param, TensorArg, TensorMapArg, WorkspaceArg, batch_extent
from convgen.problem import Conv
from convgen.strategies import operands, wgmma_sources
from convgen.strategies import wgmma_tiling as tiling
from convgen.strategies.operands import Operand
from convgen.strategies.wgmma_block import ROWS
from convgen.strategies.wgmma_patches import Patches
from convgen.strategies.wgmma_tiling import Tiling
from convgen.tensor_map import MAX_BOX, Im2colMap, Swizzle, TensorMap


def why_not(problem: Conv, patches: str) -> str | None:
    """Why pixels of `wgmma_implicit_gemm` cannot come that way; None if they can."""
    if patches in (tiling.PLANES, tiling.RUNS):
        return wgmma_sources.not_as_it_lies(gather(problem), patches)
    return not_copied(Tiling(wgmma_sources.sources(problem, patches).g, tiling.least(patches)))


def not_copied(t: Patches) -> str | None:
    """Why TMA cannot copy the pixels in the config's way; None if it can."""
    if t.c.patches == "im2col":
        try:
            _im2col_map(t)
        except UsageError as error:
            return str(error)
        reach = 1 << 16 // len(t.g.axes)
        for a in t.g.axes:
            reached = a.reach - 1
            if reached >= reach:
                return f"the filter reaches {reached} pixels along {a.name}, im2col copies less than {reach}"
        return None
    if any(a.step > 1 for a in t.inner):
        return "results of a stride lie in no halo of neighbours; im2col steps over pixels"
    if t.taps == 1:
        return "a filter of one tap has no halo; im2col copies the same pixels"
    if t.has_eights and len(t.inner) < 2:
        return "expected two axes; line is that of one"
    width = t.pitch[-1] if t.c.patches == "rows" else t.box[-1]
    if width > MAX_BOX:
        return f"rows of {width} pixels, TMA copies at most {MAX_BOX}"
    return None


def x_map(t: Patches, source: TensorArg | WorkspaceArg) -> Operand:
    """Or x itself, where threads copy it."""
    if t.c.patches == tiling.RUNS:
        return operands.x(t.g)
    arg = TensorMapArg(source, _x_map(t), outermost=batch_extent(1) if t.g.batch is None else None)
    return Param("x", "const __grid_constant__ TensorMap"), arg


def _x_map(t: Patches) -> TensorMap | Im2colMap:
    match t.c.patches:
        case "im2col":
            return _im2col_map(t)
        case tiling.PLANES:
            return _planes_map(t)
    return _halo_map(t)


def _x_tensor(g: Gather) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Extents and strides in bytes of x, the channels innermost."""
    item = g.x.dtype.itemsize
    axes = tuple(reversed(g.axes))
    extents = (g.groups * g.q_size, *(a.source for a in axes), g.batch_size)
    return extents, (*(a.x_stride * item for a in axes), g.x_batch * item)


def _halo_map(t: Patches) -> TensorMap:
    extents, strides = _x_tensor(t.g)
    inner = (t.pitch[-1], 1)[: len(t.inner)] if t.c.patches == "rows" else tuple(reversed(t.loaded_box))
    box = (t.line, *inner, *(1 for _ in t.depth), 1)
    return TensorMap(t.g.x.dtype, extents, strides, box, swizzle=Swizzle.B128)


def _planes_map(t: Patches) -> TensorMap:
    g = t.g
    item = g.x.dtype.itemsize
    extents, strides = (g.out, g.x.shape[1], g.batch_size), (g.x_q * item, g.x_batch * item)
    return TensorMap(g.x.dtype, extents, strides, (ROWS, t.line, 1), swizzle=Swizzle.B128)


def _im2col_map(t: Patches) -> Im2colMap:
    extents, strides = _x_tensor(t.g)
    axes = tuple(reversed(t.g.axes))
    return Im2colMap(
        t.g.x.dtype, extents, strides,
        lower=tuple(-a.pad_lo for a in axes),
        upper=tuple(a.pad_hi - (a.taps - 1) * a.spread for a in axes),
        channels=t.line,
        pixels=t.positions // t.x_multicast,
        element_strides=tuple(a.step for a in axes),
        swizzle=Swizzle.B128,
    )  # fmt: skip


def w_map(t: Patches, source: TensorArg | WorkspaceArg, is_split: bool = False) -> Operand:
    g = t.g
    item = g.w.dtype.itemsize
    extents: tuple[int, ...] = (g.q_size, g.taps, g.groups * g.m)
    strides: tuple[int, ...] = (g.q_size * item, g.w_m * item)
    box: tuple[int, ...] = (t.w_line, 1, t.w_rows // t.w_multicast)
    if is_split:
        extents, strides, box = (*extents, 2), (*strides, g.w.nbytes), (*box, 2)
    found = TensorMap(g.w.dtype, extents, strides, box, swizzle=t.w_swizzle)
    return Param("w", "const __grid_constant__ TensorMap"), TensorMapArg(source, found)
