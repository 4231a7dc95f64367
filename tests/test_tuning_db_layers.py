"""Layers of tuning databases: from threads, while a database is locked, gone or only read."""

from __future__ import annotations

import contextlib
import socket
import sqlite3
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import create_engine, make_url
from tuning_records import BEFORE, CURRENT, a_failure, a_peer, a_run, a_task, a_trial, write_lines

from tuning_db import Database, DatabaseError, Layers, Shipped, TuningDatabaseWarning, engine, open_database, query
from tuning_db.records import Found

THREADS = 8


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time that the layers go by; a test moves it."""
    now = [1000.0]
    monkeypatch.setattr("tuning_db.layers.time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


@pytest.fixture
def user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Database:
    monkeypatch.setattr(engine, "BUSY_SECONDS", 0.05)
    return open_database(tmp_path / "tuning.sqlite")


@contextlib.contextmanager
def _locked(database: Database) -> Iterator[None]:
    assert database.path is not None
    plain = sqlite3.connect(database.path, isolation_level=None)
    plain.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        plain.execute("ROLLBACK")
        plain.close()


def _counted(monkeypatch: pytest.MonkeyPatch, database: Database, method: str) -> list[int]:
    calls = [0]
    real = getattr(database, method)

    def call(*args: Any) -> Any:
        calls[0] += 1
        return real(*args)

    monkeypatch.setattr(database, method, call)
    return calls


def _winner(layers: Layers) -> Found:
    found = layers.winner(a_task(), CURRENT)
    assert found is not None
    return found


# --- threads --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["memory", "file"])
def test_threads_record_and_read_at_once(tmp_path: Path, place: str) -> None:
    layers = Layers(None if place == "memory" else open_database(tmp_path / "tuning.sqlite"))
    errors: list[BaseException] = []

    def work(name: int) -> None:
        try:
            for i in range(10):
                layers.record([a_trial(1e-5 * (i + 1), run=f"{name}-{i}", config={"tile": j}) for j in range(3)])
                layers.record_run(a_run(id=f"{name}-{i}"))
                assert _winner(layers).trial.status == "ok"
                assert len(layers.neighbours(a_task())) == 1
        except BaseException as error:
            errors.append(error)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        threads = [threading.Thread(target=work, args=(name,)) for name in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert errors == []
    [(layer, database)] = layers.databases()
    assert layer == "user"
    assert isinstance(database, Database)
    assert len(database.trials()) == THREADS * 10 * 3
    assert len(database.runs()) == THREADS * 10


# --- a database that cannot be written ------------------------------------------------------------------------


def test_a_locked_database_is_let_alone_for_a_while_and_then_gets_what_it_missed(
    monkeypatch: pytest.MonkeyPatch, user: Database, clock: list[float]
) -> None:
    layers = Layers(user)
    calls = _counted(monkeypatch, user, "record")
    with _locked(user):
        with pytest.warns(TuningDatabaseWarning, match="locked"):
            layers.record([a_trial(1e-4, run="first")])
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            layers.record([a_trial(2e-4, run="second")])
            layers.record_run(a_run())
            layers.record_peers([a_peer()])
        assert calls == [1]
        assert _winner(layers).trial.run == "first"
    clock[0] += 59
    layers.record([a_trial(3e-4, run="third")])
    assert (calls, user.trials()) == ([1], [])
    clock[0] += 2
    layers.record([a_trial(4e-4, run="fourth")])
    assert [trial.run for trial in user.trials()] == ["first", "fourth", "second", "third"]
    assert (user.runs(), user.peers()) == ([a_run()], [a_peer()])
    memory = dict(layers.databases()[:1])["user"]
    assert isinstance(memory, Database)
    assert (memory.trials(), memory.runs(), memory.peers()) == ([], [], [])


def test_closing_writes_what_is_still_in_memory(user: Database, tmp_path: Path) -> None:
    layers = Layers(user)
    with _locked(user), pytest.warns(TuningDatabaseWarning, match="locked"):
        layers.record([a_trial()])
    layers.close()
    assert open_database(tmp_path / "tuning.sqlite").trials() == [a_trial()]


@pytest.mark.parametrize(
    ("on_disk", "in_memory", "expected"),
    [
        ({"seconds": 1e-5, "stage": "final"}, {"seconds": 9e-5, "stage": "final"}, "disk"),
        ({"seconds": 9e-5, "stage": "final"}, {"seconds": 1e-5, "stage": "screen"}, "disk"),
        ({"seconds": 9e-5, "stage": "final"}, {"seconds": 1e-5, "stage": "final"}, "memory"),
        ({"seconds": 1e-5, "stage": "final", "toolchain": BEFORE}, {"seconds": 9e-5, "stage": "screen"}, "memory"),
    ],
)
def test_the_better_of_memory_and_disk_is_served(
    user: Database, on_disk: dict[str, Any], in_memory: dict[str, Any], expected: str
) -> None:
    user.record([a_trial(run="disk", **on_disk)])
    layers = Layers(user)
    with _locked(user), pytest.warns(TuningDatabaseWarning, match="locked"):
        layers.record([a_trial(run="memory", **in_memory)])
    assert _winner(layers).trial.run == expected
    assert _winner(layers).layer == "user"


def test_neighbours_are_the_better_of_memory_and_disk(user: Database) -> None:
    user.record([a_trial(1e-5, run="disk")])
    layers = Layers(user)
    with _locked(user), pytest.warns(TuningDatabaseWarning, match="locked"):
        layers.record([a_trial(9e-5, run="memory")])
    assert [trial.run for trial in layers.neighbours(a_task())] == ["disk"]


def test_a_database_that_the_caller_opened_to_read_is_told_of_once(user: Database, tmp_path: Path) -> None:
    user.record([a_trial(1e-4, run="old")])
    layers = Layers(open_database(tmp_path / "tuning.sqlite", read_only=True))
    with pytest.warns(TuningDatabaseWarning, match="only read"):
        layers.record([a_trial(1e-5, run="new")])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        layers.record([a_trial(2e-5, run="newer")])
    assert _winner(layers).trial.run == "new"
    assert [trial.run for trial in user.trials()] == ["old"]


@pytest.mark.parametrize(
    "wrong", [{"seconds": float("nan")}, {"status": "fine"}, {"strategy": "s" * 65}, {"rounds": 2**40}]
)
def test_a_record_that_is_none_raises_and_does_not_blame_the_database(user: Database, wrong: dict[str, Any]) -> None:
    layers = Layers(user)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(DatabaseError, match=next(iter(wrong))):
            layers.record([a_trial(run="right"), a_trial(**wrong)])
        with pytest.raises(DatabaseError, match="seconds"):
            layers.record_peers([a_peer(-1.0)])
        with pytest.raises(DatabaseError, match="outcome"):
            layers.record_run(a_run(outcome="won"))
    assert [source for _, source in layers.databases()] == [user]
    assert (user.trials(), user.peers(), user.runs()) == ([], [], [])


# --- a database that cannot be read ---------------------------------------------------------------------------


def test_a_layer_that_fails_is_passed_over_for_a_while(
    monkeypatch: pytest.MonkeyPatch, user: Database, clock: list[float]
) -> None:
    shared = open_database(":memory:")
    shared.record([a_trial()])
    monkeypatch.setattr(shared, "winner", lambda *_: (_ for _ in ()).throw(DatabaseError("the server is gone")))
    calls = _counted(monkeypatch, shared, "winner")
    layers = Layers(user, shared)
    with pytest.warns(TuningDatabaseWarning, match="server is gone") as told:
        assert [layers.winner(a_task(), CURRENT) for _ in range(3)] == [None] * 3
    assert (len(told), calls) == (1, [1])
    clock[0] += 61
    assert layers.winner(a_task(), CURRENT) is None
    assert calls == [2]


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("postgresql+psycopg://host/db", {"connect_timeout": 5, "tcp_user_timeout": 30000}),
        ("postgresql+psycopg://host/db?connect_timeout=60", {"tcp_user_timeout": 30000}),
        ("postgresql+psycopg2://host/db", {"connect_timeout": 5, "tcp_user_timeout": 30000}),
        ("mysql+pymysql://host/db", {"connect_timeout": 5, "read_timeout": 30}),
    ],
)
def test_a_server_has_a_time_limit_to_answer(
    monkeypatch: pytest.MonkeyPatch, url: str, expected: dict[str, int]
) -> None:
    given: dict[str, Any] = {}

    def create(_: object, **options: Any) -> object:
        given.update(options)
        return create_engine("sqlite://")

    monkeypatch.setattr(engine, "create_engine", create)
    engine.server_engine(make_url(url))
    assert given["connect_args"] == expected
    assert given["pool_timeout"] == 30


def test_a_server_that_accepts_and_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("psycopg")
    monkeypatch.setitem(engine.TIME_LIMITS, "psycopg", {"connect_timeout": 2})
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(DatabaseError, match="timeout"):
            open_database(f"postgresql+psycopg://me@127.0.0.1:{port}/db")


# --- how much they hold ---------------------------------------------------------------------------------------


def test_stats_of_every_layer(user: Database, tmp_path: Path) -> None:
    folder = tmp_path / "ships"
    folder.mkdir()
    write_lines([a_trial(), a_peer()], folder / "winners.jsonl")
    user.record([a_trial(), a_failure("hang", config={"tile": 2})])
    found = query.layer_stats(Layers(user, None, Shipped(folder)))
    assert list(found) == ["user", "shipped"]
    [(name, of_user)], [(_, of_shipped)] = found["user"], found["shipped"]
    assert (name, of_user.trials, of_user.statuses) == (user.name, 2, {"hang": 1, "ok": 1})
    assert (of_shipped.tasks, of_shipped.trials, of_shipped.peers) == (1, 1, 1)
    assert of_shipped.nbytes == (folder / "winners.jsonl").stat().st_size


# --- writing what is still in memory --------------------------------------------------------------------------


def test_saving_writes_what_is_in_memory_or_tells_how_much_it_is(user: Database) -> None:
    layers = Layers(user)
    layers.save()
    with _locked(user):
        with pytest.warns(TuningDatabaseWarning, match="locked"):
            layers.record([a_trial(1e-4, config={"tile": 1}), a_trial(2e-4, config={"tile": 2})])
        with pytest.raises(DatabaseError, match=r"2 records of what was tuned are not saved \(.*locked"):
            layers.save()
    layers.save()
    assert len(user.trials()) == 2


def test_whether_anything_can_be_stored_is_tried(user: Database) -> None:
    user.check_writable()
    with user.reading() as connection:
        assert connection.exec_driver_sql("SELECT name FROM convgen_meta").all() == [("schema_version",)]
    with _locked(user), pytest.raises(DatabaseError, match=r"locked.*nothing can be stored: make room"):
        user.check_writable()


def test_what_ships_answers_for_the_strategies_that_were_searched(user: Database, tmp_path: Path) -> None:
    folder = tmp_path / "ships"
    folder.mkdir()
    trial = a_trial(run="ours")
    run = a_run(id="ours", outcome="finished", settings={"strategies": ["direct", "im2col"]})
    write_lines([run, trial], folder / "winners.jsonl")
    layers = Layers(user, None, Shipped(folder))
    found = layers.winner(trial.task, {trial.strategy: trial.toolchain})
    assert found is not None
    assert found.layer == "shipped"
    assert layers.untried(found, ["im2col"]) == []
    assert layers.untried(found, ["im2col", "made_since"]) == ["made_since"]
    write_lines([trial], folder / "winners.jsonl")
    assert Layers(user, None, Shipped(folder)).untried(found, ["made_since"]) == ()
