"""Keeping what is left of a damaged database: nothing is deleted, it gets another name."""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import os
import warnings
from collections.abc import Iterator
from pathlib import Path

from tuning_db.errors import StorageError, TuningDatabaseWarning

Identity = tuple[int, int] | None


def identity(path: Path) -> Identity:
    """Which file it is now, None if there is none."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def move_aside(path: Path, seen: Identity) -> None:
    """Move a damaged file away, unless another process has already put a fresh one in its place.

    Raises StorageError if it cannot be moved.
    """
    with _alone(path):
        if seen is None or identity(path) != seen:
            return
        name = _new_name(path)
        # The log first: SQLite deletes one that it finds beside a new file.
        for suffix in ("-wal", "-shm", ""):
            with contextlib.suppress(FileNotFoundError):
                os.replace(f"{path}{suffix}", f"{name}{suffix}")
    _tell(f"{path} is damaged; it is kept as {name.name}")


def move_log_aside(path: Path) -> None:
    """Move away a log whose database is gone or empty: SQLite would delete it, with all that was committed to it."""
    if not _is_orphan(path):
        return
    with _alone(path):
        if not _is_orphan(path):
            return
        name = _new_name(path)
        os.replace(f"{path}-wal", f"{name}-wal")
    _tell(f"{path} is empty, but its log is not; the log is kept as {name.name}-wal")


def _is_orphan(path: Path) -> bool:
    # A database that is being created has its first page before it has a log.
    return size_of(f"{path}-wal") > 0 and size_of(path) == 0


def size_of(path: str | Path) -> int:
    """Bytes of a file, 0 if there is none: it may be moved away at any moment."""
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def _new_name(path: Path) -> Path:
    stamp = datetime.datetime.now(datetime.UTC).strftime("%Y%m%dT%H%M%S")
    return path.with_name(f"{path.name}.damaged-{stamp}-{os.getpid()}")


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """No two processes move one database's files at once."""
    try:
        with open(f"{path}.lock", "a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
    except OSError as error:
        raise StorageError(f"{path} is damaged and cannot be moved aside ({error.strerror})") from error


def _tell(text: str) -> None:
    warnings.warn(
        f"the tuning database {text} and a new one is begun. `convgen db merge` brings in what can still be exported "
        "from elsewhere",
        TuningDatabaseWarning,
        stacklevel=5,
    )
