"""The unrolled matrix, against one element looked up at a time, and against the convolution it stands for."""

from __future__ import annotations

import itertools
from typing import Literal

import numpy as np
import pytest
from brute_force import border, brute_force
from im2col_oracle import im2col_reference

from convgen.problem import Conv
from convgen.reference import make_inputs

PROBLEMS = [
    "conv1d n=2 c=3 k=2 in=7 filter=3 stride=2 pad=1:2",
    "conv2d n=2 c=4 k=6 in=5x6 filter=3x2 stride=2x1 dilation=1x2 pad=1:0x2 groups=2",
    "conv2d n=1 c=3 k=3 in=4 filter=3 pad=2 groups=3 pad_mode=reflect",
    "conv2d n=1 c=2 k=2 in=4x3 filter=2 pad=1:2x3 pad_mode=circular",
    "conv3d n=1 c=2 k=2 in=3x4x2 filter=2x3x1 pad=1x1x0 pad_mode=replicate",
]


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("text", PROBLEMS)
def test_every_element_of_the_matrix(text: str, channels_last: bool) -> None:
    problem = with_layout(text, channels_last)
    x = make_inputs(problem, seed=1)["x"]
    depth = problem.c // problem.groups
    matrix = im2col_reference(problem, x, "rows")
    assert matrix.shape == (problem.groups, x.shape[0] * np.prod(problem.out), depth * np.prod(problem.filter))
    patches = list(itertools.product(range(x.shape[0]), np.ndindex(*problem.out)))
    for group, (row, (n, pixel)) in itertools.product(range(problem.groups), enumerate(patches)):
        terms = list(itertools.product(range(depth), np.ndindex(*problem.filter)))
        if channels_last:
            terms = [(c, tap) for tap, c in itertools.product(np.ndindex(*problem.filter), range(depth))]
        for column, (c, tap) in enumerate(terms):
            at = [
                border(o * s + t * d - p, extent, problem.pad_mode)
                for o, s, t, d, p, extent in zip(
                    pixel, problem.stride, tap, problem.dilation, problem.pad_lo, problem.spatial, strict=True
                )
            ]
            expected = 0.0 if None in at else x[(n, group * depth + c, *at)]
            assert matrix[group, row, column] == expected


@pytest.mark.parametrize("patches", ["rows", "columns"])
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("text", PROBLEMS)
def test_the_matrix_times_the_filter_is_the_convolution(
    text: str, channels_last: bool, patches: Literal["rows", "columns"]
) -> None:
    problem = with_layout(text, channels_last)
    inputs = make_inputs(problem, seed=2)
    matrix = im2col_reference(problem, inputs["x"], patches)
    filters = np.moveaxis(inputs["w"], 1, -1) if channels_last else inputs["w"]
    filters = filters.reshape(problem.groups, problem.k // problem.groups, -1)
    product = filters @ (matrix if patches == "columns" else matrix.swapaxes(1, 2))
    product = product.reshape(problem.k, problem.typical_batch, *problem.out).swapaxes(0, 1)
    np.testing.assert_allclose(product, brute_force(problem, inputs), rtol=1e-12, atol=1e-12)


def with_layout(text: str, channels_last: bool) -> Conv:
    layout = {"conv1d": "nlc", "conv2d": "nhwc", "conv3d": "ndhwc"}[text.split()[0]]
    return Conv.parse(f"{text} layout={layout if channels_last else layout[0] + 'c' + layout[1:-1]}")
