"""The transforms: against exact rational convolution, their programs, and growth against brute force."""

from __future__ import annotations

import itertools
import random
from fractions import Fraction

import numpy as np
import pytest

from convgen.accuracy import evaluate
from convgen.errors import ConfigError
from convgen.strategies.winograd_transform import Matrix, Transform, parse_points, program, transform

POINTS = (
    ("0:1", 2),
    ("0:1:-1", 3),
    ("0:1:-1", 2),
    ("0:1:-1:2", 3),
    ("0:1:-1:1/2", 3),
    ("0:1:-1:2:-2", 3),
    ("0:1:-1:1/2:-2", 3),
    ("0:1:-1:1/2:-2", 5),
    ("0:1:-1:2:-2:1/2:-1/2", 3),
    ("3:1/3:-5/7:2", 4),
    ("1:2", 3),
)


def made(points: str, r: int) -> Transform:
    return transform(parse_points(points), r)


def times(matrix: Matrix, vector: list[Fraction]) -> list[Fraction]:
    return [sum((a * v for a, v in zip(row, vector, strict=True)), Fraction(0)) for row in matrix]


@pytest.mark.parametrize(("points", "r"), POINTS)
def test_the_transforms_convolve_exactly(points: str, r: int) -> None:
    f = made(points, r)
    rng = random.Random(0)
    for _ in range(10):
        d = [Fraction(rng.randint(-99, 99), rng.randint(1, 9)) for _ in range(f.alpha)]
        g = [Fraction(rng.randint(-99, 99), rng.randint(1, 9)) for _ in range(r)]
        products = [u * v for u, v in zip(times(f.filter, g), times(f.input, d), strict=True)]
        assert times(f.inverse, products) == [sum(g[k] * d[j + k] for k in range(r)) for j in range(f.m)]


@pytest.mark.parametrize(("points", "r"), POINTS)
def test_one_multiplication_an_input(points: str, r: int) -> None:
    f = made(points, r)
    assert f.alpha == f.m + r - 1 == len(parse_points(points)) + 1
    assert len(f.filter) == len(f.input) == len(f.inverse[0]) == f.alpha


def test_the_matrices_of_lavin_and_gray() -> None:
    f = made("0:1:-1", 3)
    assert [list(map(str, row)) for row in f.filter] == [
        ["1", "0", "0"],
        ["1/2", "1/2", "1/2"],
        ["1/2", "-1/2", "1/2"],
        ["0", "0", "1"],
    ]
    # Theirs has the last row of B^T, and with it the last column of A^T, with the other sign.
    assert [list(map(int, row)) for row in f.input] == [[1, 0, -1, 0], [0, 1, 1, 0], [0, -1, 1, 0], [0, -1, 0, 1]]
    assert [list(map(int, row)) for row in f.inverse] == [[1, 1, 1, 0], [0, 1, -1, 1]]
    f = made("0:1:-1:2:-2", 3)
    assert [list(map(int, row)) for row in f.input[:3]] == [
        [4, 0, -5, 0, 1, 0],
        [0, 4, 4, -1, -1, 0],
        [0, -4, 4, 1, -1, 0],
    ]


@pytest.mark.parametrize(("points", "r"), POINTS)
def test_programs_are_the_matrices(points: str, r: int) -> None:
    """On unit vectors; sums of magnitudes too, so that nothing is added to be taken away again."""
    f = made(points, r)
    for matrix in (f.input, f.filter, f.inverse):
        values: dict[tuple[str, int], list[Fraction]] = {}
        sizes: dict[tuple[str, int], list[Fraction]] = {}
        width = len(matrix[0])
        for i in range(width):
            values["x", i] = sizes["x", i] = [Fraction(i == j) for j in range(width)]
        for s in program(matrix).statements:
            values[s.target] = [
                sum((t.coefficient * values[t.source][j] for t in s.terms), Fraction(0)) for j in range(width)
            ]
            sizes[s.target] = [
                sum((abs(t.coefficient) * sizes[t.source][j] for t in s.terms), Fraction(0)) for j in range(width)
            ]
        for i, row in enumerate(matrix):
            assert values["y", i] == list(row)
            assert sizes["y", i] == [abs(entry) for entry in row]


@pytest.mark.parametrize(
    ("points", "additions", "roundings"),
    [("0:1:-1", (4, 3, 4), (1, 2, 2)), ("0:1:-1:2:-2", (12, 6, 10), (2, 4, 3))],
)
def test_common_subexpressions_are_shared(points: str, additions: tuple[int, ...], roundings: tuple[int, ...]) -> None:
    """F(2, 3): four additions for the input and four for the result, as Lavin and Gray count."""
    f = made(points, 3)
    programs = [program(matrix) for matrix in (f.input, f.filter, f.inverse)]
    assert tuple(p.additions for p in programs) == additions
    assert tuple(p.roundings for p in programs) == roundings


def test_roundings_are_those_of_arithmetic() -> None:
    """No error of a program in fp32 exceeds its roundings times the sum of magnitudes; with one less, some do."""
    rng = np.random.default_rng(0)
    for points in ("0:1:-1", "0:1:-1:1/2:-2", "0:1:-1:2:-2"):
        f = made(points, 3)
        for matrix in (f.input, f.filter, f.inverse):
            exact = np.array([[float(e) for e in row] for row in matrix])
            x = [rng.standard_normal(4000).astype(np.float32).astype(np.float64) for _ in exact[0]]
            got = np.array(evaluate(program(matrix), x))
            limit = program(matrix).roundings * 2.0**-24 * (abs(exact) @ abs(np.array(x)))
            assert (abs(got - exact @ np.array(x)) <= limit).all()
            assert (abs(got - exact @ np.array(x)) > limit / 16).any()


@pytest.mark.parametrize(("points", "r"), POINTS)
def test_growth_is_that_of_brute_force(points: str, r: int) -> None:
    """The sum over all ways from a pixel and a tap into a result, each by its own factors."""
    f = made(points, r)
    worst = max(
        sum(
            abs(f.inverse[j][t] * f.filter[t][k] * f.input[t][i])
            for t, k, i in itertools.product(range(f.alpha), range(r), range(f.alpha))
        )
        for j in range(f.m)
    )
    assert f.growth == worst / r


def test_known_growths() -> None:
    assert made("0:1:-1", 3).growth == Fraction(8, 3)
    assert made("0:1:-1:2:-2", 3).growth == 16
    assert made("0:1:-1:1/2:-2", 3).growth < Fraction(10)


@pytest.mark.parametrize("axes", [1, 2])
def test_growths_of_axes_multiply(axes: int) -> None:
    f = made("0:1:-1:2", 3)
    inverse, filters, inputs = (
        np.array([[float(e) for e in row] for row in m]) for m in (f.inverse, f.filter, f.input)
    )
    for _ in range(axes - 1):
        inverse, filters, inputs = (np.kron(m, m) for m in (inverse, filters, inputs))
    ways = abs(inverse) @ (abs(filters).sum(axis=1) * abs(inputs).sum(axis=1))
    assert ways.max() / filters.shape[1] == pytest.approx(float(f.growth**axes), rel=1e-12)


def test_gains_of_the_literature() -> None:
    """By how much a 2-D input's transform may enlarge, with B^T of integers: 4, 100, and 49 over 4 for halves."""
    assert made("0:1:-1", 3).input_gain ** 2 == 4
    assert made("0:1:-1:2:-2", 3).input_gain ** 2 == 100


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("0:1:1", "different points"),
        ("0:x", "expected fractions"),
        ("0:1/0", "expected fractions"),
        ("", "expected fractions"),
    ],
)
def test_bad_points_are_refused(text: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        parse_points(text)


def test_too_few_points_are_refused() -> None:
    with pytest.raises(ConfigError, match="needs at least 2"):
        made("0", 3)
