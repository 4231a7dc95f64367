"""Contests on a stand-in clock: equal repetitions, who is timed, what becomes of those that fail."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from convgen.bench.contest import LEAST_ROUNDS, MOST_ROUNDS, TIMING_SECONDS, Schedule, hold, sentence
from convgen.bench.judge import Judge, admitted
from convgen.errors import CompileError
from convgen.measure import Replay
from convgen.plan import Numerics
from convgen.problem import Conv, DType
from convgen.ratios import coverage, geomean, order_interval
from convgen.reference import encode, reference, round_to


class Contestant:
    def __init__(self, name: str, seconds: float, fails: str = "") -> None:
        self.name = name
        self.seconds = seconds
        self.fails = fails

    def run(self, index: int) -> None:
        if self.fails == "run":
            raise RuntimeError("no engine for it\nand a long trace")

    def capture(self, repetitions: int) -> Replay:
        if self.fails == "capture":
            raise RuntimeError("operation not permitted when stream is capturing")
        return Replay(lambda: None, repetitions, self.seconds)


class Arena:
    """Each round is slower than the one before, for all alike."""

    def __init__(self, sets: int) -> None:
        self.sets = sets
        self.captured: dict[str, int] = {}

    def once(self, contestant: Contestant) -> float:
        contestant.run(0)
        return contestant.seconds

    def times(self, replays: Mapping[str, Replay], rounds: int) -> dict[str, list[float]]:
        self.captured = {name: replay.repetitions for name, replay in replays.items()}
        return {n: [r.seconds * (1 + 0.1 * i) for i in range(rounds)] for n, r in replays.items()}


def test_every_contestant_has_the_same_repetitions_and_rounds() -> None:
    arena = Arena(sets=20)
    contest = hold(arena, [Contestant("ours", 10e-6), Contestant("peer", 40e-6)])
    assert set(arena.captured.values()) == {contest.repetitions}
    assert contest.repetitions % 20 == 0
    assert {len(times) for times in contest.times.values()} == {contest.rounds}
    assert contest.rounds >= LEAST_ROUNDS


def test_what_cannot_run_or_be_captured_has_a_reason_and_leaves_the_others_be() -> None:
    entrants = [Contestant("ours", 10e-6), Contestant("a", 1e-6, "run"), Contestant("b", 1e-6, "capture")]
    contest = hold(Arena(sets=20), entrants)  # type: ignore[arg-type]
    assert list(contest.times) == ["ours"]
    assert contest.lost["a"] == "RuntimeError: no engine for it"
    assert "capturing" in contest.lost["b"]


def test_a_contest_without_contestants_is_empty() -> None:
    contest = hold(Arena(sets=2), [Contestant("a", 1e-6, "run")])  # type: ignore[arg-type]
    assert contest.times == {}


@pytest.mark.parametrize(
    ("estimates", "sets", "repetitions"),
    [
        ([10e-6, 20e-6], 20, 20),  # one cycle takes 200 us
        ([10e-6, 12e-6], 2, 10),  # five cycles make 100 us
        ([10e-6, 9e-3], 20, 10),  # a slow peer: half a cycle
        ([3e-3, 40e-3], 3, 1),  # nothing is short
    ],
)
def test_repetitions_go_round_the_buffers_unless_that_takes_too_long(
    estimates: list[float], sets: int, repetitions: int
) -> None:
    assert Schedule.of(estimates, sets).repetitions == repetitions


@pytest.mark.parametrize("scale", [1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1])
@pytest.mark.parametrize("sets", [2, 7, 60, 1024])
def test_a_contest_takes_no_longer_than_it_must(scale: float, sets: int) -> None:
    estimates = [scale, 2 * scale, 5 * scale]
    schedule = Schedule.of(estimates, sets)
    assert LEAST_ROUNDS <= schedule.rounds <= MOST_ROUNDS
    together = sum(estimates) * schedule.repetitions
    at_least = LEAST_ROUNDS if schedule.repetitions > (sets + 1) // 2 else 0
    if at_least:
        assert together * (schedule.rounds + 1) <= TIMING_SECONDS
    assert Schedule.of(estimates, sets, rounds=21).rounds == 21


def test_our_errors_speak_for_themselves() -> None:
    assert sentence(CompileError("line 3: no\nmore")) == "line 3: no"
    assert sentence(ValueError("bad")) == "ValueError: bad"
    assert sentence(MemoryError()) == "MemoryError"


# --- intervals --------------------------------------------------------------------------------------------


def test_the_interval_of_seven_rounds_is_their_range() -> None:
    # P(all seven on one side of the median) = 2 / 2^7.
    found = order_interval([3.0, 1.0, 2.0, 5.0, 4.0, 7.0, 6.0])
    assert (found.median, found.low, found.high) == (4.0, 1.0, 7.0)
    assert found.confidence == pytest.approx(1 - 2 / 128)


def test_the_interval_narrows_with_the_rounds() -> None:
    # 15 rounds: P(Binomial(15, 1/2) < 4) = (1 + 15 + 105 + 455) / 2^15 = 0.0176, and < 5 gives 0.0592: k is 4.
    found = order_interval([float(i) for i in range(1, 16)])
    assert (found.low, found.high) == (4.0, 12.0)
    assert found.confidence == pytest.approx(1 - 2 * 576 / 2**15)
    assert coverage(15, 5) == pytest.approx(1 - 2 * (576 + 1365) / 2**15)


def test_the_interval_covers_the_median_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    drawn = rng.exponential(size=(4000, 11))
    hits = [i.low <= np.log(2) <= i.high for row in drawn if (i := order_interval(list(row)))]
    assert np.mean(hits) == pytest.approx(coverage(11, 2), abs=0.01)


def test_the_geomean_is_of_what_is_known() -> None:
    assert geomean([2.0, None, 8.0]) == pytest.approx(4.0)
    assert geomean([None]) is None


# --- verdicts -----------------------------------------------------------------------------------------------


def answer_of(judge: Judge) -> Any:
    values = {name: array.astype(np.float64) for name, array in judge.arrays.items()}
    return {"y": encode(reference(judge.problem, values), judge.problem.out_dtype)}


def test_a_right_answer_is_right_and_one_wrong_element_is_not() -> None:
    judge = Judge(Conv.parse("conv2d n=1 c=3 k=4 in=8x8 filter=3 pad=1 layout=nhwc"), np)
    got = answer_of(judge)
    assert judge.verdict(got, Numerics()).ok
    got["y"][0, 2, 5, 1] += 1.0
    verdict = judge.verdict(got, Numerics())
    assert not verdict.ok
    assert verdict.max_error == pytest.approx(1.0, rel=1e-3)
    assert "[0, 2, 5, 1]" in verdict.reason


def test_a_large_output_is_judged_by_its_corners_and_a_sample() -> None:
    judge = Judge(Conv.parse("conv2d c=1 k=1 in=2100x2100 filter=1"), np)
    got = answer_of(judge)
    assert judge.verdict(got, Numerics()).ok
    got["y"][0, 0, -1, -1] += 1.0
    assert not judge.verdict(got, Numerics()).ok


def test_tf32_may_round_its_operands_and_fp32_may_not() -> None:
    for dtype, admits in (("tf32", True), ("fp32", False)):
        judge = Judge(Conv.parse(f"conv2d c=2 k=2 in=8x8 filter=1 dtype={dtype}"), np)
        values = {name: array.astype(np.float64) for name, array in judge.arrays.items()}
        rounded = {name: round_to(array, DType.TF32) for name, array in values.items()}
        got = reference(judge.problem, rounded).astype(np.float32)
        assert judge.verdict({"y": got}, admitted(judge.problem)).ok is admits


def test_an_infinite_error_is_no_number_in_json() -> None:
    judge = Judge(Conv.parse("conv2d c=1 k=1 in=4x4 filter=1"), np)
    verdict = judge.verdict({"y": np.full((1, 1, 4, 4), np.nan, np.float32)}, Numerics())
    assert verdict.as_json()["of_bound"] is None
