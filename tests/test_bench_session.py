"""A benchmark from problem to entry, on a stand-in GPU whose clock says what each contestant takes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import pytest
from fake_venue import PREPARED_SECONDS, TARGET, StandIn

from convgen.bench.choices import best_of, decider
from convgen.bench.ladder import NAIVE, candidates, climb
from convgen.bench.session import Bench
from convgen.errors import ConvgenError, DeviceError, NotApplicableError
from convgen.problem import Conv, SuiteEntry
from convgen.strategies import get_strategy
from convgen.tuner.decide import Decision
from convgen.tuner.keys import task_of, toolchains
from tuning_db import Layers, Trial, open_database

SMALL = Conv.parse("conv2d n=2 c=4 k=8 in=12x12 filter=3 pad=1")
DIRECT = get_strategy("direct")

near = partial(pytest.approx, rel=1e-3)
"""The stand-in's clock has the launch of a graph on an idle GPU too."""


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    return StandIn(monkeypatch)


def entry(problem: Any, id: str = "small", family: str = "tests") -> SuiteEntry:
    return SuiteEntry(id, family, problem, {})


def decide(changes: Mapping[str, Any]) -> Any:
    """Tuned: the default of `direct` with these changes; untuned: the default itself."""

    def decision(problem: Conv, target: Any, layers: Any) -> Decision:
        default = DIRECT.default(problem, target)
        if layers is None:
            return Decision(DIRECT, default, "predicted")
        return Decision(DIRECT, type(default).from_mapping(changes, default), "tuned")

    return decision


def with_database() -> Layers:
    return Layers(open_database(":memory:"), None, None)


# --- ours -------------------------------------------------------------------------------------------------


def test_an_entry_has_the_times_of_the_tuned_and_the_untuned_kernel(stand_in: StandIn) -> None:
    default = DIRECT.default(SMALL, TARGET)
    tuned = type(default).from_mapping({"threads_column": 64}, default)
    stand_in.seconds = {("direct", str(default)): 40e-6, ("direct", str(tuned)): 25e-6}
    bench = Bench(TARGET, stand_in.venue(), decide({"threads_column": 64}), with_database())
    [found] = bench.run([entry(SMALL)])
    assert found.ours_us == near(25.0)
    assert found.default_us == near(40.0)
    assert (found.strategy, found.origin) == ("direct", "tuned")
    assert found.config == tuned.as_dict()
    assert found.default_config == default.as_dict()
    assert found.verified
    assert found.error is not None
    assert found.error["of_bound"] is not None
    assert found.error["of_bound"] <= 1
    assert found.key == ("small", "fp32", "fprop", "nchw")
    assert (found.peers, found.ratio, found.best_peer) == ({}, None, None)
    assert found.rounds >= 7
    # 1,152 and 288 inputs, 2,304 outputs; the floor is far below the 2 us that count.
    assert found.bytes == 4 * (1152 + 288 + 2304)
    assert found.attained == near(2 / 25)
    assert found.clocks == {"before": {"sm_mhz": 1980.0, "celsius": 40.0}, "after": {"sm_mhz": 1980.0, "celsius": 40.0}}


def test_caches_are_cold_unless_the_problem_is_too_small_for_the_l2(stand_in: StandIn) -> None:
    [cold] = Bench(TARGET, stand_in.venue(), decide({}), None).run([entry(SMALL)])
    tiny = Conv.parse("conv2d c=1 k=1 in=3x3 filter=1")
    [warm] = Bench(TARGET, stand_in.venue(), decide({}), None).run([entry(tiny)])
    # 76 bytes: as many sets as there may be do not fill twice the L2; 18 sets of 15 KB are four times the L2.
    assert (cold.caches, warm.caches) == ("cold", "warm")


def test_the_default_is_timed_once_where_nothing_is_tuned(stand_in: StandIn) -> None:
    [found] = Bench(TARGET, stand_in.venue(), decide({}), None).run([entry(SMALL)])
    assert found.default_us == found.ours_us is not None
    assert stand_in.compiled == [1]


def test_what_the_weights_alone_need_has_a_column_of_its_own(stand_in: StandIn) -> None:
    stand_in.seconds = {"direct": 30e-6}
    bench = Bench(TARGET, stand_in.venue(), decide({"filter": "constant"}), with_database())
    [found] = bench.run([entry(SMALL)])
    assert found.ours_us == near(30.0)
    assert found.frozen_us == near(30.0 - PREPARED_SECONDS * 1e6)
    assert found.prepare_us == pytest.approx(PREPARED_SECONDS * 1e6, abs=0.05)
    [plain] = Bench(TARGET, stand_in.venue(), decide({}), None).run([entry(SMALL)])
    assert (plain.frozen_us, plain.prepare_us) == (None, None)


def test_a_wrong_answer_has_no_time(stand_in: StandIn) -> None:
    stand_in.wrong = {"direct"}
    [found] = Bench(TARGET, stand_in.venue(), decide({}), None).run([entry(SMALL)])
    assert (found.ours_us, found.verified) == (None, False)
    assert "1 of 2304 elements wrong" in found.reason
    assert found.error is not None


def test_a_wrong_default_is_told_though_ours_is_right(stand_in: StandIn) -> None:
    default = DIRECT.default(SMALL, TARGET)
    stand_in.wrong = {str(default)}
    bench = Bench(TARGET, stand_in.venue(), decide({"threads_column": 64}), with_database())
    [found] = bench.run([entry(SMALL)])
    assert found.ours_us is not None
    assert (found.default_us, found.verified) == (None, False)
    assert found.reason.startswith("default: 1 of 2304")


def test_what_no_strategy_computes_is_told_and_not_timed(stand_in: StandIn) -> None:
    fp8 = Conv.parse("conv2d n=2 c=4 k=8 in=12x12 filter=3 dtype=fp8 direction=dgrad")
    [found] = Bench(TARGET, stand_in.venue(), decider(), None).run([entry(fp8)])
    assert "fp8" in found.reason
    assert (found.strategy, found.ours_us, stand_in.compiled) == (None, None, [0])


def test_a_kernel_that_cannot_be_built_is_the_entrys_reason(stand_in: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    from convgen.bench import venue
    from convgen.errors import CompileError

    monkeypatch.setattr(venue, "compile_many", lambda jobs: [CompileError("line 7: expected a ;") for _ in jobs])
    [found] = Bench(TARGET, stand_in.venue(), decide({}), None).run([entry(SMALL)])
    assert "line 7" in found.reason
    assert found.ours_us is None


def test_kernels_are_unloaded_behind_every_problem(stand_in: StandIn) -> None:
    list(Bench(TARGET, stand_in.venue(), decide({"threads_column": 64}), with_database()).run([entry(SMALL)] * 2))
    assert stand_in.closed == 4
    assert stand_in.compiled == [4]


def test_a_lost_gpu_ends_the_run_behind_the_entry_that_lost_it(stand_in: StandIn) -> None:
    venue = stand_in.venue()
    bench = Bench(TARGET, venue, decide({}), None).run([entry(SMALL), entry(SMALL, "next")])
    venue.is_alive = lambda: False  # type: ignore[method-assign]
    assert next(bench).id == "small"
    with pytest.raises(DeviceError, match="small"):
        next(bench)


def test_short_memory_is_tried_again_with_fewer_buffers(stand_in: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    from convgen.bench import venue

    asked: list[int] = []
    original = venue.Card

    def card(judge: Any, l2_bytes: int, stream: Any) -> Any:
        asked.append(l2_bytes)
        if l2_bytes:
            raise MemoryError("out of memory")
        return original(judge, l2_bytes, stream)

    monkeypatch.setattr(venue, "Card", card)
    [found] = Bench(TARGET, stand_in.venue(), decide({}), None).run([entry(SMALL)])
    assert asked == [TARGET.l2_bytes, 0]
    assert found.ours_us is not None


# --- peers -------------------------------------------------------------------------------------------------


def test_the_best_peer_of_both_formats_is_what_ours_is_held_against(stand_in: StandIn) -> None:
    stand_in.use_torch()
    stand_in.seconds = {"direct": 20e-6, "nchw": 50e-6, "nhwc": 30e-6}
    [found] = Bench(TARGET, stand_in.venue(["cudnn"]), decide({}), None).run([entry(SMALL)])
    assert found.peers == {"cudnn_nchw": near(50.0), "cudnn_nhwc": near(30.0)}
    assert found.best_peer == "cudnn_nhwc"
    assert found.ratio == near(1.5)
    assert found.ratio_low is not None
    assert found.ratio_high is not None
    assert found.ratio_low <= found.ratio <= found.ratio_high
    assert found.confidence is not None
    assert found.confidence >= 0.95
    assert found.default_ratio == found.ratio
    assert found.peer_attained == near(2 / 30)
    assert found.out_of_bound == []
    assert set(found.peer_errors) == set(found.peers)


@pytest.mark.parametrize("text", [
    "conv2d n=2 c=4 k=8 in=12x12 filter=3 pad=1 dtype=bf16 layout=nhwc",
    "conv1d n=2 c=4 k=8 in=33 filter=3 pad=2:0 layout=nlc direction=dgrad",
    "conv_transpose2d n=1 c=4 k=6 in=5x6 filter=4 stride=2 pad=1",
    "conv2d n=2 c=4 k=8 in=9x9 filter=3 epilogue=scale+shift+relu accumulate=yes",
    "conv2d n=*~2 c=4 k=8 in=9x9 filter=3 direction=wgrad",
])  # fmt: skip
def test_peers_see_our_numbers_whatever_the_problem(stand_in: StandIn, text: str) -> None:
    stand_in.use_torch()
    [found] = Bench(TARGET, stand_in.venue(["cudnn"]), decider(), None).run([entry(Conv.parse(text))])
    assert found.reason == ""
    assert len(found.peers) == 2
    assert found.out_of_bound == []
    assert ("cudnn_1d_nhwc" in found.peers) == text.startswith("conv1d")


def test_a_peer_that_cannot_has_a_reason_and_never_a_zero(stand_in: StandIn) -> None:
    stand_in.use_torch()
    circular = Conv.parse("conv2d n=1 c=2 k=2 in=8x8 filter=3 pad=1 pad_mode=circular direction=dgrad")
    [found] = Bench(TARGET, stand_in.venue(["cudnn", "torch"]), decider(), None).run([entry(circular)])
    assert (found.peers, found.ratio) == ({}, None)
    assert set(found.peer_reasons) >= {"cudnn_nchw", "cudnn_nhwc", "torch_nchw", "torch_nhwc"}
    assert all("circular" in reason for reason in found.peer_reasons.values())


def test_a_peer_out_of_bound_is_timed_and_flagged_but_not_recorded(
    stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in.use_torch()
    database = open_database(":memory:")
    from convgen.bench import peers

    original = peers.call_of
    monkeypatch.setattr(peers, "call_of", lambda form, torch, like: lambda t: original(form, torch, like)(t) + 1)
    bench = Bench(TARGET, stand_in.venue(["cudnn"]), decide({}), Layers(database, None, None))
    [found] = bench.run([entry(SMALL)])
    assert database.peers() == []
    assert set(found.out_of_bound) == set(found.peers) == {"cudnn_nchw", "cudnn_nhwc"}
    assert found.ratio is not None


def test_peers_times_are_recorded_in_the_database(stand_in: StandIn) -> None:
    stand_in.use_torch()
    stand_in.seconds = {"nchw": 50e-6, "nhwc": 30e-6}
    database = open_database(":memory:")
    bench = Bench(TARGET, stand_in.venue(["cudnn"]), decide({}), Layers(database, None, None))
    list(bench.run([entry(SMALL)]))
    recorded = {peer.peer: peer for peer in database.peers()}
    assert recorded["cudnn_nhwc"].seconds == near(30e-6)
    assert recorded["cudnn_nhwc"].version.startswith("cuDNN")
    assert recorded["cudnn_nchw"].task == task_of(SMALL, TARGET, "tests")


def test_without_pytorch_the_peers_are_left_out(stand_in: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    venue = stand_in.venue(["cudnn"])
    assert "PyTorch" in venue.peers_left_out
    [found] = Bench(TARGET, venue, decide({}), None).run([entry(SMALL)])
    assert found.ours_us is not None


# --- which of ours, and the ladder ---------------------------------------------------------------------------


def test_one_strategys_best_is_its_winner_else_its_default() -> None:
    default = DIRECT.default(SMALL, TARGET)
    assert best_of(DIRECT, SMALL, TARGET, None).config == default
    layers = with_database()
    config = {**default.as_dict(), "threads_column": 64}
    layers.record(
        [
            Trial(
                task_of(SMALL, TARGET),
                "run",
                "direct",
                config,
                toolchains()["direct"],
                "ok",
                seconds=1e-5,
                stage="final",
            )
        ]
    )
    found = decider(DIRECT)(SMALL, TARGET, layers)
    assert (found.origin, found.config.as_dict()) == ("tuned", config)
    with pytest.raises(NotApplicableError, match="im2col"):
        best_of(get_strategy("im2col"), Conv.parse("conv2d c=1 k=1 in=8x8 filter=3 dtype=int8"), TARGET, None)


def test_the_ladder_goes_from_the_textbook_kernel_up(stand_in: StandIn) -> None:
    chosen = candidates(SMALL, TARGET, None)
    assert chosen[NAIVE].config.as_dict()["tile_position"] == 1
    stand_in.seconds = {("direct", str(chosen[NAIVE].config)): 100e-6, "direct": 40e-6, "im2col": 20e-6}
    found = {rung.name: rung for rung in climb(SMALL, TARGET, stand_in.venue(), chosen)}
    assert next(iter(found)) == NAIVE
    assert found["direct, untuned"].over_naive == near(2.5)
    assert found["im2col, untuned"].over_naive == near(5.0)
    assert found["im2col, untuned"].attained == near(2 / 20)
    times = [rung.us for rung in found.values() if rung.us is not None]
    assert times == sorted(times, reverse=True)


def test_a_wrong_rung_has_its_reason(stand_in: StandIn) -> None:
    stand_in.wrong = {"im2col"}
    rungs = climb(SMALL, TARGET, stand_in.venue(), candidates(SMALL, TARGET, None))
    [wrong] = [rung for rung in rungs if rung.is_wrong]
    assert (wrong.name, wrong.us) == ("im2col, untuned", None)
    assert "wrong" in wrong.reason


def test_our_errors_while_a_problem_is_opened_are_its_reason(
    stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    from convgen.bench import venue

    def refuse(*_: Any) -> None:
        raise ConvgenError("not today")

    monkeypatch.setattr(venue, "Card", refuse)
    [found] = Bench(TARGET, stand_in.venue(), decide({}), None).run([entry(SMALL)])
    assert found.reason == "not today"
