"""Merging: of what two databases have, the record made later stays. And what text can and cannot hold."""

from __future__ import annotations

import dataclasses
import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event
from sqlalchemy.exc import IntegrityError
from tuning_records import a_failure, a_peer, a_run, a_task, a_trial, write_lines

from tuning_db import Database, DatabaseError, TuningDatabaseWarning, open_database
from tuning_db.lines import merge, read_lines, records
from tuning_db.records import to_json

EARLY, LATE = "2026-11-01T00:00:00+00:00", "2026-11-02T00:00:00+00:00"

PAIRS = [
    (a_trial(3e-4, stage="screen"), a_trial(1e-4, stage="final")),
    (a_trial(1e-4, stage="final", created=EARLY), a_failure("hang", created=LATE)),
    (a_run(), a_run(outcome="finished", finished=LATE, summary={"seconds": 3.0})),
    (a_run(outcome="finished", finished=EARLY), a_run(outcome="finished", finished=LATE)),
    (a_peer(1e-4, created=EARLY), a_peer(2e-4, created=LATE)),
]  # fmt: skip


@pytest.mark.parametrize(("older", "newer"), PAIRS)
@pytest.mark.parametrize("kind", ["jsonl", "sqlite"])
def test_an_older_copy_changes_nothing_and_a_newer_one_comes_in(
    tmp_path: Path, older: Any, newer: Any, kind: str
) -> None:
    for stored, other in ((newer, older), (older, newer)):
        name = "into-older" if stored is older else "into-newer"
        into = open_database(tmp_path / f"{name}.sqlite")
        into.merge([stored])
        source = tmp_path / f"{name}-source.{kind}"
        if kind == "jsonl":
            write_lines([other], source)
        else:
            with open_database(source) as copy:
                copy.merge([other])
        for _ in range(2):
            assert merge(into, source) == 1
        assert list(records(into)) == [newer]


def test_of_two_of_one_file_the_newer_stays_whatever_their_order(tmp_path: Path) -> None:
    old, new = a_trial(1e-4, stage="final", created=LATE), a_trial(2e-4, stage="screen", created=EARLY)
    for number, order in enumerate(([old, new], [new, old])):
        database = open_database(tmp_path / f"{number}.sqlite")
        database.merge(order)
        assert database.trials() == [old]


def test_a_merge_is_whole_or_not_at_all(tmp_path: Path) -> None:
    database = open_database(tmp_path / "x.sqlite")
    with pytest.raises(DatabaseError, match="positive number"):
        database.merge([a_run(), a_trial(), dataclasses.replace(a_peer(), seconds=-1.0)])
    assert list(records(database)) == []


def test_recording_takes_few_statements_however_many_trials(tmp_path: Path) -> None:
    database = open_database(tmp_path / "x.sqlite")
    statements: list[str] = []
    event.listen(database._engine, "before_cursor_execute", lambda *args: statements.append(args[2]))
    database.record([a_trial(config={"tile": i}) for i in range(1000)])
    assert len(database.trials()) == 1000
    assert len(statements) < 10


def test_a_write_that_another_writer_forestalled_is_begun_anew(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from tuning_db import database as module

    database, real, left = open_database(tmp_path / "x.sqlite"), module.store_peers, [1]

    def store(*args: Any, **options: Any) -> None:
        real(*args, **options)
        if left[0]:
            left[0] -= 1
            raise IntegrityError("INSERT", {}, Exception("UNIQUE constraint failed"))

    monkeypatch.setattr(module, "store_peers", store)
    database.record_peers([a_peer()])
    assert database.peers() == [a_peer()]
    left[0] = 99
    with pytest.raises(DatabaseError, match="UNIQUE constraint failed"):
        database.record_peers([a_peer(1e-5)])
    assert database.peers() == [a_peer()]


# --- what a record may hold -----------------------------------------------------------------------------------


def test_texts_that_only_tell_are_cut_to_what_every_database_holds(tmp_path: Path) -> None:
    database = open_database(tmp_path / "x.sqlite")
    database.record([a_trial(driver="d" * 40, convgen="c" * 40, origin="o" * 40, reason="r\0\udcff" + "r" * 9000)])
    database.record_peers([a_peer(driver="d" * 40)])
    [trial], [peer] = database.trials(), database.peers()
    assert (trial.driver, trial.convgen, trial.origin) == ("d" * 32, "c" * 32, "o" * 32)
    assert trial.reason == "r?" + "r" * 4094
    assert peer.driver == "d" * 32


@pytest.mark.parametrize(
    "wrong",
    [
        {"task": a_task("p" * 769)},
        {"task": a_task(device="d" * 65)},
        {"strategy": "s\0"},
        {"source_key": "\udcff"},
        {"config": {"name": "\ud800"}},
        {"config": {"name": "x" * 5000}},
        {"low": float("inf")},
        {"rounds": True},
        {"created": None},
    ],
)
def test_what_not_every_database_can_hold_is_refused(tmp_path: Path, wrong: dict[str, Any]) -> None:
    database = open_database(tmp_path / "x.sqlite")
    with pytest.raises(DatabaseError, match="expected"):
        database.record([a_trial(**wrong)])


def test_an_export_has_no_number_that_json_has_not(tmp_path: Path) -> None:
    database = open_database(tmp_path / "x.sqlite")
    database.record([a_trial(error=float("inf"), bound=float("nan"))])
    database.record_run(a_run(summary={"random_baseline": float("nan"), "all": [1.0, float("inf")]}))
    write_lines(records(database), tmp_path / "x.jsonl")
    write_lines([a_trial(error=float("inf"))], tmp_path / "y.jsonl")

    def refuse(word: str) -> None:
        raise AssertionError(word)

    lines = [*(tmp_path / "x.jsonl").read_text().splitlines(), *(tmp_path / "y.jsonl").read_text().splitlines()]
    run, trial, other = [json.loads(line, parse_constant=refuse) for line in lines]
    assert run["summary"] == {"random_baseline": None, "all": [1.0, None]}
    assert (trial["error"], trial["bound"], other["error"]) == (None, None, None)


def test_a_bad_byte_costs_its_line_and_no_other(tmp_path: Path) -> None:
    lines = [json.dumps(to_json(a_trial(run=run))).encode() for run in ("a", "b", "c")]
    lines[1] = lines[1].replace(b'"run": "b"', b'"run": "\xff"')
    (tmp_path / "x.jsonl").write_bytes(b"\n".join(lines))
    with pytest.warns(TuningDatabaseWarning, match="1 lines are no records"):
        assert [r.run for r in read_lines(tmp_path / "x.jsonl")] == ["a", "c"]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "change",
    [
        {"sm_count": 10**400}, {"rounds": 2**40}, {"seconds": 10**400}, {"low": "x"}, {"strategy": "s" * 65},
        {"low": float("nan")},
    ],
)  # fmt: skip
def test_a_line_with_a_value_that_no_database_holds_is_passed_over(tmp_path: Path, change: dict[str, Any]) -> None:
    lines = [json.dumps({**to_json(a_trial()), **change}), json.dumps(to_json(a_peer()))]
    (tmp_path / "x.jsonl").write_text("\n".join(lines))
    database: Database = open_database(tmp_path / "x.sqlite")
    with pytest.warns(TuningDatabaseWarning, match="1 lines are no records"):
        assert merge(database, tmp_path / "x.jsonl") == 1


def _without(*names: str) -> str:
    return json.dumps({name: value for name, value in to_json(a_trial()).items() if name not in names})


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (
            _without("seconds", "status"),
            "line 2: a trial without status: expected all of run, strategy, config, status",
        ),
        (_without("sm_count", "device"), "line 2: a trial without device, sm_count: expected all of problem, op,"),
        (json.dumps({"kind": "peer"}), "line 2: a peer without problem, op, direction"),
        (json.dumps({**to_json(a_trial()), "config": "tile=1"}), "line 2: config 'tile=1': expected an object"),
        (json.dumps({**to_json(a_run()), "settings": []}), r"line 2: settings='\[\]': expected an object"),
        ("{not json", "line 2: '{not json': expected a JSON object"),
        ("[1]", r"line 2: record '\[1\]': expected a JSON object"),
        ("9" * 5000, "line 2: '9{60}': expected a JSON object"),
    ],
)
def test_a_bad_line_is_told_of_by_number_with_what_was_expected(tmp_path: Path, line: str, told: str) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(f"\n{line}\n{json.dumps(to_json(a_trial()))}\n")
    with pytest.warns(TuningDatabaseWarning, match=told):
        assert list(read_lines(path)) == [a_trial()]
    path.write_text(f"\n{line}\n")
    with pytest.raises(DatabaseError, match=f"none of 1 lines is a record .{told}"):
        list(read_lines(path))


def test_what_holds_no_record_at_all_is_refused(tmp_path: Path) -> None:
    database = open_database(tmp_path / "x.sqlite")
    (tmp_path / "garbage").write_bytes(b"\x1f\x8b\x08 garbage\nmore\n")
    with pytest.raises(DatabaseError, match=r"garbage: none of 2 lines is a record.*expected a database, or what"):
        merge(database, tmp_path / "garbage")
    with pytest.raises(DatabaseError, match="cannot be read: Is a directory"):
        merge(database, tmp_path)
    with pytest.raises(DatabaseError, match="no such file"):
        merge(database, tmp_path / "nothing")
    (tmp_path / "empty").touch()
    assert merge(database, tmp_path / "empty") == 0


def test_a_pipe_is_read_like_a_file(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=write_lines, args=([a_trial(), a_peer()], pipe))
    writer.start()
    database = open_database(tmp_path / "x.sqlite")
    assert merge(database, pipe) == 2
    writer.join()
    assert (database.trials(), database.peers()) == ([a_trial()], [a_peer()])
