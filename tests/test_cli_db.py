"""`convgen db`: asking, merging and tidying the tuning database from the command line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tuning_records import a_failure, a_peer, a_task, a_trial

from convgen.cli import main
from tuning_db import open_database

PROBLEM = "conv2d n=1 c=64 k=128 in=56x56 filter=3x3"


@pytest.fixture(autouse=True)
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path / "tuning.sqlite"
    monkeypatch.setenv("CONVGEN_TUNING_DB", str(place))
    with open_database(place) as database:
        task = a_task(PROBLEM)
        database.record([
            a_trial(1e-4, task, stage="final"),
            a_trial(3e-4, task, config={"tile": 1}, origin="default"),
            a_failure("hang", task=task, config={"tile": 2}),
        ])  # fmt: skip
        database.record_peers([a_peer(2e-4, task=task)])
    return place


def told(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["db", *words]) == 0
    return capsys.readouterr().out


def test_query_tells_the_winner_and_by_how_much(capsys: pytest.CaptureFixture[str]) -> None:
    out = told(capsys, "query", "--dtype", "fp32")
    assert PROBLEM in out
    assert "100 µs" in out
    assert "3.00x" in out
    assert "2.00x (cudnn_nchw)" in out
    assert told(capsys, "query", "--dtype", "bf16") == ""


def test_query_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    [row] = map(json.loads, told(capsys, "query", "--json").splitlines())
    assert (row["problem"], row["strategy"], row["seconds"]) == (PROBLEM, "direct", 1e-4)
    assert row["over_default"] == pytest.approx(3.0)


def test_query_tells_failures_by_cause(capsys: pytest.CaptureFixture[str]) -> None:
    assert told(capsys, "query", "--failures") == "direct: hang: 1 (it ended in hang)\n"


def test_show_tells_everything_of_one_problem(capsys: pytest.CaptureFixture[str]) -> None:
    out = told(capsys, "show", *PROBLEM.split())
    assert [word in out for word in ("final", "default", "hang", "cudnn_nchw: 200 µs")] == [True] * 4


def test_export_forget_and_import_bring_everything_back(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    before = told(capsys, "query")
    told(capsys, "export", str(tmp_path / "all.jsonl"))
    assert told(capsys, "forget", "--strategy", "direct") == "3 trials forgotten\n"
    assert told(capsys, "query") == ""
    told(capsys, "import", str(tmp_path / "all.jsonl"))
    assert told(capsys, "query") == before


def test_stats_and_path(capsys: pytest.CaptureFixture[str], path: Path) -> None:
    assert told(capsys, "path") == f"{path}\n"
    found = json.loads(told(capsys, "stats", "--json"))
    assert (found["tasks"], found["trials"], found["statuses"]) == (1, 3, {"hang": 1, "ok": 2})


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["forget"], "--all"),
        (["merge", "/nowhere/x.sqlite"], "/nowhere/x.sqlite"),
        (["stats", "--db", "nonsense://"], "nonsense"),
        (["query", "--coverage", "textbook"], "--device"),
        (["query", "--op", "conv4d"], "conv2d"),
        (["export", "--layout", "nhcw", "-"], "nhwc"),
        (["forget", "--status", "bad"], "wrong_result"),
        (["forget", "--dtype", "fp23"], "fp32"),
        (["query", "--direction", "back"], "dgrad"),
    ],
)
def test_what_cannot_be_done_is_said(capsys: pytest.CaptureFixture[str], words: list[str], named: str) -> None:
    assert main(["db", *words]) == 2
    assert named in capsys.readouterr().err


def test_what_ships_can_be_asked(capsys: pytest.CaptureFixture[str]) -> None:
    out = told(capsys, "query", "--db", "shipped", "--family", "image_filter", "--device", "h200")
    assert "halo_tiled" in out
    assert "(cudnn_" in out
    assert PROBLEM not in out


def test_a_problems_trials_become_a_study(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    import optuna

    place = tmp_path / "study.db"
    assert "3 trials" in told(capsys, "study", *PROBLEM.split(), "--storage", str(place))
    study = optuna.load_study(study_name=PROBLEM, storage=f"sqlite:///{place}")
    assert sorted(t.value for t in study.trials if t.value is not None) == pytest.approx([100.0, 300.0])
    assert [t.user_attrs["status"] for t in study.trials if t.value is None] == ["hang"]
    assert main(["db", "study", *["conv2d", "c=9", "k=9", "in=9x9", "filter=3x3"], "--storage", str(place)]) == 2


# --- where an export goes -------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["tuning.sqlite", "link", "songs.sqlite"])
def test_an_export_overwrites_no_database(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, path: Path, place: str
) -> None:
    (tmp_path / "link").symlink_to(path)
    open_database(tmp_path / "songs.sqlite").close()
    before = told(capsys, "query")
    assert main(["db", "export", str(tmp_path / place)]) == 2
    assert "is an SQLite database" in capsys.readouterr().err
    assert told(capsys, "query") == before


def test_an_export_to_stdout_is_nothing_but_records(capsys: pytest.CaptureFixture[str]) -> None:
    for place in ("-", "/dev/stdout"):
        assert main(["db", "export", place]) == 0
        captured = capsys.readouterr()
        assert [json.loads(line)["kind"] for line in captured.out.splitlines()] == ["trial"] * 3 + ["peer"]
        assert captured.err == f"4 records in {place}\n"


def test_a_study_is_not_written_into_the_tuning_database(capsys: pytest.CaptureFixture[str], path: Path) -> None:
    before = path.read_bytes()
    assert main(["db", "study", *PROBLEM.split(), "--storage", str(path)]) == 2
    assert f"--storage {path}" in capsys.readouterr().err
    assert path.read_bytes() == before


def test_an_export_is_piped_into_an_import(tmp_path: Path, path: Path) -> None:
    other = tmp_path / "other.sqlite"
    for source in ("-", "/dev/stdin"):
        python = f"{sys.executable} -m convgen db"
        command = f"{python} export --winners - | {python} import --db {other} {source}"
        done = subprocess.run(command, shell=True, capture_output=True, text=True)
        assert (done.returncode, done.stdout) == (0, f"3 records from {source}\n")
    with open_database(other) as copy, open_database(path) as first:
        assert copy.trials() == [t for t in first.trials() if t.status == "ok"]


def test_garbage_is_not_imported(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text("garbage\n")
    assert main(["db", "import", str(tmp_path / "x.jsonl")]) == 2
    assert "none of 1 lines is a record (line 1: 'garbage'" in capsys.readouterr().err


# --- what is shown --------------------------------------------------------------------------------------


def test_what_is_stored_gives_no_commands_to_the_terminal(capsys: pytest.CaptureFixture[str], path: Path) -> None:
    evil = "\x1b]0;owned\x07\u202e\n"
    task = a_task(PROBLEM, device="h200\x1b[2J")
    with open_database(path) as database:
        database.record([
            a_trial(1e-5, task, config={"tile": evil}, strategy=f"s{evil}", origin="o\x9b1m"),
            a_failure("hang", task=a_task(PROBLEM), strategy=f"s{evil}", config={"tile": evil}),
        ])  # fmt: skip
        database.record_peers([a_peer(2e-4, f"p{evil}", task=task, version=evil)])
        with database.writing() as connection:
            connection.exec_driver_sql("UPDATE trial SET stage = -1, config = x'00' WHERE origin = 'default'")
            connection.exec_driver_sql("UPDATE trial SET strategy = 's\x1b' WHERE stage = -1")
    for words in (["query"], ["query", "--failures"], ["show", *PROBLEM.split()], ["stats"]):
        assert main(["db", *words]) == 0
        captured = capsys.readouterr()
        assert "\\x1b" in captured.out
        for line in [*captured.out.split("\n"), *captured.err.split("\n")]:
            assert line.isprintable()


def test_the_size_is_that_of_the_file_and_its_log(capsys: pytest.CaptureFixture[str], path: Path) -> None:
    with open_database(path) as database:
        database.record([a_trial(1e-4, config={"tile": 5})])
        log = Path(f"{path}-wal").stat().st_size
        assert log > 0
        assert json.loads(told(capsys, "stats", "--json"))["nbytes"] == path.stat().st_size + log
