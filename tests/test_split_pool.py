"""The split_pool strategy: the conformance suite, awkward problems, and its counters."""

from __future__ import annotations

import pytest
from pooling_conformance import PoolingConformance, counted, require_reason, require_refusal, require_right

from convgen.problem import Pool
from convgen.strategies.split_pool import STRATEGY

GLOBAL = "avg_pool2d n=3 c=6 in=12x9 filter=12x9"
LARGE = "max_pool2d n=2 c=4 in=19x21 filter=9x11 stride=4 pad=3"
PLAIN: dict[str, int | str] = {"threads_result": 1, "threads_window": 32, "vector": 1, "unroll": 1}


class TestSplitPool(PoolingConformance):
    strategy = STRATEGY
    golden_problem = "avg_pool2d n=2 c=8 in=14x12 filter=7x6 stride=7x6 pad=1 count_include_pad=no layout=nhwc"


@pytest.mark.parametrize(
    ("problem", "changes"),
    [
        (GLOBAL, PLAIN),
        (GLOBAL, {"threads_result": 8, "threads_window": 4, "vector": 4, "unroll": 2}),
        (GLOBAL + " dtype=fp16", {"threads_result": 1, "threads_window": 256, "vector": 4, "unroll": 1}),
        (GLOBAL + " layout=nhwc", {"threads_result": 2, "threads_window": 64, "vector": 2, "unroll": 4}),
        (GLOBAL + " layout=nhwc dtype=bf16", {"threads_result": 64, "threads_window": 2, "vector": 1, "unroll": 8}),
        (LARGE, PLAIN),
        (LARGE + " ceil_mode=yes", {"threads_result": 4, "threads_window": 8, "unroll": 4}),
        (LARGE + " layout=nhwc dilation=2x1", {"threads_result": 16, "threads_window": 16, "vector": 4}),
        ("avg_pool1d n=2 c=3 in=999 filter=500 stride=133 pad=100 count_include_pad=no", {"threads_window": 128}),
        ("avg_pool3d n=2 c=3 in=9x8x7 filter=5x4x3 stride=2 pad=2x1x1 ceil_mode=yes", {"threads_window": 16}),
        ("avg_pool3d n=*<=4~2 c=5 in=4x3x2 filter=4x3x2", {"threads_result": 16, "threads_window": 2, "vector": 4}),
        ("avg_pool2d n=2 c=1 in=8x8 filter=8 layout=nhwc", {"vector": 4}),
    ],
)
def test_awkward_problems(problem: str, changes: dict[str, int | str]) -> None:
    require_right(STRATEGY, problem, changes)
    require_right(STRATEGY, problem)


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_global_pooling_reads_x_once(layout: str) -> None:
    problem = f"avg_pool2d n=2 c=16 in=14x14 filter=14 dtype=fp16 layout={layout}"
    counters = counted(STRATEGY, problem).report.counters
    assert counters.read_bytes["global"] == Pool.parse(problem).inputs[0].nbytes
    assert counters.written_bytes["global"] == Pool.parse(problem).outputs[0].nbytes


@pytest.mark.parametrize(
    ("problem", "changes", "rule"),
    [
        (GLOBAL, {"threads_result": 0}, "at least 1"),
        (GLOBAL, {"threads_window": 24}, "power of two"),
        (GLOBAL, {"threads_result": 64, "threads_window": 64}, "a block has at most 1024"),
        (GLOBAL, {"threads_result": 1, "threads_window": 8}, "at least a warp"),
        (LARGE, {"vector": 2}, "a load is of"),
        (GLOBAL, {"unroll": 32}, "at most 16"),
    ],
)
def test_illegal_configs_are_refused_by_rule(problem: str, changes: dict[str, int | str], rule: str) -> None:
    require_refusal(STRATEGY, problem, changes, rule)


@pytest.mark.parametrize(
    ("problem", "reason"),
    [
        ("max_pool2d c=1 in=9x9 filter=3", "too small to share"),
        ("max_pool1d c=1 in=99 filter=30 dtype=uint8", "uint8 has no kernel yet"),
    ],
)
def test_what_is_not_covered_is_said(problem: str, reason: str) -> None:
    require_reason(STRATEGY, problem, reason)
