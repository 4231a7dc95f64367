"""How calls find their kernels: settings, decisions, what is passed over, what is tuned."""

from __future__ import annotations

import asyncio
import json
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from fake_decisions import BY_HAND, Rig, by_hand, rig, w_of, x_of

import convgen
from convgen.api import choice, decision, functions, settings
from convgen.api.decision import Chosen, read_decisions
from convgen.errors import CompileError, NotApplicableError, UsageError
from convgen.space import Config

PROBLEM = "conv1d n=4 c=1 k=1 in=50 filter=1"


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    # The cost model's choice, which the fake GPU must be able to run.
    for part in (choice, decision):
        monkeypatch.setattr(part, "predicted", lambda problem, target: (by_hand(),))
    monkeypatch.setattr(decision, "get_strategy", lambda name: {"by_hand": BY_HAND}[name])
    with rig() as made:
        yield made


@pytest.fixture(autouse=True)
def cached() -> Iterator[None]:
    yield
    convgen.tuning("cached")


def _call(gpu: Rig, n: int = 4) -> list[int]:
    """The workspace of what has been compiled once a call is done: it tells the configs apart."""
    np.testing.assert_array_equal(convgen.conv1d(x_of(n), w_of(3)).array, x_of(n).array * 3)
    return [config.workspace for config in gpu.compiled]


def _start_anew() -> None:
    functions.DISPATCHER.forget()
    functions.DISPATCHER._programs.clear()


# --- settings -----------------------------------------------------------------------------------------


def test_a_call_sets_and_a_block_sets_within() -> None:
    assert settings.current().mode == "cached"
    convgen.tuning("never")
    with convgen.tuning("on_miss", trials=3):
        assert (settings.current().mode, settings.current().trials) == ("on_miss", 3)
        with convgen.tuning("cached"):
            assert settings.current().mode == "cached"
        assert settings.current().mode == "on_miss"
    assert settings.current().mode == "never"


def test_a_block_is_its_threads_own() -> None:
    seen: list[str] = []
    with convgen.tuning("never"):
        thread = threading.Thread(target=lambda: seen.append(settings.current().mode))
        thread.start()
        thread.join()
    convgen.tuning("on_miss")
    thread = threading.Thread(target=lambda: seen.append(settings.current().mode))
    thread.start()
    thread.join()
    assert seen == ["cached", "on_miss"]


def test_a_block_is_its_tasks_own() -> None:
    async def within(mode: str, entered: asyncio.Barrier) -> str:
        with convgen.tuning(mode):
            await entered.wait()
            return settings.current().mode

    async def both() -> list[str]:
        entered = asyncio.Barrier(2)
        return await asyncio.gather(within("never", entered), within("on_miss", entered))

    assert asyncio.run(both()) == ["never", "on_miss"]
    assert settings.current().mode == "cached"


def test_blocks_of_many_threads_leave_nothing_behind() -> None:
    def work() -> None:
        for _ in range(200):
            with convgen.tuning("never"):
                assert settings.current().mode == "never"

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert settings.current().mode == "cached"


def test_one_object_may_be_entered_again() -> None:
    never = convgen.tuning("never")
    for _ in range(2):
        with never, never:
            assert settings.current().mode == "never"
        assert settings.current().mode == "cached"


def test_equal_settings_are_one_object() -> None:
    assert settings.setting("on_miss", 1.0, 2, None) is settings.setting("on_miss", 1.0, 2, None)


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (("always",), {}, "tuning mode 'always': expected one of never, cached, on_miss, frozen"),
        (("cached",), {"trials": 3}, "time_limit and trials belong to 'on_miss'"),
        (("frozen",), {}, "served from decisions="),
        (("never",), {"decisions": "{}"}, "served from decisions="),
        (("on_miss",), {"time_limit": 0}, "time_limit=0: expected seconds above 0"),
        (("on_miss",), {"trials": 0}, "trials=0: expected at least 1"),
        (("on_miss",), {"time_limit": None}, "expected a limit, of time or of trials"),
        (("frozen",), {"decisions": "hello"}, r"not the text of convgen.decisions\(\)"),
        (("frozen",), {"decisions": '{"version": 99, "decisions": []}'}, "version 99, expected 1"),
        (("frozen",), {"decisions": '{"version": 1, "decisions": [{"problem": 3}]}'}, "not the text"),
        (("frozen",), {"decisions": "[" * 100000}, "not the text"),
        (("frozen",), {"decisions": {}}, r"decisions is a dict, expected the text that convgen\.decisions\(\) gave"),
        (("on_miss",), {"trials": "3"}, "trials='3': expected an integer of at least 1"),
        (("on_miss",), {"trials": 2.5}, r"trials=2\.5: expected an integer of at least 1"),
        (("on_miss",), {"time_limit": "3"}, "time_limit='3': expected seconds above 0"),
        (("on_miss",), {"time_limit": [3]}, r"time_limit=\[3\]: expected seconds above 0"),
        ((["never"],), {}, r"tuning mode \['never'\]: expected one of never"),
    ],
)
def test_settings_that_mean_nothing(arguments: Any, options: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        convgen.tuning(*arguments, **options)
    assert settings.current().mode == "cached"


# --- modes --------------------------------------------------------------------------------------------


def test_cached_takes_the_best_known_and_asks_once(gpu: Rig) -> None:
    gpu.decider.ranking = [by_hand(256, "tuned"), by_hand()]
    assert _call(gpu) == [256]
    convgen.conv1d(x_of(), w_of(3), padding="valid")
    _call(gpu)
    assert len(gpu.compiled) == 1


def test_never_asks_nobody(gpu: Rig) -> None:
    gpu.decider.ranking = [by_hand(256, "tuned")]
    with convgen.tuning("never"):
        assert _call(gpu) == [0]
    assert gpu.decider.asked == 0
    assert _call(gpu) == [0, 256]


def test_on_miss_tunes_once_and_serves_all_from_then_on(gpu: Rig) -> None:
    gpu.decider.winner = by_hand(512, "tuned")
    assert _call(gpu) == [0]
    weight = convgen.prepare(w_of(3))
    convgen.conv1d(x_of(), weight)
    with convgen.tuning("on_miss", time_limit=2.5, trials=7):
        for _ in range(2):
            assert _call(gpu) == [0, 512]
    assert gpu.decider.tuned == [(PROBLEM, 0, 2.5, 7)]
    assert _call(gpu) == [0, 512]
    BY_HAND.lowered.clear()
    convgen.conv1d(x_of(), weight)
    assert [config.workspace for config in BY_HAND.lowered] == [512]


def test_on_miss_does_not_tune_what_is_tuned(gpu: Rig) -> None:
    gpu.decider.ranking = [by_hand(256, "tuned")]
    with convgen.tuning("on_miss"):
        assert _call(gpu) == [256]
    assert gpu.decider.tuned == []


def test_on_miss_tunes_what_is_stale(gpu: Rig) -> None:
    gpu.decider.ranking, gpu.decider.winner = [by_hand(256, "stale")], by_hand(512, "tuned")
    with convgen.tuning("on_miss"):
        assert _call(gpu) == [512]


def test_a_captured_miss_is_not_tuned(gpu: Rig) -> None:
    gpu.decider.winner = by_hand(512, "tuned")
    with convgen.tuning("on_miss"):
        gpu.fake.driver.capturing = True
        assert _call(gpu) == [0]
        assert gpu.decider.tuned == []
        gpu.fake.driver.capturing = False
        assert _call(gpu) == [0, 512]


def test_threads_that_miss_together_tune_once(gpu: Rig) -> None:
    gpu.decider.winner = by_hand(512, "tuned")
    convgen.tuning("on_miss")
    threads = [threading.Thread(target=lambda: convgen.conv1d(x_of(), w_of(3))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(gpu.decider.tuned) == 1
    assert [config.workspace for config in gpu.compiled] == [512]


def test_tuning_that_fails_is_told_and_not_tried_again(gpu: Rig) -> None:
    gpu.decider.winner = None
    gpu.decider.tune = lambda *_, **__: (_ for _ in ()).throw(RuntimeError("no room"))  # type: ignore[method-assign]
    with convgen.tuning("on_miss"), warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(2):
            assert _call(gpu) == [0]
            functions.DISPATCHER.forget()
    [only] = told
    assert "could not be tuned (no room)" in str(only.message)


def test_an_interrupted_search_interrupts_the_call(gpu: Rig) -> None:
    gpu.decider.tune = lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt)  # type: ignore[method-assign]
    with convgen.tuning("on_miss"), pytest.raises(KeyboardInterrupt):
        _call(gpu)


# --- what is passed over ------------------------------------------------------------------------------


def test_a_database_in_trouble_is_told_and_the_cost_model_decides(gpu: Rig) -> None:
    gpu.decider.trouble = OSError("disk I/O error")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert _call(gpu) == [0]
        _call(gpu, 5)
    [only] = told
    assert "cannot be asked for (disk I/O error)" in str(only.message)
    assert only.filename == __file__


def test_trouble_half_way_through_a_ranking_is_met_by_the_cost_model(gpu: Rig) -> None:
    def ranked(problem: Any, target: Any) -> Iterator[Chosen]:
        yield by_hand(-5, "tuned")
        raise OSError("disk I/O error")

    gpu.decider.ranked = ranked  # type: ignore[method-assign,assignment]
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert _call(gpu) == [0]
    assert ["workspace=-5" in str(t.message) for t in told] == [True, False]
    assert "cannot be asked for (disk I/O error)" in str(told[1].message)


def test_a_ranking_is_asked_no_further_than_needed(gpu: Rig) -> None:
    def ranked(problem: Any, target: Any) -> Iterator[Chosen]:
        yield by_hand(256, "tuned")
        raise AssertionError("asked for a second")

    gpu.decider.ranked = ranked  # type: ignore[method-assign,assignment]
    assert _call(gpu) == [256]
    assert not functions.DISPATCHER._chooser._told


def test_that_nothing_applies_is_said(gpu: Rig) -> None:
    gpu.decider.trouble = NotApplicableError("no strategy applies")
    with pytest.raises(NotApplicableError, match="no strategy applies"):
        _call(gpu)


@pytest.mark.parametrize("bad", [by_hand(-5, "tuned"), by_hand(-5, "stale"), Chosen(BY_HAND, Config(), "neighbour")])
def test_a_stored_config_that_is_not_legal_is_passed_over_with_one_warning(gpu: Rig, bad: Chosen) -> None:
    gpu.decider.ranking = [bad, by_hand(256, "neighbour"), by_hand()]
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert _call(gpu) == [256]
        convgen.conv1d(x_of(), w_of(3), padding="valid")
    assert len(told) == 1
    assert f"{bad.origin} for {PROBLEM}, cannot be used" in str(told[0].message)


def test_a_stored_config_that_does_not_compile_is_passed_over(gpu: Rig) -> None:
    gpu.decider.ranking = [by_hand(1024, "tuned"), by_hand()]
    attempts: list[int] = []

    def once() -> None:
        attempts.append(1)
        if len(attempts) == 1:
            raise CompileError("does not compile")

    gpu.compile_hook = once
    with pytest.warns(UserWarning, match=r"cannot be used \(does not compile\)"):
        assert _call(gpu) == [0]


def test_a_default_that_does_not_compile_is_an_error(gpu: Rig) -> None:
    def refuse() -> None:
        raise CompileError("does not compile")

    gpu.compile_hook = refuse
    with pytest.raises(CompileError):
        _call(gpu)


def test_a_decision_over_the_workspace_limit_is_passed_over(gpu: Rig) -> None:
    least = 256 + 1024  # the plan's own: four marks, and 4 x 50 floats, each padded to 256
    gpu.decider.ranking = [by_hand(8192, "tuned"), by_hand(512, "neighbour"), by_hand()]
    for limit, expected in ((least + 8192, 8192), (least + 8191, 512), (least + 511, 0), (least, 0)):
        gpu.compiled.clear()
        _start_anew()
        y = convgen.conv1d(x_of(), w_of(3), workspace_limit=limit)
        np.testing.assert_array_equal(y.array, x_of().array * 3)
        assert [config.workspace for config in gpu.compiled] == [expected]
    with pytest.raises(UsageError, match=rf"workspace_limit={least - 1}: {PROBLEM} needs at least {least} bytes"):
        convgen.conv1d(x_of(), w_of(3), workspace_limit=least - 1)


# --- decisions as text --------------------------------------------------------------------------------


def test_decisions_are_sorted_text_that_reads_back(gpu: Rig) -> None:
    gpu.decider.ranking = [by_hand(256, "tuned")]
    assert json.loads(convgen.decisions()) == {"version": 1, "decisions": []}
    for n in (5, 3):
        _call(gpu, n)
    content = json.loads(convgen.decisions())
    assert content["decisions"] == [
        {
            "problem": f"conv1d n={n} c=1 k=1 in=50 filter=1",
            "device": "h200",
            "capability": "9.0",
            "sm_count": 132,
            "strategy": "by_hand",
            "config": {"workspace": 256},
        }
        for n in (3, 5)
    ]
    assert len(read_decisions(convgen.decisions()).entries) == 2


def test_frozen_is_served_from_the_text_alone(gpu: Rig) -> None:
    gpu.decider.ranking = [by_hand(256, "tuned")]
    _call(gpu)
    text = convgen.decisions()
    gpu.decider.ranking, gpu.decider.asked = [by_hand(512, "tuned")], 0
    _start_anew()
    gpu.compiled.clear()
    with convgen.tuning("frozen", decisions=text):
        assert _call(gpu) == [256]
        assert _call(gpu, 7) == [256, 0]  # a miss is the default
    assert gpu.decider.asked == 0


def test_frozen_text_of_another_gpu_serves_the_same_problem(gpu: Rig) -> None:
    gpu.decider.ranking = [by_hand(256, "tuned")]
    _call(gpu)
    text = convgen.decisions().replace("h200", "h100")
    with convgen.tuning("frozen", decisions=text):
        assert _call(gpu) == [256]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"workspace": 256', '"workspace": -1'),
        ('"workspace": 256', '"workspace": "; import os"'),
        ('"workspace": 256', '"unknown": 256'),
        ('"by_hand"', '"no_such_strategy"'),
    ],
)
def test_frozen_text_edited_by_hand_is_passed_over(gpu: Rig, old: str, new: str) -> None:
    gpu.decider.ranking = [by_hand(256, "tuned")]
    _call(gpu)
    text = convgen.decisions()
    assert old in text
    gpu.compiled.clear()
    with convgen.tuning("frozen", decisions=text.replace(old, new)), pytest.warns(UserWarning, match="cannot be used"):
        assert _call(gpu) == [0]
