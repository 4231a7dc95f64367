"""`convgen tune`: where what it finds goes, and what it says when that fails."""

from __future__ import annotations

import os
import resource
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from convgen.cli import main, tune_command
from convgen.problem import Conv
from convgen.tuner.events import TuneResult
from tuning_db import open_database

TUNE = ["tune", "--backend", "sim", "--strategy", "direct", "--trials", "2", "--jobs", "1"]
PROBLEM = ["conv2d", "c=2", "k=2", "in=6", "filter=3"]


def _tune(place: Path, *options: str, **settings: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "convgen", *TUNE, *options, *PROBLEM],
        env={**os.environ, "CONVGEN_TUNING_DB": str(place)},
        capture_output=True,
        text=True,
        **settings,
    )


def _edit(path: Path, statement: str) -> None:
    with sqlite3.connect(path) as plain:
        plain.execute(statement)
    plain.close()


@pytest.mark.parametrize("by", ["environment", "--db"])
@pytest.mark.parametrize(("trouble", "status"), [("newer", 2), ("foreign", 2), ("full", 1)])
def test_a_search_that_could_not_be_saved_is_not_begun(tmp_path: Path, trouble: str, status: int, by: str) -> None:
    path = tmp_path / "tuning.sqlite"
    settings: dict[str, Any] = {}
    if trouble == "foreign":
        _edit(path, "CREATE TABLE songs (name TEXT)")
        named = "songs"
    else:
        open_database(path).close()
    if trouble == "newer":
        _edit(path, "UPDATE convgen_meta SET value = '99'")
        named = "upgrade convgen"
    if trouble == "full":  # no file may grow
        settings["preexec_fn"] = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
        named = str(path)
    options = ["--db", str(path)] if by == "--db" else []
    done = _tune(tmp_path / "elsewhere.sqlite" if options else path, *options, **settings)
    assert (done.returncode, done.stdout) == (status, "")
    assert named in done.stderr.splitlines()[-1]


def test_what_could_not_be_saved_is_told_last(tmp_path: Path) -> None:
    path = tmp_path / "tuning.sqlite"
    open_database(path).close()
    _edit(path, "CREATE TRIGGER full BEFORE INSERT ON trial BEGIN SELECT RAISE(FAIL, 'database or disk is full'); END")
    done = _tune(path)
    assert done.returncode == 1
    assert "direct: " in done.stdout
    last = done.stderr.splitlines()[-1]
    assert "records of what was tuned are not saved" in last
    assert "database or disk is full" in last
    assert f"make room in {tmp_path}, and tune again" in last
    assert open_database(path).trials() == []


def test_the_simulator_takes_no_devices(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*TUNE, "--devices", "0,1", *PROBLEM]) == 2
    assert "--devices 0,1: the simulator runs on no GPU" in capsys.readouterr().err


def test_a_strategy_for_other_problems_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(
            [
                "tune",
                "--backend",
                "sim",
                "--db",
                ":memory:",
                "--strategy",
                "flash_attention,direct",
                "--trials",
                "1",
                *PROBLEM,
            ]
        )
        == 0
    )
    capsys.readouterr()
    assert main(["tune", "--backend", "sim", "--db", ":memory:", "--strategy", "flash_attention", *PROBLEM]) == 3
    told = capsys.readouterr().err
    assert told.endswith("filter=3x3: flash_attention: it solves attention, not conv2d\n")


@pytest.mark.parametrize("outcome", ["interrupted", "finished"])
def test_a_search_that_was_interrupted_is_not_said_to_have_failed(outcome: Any) -> None:
    result = TuneResult(Conv.parse(" ".join(PROBLEM)), outcome, None)
    told = "interrupted before any candidate gave a right answer: 0 candidates"
    assert tune_command._sentence(result).startswith(told) is (outcome == "interrupted")
    assert tune_command._status([result], []) == (0 if outcome == "interrupted" else 5)


NEVER_BUILT = """
import sys
from concurrent.futures import Future
from convgen.cli import main
from convgen.tuner.builder import Builder

def submit(*_):
    print("asked for", flush=True)
    return Future()

Builder.submit = submit
sys.exit(main())
"""


def test_an_interrupt_before_the_first_candidate_is_built_says_so(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", NEVER_BUILT, *TUNE, "--trials", "1", *PROBLEM],
        env={**os.environ, "CONVGEN_TUNING_DB": str(tmp_path / "tuning.sqlite")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "asked for\n"
            process.send_signal(signal.SIGINT)
            out, errors = process.communicate(timeout=60)
        finally:
            process.kill()
    assert (process.returncode, errors) == (130, "interrupted\n")
    assert "interrupted before the search began, in" in out


def test_what_took_the_time_is_told() -> None:
    problem = Conv.parse(" ".join(PROBLEM))
    early = TuneResult(problem, "interrupted", None, preparation_seconds=8.0)
    assert tune_command._sentence(early) == "interrupted before the search began, in 8 s of preparation"
    late = TuneResult(problem, "interrupted", None, seconds=0.5, preparation_seconds=8.0)
    assert tune_command._sentence(late).endswith(": 0 candidates in 500 ms, after 8 s of preparation")


@pytest.mark.parametrize(
    ("statuses", "status", "said"),
    [
        ({"run_timeout": 2}, 4, "this machine was too slow to judge any candidate: 2 candidates (2 run_timeout)"),
        ({"compile_timeout": 1, "run_timeout": 1, "duplicate": 1}, 4, "this machine was too slow to judge any"),
        ({"run_timeout": 1, "wrong_result": 1}, 5, "no candidate gave a right answer: 2 candidates"),
        ({"hang": 2}, 5, "no candidate gave a right answer: 2 candidates (2 hang)"),
    ],
)
def test_a_slow_machine_is_no_wrong_answer(statuses: dict[str, int], status: int, said: str) -> None:
    result = TuneResult(Conv.parse(" ".join(PROBLEM)), "finished", None, statuses=statuses)
    assert said in tune_command._sentence(result)
    assert tune_command._status([result], []) == status
    assert tune_command._status([], []) == 0
