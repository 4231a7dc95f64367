"""Magnitudes that an algorithm mixes which transforms whole tiles of its input and the whole filter.

A rounding error of such a kernel goes with the largest pixel of the tile and with all of the filter, also where a
result meets few of its taps, as at an edge or where a stride leaves pixels out. So the sum of |x| * |w| over the terms
becomes

    sum over channels of (largest |x| within `reach` of any pixel that the filter covers) * (sum of |w| over all taps)
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy

from convgen.problem import Conv, PadMode
from convgen.reference.arrays import Array, Module, quiet
from convgen.reference.correlation import Axis, Correlation
from convgen.reference.oracle import Roles
from convgen.reference.sampled import Indices


@quiet
def mixed_magnitudes(
    problem: Conv, inputs: Mapping[str, Array], reach: tuple[int, ...], xp: Module, indices: Indices | None
) -> Array:
    """The sum of the module's text for each output element, or for those at flat `indices`: fprop and dgrad only.

    What is not finite is left out: what it meets is not finite either, and has to match exactly.
    """
    roles, shape = Roles.of(problem), Correlation.of(problem)
    gathers = roles.output == roles.coarse
    pixels = _finite(inputs[roles.fine if gathers else roles.coarse], xp)
    filters = _finite(inputs[roles.filters], xp).sum(axis=tuple(range(2, 2 + problem.nd)))
    # One row an output channel, one column a channel of its group that is summed over.
    rows, columns = filters.shape[0] // shape.groups, filters.shape[1]
    norms = filters.reshape(shape.groups, rows, columns)
    if not gathers:
        norms = norms.transpose(0, 2, 1)

    for number, (axis, distance) in enumerate(zip(shape.axes, reach, strict=True)):
        first, length = _covered(axis, distance, gathers)
        pixels = _largest(pixels, 2 + number, first, length, xp)
    batch, _, *out = pixels.shape
    grouped = pixels.reshape(batch, shape.groups, norms.shape[2], *out)
    if indices is None:
        whole = xp.einsum("bgq...,gmq->bgm...", grouped, norms)
        return whole.reshape(batch, shape.groups * norms.shape[1], *out)
    b, channel, *at = map(xp.asarray, numpy.unravel_index(indices, (batch, shape.groups * norms.shape[1], *out)))
    group, row = channel // norms.shape[1], channel % norms.shape[1]
    return (grouped[(b, group, slice(None), *at)] * norms[group, row]).sum(axis=1)


def _finite(values: Array, xp: Module) -> Array:
    values = xp.asarray(values, dtype=xp.float64)
    return xp.where(xp.isfinite(values), xp.abs(values), 0.0)


def _covered(axis: Axis, distance: int, gathers: bool) -> tuple[numpy.ndarray, int]:
    """For each output pixel, the first of the input pixels that count, and how many there are."""
    reach = (axis.taps - 1) * axis.dilation
    if gathers:
        # A border repeats pixels that lie no further inside than it is wide.
        border = 0 if axis.pad_mode is PadMode.ZEROS else max(axis.pad_lo, axis.pad_hi)
        first = numpy.arange(axis.coarse) * axis.stride - axis.pad_lo - distance - border
        return first, reach + 1 + 2 * (distance + border)
    first = (numpy.arange(axis.fine) + axis.pad_lo - reach) // axis.stride - distance
    return first, reach // axis.stride + 2 + 2 * distance


def _largest(values: Array, axis: int, first: Array, length: int, xp: Module) -> Array:
    """The largest of `length` values from each of `first` on; what lies outside is 0."""
    extent = values.shape[axis]
    before = max(-int(first.min(initial=0)), 0)
    after = max(int(first.max(initial=0)) + length - extent, 0)
    width = [(0, 0)] * values.ndim
    width[axis] = before, after
    found, done = xp.pad(values, width), 1
    while done < length:  # an element holds the largest of `done` from it on
        step = min(done, length - done)
        count = found.shape[axis] - step
        found = xp.maximum(_part(found, axis, slice(0, count)), _part(found, axis, slice(step, None)))
        done += step
    return xp.take(found, xp.asarray(first + before), axis=axis)


def _part(array: Array, axis: int, part: slice) -> Array:
    return array[(slice(None),) * axis + (part,)]
