"""Files that are written whole: a reader sees all of one or none, and a write that fails leaves what was there."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from convgen.errors import OutputError, UsageError

_SQLITE_MAGIC = b"SQLite format 3\0"


def write_whole(path: Path, data: bytes) -> None:
    """Write a file beside its place, where a symbolic link leads if it is one, and move it there.

    What is there and no regular file, as a device or a pipe, is written as it stands. Raises OutputError if it cannot
    be written, UsageError if it is a database: nothing written here is meant to replace one. What goes to stdout raises
    as it does.
    """
    if is_stdout(path):
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        return
    try:
        if path.exists() and not path.is_file():
            path.write_bytes(data)
            return
        _refuse_database(path)
        _replace(Path(os.path.realpath(path)), data)
    except OSError as error:
        raise OutputError(f"{path} cannot be written ({error.strerror}): choose another file") from error


def make_folder(path: Path) -> None:
    """Make a folder, unless it is there, in one that is. Raises OutputError."""
    try:
        path.mkdir(exist_ok=True)
    except OSError as error:
        raise OutputError(f"{path} cannot be made ({error.strerror}): choose another folder") from error


def is_stdout(path: Path) -> bool:
    """Whether it is what this process prints to, as /dev/stdout is: a file in its place would take all that."""
    try:
        return os.path.samestat(path.stat(), os.fstat(1))
    except OSError:
        return False


def _refuse_database(path: Path) -> None:
    if not path.exists():
        return
    with path.open("rb") as file:
        if file.read(len(_SQLITE_MAGIC)) == _SQLITE_MAGIC:
            raise UsageError(f"{path} is an SQLite database, which is not overwritten: choose another file")


def _replace(path: Path, data: bytes) -> None:
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with open(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
