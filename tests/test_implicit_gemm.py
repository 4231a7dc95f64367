"""The implicit GEMM strategy: the conformance suite, its accesses and phases, its arithmetic, every dimension."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import random
import re
from typing import Any

import numpy as np
import pytest
from conformance import (
    TARGET,
    IntegerConformance,
    legal_config,
    require_all_right,
    require_reason,
    require_refusal,
    require_right,
)
from generators import integer_convs, random_convs

from convgen.compiler import compile_cuda
from convgen.gather import gather
from convgen.lowering import lower
from convgen.plan import Plan
from convgen.problem import Accuracy, Conv, DType
from convgen.reference import make_inputs, model_of, strict_model
from convgen.reference.rounding import encode
from convgen.render import render
from convgen.runtime.physical import stored_dtype
from convgen.runtime.sim import build
from convgen.simulator import Copies, Mode, Report
from convgen.strategies import implicit_gemm_tiling as tiling
from convgen.strategies.implicit_gemm import STRATEGY, ImplicitGemmConfig
from convgen.strategies.phases import phases
from convgen.target import Target
from convgen.verify import Case, Settings, verify_cases

SMALL = ImplicitGemmConfig(32, 32, 32, 2, 2, 3, 1, 1, 1)

IMAGE = "conv2d n=2 c=16 in=9x10 k=24 filter=3x3 pad=1 dtype=fp16 layout=nhwc"
STRIDED = "conv2d n=2 c=8 in=11x12 k=16 filter=3x3 stride=2 pad=1 dtype=bf16 layout=nhwc direction=dgrad"
LAYER = "conv2d n=32 c=256 in=56x56 k=256 filter=3x3 pad=1 layout=nhwc"
DIRECTIONS = ("fprop", "dgrad", "wgrad")


class TestImplicitGemm(IntegerConformance):
    strategy = STRATEGY


def config(**changes: int) -> ImplicitGemmConfig:
    return ImplicitGemmConfig.from_mapping(changes, SMALL)


def run(plan: Plan, mode: Mode = Mode.CHECK, copies: Copies = Copies.LATE) -> tuple[Report, Any]:
    """The report of a plan's kernels on small integers, and their result."""
    problem = plan.problem
    inputs = {
        name: encode(values, problem.tensor(name).dtype)
        for name, values in make_inputs(problem, 0, "small_integers").items()
    }
    [output] = problem.outputs
    result = {output.name: np.zeros(output.shape, stored_dtype(output))}
    ran = build([plan], [render(plan)], mode)[0].run(inputs, result, copies=copies)
    ran.require_clean()
    return ran.report, result[output.name]


# --- right answers ------------------------------------------------------------------------------------


def test_fast_accuracy_and_wide_channels_are_right(request: pytest.FixtureRequest) -> None:
    """The suite's draws are mostly too small for a strict sum on tensor cores; here all of them count."""
    rng = random.Random(7)
    cases = []
    for drawn in random_convs(7, request.config.getoption("--draws"), 10_000):
        scale = rng.choice((1, 2, 8))
        problem = dataclasses.replace(
            drawn, accuracy=Accuracy.FAST, c=drawn.c * scale, k=drawn.k * rng.choice((1, scale))
        )
        if problem.macs <= 200_000 and STRATEGY.why_not(problem, TARGET) is None:
            cases.append(Case(problem, STRATEGY, legal_config(STRATEGY, problem, rng)))
    assert len(cases) > request.config.getoption("--draws") // 4
    require_all_right(cases)


def test_ragged_and_wide_integers_are_exact(request: pytest.FixtureRequest) -> None:
    rng = random.Random(9)
    cases = []
    for drawn in integer_convs(9, request.config.getoption("--draws"), 10_000):
        scale = rng.choice((4, 8, 9))
        problem = dataclasses.replace(drawn, c=drawn.c * scale, k=drawn.k * rng.choice((1, scale)))
        if problem.macs <= 200_000 and STRATEGY.why_not(problem, TARGET) is None:
            cases.append(Case(problem, STRATEGY, legal_config(STRATEGY, problem, rng)))
    assert len(cases) > request.config.getoption("--draws") // 4
    require_all_right(cases)


@pytest.mark.parametrize("dtype", ["fp32", "tf32", "fp16", "bf16", "int8", "uint8"])
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(("c", "k"), [(16, 24), (5, 7), (6, 12)])
def test_every_direction_layout_type_and_width(direction: str, layout: str, dtype: str, c: int, k: int) -> None:
    text = f"conv2d n=2 c={c} in=8x7 k={k} filter=3x3 pad=1 accuracy=fast"
    require_right(STRATEGY, f"{text} dtype={dtype} layout={layout} direction={direction}", None)


@pytest.mark.parametrize(
    "changes",
    [
        *({"block_m": 16, "warps_m": 1, "block_n": n, "warps_n": w} for n, w in ((32, 1), (64, 4), (128, 8))),
        *({"block_m": 64, "warps_m": w} for w in (1, 2, 4)),
        *({"block_k": 64, "stages": s} for s in (2, 3, 5)),
        *({"split_k": s} for s in (2, 4)),
        {"block_m": 16, "warps_m": 1, "raster": 2},
    ],
    ids=str,
)
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_every_dimension_of_the_space(changes: dict[str, int], direction: str) -> None:
    require_right(STRATEGY, f"{IMAGE} direction={direction}", config(**changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"block_m": 16, "warps_m": 1, "block_n": 128, "warps_n": 8},
        {"stages": 5, "split_k": 2},
        {"block_n": 64, "warps_n": 4, "split_k": 2, "raster": 2},
    ],
    ids=str,
)
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_every_dimension_of_the_space_in_int8(changes: dict[str, int], direction: str, layout: str) -> None:
    problem = f"conv2d n=2 c=32 in=9x10 k=36 filter=3x3 pad=1 stride=1x2 dtype=int8 layout={layout}"
    require_right(STRATEGY, f"{problem} direction={direction}", config(**{"block_k": 64} | changes))


def test_a_step_of_128_bytes() -> None:
    for layout in ("nchw", "nhwc"):
        problem = f"conv2d n=2 c=32 in=9x10 k=36 filter=3x3 pad=1 dtype=int8 layout={layout}"
        require_right(STRATEGY, problem, config(block_m=64, warps_m=2, block_n=32, block_k=128, stages=2))


def test_the_largest_products_do_not_overflow() -> None:
    """-128 * -128 and 255 * -128 in every term: 2^24 and more, where fp32 would lose the last bits."""
    for dtype, x in (("int8", -128), ("uint8", 255)):
        problem = Conv.parse(f"conv1d n=1 c=1031 in=3 k=8 filter=1 dtype={dtype} layout=nlc")
        plan = lower(problem, STRATEGY, config(block_k=64), TARGET)
        inputs = {name: np.full(problem.tensor(name).shape, value) for name, value in (("x", x), ("w", -128))}
        result = np.zeros((1, 8, 3), np.int32)
        stored = {name: encode(values, problem.tensor(name).dtype) for name, values in inputs.items()}
        build([plan], [render(plan)], Mode.CHECK)[0].run(stored, {"y": result}).require_clean()
        np.testing.assert_array_equal(result, 1031 * x * -128)


@pytest.mark.parametrize("epilogue", ["none", "scale+shift+bias+residual+gelu"])
@pytest.mark.parametrize("split_k", [1, 2])
def test_integers_become_floats_for_an_epilogue(epilogue: str, split_k: int) -> None:
    problem = f"conv2d n=2 c=32 in=7x6 k=24 filter=3 pad=1 dtype=int8 out_dtype=fp32 layout=nhwc epilogue={epilogue}"
    require_right(STRATEGY, problem, config(block_k=64, split_k=split_k))


@pytest.mark.parametrize("raster", [1, 2, 3, 8])
def test_every_tile_is_made_once_whatever_the_sweep(raster: int) -> None:
    """Five channel tiles, which no sweep but of one divides, of three groups."""
    problem = "conv2d n=3 c=12 in=6x5 k=240 filter=1 groups=3 dtype=fp16 layout=nhwc accuracy=fast"
    require_right(STRATEGY, problem, config(block_m=16, warps_m=1, raster=raster))


@pytest.mark.parametrize("products", [1, 3])
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_fp32_by_one_and_by_three_products(direction: str, layout: str, products: int) -> None:
    text = f"conv2d n=2 c=16 in=7x9 k=16 filter=3x3 pad=1 layout={layout} direction={direction} accuracy=fast"
    require_right(STRATEGY, text, config(block_k=16, products=products))


# What went wrong elsewhere (research on convolution bugs), at sizes that run here.
BUGS = {
    "conv3d 1x3x3 in bf16": "conv3d n=1 c=16 in=3x9x10 k=16 filter=1x3x3 dtype=bf16 layout=ndhwc",
    "patchify": "conv3d n=1 c=3 in=4x8x8 k=16 filter=2x4x4 stride=2x4x4 dtype=bf16",
    "bias, no padding": "conv3d n=2 c=8 in=4x5x5 k=8 filter=3 dtype=fp16 epilogue=bias",
    "stride 2, no padding": "conv2d n=3 c=8 in=13x13 k=8 filter=3 stride=2 dtype=bf16",
    "groups, channels last": "conv2d n=2 c=64 in=7x7 k=64 filter=3 stride=2 pad=1 groups=8 dtype=fp16 layout=nhwc",
    "two groups": "conv2d n=1 c=16 in=9x9 k=16 filter=3 pad=1 groups=2 dtype=fp16",
    "rgb wgrad": "conv2d n=4 c=3 in=8x8 k=16 filter=3 pad=1 dtype=fp16 direction=wgrad",
    "an input without pixels": "conv2d n=2 c=32 in=0x5 k=8 filter=2 pad=1 dtype=fp16 epilogue=bias",
    "asymmetric padding": "conv2d n=2 c=8 in=7x6 k=8 filter=3x2 pad=2:0x0:1 dtype=fp16 layout=nhwc",
    "wgrad with a large filter": "conv2d n=3 c=4 in=9x9 k=8 filter=7x7 dtype=bf16 direction=wgrad layout=nhwc",
    "wgrad, stride 2, filter 6": "conv2d n=4 c=4 in=12x12 k=8 filter=6 stride=2 dtype=fp16 direction=wgrad layout=nhwc",
    "conv1d with bias": "conv1d n=2 c=32 in=20 k=24 filter=3 dtype=fp16 epilogue=bias",
    "dgrad of stride and dilation": "conv2d n=2 c=8 in=13x13 k=8 filter=3 stride=2 dilation=2 pad=2 dtype=fp16 "
        "direction=dgrad",
    "dgrad of stride 3, dilation 2": "conv2d n=2 c=8 in=13x14 k=8 filter=3 stride=3 dilation=2 dtype=fp16 layout=nhwc "
        "direction=dgrad",
    "dgrad of a stride past the filter": "conv2d n=2 c=8 in=9x9 k=8 filter=2 stride=4 dtype=fp16 layout=nhwc "
        "direction=dgrad",
    "grouped dgrad": "conv2d n=2 c=16 in=9x8 k=32 filter=3 pad=1 groups=4 dtype=fp16 layout=nhwc direction=dgrad",
    "transposed, output padding": "conv_transpose2d n=2 c=16 in=5x6 k=8 filter=3 stride=2 pad=1 output_padding=1 "
        "dtype=bf16 layout=nhwc",
    "reflected border": "conv2d n=2 c=8 in=7x6 k=8 filter=3 pad=1 pad_mode=reflect dtype=fp16 layout=nhwc",
    "accumulating wgrad of a circle": "conv2d n=2 c=8 in=7x6 k=8 filter=3 pad=1 pad_mode=circular dtype=bf16 "
        "layout=nhwc direction=wgrad accumulate=yes",
    "every epilogue": "conv2d n=2 c=16 in=7x6 k=24 filter=3 pad=1 dtype=bf16 layout=nhwc "
        "epilogue=scale+shift+bias+residual+gelu",
    "a residual, channels first": "conv2d n=2 c=16 in=8x8 k=24 filter=3 pad=1 dtype=fp16 epilogue=residual+relu",
}  # fmt: skip


@pytest.mark.parametrize("problem", BUGS.values(), ids=BUGS)
def test_what_went_wrong_elsewhere_is_right(problem: str) -> None:
    require_right(STRATEGY, f"{problem} accuracy=fast", None)
    if tiling.terms(gather(Conv.parse(problem))) > 64:
        require_right(STRATEGY, f"{problem} accuracy=fast", config(split_k=2))


def test_offsets_are_wide_where_a_tensor_is() -> None:
    """(64, 128, 513, 513) has more than 2^31 elements."""
    for n, ctype in ((32, "int"), (64, "long long")):
        problem = Conv.parse(f"conv2d n={n} c=128 in=513x513 k=128 filter=3 stride=2 dtype=bf16")
        plan = lower(problem, STRATEGY, None, TARGET)
        assert plan.constants["offset_t"] == ctype
        assert plan.workspace == ()


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_early_and_late_copies_give_the_same_bits(layout: str, direction: str) -> None:
    problem = Conv.parse(f"conv2d n=2 c=16 in=6x7 k=16 filter=3 pad=1 dtype=fp16 layout={layout} direction={direction}")
    plan = lower(problem, STRATEGY, config(stages=4), TARGET)
    early, late = (run(plan, Mode.FAST, copies)[1] for copies in (Copies.EARLY, Copies.LATE))
    assert early.any()
    np.testing.assert_array_equal(early, late)


# --- counts -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["t4", "a100", "h200"])
def test_int8_is_predicted_at_its_own_rate(target: str) -> None:
    """Twice fp16's: a large layer is bound by the tensor cores."""
    problem, gpu = f"{LAYER} dtype=", Target.preset(target)
    half, byte = (Conv.parse(problem + dtype) for dtype in ("fp16", "int8"))
    ratio = STRATEGY.cost(half, config(), gpu) / STRATEGY.cost(byte, config(block_k=64), gpu)
    assert 1.7 < ratio < 2.1


def padded_flops(problem: Conv, c: ImplicitGemmConfig) -> int:
    """Of all tiles: of every phase its columns, channels and terms in whole tiles."""
    g = gather(problem)

    def whole(size: int, tile: int) -> int:
        return -(-size // tile) * tile

    total = 0
    for combination in itertools.product(*(phases(axis) for axis in g.axes)):
        columns = g.batch_size * math.prod(phase.out for phase in combination)
        terms = g.q_size * math.prod(phase.taps for phase in combination)
        total += 2 * whole(columns, c.block_n) * whole(g.m, c.block_m) * whole(terms, c.block_k) * g.groups
    return total


@pytest.mark.parametrize(
    "problem",
    [
        *(f"{IMAGE} direction={direction}" for direction in DIRECTIONS),
        STRIDED,
        "conv2d n=2 c=40 in=7x6 k=24 filter=3 groups=2 dtype=bf16",
        "conv3d n=1 c=16 in=4x5x6 k=8 filter=3 pad=1 dtype=fp16 layout=ndhwc",
    ],
)
@pytest.mark.parametrize("split_k", [1, 2])
def test_mma_flops_are_those_of_the_padded_product(problem: str, split_k: int) -> None:
    parsed = Conv.parse(problem)
    chosen = config(split_k=split_k)
    report, _ = run(lower(parsed, STRATEGY, chosen, TARGET))
    assert report.counters.flops == padded_flops(parsed, chosen)


def test_the_dgrad_of_a_stride_multiplies_no_inserted_zeros() -> None:
    """Phases of 4, 2, 2 and 1 taps instead of 9 for each: a quarter of the products, but for tiles' edges."""
    problem = Conv.parse("conv2d n=2 c=16 in=32x32 k=32 filter=3 stride=2 pad=1 dtype=fp16 layout=nhwc direction=dgrad")
    report, _ = run(lower(problem, STRATEGY, config(block_m=16, warps_m=1), TARGET))
    assert report.counters.flops == 2 * (2 * 16 * 16) * 16 * 32 * (4 + 2 + 2 + 1)
    assert report.counters.flops == problem.flops  # which counts a product a tap and output pixel


def test_three_products_count_three_times() -> None:
    problem = Conv.parse("conv2d n=1 c=16 in=8x8 k=32 filter=3 pad=1 layout=nhwc")
    report, _ = run(lower(problem, STRATEGY, config(block_k=16, products=3), TARGET))
    assert report.counters.flops == 3 * 2 * 64 * 32 * 144


@pytest.mark.parametrize(
    ("dtype", "direction"), [*itertools.product(("fp16", "tf32"), DIRECTIONS), ("int8", "fprop"), ("uint8", "fprop")]
)
def test_tiles_are_filled_and_read_without_bank_conflicts(direction: str, dtype: str) -> None:
    problem = Conv.parse(f"conv2d n=2 c=32 in=8x8 k=32 filter=3 pad=1 dtype={dtype} layout=nhwc direction={direction}")
    chosen = config(block_k=64) if problem.dtype.is_integer else config()
    report, _ = run(lower(problem, STRATEGY, chosen, TARGET), Mode.COUNT)
    tile_sites = [
        site for site in report.counters.sites
        if site.space == "shared" and any(re.search(r"_loads\.start|Tile::load", line.text) for line in site.place)
    ]  # fmt: skip
    assert len(tile_sites) >= 4
    assert {site.efficiency for site in tile_sites} == {1.0}


@pytest.mark.parametrize(
    ("problem", "x", "w", "y"),
    [
        (IMAGE, (True, 8), (True, 8), (True, 8)),
        (f"{IMAGE} direction=dgrad", (True, 8), (False, 8), (True, 8)),
        (f"{IMAGE} direction=wgrad", (False, 8), (False, 8), (False, 8)),
        (IMAGE.replace("c=16", "c=12"), (True, 4), (True, 4), (True, 8)),
        (IMAGE.replace("c=16", "c=3"), (True, 1), (True, 1), (True, 8)),
        (IMAGE.replace("nhwc", "nchw"), (False, 1), (True, 8), (False, 2)),
        (IMAGE.replace("filter=3x3 pad=1", "filter=1").replace("nhwc", "nchw"), (False, 2), (True, 8), (False, 2)),
        (IMAGE.replace("fp16", "tf32"), (True, 4), (True, 4), (True, 4)),
        (STRIDED, (True, 8), (False, 8), (True, 8)),
        (IMAGE.replace("fp16", "int8"), (True, 16), (True, 16), (True, 4)),
        (IMAGE.replace("fp16", "uint8").replace("c=16", "c=12"), (True, 4), (True, 4), (True, 4)),
        (IMAGE.replace("fp16", "int8").replace("c=16", "c=18"), (True, 1), (True, 1), (True, 4)),
        (IMAGE.replace("fp16", "int8").replace("nhwc", "nchw"), (False, 1), (True, 16), (False, 2)),
        (IMAGE.replace("fp16", "int8") + " direction=dgrad", (True, 8), (False, 1), (True, 4)),
    ],
)
def test_loads_and_stores_are_as_wide_as_memory_admits(
    problem: str, x: tuple[bool, int], w: tuple[bool, int], y: tuple[bool, int]
) -> None:
    g = tiling.flattened(gather(Conv.parse(problem)))
    accesses = tiling.x_access(g), tiling.w_access(g)
    assert tuple((access.along_terms, access.loaded) for access in accesses) == (x, w)
    assert tiling.store(g, SMALL) == y


def test_a_pointwise_convolution_has_one_axis() -> None:
    g = tiling.flattened(gather(Conv.parse("conv3d n=2 c=8 in=3x4x5 k=8 filter=1")))
    assert [(axis.out, axis.source, axis.taps) for axis in g.axes] == [(60, 60, 1)]
    for text in ("filter=1 stride=2", "filter=1 pad=1", "filter=3 pad=1"):
        assert len(tiling.flattened(gather(Conv.parse(f"conv2d n=2 c=8 in=4x5 k=8 {text}"))).axes) == 2


# --- arithmetic ---------------------------------------------------------------------------------------


def test_a_strict_bound_is_the_direct_kernels_at_most(request: pytest.FixtureRequest) -> None:
    rng = random.Random(8)
    strict = 0
    for drawn in random_convs(8, 200, 100_000):
        if STRATEGY.why_not(drawn, TARGET) is not None or drawn.is_runtime_batch:
            continue
        chosen = legal_config(STRATEGY, drawn, rng)
        assert chosen is not None
        model, direct = model_of(drawn, lower(drawn, STRATEGY, chosen, TARGET).numerics), strict_model(drawn)
        eps_in = 0.0 if drawn.dtype is DType.TF32 else model.eps_in
        assert model.growth * (2 * eps_in + model.steps * model.eps_acc) <= direct.steps * direct.eps_acc
        strict += 1
    assert strict > 40


def test_short_fp32_sums_need_fast_accuracy() -> None:
    """Three products err by 3 * 2^-22 beside a quarter of what the direct kernel's chain errs by."""
    problem = "conv2d n=2 c={} in=8x8 k=8 filter=1"
    require_reason(STRATEGY, problem.format(24), "accuracy=fast admits it")
    assert STRATEGY.why_not(Conv.parse(problem.format(24) + " accuracy=fast"), TARGET) is None
    assert STRATEGY.why_not(Conv.parse(problem.format(40)), TARGET) is None
    require_refusal(STRATEGY, problem.format(64), config(block_k=16, products=1), "accuracy=fast admits it")
    STRATEGY.check(Conv.parse(problem.format(64) + " accuracy=fast"), config(block_k=16, products=1), TARGET)


def test_three_products_are_as_good_as_fp32() -> None:
    """What is left of the error is that of sums that are cut: of one TF32 product it is a hundred times that."""
    text = "conv2d n=1 c=64 in=8x8 k=32 filter=3 pad=1 accuracy=fast"
    errors = {}
    for products in (1, 3):
        [result] = verify_cases(
            [Case(Conv.parse(text), STRATEGY, config(block_k=16, products=products))], Settings(TARGET)
        )
        assert result.status == "ok"
        assert result.max_error is not None
        errors[products] = result.max_error
    assert errors[1] > 50 * errors[3]


# --- what it refuses ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("problem", "changes", "rule"),
    [
        (IMAGE, {"block_m": 48}, "block_m=48: expected a power of two"),
        (IMAGE, {"warps_m": 4}, "a warp loads fragments of 16 channels"),
        (IMAGE, {"block_k": 16}, "block_k=16: expected at least 32"),
        (IMAGE, {"stages": 1}, "stages=1: expected at least 2"),
        (IMAGE, {"stages": 0}, "stages=0: expected at least 1"),
        (IMAGE, {"products": 3}, "products=3: expected 1 for fp16"),
        (IMAGE, {"block_m": 256, "block_n": 256, "warps_m": 2}, "registers, a thread has 255"),
        (IMAGE, {"block_m": 64, "block_n": 256, "block_k": 64, "warps_n": 4, "stages": 6}, "bytes of shared memory"),
        (IMAGE, {"split_k": 8}, "split_k=8: there are 5 tiles of terms"),
        ("conv2d n=9 c=4096 in=64x64 k=4096 filter=1 dtype=fp16", {"split_k": 64}, "partial results of"),
        ("conv2d n=65536 c=64 in=224x224 k=16384 filter=1 dtype=fp16", {"stages": 2}, "blocks: a grid has at most"),
        (IMAGE.replace("c=16", "c=3"), {"block_n": 128, "block_k": 64}, "loads a step, more than 32"),
    ],
)  # fmt: skip
def test_broken_rules_are_named(problem: str, changes: dict[str, int], rule: str) -> None:
    require_refusal(STRATEGY, problem, config(**changes), rule)


@pytest.mark.parametrize(
    ("problem", "reason"),
    [
        ("conv2d n=2 c=16 in=9 k=16 filter=3 groups=8 dtype=fp16", "a group has 2 input and 2 output channels"),
        (
            "conv2d n=2 c=8 in=9 k=8 filter=3 pad=1 pad_mode=reflect direction=dgrad dtype=fp16",
            "several padded positions",
        ),
        ("conv2d n=0 c=8 in=9 k=8 filter=3 dtype=fp16", "nothing to multiply"),
        ("conv2d n=1 c=8 in=9 k=8 filter=3 dtype=fp8", "dtype=fp8 has no kernel yet"),
        (
            "conv_transpose2d n=1 c=8 in=9 k=8 filter=3 dtype=uint8 direction=wgrad",
            "x is uint8 and in this product's place of the filter",
        ),
    ],
)
def test_what_it_does_not_cover_is_refused_with_the_reason(problem: str, reason: str) -> None:
    require_reason(STRATEGY, problem, reason)


def test_older_gpus_multiply_fp16_and_int8_only() -> None:
    t4 = Target.preset("t4")
    assert STRATEGY.why_not(Conv.parse(IMAGE), t4) is None
    assert STRATEGY.why_not(Conv.parse(IMAGE.replace("fp16", "int8")), t4) is None
    reason = STRATEGY.why_not(Conv.parse(IMAGE.replace("fp16", "bf16")), t4)
    assert reason == "tensor cores of sm_75 multiply fp16 and int8 only; bf16 needs sm_80 or newer"


# --- compiled -----------------------------------------------------------------------------------------

COMPILED = [
    *(f"{LAYER} dtype={dtype} direction={direction}" for dtype in ("fp16", "tf32", "fp32") for direction in DIRECTIONS),
    "conv2d n=32 c=64 in=56x56 k=128 filter=3x3 pad=1 stride=2 dtype=fp16 layout=nhwc direction=dgrad",
    "conv2d n=32 c=64 in=56x56 k=128 filter=3x3 pad=1 stride=2 dtype=fp16",
    "conv2d n=32 c=64 in=56x56 k=128 filter=3x3 pad=1 stride=2 dtype=tf32",
    "conv2d n=32 c=3 in=224x224 k=64 filter=7x7 pad=3 stride=2 dtype=fp16 layout=nhwc",
    f"{LAYER} dtype=int8",
    f"{LAYER} dtype=int8".replace("nhwc", "nchw"),
    f"{LAYER} dtype=uint8 out_dtype=fp16 epilogue=scale+bias+relu",
    "conv2d n=32 c=3 in=224x224 k=64 filter=7x7 pad=3 stride=2 dtype=uint8 layout=nhwc",
]


@functools.cache
def targets() -> tuple[Target, ...]:
    return tuple(Target.preset(name) for name in ("t4", "a100", "h200"))


@pytest.mark.parametrize("problem", COMPILED)
def test_defaults_compile_without_spills(problem: str) -> None:
    parsed = Conv.parse(problem)
    for target in targets():
        if STRATEGY.why_not(parsed, target) is not None:
            continue
        plan = lower(parsed, STRATEGY, None, target)
        binary = compile_cuda(render(plan), target)
        assert all(kernel.spill_stores == 0 for kernel in binary.kernels), (target.name, plan.config)
