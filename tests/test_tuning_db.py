"""The tuning database: what goes in comes out, winners are derived, text is stable."""

from __future__ import annotations

import dataclasses
import json
import sqlite3
from pathlib import Path

import pytest
from tuning_records import BEFORE, CURRENT, NOW, a_failure, a_peer, a_run, a_task, a_trial, write_lines

from tuning_db import Database, DatabaseError, Layers, Shipped, Trial, open_database, query
from tuning_db.checks import from_json
from tuning_db.lines import merge, read_lines, records
from tuning_db.records import to_json


@pytest.fixture
def database(tmp_path: Path) -> Database:
    return open_database(tmp_path / "tuning.sqlite")


def _winner(database: Database | Layers) -> Trial | None:
    found = database.winner(a_task(), CURRENT)
    return None if found is None else found.trial


# --- records ------------------------------------------------------------------------------------------------


def test_a_trial_comes_back_as_it_was(database: Database) -> None:
    trial = a_trial(low=9e-5, high=1.2e-4, rounds=21, tied=True, origin="tpe", error=1e-6, bound=2e-5, source_key="k")
    database.record([trial])
    assert database.trials() == [trial]


def test_a_later_stage_replaces_the_earlier_of_the_same_run(database: Database) -> None:
    database.record([a_trial(1e-4, stage="screen"), a_trial(2e-4, config={"tile": 8})])
    database.record([a_trial(1.1e-4, stage="final")])
    assert sorted((t.config["tile"], t.seconds, t.stage) for t in database.trials()) == [
        (4, 1.1e-4, "final"),
        (8, 2e-4, "confirm"),
    ]


def test_runs_and_peers_come_back(database: Database) -> None:
    run = a_run(outcome="finished", settings={"trials": 100}, summary={"statuses": {"ok": 90}})
    database.record_run(a_run())
    database.record_run(run)
    database.record_peers([a_peer(3e-4)])
    database.record_peers([a_peer(2e-4), a_peer(1e-4, "cudnn_nhwc")])
    assert database.runs() == [run]
    assert [(p.peer, p.seconds) for p in database.peers()] == [("cudnn_nchw", 2e-4), ("cudnn_nhwc", 1e-4)]


def test_all_trials_of_a_call_are_stored_or_none(database: Database) -> None:
    with pytest.raises(DatabaseError, match="positive number"):
        database.record([a_trial(), a_trial(-1.0, config={"tile": 8})])
    assert database.trials() == []


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"status": "fine"}, "status 'fine'"),
        ({"stage": "last"}, "stage 'last'"),
        ({"config": {"tile": 1.5}}, "'tile'='1.5'"),
        ({"config": {"tile": [1]}}, "tile"),
        ({"config": {f"f{i}": i for i in range(100)}}, "64 fields"),
        ({"seconds": float("nan")}, "seconds=nan"),
    ],
)
def test_a_record_that_is_none_is_refused(database: Database, changes: dict[str, object], named: str) -> None:
    with pytest.raises(DatabaseError, match=named):
        database.record([dataclasses.replace(a_trial(), **changes)])  # type: ignore[arg-type]


# --- winners ------------------------------------------------------------------------------------------------


def test_the_winner_is_the_fastest_of_the_stage_best_known(database: Database) -> None:
    database.record([
        a_trial(1e-5, config={"tile": 1}, stage="screen"),
        a_trial(3e-5, config={"tile": 2}, stage="final"),
        a_trial(2e-5, config={"tile": 3}, stage="final"),
        a_failure("wrong_result", config={"tile": 4}),
    ])  # fmt: skip
    winner = _winner(database)
    assert winner is not None
    assert winner.config == {"tile": 3}


def test_a_winner_by_older_code_is_stale_and_comes_after_any_by_todays(database: Database) -> None:
    database.record([a_trial(1e-5, toolchain=BEFORE, run="old")])
    found = database.winner(a_task(), CURRENT)
    assert found is not None
    assert found.tier == "stale"
    database.record([a_trial(9e-5, stage="screen")])
    found = database.winner(a_task(), CURRENT)
    assert found is not None
    assert (found.tier, found.trial.seconds) == ("trusted", 9e-5)


@pytest.mark.parametrize(
    "changed", [{"codegen": "code-2"}, {"compiler": "NVRTC 13.5"}, {"protocol": 3}], ids=lambda c: next(iter(c))
)
def test_every_part_of_the_toolchain_decides_trust(database: Database, changed: dict[str, object]) -> None:
    database.record([a_trial()])
    today = {"direct": dataclasses.replace(NOW, **changed)}  # type: ignore[arg-type]
    found = database.winner(a_task(), today)
    assert found is not None
    assert found.tier == "stale"


@pytest.mark.parametrize(
    "other",
    [
        {"problem": "conv2d c=3 k=8 in=5 filter=1"},
        {"device": "h100"},
        {"capability": "9.1"},
        {"sm_count": 114},
    ],
    ids=lambda c: next(iter(c)),
)
def test_another_problem_or_gpu_is_a_miss(database: Database, other: dict[str, object]) -> None:
    database.record([a_trial()])
    assert database.winner(dataclasses.replace(a_task(), **other), CURRENT) is None  # type: ignore[arg-type]


def test_trials_of_a_strategy_that_is_gone_are_passed_over(database: Database) -> None:
    database.record([a_trial(1e-6, strategy="alchemy"), a_trial(1e-4)])
    winner = _winner(database)
    assert winner is not None
    assert winner.strategy == "direct"


def test_the_users_layer_lies_over_the_shared_over_what_ships(tmp_path: Path) -> None:
    user, shared = open_database(tmp_path / "user.sqlite"), open_database(tmp_path / "shared.sqlite")
    write_lines([a_trial(1e-6), a_trial(1e-6, a_task("conv2d c=1 k=1 in=9 filter=3"))], tmp_path / "ships.jsonl")
    layers = Layers(user, shared, Shipped(tmp_path))
    assert (layers.winner(a_task(), CURRENT) or pytest.fail("none")).layer == "shipped"
    shared.record([a_trial(2e-6)])
    assert (layers.winner(a_task(), CURRENT) or pytest.fail("none")).layer == "shared"
    user.record([a_trial(3e-6, toolchain=BEFORE)])
    assert (layers.winner(a_task(), CURRENT) or pytest.fail("none")).layer == "shared"  # trusted comes before stale
    user.record([a_trial(3e-6)])
    found = layers.winner(a_task(), CURRENT)
    assert found is not None
    assert (found.layer, found.trial.seconds) == ("user", 3e-6)
    assert len(layers.neighbours(a_task())) == 2


def test_neighbours_are_winners_of_the_same_kind_on_the_same_gpu(database: Database) -> None:
    near, far = a_task("conv2d c=32 k=32 in=9 filter=3"), a_task("conv2d c=8 k=8 in=9 filter=3", dtype="bf16")
    database.record([a_trial(2e-5, near), a_trial(1e-5, near, config={"tile": 2}), a_trial(1e-5, far), a_trial(1e-4)])
    found = database.neighbours(a_task())
    assert {(t.task.problem, t.seconds) for t in found} == {(near.problem, 1e-5), (a_task().problem, 1e-4)}


def test_a_source_that_crashed_is_remembered(database: Database) -> None:
    database.record([
        a_failure("illegal_access", source_key="bad"),
        a_failure("wrong_result", source_key="wrong", config={"tile": 2}),
    ])  # fmt: skip
    assert database.is_bad("bad")
    assert not database.is_bad("wrong")
    assert not database.is_bad("never seen")


def test_forgetting_deletes_what_the_filter_selects_and_nothing_else(database: Database) -> None:
    other = a_task("conv2d c=3 k=8 in=5 filter=1", dtype="bf16")
    database.record([a_trial(), a_trial(task=other)])
    database.record_run(a_run())
    database.record_peers([a_peer()])
    assert database.forget(query.Filter(dtype="fp32").condition()) == 1
    assert [t.task for t in database.trials()] == [other]
    assert database.runs() == []
    assert database.peers() == []


# --- queries ------------------------------------------------------------------------------------------------


def test_standings_hold_the_winner_against_default_next_strategy_and_peer(database: Database) -> None:
    database.record([
        a_trial(1e-4, stage="final"),
        a_trial(1.01e-4, config={"tile": 2}, stage="final", tied=True),
        a_trial(3e-4, config={"tile": 1}, origin="default"),
        a_trial(2e-4, strategy="im2col"),
        a_failure("hang", config={"tile": 9}),
    ])  # fmt: skip
    database.record_peers([a_peer(5e-4), a_peer(4e-4, "cudnn_nhwc")])
    [standing] = query.standings(database)
    assert standing.over_default == pytest.approx(3.0)
    assert standing.over_runner_up == pytest.approx(2.0)
    assert standing.over_best_peer == pytest.approx(4.0)
    assert (standing.best_peer, standing.ties) == ("cudnn_nhwc", 1)
    failures = query.failures(database)
    assert {key: len(trials) for key, trials in failures.items()} == {("direct", "hang"): 1}


@pytest.mark.parametrize(
    ("chosen", "count"),
    [
        (query.Filter(), 2),
        (query.Filter(dtype="bf16"), 1),
        (query.Filter(text="c=64 *filter=3x3"), 1),
        (query.Filter(text="c=6_"), 0),
        (query.Filter(text="%"), 0),
        (query.Filter(family="textbook", device="h200", op="conv2d"), 2),
    ],
)
def test_filters(database: Database, chosen: query.Filter, count: int) -> None:
    database.record([a_trial(), a_trial(task=a_task("conv2d c=3 k=8 in=5 filter=1", dtype="bf16"))])
    assert len(query.standings(database, chosen)) == count


def test_coverage_and_stats(database: Database) -> None:
    database.record([a_trial(), a_failure("hang", config={"tile": 2})])
    found = query.coverage(database, [a_task().problem, "another"], "h200")
    assert (found.known, found.missing, found.fraction) == ((a_task().problem,), ("another",), 0.5)
    stats = query.stats(database)
    assert (stats.tasks, stats.trials, stats.statuses, stats.devices) == (1, 2, {"hang": 1, "ok": 1}, ("h200",))


def test_the_views_are_read_by_any_sqlite_tool(database: Database) -> None:
    database.record([a_trial(1e-4, stage="final"), a_trial(3e-4, config={"tile": 1}, origin="default")])
    database.record_peers([a_peer(2e-4)])
    assert database.path is not None
    with sqlite3.connect(database.path) as plain:
        plain.row_factory = sqlite3.Row
        [winner] = plain.execute("SELECT * FROM winners").fetchall()
        assert (winner["problem"], winner["strategy"], winner["stage"]) == (a_task().problem, "direct", "final")
        assert winner["us"] == pytest.approx(100.0)
        assert (winner["default_seconds"], winner["best_peer_seconds"]) == (3e-4, 2e-4)
        assert json.loads(winner["config"]) == {"tile": 4, "filter": "constant", "split": False}
        assert plain.execute("SELECT COUNT(*) FROM trials").fetchone()[0] == 2
        assert plain.execute("SELECT peer FROM peers").fetchone()[0] == "cudnn_nchw"


# --- text ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("record", [a_trial(), a_failure("hang"), a_run(settings={"a": [1]}), a_peer()])
def test_json_brings_back_the_record(record: object) -> None:
    assert from_json(json.loads(json.dumps(to_json(record)))) == record  # type: ignore[arg-type]


def test_an_export_is_the_same_bytes_whatever_order_things_came_in(tmp_path: Path) -> None:
    trials = [a_trial(1e-5 * i, config={"tile": i}, run=f"run-{i % 3}") for i in range(1, 20)]
    texts = []
    for name, order in (("a", trials), ("b", trials[::-1])):
        database = open_database(tmp_path / f"{name}.sqlite")
        for trial in order:
            database.record([trial])
        database.record_peers([a_peer(), a_peer(1e-5, "other")][:: 1 if name == "a" else -1])
        write_lines(records(database), tmp_path / f"{name}.jsonl")
        texts.append((tmp_path / f"{name}.jsonl").read_bytes())
    assert texts[0] == texts[1]
    assert texts[0].count(b"\n") == 21


def test_of_equals_every_copy_has_the_same_winner(tmp_path: Path) -> None:
    trials = [a_trial(1e-5, config={"tile": i}, run=f"run-{i % 3}") for i in range(9)]
    winners = []
    for name, order in (("a", trials), ("b", trials[::-1])):
        database = open_database(tmp_path / f"{name}.sqlite")
        for trial in order:
            database.record([trial])
        winners += [*database.best_trials(), _winner(database)]
    assert winners == winners[:1] * 4


@pytest.mark.parametrize("kind", ["jsonl", "sqlite"])
def test_a_merged_copy_serves_the_same_winners(database: Database, tmp_path: Path, kind: str) -> None:
    database.record([a_trial(1e-4, stage="final"), a_trial(5e-5, config={"tile": 8}, stage="screen")])
    database.record_run(a_run())
    database.record_peers([a_peer()])
    source = tmp_path / "tuning.sqlite"
    if kind == "jsonl":
        source = tmp_path / "export.jsonl"
        write_lines(records(database), source)
    copy = open_database(tmp_path / "copy.sqlite")
    copy.record([a_trial(9e-4, run="own", stage="final")])
    for _ in range(2):
        merge(copy, source)
    assert len(copy.trials()) == 3
    assert _winner(copy) == _winner(database)
    assert copy.runs() == database.runs()
    assert copy.peers() == database.peers()


def test_winners_only_keeps_the_winner_and_its_default(database: Database, tmp_path: Path) -> None:
    database.record([
        a_trial(1e-4, stage="final"),
        a_trial(2e-4, config={"tile": 1}, origin="default"),
        a_trial(3e-4, config={"tile": 2}),
    ])  # fmt: skip
    write_lines(records(database, winners_only=True), tmp_path / "w.jsonl")
    assert [r.seconds for r in read_lines(tmp_path / "w.jsonl") if isinstance(r, Trial)] == [1e-4, 2e-4]


def test_lines_that_are_no_records_are_told_of_once_and_passed_over(tmp_path: Path) -> None:
    good = json.dumps(to_json(a_trial()))
    bad = [json.dumps({**to_json(a_trial()), **change}) for change in (
        {"config": "import os"}, {"config": {"a": {"b": 1}}}, {"seconds": "fast"}, {"kind": "code"}, {"status": "won"},
        {"sm_count": True},
    )]  # fmt: skip
    (tmp_path / "x.jsonl").write_text("\n".join([*bad, "{", "[" * 10000, "null", "", good]))
    with pytest.warns(UserWarning, match="9 lines are no records"):
        assert list(read_lines(tmp_path / "x.jsonl")) == [a_trial()]
