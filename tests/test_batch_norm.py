"""The strategies of batch normalisation: the conformance suite, awkward problems, statistics that are hard, traffic."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from conformance import TARGET
from pooling_conformance import PoolingConformance, counted, require_reason, require_refusal, require_right

from convgen.lowering import lower
from convgen.problem import BatchNorm
from convgen.reference import batch_norm
from convgen.render import render
from convgen.runtime.sim import build
from convgen.strategies import Strategy
from convgen.strategies.batch_norm_inference import STRATEGY as INFERENCE
from convgen.strategies.batch_norm_one_read import STRATEGY as ONE_READ
from convgen.strategies.batch_norm_two_pass import STRATEGY as TWO_PASS

TRAINING = "batch_norm n=4 c=8 in=6x8 mode=training"
RESIDUAL = TRAINING + " residual=yes activation=relu"


class TestOneRead(PoolingConformance):
    strategy = ONE_READ
    golden_problem = "batch_norm n=4 c=12 in=13x12 mode=training residual=yes activation=relu"


class TestTwoPass(PoolingConformance):
    strategy = TWO_PASS
    golden_problem = "batch_norm n=4 c=12 in=13x12 mode=training activation=relu layout=nhwc"


class TestInference(PoolingConformance):
    strategy = INFERENCE
    golden_problem = "batch_norm n=4 c=12 in=13x12 residual=yes activation=relu"


@pytest.mark.parametrize(
    ("problem", "changes"),
    [
        (TRAINING, {"threads_channel": 1, "threads_item": 32, "vector": 1, "home": "registers"}),
        (TRAINING, {"threads_channel": 1, "threads_item": 256, "vector": 4, "home": "shared"}),
        (TRAINING, {"threads_channel": 8, "threads_item": 8, "vector": 2, "home": "registers"}),
        (RESIDUAL + " layout=nhwc dtype=fp16", {"threads_channel": 1, "threads_item": 64, "vector": 8}),
        (RESIDUAL + " layout=nhwc", {"threads_channel": 16, "threads_item": 4, "vector": 1, "home": "shared"}),
        (RESIDUAL + " layout=nhwc", {"threads_channel": 32, "threads_item": 8, "vector": 2, "home": "registers"}),
        ("batch_norm n=40 c=3 mode=training dtype=bf16", {"threads_channel": 2, "threads_item": 16, "vector": 1}),
        ("batch_norm n=2 c=1 in=5x7x3 mode=training layout=ndhwc", {"threads_item": 32, "vector": 1}),
    ],
)
def test_one_read_on_awkward_problems(problem: str, changes: dict[str, int | str]) -> None:
    require_right(ONE_READ, problem, changes)


@pytest.mark.parametrize(
    ("problem", "changes"),
    [
        (TRAINING, {"threads_channel": 1, "threads_item": 32, "vector": 1, "unroll": 1, "parts": 1}),
        (TRAINING, {"threads_channel": 1, "threads_item": 32, "vector": 4, "unroll": 2, "parts": 4}),
        (TRAINING, {"threads_channel": 4, "threads_item": 8, "vector": 2, "unroll": 8, "parts": 64}),
        (RESIDUAL + " layout=nhwc dtype=fp16", {"threads_channel": 1, "threads_item": 64, "vector": 8, "parts": 128}),
        (RESIDUAL + " layout=nhwc", {"threads_channel": 16, "threads_item": 4, "vector": 1, "unroll": 2, "parts": 7}),
        ("batch_norm n=40 c=3 mode=training dtype=bf16", {"threads_channel": 2, "threads_item": 16, "parts": 3}),
        ("batch_norm n=*~5 c=6 in=9 mode=training", {"threads_item": 32, "vector": 1, "parts": 32, "unroll": 1}),
    ],
)
def test_two_pass_on_awkward_problems(problem: str, changes: dict[str, int | str]) -> None:
    require_right(TWO_PASS, problem, changes)


# --- statistics -----------------------------------------------------------------------------------------

STRATEGIES = [ONE_READ, TWO_PASS]


def simulated(strategy: Strategy, problem: BatchNorm, inputs: dict[str, Any]) -> dict[str, Any]:
    plan = lower(problem, strategy, None, TARGET)
    outputs = {t.name: np.zeros(t.shape, np.float32) for t in problem.outputs}
    given = {name: array.astype(np.float32) for name, array in inputs.items()}
    build([plan], [render(plan)])[0].run(given, outputs).require_clean()
    return outputs


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda s: s.name)
def test_a_mean_far_from_zero_leaves_the_variance_right(strategy: Strategy) -> None:
    """The mean of squares less the square of the mean would be left with nothing: 4096^2 has 24 bits of its own."""
    problem = BatchNorm.parse("batch_norm n=8 c=2 in=16x16 mode=training")
    inputs = batch_norm.make_inputs(problem, 3)
    spread = np.random.default_rng(1).choice([-0.25, 0.25], size=inputs["x"].shape)
    spread.reshape(8, 2, -1)[:, :, ::2] = 0.25
    spread.reshape(8, 2, -1)[:, :, 1::2] = -0.25
    inputs["x"] = 4096.0 + spread
    got = simulated(strategy, problem, inputs)
    np.testing.assert_array_equal(got["save_mean"], [4096, 4096])
    np.testing.assert_allclose(got["save_inv_std"], 1 / np.sqrt(1 / 16 + 1e-5), rtol=1e-6)


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda s: s.name)
def test_an_outlier_first_leaves_the_variance_right(strategy: Strategy) -> None:
    """Sums shifted by the first value, or updated one value at a time from it, would keep its rounding errors."""
    problem = BatchNorm.parse("batch_norm n=16 c=2 in=16x16 mode=training")
    inputs = batch_norm.make_inputs(problem, 3, "small_integers")
    inputs["x"][0, :, 0, 0] = 1e6
    got, expected = simulated(strategy, problem, inputs), batch_norm.reference(problem, inputs)
    np.testing.assert_allclose(got["save_inv_std"], expected["save_inv_std"], rtol=1e-5)


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda s: s.name)
def test_running_statistics_are_pytorchs(strategy: Strategy) -> None:
    """x is 0, 1, 2, 3: mean 3/2, biased variance 5/4, unbiased 5/3."""
    problem = BatchNorm.parse("batch_norm n=4 c=2 mode=training momentum=0.5 eps=1")
    inputs = {name: np.ones(2) for name in ("scale", "bias", "mean", "var")}
    inputs["x"] = np.stack([np.arange(4.0), np.arange(4.0)], axis=1)
    got = simulated(strategy, problem, inputs)
    np.testing.assert_allclose(got["running_mean"], 0.5 * 1 + 0.5 * 1.5, rtol=1e-6)
    np.testing.assert_allclose(got["running_var"], 0.5 * 1 + 0.5 * 5 / 3, rtol=1e-6)
    np.testing.assert_allclose(got["save_inv_std"], 1 / 1.5, rtol=1e-6)
    np.testing.assert_allclose(got["y"][:, 0], 1 + (np.arange(4) - 1.5) / 1.5, atol=1e-6)


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda s: s.name)
def test_the_same_bits_on_every_run(strategy: Strategy) -> None:
    problem = BatchNorm.parse("batch_norm n=8 c=3 in=31 mode=training")
    inputs = batch_norm.make_inputs(problem, 3)
    first, second = (simulated(strategy, problem, inputs) for _ in range(2))
    for name, array in first.items():
        np.testing.assert_array_equal(array, second[name])


# --- traffic --------------------------------------------------------------------------------------------


def traffic(strategy: Strategy, problem: str, changes: dict[str, int | str] | None = None) -> tuple[float, float]:
    """Sectors of global memory read and written, in times those of x: what a warp reads together counts once."""
    sectors = BatchNorm.parse(problem).inputs[0].nbytes / 32
    sites = [s for s in counted(strategy, problem, changes).report.counters.sites if s.space == "global"]
    read, written = (sum(s.transactions for s in sites if s.is_write is write) for write in (False, True))
    return read / sectors, written / sectors


@pytest.mark.parametrize(
    ("layout", "changes"),
    [
        ("nchw", {}),
        ("nhwc", {"threads_channel": 2, "threads_item": 512, "vector": 4, "home": "registers"}),
        ("nhwc", {"threads_channel": 2, "threads_item": 256, "vector": 4, "home": "shared"}),
    ],
)
def test_ten_trips_to_memory_become_two(layout: str, changes: dict[str, int | str]) -> None:
    """Step by step, batch normalisation and relu go through x for the mean, the differences, their squares, the
    variance, the quotients, scale, bias and relu: ten trips of x's size at the least. Held in the block it is read once
    and written once; the rest are vectors of C."""
    problem = f"batch_norm n=4 c=8 in=32x32 mode=training activation=relu layout={layout}"
    read, written = traffic(ONE_READ, problem, changes)
    assert 1 < read < 1.15
    assert 1 < written < 1.02


def test_a_residual_is_one_more_trip() -> None:
    problem = "batch_norm n=8 c=8 in=32x32 mode=training residual=yes activation=relu"
    read, written = traffic(ONE_READ, problem)
    assert 2 < read < 2.1
    assert 1 < written < 1.01


def test_two_passes_read_twice_and_write_once() -> None:
    problem = "batch_norm n=8 c=8 in=32x32 mode=training activation=relu"
    read, written = traffic(TWO_PASS, problem, {"parts": 4, "threads_item": 32, "threads_channel": 1})
    assert 2 < read < 2.1
    assert 1 < written < 1.02


def test_inference_is_one_trip_each_way() -> None:
    read, written = traffic(INFERENCE, "batch_norm n=8 c=8 in=32x32 activation=relu", {"parts": 1})
    assert 1 < read < 1.1
    assert written == 1


# --- rules ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("strategy", "problem", "changes", "rule"),
    [
        (ONE_READ, TRAINING, {"threads_item": 0}, "at least 1"),
        (ONE_READ, TRAINING, {"threads_item": 48}, "power of two"),
        (ONE_READ, TRAINING, {"threads_item": 2048}, "a block has at most 1024"),
        (ONE_READ, TRAINING, {"threads_channel": 1, "threads_item": 16}, "at least a warp"),
        (ONE_READ, TRAINING, {"vector": 8}, "a load is of"),
        (ONE_READ, TRAINING, {"home": "global"}, "expected registers or shared"),
        (ONE_READ, "batch_norm n=9 c=2 in=64x64 mode=training", {"threads_item": 32, "vector": 1}, "items a thread"),
        (TWO_PASS, TRAINING, {"parts": 4096}, "expected at most 1024"),
        (TWO_PASS, TRAINING, {"parts": 512}, "more parts than"),
        (TWO_PASS, TRAINING, {"unroll": 32}, "at most 16"),
        (INFERENCE, "batch_norm n=4 c=8 in=7x7", {"vector": 2}, "neighbouring positions"),
        (INFERENCE, "batch_norm n=4 c=9 in=7x7 layout=nhwc", {"vector": 2}, "neighbouring channels"),
    ],
)
def test_illegal_configs_are_refused_by_rule(
    strategy: Strategy, problem: str, changes: dict[str, int | str], rule: str
) -> None:
    require_refusal(strategy, problem, changes, rule)


@pytest.mark.parametrize(
    ("strategy", "problem", "reason"),
    [
        (ONE_READ, "batch_norm n=4 c=8 in=7x7", "statistics are given"),
        (TWO_PASS, "batch_norm n=4 c=8 in=7x7", "statistics are given"),
        (INFERENCE, TRAINING, "have to be taken first"),
        (ONE_READ, TRAINING.replace("n=4", "n=*"), "no bound"),
        (ONE_READ, "batch_norm n=64 c=64 in=112x112 mode=training", "more than its registers"),
        (TWO_PASS, "batch_norm n=65536 c=1 in=65536 mode=training", "32 bits"),
    ],
)
def test_what_is_not_covered_is_said(strategy: Strategy, problem: str, reason: str) -> None:
    require_reason(strategy, problem, reason)
