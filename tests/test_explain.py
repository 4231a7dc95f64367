"""`convgen explain`: the roofline, and what it says of each strategy."""

from __future__ import annotations

import re

import pytest
from test_cli import H200, SIM, SMALL, json_lines, run

from convgen.cli.explain_command import _where_fft_leads
from convgen.crossover import Crossover, crossover
from convgen.errors import ConfigError
from convgen.lowering import why_not
from convgen.problem import Conv
from convgen.strategies import get_strategy, strategies_of
from convgen.target import presets

CONV = Conv.parse("conv2d n=1 c=1 in=8 k=1 filter=1")
H200_TARGET = presets()["h200"]


def test_explain_gives_the_roofline_of_hand_computed_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    # An 8x8 image, one tap: 64 FMA; x, w and y are 64, 1 and 64 floats.
    problem = ["conv2d", "n=1", "c=1", "in=8x8", "k=1", "filter=1"]
    status, out, _ = run(capsys, "explain", *problem, *H200, "--json")
    [found] = json_lines(out)
    roofline = found["roofline"]
    assert status == 0
    assert (roofline["flops"], roofline["nbytes"]) == (128, 516)
    assert roofline["intensity"] == pytest.approx(128 / 516)
    assert roofline["limit"] == "memory"
    assert roofline["seconds"] == pytest.approx(516 / presets()["h200"].attainable.bandwidth)


def test_explain_lists_every_strategy_with_a_time_or_a_reason(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "explain", *SMALL, "direction=wgrad", *H200, "--json")
    [found] = json_lines(out)
    assert {s["strategy"] for s in found["strategies"]} == {s.name for s in strategies_of(CONV)}
    ranks = [(not s["calibrated"], s["predicted_seconds"]) for s in found["strategies"] if s["reason"] is None]
    assert ranks == sorted(ranks)
    assert all(s["predicted_seconds"] is None and s["config"] is None for s in found["strategies"] if s["reason"])
    _, out, _ = run(capsys, "explain", *SMALL, "direction=wgrad", *H200)
    for strategy in strategies_of(CONV):
        assert strategy.name in out


def test_explain_says_where_operands_live_and_what_limits_occupancy(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "explain", *SMALL, *H200)
    assert re.search(r"^  w +\S+ +576 B +\S", out, re.MULTILINE)
    assert "limited by" in out


def test_explain_takes_an_attention(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "explain", "attention", "batch=1", "heads_q=2", "seq_q=16", "head_dim=8", *H200)
    assert status == 0
    assert "Roofline" in out
    assert "Scores, in memory or not" in out
    assert re.search(r"^  flash_attention +[0-9.]+ µs", out, re.MULTILINE)
    # A cost model that is not fitted stands behind those that are, and says so.
    assert re.search(r"^  flash_attention .*\n  naive_attention .*not yet fitted", out, re.MULTILINE)


def test_explain_of_what_nothing_computes_exits_with_3(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "explain", *SMALL, "dtype=fp8", "direction=dgrad", *H200)
    assert status == 3
    assert out.count("does not apply: ") == len(strategies_of(CONV))
    assert out.count("does not apply: dtype=fp8") == len(strategies_of(CONV)) - 1  # wgmma has it, forward


def test_a_default_that_breaks_a_rule_is_a_strategy_that_does_not_apply(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise ConfigError("34359738352 blocks: a grid has at most 2147483647")

    monkeypatch.setattr(type(get_strategy("cache_halo")), "check", refuse)
    status, out, _ = run(capsys, "explain", *SMALL, *H200)
    assert status == 0
    assert re.search(r"^  cache_halo +does not apply: 34359738352 blocks", out, re.MULTILINE)
    assert re.search(r"^  direct +[0-9.]+ µs", out, re.MULTILINE)
    status, out, _ = run(capsys, "verify", *SMALL, *SIM, "--json")
    results = {result["strategy"]: result for result in json_lines(out)}
    assert status == 0
    assert results["cache_halo"]["status"] == "not_applicable"
    assert results["direct"]["status"] == "ok"


def test_a_problem_that_no_launch_covers_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "explain", "conv2d", "n=2147483647", "c=4", "k=4", "in=64", "filter=3", *H200)
    assert status == 3
    assert out.count("does not apply: ") == len(strategies_of(CONV))


@pytest.mark.parametrize(
    "text",
    [
        "conv2d n=32 c=64 k=128 in=56x56 filter=9x9 pad=4 dtype=fp16 layout=nhwc",
        "conv2d n=8 c=32 in=30x30 k=32 filter=3x3 pad=1 stride=2 dtype=tf32",
        "conv1d n=16 c=64 k=64 in=512 filter=4 pad=1:2 dtype=bf16 layout=nlc",
        "conv2d n=1 c=1 k=1 in=2048x2048 filter=5x5 pad=2",
    ],
)
def test_what_is_the_fastest_at_the_problem_s_own_filter_is_first_of_the_list(text: str) -> None:
    problem = Conv.parse(text)
    applies = {s for s in strategies_of(problem) if why_not(problem, s, H200_TARGET) is None}
    times = {s.name: s.cost(problem, s.default(problem, H200_TARGET), H200_TARGET) for s in applies}
    found = crossover(problem, strategies_of(problem), H200_TARGET)
    assert found is not None
    place = found.extents.index(problem.filter[0])
    assert {name: row[place] for name, row in found.seconds.items() if row[place] is not None} == times
    assert found.fastest[place] == min(times, key=times.__getitem__)
    assert set(found.shown) >= set(found.fastest) - {None}


def test_where_fft_leads_is_said_in_words() -> None:
    def told(*fft: float) -> str:
        return _where_fft_leads(Crossover((3, 5, 7), {"direct": (2.0, 2.0, 2.0), "fft": fft}))

    assert told(3.0, 1.0, 1.0) == "fft stays ahead from 5 on"
    assert told(3.0, 1.0, 3.0) == "fft is ahead at 5, not at the largest"
    assert told(3.0, 3.0, 3.0) == "fft is not ahead at any of them"


def test_a_prediction_below_the_roofline_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    fast = ["conv2d", "n=32", "c=64", "k=128", "in=56x56", "filter=9x9", "pad=4", "dtype=fp16", "layout=nhwc"]
    for problem, is_beyond in ((fast, True), (SMALL, False)):
        _, out, _ = run(capsys, "explain", *problem, *H200, "--json")
        [found] = json_lines(out)
        times = [s["predicted_seconds"] for s in found["strategies"] if s["reason"] is None]
        assert (min(times) < found["roofline"]["seconds"]) == is_beyond
        _, out, _ = run(capsys, "explain", *problem, *H200)
        assert ("not bounds" in out) == is_beyond
        assert "at least" not in out.partition("Strategies")[0]
