"""The tuner from end to end, on the simulator and a fake clock."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from faulty_strategy import BEST, CRASHING, FAULTY, SIMULATED, THREADS, FaultyConfig
from processes_of import descendants
from tuning_records import a_run, a_trial

from convgen.errors import DeviceError, NotApplicableError, UsageError
from convgen.problem import Conv, Problem
from convgen.space import Config
from convgen.strategies import get_strategy
from convgen.target import Target
from convgen.tuner import session
from convgen.tuner.builder import Build, Builder
from convgen.tuner.decide import decide, known
from convgen.tuner.events import Budget, Progress, TuneResult
from convgen.tuner.keys import task_of, toolchains
from convgen.tuner.limits import Limits
from convgen.tuner.pipeline import LOOKAHEAD
from convgen.tuner.runner import Runner
from convgen.tuner.session import Tuner
from tuning_db import Database, Layers, open_database, query
from tuning_db.lines import merge, records

H200 = Target.preset("h200")
PROBLEM = Conv.parse("conv2d n=1 c=3 in=8x8 k=4 filter=3x3 pad=1")
LIMITS = Limits(build=4.0, simulate=1.5)


@pytest.fixture
def database(tmp_path: Path) -> Database:
    return open_database(tmp_path / "tuning.sqlite")


@pytest.fixture(autouse=True)
def _no_process_is_left_behind() -> Iterator[None]:
    before = descendants(os.getpid())
    yield
    assert descendants(os.getpid()) <= before


def tuner(database: Database | None = None, **options: Any) -> Tuner:
    given: dict[str, Any] = {
        "database": None if database is None else Layers(database), "backend": "sim", "build_workers": 2,
        "limits": LIMITS, "budget": Budget(trials=6, seconds=None), "strategies": [FAULTY],
    }  # fmt: skip
    return Tuner(H200, **{**given, **options})


def test_every_fault_is_named_and_the_right_winner_found(database: Database) -> None:
    everything = len(SIMULATED) * len(THREADS)
    with tuner(database, budget=Budget(trials=everything, seconds=None)) as session:
        result = session.tune(PROBLEM)
    assert result.best is not None
    assert result.best.config == FaultyConfig("none", BEST)
    recorded = {str(t.config["fault"]): t.status for t in database.trials()}
    assert recorded == SIMULATED
    assert all(t.reason for t in database.trials() if t.status != "ok")
    assert (result.trials, result.outcome) == (everything, "finished")
    [run] = database.runs()
    assert (run.outcome, run.summary["statuses"]) == ("finished", dict(result.statuses))


def test_a_second_call_is_served_without_a_trial(database: Database, tmp_path: Path) -> None:
    with tuner(database) as session:
        first = session.tune(PROBLEM, "textbook")
        again = session.tune(PROBLEM)
    assert (again.outcome, again.trials) == ("served", 0)
    assert again.best is not None
    assert first.best is not None
    assert (again.best.strategy, again.best.config) == (first.best.strategy, first.best.config)
    copy = open_database(tmp_path / "copy.sqlite")
    merge(copy, tmp_path / "tuning.sqlite")
    with tuner(copy) as session:
        assert session.tune(PROBLEM).best == again.best
    with tuner(database, retune=True) as session:
        assert session.tune(PROBLEM).outcome == "finished"
    assert {t.task.family for t in database.trials()} == {"textbook"}


@pytest.mark.parametrize(
    ("outcome", "tried"), [("interrupted", ["faulty"]), ("running", ["faulty"]), ("finished", ["another"])]
)
def test_a_search_that_did_not_end_or_left_out_strategies_goes_on_from_its_winner(
    database: Database, outcome: str, tried: list[str]
) -> None:
    task, winner = task_of(PROBLEM, H200, simulated=True), FaultyConfig("none", 256)
    database.record_run(a_run(task=task, outcome=outcome, settings={"strategies": tried}))
    toolchain = toolchains([FAULTY])["faulty"]
    database.record([a_trial(1e-9, task, strategy="faulty", config=winner.as_dict(), toolchain=toolchain)])
    assert _config_known(database) == winner
    with tuner(database, budget=Budget(trials=2, seconds=None)) as session:
        assert session.tune(PROBLEM).outcome == "finished"
        assert session.tune(PROBLEM).outcome == "served"
    [searched] = [run for run in database.runs() if run.id != "run-1"]
    assert {t.config["threads"]: t.origin for t in database.trials() if t.run == searched.id} == {
        32: "default", 256: "seed"
    }  # fmt: skip


def _config_known(database: Database) -> Config:
    return next(known(PROBLEM, H200, Layers(database), [FAULTY], simulated=True)).config


def test_a_search_of_all_strategies_replaces_the_winner_of_fewer(database: Database) -> None:
    problem = Conv.parse("conv2d c=2 k=2 in=6 filter=3")
    with tuner(database, strategies=[get_strategy("im2col")], budget=Budget(trials=2, seconds=None)) as session:
        first = session.tune(problem).best
    with tuner(database, strategies=None, budget=Budget(trials=3, seconds=None)) as session:
        second, served = session.tune(problem), session.tune(problem)
    assert (second.outcome, served.outcome) == ("finished", "served")
    assert first is not None
    assert second.best is not None
    assert served.best is not None
    assert (served.best.strategy, served.best.config) == (second.best.strategy, second.best.config)
    assert (served.best.seconds or 1.0) < (first.seconds or 0.0)


def test_a_winner_that_came_without_its_run_is_served(database: Database, tmp_path: Path) -> None:
    with tuner(database) as session:
        best = session.tune(PROBLEM).best
    copy = open_database(tmp_path / "copy.sqlite")
    copy.merge(records(database, winners_only=True))
    with tuner(copy) as session:
        again = session.tune(PROBLEM)
    assert (again.outcome, again.best and again.best.config) == ("served", best and best.config)


def test_another_process_is_served_the_same_winner(database: Database, tmp_path: Path) -> None:
    problem = Conv.parse("conv2d c=2 k=2 in=6 filter=3")
    with tuner(database, strategies=[get_strategy("direct")]) as session:
        best = session.tune(problem).best
    assert best is not None
    with _tuning(problem, tmp_path / "tuning.sqlite") as other:
        told, _ = other.communicate()
    assert "from the database" in told
    assert str(best.config) in told


def test_sixteen_processes_tune_at_once(tmp_path: Path) -> None:
    place = tmp_path / "tuning.sqlite"
    problems = [Conv.parse(f"conv2d c={1 + i % 8} k=2 in=6 filter=3") for i in range(16)]  # each of two processes
    running = [_tuning(problem, place, "--trials", "3", "--retune", "--jobs", "1") for problem in problems]
    told = [process.communicate() for process in running]
    assert [process.returncode for process in running] == [0] * 16
    assert [errors for _, errors in told if "convgen:" in errors] == []  # on a slow machine they tell their progress
    with open_database(place) as database:
        assert sorted(run.outcome for run in database.runs()) == ["finished"] * 16
        trials = database.trials()
    assert Counter(trial.task.problem for trial in trials) == {str(problem): 6 for problem in problems}


def _tuning(problem: Conv, place: Path, *options: str) -> subprocess.Popen[str]:
    command = ["tune", "--backend", "sim", "--strategy", "direct", *options, *str(problem).split()]
    return subprocess.Popen(
        [sys.executable, "-m", "convgen", *command],
        env={**os.environ, "CONVGEN_TUNING_DB": str(place)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_simulated_times_never_serve_a_gpu(database: Database) -> None:
    with tuner(database, strategies=[get_strategy("direct")]) as session:
        session.tune(PROBLEM)
    layers = Layers(database)
    assert decide(PROBLEM, H200, layers).origin == "predicted"
    assert decide(PROBLEM, H200, layers, simulated=True).origin == "unfinished"  # of one strategy alone
    assert {t.task.device for t in database.trials()} == {task_of(PROBLEM, H200, simulated=True).device}


def test_all_strategies_compete_and_the_default_is_held_against_the_best(database: Database) -> None:
    with tuner(database, strategies=None, budget=Budget(trials=14, seconds=None)) as session:
        result = session.tune(PROBLEM)
    assert result.best is not None
    assert result.default is not None
    untuned = decide(PROBLEM, H200, None)
    assert (result.default.strategy, result.default.config) == (untuned.strategy, untuned.config)
    assert (result.best.seconds or 1.0) <= (result.default.seconds or 0.0)
    assert {t.strategy for t in database.trials()} == {"cache_halo", "direct", "halo_tiled", "im2col"}
    [standing] = query.standings(database)
    assert standing.over_default == pytest.approx((result.default.seconds or 0.0) / (result.best.seconds or 1.0))
    assert {t.stage for t in database.trials() if t.config == result.best.config.as_dict()} == {"final"}


def test_progress_tells_the_best_so_far_and_what_failed(database: Database) -> None:
    seen: list[Progress] = []
    with tuner(database, progress=seen.append, budget=Budget(trials=10, seconds=100.0)) as session:
        result = session.tune(PROBLEM)
    assert [sum(p.statuses.values()) for p in seen] == [*range(1, 11), 10]
    best = [p.best.seconds for p in seen[:-1] if p.best is not None and p.best.seconds is not None]
    assert best == sorted(best, reverse=True)
    assert all(p.seconds_left is not None and 0 <= p.seconds_left <= 100 for p in seen)
    assert seen[-1].finished == result


def test_cancelling_keeps_what_is_known(database: Database) -> None:
    def stop_after_three(progress: Progress) -> None:
        if sum(progress.statuses.values()) >= 3:
            session.cancel()

    with tuner(database, budget=Budget(seconds=None), progress=stop_after_three) as session:
        result = session.tune(PROBLEM)
    assert result.outcome == "interrupted"
    assert result.best is not None
    assert 3 <= result.trials <= 4
    assert len(database.trials()) == result.trials
    assert [run.outcome for run in database.runs()] == ["interrupted"]


def test_leaving_early_waits_for_no_candidate() -> None:
    large = Conv.parse("conv2d n=4 c=512 in=56x56 k=512 filter=3x3 pad=1")
    direct, one = [get_strategy("direct")], Budget(trials=1, seconds=None)
    with tuner(strategies=direct, budget=one, limits=Limits(), devices=(0, 1)) as session:
        results = session.tune_many([(PROBLEM, ""), (large, "")])
        result = next(results)
        began = time.monotonic()
        results.close()
        assert time.monotonic() - began < 4
    assert isinstance(result, TuneResult)
    assert result.problem == PROBLEM


def test_a_search_ends_when_patience_is_at_an_end() -> None:
    with tuner(budget=Budget(seconds=None, patience=3)) as session:
        result = session.tune(PROBLEM)
    assert result.trials < len(SIMULATED) * len(THREADS)


def test_a_search_without_time_still_measures_what_would_run_untuned() -> None:
    with tuner(budget=Budget(seconds=0.0)) as session:
        result = session.tune(PROBLEM)
    assert result.default is not None
    assert result.default.config == FAULTY.default(PROBLEM, H200)
    assert result.trials <= 2 + LOOKAHEAD  # what two workers had in hand


def test_where_nothing_is_right_there_is_no_best(database: Database) -> None:
    with tuner(database, strategies=[CRASHING], budget=Budget(trials=2, seconds=None)) as session:
        result = session.tune(PROBLEM)
    assert result.best is None
    assert dict(result.statuses) == {"worker_died": 2}
    assert {t.status for t in database.trials()} == {"worker_died"}


def test_a_source_that_crashed_before_is_not_run_again(database: Database) -> None:
    everything = Budget(trials=len(SIMULATED) * len(THREADS), seconds=None)
    with tuner(database, budget=everything) as session:
        session.tune(PROBLEM)
    with tuner(database, budget=everything, retune=True) as session:
        result = session.tune(PROBLEM)
    again = {str(t.config["fault"]): t.reason for t in database.trials() if t.run == database.runs()[-1].id}
    assert result.statuses.get("worker_died", 0) == 0
    assert "not run again" in again["kill_worker"]
    assert "took longer" in again["endless_loop"]  # which may have been this machine's fault


def test_several_devices_share_the_problems(database: Database) -> None:
    problems = [(Conv.parse(f"conv2d n={n} c=3 in=8x8 k=4 filter=3x3 pad=1"), "") for n in (1, 2, 3, 4)]
    threads = set()

    def note(progress: Progress) -> None:
        threads.add(threading.get_ident())

    with tuner(database, devices=(0, 1), progress=note, budget=Budget(trials=2, seconds=None)) as session:
        results = list(session.tune_many([*problems, (Conv.parse("conv1d c=1 k=1 in=9 filter=3"), "")]))
    refused = [r for r in results if isinstance(r, NotApplicableError)]
    assert len(refused) == 1
    assert {str(r.problem) for r in results if not isinstance(r, Exception)} == {str(p) for p, _ in problems}
    assert len(threads) == 2


def test_without_a_gpu_it_says_so() -> None:
    try:
        Target.current()
    except DeviceError:
        with pytest.raises(DeviceError):
            Tuner(budget=Budget(trials=1))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"devices": ()}, r"devices=\(\): expected at least one"),
        ({"backend": "simm"}, "backend='simm': expected one of cuda, sim"),
        ({"target": "h200"}, r"target='h200': expected a Target, as Target.preset\('h200'\) is, or None"),
    ],
)
def test_what_no_search_can_use_is_refused_before_one(options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        Tuner(**{"target": H200, "backend": "sim", **options})


def test_preparation_is_told_apart_from_the_search(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    start = Runner.start

    def slow(runner: Runner, problem: Problem, seed: int = 0) -> None:
        start(runner, problem, seed)
        time.sleep(3.0)

    monkeypatch.setattr(Runner, "start", slow)
    began = time.monotonic()
    with tuner(database, budget=Budget(seconds=0.5)) as session:
        result = session.tune(PROBLEM)
    took = time.monotonic() - began
    assert result.outcome == "finished"
    assert result.best is not None
    assert result.preparation_seconds >= 3.0
    assert 0.0 < result.seconds <= took - 3.0
    [run] = database.runs()
    assert run.summary["preparation_seconds"] == pytest.approx(result.preparation_seconds, abs=1e-3)


def test_processes_that_build_begin_before_the_search(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """They took ten seconds of a search of six on a machine that was just started."""
    build, began = Builder._build, time.monotonic()

    def slow(builder: Builder, task: Any, child: Any) -> Build:
        time.sleep(max(0.0, began + 4.0 - time.monotonic()))
        return build(builder, task, child)

    monkeypatch.setattr(Builder, "_build", slow)
    with tuner(database, budget=Budget(seconds=0.5)) as session:
        result = session.tune(PROBLEM)
    assert result.best is not None
    assert result.preparation_seconds + result.seconds >= 4.0
    assert result.seconds <= time.monotonic() - began - 4.0


def test_a_search_is_cancelled_before_it_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Preparing ends too: of a large problem it may take minutes."""

    def endless(runner: Runner, *_: object) -> None:
        runner._closing.wait()
        raise DeviceError("closed")

    monkeypatch.setattr(Runner, "start", endless)
    with tuner() as session:
        threading.Timer(0.5, session.cancel).start()
        result = session.tune(PROBLEM)
    assert (result.outcome, result.trials, result.seconds) == ("interrupted", 0, 0.0)
    assert result.preparation_seconds >= 0.5


def test_an_interrupt_loses_no_answer() -> None:
    """One that comes when the wait has just ended: what ended it is there for the next look."""
    answers = session._Answers()

    class Bell:
        def put(self, item: None) -> None:
            pass

        def get(self) -> None:
            answers.put(None)
            raise KeyboardInterrupt

    answers._bell = Bell()  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        answers.wait()
    answers.wait()
    assert answers.take() is None
