"""Single elements of a correlation: for tensors too large to compute whole.

Each sampled element is a sum of products of two operands, gathered for that element alone: a grid of terms with one
axis for the channels (or images) summed over and one for each spatial axis.
"""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import numpy

from convgen.reference.arrays import Array, Module, pieces
from convgen.reference.correlation import Correlation

Indices: TypeAlias = numpy.ndarray[Any, numpy.dtype[numpy.int64]]

Coordinates: TypeAlias = tuple[Indices, ...]
"""One vector of indices for each axis of a tensor, all of one length."""


def correlate_at(shape: Correlation, at: Coordinates, fine: Array, filters: Array, xp: Module) -> Array:
    """Elements (n, k, coarse…) of `Correlation.correlate`."""
    n, k, *pixels = at
    group = k // max(filters.shape[0] // shape.groups, 1)
    channel = numpy.arange(filters.shape[1])
    from_fine = [n[:, None], (group * filters.shape[1])[:, None] + channel]
    from_filters = [k[:, None], channel[None]]
    for axis, pixel in zip(shape.axes, pixels, strict=True):
        from_fine.append(axis.met[pixel])
        from_filters.append(numpy.arange(axis.taps)[None])
    return _sums(fine, from_fine, filters, from_filters, xp)


def scatter_at(shape: Correlation, at: Coordinates, coarse: Array, filters: Array, xp: Module) -> Array:
    """Elements (n, c, fine…) of `Correlation.scatter`."""
    n, c, *pixels = at
    per_group = filters.shape[0] // shape.groups
    group, channel = numpy.divmod(c, max(filters.shape[1], 1))
    coarse_channel = (group * per_group)[:, None] + numpy.arange(per_group)
    from_coarse = [n[:, None], coarse_channel]
    from_filters = [coarse_channel, channel[:, None]]
    for axis, pixel in zip(shape.axes, pixels, strict=True):
        meetings = axis.meetings[pixel]
        from_coarse.append(meetings // axis.taps)
        from_filters.append(numpy.where(meetings < 0, -1, meetings % axis.taps))
    return _sums(coarse, from_coarse, filters, from_filters, xp)


def filter_gradient_at(shape: Correlation, at: Coordinates, fine: Array, coarse: Array, xp: Module) -> Array:
    """Elements (k, c, tap…) of `Correlation.filter_gradient`."""
    k, c, *taps = at
    group = k // max(coarse.shape[1] // shape.groups, 1)
    image = numpy.arange(fine.shape[0])[None]
    from_fine = [image, (group * (fine.shape[1] // shape.groups) + c)[:, None]]
    from_coarse = [image, k[:, None]]
    for axis, tap in zip(shape.axes, taps, strict=True):
        from_fine.append(axis.met.T[tap])
        from_coarse.append(numpy.arange(axis.coarse)[None])
    return _sums(fine, from_fine, coarse, from_coarse, xp)


def _sums(left: Array, left_at: list[Indices], right: Array, right_at: list[Indices], xp: Module) -> Array:
    # The first two index arrays are (samples, channels) and each later one is (samples, terms of a spatial axis); an
    # extent of 1 stands for all. A spatial index of -1 reads a zero.
    samples, channels = numpy.broadcast_shapes(*(index.shape for index in left_at[:2] + right_at[:2]))
    spatial = zip(left_at[2:], right_at[2:], strict=True)
    terms = channels * math.prod(max(a.shape[1], b.shape[1]) for a, b in spatial)
    sums = xp.zeros(samples, dtype=xp.float64)
    if left.size and right.size and terms:
        for piece in pieces(samples, 48 * terms):
            products = _gather(left, left_at, piece, xp) * _gather(right, right_at, piece, xp)
            sums[piece] = products.sum(axis=tuple(range(1, products.ndim)))
    return sums


def _gather(array: Array, at: list[Indices], piece: slice, xp: Module) -> Array:
    mesh = []
    for number, index in enumerate(at):
        rows = index if index.shape[0] == 1 else index[piece]
        shape = [rows.shape[0]] + [1] * (len(at) - 1)
        shape[max(number, 1)] = rows.shape[1]
        mesh.append(xp.asarray(rows.reshape(shape)))
    values = array[tuple(xp.maximum(index, 0) for index in mesh)].astype(xp.float64)
    for index in mesh[2:]:
        values = xp.where(index >= 0, values, 0.0)
    return values
