"""A search's progress: a display that is redrawn on a terminal, else a line now and then."""

from __future__ import annotations

import sys
import threading
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from convgen.cli.output import duration, note

if TYPE_CHECKING:
    from convgen.problem import Problem
    from convgen.tuner.events import Progress

_EVERY_SECONDS = 10.0


class Live:
    """Shows one line a problem being searched: best so far, candidates, failures by reason, time left.

    `show` may be called from several threads. On a terminal the lines are redrawn by rich, elsewhere printed at most
    every ten seconds; all on stderr.
    """

    def __init__(self, problems: int) -> None:
        self._problems = problems
        self._done = 0
        self._lock = threading.Lock()
        self._printed = time.monotonic()
        self._current: dict[Problem, Progress] = {}
        self._display: Any = None

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.live import Live as Display

            self._display = Display(console=Console(stderr=True), refresh_per_second=5, transient=True)
            self._display.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._display is not None:
            self._display.stop()

    def show(self, progress: Progress) -> None:
        """Take in what a search tells."""
        with self._lock:
            if progress.finished is None:
                self._current[progress.problem] = progress
            else:
                self._current.pop(progress.problem, None)
                self._done += 1
            if self._display is not None:
                self._display.update("\n".join(self._lines()))
            elif time.monotonic() - self._printed >= _EVERY_SECONDS:
                self._printed = time.monotonic()
                note("\n".join(self._lines()))

    def say(self, text: str) -> None:
        """A remark that stays."""
        if self._display is not None:
            self._display.console.print(text, markup=False)
        else:
            note(text)

    def _lines(self) -> list[str]:
        head = [f"{self._done} of {self._problems} problems done"] if self._problems > 1 else []
        return head + [_line(progress) for progress in self._current.values()]


def _line(progress: Progress) -> str:
    best = progress.best
    parts = [
        "no right answer yet"
        if best is None or best.seconds is None
        else f"best {duration(best.seconds)} ({best.strategy.name})",
        f"{sum(progress.statuses.values())} candidates",
    ]
    parts += [f"{count} {status}" for status, count in progress.statuses.items() if status not in ("ok", "duplicate")]
    if progress.seconds_left is not None:
        parts.append(f"{progress.seconds_left:.0f} s left")
    return f"{progress.problem}: {', '.join(parts)}"
