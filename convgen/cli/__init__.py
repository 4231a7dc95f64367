"""The command line: `convgen COMMAND …`.

Results go to stdout, all else to stderr. Exit status: 0 well; 1 an unexpected error, or output that cannot be
written; 2 bad usage or problem; 3 no strategy applies; 4 compile failed; 5 wrong result; 6 no device or library;
130 interrupted; 143 terminated.
"""

from __future__ import annotations

import errno
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Sequence
from typing import TextIO

from convgen.cli import streams
from convgen.cli.output import note
from convgen.errors import ConvgenError

__all__ = ["main"]

INTERRUPTED = 128 + signal.SIGINT
TERMINATED = 128 + signal.SIGTERM


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command (`sys.argv` unless given) and return its exit status.

    Raises SystemExit for bad usage and after --help, as argparse does, and when terminated.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    streams.prepare()
    try:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, _terminate)
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            return _run(words)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader has seen enough, as in `convgen list targets | head -1`: no error.
        streams.abandon_stdout()
        return 0
    except Exception as error:
        return _report(error, "--debug" in words)


def _run(words: list[str]) -> int:
    # Only now: an interrupt may come while the commands, and numpy with them, are imported.
    from convgen.cli.parser import parse

    if sys.stdout is None:
        raise OSError(errno.EBADF, "stdout is closed")
    try:
        args = parse(words)
    except SystemExit:
        sys.stdout.flush()  # --help does not look whether it could be written
        raise
    status: int = args.run(args)
    sys.stdout.flush()
    return status


def _terminate(*_: object) -> None:
    raise SystemExit(TERMINATED)


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    note(f"convgen: warning: {message}")


def _report(error: Exception, debug: bool) -> int:
    if isinstance(error, OSError) and not streams.can_write_stdout():
        streams.abandon_stdout()  # else Python would try again when it exits, and complain of it
    if debug:
        traceback.print_exception(error)
    elif isinstance(error, ConvgenError):
        note(f"convgen: {error}")
    elif isinstance(error, OSError) and error.errno in streams.UNWRITABLE:
        print(f"convgen: nothing more can be written: {error.strerror}", file=sys.stderr)
    else:
        name = type(error).__name__
        print(f"convgen: unexpected {name}: {error} (a bug; --debug shows where)", file=sys.stderr)
    return error.exit_code if isinstance(error, ConvgenError) else 1
