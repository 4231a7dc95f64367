"""What went wrong in other libraries, at sizes that run here, by every strategy that is for it.

The cases are from the issue trackers of PyTorch, cuDNN, FlashAttention, FlashInfer, MIOpen and ONNX Runtime. Bugs that
belong to one strategy or to one module of convgen are tested beside it.
"""

from __future__ import annotations

import dataclasses
import itertools
import random
from typing import Any

import numpy as np
import pytest
from conformance import TARGET, legal_config
from conv_strategies import CONV_STRATEGIES

from convgen.api.decision import predicted
from convgen.lowering import lower, why_not
from convgen.plan import Plan, extent_at
from convgen.problem import Attention, Conv, Problem, parse_problem
from convgen.reference import bound, compare, model_of, reference
from convgen.render import render
from convgen.runtime.sim import build
from convgen.strategies import Strategy, get_strategy, strategies_of
from convgen.strategies.flash_tiling import FlashAttentionConfig
from convgen.verify import Case, Settings, verify_cases

ATTENTION_STRATEGIES = strategies_of(Attention.parse("attention heads_q=1 seq_q=1 head_dim=8"))


def names(strategy: Strategy) -> str:
    return strategy.name


def serving(problem: Problem) -> list[Strategy]:
    return [s for s in strategies_of(problem) if why_not(problem, s, TARGET) is None]


def plans(problem: Problem) -> list[Plan]:
    """Of every strategy for it, by default."""
    return [lower(problem, strategy, None, TARGET) for strategy in serving(problem)]


# --- convolutions -------------------------------------------------------------------------------------

SHAPES = {
    "int8 of one channel": "conv2d n=1 c=1 in=6 k=1 filter=3 pad=1 dtype=int8",
    "uint8 of one channel": "conv2d n=1 c=1 in=6 k=1 filter=3 pad=1 dtype=uint8",
    "rgb stem": "conv2d n=1 c=3 in=16 k=64 filter=3 dtype=fp16",
    "an input without pixels": "conv2d n=2 c=32 in=0x5 k=8 filter=2 pad=1 epilogue=bias",
    "an empty batch": "conv2d n=0 c=3 in=3 k=4 filter=3",
    "asymmetric padding": "conv2d n=2 c=4 in=7x6 k=4 filter=3 pad=0:1x2:0 dtype=fp16",
    "wgrad with a filter of the image's size": "conv2d n=3 c=2 in=12 k=4 filter=9 dtype=bf16 direction=wgrad",
    "wgrad with stride 2": "conv2d n=4 c=4 in=12 k=8 filter=6 stride=2 dtype=fp16 direction=wgrad",
    "dgrad with stride 2 of an even image": "conv2d n=2 c=8 in=14 k=8 filter=3 stride=2 pad=1 dtype=fp16 "
        "direction=dgrad",
    "grouped dgrad": "conv2d n=2 c=16 in=9x8 k=32 filter=3 pad=1 groups=4 dtype=fp16 direction=dgrad",
    "groups": "conv2d n=2 c=16 in=8 k=16 filter=3 pad=1 groups=4 dtype=fp16",
    "depthwise, 31 taps": "conv1d n=2 c=6 in=40 k=6 groups=6 filter=31 pad=15 dtype=fp16",
    "a filter larger than the image": "conv2d n=1 c=1 in=20 k=1 filter=51 pad=25",
}  # fmt: skip


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("text", SHAPES.values(), ids=SHAPES)
def test_shapes_that_broke_elsewhere(text: str, layout: str) -> None:
    layout = layout.replace("h", "") if text.startswith("conv1d") else layout
    layout = {"ncw": "ncl", "nwc": "nlc"}.get(layout, layout)
    problem = Conv.parse(f"{text} layout={layout} accuracy=fast")
    cases = [Case(problem, strategy) for strategy in serving(problem)]
    results = list(verify_cases(cases, Settings(TARGET, check="sanitize")))
    assert results
    assert not [f"{r.config}: {r.status} {r.reason}" for r in results if r.status != "ok"]


@pytest.mark.parametrize("strategy", CONV_STRATEGIES, ids=names)
@pytest.mark.parametrize("direction", ["fprop", "wgrad"])
def test_sums_of_16_bit_numbers_pass_65504_on_the_way(direction: str, strategy: Strategy) -> None:
    """Terms are 200 * 200 or -200 * 200, those of a sign together: fp16 sums, or partial ones, end as NaN."""
    problem = Conv.parse(
        f"conv2d n=4 c=16 in=9x8 k=8 filter=3 dtype=fp16 layout=nhwc accuracy=fast direction={direction}"
    )
    if why_not(problem, strategy, TARGET) is not None:
        pytest.skip(f"{strategy.name} is not for this direction")
    inputs = {spec.name: np.full(spec.shape, 200.0) for spec in problem.inputs}
    if direction == "fprop":
        inputs["w"][:, :8, 1:] = inputs["w"][:, 8:, :2] = 0
        inputs["w"][:, 8:] *= -1
    else:
        inputs["dy"][2:] *= -1
    inputs["x"][0, 0, 2, 4] += 1
    rng = random.Random(11)
    configs = {strategy.default(problem, TARGET), *(legal_config(strategy, problem, rng) for _ in range(4))} - {None}
    made = [lower(problem, strategy, config, TARGET) for config in configs]
    expected = reference(problem, inputs)
    assert np.isfinite(expected).all()
    for program in build(made, [render(plan) for plan in made]):
        [output] = problem.outputs
        got = np.zeros(output.shape, np.float16)
        program.run({k: v.astype(np.float16) for k, v in inputs.items()}, {output.name: got}).require_clean()
        limit = bound(problem, inputs, expected, model_of(problem, program.plan.numerics))
        outcome = compare(output, got, expected, limit)
        assert outcome.ok, f"{program.plan.config}: {outcome.report()}"


@pytest.mark.parametrize("strategy", CONV_STRATEGIES, ids=names)
@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
def test_an_image_has_the_same_bits_alone_and_in_a_batch(dtype: str, strategy: Strategy) -> None:
    text = f"conv2d n=*<=5~3 c=40 in=9x10 k=12 filter=3 pad=1 dtype={dtype} accuracy=fast"
    problem = Conv.parse(text if strategy.name != "wgmma_implicit_gemm" else f"{text} layout=nhwc")
    if strategy.name in ("wgmma_packed", "wgmma_swapped") and dtype == "fp32":
        assert "dtype=fp32" in str(strategy.why_not(problem, TARGET))
        return
    rng = random.Random(12)
    configs = {strategy.default(problem, TARGET), legal_config(strategy, problem, rng)} - {None}
    made = [lower(problem, strategy, config, TARGET) for config in configs]
    numbers = np.random.default_rng(12)
    kind = np.float32 if dtype == "fp32" else np.float16
    x, w = (numbers.standard_normal(shape).astype(kind) for shape in ((5, 40, 9, 10), (12, 40, 3, 3)))
    for program in build(made, [render(plan) for plan in made]):
        together, alone = np.zeros((5, 12, 9, 10), kind), np.zeros((1, 12, 9, 10), kind)
        program.run({"x": x, "w": w}, {"y": together}).require_clean()
        assert together.any()
        for image in range(5):
            program.run({"x": x[image : image + 1], "w": w}, {"y": alone}).require_clean()
            np.testing.assert_array_equal(alone[0], together[image])


# --- what plans ask for -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "conv2d n=70000 c=3 in=4 k=5 filter=3 pad=1",
        "conv2d n=2 c=3 in=4 k=70000 filter=3 pad=1",
        "conv2d n=1 c=70000 in=4 k=70000 groups=70000 filter=3 pad=1",
        "conv2d n=1 c=1 in=70000x4 k=1 filter=3 pad=1",
        "conv2d n=2 c=70000 in=4 k=5 filter=3 pad=1 direction=wgrad",
        "max_pool2d n=70000 c=3 in=4 filter=2",
        "avg_pool2d n=1 c=70000 in=8 filter=8",
        "batch_norm n=70000 c=3 in=4",
        "batch_norm n=2 c=70000 in=4 mode=training",
        "attention batch=65536 heads_q=8 seq_q=4 head_dim=64 dtype=fp16",
        "attention heads_q=65536 seq_q=10 head_dim=16 dtype=fp16",
    ],
)
def test_grids_have_room_for_more_than_65535(text: str) -> None:
    """Of batches, channels, groups, rows and heads: only a grid's first axis goes beyond."""
    problem = parse_problem(text)
    found = plans(problem)
    assert found
    for plan in found:
        for launch in plan.launches:
            x, y, z = (extent_at(extent, problem.sizes) for extent in launch.grid)
            assert 1 <= x < 1 << 31, plan.strategy
            assert max(y, z) <= 65535, plan.strategy


@pytest.mark.parametrize(
    "text",
    [
        "conv3d n=1 c=128 in=256x256x256 k=128 filter=3 pad=1 dtype=fp16",
        "conv3d n=1 c=3 in=24x740x1316 k=128 filter=3 pad=1 dtype=bf16",
        "conv3d n=1 c=16 in=124x1282x722 k=16 filter=1x3x3 dtype=bf16",
        "conv3d n=8 c=32 in=160x192x224 k=16 filter=3 pad=1",
        "conv2d n=64 c=128 in=513x513 k=128 filter=3 stride=2 dtype=bf16",
        "conv2d n=1024 c=3 in=224x224 k=64 filter=3 pad=1",
        "conv2d n=1 c=128 in=4096x4096 k=3 filter=1 dtype=fp16",
    ],
)
def test_the_first_choice_needs_no_more_workspace_than_tensors(text: str) -> None:
    """Where cuDNN asks for up to 108 GiB."""
    for accuracy in ("strict", "fast"):
        problem = Conv.parse(f"{text} accuracy={accuracy}")
        first = predicted(problem, TARGET)[0]
        plan = lower(problem, first.strategy, first.config, TARGET)
        assert plan.workspace_bytes(problem.sizes) <= sum(t.nbytes for t in (*problem.inputs, *problem.outputs))


@pytest.mark.parametrize(
    "text",
    [
        "conv3d n=8 c=384 in=3x34x34 k=384 filter=3 dtype=fp16",
        "conv1d n=16 c=512 in=2048 k=2048 filter=3 dtype=fp16",
        "conv2d n=8 c=64 in=56 k=64 filter=3 pad=1",
    ],
)
def test_a_bias_adds_no_pass_over_memory(text: str) -> None:
    for strategy, accuracy in itertools.product(CONV_STRATEGIES, ("strict", "fast")):
        problem = Conv.parse(f"{text} accuracy={accuracy}")
        if why_not(problem, strategy, TARGET) is not None:
            continue
        biased = Conv.parse(f"{text} accuracy={accuracy} epilogue=bias")
        config = strategy.default(problem, TARGET)
        assert strategy.default(biased, TARGET) == config
        plain, fused = (lower(p, strategy, config, TARGET) for p in (problem, biased))
        assert len(fused.steps) == len(plain.steps)
        assert fused.workspace == plain.workspace
        assert strategy.cost(biased, config, TARGET) < 1.01 * strategy.cost(problem, config, TARGET)


def test_fp16_is_treated_as_bf16_is() -> None:
    """A depthwise filter of 31 taps that is fast in one type only elsewhere."""
    for layout, strategy in itertools.product(("ncl", "nlc"), CONV_STRATEGIES):
        half, brain = (
            Conv.parse(f"conv1d n=8 c=768 in=1024 k=768 groups=768 filter=31 pad=15 dtype={dtype} layout={layout}")
            for dtype in ("fp16", "bf16")
        )
        if why_not(half, strategy, TARGET) is None:
            config = strategy.default(half, TARGET)
            assert strategy.default(brain, TARGET) == config
            assert strategy.cost(half, config, TARGET) == strategy.cost(brain, config, TARGET)


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_two_groups_need_no_transposes(layout: str) -> None:
    problem = Conv.parse(f"conv2d n=1 c=64 in=998 k=64 filter=3 pad=1 groups=2 dtype=fp16 layout={layout}")
    plan = lower(problem, get_strategy("implicit_gemm"), None, TARGET)
    assert len(plan.steps) == 1
    assert plan.workspace == ()


# --- attention ----------------------------------------------------------------------------------------

FLASH = FlashAttentionConfig("mma", 1, 1, 1, 16, 1, False, False, 1)
CONFIGS = [
    pytest.param(get_strategy("naive_attention"), None, id="naive"),
    pytest.param(get_strategy("flash_attention"), None, id="flash"),
    pytest.param(get_strategy("flash_attention"), FLASH, id="flash-mma"),
    pytest.param(get_strategy("flash_attention"), dataclasses.replace(FLASH, splits=3), id="flash-mma-splits"),
    pytest.param(get_strategy("flash_attention"), dataclasses.replace(FLASH, products="fma", splits=2), id="flash-fma"),
]


def attend(text: str, strategy: Strategy, config: Any, **inputs: Any) -> tuple[Any, Any]:
    """o and lse in fp32 of fp16 inputs."""
    problem = Attention.parse(f"attention {text} dtype=fp16 out_dtype=fp32 lse=yes")
    plan = lower(problem, strategy, config, TARGET)
    batch, queries = inputs["q"].shape[0], inputs["q"].shape[2]
    o = np.zeros((batch, problem.heads_q, queries, problem.head_dim_v), np.float32)
    lse = np.zeros(o.shape[:3], np.float32)
    stored = {name: array.astype(np.float16) for name, array in inputs.items()}
    build([plan], [render(plan)])[0].run(stored, {"o": o, "lse": lse}).require_clean()
    return o, lse


@pytest.mark.parametrize(("strategy", "config"), CONFIGS)
@pytest.mark.parametrize("level", [-6e4, -1e6, -1e30])
def test_scores_far_below_zero_are_scores(level: float, strategy: Strategy, config: Any) -> None:
    """No finite number stands for a hidden key, and what fills a tile past the last key weighs nothing."""
    rng = np.random.default_rng(13)
    q, k, v = np.ones((1, 1, 5, 8)), np.ones((1, 1, 41, 8)), rng.standard_normal((1, 1, 41, 8)).astype(np.float16)
    o, lse = attend(f"heads_q=1 seq_q=5 seq_kv=41 head_dim=8 scale={level / 8!r}", strategy, config, q=q, k=k, v=v)
    mean = v[0, 0].astype(float).mean(axis=0)
    np.testing.assert_allclose(o[0, 0], np.broadcast_to(mean, (5, 8)), rtol=2e-3, atol=2e-3)
    np.testing.assert_allclose(lse, level + np.log(41), rtol=1e-6)


@pytest.mark.parametrize(("strategy", "config"), CONFIGS)
@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
def test_nan_in_the_next_sequence_does_not_leak(layout: str, strategy: Strategy, config: Any) -> None:
    """What lies in memory past a sequence's last key is the next one's first: 0 * NaN is not 0."""
    shape = f"batch=2 heads_q=4 heads_kv=2 seq_q=3 seq_kv=21 head_dim=8 layout={layout}"
    rng = np.random.default_rng(14)
    arrays = {
        "q": rng.standard_normal((2, 4, 3, 8)), "k": rng.standard_normal((2, 2, 21, 8)),
        "v": rng.standard_normal((2, 2, 21, 8)),
    }  # fmt: skip
    clean, lse = attend(shape, strategy, config, **arrays)
    assert np.isfinite(clean).all()
    for b, head in itertools.product(range(2), range(2)):
        spoilt = {name: np.full(array.shape, np.nan) for name, array in arrays.items()}
        own: dict[str, Any] = {"q": np.s_[b, 2 * head : 2 * head + 2], "k": np.s_[b, head], "v": np.s_[b, head]}
        for name, place in own.items():
            spoilt[name][place] = arrays[name][place]
        o, spoilt_lse = attend(shape, strategy, config, **spoilt)
        np.testing.assert_array_equal(o[own["q"]], clean[own["q"]])
        np.testing.assert_array_equal(spoilt_lse[own["q"]], lse[own["q"]])


@pytest.mark.parametrize(("strategy", "config"), CONFIGS)
def test_parts_without_keys_are_neutral(strategy: Strategy, config: Any) -> None:
    """Of a plan made for 100 keys: with none o is 0 and lse -inf, with few some parts have none."""
    rng = np.random.default_rng(15)
    q = rng.standard_normal((1, 1, 2, 8)).astype(np.float16)
    for keys in (0, 1, 17):
        k, v = (rng.standard_normal((1, 1, keys, 8)).astype(np.float16) for _ in range(2))
        text = "heads_q=1 seq_q=2 seq_kv=*~100 head_dim=8"
        o, lse = attend(text, strategy, config, q=q, k=k, v=v)
        weights = np.exp(q[0, 0].astype(float) @ k[0, 0].astype(float).T / np.sqrt(8))
        total = weights.sum(axis=1, keepdims=True)
        np.testing.assert_allclose(o[0, 0], weights @ v[0, 0] / np.maximum(total, 1e-300), rtol=2e-3, atol=2e-3)
        with np.errstate(divide="ignore"):
            np.testing.assert_allclose(lse[0, 0], np.log(total[:, 0]), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("width", [320, 512])
def test_wide_heads_are_served(width: int) -> None:
    problem = Attention.parse(f"attention heads_q=4 heads_kv=2 seq_q=9 seq_kv=20 head_dim={width} dtype=bf16")
    cases = [Case(problem, strategy) for strategy in serving(problem)]
    results = list(verify_cases(cases, Settings(TARGET, check="sanitize")))
    assert results
    assert not [f"{r.config}: {r.status} {r.reason}" for r in results if r.status != "ok"]
