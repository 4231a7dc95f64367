"""Opening a database: creating it, bringing it to today's schema, and keeping what is left of a damaged one."""

from __future__ import annotations

import contextlib
import datetime
import os
import warnings
from pathlib import Path

from sqlalchemy import URL

from tuning_db import schema
from tuning_db.database import Database
from tuning_db.engine import file_engine, location, memory_engine, read_only_engine, server_engine, user_location
from tuning_db.errors import DatabaseError, TuningDatabaseWarning

QUICK_CHECK_BYTES = 64 << 20
"""A file up to this size is looked over whole when it is opened."""


def open_database(place: str | Path | URL | None = None, *, read_only: bool = False) -> Database:
    """Open a database, the user's unless given; an SQLite file is created, and brought to this version's schema.

    `place` is a path, any SQLAlchemy URL, or ":memory:". A file that is damaged is moved aside, with a warning, and a
    fresh one begun. Raises DatabaseError if it cannot be opened, or holds a newer schema or something else.
    """
    found = location(place) if place is not None else user_location()
    if found is None:
        raise DatabaseError("there is no home folder for the tuning database: set CONVGEN_TUNING_DB to a path")
    if str(found) == ":memory:" or (isinstance(found, URL) and found.get_backend_name() == "sqlite"):
        return _migrated(Database(memory_engine(), ":memory:"))
    if isinstance(found, URL):
        database = Database(server_engine(found), found.render_as_string(), read_only=read_only)
        return database if read_only else _migrated(database)
    if read_only:
        return _open_to_read(found)
    return _open_file(found)


def _open_to_read(path: Path) -> Database:
    if not path.is_file():
        raise DatabaseError(f"{path}: no such file")
    database = Database(read_only_engine(path), str(path), path, read_only=True)
    version = database.version
    if version != schema.VERSION:
        database.close()
        raise DatabaseError(f"{path} has schema version {version}, this convgen reads {schema.VERSION}")
    return database


def _open_file(path: Path) -> Database:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DatabaseError(f"{path.parent} cannot be made ({error.strerror}): set CONVGEN_TUNING_DB") from error
    for attempt in range(2):
        before = _identity(path)
        database = Database(file_engine(path), str(path), path)
        try:
            _look_over(database, path)
            return _migrated(database)
        except DatabaseError as error:
            database.close()
            if attempt or not _is_damage(error):
                raise
            _move_aside(path, before)
    raise AssertionError


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _look_over(database: Database, path: Path) -> None:
    if path.is_file() and 0 < path.stat().st_size <= QUICK_CHECK_BYTES:
        with database.reading() as connection:
            verdict = connection.exec_driver_sql("PRAGMA quick_check(1)").scalar()
        if verdict != "ok":
            raise DatabaseError(f"{path}: malformed: {verdict}")


def _is_damage(error: DatabaseError) -> bool:
    return any(word in str(error) for word in ("malformed", "not a database", "file is encrypted"))


def _move_aside(path: Path, seen: tuple[int, int] | None) -> None:
    """Keep a damaged file under another name, unless another process has already put a fresh one in its place."""
    if _identity(path) != seen or seen is None:
        return
    stamp = datetime.datetime.now(datetime.UTC).strftime("%Y%m%dT%H%M%S")
    aside = path.with_name(f"{path.name}.damaged-{stamp}-{os.getpid()}")
    try:
        os.replace(path, aside)
        for suffix in ("-wal", "-shm"):
            with contextlib.suppress(FileNotFoundError):
                os.replace(f"{path}{suffix}", f"{aside}{suffix}")
    except OSError as error:
        raise DatabaseError(f"{path} is damaged and cannot be moved aside ({error.strerror})") from error
    warnings.warn(
        f"the tuning database {path} is damaged; it is kept as {aside.name} and a new one is begun. "
        "`convgen db merge` brings in what can still be exported from elsewhere",
        TuningDatabaseWarning,
        stacklevel=4,
    )


def _migrated(database: Database) -> Database:
    with database.reading() as connection:
        version = schema.version_of(connection)
    if 0 < version < schema.VERSION and database.path is not None:
        _back_up(database, version)
    if version != schema.VERSION:
        with database.writing() as connection:
            schema.migrate(connection)
    return database


def _back_up(database: Database, version: int) -> None:
    assert database.path is not None
    copy = database.path.with_name(f"{database.path.name}.schema{version}")
    if not copy.exists():
        with database.reading() as connection:
            connection.exec_driver_sql("VACUUM INTO ?", (str(copy),))
