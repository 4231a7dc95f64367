"""The fft strategy: the conformance suite, awkward problems, every dimension of its space, its rules and counters."""

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
from conv_strategies import CONV_STRATEGIES
from fft_data import Admitted

from convgen.binding import preparation
from convgen.crossover import crossover
from convgen.explain import explain_problem
from convgen.gather import gather
from convgen.lowering import lower
from convgen.problem import Conv
from convgen.reference import make_inputs
from convgen.render import render
from convgen.runtime.sim import Mode, build
from convgen.strategies.fft import STRATEGY, FftConfig
from convgen.strategies.fft_tiling import tiling

ANY = Admitted()
SQUARE = FftConfig("fused", 16, 16, 8, 32, 1, 1)
ROW = FftConfig("fused", 1, 64, 8, 32, 1, 1)

IMAGE = "conv2d n=2 c=1 in=30x41 k=1 filter=7x7 pad=3"
DEPTHWISE = "conv2d n=2 c=5 in=13x12 k=5 groups=5 filter=9x6 pad=4x3"
DENSE = "conv2d n=3 c=6 in=9x10 k=7 filter=3x3 pad=1"
SEQUENCE = "conv1d n=2 c=3 in=150 k=3 groups=3 filter=17 pad=16:0"
LONG = "conv1d n=2 c=256 in=2048 k=256 filter=2048 pad=2047:0 groups=256"
LARGE = "conv2d n=32 c=512 in=40x40 k=512 groups=512 filter=27x27 pad=13"


class TestFft(StrategyConformance):
    strategy = ANY


def square(**changes: int | str) -> FftConfig:
    return FftConfig.from_mapping(changes, SQUARE)


def row(**changes: int | str) -> FftConfig:
    return FftConfig.from_mapping(changes, ROW)


# --- results -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("problem", "config"),
    [
        (IMAGE, square()),
        (IMAGE, square(tile_h=64, tile_w=64, threads=128)),
        (IMAGE, square(tile_h=14, tile_w=9, threads=64)),
        (IMAGE, square(tile_h=20, tile_w=45, tiles=2)),
        (IMAGE, square(tile_h=64, tile_w=32, radix=32)),
        (IMAGE, square(tile_h=54, tile_w=75, radix=32, threads=96)),
        (IMAGE, square(tile_h=112, tile_w=49, radix=16, threads=256)),
        (IMAGE, square(tile_h=10, tile_w=7, tiles=16, threads=64)),
        (IMAGE + " pad_mode=reflect", square()),
        (IMAGE + " pad_mode=circular stride=2x3", square(tile_w=28)),
        (IMAGE + " pad_mode=replicate layout=nhwc dtype=fp16", square(tile_h=12)),
        (IMAGE + " stride=3x2", square(tiles=4)),
        (IMAGE.replace("pad=3", "dilation=2x3 pad=6x9"), square(tile_h=24, tile_w=42)),
        (IMAGE.replace("pad=3", "pad=0:9x20:1"), square()),
        (DEPTHWISE, square(tile_h=18, tile_w=16)),
        (DEPTHWISE + " layout=nhwc dtype=bf16 epilogue=bias+relu", square(tile_h=20, tile_w=15, tiles=2)),
        (DEPTHWISE + " direction=dgrad", square()),
        (DEPTHWISE + " direction=dgrad stride=2x3", square(tile_h=24)),
        (DEPTHWISE + " epilogue=scale+shift+bias+residual+gelu accumulate=yes", square(threads=64)),
        (DEPTHWISE.replace("k=5", "k=10"), square(tile_channel=2)),
        (DENSE, square(tile_channel=2, tiles=2)),
        (DENSE, square(tile_h=6, tile_w=8, tile_channel=4, tiles=8, threads=64)),
        (DENSE + " direction=dgrad layout=nhwc", square(tile_channel=2, threads=96)),
        (DENSE.replace("n=3", "n=*<=4~3"), square(tiles=2, tile_channel=7)),
        ("conv_transpose2d n=2 c=3 in=9x8 k=4 filter=5x4 stride=2x1 pad=1", square(tile_h=28)),
        (DENSE, square(product="batched")),
        (DENSE, square(product="batched", tile_h=6, tile_w=8, tiles=4, tile_channel=2)),
        (DENSE.replace("k=7", "k=40"), square(product="batched", tile_channel=4, tiles=2)),
        (DENSE + " groups=1 epilogue=bias+residual+silu dtype=fp16 layout=nhwc", square(product="batched")),
        (DENSE.replace("k=7", "k=8 groups=2") + " direction=dgrad", square(product="batched", tile_channel=3)),
        (DENSE.replace("n=3", "n=*~2"), square(product="batched", tile_h=6, tiles=4, tile_channel=4)),
        ("conv1d n=2 c=5 in=90 k=6 filter=30 pad=7:2", row(product="batched", tile_channel=2, tiles=2)),
        (SEQUENCE, row()),
        (SEQUENCE, row(tile_w=48, tiles=4)),
        (SEQUENCE, row(tile_w=180, radix=16, threads=64)),
        (SEQUENCE, row(tile_w=224, radix=32)),
        (SEQUENCE, row(tile_w=512, radix=8, threads=32)),
        (SEQUENCE + " layout=nlc dtype=fp16", row(tiles=2)),
        (SEQUENCE + " direction=dgrad", row(tile_w=210)),
        (SEQUENCE.replace("pad=16:0", "pad=300:5"), row(tile_w=100)),
        (SEQUENCE.replace("pad=16:0", "pad=40 dilation=5"), row(tile_w=256)),
        ("conv1d n=1 c=3 in=90 k=4 filter=30 pad=7:2 stride=4", row(tile_channel=2)),
        # Results in the padding, zero but for what their tile's pixels leave.
        (
            "conv2d n=1 c=2 k=9 in=1x12 filter=1x3 stride=1x2 pad=3x0 dilation=3x2 dtype=fp16",
            square(tile_h=4, tile_w=6),
        ),
        ("conv2d n=1 c=2 k=9 in=1x12 filter=1x3 stride=1x2 pad=3x0 dilation=3x2 dtype=fp16", square(tile_h=6)),
    ],
)
def test_awkward_problems(problem: str, config: FftConfig) -> None:
    require_right(STRATEGY, problem + " accuracy=fast", config)


@pytest.mark.parametrize(
    "problem",
    [
        "conv2d n=1 c=2 in=40x40 k=2 groups=2 filter=27x27 pad=13",
        "conv2d n=1 c=2 in=28x28 k=2 groups=2 filter=49x5 pad=24x2",
        "conv2d n=1 c=1 in=61x75 k=1 filter=31x31 pad=15 direction=dgrad",
        "conv1d n=1 c=2 in=300 k=2 groups=2 filter=300 pad=299:0",
        "conv1d n=1 c=1 in=5000 k=1 filter=257 pad=128",
    ],
)
def test_large_filters_are_right_under_the_strict_bound(problem: str) -> None:
    require_right(STRATEGY, problem, None)


def test_a_term_that_does_not_exist_is_no_zero_times_its_weight() -> None:
    require_terms_to_vanish(ANY, square())


def test_a_tile_that_overflows_on_the_way_is_computed_from_the_definition() -> None:
    """Pixels of 2^127 sum to infinity in the transform though no result does: a filter of alternating signs."""
    problem = Conv.parse("conv2d n=1 c=1 in=12x12 k=1 filter=2x2 accuracy=fast")
    plan = lower(problem, STRATEGY, square(), TARGET)
    x, w = np.full((1, 1, 12, 12), 2.0**127, np.float32), np.array([[[[1, -1], [-1, 1]]]], np.float32)
    y = np.full((1, 1, 11, 11), np.nan, np.float32)
    build([plan], [render(plan)])[0].run({"x": x, "w": w}, {"y": y}).require_clean()
    np.testing.assert_array_equal(y, 0)


# --- rules -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("problem", "config", "rule"),
    [
        (IMAGE, square(product="both"), "expected fused or batched"),
        (IMAGE, square(tile_h=0), "at least 1"),
        (IMAGE, square(tile_h=15), "even, a product of 2, 3, 5 and 7"),
        (IMAGE, square(tile_w=11), "a product of 2, 3, 5 and 7"),
        (IMAGE, square(tile_w=6), "reaches over 7"),
        (IMAGE, square(tile_w=1 << 17), "at most 65536"),
        (IMAGE, square(radix=4), "expected one of 8, 16, 32"),
        (IMAGE, square(threads=48), "whole warps"),
        (IMAGE, square(threads=2048), "at most 1024"),
        (IMAGE, square(tile_channel=2), "1 result channels"),
        (IMAGE, square(tile_h=512, tile_w=256, threads=1024), "bytes of shared memory|registers"),
        (DENSE, square(tile_h=64, tile_w=64, tile_channel=4), "registers"),
        (SEQUENCE, row(tile_h=2), "one axis"),
        (SEQUENCE, row(tile_w=20, radix=8, tiles=4096), "bytes of shared memory|registers"),
    ],
)
def test_illegal_configs_are_refused_by_rule(problem: str, config: FftConfig, rule: str) -> None:
    require_refusal(STRATEGY, problem + " accuracy=fast", config, rule)


@pytest.mark.parametrize(
    ("problem", "reason"),
    [
        (DENSE + " direction=wgrad", "the output gradient plays the filter"),
        (DENSE + " pad_mode=reflect direction=dgrad", "several padded positions"),
        ("conv3d n=1 c=1 in=9x9x9 k=1 filter=9x9x9", "a volume"),
        (DENSE.replace("c=6", "c=0"), "nothing to multiply"),
        ("conv1d n=1 c=1 in=99999 k=1 filter=70000", "reach of 70000 pixels"),
        ("conv2d n=1 c=1 in=30x41 k=1 filter=7x7", "direct kernel's 49 terms make 49; accuracy=fast admits it"),
    ],
)
def test_what_it_does_not_cover_is_refused_with_the_reason(problem: str, reason: str) -> None:
    require_reason(STRATEGY, problem, reason)


def test_a_config_beyond_the_direct_class_is_refused_with_the_figures() -> None:
    """A tile of 11 x 11 taps may round 121 times; radix 27 rounds more often than that."""
    problem = "conv2d n=1 c=1 in=44x44 k=1 filter=11x11 pad=5"
    require_refusal(STRATEGY, problem, square(tile_h=54, tile_w=54, radix=32), "roundings of 2.-24, where .* 121 terms")
    STRATEGY.check(Conv.parse(problem), square(tile_h=64, tile_w=64, threads=128), TARGET)


# --- counters ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "config"),
    [
        ("conv2d n=1 c=1 in=64x64 k=1 filter=27x27", square(tile_h=64, tile_w=64, threads=128)),
        ("conv2d n=1 c=2 in=40x40 k=2 groups=2 filter=27x27 pad=13", square(tile_h=56, tile_w=54, radix=32)),
        ("conv2d n=2 c=4 in=20x12 k=2 filter=5x5 accuracy=fast", square(tile_h=20, tile_w=18, tile_channel=2)),
        ("conv1d n=1 c=1 in=700 k=1 filter=300", row(tile_w=700, threads=64)),
    ],
)
def test_the_work_is_the_closed_form(text: str, config: FftConfig) -> None:
    problem = Conv.parse(text)
    plan = lower(problem, STRATEGY, config, TARGET)
    [program] = build([plan], [render(plan)], Mode.COUNT)
    inputs = {name: array.astype(np.float32) for name, array in make_inputs(problem, 0).items()}
    result = program.run(inputs, {"y": np.empty(problem.outputs[0].shape, np.float32)})
    result.require_clean()
    t = tiling(gather(problem), config)
    tiles = problem.n * problem.groups * t.channel_blocks * t.image_tiles
    spectra = t.spectra * (t.transform_flops + 2 * t.points)
    assert result.report.counters.flops == tiles * t.flops + spectra


def test_the_work_of_batched_products_is_the_closed_form() -> None:
    """Three images of one tile each, rounded up to four tiles for a thread of the product; 7 channels to 8."""
    problem = Conv.parse("conv2d n=3 c=6 in=9x10 k=7 filter=3x3 pad=1 accuracy=fast")
    config = square(product="batched", tile_channel=2)
    plan = lower(problem, STRATEGY, config, TARGET)
    [program] = build([plan], [render(plan)], Mode.COUNT)
    inputs = {name: array.astype(np.float32) for name, array in make_inputs(problem, 0).items()}
    result = program.run(inputs, {"y": np.empty(problem.outputs[0].shape, np.float32)})
    result.require_clean()
    t = tiling(gather(problem), config)
    assert t.image_tiles == 1
    assert t.product_warps_m == 4
    points = 8 * 16
    products = 8 * points * 6 * 8 * 8  # 8 FLOP, 6 summed channels, 2 warps of 4 tiles, 8 channels
    expected = 3 * (6 + 7) * t.transform_flops + products + 6 * 7 * (t.transform_flops + 2 * points)
    assert result.report.counters.flops == expected


def test_a_tile_of_powers_of_two_has_no_bank_conflict() -> None:
    for text, config in (
        ("conv2d n=1 c=1 in=64x64 k=1 filter=27x27", square(tile_h=64, tile_w=64, threads=128)),
        ("conv1d n=1 c=1 in=2048 k=1 filter=2048 pad=2047:0", row(tile_w=4096, radix=16, threads=128)),
    ):
        problem = Conv.parse(text)
        plan = lower(problem, STRATEGY, config, TARGET)
        [program] = build([plan], [render(plan)], Mode.COUNT)
        inputs = {name: array.astype(np.float32) for name, array in make_inputs(problem, 0).items()}
        result = program.run(inputs, {"y": np.empty(problem.outputs[0].shape, np.float32)})
        shared = [site for site in result.report.counters.sites if site.space == "shared"]
        assert shared
        assert all(site.efficiency == 1 for site in shared)


@pytest.mark.parametrize("problem", [LARGE, "conv2d n=*<=8 c=64 in=56x56 k=64 filter=27x27 pad=13"])
def test_the_spectra_are_prepared_from_the_weights_alone(problem: str) -> None:
    plan = lower(Conv.parse(problem), STRATEGY, None, TARGET)
    prepared = preparation(plan)
    assert prepared.steps == {0}
    assert prepared.buffers == ("spectra",)


# --- predictions ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        LARGE + " accuracy=fast",
        LONG + " accuracy=fast",
        "conv2d n=1 c=1 in=4096x4096 k=1 filter=7x7 pad=3 accuracy=fast",
        "conv2d n=8 c=32 in=56x56 k=32 filter=7x7 pad=3 accuracy=fast",
    ],
)
def test_there_is_one_crossover(text: str) -> None:
    """Once ahead fft stays ahead, by more and more; its own time grows far slower than the filter's size."""
    found = crossover(Conv.parse(text), CONV_STRATEGIES, TARGET)
    assert found is not None
    won = [name == "fft" for name in found.fastest]
    assert won == sorted(won)
    assert not won[0]
    assert found.ahead_from("fft") == found.extents[won.index(True)]
    fft, direct = (np.array(found.seconds[name], dtype=float) for name in ("fft", "direct"))
    assert (np.diff((direct / fft)[won]) > 0).all()
    assert fft[-1] / fft[0] < 0.1 * direct[-1] / direct[0]


def test_the_problems_it_is_for_are_predicted_to_be_won() -> None:
    dense = "conv2d n=8 c=64 in=56x56 k=64 filter=27x27 pad=13"
    for text in (LARGE, LONG, dense, "conv2d n=1 c=1 in=8192x8192 k=1 filter=27x27 pad=13"):
        problem = Conv.parse(text)
        times = {
            s.name: s.cost(problem, s.default(problem, TARGET), TARGET)
            for s in CONV_STRATEGIES
            if s.why_not(problem, TARGET) is None
        }
        assert min(times, key=times.__getitem__) == "fft"


def test_explain_tells_the_crossover() -> None:
    explained = explain_problem(Conv.parse(LARGE), TARGET).crossover
    assert explained is not None
    assert explained.seconds["fft"][0] is None  # 3x3 is not admitted strictly
    assert explained.ahead_from("fft") in (11, 13, 15)
    assert explain_problem(Conv.parse("conv3d c=1 in=5x5x5 k=1 filter=3"), TARGET).crossover is None
