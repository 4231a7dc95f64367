"""Pooling as a problem: its forms, what it refuses, and its shapes, held against PyTorch's documented formulas."""

from __future__ import annotations

import dataclasses
import json

import pytest
from pooling_generators import random_pools

from convgen.errors import ProblemError
from convgen.problem import DType, Pool, Sizes, parse_problem, problem_from_json

STEM = "max_pool2d n=32 c=64 in=112x112 filter=3x3 stride=2 pad=1"


def test_poolings_read_back_equal() -> None:
    for pool in random_pools(seed=0, count=200):
        assert parse_problem(str(pool)) == pool
        assert str(Pool.parse(str(pool))) == str(pool)
        assert problem_from_json(json.loads(json.dumps(pool.to_json()))) == pool


def test_canonical_text() -> None:
    assert str(Pool.parse(STEM)) == STEM
    assert str(Pool.of("avg_pool2d", c=3, spatial=8, filter=2)) == "avg_pool2d n=1 c=3 in=8x8 filter=2x2"
    assert str(Pool.parse("avg_pool1d c=3 in=8 filter=2 stride=2 count_include_pad=yes ceil_mode=no n=*")) == (
        "avg_pool1d n=* c=3 in=8 filter=2"
    )


def test_json_form() -> None:
    entry = {"op": "avg_pool", "c": 3, "in": [9, 8], "filter": [3, 2], "pad_lo": [1, 0], "count_include_pad": False}
    assert str(Pool.from_json(entry)) == "avg_pool2d n=1 c=3 in=9x8 filter=3x2 pad=1:0x0 count_include_pad=no"


@pytest.mark.parametrize(
    ("text", "out"),
    [
        (STEM, (56, 56)),
        (STEM + " ceil_mode=yes", (57, 57)),
        ("avg_pool2d c=1 in=7x7 filter=7", (1, 1)),
        ("max_pool1d c=1 in=7 filter=2", (3,)),
        ("max_pool1d c=1 in=7 filter=2 ceil_mode=yes", (4,)),
        ("max_pool1d c=1 in=5 filter=2 stride=3 pad=1 ceil_mode=yes", (2,)),  # a third would start in the padding
        ("max_pool1d c=1 in=10 filter=3 dilation=3 stride=1", (4,)),
        ("max_pool3d c=1 in=8x7x6 filter=2x3x1 stride=1x2x3 pad=0x1x0", (7, 4, 2)),
        ("avg_pool1d c=1 in=7 filter=3 stride=2 pad=same", (4,)),
    ],
)
def test_output_extents(text: str, out: tuple[int, ...]) -> None:
    pool = Pool.parse(text)
    assert pool.out == out
    assert pool.outputs[0].shape == (1 if "n=32" not in text else 32, pool.c, *out)


def test_work_and_traffic() -> None:
    pool = Pool.parse(STEM + " dtype=fp16 layout=nhwc")
    assert pool.macs == pool.flops == 32 * 64 * 56 * 56 * 9
    assert pool.bytes == 2 * 32 * 64 * (112 * 112 + 56 * 56)
    assert pool.tensor("x").strides == (112 * 112 * 64, 1, 112 * 64, 64)


def test_a_runtime_batch() -> None:
    pool = Pool.parse(STEM.replace("n=32", "n=*<=64~8"))
    assert pool.sizes == Sizes.of(n=8)
    assert pool.largest == Sizes.of(n=64)
    assert pool.runtime_sizes == ("n",)
    assert pool.with_sizes(Sizes.of(n=5)) == dataclasses.replace(pool, n=5)
    assert pool.sizes_of(lambda name: {"x": (3, 64, 112, 112)}[name]) == Sizes.of(n=3)
    with pytest.raises(ProblemError, match="at most 64"):
        pool.at(65)
    assert Pool.parse(STEM.replace("n=32", "n=*")).largest is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("max_pool2d c=1 in=4x4 filter=2 pad=2", "less than 2"),
        ("max_pool2d c=1 in=2x2 filter=3x3", "at least 3x3"),
        ("max_pool2d c=1 in=4x4 filter=2 count_include_pad=no", "counts no positions"),
        ("max_pool2d c=1 in=4x4 filter=2 divisor_override=3", "no divisor"),
        ("avg_pool2d c=1 in=4x4 filter=2 dtype=int8", "fp32"),
        ("max_pool2d c=1 in=4x4 filter=2 dtype=tf32", "fp32"),
        ("max_pool2d c=1 in=4x4 filter=2 direction=dgrad", "fprop"),
        ("max_pool2d c=1 in=4x4 filter=0", "at least 1"),
        ("max_pool2d c=1 in=4x4x4 filter=2", "2 integers"),
        ("max_pool2d c=1 in=4x4", "no default"),
        ("max_pool2d c=1 in=4x4 filter=2 groups=2", "one of the keys"),
        ("max_pool2d n=3000000000 c=3000000000 in=4x4 filter=2", "2^63"),
    ],
)
def test_what_means_nothing_is_refused(text: str, message: str) -> None:
    with pytest.raises(ProblemError, match=message.replace("^", r"\^")):
        parse_problem(text)


def test_integers_are_for_maxima() -> None:
    pool = Pool.parse("max_pool1d c=1 in=4 filter=2 dtype=uint8")
    assert pool.outputs[0].dtype is DType.UINT8
