"""The user's database over a shared one over the winners that ship.

Whatever happens to a database, a convolution goes on: trouble is told once, as a TuningDatabaseWarning, and what the
layer would have known is then unknown.
"""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from sqlalchemy import true

from tuning_db.checks import checked_run, storable_peer, storable_trial
from tuning_db.database import Database
from tuning_db.engine import shared_location, user_location
from tuning_db.errors import DatabaseError, TuningDatabaseWarning
from tuning_db.lines import records
from tuning_db.opening import open_database
from tuning_db.records import Found, Peer, Run, Task, Toolchain, Trial, always, never
from tuning_db.shipped import Shipped

REST_SECONDS = 60.0
"""How long a database is let alone after it failed: a lock or a server that is gone costs its time limit each time."""

Source = Database | Shipped

T = TypeVar("T")


class Layers:
    """Several databases read as one. Records go to the user's; while that cannot be they are kept in memory, and
    written when it can be.

    Never raises for trouble with a database, but for `save`. Thread-safe.
    """

    def __init__(
        self,
        user: Database | None = None,
        shared: Database | None = None,
        shipped: Shipped | None = None,
        *,
        told: Iterable[str] = (),
    ) -> None:
        """`told` names the layers whose trouble the user has been told of: "user", "shared", "shipped"."""
        self.user = user
        self.shared = shared
        self.shipped = shipped
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._memory: Database | None = None
        self._told = set(told)
        self._rests_until: dict[str, float] = {}

    def winner(
        self,
        task: Task,
        current: Mapping[str, Toolchain],
        accepts: Callable[[Trial], bool] = always,
        is_todays: Callable[[Trial], bool] = never,
    ) -> Found | None:
        """The best known that is accepted: trusted ones of the user's, the shared and the shipped layer, then stale;
        see `Database.winner`."""
        stale: Found | None = None
        for name, sources in self._layers():
            asked = [partial(source.winner, task, current, accepts, is_todays) for source in sources]
            known = [self._tried(name, source, ask) for source, ask in zip(sources, asked, strict=True)]
            best = min((found for found in known if found is not None), key=lambda found: found.rank, default=None)
            if best is None:
                continue
            best = Found(best.trial, best.tier, name)
            if best.tier == "trusted":
                return best
            stale = stale or best
        return stale

    def untried(self, found: Found, strategies: Sequence[str]) -> Sequence[str]:
        """For which of these strategies a winner does not answer: those that no finished run tried, by the code that
        made it (of the run that leaves the fewest). One that came to its layer without its run answers for all."""
        runs: list[Run] = []
        for name, sources in self._layers():
            for source in sources if name == found.layer else ():
                runs += self._tried(name, source, partial(source.runs_with, found.trial)) or ()
        if not any(run.id == found.trial.run for run in runs):
            return ()
        tried = [run.settings.get("strategies") for run in runs if run.outcome == "finished"]
        left = [[name for name in strategies if name not in names] for names in tried if isinstance(names, list)]
        return min(left, key=len, default=strategies)

    def neighbours(self, task: Task) -> list[Trial]:
        """Winners of all tasks of the same kind on the same GPU; a task's is the upper layer's."""
        seen: dict[tuple[str, str, str, int], Trial] = {}
        for name, sources in self._layers():
            of_layer: dict[tuple[str, str, str, int], Trial] = {}
            for source in sources:
                for trial in self._tried(name, source, partial(source.neighbours, task)) or ():
                    known = of_layer.get(trial.task.identity)
                    if known is None or trial.quality < known.quality:
                        of_layer[trial.task.identity] = trial
            seen = {**of_layer, **seen}
        return list(seen.values())

    def is_bad(self, source_key: str) -> bool:
        """Whether any layer saw this source hang or crash a GPU."""
        return any(
            self._tried(name, source, partial(source.is_bad, source_key))
            for name, sources in self._layers()
            for source in sources
            if isinstance(source, Database)
        )

    def record(self, trials: Iterable[Trial]) -> None:
        """Store trials in the user's database. Raises DatabaseError, and stores none, if one of them is no trial."""
        kept = [storable_trial(trial) for trial in trials]
        self._write(lambda database: database.record(kept))

    def record_run(self, run: Run) -> None:
        """Store a run in the user's database. Raises DatabaseError if it is none."""
        checked_run(run)
        self._write(lambda database: database.record_run(run))

    def record_peers(self, peers: Iterable[Peer]) -> None:
        """Store peers' times in the user's database. Raises DatabaseError, and stores none, if one is no peer."""
        kept = [storable_peer(peer) for peer in peers]
        self._write(lambda database: database.record_peers(kept))

    def save(self) -> None:
        """Write what is still to be written. Raises DatabaseError, which tells how much it is, if that cannot be."""
        with self._writing:
            if self.user is None or self._memory is None:
                return
            kept = list(records(self._memory))
            try:
                self._flush(self.user)
            except DatabaseError as error:
                raise DatabaseError(f"{len(kept)} records of what was tuned are not saved ({error})") from error

    def close(self) -> None:
        """Write what is still to be written, and close every database."""
        try:
            self.save()
        except DatabaseError as error:
            self._tell("user", f"{error}; they are lost")
        for database in (self.user, self.shared, self._memory):
            if database is not None:
                database.close()

    def databases(self) -> list[tuple[str, Source]]:
        """Every part by its layer's name, upper first; what is still in memory belongs to the user's."""
        return [(name, source) for name, sources in self._layers() for source in sources]

    def _layers(self) -> Iterator[tuple[str, list[Source]]]:
        yield "user", [source for source in (self._memory, self.user) if source is not None]
        yield "shared", [] if self.shared is None else [self.shared]
        yield "shipped", [] if self.shipped is None else [self.shipped]

    def _write(self, write: Callable[[Database], None]) -> None:
        with self._writing:
            if self.user is not None and self.user.read_only:
                self._tell("user", f"{self.user.name} is only read; what is tuned now is known to this process only")
            elif self.user is not None and not self._rests("written"):
                try:
                    self._flush(self.user)
                    write(self.user)
                    return
                except DatabaseError as error:
                    self._rest("written")
                    self._tell("user", f"{error}; what is tuned now is kept in memory until it can be written")
            if self._memory is None:
                self._memory = open_database(":memory:")
            write(self._memory)

    def _flush(self, user: Database) -> None:
        if self._memory is None:
            return
        kept = list(records(self._memory))
        if kept:
            user.merge(kept)
            # Emptied, not dropped: another thread may be reading it.
            self._memory.forget(true())

    def _tried(self, name: str, source: Source, read: Callable[[], T]) -> T | None:
        if source is not self._memory and self._rests(name):
            return None
        try:
            return read()
        except (DatabaseError, OSError) as error:
            self._rest(name)
            self._tell(name, f"{error}; it is passed over")
            return None

    def _rests(self, what: str) -> bool:
        with self._lock:
            return time.monotonic() < self._rests_until.get(what, 0.0)

    def _rest(self, what: str) -> None:
        with self._lock:
            self._rests_until[what] = time.monotonic() + REST_SECONDS

    def _tell(self, name: str, text: str) -> None:
        with self._lock:
            if name in self._told:
                return
            self._told.add(name)
        warnings.warn(f"the {name} tuning database: {text}", TuningDatabaseWarning, stacklevel=4)


def open_layers(user: Database | None = None, *, read_only: bool = False) -> Layers:
    """The layers that the environment names: CONVGEN_TUNING_DB (a path or URL; else a file in the user's data folder),
    unless the caller has opened one, over CONVGEN_SHARED_TUNING_DB, which is only read, over what ships. A layer that
    cannot be opened is told of and left out."""
    told: list[str] = []
    return Layers(user or _user(told, read_only), _shared(told), Shipped(), told=told)


def _user(told: list[str], read_only: bool) -> Database | None:
    try:
        return open_database(read_only=read_only)
    except DatabaseError as error:
        readable = None if read_only else _readable()
        done = "is left out" if readable is None else "is only read; what is tuned now is known to this process only"
        _tell_at_once(told, "user", f"{done}: {error}")
        return readable


def _readable() -> Database | None:
    """The user's database if there is one that can at least be read."""
    try:
        place = user_location()
        return open_database(place, read_only=True) if isinstance(place, Path) else None
    except DatabaseError:
        return None


def _shared(told: list[str]) -> Database | None:
    try:
        place = shared_location()
        return None if place is None else open_database(place, read_only=True)
    except DatabaseError as error:
        _tell_at_once(told, "shared", f"is left out: {error}")
        return None


def _tell_at_once(told: list[str], name: str, text: str) -> None:
    warnings.warn(f"the {name} tuning database {text}", TuningDatabaseWarning, stacklevel=4)
    told.append(name)
