"""Implicit GEMM on Hopper: conformance, how pixels come, rings that blocks go round, what TMA cannot express."""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
from collections.abc import Iterable, Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from conformance import (
    GOLDEN_PROBLEM,
    TARGET,
    IntegerConformance,
    legal_config,
    require_all_right,
    require_golden,
    require_reason,
    require_refusal,
)
from generators import random_convs

from convgen.binding import preparation
from convgen.compiler import compile_cuda
from convgen.errors import ConfigError, ProblemError
from convgen.gather import gather
from convgen.lowering import lower
from convgen.problem import Accuracy, Conv, Direction, DType, Layout, PadMode
from convgen.reference import make_inputs
from convgen.reference.rounding import encode
from convgen.render import render
from convgen.runtime.physical import stored_dtype
from convgen.runtime.sim import SimResult, build
from convgen.simulator import Copies, Mode
from convgen.strategies.wgmma_implicit_gemm import STRATEGY
from convgen.strategies.wgmma_sources import sources
from convgen.strategies.wgmma_tiling import PATCHES, PLANES, Tiling, WgmmaConfig
from convgen.target import Target
from convgen.verify import Case, Settings, verify_cases

FEW = dataclasses.replace(TARGET, sm_count=7)
"""So that every block goes through several tiles."""

EITHER_LAYOUT = tuple(patches for patches in PATCHES if patches != PLANES)
LAYOUTS = pytest.mark.parametrize("layout", Layout)
BASE = WgmmaConfig("square", 1, 32, 2, 1, 3, 3, 1, 1, 1)
LAYER = "conv2d n=2 c=72 in=17x12 k=40 filter=3x3 pad=1 dtype=fp16 layout=nhwc"


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


def config(**changes: int | str) -> WgmmaConfig:
    return dataclasses.replace(BASE, **changes)


def require_right(problem: str, config: WgmmaConfig | None, target: Target = FEW, check: str = "sanitize") -> None:
    [result] = verify_cases([Case(Conv.parse(problem), STRATEGY, config)], Settings(target, check=check))
    assert result.status == "ok", result.reason


def run(
    problem: Conv, config: WgmmaConfig, target: Target, mode: Mode = Mode.COUNT, copies: Copies = Copies.LATE
) -> tuple[SimResult, Any]:
    """The run of the kernels on small integers, and their result."""
    plan = lower(problem, STRATEGY, config, target)
    inputs = {
        name: encode(values, problem.tensor(name).dtype)
        for name, values in make_inputs(problem, 0, "small_integers").items()
    }
    [output] = problem.outputs
    result = {output.name: np.zeros(output.shape, stored_dtype(output))}
    ran = build([plan], [render(plan)], mode)[0].run(inputs, result, copies=copies)
    return ran, result[output.name]


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


# --- types ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("patches", EITHER_LAYOUT)
@pytest.mark.parametrize("c", [4, 20, 72])
def test_tf32(patches: str, c: int) -> None:
    """A line is 32 channels: part of a step of 8, of a line, and several lines."""
    problem = f"conv2d n=2 c={c} in=9x7 k=20 filter=3x3 pad=1 dtype=tf32 layout=nhwc"
    require_right(problem, config(patches=patches, block_n=24))
    require_right(f"{problem} out_dtype=bf16 epilogue=bias+residual+relu", config(patches=patches, block_n=16))


def test_operands_of_tf32_are_cut_not_rounded() -> None:
    """Just below the next TF32 number an operand loses 2^-10 of itself, which the stated bound admits and one of
    rounding, 2^-11, would not."""
    problem = Conv.parse("conv1d n=1 c=8 in=64 k=8 filter=1 dtype=tf32 layout=nlc")
    one = np.nextafter(np.float32(1 + 2**-10), np.float32(1))
    inputs = {"x": np.full((1, 8, 64), one, np.float32), "w": np.full((8, 8, 1), one, np.float32)}
    plan = lower(problem, STRATEGY, config(patches="im2col", block_n=8, w_stages=1), TARGET)
    y = np.zeros((1, 8, 64), np.float32)
    build([plan], [render(plan)])[0].run(inputs, {"y": y})
    assert set(y.ravel().tolist()) == {8.0}
    exact = 8 * float(one) ** 2
    assert 2 * 2**-11 < (exact - 8) / exact < 2 * plan.numerics.eps_in


@pytest.mark.parametrize("patches", EITHER_LAYOUT)
@pytest.mark.parametrize(
    "channels", ["c=8 k=8", "c=16 k=40", "c=24 k=40", "c=72 k=40", "c=64 k=40 groups=2", "c=32 k=32 groups=4"]
)
def test_fp32_in_three_products(patches: str, channels: str) -> None:
    """One to four steps to a line, their registers in sets of one to three; several lines; groups that share one."""
    problem = f"conv2d n=2 {channels} in=9x7 filter=3x3 pad=1 layout=nhwc"
    require_right(problem, config(patches=patches, block_n=8, x_stages=2))
    require_right(f"{problem} out_dtype=fp16 epilogue=bias+residual+relu accumulate=yes",
                  config(patches=patches, block_n=8, tiles=2, consumers=1))  # fmt: skip


@pytest.mark.parametrize("split_k", [1, 2])
def test_what_one_product_of_tf32_loses_three_keep(split_k: int) -> None:
    """2^-12 of an operand, which TF32 has not: of x in half of the channels, of w in the other half."""
    problem = Conv.parse("conv1d n=1 c=128 in=64 k=8 filter=1 layout=nlc")
    plan = lower(problem, STRATEGY, config(patches="im2col", block_n=8, w_stages=2, split_k=split_k), TARGET)
    x, w = np.ones((1, 128, 64), np.float32), np.ones((8, 128, 1), np.float32)
    x[:, ::2] += 2**-12
    w[:, 1::2] += 2**-12
    y = np.zeros((1, 8, 64), np.float32)
    build([plan], [render(plan)])[0].run({"x": x, "w": w}, {"y": y})
    assert set(y.ravel().tolist()) == {128 + 128 / 2**12}


def test_the_filter_is_split_once_for_constant_weights() -> None:
    plan = lower(Conv.parse("conv2d n=1 c=32 in=8 k=32 filter=3 layout=nhwc"), STRATEGY, None, TARGET)
    found = preparation(plan)
    assert found.steps == {0}
    assert found.buffers == ("packed_w",)
    assert not found.weights_used_later


def test_fast_problems_are_multiplied_once() -> None:
    problem = Conv.parse("conv2d n=1 c=32 in=8x8 k=32 filter=3 layout=nhwc")
    for accuracy, products in ((Accuracy.STRICT, 3), (Accuracy.FAST, 1)):
        report, _ = run(dataclasses.replace(problem, accuracy=accuracy), config(consumers=1), TARGET)
        assert report.report.counters.flops == products * 2 * 64 * 32 * 288


@pytest.mark.parametrize("patches", EITHER_LAYOUT)
@pytest.mark.parametrize(
    "channels", ["c=16 k=24", "c=144 k=40", "c=272 k=8", "c=128 k=32 groups=2", "c=128 k=64 groups=4"]
)
def test_fp8(patches: str, channels: str) -> None:
    """Lines of 128 channels: part of one, several; groups that share one. One tile of fresh sums, or several."""
    problem = f"conv2d n=2 {channels} in=9x7 filter=3x3 pad=1 dtype=fp8 layout=nhwc"
    changes = {"patches": patches, "block_n": 8 if "groups" not in channels else 16, "x_stages": 2}
    require_right(problem, config(**changes))
    require_right(f"{problem} out_dtype=fp32 epilogue=bias+residual+relu", config(**changes, tiles=2, consumers=1))
    require_right(f"{problem} out_dtype=bf16 accumulate=yes", config(**changes, tiles=3, consumers=1, w_stages=3))


def test_sums_of_fp8_go_on_in_fp32() -> None:
    """A first line of channels sums to 2^15, where 13 bits have a unit of 4; the next line's products are 1 each."""
    problem = Conv.parse("conv1d n=1 c=256 in=64 k=8 filter=1 dtype=fp8 out_dtype=fp32 layout=nlc")
    x, w = np.ones((1, 256, 64)), np.ones((8, 256, 1))
    x[:, :128] = w[:, :128] = 16
    inputs = {"x": encode(x, DType.FP8), "w": encode(w, DType.FP8)}
    plan = lower(problem, STRATEGY, config(patches="im2col", block_n=8, w_stages=2), TARGET)
    y = np.zeros((1, 8, 64), np.float32)
    program = build([plan], [render(plan)])[0]
    program.run(inputs, {"y": y})
    assert set(y.ravel().tolist()) == {2**15 + 128}
    # Halves beside 14336, whose unit is 1, are lost where they meet in a sum of tensor cores: within the stated bound.
    x[:], w[:] = 1, 0.5
    x[:, 0], w[:, 0] = 448, 32
    program.run({"x": encode(x, DType.FP8), "w": encode(w, DType.FP8)}, {"y": y})
    assert set(y.ravel().tolist()) == {14336 + 64}
    assert plan.numerics.steps is not None
    assert plan.numerics.steps * plan.numerics.eps_acc * (14336 + 127.5) > 63.5


def test_results_of_fp8_are_rounded_as_ml_dtypes_does_but_saturate() -> None:
    """By a product with the identity: every fp16 number that is not above 2^15, and ties among them."""
    problem = Conv.parse("conv1d n=1 c=16 in=4096 k=16 filter=1 dtype=fp16 out_dtype=fp8 layout=nlc")
    plan = lower(problem, STRATEGY, config(patches="im2col", block_n=16, w_stages=1), TARGET)
    bits = np.arange(65536).astype(np.uint16)
    x = np.where(np.abs(bits.view(np.float16)) < 2**15, bits, 0).astype(np.uint16).view(np.float16).reshape(1, 16, 4096)
    y = np.zeros((1, 16, 4096), np.uint8)
    build([plan], [render(plan)])[0].run({"x": x, "w": np.eye(16, dtype=np.float16)[:, :, None]}, {"y": y})
    expected = np.clip(x.astype(np.float32), -448, 448).astype(ml_dtypes.float8_e4m3fn)
    np.testing.assert_array_equal(y.view(ml_dtypes.float8_e4m3fn).astype(np.float32), expected.astype(np.float32))


@pytest.mark.parametrize("dtype", ["fp32", "fp8"])
def test_the_text_of_other_types_is_golden(dtype: str, request: pytest.FixtureRequest) -> None:
    problem = Conv.parse(f"conv2d n=2 c=32 in=13x11 k=48 filter=3x3 pad=1 dtype={dtype} out_dtype=fp32 layout=nhwc")
    require_golden(f"{STRATEGY.name}_{dtype}", render(lower(problem, STRATEGY, config(block_n=48), TARGET)), request)


# --- results of four bytes --------------------------------------------------------------------------------


@pytest.mark.parametrize("slabs", [0, 1, 2])
@pytest.mark.parametrize("patches", EITHER_LAYOUT)
@pytest.mark.parametrize("k", [48, 20])
def test_results_of_four_bytes(patches: str, slabs: int, k: int) -> None:
    changes = config(patches=patches, block_n=48 if k == 48 else 24, tiles=2, slabs=min(slabs, 1 + (patches != "rows")))
    for what in ("dtype=fp16 out_dtype=fp32 epilogue=bias+relu", "dtype=tf32 epilogue=residual", "dtype=int8"):
        require_right(f"conv2d n=2 c=32 in=9x13 k={k} filter=3x3 pad=1 layout=nhwc {what}", changes)


@pytest.mark.parametrize("slabs", [0, 1])
def test_integers_are_added_to_those_that_fp32_does_not_hold(slabs: int) -> None:
    problem = Conv.parse("conv1d n=1 c=32 in=64 k=8 filter=1 dtype=int8 layout=nlc accumulate=yes")
    plan = lower(problem, STRATEGY, config(patches="im2col", block_n=8, w_stages=1, slabs=slabs), TARGET)
    inputs = {"x": np.ones((1, 32, 64), np.int8), "w": np.ones((8, 32, 1), np.int8)}
    y = np.full((1, 8, 64), (1 << 24) + 1, np.int32)
    build([plan], [render(plan)])[0].run(inputs, {"y": y})
    assert set(y.ravel().tolist()) == {(1 << 24) + 33}


def test_pairs_of_four_bytes_meet_in_two_banks_at_most() -> None:
    """Eight rows of 32 bytes: with the swizzle, two of each four in the same banks."""
    problem = Conv.parse("conv2d n=1 c=32 in=16x16 k=64 filter=3x3 pad=1 dtype=tf32 layout=nhwc")
    report, _ = run(problem, config(block_n=64), TARGET)
    [site] = [
        site for site in report.report.counters.sites
        if site.space == "shared" and site.is_write and any("swizzled" in line.text for line in site.place)
    ]  # fmt: skip
    assert site.bytes == 4 * 16 * 16 * 64
    assert site.efficiency == 0.5


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


# --- where x and w come from -------------------------------------------------------------------------------


@pytest.mark.parametrize("last", [8, 12, 14, 13], ids=lambda last: f"rows of {last}")
@pytest.mark.parametrize("patches", ["square", "line", "rows", "im2col"])
def test_runs_of_channels_first_results(patches: str, last: int) -> None:
    """As long as rows of y allow, over the ends of tiles, images and channels; a batch known at run time too."""
    for n in ("3", "*<=4~2"):
        problem = f"conv2d n={n} c=12 in=9x{last} k=44 filter=3x3 pad=1 dtype=fp16 layout=nchw"
        require_right(problem, config(patches=patches))
    t = Tiling(sources(Conv.parse(problem), patches).g, config(patches=patches))
    row = {"im2col": 9 * last, "rows": math.gcd(last, last + 1)}.get(patches, last)
    assert t.results.run == math.gcd(row, 8)


@pytest.mark.parametrize(
    "shape",
    [
        "c=64 in=8x8 k=64",
        "c=100 in=8x9 k=44",  # channels that fill no line, nor 16 bytes of w
        "c=72 in=10x20 k=40",  # positions that fill no box
        "c=96 in=8x13 k=24 groups=3",
        "c=64 in=4x6 k=64 groups=4",
    ],
)
@pytest.mark.parametrize("changes", [{}, {"tiles": 2, "slabs": 2}, {"consumers": 2, "sharing": 2}], ids=str)
def test_planes_are_read_as_they_lie(shape: str, changes: dict[str, Any]) -> None:
    for n, more in (("3", ""), ("*", "epilogue=bias+residual+relu accumulate=yes"), ("2", "out_dtype=fp32")):
        problem = f"conv2d n={n} {shape} filter=1x1 dtype=fp16 layout=nchw {more}"
        groups = Conv.parse(problem).groups
        width = Conv.parse(problem).k // groups if groups > 1 else 32
        found = sources(Conv.parse(problem), PLANES)
        t = Tiling(found.g, config(patches=PLANES, block_n=width, w_stages=1))
        slabs = changes.get("slabs", 1) if t.mapped else 1
        require_right(problem, dataclasses.replace(t.c, **{**changes, "w_stages": t.w_tiles, "slabs": slabs}))
        assert found.packed == ({"w"} if "c=100" in shape else set())


def test_sums_of_planes_are_split() -> None:
    problem = "conv2d n=3 c=256 in=8x16 k=40 filter=1x1 dtype=bf16 layout=nchw"
    require_right(problem, config(patches=PLANES, split_k=2, w_stages=2))


def test_x_comes_once_as_planes() -> None:
    """Closed forms: x and w once, and nothing is packed."""
    problem = Conv.parse("conv2d n=2 c=64 in=16x16 k=32 filter=1x1 dtype=fp16 layout=nchw")
    report, _ = run(problem, config(patches=PLANES, w_stages=1), dataclasses.replace(TARGET, sm_count=1))
    assert report.report.counters.read_bytes["global"] == 2 * (2 * 64 * 256 + 64 * 32)
    assert report.report.counters.written_bytes["global"] == 2 * 2 * 32 * 256


def test_packed_weights_are_prepared() -> None:
    """What depends on w alone is a step that need not be repeated."""
    plan = lower(Conv.parse(LAYER.replace("nhwc", "nchw")), STRATEGY, config(), TARGET)
    assert [buffer.name for buffer in plan.workspace] == ["packed_w", "packed_x"]
    found = preparation(plan)
    assert (found.steps, found.buffers, found.weights_used_later) == (frozenset({1}), ("packed_w",), False)


@pytest.mark.parametrize(
    ("problem", "changes", "early"),
    [
        (LAYER, {}, [False]),
        (LAYER, {"split_k": 2}, [False, True]),
        (LAYER.replace("nhwc", "nchw"), {}, [False, True, True]),
        (LAYER.replace("nhwc", "nchw"), {"split_k": 2}, [False, True, True, True]),
        (LAYER.replace("fp16", "fp32"), {}, [False, True]),
    ],
)
def test_what_follows_in_a_plan_begins_early(problem: str, changes: dict[str, int], early: list[bool]) -> None:
    """All but a plan's first kernel wait for the one before, and all that others follow let them begin."""
    plan = lower(Conv.parse(problem), STRATEGY, config(block_n=16, **changes), FEW)
    assert [launch.is_early for launch in plan.launches] == early
    kernels = render(plan).split('extern "C" __global__')[1:]
    by_name = {kernel.name: text for text in kernels for kernel in plan.kernels if f"{kernel.name}(" in text}
    for launch, follower in itertools.zip_longest(plan.launches, plan.launches[1:]):
        text = by_name[launch.kernel.name]
        assert ("grid_dependency_wait();" in text) == launch.is_early
        assert ("grid_dependency_launch();" in text) == (follower is not None)


@pytest.mark.parametrize(
    ("text", "packed"),
    [
        ("c=64 k=8 filter=3 dtype=fp16 layout=nhwc", {}),
        ("c=20 k=8 filter=3 dtype=fp16 layout=nhwc", {"w": 24, "x": 24}),
        ("c=20 k=8 filter=3 dtype=int8 layout=nhwc", {"w": 32, "x": 32}),
        ("c=64 k=8 filter=1 dtype=fp16 layout=nchw", {"x": 64}),
        ("c=80 k=16 filter=3 groups=2 dtype=fp16 layout=nhwc", {"w": 48, "x": 48}),
        ("c=48 k=32 filter=3 groups=4 dtype=fp16 layout=nhwc", {"w": 16, "x": 16}),
        ("c=48 k=20 filter=3 groups=4 dtype=fp16 layout=nhwc", {"w": 48, "x": 48}),  # of 5 channels wgmma makes none
    ],
)
def test_channels_are_packed_as_far_as_they_must(text: str, packed: dict[str, int]) -> None:
    found = sources(Conv.parse(f"conv2d n=2 in=8 {text}"), "im2col")
    assert found.packed == set(packed)
    assert {found.g.q_size} == ({*packed.values()} or {64})


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("c=64 in=8 filter=1 dtype=fp16 layout=nhwc", "channels-first layouts only"),
        ("c=64 in=8 filter=1 dtype=int8 layout=nchw", "wgmma takes 16-bit types so, not int8"),
        ("c=64 in=8 filter=1 stride=2 dtype=fp16 layout=nchw", "one tap, stride 1 and no padding"),
        ("c=64 in=8 filter=3 dtype=fp16 layout=nchw", "one tap, stride 1 and no padding"),
        ("c=64 in=7 filter=1 dtype=fp16 layout=nchw", "49 positions are no multiple of 16 bytes"),
        ("c=48 in=8 filter=1 groups=4 dtype=fp16 layout=nchw", "a group's 12 channels are to be padded"),
    ],
)
def test_what_planes_are_not(text: str, reason: str) -> None:
    require_refusal(STRATEGY, f"conv2d n=1 k=32 {text}", config(patches=PLANES, block_n=8), reason)


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
