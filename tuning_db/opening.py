"""Opening a database: creating it, bringing it to today's schema, and beginning anew where one is damaged."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from sqlalchemy import URL

from tuning_db import migrations
from tuning_db.aside import identity, move_aside, move_log_aside, size_of
from tuning_db.database import Database, told
from tuning_db.engine import file_engine, location, memory_engine, read_only_engine, server_engine, user_location
from tuning_db.errors import DatabaseError, StorageError

SQLITE_MAGIC = b"SQLite format 3\0"

SQLITE_ERROR = 1

QUICK_CHECK_BYTES = 64 << 20
"""A file up to this size is looked over whole when it is opened; damage to a larger one shows when it is read."""


def open_database(
    place: str | Path | URL | None = None, *, read_only: bool = False, must_exist: bool = False
) -> Database:
    """Open a database, the user's unless given; an SQLite file is created unless it `must_exist`, and brought to this
    version's schema.

    `place` is a path, any SQLAlchemy URL, or ":memory:". What is `read_only` is left as it is: a file that is not there
    is an error, but for the user's, which is then empty. A file that is a damaged database is moved aside, with a
    warning, and a fresh one begun; a file over 64 MiB is not looked over for damage. Raises DatabaseError if it cannot
    be opened, or holds a newer schema or something else; StorageError where it cannot be written.
    """
    found = location(place) if place is not None else user_location()
    if found is None:
        raise DatabaseError("there is no home folder for the tuning database: set CONVGEN_TUNING_DB to a path")
    if isinstance(found, URL) and found.get_backend_name() == "sqlite":
        return memory_database()
    if isinstance(found, URL):
        database = Database(server_engine(found), found.render_as_string(), read_only=read_only)
        return _current(database) if read_only else _migrated(database)
    with told(str(found)):
        _refuse_others(found)
    if read_only:
        return memory_database(str(found)) if place is None and size_of(found) == 0 else _open_to_read(found)
    if must_exist:
        _refuse_missing(found)
    if place is None:
        _make_folder(found.parent)
    return _open_file(found)


def memory_database(name: str = ":memory:") -> Database:
    """An empty one of this process alone, which messages call by that name."""
    return _migrated(Database(memory_engine(), name))


def _refuse_others(path: Path) -> None:
    """What never was a database is no damaged one, to be moved aside, but somebody's file under a mistaken name."""
    if path.exists() and not path.is_file():
        raise DatabaseError(f"{path} is no file: expected that of a tuning database; name another (CONVGEN_TUNING_DB)")
    with contextlib.suppress(OSError), path.open("rb") as file:
        head = file.read(len(SQLITE_MAGIC))
        if head.startswith(b"{"):
            raise DatabaseError(f"{path} holds text and no database: `convgen db import {path}` brings it into one")
        # A crash may leave less than the first page, or nothing but zeros.
        if not SQLITE_MAGIC.startswith(head) and (any(head) or any(map(any, iter(lambda: file.read(1 << 20), b"")))):
            raise DatabaseError(
                f"{path} is no database: it begins with {head!a}, not as SQLite's files; name another "
                "(CONVGEN_TUNING_DB), or move it away"
            )


def _refuse_missing(path: Path) -> None:
    if not path.is_file():
        raise DatabaseError(f"{path}: no such file")


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"{folder} cannot be made ({error.strerror}): set CONVGEN_TUNING_DB") from error


def _open_to_read(path: Path) -> Database:
    _refuse_missing(path)
    if size_of(path) == 0:
        raise DatabaseError(f"{path} is empty")
    return _current(Database(read_only_engine(path), str(path), path, read_only=True))


def _current(database: Database) -> Database:
    version, newest = database.version, migrations.newest()
    if version != newest:
        database.close()
        step = "upgrade convgen" if version > newest else "`convgen db upgrade` brings it up"
        raise DatabaseError(f"{database.name} has schema version {version}, this convgen reads {newest}: {step}")
    return database


def _open_file(path: Path) -> Database:
    if not path.parent.is_dir():
        wrong = f"{path.parent} is no folder" if path.parent.exists() else f"there is no folder {path.parent}"
        raise DatabaseError(f"{path}: {wrong}")
    for attempt in range(2):
        move_log_aside(path)
        before = identity(path)
        database = Database(file_engine(path), str(path), path)
        try:
            _look_over(database, path)
            return _migrated(database)
        except DatabaseError as error:
            database.close()
            if attempt or not error.damaged:
                raise
            move_aside(path, before)
    raise AssertionError


def _look_over(database: Database, path: Path) -> None:
    if 0 < size_of(path) <= QUICK_CHECK_BYTES:
        with database.reading() as connection:
            migrations.version_of(connection)  # somebody else's is not ours to look over
            verdict = connection.exec_driver_sql("PRAGMA quick_check(1)").scalar()
        if verdict != "ok":
            raise DatabaseError(f"{path} is damaged: {verdict}", damaged=True)


def _migrated(database: Database) -> Database:
    with database.reading() as connection:
        version = migrations.version_of(connection)
    if version == migrations.newest():
        return database
    if 0 < version < migrations.newest() and database.path is not None:
        _back_up(database, database.path, version)
    try:
        with database.writing() as connection:
            migrations.migrate(connection)
    except DatabaseError as error:
        # Some servers let two begin at once: what one has made, the other cannot.
        if database.version != migrations.newest():
            database.close()
            cause = getattr(error.__cause__, "orig", None)
            if version and _is_about_tables(cause):
                raise DatabaseError(f"{database.name}: {migrations.mismatch(version, str(cause))}") from error
            raise
    return database


def _is_about_tables(cause: object) -> bool:
    """Whether a statement failed for what there is or is not, rather than for a full disk or a lock."""
    code = getattr(cause, "sqlite_errorcode", None)
    return code == SQLITE_ERROR if code is not None else type(cause).__name__ == "ProgrammingError"


def _back_up(database: Database, path: Path, version: int) -> None:
    """The copy is there whole or not at all."""
    copy = path.with_name(f"{path.name}.schema{version}")
    if copy.exists():
        return
    temporary = path.with_name(f".{copy.name}.{os.getpid()}")
    try:
        temporary.unlink(missing_ok=True)
        with database.reading() as connection:
            connection.exec_driver_sql("VACUUM INTO ?", (str(temporary),))
        os.replace(temporary, copy)
    except OSError as error:
        raise StorageError(f"{copy} cannot be written: {error.strerror}") from error
    finally:
        temporary.unlink(missing_ok=True)
