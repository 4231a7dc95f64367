"""A tuning database that is damaged, somebody else's, newer or older: nothing of it is lost."""

from __future__ import annotations

import json
import os
import sqlite3
import threading
from pathlib import Path

import pytest
from sqlalchemy import Connection, text
from tuning_records import CURRENT, a_task, a_trial, layers_of, serves_what_it_records, write_lines

from tuning_db import DatabaseError, Layers, TuningDatabaseWarning, migrations, open_database
from tuning_db.aside import identity, move_aside


def _garbage(path: Path) -> None:
    path.write_bytes(b"SQLite format 3\0, and then nothing that is one" * 100)


def _cut_short(path: Path) -> None:
    path.write_bytes(b"SQLite fo")


def _zeros(path: Path) -> None:
    path.write_bytes(bytes(3 << 20))


def _truncated(path: Path) -> None:
    with open_database(path) as database:
        database.record([a_trial(run=f"r{i}", config={"tile": i, "text": "x" * 1000}) for i in range(100)])
    with sqlite3.connect(path) as plain:
        plain.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    plain.close()
    os.truncate(path, path.stat().st_size // 2)


@pytest.mark.parametrize("damage", [_garbage, _truncated, _cut_short, _zeros])
def test_a_damaged_file_is_kept_aside_and_a_new_one_begun(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, damage: object
) -> None:
    path = tmp_path / "tuning.sqlite"
    damage(path)  # type: ignore[operator]
    content = path.read_bytes()
    with pytest.warns(TuningDatabaseWarning, match="damaged") as told:
        layers = layers_of(monkeypatch, path)
    assert len(told) == 1
    [aside] = [p for p in tmp_path.glob("tuning.sqlite.damaged-*") if not p.name.endswith(("-wal", "-shm"))]
    assert aside.read_bytes() == content
    serves_what_it_records(layers)
    assert open_database(path).trials() == [a_trial()]


def test_a_damaged_file_keeps_its_log_which_goes_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "tuning.sqlite"
    _garbage(path)
    Path(f"{path}-wal").write_bytes(b"the log")
    moved: list[str] = []
    replace = os.replace

    def watched(source: str, target: str) -> None:
        moved.append(source.removeprefix(str(path)))
        replace(source, target)

    monkeypatch.setattr("tuning_db.aside.os.replace", watched)
    with pytest.warns(TuningDatabaseWarning, match="damaged"):
        move_aside(path, identity(path))
    assert moved == ["-wal", "-shm", ""]
    [log] = tmp_path.glob("tuning.sqlite.damaged-*-wal")
    assert log.read_bytes() == b"the log"
    assert not path.exists()


def test_a_file_that_another_process_has_replaced_is_left(tmp_path: Path) -> None:
    path = tmp_path / "tuning.sqlite"
    _garbage(path)
    seen = identity(path)
    path.rename(tmp_path / "elsewhere")
    _garbage(path)
    move_aside(path, seen)
    assert path.exists()


def test_threads_that_find_the_same_damage_begin_one_new_database(tmp_path: Path) -> None:
    path = tmp_path / "tuning.sqlite"
    _garbage(path)
    errors: list[BaseException] = []

    def work(name: str) -> None:
        try:
            open_database(path).record([a_trial(run=name)])
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(f"t{i}",)) for i in range(8)]
    with pytest.warns(TuningDatabaseWarning, match="damaged") as told:
        _run_all(threads)
    assert errors == []
    assert len(told) == 1
    assert {trial.run for trial in open_database(path).trials()} == {f"t{i}" for i in range(8)}
    assert len(list(tmp_path.glob("tuning.sqlite.damaged-*"))) == 1


def _run_all(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_damage_is_what_sqlite_says_is_not_what_a_path_is_called(tmp_path: Path) -> None:
    path = tmp_path / "malformed, not a database" / "tuning.sqlite"
    path.parent.mkdir()
    with sqlite3.connect(path) as plain:
        plain.execute("CREATE TABLE songs (name TEXT)")
    plain.close()
    with pytest.raises(DatabaseError, match="songs"):
        open_database(path)
    assert [file.name for file in path.parent.iterdir() if "damaged" in file.name] == []


@pytest.mark.parametrize("main", ["empty", "gone"])
def test_a_log_without_its_database_is_kept(tmp_path: Path, main: str) -> None:
    path, log = tmp_path / "tuning.sqlite", tmp_path / "tuning.sqlite-wal"
    database = open_database(path)
    database.record([a_trial()])
    content = log.read_bytes()
    assert content
    database.close()
    log.write_bytes(content)
    path.unlink()
    if main == "empty":
        path.touch()
    with pytest.warns(TuningDatabaseWarning, match="the log is kept"):
        database = open_database(path)
    [aside] = tmp_path.glob("tuning.sqlite.damaged-*-wal")
    assert aside.read_bytes() == content
    database.record([a_trial(run="new")])
    assert [trial.run for trial in database.trials()] == ["new"]


@pytest.mark.parametrize("read_only", [False, True])
def test_an_export_is_no_damaged_database(tmp_path: Path, read_only: bool) -> None:
    path = tmp_path / "export.jsonl"
    write_lines([a_trial()], path)
    content = path.read_bytes()
    with pytest.raises(DatabaseError, match="convgen db import"):
        open_database(path, read_only=read_only)
    assert [file.name for file in tmp_path.iterdir()] == ["export.jsonl"]
    assert path.read_bytes() == content


@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize(
    "content",
    [b"photos/\0\0" * 100, b"x", b"SQLite format 2\0" * 99, bytes(2 << 20) + b"x"],
    ids=["tar", "byte", "other", "image"],
)
def test_a_file_that_never_was_a_database_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: bytes, read_only: bool
) -> None:
    path = tmp_path / "photos.tar"
    path.write_bytes(content)
    with pytest.raises(DatabaseError, match=r"photos\.tar is no database.*CONVGEN_TUNING_DB"):
        open_database(path, read_only=read_only)
    with pytest.warns(TuningDatabaseWarning, match="is no database") as told:
        layers = layers_of(monkeypatch, path)
    assert len(told) == 1
    serves_what_it_records(layers)
    assert path.read_bytes() == content
    assert [file.name for file in tmp_path.iterdir()] == ["photos.tar"]


def test_a_folder_or_a_pipe_is_no_database(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe"):
        with pytest.raises(DatabaseError, match="is no file"):
            open_database(path)


def test_somebody_elses_damaged_database_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "songs.sqlite"
    with sqlite3.connect(path) as plain:
        plain.execute("CREATE TABLE songs (name TEXT)")
        plain.executemany("INSERT INTO songs VALUES (?)", [("x" * 1000,)] * 50)
    plain.close()
    with path.open("r+b") as file:
        file.seek(2 * 4096)
        file.write(b"\xff" * 4096)
    with pytest.raises(DatabaseError, match="songs"):
        open_database(path)
    assert [file.name for file in tmp_path.iterdir()] == ["songs.sqlite"]


def test_an_empty_file_becomes_a_database(tmp_path: Path) -> None:
    (tmp_path / "x.sqlite").touch()
    assert open_database(tmp_path / "x.sqlite").version == migrations.newest()


def test_somebody_elses_database_is_left_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "other.sqlite"
    with sqlite3.connect(path) as plain:
        plain.execute("CREATE TABLE songs (name TEXT)")
    with pytest.raises(DatabaseError, match="songs"):
        open_database(path)
    with pytest.warns(TuningDatabaseWarning, match="songs"):
        layers = layers_of(monkeypatch, path)
    serves_what_it_records(layers)


def test_a_newer_schema_is_left_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "tuning.sqlite"
    with open_database(path) as database:
        database.record([a_trial()])
    with sqlite3.connect(path) as plain:
        plain.execute("UPDATE convgen_meta SET value = '99' WHERE name = 'schema_version'")
    plain.close()
    before = path.read_bytes()
    with pytest.raises(DatabaseError, match=r"version 99.*upgrade convgen"):
        open_database(path)
    with pytest.warns(TuningDatabaseWarning, match="version 99") as told:
        layers = layers_of(monkeypatch, path)
    assert len(told) == 1
    serves_what_it_records(layers)
    assert path.read_bytes() == before


def test_an_older_schema_is_brought_up_and_its_copy_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "tuning.sqlite"
    with open_database(path) as database:
        database.record([a_trial()])

    def another(connection: Connection) -> None:
        connection.execute(text("CREATE TABLE notes (id INTEGER)"))

    before = migrations.newest()
    monkeypatch.setattr(migrations, "MIGRATIONS", (*migrations.MIGRATIONS, another))
    database = open_database(path)
    assert database.version == before + 1
    assert database.trials() == [a_trial()]
    with sqlite3.connect(tmp_path / f"tuning.sqlite.schema{before}") as copy:
        assert copy.execute("SELECT value FROM convgen_meta").fetchone()[0] == str(before)
        assert copy.execute("SELECT COUNT(*) FROM trial").fetchone()[0] == 1


def test_a_migration_that_fails_changes_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "tuning.sqlite"
    open_database(path).record([a_trial()])

    def broken(connection: Connection) -> None:
        connection.execute(text("DROP TABLE peer"))
        connection.execute(text("SELECT nonsense FROM nowhere"))

    with monkeypatch.context() as patch:
        patch.setattr(migrations, "MIGRATIONS", (*migrations.MIGRATIONS, broken))
        with pytest.raises(DatabaseError, match="nowhere"):
            open_database(path)
    database = open_database(path)
    assert (database.version, database.trials(), database.peers()) == (migrations.newest(), [a_trial()], [])


@pytest.mark.parametrize(
    "config",
    [
        "not json",
        "[1, 2]",
        '{"tile": {"deep": 1}}',
        '{"tile": 1.5}',
        json.dumps({"tile": "x" * 5000}),
        "[" * 2000,
        json.dumps({f"f{i}": 1 for i in range(200)}),
    ],
    ids=lambda text: text[:12],
)
def test_a_config_edited_by_hand_is_passed_over_with_a_warning(tmp_path: Path, config: str) -> None:
    path = tmp_path / "tuning.sqlite"
    database = open_database(path)
    database.record([a_trial(1e-5, config={"tile": 1}), a_trial(2e-5, config={"tile": 2})])
    with sqlite3.connect(path) as plain:
        plain.execute("UPDATE trial SET config = ? WHERE seconds < 1.5e-5", (config,))
    with pytest.warns(TuningDatabaseWarning, match="passed over"):
        found = Layers(database).winner(a_task(), CURRENT)
    assert found is not None
    assert found.trial.config == {"tile": 2}


@pytest.mark.parametrize(
    ("edit", "named"),
    [
        ("UPDATE convgen_meta SET value = '1'", r"schema version 1, .*\(.*trial_pick already exists\)"),
        ("DROP TABLE peer", r"schema version 2, .*\(there is no table peer\)"),
    ],
)
def test_a_marker_that_does_not_agree_with_the_tables_is_told(tmp_path: Path, edit: str, named: str) -> None:
    path = tmp_path / "tuning.sqlite"
    open_database(path).close()
    with sqlite3.connect(path) as plain:
        plain.execute(edit)
    plain.close()
    before = path.read_bytes()
    with pytest.raises(DatabaseError, match=rf"tuning\.sqlite: its marker says {named}: put right schema_version"):
        open_database(path)
    assert path.read_bytes() == before
