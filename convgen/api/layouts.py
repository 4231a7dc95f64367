"""The memory order of a call's arrays, read from their strides."""

from __future__ import annotations

from convgen.errors import UsageError
from convgen.problem import DType, Layout, TensorSpec
from convgen.problem.window_form import layout_of as layout_named

Shape = tuple[int, ...]


def layout_of(input: tuple[Shape, Shape], weight: tuple[Shape, Shape], given: object) -> Layout:
    """The layout of a problem whose input and weight have these shapes and element strides (N, C, spatial…).

    An input that lies densely in one order only has that one. Where both orders are the same memory (one channel, one
    position, a strided view), the layout that `given` names (None: any) decides, else strides that are exactly one
    order's, as PyTorch sets them for such arrays, else the weight. Raises UsageError for an input that contradicts
    `given`, ProblemError for one that names no layout.
    """
    wanted = None if given is None else layout_named(given)
    possible = _dense(*input)
    if len(possible) == 1:
        if wanted not in (None, possible[0]):
            raise UsageError(
                f"layout={given}: input has the strides of {possible[0].text(len(input[0]) - 2)}; leave layout out, "
                "which is for what strides leave open, or give input another memory format"
            )
        return possible[0]
    if wanted is not None:
        return wanted
    if not possible:
        return _nearest(*input)
    for shape, strides in (input, weight):
        # An order that only one of the two has, extents of 1 counted or not.
        for fitting in (_dense(shape, strides), _exact(shape, strides)):
            if len(fitting) == 1:
                return fitting[0]
    return Layout.CHANNELS_FIRST


def _dense(shape: Shape, strides: Shape) -> list[Layout]:
    """The orders in which the array has no gaps; the stride of an extent of 1 is never used."""
    if 0 in shape:
        return list(Layout)
    return [
        layout
        for layout in Layout
        if all(
            extent == 1 or stride == want
            for extent, stride, want in zip(shape, strides, _strides(shape, layout), strict=True)
        )
    ]


def _exact(shape: Shape, strides: Shape) -> list[Layout]:
    return [layout for layout in Layout if tuple(strides) == _strides(shape, layout)]


def _nearest(shape: Shape, strides: Shape) -> Layout:
    """The order in which a strided view has its neighbours."""
    channel = abs(strides[1])
    positions = [abs(s) for extent, s in zip(shape[2:], strides[2:], strict=True) if extent > 1]
    last = shape[1] > 1 and bool(positions) and channel < min(positions)
    return Layout.CHANNELS_LAST if last else Layout.CHANNELS_FIRST


def _strides(shape: Shape, layout: Layout) -> Shape:
    return TensorSpec("array", shape, DType.FP32, layout).strides
