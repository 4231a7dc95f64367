"""Databases as text: JSON Lines in a stable order, so that two exports of the same content are the same bytes."""

from __future__ import annotations

import contextlib
import json
import os
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path

from sqlalchemy import ColumnElement

from tuning_db.checks import from_json
from tuning_db.database import Database
from tuning_db.errors import DatabaseError, TuningDatabaseWarning
from tuning_db.opening import SQLITE_MAGIC, open_database
from tuning_db.records import Record, to_json


def records(
    database: Database, where: ColumnElement[bool] | None = None, *, winners_only: bool = False
) -> Iterator[Record]:
    """All that a database holds of the tasks and trials that a condition meets, in a stable order.

    `winners_only` keeps each task's winner, the run that found it, the untuned default of that run, and the peers.
    """
    if winners_only:
        best = database.best_trials(where)
        won = {(trial.task.identity, trial.run) for trial in best}
        yield from (run for run in database.runs(where) if (run.task.identity, run.id) in won)
        defaults = {(t.task.identity, t.run): t for t in database.trials(where) if t.origin == "default"}
        for trial in best:
            yield trial
            default = defaults.get((trial.task.identity, trial.run))
            if default is not None and default.config != trial.config:
                yield default
    else:
        yield from database.runs(where)
        yield from database.trials(where)
    yield from database.peers(where)


def lines_of(found: Iterable[Record]) -> list[str]:
    """Records as text, one a line, which ends with it."""
    return [json.dumps(to_json(r), sort_keys=True, separators=(",", ":"), allow_nan=False) + "\n" for r in found]


def read_lines(path: Path) -> Iterator[Record]:
    """The records of a file; a line that is none is passed over, with one warning. Raises DatabaseError if it cannot
    be read at all, or every line is none."""
    good, bad, example = 0, 0, ""
    try:
        # A byte that is no UTF-8 becomes half of a surrogate pair, which is in no record.
        with path.open(encoding="utf-8", errors="surrogateescape") as file:
            for number, line in enumerate(file, 1):
                if not line.strip():
                    continue
                try:
                    record = from_json(_read(line))
                except DatabaseError as error:
                    bad, example = bad + 1, example or f"line {number}: {error}"
                    continue
                yield record
                good += 1
    except OSError as error:
        raise DatabaseError(f"{path} cannot be read: {error.strerror}") from error
    if bad and not good:
        raise DatabaseError(
            f"{path}: none of {bad} lines is a record ({example[:300]}): expected a database, or what "
            "`convgen db export` writes"
        )
    if bad:
        warnings.warn(
            f"{path}: {bad} lines are no records and are passed over ({example[:300]})",
            TuningDatabaseWarning,
            stacklevel=2,
        )


def _read(line: str) -> object:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DatabaseError(f"{line.strip()[:60]!a}: expected a JSON object") from error


def merge(into: Database, source: str | Path) -> int:
    """Bring in all that JSON Lines (a file or a pipe) or another database hold, or nothing; returns how many records.

    What both have is the same record (a run's id tells): of the two, the one that was recorded later stays. So merging
    twice, or an older copy, changes nothing. Raises DatabaseError.
    """
    found = records_in(source)
    into.merge(found)
    return len(found)


def records_in(source: str | Path) -> list[Record]:
    """All that JSON Lines (a file or a pipe) or a database hold. Raises DatabaseError."""
    text = str(source)
    if "://" not in text and not os.path.exists(text):
        raise DatabaseError(f"{text}: no such file")
    if "://" in text or _is_sqlite(Path(text)):
        with open_database(text, read_only=True) as other:
            return list(records(other))
    return list(read_lines(Path(text)))


def _is_sqlite(path: Path) -> bool:
    if path.is_file():  # what is read of a pipe is gone
        with contextlib.suppress(OSError), path.open("rb") as file:
            return file.read(len(SQLITE_MAGIC)) == SQLITE_MAGIC
    return False
