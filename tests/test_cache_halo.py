"""The cache_halo strategy: the conformance suite, awkward problems, every dimension of its space, and its counters."""

from __future__ import annotations

import numpy as np
import pytest
from conformance import (
    TARGET,
    StrategyConformance,
    require_reason,
    require_refusal,
    require_right,
    require_terms_to_vanish,
)

from convgen.lowering import lower
from convgen.problem import Conv
from convgen.reference import make_inputs
from convgen.render import render
from convgen.runtime.sim import Mode, build
from convgen.strategies.cache_halo import STRATEGY, CacheHaloConfig

TEXTBOOK = CacheHaloConfig(16, 16, 1, 1, 1, "constant")

IMAGE = "conv2d n=2 c=1 in=40x72 k=1 filter=5x5 pad=2"
DENSE = "conv2d n=3 c=6 in=9x10 k=7 filter=3x3 pad=1"
VOLUME = "conv3d n=2 c=3 in=6x7x9 k=4 filter=3x2x3 pad=1x0x1"


class TestCacheHalo(StrategyConformance):
    strategy = STRATEGY


def config(**changes: int | str) -> CacheHaloConfig:
    return CacheHaloConfig.from_mapping(changes, TEXTBOOK)


@pytest.mark.parametrize(
    ("problem", "changes"),
    [
        (IMAGE, {}),
        (IMAGE, {"filter": "global", "threads_x": 32, "threads_y": 8}),
        (IMAGE + " dtype=fp16", {"threads_x": 64, "threads_y": 1}),
        (DENSE, {"chunk": 2}),
        (DENSE, {"chunk": 4, "tile_channel": 4}),
        (DENSE + " layout=nhwc", {"chunk": 6, "tile_channel": 2, "filter": "global"}),
        (DENSE + " layout=nhwc dtype=bf16 epilogue=bias+relu", {"chunk": 4, "tile_channel": 7}),
        (VOLUME, {"threads_x": 4, "threads_y": 2, "threads_z": 2, "chunk": 2}),
        ("conv2d n=1 c=2 in=33x17 k=3 filter=5x3 stride=2 pad=2x1", {"chunk": 2}),
        ("conv2d n=1 c=2 in=33x37 k=3 filter=3x3 stride=3x4 pad=1", {"tile_channel": 2}),
        ("conv2d n=1 c=2 in=21x23 k=2 filter=2x2 stride=3x5", {}),
        ("conv2d n=2 c=2 in=23x29 k=3 filter=3x3 dilation=3 pad=3", {"threads_x": 8, "threads_y": 4}),
        ("conv2d n=1 c=1 in=25x31 k=1 filter=3x5 dilation=3x2 stride=2x3 pad=4", {}),
        ("conv2d n=1 c=2 in=17x19 k=2 filter=4x6 pad=0:3x5:1", {"threads_x": 8, "threads_y": 8}),
        ("conv2d n=1 c=2 in=17x20 k=2 filter=3x3 pad=7x9", {}),
        ("conv2d n=2 c=2 in=15x18 k=4 filter=5x5 pad=4 pad_mode=reflect", {"threads_x": 8, "threads_y": 4}),
        ("conv2d n=2 c=2 in=15x16 k=4 filter=5x5 pad=6x3 pad_mode=replicate", {"threads_x": 8}),
        ("conv2d n=2 c=2 in=15x16 k=4 filter=5x5 pad=9x3 pad_mode=circular", {"threads_x": 8}),
        ("conv2d n=2 c=6 in=11x13 k=9 groups=3 filter=3x3 pad=1", {"tile_channel": 2, "chunk": 2}),
        ("conv2d n=2 c=6 in=11x12 k=6 groups=6 filter=3x3 pad=1 layout=nhwc", {}),
        ("conv2d n=2 c=5 in=11x13 k=4 filter=3x3 pad=1 direction=dgrad", {"chunk": 3, "tile_channel": 2}),
        ("conv2d n=1 c=3 in=13x18 k=2 filter=4x5 pad=0:3x2:1 dilation=2 direction=dgrad", {"threads_x": 4}),
        ("conv_transpose2d n=2 c=3 in=12x13 k=4 filter=3x4 pad=1", {"threads_x": 8, "threads_y": 4}),
        (DENSE + " epilogue=scale+shift+bias+residual+gelu accumulate=yes", {"tile_channel": 2}),
        (VOLUME + " layout=ndhwc direction=dgrad", {"threads_x": 4, "threads_y": 4, "threads_z": 4}),
        ("conv1d n=2 c=3 in=97 k=4 filter=9 pad=4", {"threads_x": 32, "threads_y": 1, "chunk": 2}),
        ("conv1d n=1 c=2 in=301 k=2 filter=96 pad=20:80", {"threads_x": 64, "threads_y": 1}),
        ("conv1d n=1 c=4 in=160 k=4 groups=4 filter=3 dilation=16 pad=16 pad_mode=reflect", {"threads_y": 1}),
        ("conv2d n=*<=4~3 c=2 in=9x8 k=3 filter=3x3 pad=1", {"tile_channel": 2}),
    ],
)
def test_awkward_problems(problem: str, changes: dict[str, int | str]) -> None:
    require_right(STRATEGY, problem, config(**changes))
    require_right(STRATEGY, problem, None)


def test_a_term_that_does_not_exist_is_no_zero_times_its_weight() -> None:
    require_terms_to_vanish(STRATEGY, config(threads_x=8, threads_y=4))


def test_the_core_is_read_from_shared_memory_and_the_halo_from_global() -> None:
    """Of the 25 taps of a 16 x 16 block, those on the core number (sum over 16 positions of taps inside)^2."""
    problem = Conv.parse("conv2d n=1 c=1 in=68x68 k=1 filter=5x5")
    plan = lower(problem, STRATEGY, TEXTBOOK, TARGET)
    [program] = build([plan], [render(plan)], Mode.COUNT)
    inputs = {name: array.astype(np.float32) for name, array in make_inputs(problem, 0).items()}
    result = program.run(inputs, {"y": np.empty((1, 1, 64, 64), np.float32)})
    result.require_clean()
    counters = result.report.counters
    blocks, inside = 16, sum(0 <= position + tap < 16 for position in range(16) for tap in range(-2, 3))
    assert counters.read_bytes["shared"] == 4 * blocks * inside**2
    assert counters.read_bytes["global"] == 4 * blocks * (16**2 + 25 * 16**2 - inside**2)
    assert counters.barriers == blocks


@pytest.mark.parametrize(
    ("problem", "changes", "rule"),
    [
        (DENSE, {"chunk": 0}, "at least 1"),
        (DENSE, {"threads_x": 128}, "a block has at most 1024"),
        (DENSE, {"filter": "shared"}, "expected global or constant"),
        (DENSE, {"threads_z": 2}, "2 axes"),
        ("conv2d c=256 in=9x9 k=256 filter=3x3", {}, "constant memory 65536"),
        (DENSE, {"chunk": 7}, "6 summed channels"),
        (DENSE, {"tile_channel": 8}, "7 result channels"),
        ("conv2d c=1 in=9x9 k=64 filter=3x3", {"tile_channel": 64}, "would not fit in registers"),
        ("conv2d c=4 in=2000x2000 k=1 filter=20x20 stride=20", {}, "bytes of shared memory"),
    ],
)
def test_illegal_configs_are_refused_by_rule(problem: str, changes: dict[str, int | str], rule: str) -> None:
    require_refusal(STRATEGY, problem, config(**changes), rule)


@pytest.mark.parametrize(
    ("problem", "reason"),
    [
        (DENSE + " direction=wgrad", "wgrad"),
        (DENSE + " stride=2 direction=dgrad", "dgrad with a stride"),
        (DENSE + " pad_mode=circular direction=dgrad", "far outside"),
        ("conv2d n=1 c=0 in=9x9 k=2 filter=3x3", "nothing to sum"),
        ("conv2d n=1 c=1 in=900x900 k=1 filter=300x300 stride=300", "bytes of shared memory"),
    ],
)
def test_what_does_not_fit_is_said(problem: str, reason: str) -> None:
    require_reason(STRATEGY, problem, reason)
