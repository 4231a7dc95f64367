"""Packed implicit GEMM on Hopper: conformance, where words begin, panels, rings, what is no term, what it refuses."""

from __future__ import annotations

import dataclasses
import math
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

from convgen.binding import preparation
from convgen.compiler import compile_cuda
from convgen.errors import ProblemError
from convgen.gather import gather
from convgen.lowering import lower
from convgen.problem import Conv, Direction, DType, Layout, PadMode
from convgen.reference import make_inputs
from convgen.reference.rounding import encode
from convgen.render import render
from convgen.runtime.physical import stored_dtype
from convgen.runtime.sim import SimResult, build
from convgen.simulator import Copies, Mode
from convgen.strategies.wgmma_packed import STRATEGY
from convgen.strategies.wgmma_packed_tiling import PackedConfig, PackedTiling
from convgen.target import Target
from convgen.verify import Case, Settings, verify_cases

FEW = dataclasses.replace(TARGET, sm_count=7)
"""So that every block goes through several tiles."""
ONE = dataclasses.replace(TARGET, sm_count=1)

LAYOUTS = pytest.mark.parametrize("layout", Layout)
BASE = PackedConfig(width=16, tiles=1, block_n=32, consumers=1, sharing=1, vector=1, panel=1, x_stages=2, w_stages=2,
                    slabs=1)  # fmt: skip
STEM = "conv2d n=3 c=3 in=33x48 k=40 filter=3x3 stride=2 pad=1 dtype=fp16 layout=nhwc"


class TestWgmmaPacked(IntegerConformance):
    strategy = STRATEGY
    golden_problem = f"{GOLDEN_PROBLEM.replace('c=8 in=13x11', 'c=3 in=13x16 stride=2')} dtype=bf16 layout=nhwc"

    def suited(self, problems: Iterable[Conv]) -> Iterator[Conv]:
        """The draws as forward convolutions without groups, in the types that it has."""
        for problem in problems:
            dtype = problem.dtype if problem.dtype.is_integer or problem.dtype is DType.TF32 else DType.FP16
            try:
                changed = dataclasses.replace(
                    problem,
                    c=max(problem.c, 1),
                    groups=1,
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


def config(**changes: int) -> PackedConfig:
    return dataclasses.replace(BASE, **changes)


def tiling(problem: str, **changes: int) -> PackedTiling:
    """Of so many tiles of w as there are at most; all of them, unless said."""
    t = PackedTiling(gather(Conv.parse(problem)), config(**changes))
    return dataclasses.replace(t, c=dataclasses.replace(t.c, w_stages=min(changes.get("w_stages", 64), t.w_tiles)))


def require_right(problem: str, config: PackedConfig, target: Target = FEW) -> None:
    [result] = verify_cases([Case(Conv.parse(problem), STRATEGY, config)], Settings(target, check="sanitize"))
    assert result.status == "ok", result.reason


def run(
    problem: str, config: PackedConfig, target: Target = FEW, mode: Mode = Mode.COUNT, copies: Copies = Copies.LATE
) -> tuple[SimResult, Any]:
    """The run of the kernels on small integers, and their result."""
    conv = Conv.parse(problem)
    plan = lower(conv, STRATEGY, config, target)
    made = make_inputs(conv, 0, "small_integers")
    inputs = {name: encode(values, conv.tensor(name).dtype) for name, values in made.items()}
    y = np.zeros(conv.outputs[0].shape, stored_dtype(conv.outputs[0]))
    return build([plan], [render(plan)], mode)[0].run(inputs, {"y": y}, copies=copies), y


# --- where words begin ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "by_tma", "phase", "lead", "shifted"),
    [
        ("c=3 in=17x48 filter=7x7 stride=2 pad=3 dtype=fp16", True, 7, 1, False),
        ("c=3 in=17x48 filter=7x7 stride=2 pad=2:3 dtype=fp16", True, 2, 0, False),
        ("c=3 in=12x48 filter=3x3 pad=1 dtype=bf16", True, 5, 0, True),
        ("c=3 in=27x27 filter=11x11 stride=4 dtype=fp16", False, 0, 0, False),
        ("c=3 in=13x23 filter=5x5 stride=2 pad=2 dtype=fp16", False, 0, 0, False),
        ("c=1 in=9x40 filter=5x5 pad=2 dtype=fp16", True, 6, 0, True),
        ("c=5 in=7x9 filter=3x2 pad=0x1 dtype=fp16", False, 0, 0, True),
        ("c=3 in=11x48 filter=3x3 pad=1 dtype=int8", True, 13, 0, True),
        ("c=3 in=11x48 filter=3x3 stride=4 pad=1 dtype=int8", True, 13, 1, False),
        ("c=3 in=11x21 filter=3x3 stride=2 pad=1 dtype=uint8", False, 0, 0, True),
        ("c=3 in=17x48 filter=7x7 stride=2 pad=3 dtype=tf32", True, 3, 0, False),
        ("c=1 in=13x23 filter=5x5 pad=2 dtype=tf32", False, 0, 0, False),
        ("c=24 in=9x13 filter=3x3 pad=1 dtype=fp16", True, 0, 0, False),
        ("c=3 in=12x24 filter=4x4 stride=4 dtype=bf16", True, 0, 0, False),
    ],
)
def test_runs_begin_anywhere(shape: str, by_tma: bool, phase: int, lead: int, shifted: bool) -> None:
    """Rows that TMA cannot copy, pixels that begin within a word, words of which the first bits are before a run."""
    problem = f"conv2d n=2 k=24 {shape} layout=nhwc"
    t = tiling(problem)
    assert (t.by_tma, t.phase, t.lead, t.shifted) == (by_tma, phase, lead, shifted)
    require_right(problem, t.c)
    require_right(problem, tiling(problem, panel=t.most_panel, w_stages=2, tiles=2).c)


@pytest.mark.parametrize("vector", [1, 2, 4])
@pytest.mark.parametrize(
    ("shape", "most"),
    [
        ("c=4 in=9x16 filter=3x3 pad=1 dtype=fp16", 2),
        ("c=4 in=9x16 filter=3x3 stride=2 dtype=fp16", 4),
        ("c=8 in=9x11 filter=3x5 pad=1x2 dtype=bf16", 4),
        ("c=12 in=9x11 filter=2x3 pad=1x1 dtype=fp16", 2),
        ("c=16 in=9x5 filter=3x3 pad=1 dtype=int8", 4),
        ("c=2 in=9x16 filter=3x4 stride=2 dtype=tf32", 4),
        ("c=6 in=9x12 filter=3x3 pad=1 dtype=tf32", 2),
        ("c=40 in=9x19 filter=3x3 pad=1 dtype=fp16", 4),
        ("c=3 in=16x32 filter=8x8 stride=8 dtype=fp16", 4),
    ],
)
def test_words_are_loaded_so_many_at_a_time(shape: str, most: int, vector: int) -> None:
    problem = f"conv2d n=2 k=24 {shape} layout=nhwc"
    assert tiling(problem).most_vector == most
    for panel in (1, tiling(problem).most_panel):
        changed = tiling(problem, vector=vector, panel=panel, width=8, w_stages=2).c
        if vector <= most:
            require_right(problem, changed)
        else:
            require_refusal(STRATEGY, problem, changed, f"vector={vector}: expected 1, 2 or 4, and at most {most}")


@LAYOUTS
@pytest.mark.parametrize("dilation", ["2", "1x2", "3x4"])
@pytest.mark.parametrize("c", [4, 6])
def test_taps_that_are_no_neighbours(c: int, dilation: str, layout: Layout) -> None:
    """Of channels-first rows the next tap is that many elements on."""
    problem = f"conv2d n=2 c={c} in=15x17 k=24 filter=3x3 pad=2 dilation={dilation} dtype=fp16 layout={layout.text(2)}"
    require_right(problem, tiling(problem, w_stages=2).c)


@pytest.mark.parametrize("c", [40, 136])
def test_long_rows_are_copied_as_pixels(c: int) -> None:
    """A box has at most 256 along each axis: elements of a row, or pixels and their channels."""
    problem = f"conv2d n=2 c={c} in=9x19 k=24 filter=3x1 pad=1x0 dtype=fp16 layout=nhwc"
    assert not tiling(problem, width=4).whole_pixels or c == 136
    assert tiling(problem, width=8).whole_pixels
    for width in (8, 16):
        require_right(problem, tiling(problem, width=width).c)


# --- panels -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("panel", [1, 3])
@pytest.mark.parametrize("w_stages", [64, 3])
@LAYOUTS
def test_three_axes_in_panels(panel: int, w_stages: int, layout: Layout) -> None:
    """Of taps along the depth; of channels-first tensors of channels."""
    problem = f"conv3d n=2 c=3 in=5x6x16 k=24 filter=3x3x3 stride=1x2x2 pad=1 dtype=bf16 layout={layout.text(3)}"
    t = tiling(problem, panel=panel, width=8, w_stages=w_stages)
    assert t.panels == 3 // panel
    require_right(problem, t.c)


@pytest.mark.parametrize("panel", [1, 2, 3, 6])
@pytest.mark.parametrize("last", [16, 13])
def test_channels_in_panels(panel: int, last: int) -> None:
    """Rows that TMA copies, and rows that it cannot."""
    problem = f"conv2d n=2 c=6 in=11x{last} k=20 filter=3x5 pad=1x2 dtype=fp16 layout=nchw"
    t = tiling(problem, panel=panel)
    assert t.panels == 6 // panel
    require_right(problem, t.c)
    require_right(problem, tiling(problem, panel=panel, w_stages=2, tiles=2).c)


@pytest.mark.parametrize("length", [150, 152])
@LAYOUTS
def test_one_axis(length: int, layout: Layout) -> None:
    for shape in ("c=1 stride=3", "c=2 stride=1", "c=24 stride=2"):
        problem = f"conv1d n=2 {shape} in={length} k=24 filter=9 pad=4:2 dtype=fp16 layout={layout.text(1)}"
        for panel in {1, tiling(problem).most_panel}:
            require_right(problem, tiling(problem, width=64, panel=panel, w_stages=4).c)


# --- rings and results ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {"consumers": 1, "x_stages": 1},
        {"consumers": 2, "sharing": 2, "x_stages": 1},
        {"consumers": 4, "sharing": 2, "x_stages": 2, "block_n": 16},
        {"consumers": 4, "sharing": 1, "x_stages": 3, "block_n": 16},
        {"consumers": 3, "sharing": 1, "x_stages": 1},
        {"consumers": 3, "sharing": 3, "block_n": 40},
        {"tiles": 3, "slabs": 2, "consumers": 1},  # slabs that do not come around with the tiles
        {"tiles": 2, "slabs": 2, "consumers": 2},
        {"tiles": 4, "block_n": 24},
    ],
    ids=str,
)
@pytest.mark.parametrize("w_stages", [2, 3])
def test_blocks_go_round_their_rings(changes: dict[str, int], w_stages: int) -> None:
    """Tiles of w that stay or come, whether copies come at once or as late as can be: the same bits."""
    for shape, panel in (("c=3 in=17x24 filter=7x7 stride=2 pad=3", 1), ("c=12 in=9x11 filter=3x3 pad=1", 3)):
        problem = f"conv2d n=5 {shape} k=40 dtype=fp16 layout=nhwc"
        changed = tiling(problem, width=8, panel=panel, w_stages=w_stages, **changes).c
        require_right(problem, changed)
        results = []
        for copies in Copies:
            report, result = run(problem, changed, FEW, Mode.CHECK, copies)
            report.require_clean()
            results.append(result)
        np.testing.assert_array_equal(*results)


@pytest.mark.parametrize("epilogue", ["bias+relu", "scale+shift+bias+residual+gelu", "residual"])
@pytest.mark.parametrize("k", [40, 21])
@LAYOUTS
def test_epilogues(epilogue: str, k: int, layout: Layout) -> None:
    """Through shared memory, and straight from registers in pairs or one by one."""
    problem = f"{STEM.replace('nhwc', layout.text(2)).replace('k=40', f'k={k}')} epilogue={epilogue}"
    added = f"{problem} accumulate=yes"
    tf32 = f"{problem.replace('fp16', 'tf32')} out_dtype=bf16"
    for text in (problem, f"{added} out_dtype=fp32", added.replace(" n=3", " n=*"), tf32):
        require_right(text, tiling(text, panel=3, w_stages=2).c)


@pytest.mark.parametrize("last", [16, 24, 28, 26])
@pytest.mark.parametrize("n", ["3", "*<=4~2"])
def test_channels_first_results(last: int, n: str) -> None:
    """Rows of whole runs and others, lines that TMA writes; a batch known at run time too."""
    problem = f"conv2d n={n} c=2 in=9x{last} k=20 filter=3x3 pad=1 dtype=fp16 layout=nchw"
    for width in (64, 8):
        t = tiling(problem, width=width, panel=2)
        assert t.results.run == math.gcd(last, 8)
        assert t.results.mapped == (width == 64 and last % 8 == 0)
        require_right(problem, t.c)


def test_integers_are_added_to_those_that_fp32_does_not_hold() -> None:
    problem = Conv.parse("conv1d n=1 c=3 in=66 k=8 filter=3 dtype=int8 layout=nlc accumulate=yes")
    plan = lower(problem, STRATEGY, config(width=64, block_n=8, w_stages=1), TARGET)
    inputs = {"x": np.full((1, 3, 66), -128, np.int8), "w": np.full((8, 3, 3), 127, np.int8)}
    y = np.full((1, 8, 64), (1 << 24) + 1, np.int32)
    build([plan], [render(plan)])[0].run(inputs, {"y": y})
    assert set(y.ravel().tolist()) == {(1 << 24) + 1 - 9 * 128 * 127}


def test_operands_of_tf32_are_cut_not_rounded() -> None:
    """Just below the next TF32 number an operand loses 2^-10 of itself, which the stated bound admits and one of
    rounding, 2^-11, would not."""
    problem = Conv.parse("conv1d n=1 c=3 in=66 k=8 filter=3 dtype=tf32 layout=nlc")
    one = np.nextafter(np.float32(1 + 2**-10), np.float32(1))
    inputs = {"x": np.full((1, 3, 66), one, np.float32), "w": np.full((8, 3, 3), one, np.float32)}
    plan = lower(problem, STRATEGY, config(width=64, block_n=8, w_stages=1), TARGET)
    y = np.zeros((1, 8, 64), np.float32)
    build([plan], [render(plan)])[0].run(inputs, {"y": y})
    assert set(y.ravel().tolist()) == {9.0}
    exact = 9 * float(one) ** 2
    assert 2 * 2**-11 < (exact - 9) / exact < 2 * plan.numerics.eps_in


def test_random_problems_of_several_turns(request: pytest.FixtureRequest) -> None:
    rng = random.Random(9)
    suited = TestWgmmaPacked().suited(random_convs(9, request.config.getoption("--draws"), 20_000))
    drawn = [(problem, legal_config(STRATEGY, problem, rng, target=FEW)) for problem in suited]
    cases = [Case(problem, STRATEGY, config) for problem, config in drawn if config is not None]
    assert cases
    require_all_right(cases, Settings(FEW, check="sanitize"))


# --- what is no term --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "changes"),
    [
        ("c=3 in=9x16 filter=3x3 pad=1 layout=nhwc", {}),  # shifted
        ("c=3 in=9x16 filter=3x3 stride=2 pad=1 layout=nhwc", {}),  # elements before a run, and behind
        ("c=3 in=9x16 filter=3x3 stride=2 pad=1 layout=nhwc", {"panel": 3}),
        ("c=3 in=9x15 filter=3x3 stride=2 pad=1 layout=nhwc", {}),  # copied by threads
        ("c=4 in=9x16 filter=3x3 stride=2 layout=nhwc", {"vector": 4}),  # words of a load behind a run
        ("c=3 in=9x16 filter=3x3 stride=2 pad=1 layout=nchw", {"panel": 3}),
        ("c=2 in=9x15 filter=3x3 stride=1x2 layout=nchw", {}),
        ("c=3 in=9x16 filter=3x3 pad=1 dilation=2 layout=nhwc", {}),  # the next pixel, which no tap meets
    ],
)
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_no_term_never_enters_a_sum(shape: str, changes: dict[str, int], value: float) -> None:
    """All of x but one result's window is no number: next to its pixels in memory, and in the same word."""
    problem = Conv.parse(f"conv2d n=1 k=8 dtype=fp16 {shape}")
    t = tiling(str(problem), width=8, block_n=8, **changes)
    plan = lower(problem, STRATEGY, t.c, TARGET)
    kernels = build([plan], [render(plan)])[0]
    made = make_inputs(problem, 1, "small_integers")
    x, w = made["x"], made["w"]
    for at in ((0, 0), (0, problem.out[1] - 1), (3, 2), (problem.out[0] - 1, problem.out[1] // 2)):
        only, expected = np.full_like(x, value), np.zeros(problem.k)
        for tap in np.ndindex(problem.filter):
            h, width = (at[i] * problem.stride[i] - problem.pad_lo[i] + tap[i] * problem.dilation[i] for i in range(2))
            if 0 <= h < problem.spatial[0] and 0 <= width < problem.spatial[1]:
                only[0, :, h, width] = x[0, :, h, width]
                expected += w[:, :, *tap] @ x[0, :, h, width]
        y = np.zeros(problem.outputs[0].shape, np.float16)
        kernels.run({"x": only.astype(np.float16), "w": w.astype(np.float16)}, {"y": y}).require_clean()
        np.testing.assert_array_equal(y[0, :, *at], expected)


# --- what is read -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("last", [16, 15])
def test_x_comes_once_for_all_taps(last: int) -> None:
    """Closed form: of 4 x 16 results 6 rows less those outside x, whether TMA or threads copy them; w once."""
    problem = f"conv2d n=1 c=4 in=16x{last} k=8 filter=3x3 pad=1 dtype=fp16 layout=nhwc"
    t = tiling(problem, block_n=8, panel=3)
    assert t.by_tma == (last == 16)
    report, _ = run(problem, t.c, ONE)
    rows = 5 + 6 + 6 + 5
    assert report.report.counters.read_bytes["global"] == 2 * 4 * (rows * last + 9 * 8)
    assert report.report.counters.written_bytes["global"] == 2 * 16 * last * 8


@pytest.mark.parametrize(
    ("shape", "changes", "wavefronts"),
    [
        ("c=3 in=64x64 filter=8x8 stride=8", {"width": 8, "panel": 8}, 1),  # rows of four words, 12 words apart
        ("c=4 in=32x32 filter=4x4 stride=4", {"width": 8, "panel": 4}, 2),  # 8 words apart: the fifth as the first
        ("c=4 in=32x32 filter=4x4 stride=4", {"width": 8, "panel": 4, "vector": 2}, 1),
    ],
)
def test_words_of_a_warp_meet_in_the_banks_that_are_counted(
    shape: str, changes: dict[str, int], wavefronts: float
) -> None:
    problem = f"conv2d n=1 k=8 dtype=fp16 layout=nhwc {shape}"
    t = tiling(problem, block_n=8, **changes)
    assert t.wavefronts == wavefronts
    report, _ = run(problem, t.c, ONE)
    loads = [
        site for site in report.report.counters.sites
        if site.space == "shared" and not site.is_write and any("pixel_words" in line.text for line in site.place)
    ]  # fmt: skip
    assert loads
    assert {site.efficiency for site in loads} == {1 / wavefronts}


@pytest.mark.parametrize(
    ("problem", "changes"),
    [
        ("c=3 filter=7x7 stride=2 pad=3 dtype=tf32", {"panel": 7, "tiles": 3}),
        ("c=3 filter=7x7 stride=2 pad=3 dtype=fp16", {"panel": 7, "tiles": 2, "consumers": 2}),
        ("c=3 filter=5x5 pad=2 dtype=fp16", {"panel": 5, "tiles": 2}),
        ("c=16 filter=3x3 pad=1 dtype=fp16", {"panel": 3, "vector": 4, "width": 8}),
    ],
)
def test_words_stay_in_registers(problem: str, changes: dict[str, int]) -> None:
    """A loop over a line's words that is left as one would keep them in local memory, and wgmma wait for each other."""
    plan = lower(Conv.parse(f"conv2d n=2 k=32 in=64x64 layout=nhwc {problem}"), STRATEGY, config(**changes), TARGET)
    binary = compile_cuda(render(plan), TARGET)
    assert {(kernel.stack, kernel.spill_stores) for kernel in binary.kernels} == {(0, 0)}
    assert "C75" not in binary.log  # ptxas: wgmma are serialised


def test_packed_weights_are_prepared() -> None:
    """What depends on w alone is a step that need not be repeated; of tiles that stay there is none."""
    problem = Conv.parse(STEM)
    plan = lower(problem, STRATEGY, config(), TARGET)
    assert [buffer.name for buffer in plan.workspace] == ["packed"]
    found = preparation(plan)
    assert (found.steps, found.buffers, found.weights_used_later) == (frozenset({0}), ("packed",), False)
    assert len(lower(problem, STRATEGY, tiling(STEM).c, TARGET).launches) == 1


# --- what it refuses --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("conv2d n=1 c=3 in=8 k=64 filter=3 dtype=fp32 layout=nhwc", "dtype=fp32 has no kernel on wgmma yet"),
        ("conv2d n=1 c=3 in=8 k=64 filter=3 dtype=fp16 layout=nhwc direction=dgrad", "dgrad has no kernel"),
        ("conv2d n=1 c=3 in=8 k=64 filter=3 pad=1 pad_mode=reflect dtype=fp16 layout=nhwc", "TMA fills"),
        ("conv2d n=1 c=6 in=8 k=64 filter=3 groups=2 dtype=fp16 layout=nhwc", "2 groups: the channels of one"),
        ("conv2d n=1 c=256 in=8 k=64 filter=3 dtype=fp16 layout=nhwc", "768 neighbours, more than the 512"),
        ("conv2d n=1 c=3 in=9 k=64 filter=3 dilation=3 dtype=fp16 layout=nhwc", "the next tap is 9 elements on"),
        ("conv2d n=1 c=3 in=8 k=64 filter=1 dtype=fp16 layout=nhwc", "accuracy=strict: tensor cores may err by"),
        ("conv2d n=0 c=3 in=8 k=64 filter=3 dtype=fp16 layout=nhwc", "there is nothing to multiply"),
    ],
)
def test_reasons(text: str, reason: str) -> None:
    require_reason(STRATEGY, text, reason)


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"width": 24}, "width=24: expected one of 64, 32, 16, 8, 4"),
        ({"block_n": 12}, "block_n=12: expected a multiple of 8"),
        ({"consumers": 5}, "consumers=5: expected 1 to 4"),
        ({"consumers": 3, "sharing": 2}, "sharing=2: expected a divisor of consumers=3"),
        ({"vector": 2}, "vector=2: expected 1, 2 or 4, and at most 1"),
        ({"panel": 2}, "panel=2: expected a divisor of the 3 that there are"),
        ({"w_stages": 4}, "there are 3 tiles of w"),
        ({"w_stages": 1}, "w_stages=1: expected at least 2"),
        ({"x_stages": 0}, "x_stages=0: expected at least 1"),
        ({"x_stages": 31}, "mbarriers"),
        ({"slabs": 2}, "slabs=2: expected at most 1"),
        ({"tiles": 4, "block_n": 128}, "256 sums of a thread"),
        ({"consumers": 3, "block_n": 208}, "one wgmma names 104 sums"),
        ({"width": 64}, "width=64 panel=1: "),  # a row of 64 results of stride 2: 384 elements
    ],
    ids=str,
)
def test_rules(changes: dict[str, int], rule: str) -> None:
    require_refusal(STRATEGY, STEM, config(**changes), rule)


@pytest.mark.parametrize(
    ("problem", "changes", "rule"),
    [
        ("c=64 in=9x9 filter=3x3 dtype=fp16 layout=nhwc", {"panel": 3}, "panel=3: 36 steps, expected at most 32"),
        ("c=5 in=9x16 filter=3x3 dtype=fp16 layout=nhwc", {"width": 4}, "begin 40 bytes on, TMA copies from multiples"),
        ("c=3 in=9x64 filter=3x8 stride=1x9 dtype=fp16 layout=nhwc accuracy=fast", {"width": 64}, "width=64 panel=1"),
    ],
)
def test_rules_of_other_problems(problem: str, changes: dict[str, int], rule: str) -> None:
    require_refusal(STRATEGY, f"conv2d n=1 k=24 {problem}", config(**changes), rule)


@pytest.mark.parametrize(
    ("problem", "choices"),
    [
        # 64 results of stride 2 are 384 elements of a row; a panel is a row's taps or all, of 2 or 10 steps
        ("c=3 k=64 in=224x224 filter=7x7 stride=2 pad=3",
         {"width": (32, 16, 8, 4), "vector": (1,), "panel": (1, 7), "w_stages": (2, 3, 4, 6, 7), "slabs": (1, 2)}),
        # runs of 6 words, of 8 where four are loaded at a time, as one panel of 3 or 4 steps
        ("c=4 k=12 in=32x32 filter=3x3 stride=2",
         {"width": (16, 8, 4), "vector": (1, 2, 4), "panel": (1, 3), "w_stages": (1, 2, 3), "slabs": (1,)}),
        # of 64 rows of the filter 4 are 32 steps
        ("c=16 k=16 in=64x64 filter=16x8",
         {"vector": (1, 2, 4), "panel": (1, 2, 4), "w_stages": (2, 3, 4, 6, 32)}),
    ],
)  # fmt: skip
def test_the_space_has_what_may_be_legal(problem: str, choices: dict[str, tuple[int, ...]]) -> None:
    found = STRATEGY.space(Conv.parse(f"conv2d n=2 dtype=fp16 layout=nhwc {problem}"), TARGET).choices
    assert {name: found[name] for name in choices} == choices


def test_only_hopper_has_it() -> None:
    problem = Conv.parse(STEM)
    for name in ("a100", "b200", "rtx4090"):
        reason = STRATEGY.why_not(problem, Target.preset(name))
        assert reason is not None
        assert "sm_90a" in reason
