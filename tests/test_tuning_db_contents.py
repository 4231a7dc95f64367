"""What a tuning database makes of rows that somebody has edited, of older code's trials, and of older schemas."""

from __future__ import annotations

import sqlite3
import warnings
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, inspect
from tuning_records import BEFORE, CURRENT, NOW, a_failure, a_peer, a_run, a_task, a_trial

from tuning_db import Database, DatabaseError, TuningDatabaseWarning, migrations, open_database, query, schema
from tuning_db.lines import records
from tuning_db.statements import GROUPS

LATER = "2026-12-01T00:00:00+00:00"


@pytest.fixture
def database(tmp_path: Path) -> Database:
    return open_database(tmp_path / "tuning.sqlite")


def _edit(database: Database, statement: str) -> None:
    assert database.path is not None
    with sqlite3.connect(database.path) as plain:
        plain.execute(statement)
    plain.close()


# --- rows that somebody has edited ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        "stage = -1",
        "stage = 3",
        "stage = 'final'",
        "rounds = 'many'",
        "rounds = 5000000000",
        "low = 'x'",
        "high = 9e999",
        "reason = x'6162'",
        "created = x'00'",
        "config = CAST('{\"tile\": 1}' AS BLOB)",
        "config = CAST(x'7b2261223a22ff227d' AS TEXT)",
        "reason = CAST(x'ff' AS TEXT)",
        "seconds = NULL",
        "seconds = -1.0",
        "seconds = 9e999",
        "protocol = 'two'",
    ],
)
def test_a_row_that_is_no_trial_hides_no_other(database: Database, change: str) -> None:
    database.record([a_trial(1e-5, config={"tile": 1}), a_trial(2e-5, config={"tile": 2})])
    _edit(database, f"UPDATE trial SET {change} WHERE seconds < 1.5e-5")
    today = {"direct": NOW}
    with pytest.warns(TuningDatabaseWarning, match="1 records cannot be read") as told:
        assert [trial.config for trial in database.trials()] == [{"tile": 2}]
    assert len(told) == 1
    found = database.winner(a_task(), today)
    assert found is not None
    assert found.trial.config == {"tile": 2}


def test_a_text_for_seconds_is_no_time(database: Database) -> None:
    database.record([a_trial(1e-5, config={"tile": 1}), a_trial(2e-5, config={"tile": 2})])
    _edit(database, "UPDATE trial SET seconds = 'fast' WHERE seconds < 1.5e-5")
    found = database.winner(a_task(), CURRENT)
    assert found is not None
    assert found.trial.config == {"tile": 2}


@pytest.mark.parametrize("change", ["seconds = 'slow'", "seconds = -1", "version = x'00'", "rounds = 'x'"])
def test_a_row_that_is_no_peer_is_passed_over(database: Database, change: str) -> None:
    database.record([a_trial(1e-4)])
    database.record_peers([a_peer(2e-4), a_peer(1e-5, "other")])
    _edit(database, f"UPDATE peer SET {change} WHERE peer = 'other'")
    with pytest.warns(TuningDatabaseWarning, match="cannot be read"):
        [standing] = query.standings(database)
    assert (standing.best_peer, standing.over_best_peer) == ("cudnn_nchw", pytest.approx(2.0))


@pytest.mark.parametrize("change", ["settings = '['", "summary = x'7b7d'", "outcome = 'won'", "started = x'00'"])
def test_a_row_that_is_no_run_is_passed_over(database: Database, change: str) -> None:
    database.record_run(a_run())
    database.record_run(a_run(id="run-2"))
    _edit(database, f"UPDATE run SET {change} WHERE id = 'run-2'")
    with pytest.warns(TuningDatabaseWarning, match="cannot be read"):
        assert database.runs() == [a_run()]


def test_one_warning_tells_of_all_rows_that_cannot_be_read(database: Database) -> None:
    database.record([a_trial(1e-5, config={"tile": i}) for i in range(5)] + [a_trial(2e-5, config={"tile": 9})])
    _edit(database, "UPDATE trial SET stage = -1 WHERE seconds < 1.5e-5")
    with pytest.warns(TuningDatabaseWarning, match=r"5 records cannot be read.*conv2d c=64.*stage -1") as told:
        assert len(database.trials()) == 1
    assert len(told) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert database.winner(a_task(), CURRENT) is not None
        assert len(database.trials()) == 1


def test_after_a_row_that_cannot_be_read_the_next_best_wins_wherever_it_is(database: Database) -> None:
    database.record([
        a_trial(1e-5, config={"tile": 1}),
        a_trial(9e-5, config={"tile": 2}),
        a_trial(2e-5, strategy="im2col", config={"tile": 3}),
    ])  # fmt: skip
    _edit(database, "UPDATE trial SET config = '[]' WHERE seconds < 1.5e-5")
    with pytest.warns(TuningDatabaseWarning, match="cannot be read"):
        found = database.winner(a_task(), CURRENT)
    assert found is not None
    assert found.trial.config == {"tile": 3}


@pytest.mark.parametrize("change", ["config = '[]'", "config = x'00'", "rounds = 'many'", "reason = x'6162'"])
def test_a_query_passes_over_rows_that_cannot_be_read_as_the_winner_does(database: Database, change: str) -> None:
    other = a_task("conv2d c=1 k=1 in=9x9 filter=3x3")
    database.record([
        *(a_trial(seconds, config={"tile": rank}) for rank, seconds in enumerate((1e-5, 2e-5, 3e-5), 1)),
        a_trial(1e-4, config={"tile": 9}, origin="default"),
        a_trial(5e-5, other),
    ])  # fmt: skip
    _edit(database, f"UPDATE trial SET {change} WHERE seconds < 2.5e-5")
    with pytest.warns(TuningDatabaseWarning, match="cannot be read"):
        standings = query.standings(database)
    assert [(s.winner.task.problem, s.winner.seconds) for s in standings] == [
        (other.problem, 5e-5),
        (a_task().problem, 3e-5),
    ]
    assert standings[1].over_default == pytest.approx(1e-4 / 3e-5)
    assert [t.config for t in database.neighbours(a_task()) if t.task == a_task()] == [{"tile": 3}]
    found = database.winner(a_task(), CURRENT)
    assert found is not None
    assert found.trial == standings[1].winner


def test_a_task_of_which_no_row_can_be_read_has_no_winner(database: Database) -> None:
    database.record([a_trial(1e-5)])
    _edit(database, "UPDATE trial SET config = '[]'")
    with pytest.warns(TuningDatabaseWarning, match="cannot be read"):
        assert query.standings(database) == []


def test_a_winner_is_found_in_an_index_alone(database: Database) -> None:
    with database.reading() as connection:
        query_text = str(GROUPS.compile(connection.engine, compile_kwargs={"render_postcompile": True}))
        plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {query_text}", ("p", "d", "c", 1, "ok")).all()
    steps = [row[-1] for row in plan]
    assert any("COVERING INDEX trial_pick" in step for step in steps)
    assert not any("B-TREE" in step for step in steps)  # no sorting


def test_a_trial_without_a_source_is_not_a_bad_source(database: Database) -> None:
    database.record([a_failure("worker_died", source_key="")])
    assert not database.is_bad("")


# --- older code's trials --------------------------------------------------------------------------------------


def test_whatever_is_asked_the_winner_is_of_the_code_last_tried(database: Database) -> None:
    old = a_trial(1e-5, toolchain=BEFORE, run="old", stage="final")
    new = a_trial(9e-5, run="new", created=LATER)
    database.record([new, old])
    found = database.winner(a_task(), CURRENT)
    assert found is not None
    assert found.trial == new
    assert database.best_trials() == [new]
    assert database.neighbours(a_task()) == [new]
    assert [standing.winner for standing in query.standings(database)] == [new]
    assert list(records(database, winners_only=True)) == [new]
    with database.reading() as connection:
        assert connection.exec_driver_sql("SELECT run, seconds FROM winners").all() == [("new", 9e-5)]


def test_code_of_another_strategy_says_nothing_of_this_ones(database: Database) -> None:
    database.record([
        a_trial(1e-5, toolchain=BEFORE, stage="final"),
        a_trial(9e-5, strategy="im2col", stage="final", created=LATER),
    ])  # fmt: skip
    assert [trial.seconds for trial in database.best_trials()] == [1e-5]


def test_older_code_is_better_than_none(database: Database) -> None:
    database.record([a_trial(1e-5, toolchain=BEFORE), a_failure("compile_error", run="new", created=LATER)])
    assert [trial.seconds for trial in database.best_trials()] == [1e-5]


# --- filters --------------------------------------------------------------------------------------------------


def test_a_filter_of_strategy_or_status_means_trials(database: Database) -> None:
    other = a_task("conv2d c=3 k=8 in=5 filter=1")
    trials = [
        a_trial(1e-4),
        a_trial(2e-4, strategy="im2col"),
        a_trial(3e-4, other, strategy="im2col"),
        a_failure("hang", task=other, config={"tile": 2}),
    ]
    database.record(trials)
    database.record_run(a_run())
    database.record_peers([a_peer(), a_peer(task=other)])
    chosen = query.Filter(strategy="im2col")
    assert {trial.seconds for trial in database.trials(chosen.condition())} == {2e-4, 3e-4}
    assert [trial.seconds for trial in database.best_trials(chosen.condition())] == [3e-4]
    assert len(database.peers(query.Filter(strategy="direct").condition())) == 2
    assert [peer.task for peer in database.peers(query.Filter(status="hang").condition())] == [other]
    assert database.runs(query.Filter(status="hang").condition()) == []
    [standing] = query.standings(database, query.Filter(strategy="direct"))
    assert standing.over_runner_up == pytest.approx(2.0)
    assert list(query.failures(database, query.Filter(status="hang"))) == [("direct", "hang")]
    assert database.forget(chosen.condition()) == 2
    assert [trial.strategy for trial in database.trials()] == ["direct", "direct"]
    assert (len(database.runs()), len(database.peers())) == (1, 2)


def test_forgetting_all_leaves_no_task_that_has_only_a_peer_or_a_run(database: Database) -> None:
    database.record_peers([a_peer()])
    database.record_run(a_run(task=a_task("conv2d c=3 k=8 in=5 filter=1")))
    assert database.forget(query.Filter().condition()) == 0
    found = query.stats(database)
    assert (found.tasks, found.runs, found.peers) == (0, 0, 0)


# --- schemas --------------------------------------------------------------------------------------------------


def _shape(engine: Any) -> dict[str, Any]:
    looked, shape = inspect(engine), {}
    for name in looked.get_table_names():
        columns = [(c["name"], str(c["type"]), c["nullable"], c["primary_key"]) for c in looked.get_columns(name)]
        indexes = {(i["name"], tuple(i["column_names"]), i["unique"]) for i in looked.get_indexes(name)}
        unique = {tuple(u["column_names"]) for u in looked.get_unique_constraints(name)}
        keys = {(*k["constrained_columns"], k["referred_table"]) for k in looked.get_foreign_keys(name)}
        shape[name] = (columns, indexes, unique, keys)
    return shape


def test_the_migrations_make_what_the_tables_are_declared_as(database: Database) -> None:
    declared = create_engine("sqlite://")
    schema.metadata.create_all(declared)
    assert _shape(database._engine) == _shape(declared)


def test_version_one_is_brought_up_with_all_it_holds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "old.sqlite"
    with monkeypatch.context() as patch:
        patch.setattr(migrations, "MIGRATIONS", migrations.MIGRATIONS[:1])
        with open_database(path) as old:
            assert old.version == 1
            old.record([a_trial()])
            old.record_peers([a_peer()])
    with pytest.raises(DatabaseError, match=r"version 1.*convgen db upgrade"):
        open_database(path, read_only=True)
    database = open_database(path)
    assert database.version == migrations.newest() >= 2
    assert (database.trials(), database.peers()) == ([a_trial()], [a_peer()])
    fresh = open_database(tmp_path / "fresh.sqlite")
    assert _shape(database._engine) == _shape(fresh._engine)
    with database.reading() as connection:
        assert connection.exec_driver_sql("SELECT seconds FROM winners").scalars().all() == [1e-4]


def test_a_copy_of_an_older_schema_is_whole_or_not_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "old.sqlite"
    with monkeypatch.context() as patch:
        patch.setattr(migrations, "MIGRATIONS", migrations.MIGRATIONS[:1])
        open_database(path).record([a_trial()])

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("tuning_db.opening.os.replace", full)
        with pytest.raises(DatabaseError, match=r"schema1 cannot be written: No space"):
            open_database(path)
    assert not [file.name for file in tmp_path.iterdir() if "schema1" in file.name]
    assert open_database(path).trials() == [a_trial()]
    with sqlite3.connect(tmp_path / "old.sqlite.schema1") as copy:
        assert copy.execute("SELECT COUNT(*) FROM trial").fetchone() == (1,)
