"""Whatever happens to a tuning database, what was committed stays, and a convolution goes on with one warning."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import stat
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from tuning_records import CURRENT, a_task, a_trial, layers_of, serves_what_it_records

import tuning_db
from tuning_db import DatabaseError, Layers, TuningDatabaseWarning, open_database, open_layers
from tuning_db.engine import is_on_network, user_location

WRITERS = 16
EACH = 8

WRITER = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from tuning_db import open_database
from tuning_records import CURRENT, a_task, a_trial
path, name, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
database = open_database(path)
i = 0
while i < count or count < 0:
    database.record([a_trial(1e-5 * (j + 1), run=f"{{name}}-{{i}}", config={{"tile": j}}) for j in range(4)])
    assert database.winner(a_task(), CURRENT) is not None
    print(i, flush=True)
    i += 1
"""


def _writer(path: Path, name: str, count: int) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(Path(tuning_db.__file__).parents[1])}
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path), name, str(count)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
    )  # fmt: skip


def _is_whole(path: Path) -> bool:
    with sqlite3.connect(path) as plain:
        return bool(plain.execute("PRAGMA integrity_check").fetchone()[0] == "ok")


def test_sixteen_processes_write_and_read_at_once(tmp_path: Path) -> None:
    path = tmp_path / "tuning.sqlite"  # its creation is part of the race
    writers = [_writer(path, f"w{i}", EACH) for i in range(WRITERS)]
    for writer in writers:
        _, errors = writer.communicate(timeout=120)
        assert writer.returncode == 0, errors
    trials = open_database(path).trials()
    assert len(trials) == WRITERS * EACH * 4
    assert _is_whole(path)


def test_killed_fifty_times_in_the_middle_of_writes(tmp_path: Path) -> None:
    path = tmp_path / "tuning.sqlite"
    open_database(path).record([a_trial(run="before")])
    told: set[str] = {"before"}
    kills = 0
    while kills < 50:
        # Side by side, so that starting interpreters takes less of the test than killing them.
        writers = [(_writer(path, f"k{kills + i}", -1), f"k{kills + i}") for i in range(5)]
        for writer, _ in writers:
            assert writer.stdout is not None
            writer.stdout.readline()
        for number, (writer, name) in enumerate(writers):
            time.sleep(0.003 * ((kills + number) % 7))
            writer.send_signal(signal.SIGKILL)
            output, _ = writer.communicate()
            lines = output.split()
            told |= {f"{name}-0", *(f"{name}-{line}" for line in lines)}
            assert writer.returncode == -signal.SIGKILL
            kills += 1
    database = open_database(path)
    by_run: dict[str, int] = {}
    for trial in database.trials():
        by_run[trial.run] = by_run.get(trial.run, 0) + 1
    assert told <= by_run.keys()  # what was acknowledged is there
    assert {count for run, count in by_run.items() if run != "before"} == {4}  # and of the rest all or nothing
    assert _is_whole(path)
    database.record([a_trial(run="after")])


# --- places --------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _nobody() -> Iterator[None]:
    """Root may write everywhere: be somebody else for a while."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


def test_where_the_users_database_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CONVGEN_TUNING_DB", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    assert user_location() == tmp_path / "data" / "convgen" / "tuning.sqlite"
    monkeypatch.delenv("XDG_DATA_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert user_location() == tmp_path / ".local" / "share" / "convgen" / "tuning.sqlite"
    monkeypatch.setenv("CONVGEN_TUNING_DB", "sqlite:////x/y.sqlite")
    assert user_location() == Path("/x/y.sqlite")


def test_places_are_absolute_and_relative_data_folders_are_passed_over(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    monkeypatch.setenv("XDG_DATA_HOME", "data")
    monkeypatch.delenv("CONVGEN_TUNING_DB", raising=False)
    assert user_location() == tmp_path / "me" / ".local" / "share" / "convgen" / "tuning.sqlite"
    monkeypatch.setenv("CONVGEN_TUNING_DB", "~/x.sqlite")
    assert user_location() == tmp_path / "me" / "x.sqlite"
    monkeypatch.setenv("CONVGEN_TUNING_DB", "sub/x.sqlite")
    assert user_location() == tmp_path / "sub" / "x.sqlite"
    monkeypatch.setenv("CONVGEN_TUNING_DB", "sqlite:///sub/x.sqlite")
    assert user_location() == tmp_path / "sub" / "x.sqlite"
    for name in ("CONVGEN_TUNING_DB", "XDG_DATA_HOME"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", "")
    assert user_location() is None


def test_without_a_home_folder_it_lives_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CONVGEN_TUNING_DB", "XDG_DATA_HOME", "CONVGEN_SHARED_TUNING_DB"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    with pytest.warns(TuningDatabaseWarning, match="set CONVGEN_TUNING_DB"):
        layers = open_layers()
    serves_what_it_records(layers)


def test_a_place_where_no_folder_can_be_made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.warns(TuningDatabaseWarning, match="cannot be made"):
        layers = layers_of(monkeypatch, tmp_path / "file" / "tuning.sqlite")
    serves_what_it_records(layers)


def test_a_read_only_folder_is_read_and_what_is_new_lives_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder, path = Path(name), Path(name) / "tuning.sqlite"
        with open_database(path) as database:
            database.record([a_trial(2e-4, run="old")])
        path.chmod(0o444)
        folder.chmod(0o555)
        try:
            with _nobody():
                with pytest.warns(TuningDatabaseWarning, match="only read") as told:
                    layers = layers_of(monkeypatch, path)
                assert len(told) == 1
                found = layers.winner(a_task(), CURRENT)
                assert found is not None
                assert found.trial.run == "old"
                with warnings.catch_warnings():
                    warnings.simplefilter("error")
                    serves_what_it_records(layers)
        finally:
            folder.chmod(0o755)
        assert [t.run for t in open_database(path, read_only=True).trials()] == ["old"]


def test_a_read_only_database_is_read_as_it_lies(tmp_path: Path) -> None:
    path = tmp_path / "tuning.sqlite"
    with open_database(path) as database:
        database.record([a_trial()])
    before = sorted(file.name for file in tmp_path.iterdir())
    reader = open_database(path, read_only=True)
    assert reader.trials() == [a_trial()]
    with pytest.raises(DatabaseError, match="opened to be read"):
        reader.record([a_trial(run="x")])
    assert stat.S_ISREG(path.stat().st_mode)
    assert [name for name in before if name.endswith(".sqlite")] == ["tuning.sqlite"]


def test_a_full_disk_loses_nothing_that_was_there(tmp_path: Path) -> None:
    path = tmp_path / "tuning.sqlite"
    database = open_database(path)
    database.record([a_trial(run="before")])
    with database.reading() as connection:  # the file may not grow: what SQLite then says is what a full disk says
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar()
        connection.exec_driver_sql(f"PRAGMA max_page_count = {pages}")
    layers = Layers(database)
    big = [a_trial(1e-4, run="new", config={"tile": i, "text": "x" * 3000}) for i in range(50)]
    with pytest.warns(TuningDatabaseWarning, match="full"):
        layers.record(big)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # told once
        layers.record([a_trial(5e-5, run="newer", config={"text": "y" * 4000})])
    assert [t.run for t in database.trials()] == ["before"]
    found = layers.winner(a_task(), CURRENT)
    assert found is not None
    assert found.trial.run == "newer"
    assert _is_whole(path)


# --- file systems --------------------------------------------------------------------------------------------

MOUNTS = """22 1 254:0 / / rw,relatime - ext4 /dev/root rw
30 22 0:40 / /home rw shared:1 - nfs4 server:/home rw
31 30 0:41 / /home/local rw - xfs /dev/sdb rw
32 22 0:42 / /mnt/with\\040space rw - cifs //server/share rw
"""


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/var/lib/x", False),
        ("/home/me/.local/share", True),
        ("/home/local/x", False),
        ("/homes/x", False),
        ("/mnt/with space/x", True),
    ],
)
def test_network_file_systems_are_told_by_their_mount(tmp_path: Path, path: str, expected: bool) -> None:
    (tmp_path / "mountinfo").write_text(MOUNTS)
    assert is_on_network(Path(path), tmp_path / "mountinfo") is expected


def test_the_write_ahead_log_is_off_on_a_network_file_system(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def journal(path: Path) -> str:
        with open_database(path).reading() as connection:
            return str(connection.exec_driver_sql("PRAGMA journal_mode").scalar())

    assert journal(tmp_path / "local.sqlite") == "wal"
    monkeypatch.setattr("tuning_db.engine.is_on_network", lambda path: True)
    assert journal(tmp_path / "remote.sqlite") == "delete"
