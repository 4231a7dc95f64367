"""Databases as text: JSON Lines in a stable order, so that two exports of the same content are the same bytes."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path

from sqlalchemy import ColumnElement

from tuning_db.checks import from_json
from tuning_db.database import Database
from tuning_db.errors import DatabaseError, TuningDatabaseWarning
from tuning_db.opening import open_database
from tuning_db.records import Record, to_json

_SQLITE_MAGIC = b"SQLite format 3\0"


def records(
    database: Database, where: ColumnElement[bool] | None = None, *, winners_only: bool = False
) -> Iterator[Record]:
    """All that a database holds of the tasks and trials that a condition meets, in a stable order.

    `winners_only` keeps each task's winner, the untuned default of the same run, and the peers.
    """
    if winners_only:
        best = database.best_trials(where)
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


def write_lines(found: Iterable[Record], path: Path) -> int:
    """Write records, one a line; the file is there whole or not at all. Returns their number."""
    lines = [json.dumps(to_json(r), sort_keys=True, separators=(",", ":"), allow_nan=False) for r in found]
    try:
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.writelines(f"{line}\n" for line in lines)
            os.chmod(temporary, 0o644)
            os.replace(temporary, path)
        except OSError:
            os.unlink(temporary)
            raise
    except OSError as error:
        raise DatabaseError(f"{path} cannot be written: {error.strerror}") from error
    return len(lines)


def read_lines(path: Path) -> Iterator[Record]:
    """The records of a file; a line that is none is passed over, with one warning. Raises DatabaseError if it cannot
    be read at all."""
    bad, example = 0, ""
    try:
        # A byte that is no UTF-8 becomes half of a surrogate pair, which is in no record.
        with path.open(encoding="utf-8", errors="surrogateescape") as file:
            for number, line in enumerate(file, 1):
                if not line.strip():
                    continue
                try:
                    yield from_json(json.loads(line))
                except (DatabaseError, ValueError, RecursionError) as error:
                    bad, example = bad + 1, example or f"line {number}: {error}"
    except OSError as error:
        raise DatabaseError(f"{path} cannot be read: {error}") from error
    if bad:
        warnings.warn(
            f"{path}: {bad} lines are no records and are passed over ({example[:200]})",
            TuningDatabaseWarning,
            stacklevel=2,
        )


def merge(into: Database, source: str | Path) -> int:
    """Bring in all that a JSON Lines file or another database holds, or nothing; returns the number of records.

    What both have is the same record (a run's id tells): of the two, the one that was recorded later stays. So merging
    twice, or an older copy, changes nothing. Raises DatabaseError.
    """
    text = str(source)
    if "://" not in text and not Path(text).is_file():
        raise DatabaseError(f"{text}: no such file")
    if "://" in text or _is_sqlite(Path(text)):
        with open_database(text, read_only=True) as other:
            found = list(records(other))
    else:
        found = list(read_lines(Path(text)))
    into.merge(found)
    return len(found)


def _is_sqlite(path: Path) -> bool:
    with contextlib.suppress(OSError), path.open("rb") as file:
        return file.read(len(_SQLITE_MAGIC)) == _SQLITE_MAGIC
    return False
