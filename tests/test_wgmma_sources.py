"""Where the Hopper strategy finds its operands: as they lie, as planes, packed before; launches that follow."""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from typing import Any

import numpy as np
import pytest
from conformance import (
    TARGET,
    require_golden,
    require_refusal,
)
from wgmma_cases import FEW, LAYER, config, require_right, run

from convgen.binding import preparation
from convgen.lowering import lower
from convgen.plan import extent_at
from convgen.problem import Accuracy, Conv, Layout, Sizes
from convgen.reference import make_inputs
from convgen.reference.rounding import encode
from convgen.render import render
from convgen.runtime.sim import build
from convgen.simulator import FaultKind, Mode
from convgen.strategies.wgmma_implicit_gemm import STRATEGY
from convgen.strategies.wgmma_sources import sources
from convgen.strategies.wgmma_tiling import PLANES, Tiling


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


def test_weights_that_are_packed_alone_are_prepared() -> None:
    """What depends on w alone is a step that need not be repeated; where x is packed too, one kernel does both."""
    alone = Conv.parse("conv2d n=2 c=100 in=8x8 k=40 filter=1x1 dtype=fp16 layout=nchw")
    found = preparation(lower(alone, STRATEGY, config(patches=PLANES, w_stages=2), TARGET))
    assert (found.steps, found.buffers, found.weights_used_later) == (frozenset({0}), ("packed_w",), False)
    plan = lower(Conv.parse(LAYER.replace("nhwc", "nchw")), STRATEGY, config(), TARGET)
    assert [buffer.name for buffer in plan.workspace] == ["packed_w", "packed_x"]
    found = preparation(plan)
    assert (found.steps, found.buffers, found.weights_used_later) == (frozenset(), (), True)


@pytest.mark.parametrize(
    ("problem", "changes", "early"),
    [
        (LAYER, {}, [False]),
        (LAYER, {"split_k": 2}, [False, True]),
        (LAYER.replace("nhwc", "nchw"), {}, [False, True]),
        (LAYER.replace("nhwc", "nchw"), {"split_k": 2}, [False, True, True]),
        (LAYER.replace("c=72", "c=68"), {}, [False, True]),
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


@pytest.mark.parametrize("dtype", ["fp16", "int8", "tf32", "fp32"])
@pytest.mark.parametrize(
    "shape",
    [
        "n=2 c=64 in=5x8 k=24 filter=3x3",
        "n=2 c=20 in=5x8 k=24 filter=3x3",  # runs of 8 bytes of fp16, and channels of zeros
        "n=2 c=13 in=5x8 k=9 filter=3x1",  # runs of one element
        "n=*<=4~2 c=72 in=5x8 k=40 filter=4x4",  # taps that would meet in the same banks
        "n=3 c=36 in=5x8 k=24 filter=2x3 groups=3",
        "n=1 c=30 in=1x4 k=8 filter=1x65 pad=0x31",  # an octet of pieces is more than a load a thread
        "n=1 c=17 in=1x3 k=8 filter=1x385 pad=0x191",  # and more than shared memory is to hold
    ],
)
def test_channels_first_weights_of_any_shape_are_packed(shape: str, dtype: str) -> None:
    problem = Conv.parse(f"conv2d {shape} dtype={dtype} accuracy=fast layout=nchw")
    strict = dataclasses.replace(problem, accuracy=Accuracy.STRICT) if dtype == "fp32" else problem
    for checked in {problem, strict}:
        if STRATEGY.why_not(checked, FEW) is None:
            require_right(str(checked), None)


@pytest.mark.parametrize("dtype", ["fp16", "int8", "tf32", "fp32"])
@pytest.mark.parametrize(
    "shape",
    [
        "conv2d n=2 c=64 in=7x7 k=8 filter=1x1",  # loads of one position
        "conv2d n=*<=4~2 c=20 in=6x23 k=8 filter=1x1",  # of two, channels of zeros
        "conv2d n=2 c=80 in=13x20 k=8 filter=1x1",  # of four, several tiles, the last ones not full
        "conv2d n=2 c=36 in=5x27 k=24 filter=1x1 groups=3",
        "conv1d n=1 c=8 in=1100 k=8 filter=1",  # a piece or two: warps side by side along the positions
        "conv1d n=*<=2~1 c=24 in=4 k=8 filter=1",  # one load for all lanes
    ],
)
def test_channels_first_images_of_any_shape_are_packed(shape: str, dtype: str) -> None:
    layout = "ncl" if shape.startswith("conv1d") else "nchw"
    problem = Conv.parse(f"{shape} dtype={dtype} accuracy=fast layout={layout}")
    strict = dataclasses.replace(problem, accuracy=Accuracy.STRICT) if dtype == "fp32" else problem
    for checked in {problem, strict}:
        if STRATEGY.why_not(checked, FEW) is None:
            require_right(str(checked), None)


@pytest.mark.parametrize(
    ("channels", "dtype"), [("c=64", "fp16"), ("c=128", "int8"), ("c=32", "tf32"), ("c=32", "fp16"), ("c=16", "tf32")]
)
@pytest.mark.parametrize("rows", [16, 18])
def test_channels_first_images_are_packed_in_whole_sectors(channels: str, dtype: str, rows: int) -> None:
    """Each once, and each thread's 16 bytes meet no others in their banks; positions of one tile and of two."""
    problem = Conv.parse(f"conv2d n=2 {channels} in={rows}x16 k=8 filter=1x1 stride=2 dtype={dtype} layout=nchw")
    plan = lower(problem, STRATEGY, None, TARGET)
    assert list(plan.constants["packings"]) == ["x"]
    ran, _ = run(problem, plan.config, TARGET)
    sites = [site for site in ran.report.counters.sites if "pack_x" in site.kernel]
    nbytes = problem.tensor("x").nbytes
    for is_write in (False, True):
        in_memory = [site for site in sites if site.space == "global" and site.is_write == is_write]
        assert sum(site.transactions for site in in_memory) == nbytes // 32
    in_shared = [site for site in sites if site.space == "shared"]
    assert in_shared
    assert all(site.transactions == site.ideal for site in in_shared)


@pytest.mark.parametrize(("filter_", "reads"), [("3x3", 10), ("2x2", 8)])
def test_channels_first_weights_are_packed_in_whole_sectors(filter_: str, reads: int) -> None:
    """Loads and stores of 16 bytes fill them, and a warp's lanes meet in few banks."""
    problem = Conv.parse(f"conv2d n=1 c=128 in=9x9 k=64 filter={filter_} dtype=fp16 layout=nchw")
    ran, _ = run(problem, config(), TARGET)
    lines = render(lower(problem, STRATEGY, config(), TARGET)).splitlines()
    begin = next(number for number, line in enumerate(lines, 1) if "if (blockIdx.x < kBlocksOfW)" in line)
    end = lines.index("    } else {", begin) + 1
    packing = [site for site in ran.report.counters.sites if "pack_x_w" in site.kernel]
    sites = [site for site in packing if any(begin < line < end for line in site.lines)]
    in_memory = [site for site in sites if site.space == "global"]
    nbytes = problem.tensor("w").nbytes
    assert sorted((s.is_write, s.bytes, s.accesses, s.transactions) for s in in_memory) == [
        (False, nbytes, nbytes // 16, nbytes // 32),
        (True, nbytes, nbytes // 16, nbytes // 32),
    ]
    [taken] = [site for site in sites if site.space == "shared" and not site.is_write]
    assert taken.transactions * 8 <= taken.ideal * reads * 1.05


def test_the_text_of_what_packs_is_golden(request: pytest.FixtureRequest) -> None:
    problem = Conv.parse("conv2d n=2 c=32 in=13x12 k=48 filter=3x3 pad=1 dtype=fp16 layout=nchw")
    require_golden(f"{STRATEGY.name}_packing", render(lower(problem, STRATEGY, config(block_n=48), TARGET)), request)


@pytest.mark.parametrize("layout", Layout)
def test_blocks_of_x_go_with_the_batch_and_those_of_w_do_not(layout: Layout) -> None:
    """One launch packs both, each once, for any batch: with no image w alone."""
    text = f"conv2d n=*<=4~2 c=20 in=9x12 k=40 filter=3x3 pad=1 dtype=fp16 layout={layout.text(2)}"
    plan = lower(Conv.parse(text), STRATEGY, config(), FEW)
    of_x, of_w = (plan.constants["packings"][tensor].blocks for tensor in ("x", "w"))
    program = build([dataclasses.replace(plan, steps=plan.steps[:1])], [render(plan)], Mode.COUNT)[0]
    w = np.ones((40, 20, 3, 3), np.float16)
    for n in (0, 1, 3):
        blocks = extent_at(plan.launches[0].grid[0], Sizes.of(n=n))
        assert blocks == extent_at(of_x, Sizes.of(n=n)) + of_w
        x, y = np.ones((n, 20, 9, 12), np.float16), np.zeros((n, 40, 9, 12), np.float16)
        report = program.run({"x": x, "w": w}, {"y": y}).report
        assert not report.faults
        assert report.blocks == blocks
        assert report.counters.written_bytes["global"] == 2 * 24 * (40 * 9 + n * 9 * 12)


@pytest.mark.parametrize(
    ("missing", "faulty", "touched"),
    [
        (None, None, set()),
        (1, 1, {"packed_x", "packed_w"}),
        (2, 2, {"partial", "y"}),
    ],
    ids=["none", "product", "reduce"],
)
def test_a_missing_wait_is_found(missing: int | None, faulty: int | None, touched: set[str]) -> None:
    """The kernels pack x and w, multiply, and add parts: without the wait of one, it meets what is not there yet."""
    problem = Conv.parse(LAYER.replace("nhwc", "nchw"))
    plan = lower(problem, STRATEGY, config(block_n=16, split_k=2), FEW)
    start = 'extern "C" __global__'
    head, *kernels = render(plan).split(start)
    if missing is not None:
        assert "grid_dependency_wait();" in kernels[missing]
        kernels[missing] = kernels[missing].replace("grid_dependency_wait();", "")
    inputs = {
        name: encode(values, problem.tensor(name).dtype)
        for name, values in make_inputs(problem, 0, "small_integers").items()
    }
    outputs = {"y": np.zeros(problem.tensor("y").shape, np.float16)}
    faults = build([plan], [start.join([head, *kernels])])[0].run(inputs, outputs).report.faults
    assert {fault.kernel for fault in faults} == (set() if faulty is None else {plan.launches[faulty].kernel.name})
    assert all(fault.kind is FaultKind.RACE for fault in faults)
    said = [
        re.search(r"global (\w+) offset \d+, which a kernel before may still use", fault.detail) for fault in faults
    ]
    assert {found[1] for found in said if found} == touched
    assert None not in said
