"""One tuning database: records go in, winners come out."""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from sqlalchemy import ColumnElement, Connection, Engine, Row, Select, delete, insert, select
from sqlalchemy.exc import DBAPIError, IntegrityError, SQLAlchemyError

from tuning_db import migrations, schema
from tuning_db.checks import checked_run, plain, storable_peer, storable_trial
from tuning_db.errors import DatabaseError, StorageError, TuningDatabaseWarning
from tuning_db.records import (
    BAD_STATUSES,
    STAGES,
    Found,
    Peer,
    Record,
    Run,
    Task,
    Toolchain,
    Trial,
    always,
    config_text,
    never,
)
from tuning_db.rows import peer_of, run_of, trial_of
from tuning_db.statements import (
    BEST_OF_GROUP,
    GROUPS,
    RUNS_WITH,
    every_peer,
    every_run,
    every_trial,
    of_kind,
    winners,
)
from tuning_db.writing import begin, forget, store_peers, store_runs, store_trials

TRIES = 2
"""A write is begun anew once if another writer stored the same key in between."""

DAMAGE = (11, 26)
"""SQLITE_CORRUPT, SQLITE_NOTADB."""

T = TypeVar("T")


class Database:
    """Open one with `open_database`. May be used from several threads.

    Every method raises DatabaseError if the database fails, StorageError where it was opened to be written; what was
    recorded before stays. What cannot be read, since somebody has edited it, is passed over, with one warning.
    """

    def __init__(self, engine: Engine, name: str, path: Path | None = None, *, read_only: bool = False) -> None:
        self.name = name
        """What messages call it: its path or URL."""
        self.path = path
        self.read_only = read_only
        self._engine = engine
        self._reader = engine.execution_options(isolation_level="AUTOCOMMIT")
        self._failure = DatabaseError if read_only else StorageError
        self._lock = threading.Lock()
        self._told = False

    # --- writing --------------------------------------------------------------------------------------

    def record(self, trials: Iterable[Trial]) -> None:
        """Store trials, all or none; one of the same run, task, strategy and config is replaced."""
        kept = [storable_trial(trial) for trial in trials]
        if kept:
            self._write(lambda connection: store_trials(connection, kept))

    def record_run(self, run: Run) -> None:
        """Store a run, or what has become of it."""
        kept = [checked_run(run)]
        self._write(lambda connection: store_runs(connection, kept))

    def record_peers(self, peers: Iterable[Peer]) -> None:
        """Store peers' times; a later one of the same task, peer and version replaces the earlier."""
        kept = [storable_peer(peer) for peer in peers]
        if kept:
            self._write(lambda connection: store_peers(connection, kept))

    def merge(self, found: Iterable[Record]) -> None:
        """Store records of another database, all or none; of what both have stays what was recorded later."""
        kept = list(found)
        runs = [checked_run(record) for record in kept if isinstance(record, Run)]
        trials = [storable_trial(record) for record in kept if isinstance(record, Trial)]
        peers = [storable_peer(record) for record in kept if isinstance(record, Peer)]

        def work(connection: Connection) -> None:
            store_runs(connection, runs, keep_newer=True)
            store_trials(connection, trials, keep_newer=True)
            store_peers(connection, peers, keep_newer=True)

        self._write(work)

    def check_writable(self) -> None:
        """Write something and take it back. Raises DatabaseError if that cannot be, as on a full disk."""

        def work(connection: Connection) -> None:
            connection.execute(insert(schema.meta).values(name="probe", value=""))
            connection.execute(delete(schema.meta).where(schema.meta.c.name == "probe"))

        try:
            self._write(work)
        except DatabaseError as error:
            raise type(error)(f"{error}; nothing can be stored: make room, or name another database") from error

    def forget(self, where: ColumnElement[bool]) -> int:
        """Delete the trials that a condition on `schema.task` and `schema.trial` meets (see `query.Filter`), and the
        tasks that are left with none, with their runs and peers; returns the number of trials."""
        return self._write(lambda connection: forget(connection, where))

    # --- reading --------------------------------------------------------------------------------------

    def winner(
        self,
        task: Task,
        current: Mapping[str, Toolchain],
        accepts: Callable[[Trial], bool] = always,
        is_todays: Callable[[Trial], bool] = never,
    ) -> Found | None:
        """The task's fastest right trial: of a toolchain as it is now, else a stale one; None if it knows none.

        `current` has today's toolchain of every strategy; others' trials, and those not accepted, are passed over.
        `is_todays` is asked of the best trial of an older toolchain, where that would win, whether its program is the
        one that today's code makes all the same: then it is as good as if that had made it.
        """
        best: Found | None = None
        with self._reading() as connection:
            groups = []
            for *group, seconds in connection.execute(GROUPS, _identity(task)):
                _, strategy, codegen, compiler, protocol, stage = group
                if (chain := current.get(strategy)) is not None:
                    stale = (codegen, compiler, protocol) != (chain.codegen, chain.compiler, chain.protocol)
                    groups.append(((*_quality(stage, seconds), stale), group))
            groups.sort(key=lambda item: item[0])
            for (*quality, stale), group in groups:
                if best is not None and best.rank <= (False, *quality):
                    break
                keys = {f"its_{name}": value for name, value in zip(_GROUP, group, strict=True)}
                with contextlib.closing(self._records(connection.execute(BEST_OF_GROUP, keys), trial_of)) as trials:
                    trial = next(filter(accepts, trials), None)
                if trial is not None:
                    found = Found(trial, "stale" if stale and not is_todays(trial) else "trusted")
                    best = found if best is None or found.rank < best.rank else best
        return best

    def neighbours(self, task: Task, limit: int = 2000) -> list[Trial]:
        """The winners, of whatever code, of all tasks of the same device, op, direction, dtype and layout."""
        return self.best_trials(of_kind(task), limit)

    def best_trials(self, where: ColumnElement[bool] | None = None, limit: int | None = None) -> list[Trial]:
        """The winners, of the code each strategy was last tried with, that meet a condition on `schema.task` and
        `schema.trial`, by problem. A row that cannot be read gives its place to the next best."""
        bad: list[Row[Any]] = []
        found = self._all(winners(where), trial_of, bad)
        if bad:
            of_these: list[Row[Any]] = []
            self._all(every_trial(schema.trial.c.task_id.in_([row.task_id for row in bad])), trial_of, of_these)
            found = self._all(winners(where, [row.id for row in of_these]), trial_of)
        return sorted(found, key=lambda trial: trial.task.identity)[:limit]

    def trials(self, where: ColumnElement[bool] | None = None) -> list[Trial]:
        """Every trial that meets a condition on `schema.task` and `schema.trial`, in a stable order."""
        found = self._all(every_trial(where), trial_of)
        return sorted(found, key=lambda t: (t.task.identity, t.run, t.strategy, config_text(t.config)))

    def runs(self, where: ColumnElement[bool] | None = None) -> list[Run]:
        """Every run whose task, or a trial of it, meets the condition, by task and start."""
        return sorted(self._all(every_run(where), run_of), key=lambda run: (run.task.identity, run.started, run.id))

    def runs_with(self, trial: Trial) -> list[Run]:
        """The runs of a trial's task in which its strategy was tried by the same toolchain."""
        keys = {f"its_{name}": getattr(trial.toolchain, name) for name in Toolchain.__slots__}
        keys |= {"its_strategy": trial.strategy, **_identity(trial.task)}
        with self._reading() as connection:
            return list(self._records(connection.execute(RUNS_WITH, keys), run_of))

    def peers(self, where: ColumnElement[bool] | None = None) -> list[Peer]:
        """Every peer's time whose task, or a trial of it, meets the condition, by task and peer."""
        found = self._all(every_peer(where), peer_of)
        return sorted(found, key=lambda peer: (peer.task.identity, peer.peer, peer.version))

    def is_bad(self, source_key: str) -> bool:
        """Whether a source hung the GPU, faulted or took its process down before."""
        if not source_key:  # of trials that never had a source
            return False
        t = schema.trial.c
        query = select(t.id).where(t.source_key == source_key, t.status.in_(BAD_STATUSES)).limit(1)
        with self._reading() as connection:
            return connection.execute(query).first() is not None

    @contextlib.contextmanager
    def reading(self) -> Iterator[Connection]:
        """A connection for queries of one's own, on the views or `schema`'s tables."""
        with self._reading() as connection:
            yield connection

    @contextlib.contextmanager
    def writing(self) -> Iterator[Connection]:
        """A transaction of one's own: all of it happens, or none."""
        with self._writing() as connection:
            yield connection

    # --- the rest -----------------------------------------------------------------------------------------

    @property
    def version(self) -> int:
        """Of the schema."""
        with self._reading() as connection:
            return migrations.version_of(connection)

    def close(self) -> None:
        """Let go of every connection."""
        self._engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _write(self, work: Callable[[Connection], T]) -> T:
        for left in reversed(range(TRIES)):
            try:
                with self._writing() as connection:
                    begin(connection)
                    return work(connection)
            except DatabaseError as error:
                if not left or not isinstance(error.__cause__, IntegrityError):
                    raise
        raise AssertionError

    @contextlib.contextmanager
    def _writing(self) -> Iterator[Connection]:
        if self.read_only:
            raise DatabaseError(f"{self.name} was opened to be read: open it without read_only")
        with told(self.name, self._failure), self._engine.execution_options(writes=True).begin() as connection:
            yield connection

    @contextlib.contextmanager
    def _reading(self) -> Iterator[Connection]:
        with told(self.name, self._failure), self._reader.connect() as connection:
            yield connection

    def _all(self, query: Select[Any], made: Callable[[Row[Any]], T], unread: list[Row[Any]] | None = None) -> list[T]:
        with self._reading() as connection:
            rows = connection.execute(query).all()
        return list(self._records(rows, made, unread))

    def _records(
        self, rows: Iterable[Row[Any]], made: Callable[[Row[Any]], T], unread: list[Row[Any]] | None = None
    ) -> Generator[T, None, None]:
        bad, example = [] if unread is None else unread, ""
        try:
            for row in rows:
                try:
                    record = made(row)
                except DatabaseError as error:
                    bad.append(row)
                    example = example or f"one of {plain(row.problem)[:120]}: {error}"
                    continue
                yield record
        finally:
            if bad:
                self._tell(len(bad), example)

    def _tell(self, count: int, example: str) -> None:
        with self._lock:
            if self._told:
                return
            self._told = True
        warnings.warn(
            f"{self.name}: {count} records cannot be read and are passed over ({example}). `convgen db forget` removes "
            "them",
            TuningDatabaseWarning,
            stacklevel=2,
        )


_GROUP = ("task_id", "strategy", "codegen", "compiler", "protocol", "stage")


def _identity(task: Task) -> dict[str, Any]:
    return dict(zip(("problem", "device", "capability", "sm_count"), task.identity, strict=True))


def _quality(stage: object, seconds: object) -> tuple[int, float]:
    """As `Trial.quality`; what is none comes first, to be read and told of."""
    if not isinstance(stage, int) or stage not in range(len(STAGES)) or not isinstance(seconds, float):
        return -len(STAGES), 0.0
    return -stage, seconds


@contextlib.contextmanager
def told(name: str, failure: type[DatabaseError] = DatabaseError) -> Iterator[None]:
    """What goes wrong inside is a DatabaseError that names the database: `failure` if it is what holds it."""
    try:
        yield
    except SQLAlchemyError as error:
        cause = error.orig if isinstance(error, DBAPIError) and error.orig else error
        damaged = getattr(cause, "sqlite_errorcode", 0) & 0xFF in DAMAGE
        raise failure(f"{name}: {cause}", damaged=damaged) from error
    except DatabaseError as error:
        if str(error).startswith(name):
            raise
        raise type(error)(f"{name}: {error}", damaged=error.damaged) from error
    except OSError as error:
        raise failure(f"{name}: {error}") from error
