"""Implicit GEMM on Hopper: conformance, how pixels come, rings that blocks go round, what TMA cannot express."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pytest
from conformance import (
    GOLDEN_PROBLEM,
    TARGET,
    IntegerConformance,
    legal_config,
    require_all_right,
    require_reason,
    require_refusal,
)
from generators import random_convs
from wgmma_cases import EITHER_LAYOUT, FEW, LAYER, LAYOUTS, config, require_right, run

from convgen.compiler import compile_cuda
from convgen.errors import ConfigError, ProblemError
from convgen.gather import gather
from convgen.lowering import lower
from convgen.problem import Conv, Direction, DType, Layout, PadMode
from convgen.render import render
from convgen.simulator import Copies, Mode
from convgen.strategies.wgmma_implicit_gemm import STRATEGY
from convgen.strategies.wgmma_tiling import Tiling
from convgen.target import Target
from convgen.verify import Case, Settings


class TestWgmmaImplicitGemm(IntegerConformance):
    strategy = STRATEGY
    refused_dtypes = ()
    golden_problem = f"{GOLDEN_PROBLEM.split(' dtype')[0]} dtype=bf16 layout=nhwc"

    def suited(self, problems: Iterable[Conv]) -> Iterator[Conv]:
        """The draws as forward convolutions of enough channels for tensor cores to be as exact as a direct kernel."""
        for problem in problems:
            dtype = DType.FP8 if problem.dtype is DType.BF16 else problem.dtype
            channels = 4 * problem.groups
            try:
                changed = dataclasses.replace(
                    problem,
                    c=-(-problem.c // channels) * channels,
                    k=-(-problem.k // (8 * problem.groups)) * 8 * problem.groups,
                    direction=Direction.FPROP,
                    transposed=False,
                    output_padding=(0,) * problem.nd,
                    pad_mode=PadMode.ZEROS,
                    dtype=dtype,
                    out_dtype=problem.out_dtype if dtype.is_integer else dtype.default_output,
                )
            except ProblemError:
                continue
            if self.applies(changed):
                yield changed


# --- how pixels come --------------------------------------------------------------------------------------


@LAYOUTS
@pytest.mark.parametrize("patches", EITHER_LAYOUT)
@pytest.mark.parametrize(
    "shape",
    [
        "c=64 in=8x8 k=64 filter=3x3 pad=1",
        "c=40 in=7x9 k=24 filter=3x3 pad=0:2x1:0",
        "c=24 in=11x5 k=16 filter=4x2 pad=2x1 dilation=1x3",
        "c=8 in=6x13 k=12 filter=1x3 pad=0x1",
        "c=136 in=5x6 k=8 filter=7x1 pad=3x0",
        "c=20 in=9x9 k=5 filter=3x3",
    ],
)
def test_halos_rows_and_im2col_meet_the_same_pixels(patches: str, shape: str, layout: Layout) -> None:
    width = -(-int(shape.split(" k=")[1].split()[0]) // 8) * 8
    changes = config(patches=patches, block_n=min(width, 32))
    require_right(f"conv2d n=3 {shape} dtype=bf16 layout={layout.text(2)}", changes)


@LAYOUTS
@pytest.mark.parametrize("patches", ["line", "rows", "im2col"])
def test_one_axis(patches: str, layout: Layout) -> None:
    problem = f"conv1d n=3 c=40 in=70 k=24 filter=5 pad=2:1 dtype=fp16 layout={layout.text(1)}"
    require_right(problem, config(patches=patches, block_n=24))


@LAYOUTS
@pytest.mark.parametrize("patches", EITHER_LAYOUT)
def test_three_axes(patches: str, layout: Layout) -> None:
    problem = f"conv3d n=2 c=16 in=4x5x6 k=16 filter=3x2x3 pad=1x0x1 dtype=bf16 layout={layout.text(3)}"
    require_right(problem, config(patches=patches, block_n=16, split_k=1 if patches == "im2col" else 3))


@LAYOUTS
@pytest.mark.parametrize("stride", ["2", "3x1", "1x8"])
def test_strides_by_im2col(stride: str, layout: Layout) -> None:
    require_right(f"conv2d n=2 c=24 in=17x19 k=24 filter=3x3 stride={stride} pad=1 dtype=fp16 layout={layout.text(2)}",
                  config(patches="im2col", block_n=24))  # fmt: skip


@LAYOUTS
@pytest.mark.parametrize("patches", EITHER_LAYOUT)
@pytest.mark.parametrize(("c", "k", "groups"), [(64, 32, 2), (48, 96, 4), (128, 48, 2), (96, 24, 3)])
def test_groups_share_a_line_or_have_their_own(patches: str, c: int, k: int, groups: int, layout: Layout) -> None:
    problem = f"conv2d n=1 c={c} in=9x9 k={k} filter=3x3 pad=1 groups={groups} dtype=fp16 layout={layout.text(2)}"
    require_right(problem, config(patches=patches, block_n=k // groups))


@pytest.mark.parametrize(("patches", "pixels"), [("square", (9 + 9) ** 2), ("im2col", (3 * 16 - 2) ** 2)])
def test_x_comes_once_where_its_halo_serves_all_taps(patches: str, pixels: int) -> None:
    """Closed forms of the pixels that lie inside x: of halos of 10 x 10, and of the taps of 16 x 16 results."""
    problem = Conv.parse("conv2d n=1 c=64 in=16x16 k=8 filter=3x3 pad=1 dtype=fp16 layout=nhwc")
    changes = config(patches=patches, block_n=8, consumers=1, x_stages=2, w_stages=9)
    report, _ = run(problem, changes, dataclasses.replace(TARGET, sm_count=1))
    assert report.report.counters.read_bytes["global"] == 128 * (pixels + 9 * 8)


# --- rings ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {"consumers": 1},
        {"consumers": 2, "sharing": 2},
        {"consumers": 4, "sharing": 2, "x_stages": 2, "w_stages": 2},
        {"consumers": 3, "sharing": 1, "x_stages": 2, "w_stages": 2},  # more tiles at a time than stages
        {"consumers": 4, "sharing": 1, "x_stages": 6, "w_stages": 18},  # rings that do not come around with the turns
        {"consumers": 2, "sharing": 1, "x_stages": 4, "w_stages": 18},  # and some that do
        {"consumers": 3, "sharing": 3, "block_n": 40},
        {"tiles": 3, "slabs": 2, "consumers": 1},  # slabs that do not come around with the tiles
        {"tiles": 2, "slabs": 2, "consumers": 2},
        {"split_k": 2, "consumers": 2, "x_stages": 2, "w_stages": 2},
        {"patches": "im2col", "consumers": 3, "sharing": 1, "x_stages": 2, "w_stages": 4},
        {"cluster": 2, "consumers": 2, "sharing": 2},
        {"cluster": 6, "consumers": 1, "patches": "im2col", "tiles": 2},
        {"patches": "rows", "consumers": 2, "sharing": 2, "tiles": 2},
    ],
    ids=str,
)
def test_blocks_go_round_their_rings(changes: dict[str, int | str]) -> None:
    """Whether copies come at once or as late as can be: the same bits."""
    require_right(LAYER, config(**changes))
    results = []
    for copies in Copies:
        report, result = run(Conv.parse(LAYER), config(**changes), FEW, Mode.CHECK, copies)
        report.require_clean()
        results.append(result)
    np.testing.assert_array_equal(*results)


def test_warpgroups_take_turns_in_order_unless_their_rings_come_around() -> None:
    g = gather(Conv.parse("conv2d n=8 c=64 in=16x16 k=32 filter=3x3 pad=1 dtype=fp16 layout=nhwc"))
    resident = {"consumers": 4, "w_stages": 9}
    assert not Tiling(g, config(**resident, x_stages=4)).ordered
    assert not Tiling(g, config(**resident, x_stages=8)).ordered
    assert Tiling(g, config(**resident, x_stages=6)).ordered  # stage 0 would be waited for before its other filling
    assert Tiling(g, config(consumers=4, x_stages=4, w_stages=8)).ordered
    assert not Tiling(g, config(consumers=4, sharing=4, x_stages=2, w_stages=3)).ordered


def test_only_tiles_that_leave_multiprocessors_idle_are_split() -> None:
    g = gather(Conv.parse(LAYER))
    t = Tiling(g, config(split_k=2))
    assert (t.tiles(2), t.split_tiles(2, FEW)) == (24, 3)
    assert t.blocks(2, FEW) == 7
    assert t.blocks(2, TARGET) == 48  # 24 tiles on 132 multiprocessors: all are split
    with pytest.raises(ConfigError, match="24 tiles leave none of 8 multiprocessors idle"):
        STRATEGY.check(Conv.parse(LAYER), config(split_k=2), dataclasses.replace(TARGET, sm_count=8))


@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
@pytest.mark.parametrize(("patches", "cluster"), [("im2col", 2), ("im2col", 8), ("rows", 3), ("rows", 6)])
def test_clusters_add_the_parts_that_their_blocks_have(patches: str, cluster: int, layout: str) -> None:
    """Parts of as many panels and of fewer, of tiles that are not full."""
    problem = f"conv2d n=2 c=328 in=9x11 k=36 filter=3x3 pad=1 dtype=bf16 layout={layout} epilogue=bias"
    require_right(problem, config(patches=patches, cluster=cluster, sharing=2))


def test_a_cluster_has_a_block_for_each_part_of_a_tile() -> None:
    g = gather(Conv.parse(LAYER))
    t = Tiling(g, config(cluster=2, sharing=2))
    assert (t.tiles(2), t.blocks(2, FEW), t.panels_of_part) == (12, 24, 1)


@pytest.mark.parametrize("epilogue", ["bias+relu", "scale+shift+bias+residual+gelu", "residual"])
@pytest.mark.parametrize(
    "changes", [{}, {"patches": "rows"}, {"patches": "im2col"}, {"split_k": 2}, {"cluster": 2, "sharing": 2}], ids=str
)
@LAYOUTS
def test_epilogues(epilogue: str, changes: dict[str, int | str], layout: Layout) -> None:
    problem = f"{LAYER.replace('nhwc', layout.text(2))} epilogue={epilogue}"
    require_right(problem, config(**changes))
    require_right(f"{problem} out_dtype=fp32 accumulate=yes", config(**changes))


@pytest.mark.parametrize("k", [5, 12, 20, 36])
def test_channels_that_fill_no_tile(k: int) -> None:
    for patches in EITHER_LAYOUT:
        require_right(f"conv2d n=1 c=16 in=9x9 k={k} filter=3x3 pad=1 dtype=fp16 layout=nhwc",
                      config(patches=patches, block_n=16))  # fmt: skip


@pytest.mark.parametrize(
    "problem",
    [
        "conv2d n=2 c=128 in=14x14 k=64 filter=3x3 pad=1 dtype=fp16 layout=nhwc",
        "conv2d n=1 c=256 in=8x8 k=16 filter=1x1 dtype=fp16 layout=nhwc",
        "conv2d n=1 c=64 in=9x9 k=24 filter=3x3 dtype=bf16 layout=nhwc epilogue=bias+relu",
        "conv2d n=1 c=64 in=8x8 k=16 filter=3x3 dtype=int8 out_dtype=fp16 layout=nhwc",
        "conv2d n=1 c=72 in=9x9 k=24 filter=3x3 dtype=tf32 layout=nhwc",
        "conv2d n=1 c=72 in=9x9 k=24 filter=3x3 layout=nhwc epilogue=bias+relu",
        "conv2d n=1 c=144 in=9x9 k=24 filter=3x3 dtype=fp8 out_dtype=bf16 layout=nhwc",
    ],
)
def test_the_simulator_is_right_without_its_checks(problem: str) -> None:
    """Optimised further, a compiler took half a register for one that nobody writes."""
    for patches in EITHER_LAYOUT[:1] + EITHER_LAYOUT[-1:]:
        if patches == "im2col" or "1x1" not in problem:
            require_right(problem, config(patches=patches, block_n=16), check="fast")


@pytest.mark.parametrize(
    ("dtype", "k", "width"), [("int8", 40, 48), ("int8", 72, 80), ("int8", 24, 24), ("fp16", 40, 40)]
)
def test_channels_are_those_that_wgmma_makes(dtype: str, k: int, width: int) -> None:
    """Of integers 8, 16, 24, 32 and on in sixteens; of the others every multiple of eight (PTX ISA, wgmma)."""
    text = f"conv2d n=1 c=32 in=8x8 k={k} filter=3x3 dtype={dtype} layout=nhwc"
    problem = Conv.parse(text)
    widths = STRATEGY.space(problem, TARGET).choices["block_n"]
    assert max(widths) == width
    if width != k:
        require_refusal(STRATEGY, text, config(block_n=k), f"block_n={k}: expected")
    for block_n in widths:
        plan = lower(problem, STRATEGY, config(block_n=block_n), TARGET)
        assert compile_cuda(render(plan), TARGET).kernels
    require_right(text, config(block_n=width))


def test_random_problems_of_several_turns(request: pytest.FixtureRequest) -> None:
    rng = random.Random(9)
    suited = TestWgmmaImplicitGemm().suited(random_convs(9, request.config.getoption("--draws"), 20_000))
    drawn = [(problem, legal_config(STRATEGY, problem, rng, target=FEW)) for problem in suited]
    cases = [Case(problem, STRATEGY, config) for problem, config in drawn if config is not None]
    assert cases
    require_all_right(cases, Settings(FEW, check="sanitize"))


# --- what it refuses --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("conv2d n=1 c=3 in=8 k=64 filter=3 dtype=fp16 layout=nhwc", "accuracy=strict: tensor cores may err by"),
        ("conv2d n=1 c=16 in=8 k=64 filter=1 layout=nhwc", "accuracy=strict: tensor cores may err by"),
        ("conv2d n=1 c=64 in=8 k=64 filter=3 dtype=fp16 layout=nhwc direction=dgrad", "dgrad has no kernel"),
        ("conv2d n=1 c=64 in=8 k=64 filter=3 pad=1 pad_mode=reflect dtype=fp16 layout=nhwc", "TMA fills"),
        ("conv2d n=1 c=1 in=8 k=64 filter=3 dtype=fp16 accuracy=fast", "1 channels would be padded to 8"),
        ("conv2d n=1 c=8 in=8 k=8 filter=3 groups=8 dtype=fp16", "a group's 1 channels would be padded to 48"),
        ("conv2d n=1 c=64 in=8 k=20 filter=3 groups=4 dtype=int8", "a group's 16 channels would be padded to 96"),
        ("conv2d n=1 c=64 in=99 k=8 filter=3 stride=9 dtype=fp16 layout=nhwc", "each from 1 to 8"),
        ("conv3d n=1 c=64 in=9x9x99 k=8 filter=1x1x33 stride=1x1x2 dtype=fp16 layout=ndhwc", "each from -16 to 15"),
    ],
)  # fmt: skip
def test_reasons(text: str, reason: str) -> None:
    require_reason(STRATEGY, text, reason)


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"patches": "diagonal"}, "patches=diagonal: expected planes"),
        ({"block_n": 12}, "block_n=12: expected a multiple of 8"),
        ({"consumers": 5}, "consumers=5: expected 1 to 4"),
        ({"consumers": 3, "sharing": 2}, "sharing=2: expected a divisor of consumers=3"),
        ({"w_stages": 99}, "there are 18 tiles of w"),
        ({"w_stages": 1}, "w_stages=1: expected at least 2"),
        ({"x_stages": 1}, "x_stages=1: expected at least 2"),
        ({"tiles": 4, "block_n": 256}, "512 sums of a thread"),
        ({"consumers": 3, "block_n": 208}, "one wgmma names 104 sums"),
        ({"slabs": 2}, "slabs=2: expected at most 1"),
        ({"slabs": 0}, "slabs=0: expected at least 1"),
        ({"split_k": 3}, "split_k=3: 2 panels leave a part with none"),
        ({"split_k": 2, "w_stages": 18}, "those of 2 parts of the sums do not"),
        ({"patches": "im2col", "tiles": 3, "consumers": 2, "sharing": 2}, "patches=im2col loads at most 256"),
        ({"x_stages": 40}, "mbarriers"),
        ({"cluster": 2}, "cluster=2 sharing=1: a block of a cluster has one tile"),
        ({"cluster": 2, "sharing": 2, "split_k": 2}, "cluster=2 split_k=2: sums are split in one of the ways"),
        ({"cluster": 3, "sharing": 2}, "cluster=3: 2 panels leave a part with none"),
        ({"cluster": 16, "sharing": 2}, "cluster=16: a cluster has at most 8 blocks"),
        ({"cluster": 2, "sharing": 2, "w_stages": 18}, "those of 2 parts of the sums do not"),
    ],
)
def test_rules(changes: dict[str, Any], rule: str) -> None:
    require_refusal(STRATEGY, LAYER, config(**changes), rule)


def test_only_hopper_has_it() -> None:
    problem = Conv.parse(LAYER)
    for name in ("a100", "b200", "rtx4090"):
        reason = STRATEGY.why_not(problem, Target.preset(name))
        assert reason is not None
        assert "sm_90a" in reason
