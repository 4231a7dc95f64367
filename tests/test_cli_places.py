"""Where commands read and write: what is only read is never made, and what cannot be written exits with 1."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import pytest
from tuning_records import a_task, a_trial

from convgen.cache import cache_directory
from convgen.cli import main
from convgen.cli.options import output_file
from convgen.errors import DeviceError
from convgen.target import Target
from tuning_db import Shipped, open_database

SMALL = ["conv2d", "c=2", "k=2", "in=6", "filter=3"]
PROBLEM = "conv2d n=1 c=2 k=2 in=6x6 filter=3x3"
COMPILE = ["compile", *SMALL, "--target", "h200", "--verify", "no"]
TUNE = ["tune", *SMALL, "--backend", "sim", "--strategy", "direct", "--trials", "1", "--jobs", "1"]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fresh user's, which is the current folder too; no database is there yet."""
    place = tmp_path / "home"
    place.mkdir()
    monkeypatch.setenv("CONVGEN_CACHE_DIR", str(cache_directory()))
    monkeypatch.chdir(place)
    for name in ("CONVGEN_TUNING_DB", "CONVGEN_SHARED_TUNING_DB", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(place))
    return place


@pytest.fixture
def told(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    def run(*words: str) -> tuple[int, str, str]:
        status = main(words)
        return status, *capsys.readouterr()

    return run


# --- what is read ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("writable", [True, False])
def test_before_there_is_a_database_questions_are_answered_without_one(
    told: Callable[..., tuple[int, str, str]], home: Path, monkeypatch: pytest.MonkeyPatch, writable: bool
) -> None:
    if not writable:
        monkeypatch.setenv("HOME", "/proc")  # nobody, not even root, makes a folder there
    status, out, err = told("db", "query")
    assert (status, out) == (0, "")
    assert "--db shipped asks those that ship" in err
    assert told("db", "show", *SMALL) == (0, "", "nothing is known of this problem\n")
    status, out, _ = told("db", "stats")
    assert (status, out.splitlines()[-1]) == (0, "0 trials: none")
    assert told("db", "export", "-")[:2] == (0, "")
    assert told(*COMPILE, "-o", "kernel")[0] == 0
    assert [path.name for path in home.iterdir()] == ["kernel"]


@pytest.mark.parametrize(
    "words",
    [
        *(["db", action, "--db", "nosuch"] for action in ("query", "stats", "upgrade")),
        ["db", "show", "--db", "nosuch", *SMALL],
        ["db", "study", "--db", "nosuch", "--storage", "study.db", *SMALL],
        ["db", "export", "--db", "nosuch", "out.jsonl"],
        ["db", "forget", "--db", "nosuch", "--all"],
        ["db", "merge", "nosuch"],
        ["db", "import", "--db", "mine.sqlite", "nosuch"],
    ],
)
def test_a_database_that_is_not_there_is_named_and_not_made(
    told: Callable[..., tuple[int, str, str]], home: Path, words: list[str]
) -> None:
    status, out, err = told(*words)
    assert (status, out) == (2, "")
    assert "nosuch: no such file" in err
    assert list(home.iterdir()) == []


def test_benchmarks_need_the_database_that_they_name(
    told: Callable[..., tuple[int, str, str]], home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Venue:
        def __init__(self, *_: object) -> None:
            self.peers_left_out, self.meta = "", {"gpu": "none"}

    monkeypatch.setattr(Target, "current", lambda: Target.preset("h200"))
    monkeypatch.setattr("convgen.bench.venue.GpuVenue", Venue)
    status, _, err = told("bench", *SMALL, "--db", "nosuch")
    assert (status, err) == (2, f"convgen: {home / 'nosuch'}: no such file\n")
    assert list(home.iterdir()) == []


def test_a_shared_database_is_only_read(told: Callable[..., tuple[int, str, str]], home: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CONVGEN_SHARED_TUNING_DB", str(home / "shared.sqlite"))
        status, _, err = told(*COMPILE, "-o", "kernel")
    assert status == 0
    assert "shared.sqlite: no such file" in err
    assert [path.name for path in home.iterdir()] == ["kernel"]


# --- what ships -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        ["db", "import", "--db", "shipped", "more.jsonl"],
        ["db", "merge", "--db", "shipped", "more.jsonl"],
        ["db", "forget", "--db", "shipped", "--all"],
        ["db", "upgrade", "--db", "shipped"],
        [*TUNE, "--db", "shipped"],
    ],
)
def test_what_ships_is_only_read(
    told: Callable[..., tuple[int, str, str]], home: Path, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_database(home / "mine.sqlite") as database:
        database.record([a_trial(1e-4, a_task(PROBLEM))])
    assert told("db", "export", "--db", "mine.sqlite", "more.jsonl")[0] == 0
    before = sorted(home.iterdir())
    refusal = "convgen: shipped: the winners that ship are only read: name another database\n"
    assert told(*words) == (2, "", refusal)
    assert sorted(home.iterdir()) == before
    monkeypatch.setenv("CONVGEN_TUNING_DB", "shipped")
    assert told("db", "import", "more.jsonl") == (2, "", refusal)
    assert sorted(home.iterdir()) == before


def test_what_ships_is_called_by_its_folder(told: Callable[..., tuple[int, str, str]]) -> None:
    folder = str(Shipped().folder)
    assert told("db", "path", "--db", "shipped") == (0, f"{folder}\n", "")
    assert told("db", "stats", "--db", "shipped")[1].startswith(f"{folder} (schema ")
    nothing = f"no winner in {folder} meets the filters\n"
    assert told("db", "query", "--db", "shipped", "--device", "none") == (0, "", nothing)


# --- what is written ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ([*COMPILE, "-o", "/proc/kernel"], "/proc/kernel"),
        ([*COMPILE, "-o", "/dev/full"], "/dev/full"),
        (["db", "export", "/dev/full"], "/dev/full"),
        (["db", "export", "/proc/x.jsonl"], "/proc/x.jsonl"),
        (["db", "study", *SMALL, "--storage", "/proc/study.db"], "/proc/study.db"),
        (["db", "import", "--db", "/proc/x.sqlite", "more.jsonl"], "/proc/x.sqlite"),
        ([*TUNE, "--db", "/proc/x.sqlite"], "/proc/x.sqlite"),
    ],
)
def test_what_cannot_be_written_exits_with_1(
    told: Callable[..., tuple[int, str, str]], words: list[str], named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CONVGEN_TUNING_DB", "mine.sqlite")
    with open_database() as database:
        database.record([a_trial(1e-4, a_task(PROBLEM))])
    assert told("db", "export", "more.jsonl")[0] == 0
    status, out, err = told(*words)
    assert (status, out) == (1, "")
    assert named in err
    assert "unexpected" not in err


@pytest.mark.parametrize("words", [["db", "import", "more.jsonl"], TUNE])
def test_a_home_that_takes_no_database_exits_with_1(
    told: Callable[..., tuple[int, str, str]], home: Path, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "more.jsonl").write_text("")
    monkeypatch.setenv("HOME", "/proc")
    status, out, err = told(*words)
    assert (status, out) == (1, "")
    assert "/proc/.local/share/convgen cannot be made" in err
    assert "set CONVGEN_TUNING_DB" in err


@pytest.mark.parametrize("words", [["db", "import", "more.jsonl"], TUNE])
def test_no_folder_is_made_for_a_database_that_is_named(
    told: Callable[..., tuple[int, str, str]], home: Path, words: list[str]
) -> None:
    (home / "more.jsonl").write_text("")
    status, _, err = told(*words, "--db", "missing/x.sqlite")
    assert (status, err) == (2, f"convgen: {home / 'missing' / 'x.sqlite'}: there is no folder {home / 'missing'}\n")
    assert [path.name for path in home.iterdir()] == ["more.jsonl"]


@pytest.mark.parametrize("place", ["/dev/null", "a_file"])
def test_what_is_there_and_no_folder_is_called_that(
    told: Callable[..., tuple[int, str, str]], home: Path, place: str
) -> None:
    (home / "a_file").write_text("")
    with pytest.raises(argparse.ArgumentTypeError, match=f"'{place}/x': {place} is no folder$"):
        output_file(f"{place}/x")
    status, _, err = told(*TUNE, "--db", f"{place}/x.sqlite")
    there = home / place
    assert (status, err) == (2, f"convgen: {there / 'x.sqlite'}: {there} is no folder\n")


def test_a_search_without_a_gpu_names_the_simulator(
    told: Callable[..., tuple[int, str, str]], home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(_: int) -> Target:
        raise DeviceError("no usable GPU")

    monkeypatch.setattr(Target, "current", missing)
    status, out, err = told("tune", *SMALL)
    assert (status, out) == (6, "")
    assert "no usable GPU; --backend sim needs none" in err
    assert list(home.iterdir()) == []
