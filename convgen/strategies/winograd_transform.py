"""Winograd's minimal filtering F(m, r): its transforms from exact points, and the straight-line programs they become.

    y = A^T [ (G g) * (B^T d) ]

gives m neighbouring results of an r-tap filter g from m + r - 1 inputs d with as many multiplications instead of m r
(Winograd, "Arithmetic complexity of computations", 1980; Lavin and Gray, "Fast algorithms for convolutional neural
networks", 2016). The matrices are the transpose of a Cook-Toom multiplication at m + r - 2 points and infinity; any
points will do, and which are chosen decides how far rounding errors grow (Barabasz, Anderson, Soodhalter and Gregg,
"Error analysis and improving the accuracy of Winograd convolution", 2020).
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from convgen.errors import ConfigError

Matrix = tuple[tuple[Fraction, ...], ...]


@functools.lru_cache(maxsize=64)
def parse_points(text: str) -> tuple[Fraction, ...]:
    """The points of "0:1:-1:1/2:-2". Raises ConfigError if one is no fraction or occurs twice."""
    try:
        points = tuple(Fraction(word) for word in text.split(":"))
    except (ValueError, ZeroDivisionError):
        raise ConfigError(f"points={text}: expected fractions with : between them, as in 0:1:-1:1/2:-2") from None
    if len(set(points)) < len(points):
        raise ConfigError(f"points={text}: expected different points, or the transforms have no inverse")
    return points


def is_dyadic(value: Fraction) -> bool:
    """True if the value is an integer over a power of two, which floating point holds exactly."""
    return value.denominator & (value.denominator - 1) == 0


@dataclass(frozen=True, slots=True)
class Transform:
    """F(m, r) along one axis. Rows of B^T are integers without a common factor where the points are rational."""

    m: int
    r: int
    inverse: Matrix
    """A^T, m x alpha."""
    filter: Matrix
    """G, alpha x r."""
    input: Matrix
    """B^T, alpha x alpha."""

    @property
    def alpha(self) -> int:
        """Inputs of a tile, and products that take the place of m r."""
        return self.m + self.r - 1

    @property
    def is_dyadic(self) -> bool:
        """Whether floating point holds every entry exactly."""
        return all(is_dyadic(entry) for matrix in (self.inverse, self.filter, self.input) for entry in _entries(matrix))

    @property
    def growth(self) -> Fraction:
        """By how much |A^T| (|G| |g| * |B^T| |d|) may exceed |g| * |d|, if all of |g| and all of |d| are alike.

        The largest over the results of a tile; along several axes the growths multiply.
        """
        filters, inputs = _row_sums(self.filter), _row_sums(self.input)
        products = [u * v for u, v in zip(filters, inputs, strict=True)]
        zero = Fraction(0)
        return max(sum((abs(a) * p for a, p in zip(row, products, strict=True)), zero) for row in self.inverse) / self.r

    @property
    def input_gain(self) -> Fraction:
        """By how much an element of B^T d may exceed the largest of d."""
        return max(_row_sums(self.input))

    @property
    def grain(self) -> int:
        """The denominator that all products have where operands are integers and the entries dyadic."""
        return math.lcm(*(e.denominator for e in _entries(self.filter))) * math.lcm(
            *(e.denominator for e in _entries(self.inverse))
        )


@functools.lru_cache(maxsize=64)
def transform(points: tuple[Fraction, ...], r: int) -> Transform:
    """F(m, r) at these points and infinity, where m is len(points) + 2 - r.

    Raises ConfigError if there are too few points for a tile of one result.
    """
    m = len(points) + 2 - r
    if m < 1:
        raise ConfigError(f"{len(points)} points: a filter of {r} taps needs at least {r - 1}")
    inverse, filters, inputs = [], [], []
    for t, point in enumerate(points):
        others = points[:t] + points[t + 1 :]
        row = [*_polynomial(others), Fraction(0)]
        scale = _primitive(row)
        norm = math.prod((point - other for other in others), start=Fraction(1))
        if norm < 0:
            scale = -scale
        inputs.append(tuple(scale * entry for entry in row))
        filters.append(tuple(point**f / (norm * scale) for f in range(r)))
        inverse.append(tuple(point**j for j in range(m)))
    row = _polynomial(points)
    scale = _primitive(row)
    inputs.append(tuple(scale * entry for entry in row))
    filters.append(tuple(Fraction(f == r - 1) / scale for f in range(r)))
    inverse.append(tuple(Fraction(j == m - 1) for j in range(m)))
    return Transform(m, r, tuple(zip(*inverse, strict=True)), tuple(filters), tuple(inputs))


def _polynomial(roots: Sequence[Fraction]) -> list[Fraction]:
    """Coefficients of the product of (x - root), lowest first."""
    coefficients = [Fraction(1)]
    for root in roots:
        shifted = [Fraction(0), *coefficients]
        coefficients = [s - root * c for s, c in zip(shifted, [*coefficients, Fraction(0)], strict=True)]
    return coefficients


def _primitive(row: Iterable[Fraction]) -> Fraction:
    """What makes the row integers without a common factor."""
    entries = [entry for entry in row if entry]
    denominator = math.lcm(*(entry.denominator for entry in entries))
    return Fraction(denominator, math.gcd(*(int(entry * denominator) for entry in entries)))


def _entries(matrix: Matrix) -> Iterable[Fraction]:
    return itertools.chain.from_iterable(matrix)


def _row_sums(matrix: Matrix) -> list[Fraction]:
    return [sum(map(abs, row), start=Fraction(0)) for row in matrix]


# --- straight-line programs -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Term:
    """A coefficient times a value: ("x", 2) is an input, ("t", 0) an intermediate value."""

    coefficient: Fraction
    source: tuple[str, int]


@dataclass(frozen=True, slots=True)
class Statement:
    """target = the sum of the terms, added in order with one rounding each but the first."""

    target: tuple[str, int]
    terms: tuple[Term, ...]


@dataclass(frozen=True, slots=True)
class Program:
    """A matrix-vector product without its common subexpressions; outputs are ("y", i)."""

    statements: tuple[Statement, ...]

    @property
    def additions(self) -> int:
        """Additions, and multiply-adds where a coefficient is not 1 or -1."""
        return sum(len(s.terms) - 1 for s in self.statements if s.terms)

    @property
    def roundings(self) -> int:
        """The most roundings between an input and an output that depends on it, those of coefficients included."""
        depth: dict[tuple[str, int], int] = {}
        for statement in self.statements:
            total = 0
            for number, term in enumerate(statement.terms):
                own = depth.get(term.source, 0) + (not is_dyadic(term.coefficient))
                rounds = number > 0 or not _is_shift(term.coefficient)
                total = max(total, own) + rounds
            depth[statement.target] = total
        return max((d for target, d in depth.items() if target[0] == "y"), default=0)


def _is_shift(value: Fraction) -> bool:
    return is_dyadic(value) and abs(value.numerator) & (abs(value.numerator) - 1) == 0


@functools.lru_cache(maxsize=256)
def program(matrix: Matrix) -> Program:
    """The product with `matrix` as additions: pairs of terms that rows share, up to a factor, are added once."""
    rows = [{("x", i): entry for i, entry in enumerate(row) if entry} for row in matrix]
    statements = []
    for number in itertools.count():
        shared = _most_shared(rows)
        if shared is None:
            break
        first, second, ratio = shared
        target = ("t", number)
        # The larger coefficient is 1, so that a factor is a small one.
        scale = Fraction(1) if abs(ratio) <= 1 or not is_dyadic(1 / ratio) else 1 / ratio
        statements.append(Statement(target, _in_order((Term(scale, first), Term(scale * ratio, second)))))
        for row in rows:
            if first in row and second in row and row[second] == row[first] * ratio:
                row[target] = row.pop(first) / scale
                del row[second]
    for i, row in enumerate(rows):
        terms = tuple(Term(coefficient, source) for source, coefficient in sorted(row.items()))
        statements.append(Statement(("y", i), _in_order(terms)))
    return Program(tuple(statements))


Pair = tuple[tuple[str, int], tuple[str, int], Fraction]


def _most_shared(rows: Sequence[dict[tuple[str, int], Fraction]]) -> Pair | None:
    """The two values whose sum, the second times a ratio, most rows have a multiple of; None if none is shared."""
    counts: dict[Pair, int] = {}
    for row in rows:
        for first, second in itertools.combinations(sorted(row), 2):
            pair = (first, second, row[second] / row[first])
            counts[pair] = counts.get(pair, 0) + 1
    best = max(counts, key=lambda pair: (counts[pair], _is_shift(pair[2]), pair[0], pair[1]), default=None)
    return best if best is not None and counts[best] > 1 else None


def _in_order(terms: tuple[Term, ...]) -> tuple[Term, ...]:
    """Terms that need no multiplication first, since the first one is not part of a multiply-add."""
    return tuple(sorted(terms, key=lambda t: (abs(t.coefficient) != 1, t.coefficient < 0)))
