"""The im2col strategy: the conformance suite, the unrolled matrix itself, and every dimension of its space."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Literal

import numpy as np
import pytest
from conformance import TARGET, StrategyConformance, require_refusal, require_right
from im2col_oracle import im2col_reference

from convgen.lowering import lower
from convgen.plan import ScalarArg, WorkspaceArg
from convgen.problem import Conv, Layout
from convgen.reference import make_inputs
from convgen.render import render
from convgen.runtime.physical import flat, to_physical
from convgen.simulator import Block, Memory, Mode, Unit, build
from convgen.strategies.im2col import STRATEGY, Im2colConfig

Patches = Literal["rows", "columns"]

SMALL = Im2colConfig("columns", 8, 32, 4, 2, 1, 1, 16)

DENSE = "conv2d n=3 c=6 in=9x10 k=7 filter=3x3 pad=1"
PACKED = "conv2d n=3 c=8 in=8x6 k=12 filter=3x3 pad=1"
POINTWISE = "conv2d n=3 c=8 in=6x6 k=12 filter=1"
LONG = "conv2d n=64 c=64 in=256 k=64 filter=3 pad=1 direction=wgrad"
TALL = "conv2d n=3 c=16 in=80x33 k=4 filter=3x3 pad=1"


class TestIm2col(StrategyConformance):
    strategy = STRATEGY


def config(**changes: int | str) -> Im2colConfig:
    return Im2colConfig.from_mapping(changes, SMALL)


# --- the unrolled matrix -----------------------------------------------------------------------------


def unrolled(problem: Conv, chosen: Im2colConfig) -> tuple[Any, int]:
    """The matrix that the unrolling kernel writes, its chunks side by side and the padding cut off after it was seen
    to be zero: (groups, patches, terms) or (groups, terms, patches). Also the number of chunks."""
    plan = lower(problem, STRATEGY, chosen, TARGET)
    x = problem.tensor("x")
    elements = flat(x, to_physical(x, make_inputs(problem, 0, "small_integers")["x"]))
    memory = Memory()
    source = memory.allocate("x", x.nbytes, writable=False, initialised=True, granule=x.dtype.itemsize)
    source.bytes.view(elements.dtype)[:] = elements
    [nbytes] = [b.nbytes for b in plan.workspace if b.name == "columns"]
    assert isinstance(nbytes, int)
    library = build([Unit(render(plan), plan.kernels)], Mode.CHECK)
    outer, inner = problem.out[0], math.prod(problem.out[1:])
    terms = problem.c // problem.groups * math.prod(problem.filter)
    launches = [launch for launch in plan.launches if launch.args[1] == WorkspaceArg("columns")]
    scalars = [tuple(int(arg.value) for arg in launch.args if isinstance(arg, ScalarArg)) for launch in launches]
    starts = [scalar or (0, 0, 0) for scalar in scalars]
    matrices: list[Any] = []
    for launch, (first_batch, first_row, first_term) in zip(launches, starts, strict=True):
        assert first_term == 0
        memory_of_chunk = memory.allocate(
            f"columns{len(matrices)}", nbytes, writable=True, initialised=False, granule=x.dtype.itemsize
        )
        arguments: list[Block | int] = [source, memory_of_chunk, *scalars[len(matrices)]]
        grid = tuple(int(str(extent)) for extent in launch.grid)
        report = library.launch(0, launch.kernel, (grid[0], grid[1], grid[2]), launch.block, 0, arguments, memory)
        assert not report.faults
        padded_terms = -(-terms // chosen.block_k) * chosen.block_k
        shape = (problem.groups, -1, padded_terms) if chosen.patches == "rows" else (problem.groups, padded_terms, -1)
        matrix = memory_of_chunk.bytes.view(elements.dtype).reshape(shape)
        matrix = matrix if chosen.patches == "rows" else matrix.transpose(0, 2, 1)
        next_batch = min([b for b, _, _ in starts if b > first_batch], default=problem.typical_batch)
        next_row = min([row for b, row, _ in starts if b == first_batch and row > first_row], default=outer)
        patches = (next_batch - first_batch) * (next_row - first_row) * inner
        assert not matrix[:, patches:].any()
        assert not matrix[:, :, terms:].any()
        matrices.append(matrix[:, :patches, :terms])
    whole = np.concatenate(matrices, axis=1)
    return whole if chosen.patches == "rows" else whole.transpose(0, 2, 1), len(matrices)


@pytest.mark.parametrize("patches", ["rows", "columns"])
@pytest.mark.parametrize("layout", list(Layout))
@pytest.mark.parametrize(
    "text",
    [
        "conv1d n=2 c=5 in=17 k=3 filter=4 stride=2 pad=2:1 dilation=2",
        "conv2d n=3 c=8 in=9x10 k=4 filter=3x3 pad=1",
        "conv2d n=2 c=6 in=9x7 k=6 groups=3 filter=3x2 stride=2x1 pad=1x0:1 dilation=1x2",
        "conv2d n=2 c=4 in=7x8 k=4 groups=4 filter=3x3 pad=2 pad_mode=reflect",
        "conv2d n=1 c=3 in=5x6 k=2 filter=3x5 pad=2 pad_mode=circular",
        "conv2d n=2 c=3 in=5x6 k=2 filter=3x3 pad=3 pad_mode=replicate stride=2 dtype=fp16",
        "conv3d n=2 c=3 in=4x5x3 k=2 filter=2x3x2 pad=1",
    ],
)
def test_the_matrix_is_that_of_numpy(text: str, layout: Layout, patches: Patches) -> None:
    problem = dataclasses.replace(Conv.parse(text), layout=layout)
    matrix, _ = unrolled(problem, config(patches=patches))
    expected = im2col_reference(problem, make_inputs(problem, 0, "small_integers")["x"], patches)
    assert np.array_equal(matrix, expected)


@pytest.mark.parametrize("patches", ["rows", "columns"])
@pytest.mark.parametrize(
    ("text", "chunks"),
    [
        ("conv2d n=5 c=16 in=32x24 k=4 filter=3x3 pad=1", 3),
        ("conv2d n=2 c=16 in=80x33 k=4 filter=3x3 pad=1 layout=nhwc", 4),
        ("conv1d n=1 c=32 in=9001 k=4 filter=3 pad=1", 4),
    ],
)
def test_the_matrix_is_the_same_in_chunks(text: str, chunks: int, patches: Patches) -> None:
    problem = Conv.parse(text)
    matrix, count = unrolled(problem, config(patches=patches, workspace_mib=1))
    assert count == chunks
    expected = im2col_reference(problem, make_inputs(problem, 0, "small_integers")["x"], patches)
    assert np.array_equal(matrix, expected)


# --- results -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("problem", "changes"),
    [
        (DENSE, {}),
        (DENSE, {"patches": "rows"}),
        (DENSE, {"block_m": 32, "thread_m": 8, "block_n": 64, "thread_n": 8, "block_k": 16}),
        (DENSE, {"block_m": 4, "thread_m": 1}),
        (DENSE, {"split_k": 5}),
        (DENSE + " epilogue=scale+shift+bias+residual+gelu", {"split_k": 3, "patches": "rows"}),
        (DENSE.replace("pad=1", "stride=2x3 dilation=2x1 pad=0:3x2:1"), {}),
        (DENSE + " stride=5 pad_mode=reflect", {}),
        (DENSE + " direction=wgrad pad_mode=circular", {"patches": "rows", "split_k": 8}),
        (DENSE + " direction=dgrad stride=2 dilation=2", {}),
        (DENSE + " direction=dgrad layout=nhwc accumulate=yes", {"patches": "rows"}),
        (PACKED + " dtype=fp16 epilogue=bias+residual+relu", {"thread_n": 4}),
        (PACKED + " layout=nhwc dtype=bf16 epilogue=scale+shift+silu", {"patches": "rows", "thread_m": 2}),
        (PACKED + " layout=nhwc epilogue=residual", {"block_m": 16, "thread_m": 4}),
        (PACKED + " layout=nhwc direction=wgrad", {"thread_n": 4, "block_n": 64, "split_k": 2}),
        (PACKED + " layout=nhwc direction=wgrad accumulate=yes", {"thread_n": 4}),
        (PACKED + " direction=wgrad", {"patches": "rows"}),
        (PACKED + " groups=2 direction=dgrad", {"thread_n": 2}),
        (PACKED.replace("k=12", "k=16") + " groups=8 layout=nhwc", {"patches": "rows", "thread_m": 1}),
        (POINTWISE, {"patches": "in_place", "thread_n": 4}),
        (POINTWISE + " stride=2", {"patches": "in_place"}),
        (POINTWISE + " layout=nhwc dtype=fp16", {"patches": "in_place", "thread_m": 2}),
        (POINTWISE + " groups=4 direction=dgrad", {"patches": "in_place", "split_k": 1}),
        (POINTWISE + " direction=wgrad", {"patches": "in_place", "split_k": 4}),
        (POINTWISE + " direction=wgrad layout=nhwc", {"patches": "in_place"}),
        ("conv2d n=4 c=8 in=3x5 k=4 filter=3x5", {"patches": "in_place", "split_k": 2}),
        ("conv3d n=2 c=3 in=4x5x3 k=5 filter=2x3x2 pad=1:0x2x0 pad_mode=replicate", {}),
        ("conv1d n=2 c=3 in=29 k=5 filter=30 pad=7:2", {"patches": "rows"}),
        ("conv_transpose2d n=2 c=4 in=5x4 k=6 filter=3x4 stride=2x3 pad=1 output_padding=1x0 epilogue=bias", {}),
        ("conv_transpose2d n=2 c=4 in=5x4 k=6 filter=3 stride=2 groups=2 direction=wgrad", {"split_k": 3}),
        ("conv_transpose2d n=2 c=4 in=5x4 k=6 filter=3 stride=2 direction=dgrad layout=nhwc", {"patches": "rows"}),
        ("conv2d n=*<=5~3 c=6 in=9x10 k=8 filter=3x3 pad=1 epilogue=bias", {"thread_n": 2}),
        ("conv2d n=*<=5~2 c=6 in=9x10 k=8 filter=3x3 pad=1 direction=dgrad", {"patches": "rows", "split_k": 2}),
        (TALL, {"workspace_mib": 1, "block_n": 64, "thread_n": 4}),
        (TALL + " epilogue=bias+relu", {"workspace_mib": 1, "patches": "rows", "split_k": 3}),
        (TALL.replace("in=80x33", "in=32x24"), {"workspace_mib": 1}),
        (TALL.replace("n=3", "n=*<=3") + " layout=nhwc", {"workspace_mib": 1}),
        (TALL.replace("in=80x33", "in=66x31") + " groups=4 direction=dgrad", {"workspace_mib": 1}),
        (TALL.replace("in=80x33", "in=66x31") + " direction=wgrad layout=nhwc", {"workspace_mib": 1}),
        (TALL.replace("in=80x33", "in=66x31") + " direction=wgrad accumulate=yes", {"workspace_mib": 1, "split_k": 3}),
    ],
)
def test_each_tunable_gives_the_right_answer(problem: str, changes: dict[str, int | str]) -> None:
    require_right(STRATEGY, problem, config(**changes))


# --- rules -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("problem", "changes", "rule"),
    [
        (DENSE, {"patches": "diagonals"}, "expected rows, columns or in_place"),
        (DENSE, {"patches": "in_place"}, "only without padding"),
        (POINTWISE + " pad=1", {"patches": "in_place"}, "only without padding"),
        (DENSE, {"block_m": 24}, "power of two"),
        (DENSE, {"thread_n": 0}, "power of two"),
        (DENSE, {"split_k": 0}, "at least 1"),
        (DENSE, {"block_k": 2}, "multiple of 4"),
        (DENSE, {"thread_m": 4}, "4 x 8 threads"),
        (DENSE, {"block_m": 512, "thread_m": 8, "block_n": 256, "thread_n": 8}, "at most 1024"),
        (DENSE, {"block_m": 64, "thread_m": 16, "block_n": 128, "thread_n": 16}, "a thread has 255"),
        (DENSE, {"block_m": 128, "thread_m": 8, "block_n": 128, "thread_n": 8, "block_k": 128}, "shared memory"),
        (DENSE, {"split_k": 15}, "14 tiles of terms to share out"),
        (DENSE.replace("c=6", "c=64"), {"split_k": 65}, "at most 64"),
        (LONG.replace("k=64", "k=8192"), {"split_k": 4, "workspace_mib": 256}, "partial results"),
        ("conv2d n=8 c=4096 in=64 k=4096 groups=4096 filter=17 direction=wgrad", {}, "4 terms of all columns"),
        ("conv2d n=64 c=64 in=256 k=64 filter=9 pad=4", {"workspace_mib": 16}, "1024 would take longer"),
        ("conv2d c=4096 in=4096 k=4 filter=3", {"workspace_mib": 16}, "a row of one element"),
        ("conv2d n=*<=999 c=64 in=64 k=4 filter=3", {"workspace_mib": 16}, "a row of the whole batch"),
        ("conv2d n=8 c=4 in=512 k=64 filter=3", {"workspace_mib": 64, "split_k": 8}, "partial results"),
    ],
)
def test_illegal_configs_are_refused_by_rule(problem: str, changes: dict[str, int | str], rule: str) -> None:
    require_refusal(STRATEGY, problem, config(**changes), rule)


@pytest.mark.parametrize(
    ("problem", "reason"),
    [
        (DENSE + " pad_mode=reflect direction=dgrad", "several padded positions read one pixel"),
        (DENSE.replace("n=3", "n=*") + " direction=wgrad", "known at run time only"),
        (DENSE.replace("n=3", "n=*"), "the batch has no bound"),
        (DENSE.replace("n=3", "n=0"), "nothing to multiply"),
        (DENSE.replace("c=6", "c=0"), "nothing to multiply"),
        ("conv3d n=*<=999 c=1 in=8x900x900 k=1 filter=1", "kernels count up to 1073741824"),
        ("conv2d n=128 c=3 k=1024 in=224x224 filter=14x14 stride=14 direction=dgrad", "would have 5156108238848 bytes"),
    ],
)
def test_what_it_does_not_cover_is_refused_with_the_reason(problem: str, reason: str) -> None:
    assert reason in (STRATEGY.why_not(Conv.parse(problem), TARGET) or "")


def test_the_workspace_keeps_to_its_cap() -> None:
    problem = Conv.parse("conv2d n=64 c=128 in=56 k=128 filter=3 pad=1")
    plan = lower(problem, STRATEGY, None, TARGET)
    assert plan.config.as_dict()["workspace_mib"] == 256
    assert 128 << 20 < plan.workspace_bytes(64) <= 256 << 20
    gemms = [launch for launch in plan.launches if "_gemm_" in launch.kernel.name]
    assert len(gemms) == math.ceil(64 * 56 * 56 * 128 * 9 * 4 / (256 << 20))


def test_long_sums_are_cut_into_partial_results() -> None:
    problem = Conv.parse("conv2d n=64 c=128 in=56 k=128 filter=3 pad=1 direction=wgrad")
    plan = lower(problem, STRATEGY, None, TARGET)
    gemms = [launch for launch in plan.launches if "_gemm_" in launch.kernel.name]
    starts = [launch.args[-3:] for launch in gemms]
    assert len(gemms) == math.ceil(64 * 56 * 56 * 128 * 9 * 4 / (256 << 20))
    assert starts[0] == (ScalarArg(0), ScalarArg(0), ScalarArg(0))
    assert all(first[:2] == starts[0][:2] for first in starts)
    assert "_reduce_" in plan.launches[-1].kernel.name


def test_offsets_are_wide_where_the_matrix_alone_is() -> None:
    problem = Conv.parse("conv2d n=128 c=128 in=56 k=128 filter=7 pad=3")
    for mebibytes, ctype in ((256, "int"), (16384, "long long")):
        plan = lower(problem, STRATEGY, config(block_n=128, thread_n=8, workspace_mib=mebibytes), TARGET)
        assert plan.constants["offset_t"] == ctype


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_the_product_reads_coalesced_and_without_bank_conflicts(layout: str) -> None:
    problem = Conv.parse(f"conv2d c=16 in=16 k=64 filter=3 pad=1 layout={layout}")
    plan = lower(problem, STRATEGY, config(block_m=64, thread_m=8, block_n=64, thread_n=8, block_k=8), TARGET)
    memory = Memory()
    sizes = {spec.name: spec.nbytes for spec in (*plan.inputs, *plan.outputs)}
    sizes |= {buffer.name: int(str(buffer.nbytes)) for buffer in plan.workspace}
    blocks = {name: memory.allocate(name, size, writable=True, initialised=True) for name, size in sizes.items()}
    [launch] = [launch for launch in plan.launches if "_gemm_" in launch.kernel.name]
    library = build([Unit(render(plan), plan.kernels)], Mode.COUNT)
    arguments: list[Block | int] = [blocks["columns"], blocks["w"], blocks["y"]]
    grid = tuple(int(str(extent)) for extent in launch.grid)
    counters = library.launch(
        0, launch.kernel, (grid[0], grid[1], grid[2]), launch.block, launch.shared_bytes, arguments, memory
    ).counters
    assert counters.flops == 2 * 64 * 256 * 144
    assert counters.barriers == 4 * (1 + 144 // 8)
    assert {site.space for site in counters.sites} == {"global", "shared"}
    assert all(site.efficiency == 1 for site in counters.sites)
