"""Servers for the tests of child processes: what they answer, and how they fail."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from typing import Any

from convgen.processes import Announce, Serve


def counter(start: int = 0) -> Serve:
    """Answers how many messages it has had, with the process it is and the message."""
    count = start

    def serve(message: Any, announce: Announce) -> tuple[int, int, Any]:
        nonlocal count
        count += 1
        return count, os.getpid(), message

    return serve


def worker() -> Serve:
    """Does what the message says: a verb and its arguments."""
    return _work


def _work(message: tuple[Any, ...], announce: Announce) -> Any:
    verb, *arguments = message
    match verb:
        case "sleep":
            time.sleep(arguments[0])
        case "phases":
            for phase, seconds in arguments:
                announce(phase)
                time.sleep(seconds)
        case "spin":
            while True:
                pass
        case "exit":
            print("last words", file=sys.stderr, flush=True)
            os._exit(arguments[0])
        case "crash":
            ctypes.string_at(0)
        case "raise":
            raise ValueError(arguments[0])
        case "print":
            sys.stdout.write("x" * arguments[0])
            sys.stderr.write("y" * arguments[0])
            sys.stderr.flush()
        case "flood":
            while True:
                os.write(1, b"x" * 65536)
        case "interrupt":
            os.kill(os.getpid(), signal.SIGINT)
        case "parent":  # starts a process of its own, and tells which
            other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
            announce(str(other.pid))
            time.sleep(arguments[0])
        case "function":
            return lambda: None
    return verb, os.getpid()


def refuses() -> Serve:
    raise RuntimeError("no server to be had")
