"""What verification compares, and what it says."""

from __future__ import annotations

import dataclasses

import numpy
import pytest
from conformance import TARGET

from convgen.errors import CompileError, MemoryShortage, UsageError
from convgen.lowering import lower
from convgen.plan import Plan
from convgen.problem import Attention, Conv
from convgen.render import render
from convgen.strategies import get_strategy
from convgen.target import Target
from convgen.verify import Case, Settings, VerifyResult, cuda, sim, verify_cases, verify_plan, verify_problem
from convgen.verify.oracle import Oracles, fixed

DIRECT = get_strategy("direct")
SETTINGS = Settings(TARGET)


def problem(text: str) -> Conv:
    return Conv.parse(f"conv2d c=4 in=9x8 k=4 filter=3x3 pad=1 {text}")


@pytest.mark.parametrize(
    "text",
    [
        "n=2 accumulate=yes",
        "n=2 dtype=bf16 layout=nhwc epilogue=scale+shift+bias+residual+gelu",
        "n=2 dtype=fp16 direction=dgrad accumulate=yes",
        "n=0",
        "n=*",
        "n=*<=8~2",
        "n=*~2 direction=wgrad",
    ],
)
@pytest.mark.parametrize("inputs", ["normal", "positive", "small_integers", "specials"])
def test_every_kind_of_problem_and_input_is_verified(text: str, inputs: str) -> None:
    settings = dataclasses.replace(SETTINGS, inputs=inputs)  # type: ignore[arg-type]
    result = verify_problem(problem(text), DIRECT, None, settings)
    assert (result.status, result.coverage) == ("ok", 1.0), result.reason


def test_a_runtime_batch_is_fixed_at_its_hint_its_bound_or_a_few() -> None:
    batches = [fixed(problem(f"n={n}")).n for n in ("7", "*~5", "*<=6", "*<=6~2", "*", "*<=1")]
    assert batches == [7, 5, 6, 2, 3, 1]


def test_results_keep_the_order_of_the_cases() -> None:
    sizes = [3, 1, 2, 5, 4] * 4
    cases = [Case(problem(f"n={n}"), DIRECT) for n in sizes]
    results = list(verify_cases(cases, SETTINGS))
    assert [result.problem for result in results] == [case.problem for case in cases]
    assert {result.status for result in results} == {"ok"}


@pytest.mark.parametrize("check", ["auto", "sanitize", "fast"])
def test_a_large_problem_is_run_on_some_blocks(monkeypatch: pytest.MonkeyPatch, check: str) -> None:
    monkeypatch.setattr(sim, "SANITIZED_MACS", 0)
    monkeypatch.setattr(sim, "WHOLE_MACS", 0)
    monkeypatch.setattr(sim, "SAMPLED_BLOCKS", 8)
    monkeypatch.setattr(sim, "SANITIZED_BLOCKS", 4)
    settings = dataclasses.replace(SETTINGS, check=check)  # type: ignore[arg-type]
    result = verify_problem(Conv.parse("conv2d n=4 c=2 in=32x32 k=8 filter=3x3"), DIRECT, None, settings)
    assert result.status == "ok", result.reason
    size = 4 * 8 * 30 * 30
    assert 0 < result.compared <= size // 4
    assert result.coverage == result.compared / size
    assert result.sanitized == (check != "fast")
    assert "the output" in result.sentence()


def test_a_wrong_element_of_a_sample_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sim, "WHOLE_MACS", 0)
    case = Conv.parse("conv2d n=4 c=2 in=32x32 k=8 filter=3x3")

    def doubled(plan: Plan) -> str:
        source = render(plan)
        assert "epilogue.apply(" in source
        return source.replace("epilogue.apply(", "2 * epilogue.apply(")

    monkeypatch.setattr(sim, "render", doubled)
    result = verify_problem(case, DIRECT, None, SETTINGS)
    assert result.status == "wrong"
    assert result.max_error is not None
    assert result.bound is not None
    assert result.max_error > result.bound


def test_an_unknown_backend_is_refused() -> None:
    with pytest.raises(UsageError, match="backend='simm': expected one of sim, cuda"):
        Settings(TARGET, "simm")  # type: ignore[arg-type]


def test_a_config_that_breaks_a_rule_fails_with_the_rule() -> None:
    config = dataclasses.replace(DIRECT.default(problem("n=1"), TARGET), threads_column=4096)
    result = verify_problem(problem("n=1"), DIRECT, config, SETTINGS)
    assert (result.status, result.exit_code) == ("failed", CompileError.exit_code)
    assert "4096" in result.reason


def test_an_answer_that_nothing_can_judge_has_failed() -> None:
    """Of 64 keys and five scores, the largest is several keys', and rounding at this scale tells them apart."""
    problem = Attention.parse("attention heads_q=1 seq_q=1 seq_kv=64 head_dim=1 scale=1e30")
    settings = dataclasses.replace(SETTINGS, inputs="small_integers", seed=2)
    result = verify_problem(problem, get_strategy("naive_attention"), None, settings)
    assert (result.status, result.compared) == ("failed", 0)
    assert "nothing to judge by" in result.reason


def test_the_oracle_is_kept_for_the_next_plan_of_the_same_problem() -> None:
    oracles = Oracles(SETTINGS)
    first = oracles.of(problem("n=2"), "normal")
    assert oracles.of(problem("n=2"), "normal") is first
    assert oracles.of(problem("n=3"), "normal") is not first
    again = oracles.of(problem("n=2"), "normal")
    assert again is not first
    assert all(numpy.array_equal(again.values[name], values) for name, values in first.values.items())


def test_a_result_that_is_not_finite_is_still_json() -> None:
    poisoned = VerifyResult(problem("n=1"), "direct", "sim", "wrong", "NaN", {"tile": 1}, None, 0.5)
    assert poisoned.as_json()["max_error"] is None
    assert poisoned.exit_code == 5


@pytest.mark.gpu
@pytest.mark.parametrize(
    "text",
    ["n=2", "n=*~3 dtype=fp16 layout=nhwc", "n=2 dtype=bf16 direction=wgrad", "n=2 accumulate=yes direction=dgrad"],
)
def test_a_plan_is_verified_on_the_gpu(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target = Target.current()
    settings = Settings(target, "cuda")
    plan = lower(problem(text), DIRECT, None, target)
    whole = verify_plan(plan, settings)
    assert (whole.status, whole.coverage) == ("ok", 1.0), whole.reason
    monkeypatch.setattr(cuda, "WHOLE_MACS", 0)
    monkeypatch.setattr(cuda, "COMPARED_ELEMENTS", 100)
    sampled = verify_plan(plan, settings)
    assert (sampled.status, sampled.compared > 50) == ("ok", True), sampled.reason


@pytest.mark.parametrize("strategy", ["direct", "im2col"])
@pytest.mark.parametrize(("right", "wrong"), [("channel, sum)", "channel, 0.0f)"), ("sum = 0.0f", "sum = 1.0f")])
def test_a_long_sum_that_is_left_out_or_off_by_one_is_found(
    monkeypatch: pytest.MonkeyPatch, strategy: str, right: str, wrong: str
) -> None:
    """The bound of 300000 terms of normal numbers is wider than their sum; integers are exact."""
    long = Conv.parse("conv1d n=1 c=1 k=1 in=300000 filter=3 pad=1 direction=wgrad")
    good = verify_problem(long, get_strategy(strategy), None, SETTINGS)
    assert (good.status, good.exact) == ("ok", True)

    def spoilt(plan: Plan) -> str:
        source = render(plan)
        assert right in source
        return source.replace(right, wrong)

    monkeypatch.setattr(sim, "render", spoilt)
    assert verify_problem(long, get_strategy(strategy), None, SETTINGS).status == "wrong"


def test_what_no_memory_holds_is_refused_before_it_is_tried() -> None:
    plan = lower(Conv.parse("conv2d n=10000000 c=8 in=64x64 k=8 filter=3x3 pad=1"), DIRECT, None, TARGET)
    with pytest.raises(
        MemoryShortage, match=r"about 15,728,640,013,824 bytes of memory, .* choose a smaller batch, .*--backend"
    ) as e:
        verify_plan(plan, SETTINGS)
    # Of x, y and w, twice in float64 and twice in fp32.
    assert e.value.needed == (2 * 10_000_000 * 8 * 64 * 64 + 8 * 8 * 9) * (16 + 8) > e.value.available > 0
    result = verify_problem(plan.problem, DIRECT, None, SETTINGS)
    assert (result.status, result.reason.startswith(f"verifying {plan.problem}")) == ("failed", True)


def test_what_does_not_fit_beside_others_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    needed = (4 * 9 * 8 + 4 * 4 * 9 + 4 * 9 * 8) * (16 + 8)
    for available, status in ((needed, "ok"), (needed - 1, "failed")):
        monkeypatch.setattr("convgen.verify.oracle.available_bytes", lambda room=available: room)
        assert verify_problem(problem("n=1"), DIRECT, None, SETTINGS).status == status


def test_outputs_past_2_29_elements_are_compared_at_a_sample() -> None:
    """Few products or not: float64 answers and bounds of all of them fill a GPU."""
    assert cuda.is_whole(Conv.parse("conv2d n=1 c=64 k=64 in=728x728 filter=1x1 dtype=fp16"))
    assert not cuda.is_whole(Conv.parse("conv2d n=65 c=64 k=64 in=728x728 filter=1x1 dtype=fp16"))
