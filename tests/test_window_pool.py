"""The window_pool strategy: the conformance suite, awkward problems, and its counters."""

from __future__ import annotations

import math

import pytest
from conformance import TARGET
from pooling_conformance import PoolingConformance, counted, require_reason, require_refusal, require_right

from convgen.problem import Pool
from convgen.strategies.window_pool import STRATEGY

STEM = "max_pool2d n=2 c=8 in=16x24 filter=3x3 stride=2 pad=1"
SAME = "avg_pool2d n=2 c=6 in=11x13 filter=3x3 stride=1 pad=1"
PLAIN: dict[str, int | str] = {"threads": 64, "tile_h": 1, "tile_w": 1, "vector": 1}


class TestWindowPool(PoolingConformance):
    strategy = STRATEGY
    golden_problem = "avg_pool2d n=2 c=8 in=13x12 filter=3x3 stride=2 pad=1 count_include_pad=no"


@pytest.mark.parametrize(
    ("problem", "changes"),
    [
        (STEM, PLAIN),
        (STEM, {**PLAIN, "tile_w": 4}),
        (STEM, {**PLAIN, "tile_h": 4, "tile_w": 2, "vector": 4}),
        (STEM + " dtype=fp16", {**PLAIN, "tile_h": 2, "tile_w": 4, "vector": 8}),
        (STEM + " layout=nhwc dtype=bf16", {**PLAIN, "tile_h": 2, "tile_w": 2, "vector": 8}),
        (SAME, {**PLAIN, "tile_h": 4, "tile_w": 4}),
        (SAME + " layout=nhwc", {**PLAIN, "tile_h": 8, "tile_w": 2, "vector": 2}),
        (SAME + " count_include_pad=no", {**PLAIN, "tile_h": 2, "tile_w": 8}),
        ("max_pool2d n=2 c=3 in=17x16 filter=3x2 stride=1x2 dilation=2x3 pad=2", {**PLAIN, "tile_h": 4, "tile_w": 2}),
        ("max_pool2d n=1 c=3 in=17x16 filter=5x5 stride=1 pad=2", {**PLAIN, "tile_h": 2, "tile_w": 4, "vector": 4}),
        ("avg_pool3d n=2 c=3 in=6x7x8 filter=2x3x3 stride=1x2x1 pad=1", {**PLAIN, "tile_h": 2, "tile_w": 4}),
        ("avg_pool3d n=2 c=4 in=6x7x8 filter=3 stride=2 pad=1:0 ceil_mode=yes layout=ndhwc", {}),
        ("avg_pool1d n=3 c=5 in=301 filter=64 stride=1 pad=31", {**PLAIN, "tile_w": 16}),
        ("avg_pool1d n=3 c=5 in=301 filter=200 stride=7", PLAIN),
        ("avg_pool2d n=2 c=5 in=31x33 filter=31x33", PLAIN),
        ("max_pool2d n=2 c=4 in=5x5 filter=2x2 stride=3 pad=1 ceil_mode=yes", PLAIN),
        ("max_pool1d n=1 c=2 in=2 filter=2 dilation=3 pad=2", PLAIN),  # windows of nothing but padding
        ("avg_pool2d n=*<=4~3 c=2 in=9x8 filter=3x3 stride=2", {**PLAIN, "tile_h": 2, "tile_w": 2}),
        ("avg_pool2d n=2 c=1 in=9x8 filter=2x2 stride=1 layout=nhwc divisor_override=3", {**PLAIN, "tile_w": 4}),
    ],
)
def test_awkward_problems(problem: str, changes: dict[str, int | str]) -> None:
    require_right(STRATEGY, problem, changes)


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_a_tile_reads_its_pixels_once(layout: str) -> None:
    """Without padding a tile of h x w results reads (2h + 1) x (2w + 1) pixels, each once, and writes h x w."""
    problem = f"max_pool2d n=2 c=4 in=17x33 filter=3x3 stride=2 layout={layout}"
    for tile_h, tile_w in ((1, 1), (2, 4), (4, 2), (8, 8)):
        result = counted(STRATEGY, problem, {**PLAIN, "tile_h": tile_h, "tile_w": tile_w})
        tiles = 2 * 4 * (8 // tile_h) * (16 // tile_w)
        assert result.report.counters.read_bytes["global"] == 4 * tiles * (2 * tile_h + 1) * (2 * tile_w + 1)
        assert result.report.counters.written_bytes["global"] == 4 * 2 * 4 * 8 * 16


def test_windows_that_do_not_overlap_read_x_once() -> None:
    problem = "avg_pool2d n=2 c=8 in=16x32 filter=2x2 dtype=fp16 layout=nhwc"
    result = counted(STRATEGY, problem)
    assert result.report.counters.read_bytes["global"] == Pool.parse(problem).inputs[0].nbytes
    assert result.report.counters.written_bytes["global"] == Pool.parse(problem).outputs[0].nbytes


def test_windows_that_overlap_share_row_sums() -> None:
    """The numerics that the bound follows: a window costs the sum of its sides."""
    problem = Pool.parse("avg_pool2d n=1 c=1 in=64x64 filter=13x9 stride=1")
    plan = STRATEGY.lower(problem, STRATEGY.default(problem, TARGET), TARGET)
    assert plan.numerics.steps == 13 + 9 < math.prod(problem.filter)


@pytest.mark.parametrize(
    ("problem", "changes", "rule"),
    [
        (STEM, {"tile_h": 0}, "at least 1"),
        (STEM, {"threads": 2048}, "a block has at most 1024"),
        (STEM, {"vector": 3}, "a load is of"),
        (SAME, {**PLAIN, "vector": 2}, "pixels of a row"),
        (STEM, {**PLAIN, "vector": 4, "tile_w": 1}, "whole packs"),
        (STEM, {**PLAIN, "tile_h": 16, "tile_w": 16}, "would not fit in registers"),
        ("max_pool1d n=1 c=1 in=999 filter=300 stride=1", {**PLAIN, "tile_w": 2}, "elements of a row"),
        ("max_pool1d n=1 c=1 in=99 filter=3", {**PLAIN, "tile_h": 2}, "there is no h"),
    ],
)
def test_illegal_configs_are_refused_by_rule(problem: str, changes: dict[str, int | str], rule: str) -> None:
    require_refusal(STRATEGY, problem, changes, rule)


@pytest.mark.parametrize(
    ("problem", "reason"),
    [
        ("max_pool1d c=1 in=9 filter=3 dtype=uint8", "uint8 has no kernel yet"),
        ("max_pool1d c=1 in=3000000000 filter=3", "32 bits"),
        ("conv1d c=1 k=1 in=9 filter=3", "it solves poolings, not conv1d"),
    ],
)
def test_what_is_not_covered_is_said(problem: str, reason: str) -> None:
    require_reason(STRATEGY, problem, reason)
