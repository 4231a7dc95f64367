"""How exact algorithms are: what their bounds say, and what errors measure, beside a direct kernel.

Single tiles of a 3x3 convolution are computed in NumPy as the kernels do, operation for operation: fp32 sums of FMA,
the transforms' programs, TF32 parts. What is right is the same in float64.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy

from convgen.plan import Numerics
from convgen.problem import DType
from convgen.reference import round_to
from convgen.strategies.winograd_numerics import MMA_TERMS, arithmetic
from convgen.strategies.winograd_transform import Matrix, Program, Transform, parse_points, program, transform

TAPS = 3
TILES, FILTERS = 48, 12
"""Of each measurement."""

KINDS = ("random", "positive", "adversarial")
"""Data: standard normal; uniform in (0, 1); the signs of tile and filter that a transform makes most of, in every
channel, so that errors add up."""

WINOGRAD = (
    ("0:1:-1", ("fp32", "3xtf32", "tf32", "fp16", "bf16")),
    ("0:1:-1:2", ("fp32",)),
    ("0:1:-1:1/2", ("fp32", "3xtf32", "tf32")),
    ("0:1:-1:2:-2", ("fp32", "3xtf32", "tf32")),
    ("0:1:-1:1/2:-2", ("fp32", "3xtf32", "tf32")),
)
"""Points, and what is measured with them: how fp32 factors are multiplied, or the type that tensors are stored in."""

Array = Any


@dataclass(frozen=True)
class Row:
    """One algorithm. Errors are relative to the sum of |x| |w|."""

    variant: str
    points: str
    dtype: str
    multiplications: float
    """A result and a pair of channels."""
    growth: float
    bound: float
    """A Winograd kernel's is relative to the sum of the largest |x| of the tile and the largest |w| of the filter."""
    errors: dict[str, float] = field(default_factory=dict)
    """Largest measured, by kind of data."""
    shares: dict[str, float] = field(default_factory=dict)
    """The largest share of its own bound that a result's error was."""


def rows(channels: int) -> Iterator[Row]:
    """The direct kernel's classes, then Winograd's, for sums over so many channels."""
    for dtype in ("fp32", "tf32", "fp16", "bf16"):
        kind = DType(dtype)
        rounded = DType.TF32.eps if kind is DType.TF32 else 0.0
        own = Numerics(steps=channels * TAPS**2, eps_in=rounded)
        yield _measured(Row("direct", "-", dtype, TAPS**2, 1.0, own.units / 2**24 + kind_eps(dtype)), None, channels)
    for points, dtypes in WINOGRAD:
        f = transform(parse_points(points), TAPS)
        for dtype in dtypes:
            product = dtype if dtype.endswith("tf32") else "fp32"
            own = arithmetic(f, 2, product, channels)
            bound = own.growth * own.units / 2**24 + kind_eps(dtype)
            name = f"F({f.m}x{f.m}, {f.r}x{f.r})"
            yield _measured(Row(name, points, dtype, (f.alpha / f.m) ** 2, own.growth, bound), f, channels)


def kind_eps(dtype: str) -> float:
    """The rounding of a result to the type it is stored in; fp32's is among the others."""
    return DType(dtype).eps if dtype in ("fp16", "bf16") else 0.0


def _measured(row: Row, f: Transform | None, channels: int) -> Row:
    stored = DType(row.dtype) if row.dtype in ("fp16", "bf16") else DType.FP32
    for kind in KINDS:
        x, w = (round_to(data, stored) for data in _data(kind, f or transform(parse_points("0:1:-1"), TAPS), channels))
        right, magnitude = _windows(x, w), _windows(numpy.abs(x), numpy.abs(w))
        got = _direct(x, w, row.dtype) if f is None else _winograd(x, w, f, row.dtype)
        error = numpy.abs(round_to(got, stored) - right)
        scale = magnitude
        if f is not None:
            largest = numpy.abs(x).max(axis=(2, 3)) @ numpy.abs(w).max(axis=(2, 3)).T
            scale = TAPS**2 * largest[..., None, None]
        row.errors[kind] = float((error / magnitude).max())
        row.shares[kind] = float((error / (row.bound * scale)).max())
    return row


# --- data -------------------------------------------------------------------------------------------


def _data(kind: str, f: Transform, channels: int) -> tuple[Array, Array]:
    """Tiles (TILES, channels, alpha, alpha) and filters (FILTERS, channels, taps, taps)."""
    generator = numpy.random.default_rng(7)
    shapes = (TILES, channels, f.alpha, f.alpha), (FILTERS, channels, f.r, f.r)
    if kind == "random":
        return generator.standard_normal(shapes[0]), generator.standard_normal(shapes[1])
    x, w = (generator.random(shape) for shape in shapes)
    if kind == "positive":
        return x, w
    pixels, taps = _worst_signs(f)
    return numpy.outer(pixels, pixels) * (1 - x / 8), numpy.outer(taps, taps) * (1 - w / 8)


@functools.lru_cache(maxsize=16)
def _worst_signs(f: Transform) -> tuple[Array, Array]:
    """The signs of a line of pixels and of taps for which the sum of |A^T| |G g| |B^T d| is largest."""
    inverse, filters, inputs = (_floats(matrix) for matrix in (f.inverse, f.filter, f.input))
    pixels = numpy.array(list(itertools.product((1.0, -1.0), repeat=f.alpha)))
    taps = numpy.array(list(itertools.product((1.0, -1.0), repeat=f.r)))
    gains = numpy.einsum("jt,pt,ft->jpf", abs(inverse), abs(pixels @ inputs.T), abs(taps @ filters.T))
    _, p, t = numpy.unravel_index(gains.argmax(), gains.shape)
    return pixels[p], taps[t]


def _floats(matrix: Matrix) -> Array:
    return numpy.array([[float(entry) for entry in row] for row in matrix])


# --- arithmetic, as the kernels do it ----------------------------------------------------------------


def _windows(x: Array, w: Array) -> Array:
    """The convolution of each tile with each filter in float64: (tiles, filters, m, m)."""
    patches = numpy.lib.stride_tricks.sliding_window_view(x, w.shape[2:], axis=(2, 3))
    return numpy.einsum("ncijrs,kcrs->nkij", patches, w, optimize=True)


def _fp32(values: Array) -> Array:
    return values.astype(numpy.float32).astype(numpy.float64)


def _direct(x: Array, w: Array, dtype: str) -> Array:
    if dtype == "tf32":
        x, w = (round_to(values, DType.TF32) for values in (x, w))
    patches = numpy.lib.stride_tricks.sliding_window_view(x, w.shape[2:], axis=(2, 3))
    total = numpy.zeros((x.shape[0], w.shape[0], *patches.shape[2:4]))
    for c, r, s in itertools.product(*(range(extent) for extent in w.shape[1:])):
        total = _fp32(total + patches[:, None, c, :, :, r, s] * w[None, :, c, r, s, None, None])
    return total


def _winograd(x: Array, w: Array, f: Transform, dtype: str) -> Array:
    v = _transformed(f.input, x)
    u = _transformed(f.filter, w)
    sums = {"tf32": _tf32, "3xtf32": _three_tf32}.get(dtype, _fma)(v, u)
    return _transformed(f.inverse, sums)


def _transformed(matrix: Matrix, tiles: Array) -> Array:
    """Along the last axis, then along the one before it."""
    for axis in (-1, -2):
        lines = [tiles.take(i, axis=axis) for i in range(tiles.shape[axis])]
        tiles = numpy.stack(evaluate(program(matrix), lines), axis=axis)
    return tiles


def evaluate(steps: Program, x: Sequence[Array]) -> list[Array]:
    """The program's outputs in fp32 arithmetic, for inputs of any equal shapes whose values are fp32."""
    known = {("x", i): value for i, value in enumerate(x)}
    for statement in steps.statements:
        total = 0.0
        for term in statement.terms:
            total = _fp32(total + float(numpy.float32(float(term.coefficient))) * known[term.source])
        known[statement.target] = total
    outputs = sorted(target for target in known if target[0] == "y")
    return [known[target] for target in outputs]


def _fma(v: Array, u: Array) -> Array:
    return _summed(v, u, 1, _fp32)


def _tf32(v: Array, u: Array) -> Array:
    return _summed(round_to(v, DType.TF32), round_to(u, DType.TF32), MMA_TERMS, _truncated)


def _three_tf32(v: Array, u: Array) -> Array:
    (v_high, v_low), (u_high, u_low) = (_parts(values) for values in (v, u))
    total = numpy.zeros((v.shape[0], u.shape[0], *v.shape[2:]))
    for start in range(0, v.shape[1], MMA_TERMS):
        part = numpy.zeros_like(total)
        for left, right in ((v_low, u_high), (v_high, u_low), (v_high, u_high)):
            part = _truncated(part + _products(left, right, start, MMA_TERMS))
        total = _fp32(total + part)
    return total


def _parts(values: Array) -> tuple[Array, Array]:
    high = round_to(values, DType.TF32)
    return high, round_to(_fp32(values - high), DType.TF32)


def _summed(v: Array, u: Array, terms: int, rounded: Callable[[Array], Array]) -> Array:
    total = numpy.zeros((v.shape[0], u.shape[0], *v.shape[2:]))
    for start in range(0, v.shape[1], terms):
        total = rounded(total + _products(v, u, start, terms))
    return total


def _products(v: Array, u: Array, start: int, terms: int) -> Array:
    return numpy.einsum("nc...,kc...->nk...", v[:, start : start + terms], u[:, start : start + terms])


def _truncated(values: Array) -> Array:
    """To 24 bits towards zero, as tensor cores keep their sums."""
    fractions, exponents = numpy.frexp(values)
    return numpy.ldexp(numpy.trunc(numpy.ldexp(fractions, 24)), exponents - 24)
