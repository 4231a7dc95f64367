"""Channels-first x that threads copy in runs of positions: right, in whole tiles, and planted faults found."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from conformance import TARGET, require_golden, require_refusal
from wgmma_cases import FEW, config, require_right, run

from convgen.binding import required_alignment
from convgen.compiler import compile_cuda
from convgen.errors import ConfigError
from convgen.lowering import lower
from convgen.problem import Conv
from convgen.reference import make_inputs
from convgen.reference.rounding import encode
from convgen.render import render
from convgen.runtime.sim import build
from convgen.simulator import Copies, FaultKind, Mode
from convgen.strategies import wgmma_runs
from convgen.strategies.wgmma_block import COPYING_REGISTERS, LAUNCHED_REGISTERS, WARPGROUP
from convgen.strategies.wgmma_implicit_gemm import STRATEGY
from convgen.strategies.wgmma_sources import sources
from convgen.strategies.wgmma_tiling import PLANES, RUNS, Tiling, WgmmaConfig

TWO = dataclasses.replace(TARGET, sm_count=2)


def runs(problem: str, **changes: int) -> WgmmaConfig:
    """Of no more tiles of w than there are."""
    made = config(patches=RUNS, **changes)
    return dataclasses.replace(made, w_stages=min(made.w_stages, tiling(problem, made).w_tiles))


def tiling(problem: str, made: WgmmaConfig) -> Tiling:
    return Tiling(sources(Conv.parse(problem), made.patches).g, made)


# --- right ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "run_"),
    [
        ("c=64 in=14x14 k=64", 4),  # rows of 392 bytes
        ("c=136 in=10x6 k=40", 4),
        ("c=100 in=6x6 k=44", 4),  # channels that fill no line, nor 16 bytes of w
        ("c=65 in=3x10 k=24", 2),  # copies of 4 bytes
        ("c=200 in=2x2 k=24", 4),  # images in a run of lanes
        ("c=33 in=1x2 k=16", 2),
        ("c=72 in=8x9 k=40", 8),
        ("c=16 in=4x4 k=20", 8),  # two of eight lines a warp
        ("c=96 in=5x12 k=24 groups=3", 4),
        ("c=64 in=6x6 k=64 groups=4", 4),  # groups that share a line
        ("c=128 in=6x5 k=16 groups=2", 2),
    ],
)
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"tiles": 2, "consumers": 1, "x_stages": 2},
        {"consumers": 3, "sharing": 3, "x_stages": 4},
        {"consumers": 4, "sharing": 2, "x_stages": 6},
    ],
    ids=str,
)
def test_runs_are_copied_over_the_ends_of_images(shape: str, run_: int, changes: dict[str, int]) -> None:
    for n, dtype, more in (
        ("5", "fp16", ""),
        ("*", "bf16", "epilogue=bias+residual+relu accumulate=yes"),
        ("*<=7~2", "fp16", "out_dtype=fp32 epilogue=scale+shift+gelu"),
    ):
        problem = f"conv2d n={n} {shape} filter=1x1 dtype={dtype} layout=nchw {more}"
        parsed = Conv.parse(problem)
        width = parsed.k // parsed.groups if parsed.groups > 1 else 32
        for target in (FEW, TWO):
            require_right(problem, runs(problem, block_n=width, **changes), target)
    assert wgmma_runs.positions(sources(parsed, RUNS).g) == run_


@pytest.mark.parametrize(
    "text", ["conv1d n=3 c=72 in=50 k=24 layout=ncl", "conv3d n=3 c=72 in=3x2x10 k=24 layout=ncdhw"]
)
def test_axes_are_one(text: str) -> None:
    problem = f"{text} filter=1 dtype=bf16 epilogue=bias"
    require_right(problem, runs(problem, block_n=24))


@pytest.mark.parametrize(
    "changes",
    [
        {"split_k": 2},
        {"split_k": 4, "consumers": 3, "sharing": 3, "tiles": 1, "x_stages": 2},
        {"cluster": 2, "sharing": 2},
        {"cluster": 4, "sharing": 2, "x_stages": 4},
        {"x_stages": 2, "w_stages": 2},
        {"x_stages": 6, "consumers": 4, "sharing": 1},  # rings that do not come around with the turns
        {"x_stages": 5, "consumers": 4, "sharing": 4, "w_stages": 4},
        {"consumers": 3, "sharing": 1, "x_stages": 2, "w_stages": 2},  # more tiles at a time than stages
    ],
    ids=str,
)
def test_rings_and_parts(changes: dict[str, int]) -> None:
    """Whether copies come at once or as late as can be: the same bits."""
    problem = "conv2d n=7 c=250 in=6x14 k=40 filter=1x1 dtype=fp16 layout=nchw epilogue=bias"
    made = runs(problem, **changes)
    require_right(problem, made)
    results = []
    for copies in Copies:
        report, result = run(Conv.parse(problem), made, FEW, Mode.CHECK, copies)
        report.require_clean()
        results.append(result)
    np.testing.assert_array_equal(*results)


# --- what they save ---------------------------------------------------------------------------------------


def test_tiles_are_whole() -> None:
    """Of 14 x 14 maps as many positions as there are; planes of 24 x 24 end in an empty part, runs do not."""
    made = config(patches=RUNS, consumers=3, sharing=3, block_n=128)
    t = tiling("conv2d n=32 c=512 in=14x14 k=1024 filter=1x1 dtype=fp16 layout=nchw", made)
    assert t.tiles(32) == -(-32 * 196 // 192) * 8
    problem = "conv2d n=4 c=64 in=12x12 k=32 filter=1x1 dtype=fp16 layout=nchw"
    positions = [tiling(problem, config(patches=p)).tiles(4) * 64 for p in (PLANES, RUNS)]
    assert positions == [4 * 192, 4 * 144]


def test_x_comes_once_and_nothing_is_packed() -> None:
    problem = Conv.parse("conv2d n=3 c=64 in=14x14 k=32 filter=1x1 dtype=fp16 layout=nchw")
    made = runs(str(problem))
    assert len(lower(problem, STRATEGY, made, TARGET).launches) == 1
    report, _ = run(problem, made, dataclasses.replace(TARGET, sm_count=1))
    assert report.report.counters.read_bytes["global"] == 2 * (3 * 64 * 196 + 64 * 32)
    assert report.report.counters.written_bytes["global"] == 2 * 3 * 32 * 196


def test_the_default_copies_rows_that_planes_cannot() -> None:
    problem = Conv.parse("conv2d n=32 c=1024 in=14x14 k=256 filter=1x1 dtype=fp16 layout=nchw")
    assert STRATEGY.default(problem, TARGET).patches == RUNS


# --- what they rely on ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("size", "nbytes"), [("14x14", 8), ("10x13", 4), ("8x8", 16)])
def test_x_lies_at_a_multiple_of_a_run(size: str, nbytes: int) -> None:
    problem = Conv.parse(f"conv2d n=2 c=64 in={size} k=32 filter=1x1 dtype=fp16 layout=nchw")
    plan = lower(problem, STRATEGY, runs(str(problem)), TARGET)
    assert required_alignment(plan, problem.tensor("x")) == nbytes


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("c=64 in=8 filter=1 dtype=fp16 layout=nhwc", "channels-first layouts only"),
        ("c=64 in=8 filter=1 dtype=int8 layout=nchw", "wgmma takes 16-bit types so, not int8"),
        ("c=64 in=8 filter=1 stride=2 dtype=fp16 layout=nchw", "one tap, stride 1 and no padding"),
        ("c=64 in=8 filter=1 pad=1 dtype=fp16 layout=nchw", "one tap, stride 1 and no padding"),
        ("c=64 in=7 filter=1 dtype=fp16 layout=nchw", "49 positions are no multiple of 4 bytes"),
        ("c=64 in=1 filter=1 dtype=bf16 layout=nchw", "1 positions are no multiple of 4 bytes"),
        ("c=48 in=8 filter=1 groups=4 dtype=fp16 layout=nchw", "a group's 12 channels are to be padded"),
    ],
)
def test_what_runs_are_not(text: str, reason: str) -> None:
    require_refusal(STRATEGY, f"conv2d n=1 k=32 {text}", config(patches=RUNS, block_n=8), reason)


def test_the_registers_of_all_are_those_that_there_are() -> None:
    for consumers, (copying, multiplying) in COPYING_REGISTERS.items():
        if consumers > 1:
            taken = WARPGROUP * (copying + consumers * multiplying)
            assert taken <= WARPGROUP * (consumers + 1) * LAUNCHED_REGISTERS[consumers]


@pytest.mark.parametrize("n", ["32", "*"])
@pytest.mark.parametrize("shape", ["c=512 in=14x14", "c=500 in=10x13", "c=256 in=12x12"])
def test_nothing_spills(shape: str, n: str) -> None:
    problem = Conv.parse(f"conv2d n={n} {shape} k=512 filter=1x1 dtype=bf16 layout=nchw epilogue=bias+relu")
    for shape_ in ((1, 128, 3, 3), (2, 128, 2, 2), (1, 192, 1, 1), (1, 64, 4, 4), (2, 32, 4, 4), (1, 128, 3, 1)):
        tiles, width, consumers, sharing = shape_
        made = runs(str(problem), tiles=tiles, block_n=width, consumers=consumers, sharing=sharing)
        [kernel, *_] = compile_cuda(render(lower(problem, STRATEGY, made, TARGET)), TARGET).kernels
        assert (kernel.spill_stores, kernel.spill_loads) == (0, 0), made


def test_sums_leave_registers_to_those_that_copy() -> None:
    problem = Conv.parse("conv2d n=32 c=512 in=16x16 k=1024 filter=1x1 dtype=fp16 layout=nchw")
    made = config(tiles=2, block_n=184, consumers=2, sharing=2, slabs=1)
    STRATEGY.check(problem, dataclasses.replace(made, patches=PLANES), TARGET)
    with pytest.raises(ConfigError, match="take about 228 registers, with 2 consumers a thread has 224"):
        STRATEGY.check(problem, dataclasses.replace(made, patches=RUNS), TARGET)


def test_the_text_is_golden(request: pytest.FixtureRequest) -> None:
    problem = Conv.parse("conv2d n=2 c=36 in=10x6 k=48 filter=1x1 dtype=bf16 layout=nchw epilogue=bias+relu")
    made = runs(str(problem), block_n=48)
    require_golden(f"{STRATEGY.name}_runs", render(lower(problem, STRATEGY, made, TARGET)), request)


# --- planted faults ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("present", "planted", "kind"),
    [
        ("", "", None),
        ("fence_proxy_async();  // threads wrote it", "", FaultKind.PROXY),
        ("mbarrier_wait_parity(x_full + x_ring.stage, x_ring.parity);", "", FaultKind.RACE),
        ("cp_async_mbarrier_arrive_noinc(x_full", "mbarrier_arrive(x_full", FaultKind.RACE),
        ("mbarrier_wait_parity(x_empty + ring.stage, ring.parity ^ 1);", "", FaultKind.DEADLOCK),
        ("left = batch * kOutW", "left = 64 + batch * kOutW", FaultKind.OUT_OF_BOUNDS),
    ],
    ids=["none", "fence", "wait", "early arrival", "empty", "end"],
)
def test_planted_faults_are_found(present: str, planted: str, kind: FaultKind | None) -> None:
    problem = Conv.parse("conv2d n=3 c=384 in=6x6 k=16 filter=1x1 dtype=fp16 layout=nchw")
    plan = lower(problem, STRATEGY, runs(str(problem), block_n=16, x_stages=4), TWO)
    text = render(plan)
    assert present in text
    if present:
        text = text.replace(present, planted, 1)
    inputs: dict[str, Any] = {
        name: encode(values, problem.tensor(name).dtype)
        for name, values in make_inputs(problem, 0, "small_integers").items()
    }
    outputs = {"y": np.zeros(problem.tensor("y").shape, np.float16)}
    faults = build([plan], [text])[0].run(inputs, outputs).report.faults
    assert {fault.kind for fault in faults} >= ({kind} if kind else set())
    assert bool(faults) == (kind is not None)
