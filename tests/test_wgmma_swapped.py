"""Implicit GEMM on Hopper with swapped operands: conformance, any number of positions, rings, what it refuses."""

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
    StrategyConformance,
    legal_config,
    require_all_right,
    require_reason,
    require_refusal,
)
from generators import random_convs
from wgmma_cases import FEW, LAYER, LAYOUTS, run

from convgen.compiler import compile_cuda
from convgen.errors import ProblemError
from convgen.gather import gather
from convgen.lowering import lower
from convgen.problem import Conv, Direction, DType, Layout, PadMode
from convgen.render import render
from convgen.runtime.sim import build
from convgen.simulator import Copies, FaultKind, Mode
from convgen.strategies.wgmma_swapped import STRATEGY
from convgen.strategies.wgmma_swapped_tiling import PATCHES, SwappedConfig, SwappedTiling
from convgen.target import Target
from convgen.verify import Case, Settings, verify_cases

BASE = SwappedConfig("box", 1, 40, 2, 1, 3, 3, 1, 1, 1)


class TestWgmmaSwapped(StrategyConformance):
    strategy = STRATEGY
    refused_dtypes = (DType.FP32, DType.INT8, DType.UINT8, DType.FP8)
    golden_problem = f"{GOLDEN_PROBLEM.split(' dtype')[0]} dtype=bf16 layout=nhwc"

    def suited(self, problems: Iterable[Conv]) -> Iterator[Conv]:
        """The draws as forward convolutions of enough channels for tensor cores to be as exact as a direct kernel."""
        for problem in problems:
            dtype = problem.dtype if problem.dtype in (DType.TF32, DType.BF16) else DType.FP16
            channels = 4 * problem.groups
            try:
                changed = dataclasses.replace(
                    problem,
                    c=-(-problem.c // channels) * channels,
                    direction=Direction.FPROP,
                    transposed=False,
                    output_padding=(0,) * problem.nd,
                    pad_mode=PadMode.ZEROS,
                    dtype=dtype,
                    out_dtype=dtype.default_output,
                )
            except ProblemError:
                continue
            if self.applies(changed):
                yield changed


def config(**changes: int | str) -> SwappedConfig:
    return dataclasses.replace(BASE, **changes)


def tiling(problem: str, **changes: int | str) -> SwappedTiling:
    return SwappedTiling(gather(Conv.parse(problem)), config(**changes))


def require_right(problem: str, config: SwappedConfig, target: Target = FEW) -> None:
    [result] = verify_cases([Case(Conv.parse(problem), STRATEGY, config)], Settings(target, check="sanitize"))
    assert result.status == "ok", result.reason


# --- how pixels come --------------------------------------------------------------------------------------


@LAYOUTS
@pytest.mark.parametrize("patches", PATCHES)
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
    require_right(f"conv2d n=3 {shape} dtype=bf16 layout={layout.text(2)}", config(patches=patches))


@LAYOUTS
@pytest.mark.parametrize("patches", ["line", "rows", "im2col"])
def test_one_axis(patches: str, layout: Layout) -> None:
    problem = f"conv1d n=3 c=40 in=70 k=72 filter=5 pad=2:1 dtype=fp16 layout={layout.text(1)}"
    require_right(problem, config(patches=patches, block_n=24))


@LAYOUTS
@pytest.mark.parametrize("patches", PATCHES)
def test_three_axes(patches: str, layout: Layout) -> None:
    problem = f"conv3d n=2 c=16 in=4x5x6 k=16 filter=3x2x3 pad=1x0x1 dtype=bf16 layout={layout.text(3)}"
    require_right(problem, config(patches=patches, block_n=16, split_k=1 if patches == "im2col" else 3))


@LAYOUTS
@pytest.mark.parametrize("stride", ["2", "3x1", "1x8"])
def test_strides_by_im2col(stride: str, layout: Layout) -> None:
    require_right(f"conv2d n=2 c=24 in=17x19 k=24 filter=3x3 stride={stride} pad=1 dtype=fp16 layout={layout.text(2)}",
                  config(patches="im2col"))  # fmt: skip


@LAYOUTS
@pytest.mark.parametrize("patches", ["box", "rows", "im2col"])
@pytest.mark.parametrize(("c", "k", "groups"), [(64, 128, 2), (64, 256, 4), (128, 48, 2), (96, 24, 3)])
@pytest.mark.parametrize("tiles", [1, 2])
def test_groups_share_a_line_or_have_their_own(
    patches: str, c: int, k: int, groups: int, tiles: int, layout: Layout
) -> None:
    problem = f"conv2d n=1 c={c} in=9x9 k={k} filter=3x3 pad=1 groups={groups} dtype=fp16 layout={layout.text(2)}"
    require_right(problem, config(patches=patches, tiles=tiles))


@pytest.mark.parametrize("block_n", [8, 16, 24, 56, 72, 88, 104, 136, 176, 248])
@pytest.mark.parametrize(("patches", "dtype"), [("box", "fp16"), ("im2col", "tf32"), ("rows", "bf16")])
def test_any_multiple_of_eight_positions(block_n: int, patches: str, dtype: str) -> None:
    """Slabs of as many positions as divide a tile's, or of all."""
    problem = f"conv2d n=3 c=16 in=13x12 k=72 filter=3x3 pad=1 dtype={dtype} layout=nhwc"
    require_right(problem, config(patches=patches, block_n=block_n, consumers=1, w_stages=2, x_stages=2))


@pytest.mark.parametrize(
    ("block_n", "slab"), [(32, 32), (56, 56), (88, 88), (112, 56), (136, 136), (192, 64), (208, 104), (224, 56)]
)
def test_slabs_divide_a_tile_evenly(block_n: int, slab: int) -> None:
    t = tiling(LAYER, block_n=block_n)
    assert (t.slab_positions, t.stores * t.slab_positions) == (slab, block_n)


def test_tiles_fit_the_map() -> None:
    """56 rows in two boxes of 28, 20 x 20 positions in two tiles, 14 x 14 in one of 25 eights."""
    for shape, width in (("c=64 in=56x56", 224), ("c=576 in=20x20", 200), ("c=256 in=14x14", 200)):
        problem = Conv.parse(f"conv2d n=1 {shape} k=64 filter=3x3 pad=1 dtype=fp16 layout=nhwc")
        assert width in STRATEGY.space(problem, TARGET).choices["block_n"]
    exact = tiling("conv2d n=1 c=64 in=56x56 k=64 filter=3x3 pad=1 dtype=fp16 layout=nhwc", block_n=224)
    assert exact.units * exact.positions == 56 * 56


def test_x_comes_once_where_its_halo_serves_all_taps() -> None:
    """Closed forms of the pixels that lie inside x: of halos of 16 x 8 results, and of the taps of 16 x 16."""
    problem = Conv.parse("conv2d n=1 c=64 in=16x16 k=64 filter=3x3 pad=1 dtype=fp16 layout=nhwc")
    one = dataclasses.replace(TARGET, sm_count=1)
    for patches, pixels in (("box", 2 * 9 * 16), ("im2col", (3 * 16 - 2) ** 2)):
        changes = config(patches=patches, block_n=128, consumers=1, x_stages=2, w_stages=9)
        report, _ = run(problem, changes, one, strategy=STRATEGY)
        assert report.report.counters.read_bytes["global"] == 128 * (pixels + 9 * 64)


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
        {"consumers": 3, "sharing": 3},
        {"tiles": 2, "slabs": 2, "consumers": 1},
        {"block_n": 144, "slabs": 2, "consumers": 2},
        {"split_k": 2, "consumers": 2, "x_stages": 2, "w_stages": 2, "block_n": 24},
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
        report, result = run(Conv.parse(LAYER), config(**changes), FEW, Mode.CHECK, copies, STRATEGY)
        report.require_clean()
        results.append(result)
    np.testing.assert_array_equal(*results)


@pytest.mark.parametrize(
    ("patches", "block_n", "consumers"),
    [("rows", 240, 2), ("rows", 160, 3), ("box", 120, 2), ("box", 120, 3), ("im2col", 160, 2)],
)
def test_optimised_builds_keep_warpgroups_together(patches: str, block_n: int, consumers: int) -> None:
    """A compiler that copied an instruction of a warpgroup onto two paths would part its threads."""
    problem = Conv.parse("conv2d n=1 c=64 in=20x20 k=128 filter=3x3 pad=1 dtype=fp16 layout=nhwc")
    taken = config(patches=patches, block_n=block_n, consumers=consumers, x_stages=2, w_stages=6)
    [result] = verify_cases([Case(problem, STRATEGY, taken)], Settings(TARGET, check="fast"))
    assert result.status == "ok", result.reason


@pytest.mark.parametrize(
    ("omitted", "kind", "detail"),
    [
        (
            "cp_async_bulk_wait_group_read<kSlabs - 1>();",
            FaultKind.RACE,
            "by warp 0 may still read",
        ),
        ("wgmma_wait_group<1>();", FaultKind.RACE, "at shared memory offset 0 of"),
        ("fence_proxy_async();", FaultKind.PROXY, "with no fence_proxy_async behind it"),
        ("mbarrier_wait_parity(x_full + x_ring.stage, x_ring.parity);", FaultKind.RACE, "may still write"),
    ],
)
def test_what_is_left_out_is_found(omitted: str, kind: FaultKind, detail: str) -> None:
    """Planted in the text of the kernel."""
    plan = lower(Conv.parse(LAYER.replace("k=40", "k=256")), STRATEGY, config(tiles=2, sharing=2, w_stages=2), FEW)
    headers, product = render(plan).split('extern "C"')
    assert omitted in product
    [program] = build([plan], [f'{headers}extern "C"{product.replace(omitted, ";")}'], Mode.CHECK)
    inputs = {t.name: np.ones(t.shape, np.float16) for t in plan.inputs}
    report = program.run(inputs, {"y": np.zeros(plan.problem.outputs[0].shape, np.float16)}, copies=Copies.LATE)
    assert any(fault.kind is kind and detail in fault.detail for fault in report.report.faults), report.report.faults


@pytest.mark.parametrize(
    ("patches", "x_multicast", "w_multicast", "layout"),
    [
        *(("box", 2, 1, "nhwc"), ("box", 1, 2, "nchw"), ("line", 2, 1, "nhwc"), ("rows", 2, 1, "nhwc")),
        *(("rows", 4, 1, "nchw"), ("im2col", 2, 2, "nhwc"), ("im2col", 1, 4, "nhwc")),
    ],
)
def test_clusters_share_tiles(patches: str, x_multicast: int, w_multicast: int, layout: str) -> None:
    """Parts of a tile that do not divide it evenly, clusters past the last tile, rings that come around."""
    problem = f"conv2d n=3 c=72 in=6x7 k={64 * max(x_multicast, 2)} filter=3x3 pad=1 dtype=fp16 layout={layout}"
    shared = config(patches=patches, x_multicast=x_multicast, w_multicast=w_multicast, sharing=1, x_stages=2)
    require_right(problem, shared, dataclasses.replace(FEW, sm_count=8))


@pytest.mark.parametrize(("x_multicast", "w_multicast"), [(2, 1), (1, 2)])
def test_clusters_share_tiles_that_stay(x_multicast: int, w_multicast: int) -> None:
    problem = "conv2d n=3 c=16 in=6x7 k=256 filter=3x3 pad=1 dtype=fp16 groups=2 layout=nhwc"
    t = tiling(problem, w_stages=9, x_multicast=x_multicast, w_multicast=w_multicast)
    assert t.resident
    require_right(problem, t.c, dataclasses.replace(FEW, sm_count=16))


def test_sharing_tiles_changes_no_bits() -> None:
    problem = Conv.parse("conv2d n=2 c=64 in=16x16 k=256 filter=3x3 pad=1 dtype=fp16 layout=nhwc")
    alone, shared = (
        run(problem, config(block_n=64, sharing=2, tiles=1, x_multicast=m), TARGET, Mode.COUNT, Copies.LATE, STRATEGY)
        for m in (1, 2)
    )
    np.testing.assert_array_equal(alone[1], shared[1])


@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
@pytest.mark.parametrize(("patches", "cluster"), [("im2col", 2), ("im2col", 8), ("rows", 3), ("box", 6)])
def test_clusters_add_the_parts_that_their_blocks_have(patches: str, cluster: int, layout: str) -> None:
    """Parts of as many panels and of fewer, of tiles that are not full."""
    problem = f"conv2d n=2 c=328 in=9x11 k=84 filter=3x3 pad=1 dtype=bf16 layout={layout} epilogue=bias"
    require_right(problem, config(patches=patches, cluster=cluster, sharing=2))


@pytest.mark.parametrize("epilogue", ["bias+relu", "scale+shift+bias+residual+gelu", "residual"])
@pytest.mark.parametrize(
    "changes",
    [{}, {"patches": "rows"}, {"patches": "im2col"}, {"split_k": 2, "block_n": 24}, {"cluster": 2, "sharing": 2},
     {"tiles": 2}],
    ids=str,
)  # fmt: skip
@LAYOUTS
def test_epilogues(epilogue: str, changes: dict[str, int | str], layout: Layout) -> None:
    """Warpgroups whose channels lie beyond the last touch nobody's results."""
    problem = f"{LAYER.replace('nhwc', layout.text(2))} epilogue={epilogue}"
    require_right(problem, config(**changes))
    require_right(f"{problem} out_dtype=fp32 accumulate=yes", config(**changes))


@pytest.mark.parametrize("k", [5, 12, 68, 100])
def test_channels_that_fill_no_tile(k: int) -> None:
    for patches in PATCHES:
        require_right(f"conv2d n=1 c=16 in=9x9 k={k} filter=3x3 pad=1 dtype=fp16 layout=nhwc", config(patches=patches))


@pytest.mark.parametrize("block_n", [8, 88, 136, 256])
def test_widths_are_those_that_wgmma_makes(block_n: int) -> None:
    plan = lower(Conv.parse(LAYER), STRATEGY, config(block_n=block_n, consumers=1), TARGET)
    binary = compile_cuda(render(plan), TARGET)
    assert f"wgmma.mma_async.sync.aligned.m64n{block_n}k16" in binary.ptx
    assert not any(kernel.spill_stores for kernel in binary.kernels)


def test_random_problems_of_several_turns(request: pytest.FixtureRequest) -> None:
    rng = random.Random(9)
    suited = TestWgmmaSwapped().suited(random_convs(9, request.config.getoption("--draws"), 20_000))
    drawn = [(problem, legal_config(STRATEGY, problem, rng, target=FEW)) for problem in suited]
    cases = [Case(problem, STRATEGY, config) for problem, config in drawn if config is not None]
    assert cases
    require_all_right(cases, Settings(FEW, check="sanitize"))


# --- what it refuses --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("conv2d n=1 c=3 in=8 k=64 filter=3 dtype=fp16 layout=nhwc", "accuracy=strict: tensor cores may err by"),
        ("conv2d n=1 c=64 in=8 k=64 filter=3 dtype=fp16 layout=nhwc direction=dgrad", "dgrad has no kernel"),
        ("conv2d n=1 c=64 in=8 k=64 filter=3 pad=1 pad_mode=reflect dtype=fp16 layout=nhwc", "TMA fills"),
        ("conv2d n=1 c=64 in=8 k=48 filter=3 groups=2 dtype=fp16 layout=nhwc", "2 groups share a line"),
        ("conv2d n=1 c=64 in=99 k=8 filter=3 stride=9 dtype=fp16 layout=nhwc", "each from 1 to 8"),
    ],
)
def test_reasons(text: str, reason: str) -> None:
    require_reason(STRATEGY, text, reason)


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"patches": "planes"}, "patches=planes: expected box"),
        ({"block_n": 12}, "block_n=12: expected a multiple of 8"),
        ({"block_n": 264}, "block_n=264: expected a multiple of 8 up to 256"),
        ({"consumers": 3, "sharing": 2}, "sharing=2: expected a divisor of consumers=3"),
        ({"tiles": 5, "consumers": 1}, "tiles=5 sharing=1: TMA brings at most 256 channels of w"),
        ({"tiles": 4, "block_n": 256}, "512 sums of a thread"),
        ({"consumers": 3, "block_n": 208}, "one wgmma names 104 sums"),
        ({"slabs": 2}, "slabs=2: expected at most 1"),
        ({"slabs": 0}, "slabs=0: expected at least 1"),
        ({"split_k": 3}, "split_k=3: 2 panels leave a part with none"),
        ({"patches": "line", "block_n": 256}, "a halo of 3 x 258 pixels, TMA copies at most 256 along each axis"),
        ({"cluster": 2}, "cluster=2 sharing=1: a block of a cluster has one tile"),
    ],
)
def test_rules(changes: dict[str, Any], rule: str) -> None:
    require_refusal(STRATEGY, LAYER, config(**changes), rule)
