"""Discrete Fourier transforms of a few points, as registers hold them: how each is made, its work and its rounding.

A transform of a prime number of points is written out by the symmetry of its cosines and sines; one of A x B points is
B transforms of A points, rotations, and A transforms of B points (Cooley and Tukey, "An algorithm for the machine
calculation of complex Fourier series", 1965).
"""

from __future__ import annotations

import functools
import math
import struct
from dataclasses import dataclass

PRIMES = (2, 3, 5, 7)
LARGEST = 32
"""Points of the largest transform that a thread keeps in registers."""

MULTIPLY_FLOPS = 6
"""Of a complex product: two multiplications and two fused multiply-adds."""

_SPLITS = {4: 2, 6: 2, 8: 4, 9: 3, 10: 2, 12: 4, 14: 2, 15: 3, 16: 4, 18: 2, 20: 4, 21: 3, 24: 8, 25: 5, 27: 3, 28: 4,
           30: 5, 32: 8}  # fmt: skip
"""How many points the first transforms have of one that is no prime."""


@dataclass(frozen=True, slots=True)
class Rounding:
    """Rounding errors on the way through a transform, each in units of the unit roundoff of what is rounded.

    `total` bounds their sum, `squares` the sum of the squares of each.
    """

    total: float = 0.0
    squares: float = 0.0

    def __add__(self, other: Rounding) -> Rounding:
        return Rounding(self.total + other.total, self.squares + other.squares)

    def times(self, count: int) -> Rounding:
        return Rounding(self.total * count, self.squares * count)


OPERATION = Rounding(1.0, 1.0)
"""An addition, or a constant that is rounded to fp32."""

PRODUCT = Rounding(2.0, 4.0)
"""A complex product made with fused multiply-adds: Jeannerod, Kornerup, Louvet and Muller, "Error bounds on complex
floating-point multiplication with an FMA", 2017."""

TWIDDLE = PRODUCT + OPERATION
"""A product with a root of unity from a table."""


@dataclass(frozen=True, slots=True)
class Rotation:
    """A product with exp(-2 pi i turns): which of a transform's values, and the factor's parts as C literals."""

    index: int
    kind: str
    """"none", "any", or the name of a function: quarter_turn (-i), half_turn (-1), eighth_turn ((1 - i) / sqrt 2), …"""
    real: str
    imaginary: str

    @property
    def flops(self) -> int:
        return {"any": MULTIPLY_FLOPS, "eighth_turn": 4, "three_eighths_turn": 4}.get(self.kind, 0)


@dataclass(frozen=True, slots=True)
class Butterfly:
    """A transform of `radix` points."""

    radix: int
    first: int
    """Points of the transforms it begins with; 1 for a prime."""
    second: int
    rotations: tuple[Rotation, ...]
    """Between the two, those that are none left out."""
    cosines: tuple[tuple[str, ...], ...]
    """Of an odd prime: cos(2 pi j k / radix), row k - 1 and column j - 1, for j and k up to half of it."""
    sines: tuple[tuple[str, ...], ...]


def literal(value: float) -> str:
    """The C literal of the nearest fp32 number."""
    (rounded,) = struct.unpack("f", struct.pack("f", value))  # before it is printed, or it would be rounded twice
    text = f"{rounded:.9g}"
    return f"{text if '.' in text or 'e' in text else text + '.0'}f"


def root(numerator: int, denominator: int) -> tuple[float, float]:
    """cos and -sin of a turn times numerator / denominator, within an fp64 rounding: brought to the first octant."""
    eighths, rest = divmod(8 * (numerator % denominator), denominator)
    if eighths % 2:
        angle = 2 * math.pi * (denominator - rest) / (8 * denominator)
        c, s = math.sin(angle), math.cos(angle)
    else:
        angle = 2 * math.pi * rest / (8 * denominator)
        c, s = math.cos(angle), math.sin(angle)
    for _ in range(eighths // 2):
        c, s = -s, c
    return _exact(c), _exact(-s)


def _exact(value: float) -> float:
    return 0.0 if abs(value) < 1e-15 else value


def rotation(index: int, numerator: int, denominator: int) -> Rotation:
    """The rotation of value `index` by that part of a turn, clockwise."""
    kinds = {0: "none", 1: "eighth_turn", 2: "quarter_turn", 3: "three_eighths_turn", 4: "half_turn"}
    eighths, rest = divmod(8 * (numerator % denominator), denominator)
    real, imaginary = root(numerator, denominator)
    return Rotation(index, kinds.get(eighths, "any") if rest == 0 else "any", literal(real), literal(imaginary))


@functools.cache
def butterfly(radix: int) -> Butterfly:
    """How a transform of so many points is made. Raises KeyError for one that no thread keeps."""
    if radix in PRIMES:
        half = range(1, (radix - 1) // 2 + 1)
        parts = [[root(j * k, radix) for j in half] for k in half]
        cosines = tuple(tuple(literal(c) for c, _ in row) for row in parts)
        return Butterfly(radix, 1, radix, (), cosines, tuple(tuple(literal(-s) for _, s in row) for row in parts))
    first = _SPLITS[radix]
    second = radix // first
    turned = (rotation(k * second + b, b * k, radix) for k in range(first) for b in range(second))
    return Butterfly(radix, first, second, tuple(r for r in turned if r.kind != "none"), (), ())


def needed(radices: tuple[int, ...]) -> tuple[Butterfly, ...]:
    """Every transform that those of these sizes are made of, smaller ones first."""
    found: set[int] = set()
    pending = list(radices)
    while pending:
        radix = pending.pop()
        if radix > 1 and radix not in found:
            found.add(radix)
            pending += [] if radix in PRIMES else [_SPLITS[radix], radix // _SPLITS[radix]]
    return tuple(butterfly(radix) for radix in sorted(found))


@functools.cache
def flops(radix: int) -> int:
    """Additions and multiplications of a transform of so many points, a fused multiply-add being two."""
    if radix == 2:
        return 4
    b = butterfly(radix)
    if radix in PRIMES:
        half = (radix - 1) // 2
        return half * (4 + 2 + 4 * half + 2 + 4 * (half - 1) + 4)
    return b.second * flops(b.first) + b.first * flops(b.second) + sum(r.flops for r in b.rotations)


@functools.cache
def rounding(radix: int) -> Rounding:
    """What a value meets on its way through a transform of so many points."""
    if radix == 2:
        return OPERATION
    if radix in PRIMES:
        return OPERATION.times((radix - 1) // 2 + 3)
    b = butterfly(radix)
    kinds = {r.kind for r in b.rotations}
    inexact = kinds & {"any", "eighth_turn", "three_eighths_turn"}
    turned = TWIDDLE if "any" in kinds else OPERATION.times(3) if inexact else Rounding()
    return rounding(b.first) + turned + rounding(b.second)


def is_smooth(points: int) -> bool:
    """True if it has no prime factor above 7."""
    for prime in PRIMES:
        while points % prime == 0:
            points //= prime
    return points == 1


@functools.cache
def radices(points: int, largest: int, fewest: int = 1) -> tuple[int, ...]:
    """Sizes up to `largest` with that product, as few as possible but no fewer than `fewest`, then as equal as can be.

    The largest comes first; empty if there are none.
    """
    sizes = [r for r in (*PRIMES, *_SPLITS) if r <= largest and points % r == 0]
    for count in range(fewest, 8):
        found = _products(points, count, tuple(sorted(sizes)))
        if found:
            return min(found, key=lambda chosen: (chosen[0], chosen))
    return ()


def _products(points: int, count: int, sizes: tuple[int, ...]) -> list[tuple[int, ...]]:
    if count == 1:
        return [(points,)] if points in sizes else []
    return [
        (size, *rest)
        for size in sizes
        if points % size == 0
        for rest in _products(points // size, count - 1, tuple(s for s in sizes if s <= size))
    ]
