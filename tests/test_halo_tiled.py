"""The halo_tiled strategy: the conformance suite, awkward problems, every dimension of its space, and its counters."""

from __future__ import annotations

import math

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

from convgen.gather import gather
from convgen.lowering import lower
from convgen.problem import Conv
from convgen.reference import make_inputs
from convgen.render import render
from convgen.runtime.sim import Mode, build
from convgen.simulator import Counters
from convgen.strategies.halo_tiled import STRATEGY
from convgen.strategies.halo_tiling import HaloTiledConfig, Tiling

TEXTBOOK = HaloTiledConfig(16, 16, 1, 1, 1, 1, 1, 1, 1, "constant", 1)
LINE = HaloTiledConfig(32, 1, 1, 1, 1, 1, 1, 1, 1, "shared", 1)

IMAGE = "conv2d n=2 c=1 in=40x72 k=1 filter=5x5 pad=2"
DENSE = "conv2d n=3 c=6 in=9x10 k=7 filter=3x3 pad=1"
DEPTHWISE = "conv2d n=2 c=10 in=19x20 k=10 groups=10 filter=3x3 pad=1"
VOLUME = "conv3d n=2 c=3 in=6x7x9 k=4 filter=3x2x3 pad=1x0x1"


class TestHaloTiled(StrategyConformance):
    strategy = STRATEGY


def config(base: HaloTiledConfig = TEXTBOOK, **changes: int | str) -> HaloTiledConfig:
    return HaloTiledConfig.from_mapping(changes, base)


@pytest.mark.parametrize(
    ("problem", "changes"),
    [
        (IMAGE, {}),
        (IMAGE, {"filter": "shared"}),
        (IMAGE, {"tile_w": 4, "tile_h": 4, "threads_x": 8, "threads_y": 4, "vector": 4}),
        (IMAGE, {"tile_w": 8, "tile_h": 2, "threads_x": 8, "threads_y": 4, "vector": 2, "min_blocks": 2}),
        (IMAGE + " dtype=fp16", {"tile_w": 4, "tile_h": 2, "vector": 8}),
        (IMAGE + " dtype=fp16", {"tile_w": 4, "tile_h": 2, "vector": 4, "filter": "shared"}),
        (DENSE, {"filter": "shared", "tile_channel": 4, "chunk": 6}),
        (DENSE, {"filter": "shared", "tile_channel": 2, "threads_channel": 4, "chunk": 2}),
        (DENSE, {"tile_channel": 2, "threads_channel": 2, "chunk": 4}),
        (DENSE + " layout=nhwc", {"filter": "shared", "tile_channel": 4, "chunk": 2, "vector": 2}),
        (DENSE.replace("k=7", "k=8") + " layout=nhwc", {"filter": "shared", "tile_channel": 4, "chunk": 4}),
        (DEPTHWISE, {"threads_channel": 4, "vector": 4, "tile_w": 2}),
        (DEPTHWISE + " layout=nhwc", {"threads_channel": 2, "vector": 2, "filter": "shared"}),
        (VOLUME, {"threads_x": 8, "threads_y": 4, "tile_d": 2, "filter": "shared", "tile_channel": 2}),
        (VOLUME, {"threads_x": 4, "threads_y": 2, "tile_d": 4, "tile_h": 2, "tile_w": 2, "chunk": 3}),
    ],
)
def test_each_tunable_gives_the_right_answer(problem: str, changes: dict[str, int | str]) -> None:
    require_right(STRATEGY, problem, config(**changes))


@pytest.mark.parametrize(
    ("problem", "changes"),
    [
        ("conv2d n=1 c=2 in=33x17 k=3 filter=5x3 stride=2 pad=2x1", {"tile_w": 2, "tile_h": 2, "filter": "shared"}),
        ("conv2d n=1 c=2 in=33x37 k=3 filter=3x3 stride=3x4 pad=1", {"tile_w": 2, "tile_h": 2}),
        ("conv2d n=1 c=2 in=21x23 k=2 filter=2x2 stride=3x5", {"tile_w": 2, "tile_h": 4}),
        ("conv2d n=2 c=2 in=23x29 k=3 filter=3x3 dilation=3 pad=3", {"tile_w": 4, "tile_h": 4}),
        ("conv2d n=1 c=1 in=25x31 k=1 filter=3x5 dilation=3x2 stride=2x3 pad=4", {"tile_w": 4, "tile_h": 2}),
        ("conv2d n=1 c=2 in=17x19 k=2 filter=4x6 pad=0:3x5:1", {"tile_w": 4, "tile_h": 2, "vector": 1}),
        ("conv2d n=1 c=2 in=17x20 k=2 filter=3x3 pad=7x9", {"tile_w": 4, "tile_h": 2, "vector": 4}),
        ("conv2d n=2 c=2 in=15x18 k=4 filter=5x5 pad=4 pad_mode=reflect", {"tile_w": 2, "filter": "shared"}),
        ("conv2d n=2 c=2 in=15x16 k=4 filter=5x5 pad=6x3 pad_mode=replicate", {"tile_w": 4, "vector": 4}),
        ("conv2d n=2 c=2 in=15x16 k=4 filter=5x5 pad=9x3 pad_mode=circular", {"tile_w": 4, "vector": 2}),
        ("conv2d n=2 c=6 in=11x13 k=9 groups=3 filter=3x3 pad=1", {"tile_channel": 2, "chunk": 2}),
        ("conv2d n=2 c=6 in=11x12 k=12 groups=6 filter=3x3 pad=1 layout=nhwc", {"tile_channel": 2}),
        ("conv2d n=2 c=5 in=11x13 k=4 filter=3x3 pad=1 direction=dgrad", {"tile_w": 4, "tile_h": 2, "chunk": 3}),
        ("conv2d n=1 c=3 in=13x18 k=2 filter=4x5 pad=0:3x2:1 dilation=2 direction=dgrad", {"tile_w": 2, "tile_h": 2}),
        ("conv2d n=1 c=8 in=33x32 k=8 groups=8 filter=5x5 pad=2 direction=dgrad", {"tile_w": 4, "vector": 4}),
        ("conv_transpose2d n=2 c=3 in=12x13 k=4 filter=3x4 pad=1", {"tile_w": 4, "tile_h": 2}),
        ("conv_transpose2d n=2 c=3 in=12x13 k=4 filter=3x4 pad=1 stride=2 direction=dgrad", {"tile_w": 2}),
        ("conv2d n=2 c=4 in=9x17 k=6 filter=1x1", {"tile_channel": 2, "chunk": 4, "tile_w": 4}),
        (DENSE + " epilogue=scale+shift+bias+residual+gelu accumulate=yes", {"tile_channel": 2, "tile_w": 2}),
        (DENSE + " dtype=bf16 epilogue=bias+relu6", {"tile_w": 2, "filter": "shared"}),
        (DENSE + " dtype=fp16 layout=nhwc epilogue=bias+silu", {"tile_channel": 8, "chunk": 4, "filter": "shared"}),
        (DENSE + " dtype=tf32 layout=nhwc", {"chunk": 6, "vector": 2}),
        ("conv2d n=*<=4~3 c=2 in=9x8 k=3 filter=3x3 pad=1", {"tile_w": 2}),
    ],
)
def test_awkward_images(problem: str, changes: dict[str, int | str]) -> None:
    require_right(STRATEGY, problem, config(config(threads_x=8, threads_y=4), **changes))
    require_right(STRATEGY, problem, None)


@pytest.mark.parametrize(
    ("problem", "changes"),
    [
        ("conv1d n=2 c=3 in=97 k=4 filter=9 pad=4", {"tile_w": 4, "tile_channel": 2, "chunk": 2}),
        ("conv1d n=2 c=3 in=97 k=4 filter=9 pad=4 direction=dgrad", {"tile_w": 4, "chunk": 2}),
        ("conv1d n=1 c=2 in=301 k=2 filter=96 pad=20:80", {"tile_w": 4, "tile_channel": 2}),
        ("conv1d n=1 c=2 in=301 k=2 filter=96 pad=20:80 direction=dgrad", {"tile_w": 2, "vector": 1}),
        ("conv1d n=1 c=2 in=301 k=2 filter=37 stride=3 dilation=2", {"tile_w": 4, "filter": "constant"}),
        ("conv1d n=1 c=4 in=160 k=4 groups=4 filter=3 dilation=16 pad=16 pad_mode=reflect", {"threads_channel": 2}),
        ("conv1d n=2 c=16 in=50 k=8 filter=3 pad=1 layout=nlc dtype=fp16", {"vector": 8, "chunk": 8}),
        ("conv1d n=* c=1 in=51 k=8 filter=5 pad=2", {"tile_w": 4}),
    ],
)
def test_awkward_signals(problem: str, changes: dict[str, int | str]) -> None:
    require_right(STRATEGY, problem, config(LINE, **changes))
    require_right(STRATEGY, problem, None)


@pytest.mark.parametrize(
    "problem",
    [
        VOLUME + " layout=ndhwc",
        VOLUME + " direction=dgrad",
        "conv3d n=1 c=2 in=9x8x11 k=2 groups=2 filter=3x3x3 dilation=3x2x1 stride=1x2x3 pad=2 pad_mode=replicate",
        "conv_transpose3d n=1 c=2 in=4x5x6 k=3 filter=2x3x3 pad=1",
    ],
)
def test_awkward_volumes(problem: str) -> None:
    chosen = HaloTiledConfig(4, 2, 1, 2, 2, 2, 1, 2 if "groups" not in problem else 1, 1, "shared", 1)
    require_right(STRATEGY, problem, chosen)
    require_right(STRATEGY, problem, None)


def test_a_term_that_does_not_exist_is_no_zero_times_its_weight() -> None:
    require_terms_to_vanish(STRATEGY, config(threads_x=4, threads_y=4, tile_w=2, tile_h=2))


# --- what the simulator counts ------------------------------------------------------------------------


def counted(problem: Conv, chosen: HaloTiledConfig) -> Counters:
    plan = lower(problem, STRATEGY, chosen, TARGET)
    [program] = build([plan], [render(plan)], Mode.COUNT)
    [output] = plan.outputs
    inputs = {name: array.astype(np.float32) for name, array in make_inputs(problem, 0).items()}
    result = program.run(inputs, {output.name: np.empty(output.shape, np.float32)})
    result.require_clean()
    return result.report.counters


@pytest.mark.parametrize(("side", "intensity", "reuse"), [(16, 8.0, 16.0), (32, 9.877, 19.753)])
def test_the_textbook_tile_has_its_textbook_intensity(side: int, intensity: float, reuse: float) -> None:
    """Kirk and Hwu: FLOP a byte loaded, O^2 (2r+1)^2 2 / (4 (O+2r)^2), here for r = 2."""
    problem = Conv.parse("conv2d n=1 c=1 in=68x68 k=1 filter=5x5")
    counters = counted(problem, config(threads_x=side, threads_y=side))
    assert counters.intensity == pytest.approx(intensity, rel=1e-3)
    assert counters.accesses["shared"] > 0
    loads = counters.read_bytes["global"] // 4
    assert problem.macs / loads == pytest.approx(reuse, rel=1e-3)


def test_intensity_approaches_its_limit_from_below() -> None:
    problem = Conv.parse("conv2d n=1 c=1 in=132x132 k=1 filter=5x5")
    found = [
        counted(problem, config(threads_x=x, threads_y=16, tile_w=w, tile_h=h)).intensity
        for x, w, h in ((16, 1, 1), (16, 2, 2), (16, 4, 4), (16, 8, 8))
    ]
    assert found == sorted(found)
    assert found[-1] < 12.5
    assert found[-1] == pytest.approx(2 * 25 * 128**2 / (4 * 132**2))


@pytest.mark.parametrize(("channels", "chunk", "barriers"), [(1, 1, 1), (4, 4, 1), (4, 2, 2), (6, 1, 6), (5, 2, 3)])
def test_a_chunk_costs_one_barrier(channels: int, chunk: int, barriers: int) -> None:
    problem = Conv.parse(f"conv2d n=1 c={channels} in=32x32 k=1 filter=3x3 pad=1")
    blocks = 4
    assert counted(problem, config(chunk=chunk)).barriers == blocks * barriers


def test_the_image_default_is_coalesced_and_free_of_bank_conflicts() -> None:
    problem = Conv.parse("conv2d n=1 c=1 in=1024x1024 k=1 filter=7x7 pad=3")
    chosen = STRATEGY.default(problem, TARGET)
    assert chosen.vector == 4
    small = Conv.parse("conv2d n=1 c=1 in=64x256 k=1 filter=7x7 pad=3")
    sites = counted(small, chosen).sites
    reads = [s for s in sites if s.space == "shared" and not s.is_write]
    stores = [s for s in sites if s.space == "global" and s.is_write]
    for found in (reads, stores):
        assert found
        assert all(s.efficiency == 1.0 for s in found)


# --- rules --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("problem", "changes", "rule"),
    [
        (DENSE, {"tile_w": 0}, "at least 1"),
        (DENSE, {"threads_x": 128}, "a block has at most 1024"),
        (DENSE, {"filter": "global"}, "expected constant or shared"),
        (DENSE, {"filter": "constant", "threads_channel": 2, "threads_x": 8, "threads_y": 2}, "warp reads one address"),
        ("conv2d c=256 in=9x9 k=256 filter=3x3", {}, "constant memory 65536"),
        (DENSE, {"vector": 4}, "only the first is aligned"),
        ("conv1d n=*~1 c=1 in=50 k=1 filter=3", {"vector": 4, "threads_y": 1}, "only the first is aligned"),
        (IMAGE, {"vector": 3}, "2, 4 or 8 elements"),
        (IMAGE, {"vector": 8}, "at most 16 bytes"),
        (IMAGE, {"vector": 4, "threads_x": 2}, "not a multiple"),
        (DENSE + " layout=nhwc", {"vector": 2, "chunk": 3}, "chunk a multiple"),
        (DEPTHWISE + " layout=nhwc", {"vector": 2, "threads_channel": 1}, "the block's a multiple"),
        (DENSE, {"threads_x": 1, "threads_y": 1, "threads_channel": 128}, "64 threads along z"),
        (DENSE, {"tile_d": 2}, "no depth"),
        ("conv1d c=1 in=64 k=1 filter=3", {}, "one axis"),
        (DEPTHWISE, {"tile_channel": 2}, "one result channel"),
        (DENSE, {"chunk": 7}, "6 summed channels"),
        (IMAGE, {"tile_w": 16, "tile_h": 16}, "would not fit in registers"),
        (IMAGE, {"min_blocks": 9}, "holds at most"),
        (IMAGE, {"min_blocks": 8, "tile_w": 8, "tile_h": 8}, "it needs about"),
        (IMAGE, {"tile_w": 8, "tile_h": 16, "threads_x": 32, "threads_y": 32}, "bytes of shared memory"),
    ],
)
def test_illegal_configs_are_refused_by_rule(problem: str, changes: dict[str, int | str], rule: str) -> None:
    require_refusal(STRATEGY, problem, config(**changes), rule)


@pytest.mark.parametrize(
    ("problem", "reason"),
    [
        (DENSE + " direction=wgrad", "wgrad"),
        (DENSE + " stride=2 direction=dgrad", "dgrad with a stride"),
        (DENSE + " pad_mode=reflect direction=dgrad", "far outside"),
        ("conv2d n=1 c=0 in=9x9 k=2 filter=3x3", "nothing to sum"),
        ("conv2d n=1 c=1 in=400x400 k=1 filter=300x300", "bytes of shared memory"),
    ],
)
def test_what_does_not_fit_is_said(problem: str, reason: str) -> None:
    require_reason(STRATEGY, problem, reason)


def test_shared_memory_is_what_the_picture_says() -> None:
    g = gather(Conv.parse("conv2d n=1 c=1 in=64x256 k=1 filter=7x7 pad=3"))
    tiling = Tiling(g, config(threads_x=32, threads_y=4, tile_w=4, tile_h=2, vector=4))
    # 128 + 6 columns behind one that aligns them, in vectors of 4; 8 + 6 rows.
    assert (tiling.lead, tiling.columns, tiling.pitch) == (1, 136, 136)
    assert tiling.shared_bytes == 4 * 136 * 14
    assert math.prod(t.blocks for t in tiling.tiles) == 2 * 8
