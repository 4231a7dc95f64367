"""The standard streams, made such that printing does not fail for what they are."""

from __future__ import annotations

import codecs
import errno
import io
import os
import sys

UNWRITABLE = (errno.EBADF, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.ENOSPC)
"""Error numbers of output that has no place to go: nothing unexpected."""

_PLAIN = {"µ": "u", "…": "...", "—": "-"}


def prepare() -> None:
    """Let any text be printed in any encoding, and give messages a place to go if stderr is closed."""
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    codecs.register_error("convgen", _plain)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="convgen")


def can_write_stdout() -> bool:
    """Whether what was printed so far reaches its reader."""
    if sys.stdout is None:
        return False
    try:
        sys.stdout.flush()
    except OSError:
        return False
    return True


def abandon_stdout() -> None:
    """Send what is still to be written, and all that follows, nowhere."""
    if sys.stdout is None:
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def _plain(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    characters = error.object[error.start : error.end]
    return "".join(_PLAIN.get(c, f"\\u{ord(c):04x}") for c in characters), error.end
