"""One tuning database: records go in, winners come out."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from sqlalchemy import ColumnElement, Connection, Engine, and_, delete, insert, select
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from tuning_db import schema
from tuning_db.errors import DatabaseError
from tuning_db.records import (
    BAD_STATUSES,
    Found,
    Peer,
    Run,
    Task,
    Toolchain,
    Trial,
    checked_peer,
    checked_trial,
    config_text,
)
from tuning_db.rows import (
    RIGHT_TRIALS,
    best_first,
    every_trial,
    is_winner,
    object_of,
    peer_values,
    task_columns,
    task_id_of,
    task_of,
    trial_of,
    trial_values,
)


class Database:
    """Open one with `open_database`. May be used from several threads.

    Every method raises DatabaseError if the database fails; what was recorded before stays.
    """

    def __init__(self, engine: Engine, name: str, path: Path | None = None, *, read_only: bool = False) -> None:
        self.name = name
        """What messages call it: its path or URL."""
        self.path = path
        self.read_only = read_only
        self._engine = engine
        self._reader = engine.execution_options(isolation_level="AUTOCOMMIT")

    # --- writing --------------------------------------------------------------------------------------

    def record(self, trials: Iterable[Trial]) -> None:
        """Store trials, all or none; one of the same run, task, strategy and config is replaced."""
        checked = [checked_trial(trial) for trial in trials]
        if not checked:
            return
        with self._writing() as connection:
            tasks: dict[Task, int] = {}
            for trial in checked:
                task_id = tasks.get(trial.task)
                if task_id is None:
                    task_id = tasks[trial.task] = task_id_of(connection, trial.task)
                values = trial_values(trial, task_id)
                t = schema.trial.c
                same = and_(
                    t.run == values["run"],
                    t.task_id == task_id,
                    t.strategy == values["strategy"],
                    t.config_key == values["config_key"],
                )
                connection.execute(delete(schema.trial).where(same))
                connection.execute(insert(schema.trial).values(values))

    def record_run(self, run: Run) -> None:
        """Store a run, or what has become of it."""
        with self._writing() as connection:
            values = {
                "id": run.id,
                "task_id": task_id_of(connection, run.task),
                "started": run.started,
                "finished": run.finished,
                "outcome": run.outcome,
                "settings": json.dumps(dict(run.settings), sort_keys=True),
                "summary": json.dumps(dict(run.summary), sort_keys=True),
            }
            connection.execute(delete(schema.run).where(schema.run.c.id == run.id))
            connection.execute(insert(schema.run).values(values))

    def record_peers(self, peers: Iterable[Peer]) -> None:
        """Store peers' times; a later one of the same task, peer and version replaces the earlier."""
        checked = [checked_peer(peer) for peer in peers]
        if not checked:
            return
        with self._writing() as connection:
            for peer in checked:
                task_id, p = task_id_of(connection, peer.task), schema.peer.c
                same = and_(p.task_id == task_id, p.peer == peer.peer, p.version == peer.version)
                connection.execute(delete(schema.peer).where(same))
                connection.execute(insert(schema.peer).values(peer_values(peer, task_id)))

    def forget(self, where: ColumnElement[bool]) -> int:
        """Delete the trials, and the runs and peers of the tasks, that a condition on `schema.task` and
        `schema.trial` meets (see `query.Filter`); returns the number of trials."""
        with self._writing() as connection:
            joined = schema.trial.join(schema.task, schema.task.c.id == schema.trial.c.task_id)
            found = connection.execute(
                select(schema.trial.c.id, schema.trial.c.task_id).select_from(joined).where(where)
            )
            rows = found.all()
            ids, tasks = [row[0] for row in rows], {row[1] for row in rows}
            for start in range(0, len(ids), 500):
                connection.execute(delete(schema.trial).where(schema.trial.c.id.in_(ids[start : start + 500])))
            for task_id in tasks:
                left = connection.execute(select(schema.trial.c.id).where(schema.trial.c.task_id == task_id).limit(1))
                if left.first() is None:
                    connection.execute(delete(schema.run).where(schema.run.c.task_id == task_id))
                    connection.execute(delete(schema.peer).where(schema.peer.c.task_id == task_id))
                    connection.execute(delete(schema.task).where(schema.task.c.id == task_id))
            return len(ids)

    # --- reading --------------------------------------------------------------------------------------

    def winner(self, task: Task, current: Mapping[str, Toolchain], *, trusted: bool | None = None) -> Found | None:
        """The task's fastest right trial: of a toolchain as it is now, else a stale one; None if it knows none.

        `current` has today's toolchain of every strategy; others' trials are passed over. `trusted` asks for one tier.
        """
        wanted = {"problem": task.problem, "device": task.device, "capability": task.capability, "sms": task.sm_count}
        stale: Trial | None = None
        with self._reading() as connection:
            for row in connection.execute(RIGHT_TRIALS, wanted):
                chain = current.get(row.strategy)
                if chain is None:
                    continue
                equal = (row.codegen, row.compiler, row.protocol) == (chain.codegen, chain.compiler, chain.protocol)
                if equal if trusted is False else (not equal and (trusted or stale is not None)):
                    continue
                trial = trial_of(row, self.name)
                if trial is not None and (equal or trusted is False):
                    return Found(trial, "trusted" if equal else "stale")
                stale = stale or trial
        return None if stale is None else Found(stale, "stale")

    def neighbours(self, task: Task, limit: int = 2000) -> list[Trial]:
        """The winners, of whatever code, of all tasks of the same device, op, direction, dtype and layout."""
        k = schema.task.c
        kind = and_(
            k.device == task.device,
            k.capability == task.capability,
            k.sm_count == task.sm_count,
            k.op == task.op,
            k.direction == task.direction,
            k.dtype == task.dtype,
            k.layout == task.layout,
        )
        return self.best_trials(kind, limit)

    def best_trials(self, where: ColumnElement[bool] | None = None, limit: int | None = None) -> list[Trial]:
        """The winner of every task that meets a condition on `schema.task`, by problem."""
        with self._reading() as connection:
            rows = connection.execute(best_first(is_winner(where))).all()
        found = [trial for row in rows if (trial := trial_of(row, self.name)) is not None]
        return sorted(found, key=lambda trial: trial.task.identity)[:limit]

    def trials(self, where: ColumnElement[bool] | None = None) -> list[Trial]:
        """Every trial that meets a condition on `schema.task` and `schema.trial`, in a stable order."""
        with self._reading() as connection:
            rows = connection.execute(every_trial(where)).all()
        found = [trial for row in rows if (trial := trial_of(row, self.name)) is not None]
        return sorted(found, key=lambda t: (t.task.identity, t.run, t.strategy, config_text(t.config)))

    def runs(self, where: ColumnElement[bool] | None = None) -> list[Run]:
        """Every run whose task meets the condition, by task and start."""
        query = select(*schema.run.c, *task_columns()).join_from(
            schema.run, schema.task, schema.run.c.task_id == schema.task.c.id
        )
        with self._reading() as connection:
            rows = connection.execute(query if where is None else query.where(where)).all()
        found = [
            Run(r.id, task_of(r), r.started, r.finished, r.outcome, object_of(r.settings), object_of(r.summary))
            for r in rows
        ]
        return sorted(found, key=lambda run: (run.task.identity, run.started, run.id))

    def peers(self, where: ColumnElement[bool] | None = None) -> list[Peer]:
        """Every peer's time whose task meets the condition, by task and peer."""
        p = schema.peer.c
        columns = (p.peer, p.seconds, p.low, p.high, p.rounds, p.version, p.driver, p.protocol, p.created)
        query = select(*columns, *task_columns()).join_from(schema.peer, schema.task, p.task_id == schema.task.c.id)
        with self._reading() as connection:
            rows = connection.execute(query if where is None else query.where(where)).all()
        found = [Peer(task_of(row), *row[: len(columns)]) for row in rows]
        return sorted(found, key=lambda peer: (peer.task.identity, peer.peer, peer.version))

    def is_bad(self, source_key: str) -> bool:
        """Whether a source hung the GPU, faulted or took its process down before."""
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
            return schema.version_of(connection)

    def close(self) -> None:
        """Let go of every connection."""
        self._engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @contextlib.contextmanager
    def _writing(self) -> Iterator[Connection]:
        if self.read_only:
            raise DatabaseError(f"{self.name} was opened to be read: open it without read_only")
        with told(self.name), self._engine.execution_options(writes=True).begin() as connection:
            yield connection

    @contextlib.contextmanager
    def _reading(self) -> Iterator[Connection]:
        with told(self.name), self._reader.connect() as connection:
            yield connection


@contextlib.contextmanager
def told(name: str) -> Iterator[None]:
    """What goes wrong inside is a DatabaseError that names the database."""
    try:
        yield
    except SQLAlchemyError as error:
        cause = error.orig if isinstance(error, DBAPIError) and error.orig else error
        raise DatabaseError(f"{name}: {cause}") from error
    except DatabaseError as error:
        raise error if str(error).startswith(name) else DatabaseError(f"{name}: {error}") from error
    except OSError as error:
        raise DatabaseError(f"{name}: {error}") from error
