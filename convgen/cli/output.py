"""How numbers, tables and progress look."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

_PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))
_TIMES = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))


def quantity(value: float, unit: str) -> str:
    """Three significant digits with a decimal prefix: `1.23 GB`."""
    for scale, prefix in _PREFIXES:
        if value >= scale:
            return f"{_three_digits(value / scale)} {prefix}{unit}"
    return f"{value:.3g} {unit}"


def duration(seconds: float) -> str:
    """Three significant digits of seconds, ms, µs or ns."""
    for scale, unit in _TIMES:
        if seconds >= scale:
            return f"{_three_digits(seconds / scale)} {unit}"
    return f"{seconds / 1e-9:.3g} ns"


def _three_digits(value: float) -> str:
    return f"{value:.0f}" if value >= 99.95 else f"{value:.3g}"


def printable(text: str) -> str:
    """One line, in which what is no letter, sign or space is escaped: to a terminal it may be a command."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def table(rows: Sequence[Sequence[str]], indent: str = "  ") -> str:
    """Left-aligned columns two spaces apart; the last is as long as it is."""
    rows = [[printable(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*(row[:-1] for row in rows), strict=True)]
    lines = []
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row[:-1], widths, strict=True)]
        lines.append(indent + "  ".join([*cells, row[-1]]).rstrip())
    return "\n".join(lines)


def print_json(value: Mapping[str, Any]) -> None:
    """One object, one line."""
    print(json.dumps(value, allow_nan=False), flush=True)


def say(line: str) -> None:
    """One line of a result."""
    print(printable(line))


def note(text: str) -> None:
    """A remark that is not a result."""
    print("\n".join(map(printable, text.split("\n"))), file=sys.stderr)


class Progress:
    """A line on stderr: redrawn in place on a terminal, else printed anew at most every ten seconds."""

    _EVERY_SECONDS = 10.0

    def __init__(self, total: int, what: str) -> None:
        self._total = total
        self._what = what
        self._done = 0
        self._in_place = sys.stderr.isatty()
        self._printed = time.monotonic()

    def advance(self, count: int = 1) -> None:
        """Say that `count` more are done."""
        self._done += count
        text = f"{self._done}/{self._total} {self._what}"
        if self._in_place:
            end = "\n" if self._done >= self._total else ""
            print(f"\r{text}", end=end, file=sys.stderr, flush=True)
        elif time.monotonic() - self._printed >= self._EVERY_SECONDS:
            self._printed = time.monotonic()
            note(text)
