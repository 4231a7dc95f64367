"""The user's database over a shared one over the winners that ship.

Whatever happens to a database, a convolution goes on: trouble is told once, as a TuningDatabaseWarning, and what the
layer would have known is then unknown.
"""

from __future__ import annotations

import threading
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TypeVar

from tuning_db.database import Database
from tuning_db.engine import shared_location, user_location
from tuning_db.errors import DatabaseError, TuningDatabaseWarning
from tuning_db.lines import read_lines
from tuning_db.opening import open_database
from tuning_db.records import STAGES, Found, Peer, Run, Task, Toolchain, Trial

WINNERS = Path(__file__).parent / "winners"

T = TypeVar("T")


class Shipped:
    """The winners that ship with the package, read when they are first asked for."""

    def __init__(self, folder: Path = WINNERS) -> None:
        self.folder = folder
        self._lock = threading.Lock()
        self._trials: dict[tuple[str, str, str, int], list[Trial]] | None = None

    def winner(self, task: Task, current: Mapping[str, Toolchain], *, trusted: bool) -> Found | None:
        """As `Database.winner`, of one tier."""
        known = [t for t in self.trials().get(task.identity, ()) if t.status == "ok" and t.strategy in current]
        chosen = [t for t in known if (t.toolchain == current[t.strategy]) == trusted]
        if not chosen:
            return None
        best = min(chosen, key=lambda t: (-STAGES.index(t.stage), t.seconds))
        return Found(best, "trusted" if trusted else "stale", "shipped")

    def neighbours(self, task: Task) -> list[Trial]:
        """As `Database.neighbours`."""
        kind = (task.device, task.capability, task.sm_count, task.op, task.direction, task.dtype, task.layout)
        return [
            min(found, key=lambda t: (-STAGES.index(t.stage), t.seconds))
            for trials in self.trials().values()
            if (found := [t for t in trials if t.status == "ok"]) and _kind(found[0].task) == kind
        ]

    def trials(self) -> Mapping[tuple[str, str, str, int], list[Trial]]:
        """Every trial that ships, by its task's identity."""
        with self._lock:
            if self._trials is None:
                by_task = defaultdict(list)
                for file in sorted(self.folder.glob("*.jsonl")):
                    for record in read_lines(file):
                        if isinstance(record, Trial):
                            by_task[record.task.identity].append(record)
                self._trials = dict(by_task)
            return self._trials


class Layers:
    """Several databases read as one. Records go to the user's; where that cannot be, they live as long as the process.

    Never raises for trouble with a database. Thread-safe.
    """

    def __init__(
        self, user: Database | None = None, shared: Database | None = None, shipped: Shipped | None = None
    ) -> None:
        self.user = user
        self.shared = shared
        self.shipped = shipped
        self._lock = threading.Lock()
        self._memory: Database | None = None
        self._told: set[str] = set()

    def winner(self, task: Task, current: Mapping[str, Toolchain]) -> Found | None:
        """The best known: trusted winners of the user's, the shared and the shipped layer, then stale ones."""
        for trusted in (True, False):
            for name, database in self._databases():
                found = self._tried(name, partial(database.winner, task, current, trusted=trusted))
                if found is not None:
                    return Found(found.trial, found.tier, name)
            if self.shipped is not None:
                found = self._tried("shipped", partial(self.shipped.winner, task, current, trusted=trusted))
                if found is not None:
                    return found
        return None

    def neighbours(self, task: Task) -> list[Trial]:
        """Winners of all tasks of the same kind on the same GPU; a task's is the upper layer's."""
        seen: dict[tuple[str, str, str, int], Trial] = {}
        sources: list[tuple[str, Callable[[], list[Trial]]]] = [
            (name, partial(database.neighbours, task)) for name, database in self._databases()
        ]
        if self.shipped is not None:
            sources.append(("shipped", partial(self.shipped.neighbours, task)))
        for name, read in sources:
            for trial in self._tried(name, read) or ():
                seen.setdefault(trial.task.identity, trial)
        return list(seen.values())

    def is_bad(self, source_key: str) -> bool:
        """Whether any layer saw this source hang or crash a GPU."""
        return any(self._tried(name, partial(database.is_bad, source_key)) for name, database in self._databases())

    def record(self, trials: Iterable[Trial]) -> None:
        """Store trials in the user's database."""
        kept = list(trials)
        self._write(lambda database: database.record(kept))

    def record_run(self, run: Run) -> None:
        """Store a run in the user's database."""
        self._write(lambda database: database.record_run(run))

    def record_peers(self, peers: Iterable[Peer]) -> None:
        """Store peers' times in the user's database."""
        kept = list(peers)
        self._write(lambda database: database.record_peers(kept))

    def close(self) -> None:
        """Close every database."""
        for database in (self.user, self.shared, self._memory):
            if database is not None:
                database.close()

    def _databases(self) -> list[tuple[str, Database]]:
        named = (("user", self._memory), ("user", self.user), ("shared", self.shared))
        return [(name, database) for name, database in named if database is not None]

    def _write(self, write: Callable[[Database], None]) -> None:
        if self.user is not None and not self.user.read_only:
            try:
                write(self.user)
                return
            except DatabaseError as error:
                self._tell("user", f"{error}; what is tuned now is known to this process only")
        with self._lock:
            if self._memory is None:
                self._memory = open_database(":memory:")
        write(self._memory)

    def _tried(self, name: str, read: Callable[[], T]) -> T | None:
        try:
            return read()
        except (DatabaseError, OSError) as error:
            self._tell(name, f"{error}; it is passed over")
            return None

    def _tell(self, name: str, text: str) -> None:
        with self._lock:
            if name in self._told:
                return
            self._told.add(name)
        warnings.warn(f"the {name} tuning database: {text}", TuningDatabaseWarning, stacklevel=4)


def open_layers() -> Layers:
    """The layers that the environment names: CONVGEN_TUNING_DB (a path or URL; else a file in the user's data folder)
    over CONVGEN_SHARED_TUNING_DB over what ships. A layer that cannot be opened is told of and left out."""
    return Layers(_opened("user"), _opened("shared"), Shipped())


def _opened(name: str) -> Database | None:
    place = None
    try:
        place = user_location() if name == "user" else shared_location()
        if place is None and name == "shared":
            return None
        return open_database(place)
    except (DatabaseError, OSError) as error:
        readable = _opened_to_read(place)
        done = "is left out" if readable is None else "is only read; what is tuned now is known to this process only"
        warnings.warn(f"the {name} tuning database {done}: {error}", TuningDatabaseWarning, stacklevel=3)
        return readable


def _opened_to_read(place: object) -> Database | None:
    try:
        return open_database(place, read_only=True) if isinstance(place, Path) and place.is_file() else None
    except (DatabaseError, OSError):
        return None


def _kind(task: Task) -> tuple[str, str, int, str, str, str, str]:
    return task.device, task.capability, task.sm_count, task.op, task.direction, task.dtype, task.layout
