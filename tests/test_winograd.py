"""The Winograd strategy: the conformance suite, both shapes of plan, every dimension of the space, what it refuses."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from conformance import (
    GOLDEN_PROBLEM,
    TARGET,
    StrategyConformance,
    require_reason,
    require_refusal,
    require_right,
)

from convgen.accuracy import rows
from convgen.binding import preparation
from convgen.errors import ConfigError, ProblemError
from convgen.lowering import lower
from convgen.plan import Numerics, Plan, ScalarArg
from convgen.problem import Accuracy, Conv
from convgen.reference import (
    Comparison,
    InputKind,
    bound,
    compare,
    exact_numerics,
    make_inputs,
    model_of,
    reference,
)
from convgen.render import render
from convgen.runtime.sim import build
from convgen.simulator import Block, Memory, Mode, Unit
from convgen.simulator import build as compile_library
from convgen.strategies.winograd import STRATEGY
from convgen.strategies.winograd_tiling import WinogradConfig
from convgen.target import Target


class TestWinograd(StrategyConformance):
    strategy = STRATEGY
    golden_problem = GOLDEN_PROBLEM.replace("c=8", "c=40")

    def suited(self, problems: Iterable[Conv]) -> Iterator[Conv]:
        """The draws with filters of 3 (or 1) taps, unit steps and accuracy=fast, without which few of them apply."""
        for problem in problems:
            taps = [1 if f == 1 and axis > 0 else 3 for axis, f in enumerate(problem.filter)]
            if problem.nd == 3:
                taps[1] = 1
            ones = (1,) * problem.nd
            try:
                changed = dataclasses.replace(
                    problem,
                    filter=tuple(taps),
                    stride=ones,
                    dilation=ones,
                    output_padding=(0,) * problem.nd,
                    accuracy=Accuracy.FAST,
                )
            except ProblemError:
                continue
            if self.applies(changed):
                yield changed


SEPARATE = WinogradConfig("separate", "0:1:-1", "fp32", 16, 32, 4, 2, 4, 1, 16)
FUSED = WinogradConfig("fused", "0:1:-1", "fp32", 16, 32, 4, 4, 4, 1, 16)
HALVES = "0:1:-1:1/2:-2"

DENSE = "conv2d n=3 c=6 in=9x10 k=7 filter=3x3 pad=1 accuracy=fast"
PACKED = "conv2d n=2 c=8 in=8x12 k=12 filter=3x3 pad=1 accuracy=fast"
LINE = "conv1d n=2 c=6 in=37 k=9 filter=3 pad=1 accuracy=fast"
MANY = "conv2d n=2 c=64 in=12x12 k=8 filter=3x3 pad=1"


def separate(**changes: int | str) -> WinogradConfig:
    return WinogradConfig.from_mapping(changes, SEPARATE)


def fused(**changes: int | str) -> WinogradConfig:
    return WinogradConfig.from_mapping(changes, FUSED)


# --- results -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("problem", "config"),
    [
        (DENSE, separate()),
        (DENSE, fused()),
        (DENSE, separate(points="0:1:-1:2", block_n=64)),
        (DENSE, separate(points="0:1:-1:1/2", block_k=8)),
        (DENSE, separate(points=HALVES, thread_m=1, thread_n=2, block_m=32)),
        (DENSE, separate(points="0:1:-1:2:-2:1/2")),
        (DENSE, fused(points="0:1:-1:1/2", share=5)),
        (DENSE, fused(points=HALVES, share=4, block_k=4)),
        (DENSE, fused(block_m=32, block_n=32, thread_m=4, thread_n=8, share=2, block_k=8)),
        (DENSE, fused(block_m=32, block_n=64, thread_m=8, thread_n=8, block_k=8)),
        (DENSE, separate(product="3xtf32", block_k=8, block_m=32, thread_m=4, thread_n=8)),
        (DENSE, separate(product="tf32", block_k=16, block_m=16, thread_m=2, thread_n=2)),
        (DENSE, fused(product="3xtf32", block_k=8, block_m=32, thread_m=4, thread_n=8, share=2)),
        (DENSE, fused(product="3xtf32", block_k=16, block_m=16, thread_m=2, thread_n=8, share=2)),
        (DENSE + " layout=nhwc epilogue=scale+shift+bias+residual+gelu", separate(thread_m=4, thread_n=2)),
        (DENSE + " layout=nhwc epilogue=bias+residual+relu", fused(block_k=8)),
        (DENSE + " layout=nhwc", separate(product="3xtf32", block_k=8, thread_m=2, thread_n=4)),
        (DENSE + " layout=nhwc", fused(product="3xtf32", block_k=8, block_m=32, thread_m=4, thread_n=8)),
        (DENSE + " direction=dgrad accumulate=yes", separate(points=HALVES)),
        (DENSE + " direction=dgrad layout=nhwc", fused()),
        (DENSE.replace("pad=1", "pad=0:2x2:1 direction=dgrad"), separate()),
        (DENSE + " pad_mode=reflect", separate(points=HALVES)),
        (DENSE.replace("pad=1", "pad=3:1x2 pad_mode=circular"), fused()),
        (DENSE.replace("pad=1", "pad=4x0 pad_mode=replicate"), separate()),
        (PACKED + " dtype=fp16 epilogue=bias+residual+relu", separate(thread_n=4)),
        (PACKED + " dtype=bf16 layout=nhwc groups=2", fused()),
        (PACKED + " dtype=fp16 out_dtype=fp32 groups=4", separate(points=HALVES)),
        (PACKED + " epilogue=residual", separate(points=HALVES)),
        (
            PACKED + " groups=2 direction=dgrad",
            separate(product="3xtf32", block_k=8, block_m=32, thread_m=4, thread_n=8),
        ),
        (LINE, separate()),
        (LINE, fused(block_m=16, block_n=64, thread_m=4, thread_n=4, share=2)),
        (LINE, separate(points=HALVES)),
        (LINE + " direction=dgrad layout=nlc", fused()),
        (LINE, fused(product="3xtf32", block_k=8, block_m=32, thread_m=4, thread_n=4)),
        ("conv2d n=2 c=5 in=11x9 k=6 filter=3x1 pad=1x0 accuracy=fast", separate(points=HALVES)),
        ("conv2d n=2 c=5 in=11x9 k=6 filter=1x3 stride=2x1 pad=0x1 accuracy=fast", fused()),
        ("conv3d n=1 c=4 in=3x6x7 k=6 filter=1x3x3 pad=0x1x1 accuracy=fast", separate()),
        ("conv3d n=1 c=4 in=5x3x7 k=6 filter=3x1x3 pad=1x0x1 accuracy=fast", fused()),
        ("conv_transpose2d n=2 c=6 in=7x8 k=5 filter=3 pad=1 epilogue=bias accuracy=fast", separate(points=HALVES)),
        ("conv_transpose2d n=2 c=6 in=7x8 k=4 filter=3 groups=2 direction=dgrad accuracy=fast", fused()),
        (DENSE.replace("n=3", "n=*<=5~3"), separate(points=HALVES)),
        (DENSE.replace("n=3", "n=*~2"), fused()),
        (MANY, separate()),
        (MANY, fused(block_k=8)),
        (MANY + " dtype=bf16", separate(product="3xtf32", block_k=8, thread_m=2, thread_n=4)),
        (MANY + " dtype=tf32", separate(points=HALVES, product="3xtf32", block_k=8, thread_m=2, thread_n=4)),
    ],
)
def test_each_tunable_gives_the_right_answer(problem: str, config: WinogradConfig) -> None:
    require_right(STRATEGY, problem, config)


def test_chunks_of_tiles_share_a_workspace() -> None:
    problem = "conv2d n=9 c=40 in=48x48 k=8 filter=3x3 pad=1"
    config = separate(block_n=128, thread_n=8, block_m=16, thread_m=4, block_k=8, workspace_mib=16)
    plan = lower(Conv.parse(problem), STRATEGY, config, TARGET)
    inputs = [launch for launch in plan.launches if "_input_" in launch.kernel.name]
    # 16 components of 40 + 16 channels a tile; 9 * 24 * 24 tiles in blocks of 128.
    in_chunk = (16 << 20) // (16 * 56 * 4 * 128)
    assert len(inputs) == -(-41 // in_chunk) == 2
    assert [launch.args[-1] for launch in inputs] == [ScalarArg(0), ScalarArg(21)]
    assert plan.workspace_bytes(9) < (16 << 20) + 16 * 40 * 16 * 4 + 1024
    require_right(STRATEGY, problem, config)


def test_chunks_of_a_grouped_dgrad_are_right() -> None:
    problem = "conv2d n=5 c=16 in=48x48 k=160 filter=3x3 pad=1 groups=4 direction=dgrad accuracy=fast"
    config = separate(block_n=128, thread_n=8, block_m=16, thread_m=4, block_k=8, workspace_mib=16)
    plan = lower(Conv.parse(problem), STRATEGY, config, TARGET)
    assert len([launch for launch in plan.launches if "_input_" in launch.kernel.name]) > 1
    require_right(STRATEGY, problem, config)


def test_the_filter_is_transformed_once_for_constant_weights() -> None:
    for config in (separate(), fused()):
        plan = lower(Conv.parse(DENSE), STRATEGY, config, TARGET)
        found = preparation(plan)
        assert found.steps == {0}
        assert found.buffers == ("filters",)
        assert not found.weights_used_later


# --- numbers -----------------------------------------------------------------------------------------


def answer(plan: Plan, text: str, inputs: Mapping[str, Any]) -> Any:
    [output] = plan.outputs
    got = np.zeros(output.shape, np.float32)
    stored = {name: np.asarray(value, np.float32) for name, value in inputs.items()}
    build([plan], [text])[0].run(stored, {output.name: got}).require_clean()
    return got


def judged(plan: Plan, text: str, kind: InputKind = "normal") -> Comparison:
    inputs = make_inputs(plan.problem, 3, kind)
    held_to = exact_numerics(plan.problem, plan.numerics) if kind == "small_integers" else plan.numerics
    expected = reference(plan.problem, inputs)
    limit = bound(plan.problem, inputs, expected, model_of(plan.problem, held_to))
    return compare(plan.outputs[0], answer(plan, text, inputs), expected, limit)


def test_small_integers_are_exact_where_the_entries_are_dyadic() -> None:
    plan = lower(Conv.parse(DENSE), STRATEGY, separate(), TARGET)
    assert plan.numerics.exact_on_integers
    assert judged(plan, render(plan), "small_integers").max_error == 0
    assert not lower(Conv.parse(DENSE), STRATEGY, separate(points=HALVES), TARGET).numerics.exact_on_integers


@pytest.mark.parametrize(
    ("points", "right", "wrong", "kind"),
    [
        ("0:1:-1", "x[1] + x[2]", "1.001f * x[1] + x[2]", "small_integers"),
        (HALVES, "fma_acc(-4.0f, x[2]", "fma_acc(-4.01f, x[2]", "normal"),
    ],
)
def test_a_wrong_coefficient_is_outside_the_bound(points: str, right: str, wrong: str, kind: InputKind) -> None:
    plan = lower(Conv.parse(DENSE), STRATEGY, separate(points=points), TARGET)
    text = render(plan)
    assert judged(plan, text, kind).ok
    assert right in text
    assert not judged(plan, text.replace(right, wrong, 1), kind).ok


def test_tf32_factors_are_outside_the_bound_of_fp32() -> None:
    changes = {"block_k": 8, "block_m": 16, "thread_m": 2, "thread_n": 4}
    claimed = lower(Conv.parse(DENSE), STRATEGY, separate(**changes), TARGET).numerics
    plan = lower(Conv.parse(DENSE), STRATEGY, separate(product="tf32", **changes), TARGET)
    assert judged(plan, render(plan)).ok
    assert not judged(dataclasses.replace(plan, numerics=claimed), render(plan)).ok


@pytest.mark.parametrize("points", ["0:1:-1", HALVES])
@pytest.mark.parametrize("pad_mode", ["zeros", "circular"])
def test_a_result_of_padding_alone_may_have_its_neighbours_errors(points: str, pad_mode: str) -> None:
    """The only tap that is not zero reads padding, so a zero is right; intermediate values come of pixels nearby."""
    problem = Conv.parse(f"conv2d n=1 c=4 in=6x6 k=2 filter=3x3 pad=2 pad_mode={pad_mode} accuracy=fast")
    plan = lower(problem, STRATEGY, separate(points=points), TARGET)
    inputs = make_inputs(problem, 5)
    inputs["w"][:, :, 1:, :] = inputs["w"][:, :, :, 1:] = 0
    expected = reference(problem, inputs)
    limit = bound(problem, inputs, expected, model_of(problem, plan.numerics))
    assert compare(problem.outputs[0], answer(plan, render(plan), inputs), expected, limit).ok
    assert (limit > 0).all()


def test_bounds_of_samples_are_those_of_the_whole() -> None:
    for text in (
        DENSE,
        DENSE.replace("pad=1", "pad=2:1 direction=dgrad"),
        DENSE + " pad_mode=reflect",
        LINE.replace("conv1d", "conv_transpose1d"),
    ):
        problem = Conv.parse(text)
        model = model_of(problem, lower(problem, STRATEGY, separate(), TARGET).numerics)
        inputs = make_inputs(problem, 1)
        expected = reference(problem, inputs)
        whole = bound(problem, inputs, expected, model)
        some = np.arange(0, expected.size, 7)
        sampled = bound(problem, inputs, expected.ravel()[some], model, indices=some)
        np.testing.assert_allclose(sampled, whole.ravel()[some], rtol=1e-12)
        assert (whole >= bound(problem, inputs, expected, model_of(problem, Numerics()))).all()


# --- what strict and fast admit ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("problem", "config", "is_admitted"),
    [
        # F(2x2, 3x3): 64/9 (c + 10) against 9 c, so from 38 channels on.
        ("conv2d c=37 in=8 k=4 filter=3", separate(), False),
        ("conv2d c=38 in=8 k=4 filter=3", separate(), True),
        # F(2, 3): 8/3 (c + 5) against 3 c.
        ("conv1d c=39 in=8 k=4 filter=3", separate(), False),
        ("conv1d c=40 in=8 k=4 filter=3", separate(), True),
        ("conv2d c=2048 in=8 k=4 filter=3", separate(points=HALVES), False),
        ("conv2d c=2048 in=8 k=4 filter=3", separate(points="0:1:-1:2"), False),
        ("conv2d c=2048 in=8 k=4 filter=3 accuracy=fast", separate(points=HALVES), True),
        ("conv2d c=256 in=8 k=4 filter=3 groups=4 dtype=fp16", separate(), True),
        ("conv2d c=128 in=8 k=4 filter=3 groups=4 dtype=fp16", separate(), False),
        ("conv2d c=256 in=8 k=4 filter=3", separate(product="3xtf32", block_k=8, thread_m=2, thread_n=4), True),
        ("conv2d c=256 in=8 k=4 filter=3", separate(product="tf32", block_k=8, thread_m=2, thread_n=4), False),
        # A TF32 problem's direct kernel rounds operands, which a transform of exact ones need not.
        (
            "conv2d c=256 in=8 k=4 filter=3 dtype=tf32",
            separate(product="tf32", block_k=8, thread_m=2, thread_n=4),
            False,
        ),
        ("conv2d c=8 in=8 k=4 filter=3 dtype=tf32", separate(points=HALVES), True),
    ],
)
def test_strict_admits_what_errs_no_more_than_a_direct_kernel(
    problem: str, config: WinogradConfig, is_admitted: bool
) -> None:
    if is_admitted:
        STRATEGY.check(Conv.parse(problem), config, TARGET)
    else:
        require_refusal(STRATEGY, problem, config, "accuracy=fast admits it")


def test_a_refusal_tells_the_figures() -> None:
    with pytest.raises(
        ConfigError, match=r"F\(4x4, 3x3\) errs by up to 27064 \* 2\^-24 .*growth 97.4 times 278.*direct kernel by 2304"
    ):
        STRATEGY.check(Conv.parse("conv2d c=256 in=8 k=4 filter=3"), separate(points=HALVES), TARGET)


def test_few_channels_need_fast() -> None:
    require_reason(STRATEGY, "conv2d c=3 in=8 k=64 filter=3", "accuracy=fast admits it")
    assert STRATEGY.why_not(Conv.parse("conv2d c=3 in=8 k=64 filter=3 accuracy=fast"), TARGET) is None


def test_measured_errors_are_within_their_bounds() -> None:
    for row in rows(24):
        assert set(row.shares) == {"random", "positive", "adversarial"}
        assert all(0 < share < 1 for share in row.shares.values()), row


def test_measured_errors_order_the_algorithms() -> None:
    found = {(row.points, row.dtype): row for row in rows(64)}
    assert found["0:1:-1", "fp32"].errors["random"] < found[HALVES, "fp32"].errors["random"]
    assert found[HALVES, "fp32"].errors["random"] < found["0:1:-1:2:-2", "fp32"].errors["random"]
    assert found["0:1:-1", "3xtf32"].errors["random"] < found["0:1:-1", "tf32"].errors["random"] / 50
    assert found["0:1:-1", "fp32"].multiplications == 4
    assert found[HALVES, "fp32"].multiplications == 2.25


# --- what a plan asks for ----------------------------------------------------------------------------


@pytest.mark.parametrize("config", [separate(), fused()])
def test_sixteen_multiplications_take_the_place_of_thirty_six(config: WinogradConfig) -> None:
    problem = Conv.parse("conv2d c=8 in=16x16 k=32 filter=3x3 pad=1 accuracy=fast")
    plan = lower(problem, STRATEGY, config, TARGET)
    [program] = build([plan], [render(plan)], Mode.COUNT)
    inputs = {t.name: np.ones(t.shape, np.float32) for t in problem.inputs}
    result = program.run(inputs, {"y": np.zeros(problem.outputs[0].shape, np.float32)})
    of_filter = 2 * 2 * (3 + 4)  # multiply-adds of the filter's transform: two a line
    assert result.report.counters.flops == problem.flops * 16 // 36 + 8 * 32 * of_filter
    assert "16 multiplications a tile and pair of channels instead of 36 (2.25x fewer)" in plan.notes[0]
    assert "32 a channel of x, 24 a channel of y" in plan.notes[1]


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_the_product_reads_coalesced_and_without_bank_conflicts(layout: str) -> None:
    problem = Conv.parse(f"conv2d c=16 in=16 k=64 filter=3 pad=1 layout={layout} accuracy=fast")
    config = separate(block_m=64, thread_m=8, block_n=64, thread_n=8, block_k=8)
    plan = lower(problem, STRATEGY, config, TARGET)
    memory = Memory()
    sizes = {buffer.name: int(str(buffer.nbytes)) for buffer in plan.workspace}
    blocks = {name: memory.allocate(name, size, writable=True, initialised=True) for name, size in sizes.items()}
    [launch] = [launch for launch in plan.launches if "_product_" in launch.kernel.name]
    library = compile_library([Unit(render(plan), plan.kernels)], Mode.COUNT)
    arguments: list[Block | int] = [blocks["filters"], blocks["inputs"], blocks["sums"]]
    grid = tuple(int(str(extent)) for extent in launch.grid)
    at = plan.kernels.index(launch.kernel)
    counters = library.launch(
        0, plan.kernels[at], (grid[0], grid[1], grid[2]), launch.block, launch.shared_bytes, arguments, memory
    ).counters
    assert counters.flops == 2 * 16 * 64 * 64 * 16
    assert all(site.efficiency == 1 for site in counters.sites if site.space == "shared")
    assert all(site.efficiency == 1 for site in counters.sites if layout == "nchw")


@pytest.mark.parametrize(
    ("problem", "config", "rule"),
    [
        (DENSE, separate(kernels="both"), "expected separate or fused"),
        (DENSE, separate(product="fp64"), "expected fp32, 3xtf32 or tf32"),
        (DENSE, separate(points="0:1"), "expected 2 to 6"),
        (DENSE, separate(points="0:1:-1:2:-2:1/2:-1/2:3"), "expected 2 to 6"),
        (DENSE, separate(points="0:1:1"), "different points"),
        (DENSE, separate(block_m=24), "power of two"),
        (DENSE, separate(block_k=2), "at least 4"),
        (DENSE, separate(share=0), "at least 1"),
        (DENSE, separate(share=2), "has one component"),
        (DENSE, fused(share=3), "divisor of the 16 components"),
        (DENSE, separate(thread_m=8), "a warp is"),
        (DENSE, fused(block_m=32, thread_m=2, thread_n=2), "at most 1024"),
        (DENSE, separate(block_m=64, thread_m=16, block_n=128, thread_n=16), "a thread has 255"),
        (
            DENSE,
            fused(points=HALVES, block_m=128, block_n=128, thread_m=4, thread_n=4, share=36, block_k=4),
            "registers",
        ),
        (DENSE, separate(block_m=128, block_n=128, thread_m=8, thread_n=8, block_k=128), "shared memory"),
        (DENSE, separate(product="tf32"), "tensor cores take 8"),
        (DENSE.replace("n=3", "n=*<=99999"), separate(), "the whole of a runtime batch"),
        ("conv2d n=9 c=8192 in=99 k=8192 filter=3", separate(), "one block of tiles takes"),
        ("conv2d n=64 c=64 in=800 k=64 filter=3", separate(block_m=64, thread_m=8), "1024 would take longer"),
    ],
)
def test_illegal_configs_are_refused_by_rule(problem: str, config: WinogradConfig, rule: str) -> None:
    require_refusal(STRATEGY, problem, config, rule)


def test_tensor_cores_before_sm_80_have_no_tf32() -> None:
    turing = Target.preset("t4")
    config = separate(product="3xtf32", block_k=8, thread_m=2, thread_n=4)
    with pytest.raises(ConfigError, match="the tensor cores of sm_75 have no TF32"):
        STRATEGY.check(Conv.parse(DENSE), config, turing)
    assert STRATEGY.space(Conv.parse(DENSE), turing).choices["product"] == ("fp32",)
    for text in (DENSE, MANY, LINE):
        STRATEGY.check(Conv.parse(text), STRATEGY.default(Conv.parse(text), turing), turing)


@pytest.mark.parametrize(
    ("problem", "reason"),
    [
        (DENSE + " direction=wgrad", "the output gradient plays the filter"),
        (DENSE.replace("filter=3x3", "filter=5x5"), "filter=5x5: transforms are made for axes of 3 taps"),
        (DENSE.replace("filter=3x3 pad=1", "filter=1x1"), "transforms are made for axes of 3 taps"),
        (DENSE.replace("filter=3x3", "filter=3x2"), "transforms are made for axes of 3 taps"),
        (DENSE + " stride=2", "neighbouring results share no products"),
        (DENSE + " stride=2 direction=dgrad", "neighbouring results read different taps"),
        (DENSE + " dilation=2", "neighbouring results read different pixels"),
        (DENSE + " pad_mode=reflect direction=dgrad", "several padded positions read one pixel"),
        ("conv3d c=8 in=8 k=8 filter=3", "no room in a thread's registers"),
        (DENSE.replace("n=3", "n=0"), "nothing to multiply"),
        (DENSE.replace("c=6", "c=0"), "nothing to multiply"),
    ],
)
def test_what_it_does_not_cover_is_refused_with_the_reason(problem: str, reason: str) -> None:
    require_reason(STRATEGY, problem, reason)
