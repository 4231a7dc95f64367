"""The winners that ship with the package."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path

from tuning_db.database import Database
from tuning_db.lines import merge, read_lines
from tuning_db.opening import memory_database
from tuning_db.records import Found, Record, Run, Task, Toolchain, Trial, always, never

WINNERS = Path(__file__).parent / "winners"

Identity = tuple[str, str, str, int]


class Shipped:
    """JSON Lines in a folder, read when they are first asked for. Thread-safe."""

    def __init__(self, folder: Path = WINNERS) -> None:
        self.folder = folder
        self._lock = threading.Lock()
        self._trials: dict[Identity, list[Trial]] | None = None
        self._runs: dict[str, Run] = {}

    def winner(
        self,
        task: Task,
        current: Mapping[str, Toolchain],
        accepts: Callable[[Trial], bool] = always,
        is_todays: Callable[[Trial], bool] = never,
    ) -> Found | None:
        """As `Database.winner`."""
        stale: Found | None = None
        for trial in sorted(self._right().get(task.identity, ()), key=lambda trial: trial.quality):
            if trial.strategy not in current or not accepts(trial):
                continue
            if trial.toolchain == current[trial.strategy] or is_todays(trial):
                return Found(trial, "trusted")
            stale = stale or Found(trial, "stale")
        return stale

    def neighbours(self, task: Task) -> list[Trial]:
        """As `Database.neighbours`."""
        kind = _kind(task)
        best = [min(trials, key=lambda t: t.quality) for trials in self._right().values()]
        return [trial for trial in best if _kind(trial.task) == kind]

    def runs_with(self, trial: Trial) -> list[Run]:
        """The run that found a winner, if it ships too."""
        self._right()
        return [self._runs[trial.run]] if trial.run in self._runs else []

    def records(self) -> list[Record]:
        """All that ships. Raises DatabaseError for a file that cannot be read."""
        return [record for file in self.files() for record in read_lines(file)]

    def files(self) -> list[Path]:
        """Which it is read from."""
        return sorted(self.folder.glob("*.jsonl"))

    def _right(self) -> Mapping[Identity, list[Trial]]:
        with self._lock:
            if self._trials is None:
                by_task = defaultdict(list)
                for record in self.records():
                    if isinstance(record, Trial) and record.status == "ok":
                        by_task[record.task.identity].append(record)
                    elif isinstance(record, Run):
                        self._runs[record.id] = record
                self._trials = dict(by_task)
            return self._trials


def _kind(task: Task) -> tuple[str, str, int, str, str, str, str]:
    return task.device, task.capability, task.sm_count, task.op, task.direction, task.dtype, task.layout


def shipped_database() -> Database:
    """A database in memory with all that ships, for queries. Raises DatabaseError for a file that cannot be read."""
    database = memory_database(str(WINNERS))
    for file in Shipped().files():
        merge(database, file)
    return database
