"""The direct strategy: the conformance suite, and every dimension of its space exercised on purpose."""

from __future__ import annotations

import pytest
from conformance import TARGET, IntegerConformance, require_refusal, require_right, require_terms_to_vanish

from convgen.lowering import lower
from convgen.problem import Conv
from convgen.strategies.direct import STRATEGY, DirectConfig

TEXTBOOK = DirectConfig("column", 1, 128, 1, 1, 1, 1, "global", "global", 1, 1)

IMAGE = "conv2d n=2 c=1 in=24x32 k=1 filter=5x5 pad=2"
DENSE = "conv2d n=3 c=6 in=9x10 k=7 filter=3x3 pad=1"
DEPTHWISE = "conv2d n=2 c=8 in=9x10 k=8 groups=8 filter=3x3 pad=1"


class TestDirect(IntegerConformance):
    strategy = STRATEGY


def config(**changes: int | str) -> DirectConfig:
    return DirectConfig.from_mapping(changes, TEXTBOOK)


@pytest.mark.parametrize(
    ("problem", "changes"),
    [
        (DENSE, {}),
        (DENSE, {"tile_b": 2}),
        (DENSE, {"tile_channel": 4}),
        (DENSE, {"tile_position": 4}),
        (DENSE, {"threads_channel": 4, "threads_column": 32}),
        (DENSE, {"along_x": "channel", "threads_channel": 8, "threads_column": 16}),
        (DENSE, {"split_q": 2}),
        (DENSE, {"split_taps": 3}),
        (DENSE, {"split_q": 3, "split_taps": 2, "tile_channel": 2, "tile_position": 2}),
        (DENSE, {"filter": "constant"}),
        (DENSE, {"filter": "shared", "tile_channel": 2}),
        (DENSE + " layout=nhwc", {"vector": 2, "tile_channel": 7}),
        (DENSE + " layout=nhwc dtype=fp16 epilogue=scale+shift+bias+residual+gelu", {"vector": 2}),
        (DENSE + " layout=nhwc direction=wgrad", {"split_taps": 4}),
        (DENSE + " direction=wgrad", {"split_q": 3}),
        (DEPTHWISE + " layout=nhwc dtype=bf16", {"tile_channel": 8, "tile_position": 2}),
        (DEPTHWISE + " epilogue=bias+silu accumulate=yes", {"tile_channel": 4, "tile_position": 2}),
        (DENSE + " dtype=uint8", {"filter": "constant", "tile_position": 2}),
        (DENSE + " dtype=int8 layout=nhwc", {"filter": "shared", "tile_channel": 2, "vector": 2}),
        (DENSE + " dtype=int8 accumulate=yes", {"split_q": 3, "split_taps": 2}),
        (DEPTHWISE + " layout=nhwc dtype=int8", {"tile_channel": 8, "tile_position": 2}),
        (IMAGE, {"filter": "constant", "input": "texture"}),
        (IMAGE + " dtype=fp16", {"input": "texture", "tile_position": 2}),
        (IMAGE + " dtype=fp16", {"tile_position": 4, "filter": "shared"}),
    ],
)
def test_each_tunable_gives_the_right_answer(problem: str, changes: dict[str, int | str]) -> None:
    require_right(STRATEGY, problem, config(**changes))


def test_offsets_are_wide_where_the_partial_results_alone_are() -> None:
    problem = Conv.parse("conv2d n=*<=200000~1 c=16 k=16 in=14x14 filter=3x3 pad=1")
    for parts, ctype in ((1, "int"), (16, "long long")):
        assert lower(problem, STRATEGY, config(split_q=parts), TARGET).constants["offset_t"] == ctype


def test_a_term_that_does_not_exist_is_no_zero_times_its_weight() -> None:
    require_terms_to_vanish(STRATEGY, config())
    require_terms_to_vanish(STRATEGY, config(tile_position=4))


@pytest.mark.parametrize(
    ("problem", "changes", "rule"),
    [
        (DENSE, {"tile_position": 0}, "at least 1"),
        (DENSE, {"threads_column": 2048}, "a block has at most 1024"),
        (DENSE, {"filter": "nowhere"}, "expected global, constant or shared"),
        (DENSE, {"filter": "constant", "along_x": "channel", "threads_channel": 8}, "different addresses"),
        ("conv2d c=256 in=9 k=256 filter=3", {"filter": "constant"}, "constant memory 65536"),
        (DENSE, {"vector": 2}, "must be neighbours"),
        (DENSE, {"input": "texture"}, "single-channel"),
        ("conv2d c=1 k=1 in=8x9 filter=3", {"input": "texture"}, "multiple of 32"),
        (IMAGE + " pad_mode=reflect direction=dgrad", {"tile_position": 2}, "one position at a time"),
        (DENSE, {"split_q": 7}, "more parts than terms"),
        ("conv2d n=* c=4 k=4 in=9 filter=3", {"tile_b": 2}, "run time"),
    ],
)  # fmt: skip
def test_illegal_configs_are_refused_by_rule(problem: str, changes: dict[str, int | str], rule: str) -> None:
    require_refusal(STRATEGY, problem, config(**changes), rule)


def test_different_problems_and_configs_have_different_kernel_names() -> None:
    """Their files lie in one folder, their launchers in one program."""
    variants = ("", "pad=0", "pad=1:2x1", "pad_mode=reflect", "epilogue=bias", "accumulate=yes", "out_dtype=fp16")
    problems = [DENSE.replace(" pad=1", "") + " " + (text if "pad=" in text else f"pad=1 {text}") for text in variants]
    plans = [STRATEGY.lower(Conv.parse(text), TEXTBOOK, TARGET) for text in problems]
    plans.append(STRATEGY.lower(Conv.parse(DENSE), config(tile_channel=2), TARGET))
    assert len({plan.name for plan in plans}) == len(plans)
