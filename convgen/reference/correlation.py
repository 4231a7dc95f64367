"""Convolution in float64, in its three bilinear forms, by shifted slices and matrix products.

A correlation joins a *fine* tensor (N, Cf, fine…), a *coarse* tensor (N, Cc, coarse…) and a filter
(Cc, Cf/groups, taps…): coarse pixel o meets, through tap f, the padded fine pixel o*stride + f*dilation.

    correlate        coarse[n,k,o] = sum over c, f of fine[n,c,o*stride+f*dilation] * filter[k,c,f]
    scatter          its adjoint in fine
    filter_gradient  its adjoint in the filter

A convolution has fine = x and coarse = y; a transposed one has fine = y and coarse = x. Nothing here is shared with
the kernels' own index arithmetic, so that a mistake there cannot hide here.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy

from convgen.problem import Conv, PadMode
from convgen.reference.arrays import Array, Module, pieces

_NUMPY_MODE: dict[PadMode, Literal["edge", "reflect", "wrap"]] = {
    PadMode.REPLICATE: "edge",
    PadMode.REFLECT: "reflect",
    PadMode.CIRCULAR: "wrap",
}


@dataclass(frozen=True)
class Axis:
    """One spatial axis of a correlation; extents in pixels."""

    fine: int
    coarse: int
    taps: int
    stride: int
    dilation: int
    pad_lo: int
    pad_hi: int
    pad_mode: PadMode

    @property
    def padded(self) -> int:
        return self.pad_lo + self.fine + self.pad_hi

    @functools.cached_property
    def sources(self) -> numpy.ndarray[Any, numpy.dtype[numpy.int64]]:
        """For each padded pixel, the fine pixel it reads; -1 where it is zero."""
        width = (self.pad_lo, self.pad_hi)
        pixels = numpy.arange(self.fine, dtype=numpy.int64)
        if self.pad_mode is PadMode.ZEROS or width == (0, 0):
            return numpy.pad(pixels, width, constant_values=-1)
        return numpy.pad(pixels, width, mode=_NUMPY_MODE[self.pad_mode])

    @property
    def border(self) -> list[tuple[int, int]]:
        """(padded pixel, the fine pixel it repeats), for every padded pixel outside the tensor that is not zero."""
        outside = (*range(self.pad_lo), *range(self.pad_lo + self.fine, self.padded))
        return [(i, int(self.sources[i])) for i in outside if self.sources[i] >= 0]

    def window(self, tap: int) -> slice:
        """The padded pixels that the coarse pixels meet through `tap`, one each, in order."""
        start = tap * self.dilation
        reach = (self.coarse - 1) * self.stride + 1 if self.coarse else 0
        return slice(start, start + reach, self.stride)

    @functools.cached_property
    def met(self) -> numpy.ndarray[Any, numpy.dtype[numpy.int64]]:
        """(coarse, taps): the fine pixel that they meet; -1 where it is zero."""
        positions = numpy.add.outer(numpy.arange(self.coarse) * self.stride, numpy.arange(self.taps) * self.dilation)
        return self.sources[positions]

    @property
    def most_meetings(self) -> int:
        """How often a fine pixel is met at most, border included."""
        return int(self._counts.max(initial=0))

    @functools.cached_property
    def meetings(self) -> numpy.ndarray[Any, numpy.dtype[numpy.int64]]:
        """(fine, most meetings): each fine pixel's meetings as coarse*taps + tap, filled up with -1."""
        fine = self.met.ravel()
        order = numpy.argsort(fine, kind="stable")[numpy.count_nonzero(fine < 0) :]
        counts = self._counts
        table = numpy.full((self.fine, self.most_meetings), -1, dtype=numpy.int64)
        first = numpy.cumsum(counts) - counts
        table[fine[order], numpy.arange(order.size) - first[fine[order]]] = order
        return table

    @property
    def _counts(self) -> numpy.ndarray[Any, numpy.dtype[numpy.int64]]:
        return numpy.bincount(self.met[self.met >= 0], minlength=self.fine)


@dataclass(frozen=True)
class Correlation:
    """The axes and groups of a correlation. Arrays in and out are in logical order, results float64."""

    axes: tuple[Axis, ...]
    groups: int

    @classmethod
    def of(cls, problem: Conv) -> Correlation:
        """The correlation behind a convolution, plain or transposed, whatever its direction."""
        fine, coarse = (problem.out, problem.spatial) if problem.transposed else (problem.spatial, problem.out)
        axes = tuple(
            Axis(
                fine=fine[i],
                coarse=coarse[i],
                taps=problem.filter[i],
                stride=problem.stride[i],
                dilation=problem.dilation[i],
                pad_lo=problem.pad_lo[i],
                pad_hi=problem.pad_hi[i],
                pad_mode=problem.pad_mode,
            )
            for i in range(problem.nd)
        )
        return cls(axes, problem.groups)

    @property
    def fine(self) -> tuple[int, ...]:
        return tuple(axis.fine for axis in self.axes)

    @property
    def coarse(self) -> tuple[int, ...]:
        return tuple(axis.coarse for axis in self.axes)

    @property
    def taps(self) -> tuple[int, ...]:
        return tuple(axis.taps for axis in self.axes)

    def correlate(self, fine: Array, filters: Array, xp: Module) -> Array:
        """(N, Cf, fine…) and (Cc, Cf/groups, taps…) to (N, Cc, coarse…)."""
        channels = filters.shape[0]
        by_tap = self._by_tap(filters, xp)
        coarse = xp.empty((fine.shape[0], channels, *self.coarse), dtype=xp.float64)
        for batch in self._batches(fine.shape[0], fine.shape[1], channels):
            padded = self._pad(xp.asarray(fine[batch], dtype=xp.float64), xp).swapaxes(0, 1)
            total = xp.zeros((channels, padded.shape[1], *self.coarse), dtype=xp.float64)
            flat = self._in_groups(total)
            for tap, weights in by_tap:
                flat += _product(weights, self._in_groups(padded[self._window(tap)]), xp)
            coarse[batch] = total.swapaxes(0, 1)
        return coarse

    def scatter(self, coarse: Array, filters: Array, xp: Module) -> Array:
        """(N, Cc, coarse…) and (Cc, Cf/groups, taps…) to (N, Cf, fine…)."""
        channels = filters.shape[1] * self.groups
        by_tap = self._by_tap(filters, xp)
        fine = xp.empty((coarse.shape[0], channels, *self.fine), dtype=xp.float64)
        for batch in self._batches(coarse.shape[0], channels, coarse.shape[1]):
            pixels = xp.asarray(coarse[batch], dtype=xp.float64).swapaxes(0, 1)
            flat = self._in_groups(pixels)
            padded = xp.zeros((channels, pixels.shape[1], *(a.padded for a in self.axes)), dtype=xp.float64)
            for tap, weights in by_tap:
                window = padded[self._window(tap)]
                window += _product(weights.swapaxes(1, 2), flat, xp).reshape(window.shape)
            fine[batch] = self._fold(padded).swapaxes(0, 1)
        return fine

    def filter_gradient(self, fine: Array, coarse: Array, xp: Module) -> Array:
        """(N, Cf, fine…) and (N, Cc, coarse…) to (Cc, Cf/groups, taps…)."""
        channels = (coarse.shape[1], fine.shape[1] // self.groups)
        gradient = xp.zeros((*channels, *self.taps), dtype=xp.float64)
        for batch in self._batches(fine.shape[0], fine.shape[1], coarse.shape[1]):
            padded = self._pad(xp.asarray(fine[batch], dtype=xp.float64), xp).swapaxes(0, 1)
            flat = self._in_groups(xp.asarray(coarse[batch], dtype=xp.float64).swapaxes(0, 1))
            for tap in numpy.ndindex(self.taps):
                window = self._in_groups(padded[self._window(tap)])
                gradient[(..., *tap)] += xp.matmul(flat, window.swapaxes(1, 2)).reshape(channels)
        return gradient

    def _by_tap(self, filters: Array, xp: Module) -> list[tuple[tuple[int, ...], Array]]:
        grouped = (self.groups, filters.shape[0] // self.groups, filters.shape[1])
        filters = xp.asarray(filters, dtype=xp.float64)
        return [(tap, filters[(..., *tap)].reshape(grouped)) for tap in numpy.ndindex(self.taps)]

    def _window(self, tap: tuple[int, ...]) -> tuple[Any, ...]:
        return (..., *(axis.window(t) for axis, t in zip(self.axes, tap, strict=True)))

    def _in_groups(self, array: Array) -> Array:
        channels = array.shape[0]
        return array.reshape(self.groups, channels // self.groups, math.prod(array.shape[1:]))

    def _batches(self, n: int, fine_channels: int, coarse_channels: int) -> list[slice]:
        padded, coarse = math.prod(axis.padded for axis in self.axes), math.prod(self.coarse)
        elements = fine_channels * (3 * padded + coarse) + 3 * coarse_channels * coarse
        return list(pieces(n, 8 * elements))

    def _pad(self, fine: Array, xp: Module) -> Array:
        for number, axis in enumerate(self.axes, start=2):
            if axis.pad_lo or axis.pad_hi:
                shape = (*fine.shape[:number], axis.padded, *fine.shape[number + 1 :])
                padded = xp.zeros(shape, dtype=xp.float64)
                padded[_at(number, slice(axis.pad_lo, axis.pad_lo + axis.fine))] = fine
                for pixel, source in axis.border:
                    padded[_at(number, pixel)] = fine[_at(number, source)]
                fine = padded
        return fine

    def _fold(self, padded: Array) -> Array:
        for number, axis in enumerate(self.axes, start=2):
            fine = padded[_at(number, slice(axis.pad_lo, axis.pad_lo + axis.fine))]
            for pixel, source in axis.border:
                fine[_at(number, source)] += padded[_at(number, pixel)]
            padded = fine
        return padded


def _at(axis: int, index: int | slice) -> tuple[Any, ...]:
    return (*(slice(None),) * axis, index)


def _product(left: Array, right: Array, xp: Module) -> Array:
    # An inner extent of 1 (depthwise) is an outer product: no use for a matrix product.
    return left * right if left.shape[-1] == 1 else xp.matmul(left, right)
