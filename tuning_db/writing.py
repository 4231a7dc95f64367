"""Storing records, within the caller's transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, Table, and_, bindparam, delete, insert, select, update

from tuning_db import schema
from tuning_db.engine import BUSY_SECONDS
from tuning_db.records import Peer, Run, Task, Trial
from tuning_db.rows import peer_values, run_values, trial_values
from tuning_db.statements import of_task

AT_ONCE = 500
"""How many values one statement lists: every database bounds them."""

Values = Mapping[str, Any]
Key = tuple[Any, ...]


def begin(connection: Connection) -> None:
    """Wait until no other transaction writes: two that store the same keys in another order would wait for each other.

    SQLite has one writer anyway.
    """
    if connection.dialect.name == "postgresql":  # which would wait for ever
        connection.exec_driver_sql(f"SET LOCAL lock_timeout = {int(BUSY_SECONDS * 1000)}")
    if connection.dialect.name != "sqlite":
        connection.execute(select(schema.meta.c.value).with_for_update())


def store_trials(connection: Connection, trials: Sequence[Trial], *, keep_newer: bool = False) -> None:
    """`keep_newer`: of two of the same key the one that was recorded later stays, whichever is stored."""
    ids = _task_ids(connection, (trial.task for trial in trials))
    values = [trial_values(trial, ids[trial.task]) for trial in trials]
    _store(connection, schema.trial, ("run", "task_id", "strategy", "config_key"), values, _age_of_trial, keep_newer)


def store_runs(connection: Connection, runs: Sequence[Run], *, keep_newer: bool = False) -> None:
    """As `store_trials`."""
    ids = _task_ids(connection, (run.task for run in runs))
    _store(connection, schema.run, ("id",), [run_values(run, ids[run.task]) for run in runs], _age_of_run, keep_newer)


def store_peers(connection: Connection, peers: Sequence[Peer], *, keep_newer: bool = False) -> None:
    """As `store_trials`."""
    ids = _task_ids(connection, (peer.task for peer in peers))
    values = [peer_values(peer, ids[peer.task]) for peer in peers]
    _store(connection, schema.peer, ("task_id", "peer", "version"), values, _age_of_peer, keep_newer)


def forget(connection: Connection, where: ColumnElement[bool]) -> int:
    """Delete the trials that meet a condition, and tasks that are left with none; returns the number of trials."""
    joined = schema.task.outerjoin(schema.trial, schema.trial.c.task_id == schema.task.c.id)
    rows = connection.execute(select(schema.trial.c.id, schema.task.c.id).select_from(joined).where(where)).all()
    trials = [row[0] for row in rows if row[0] is not None]
    for some in _parts(trials):
        connection.execute(delete(schema.trial).where(schema.trial.c.id.in_(some)))
    for some in _parts(sorted({row[1] for row in rows})):
        t = schema.trial.c.task_id
        kept = set(connection.execute(select(t).where(t.in_(some)).distinct()).scalars())
        gone = [task_id for task_id in some if task_id not in kept]
        for table, column in ((schema.run, "task_id"), (schema.peer, "task_id"), (schema.task, "id")):
            connection.execute(delete(table).where(table.c[column].in_(gone)))
    return len(trials)


def _age_of_trial(values: Values) -> Key:
    # What is stored may have been edited: no two types here may be past comparing.
    stage = values["stage"]
    return str(values["created"]), stage if isinstance(stage, int) else -1


def _age_of_run(values: Values) -> Key:
    return values["outcome"] != "running", str(values["finished"]), str(values["started"])


def _age_of_peer(values: Values) -> Key:
    return (str(values["created"]),)


def _store(
    connection: Connection,
    table: Table,
    names: tuple[str, ...],
    found: Sequence[Values],
    age: Callable[[Values], Key],
    keep_newer: bool,
) -> None:
    def key(values: Values) -> Key:
        return tuple(values[name] for name in names)

    stored = _ages(connection, table, names, found, age) if keep_newer else {}
    kept: dict[Key, Values] = {}
    for values in found:
        before = stored.get(key(values))
        if keep_newer and before is not None and before >= age(values):
            continue
        kept[key(values)] = values
        if keep_newer:
            stored[key(values)] = age(values)
    if not kept:
        return
    same = and_(*(table.c[name] == bindparam(f"its_{name}") for name in names))
    keys = [{f"its_{name}": values[name] for name in names} for values in kept.values()]
    connection.execute(delete(table).where(same), keys)
    connection.execute(insert(table), list(kept.values()))


def _ages(
    connection: Connection, table: Table, names: tuple[str, ...], found: Sequence[Values], age: Callable[[Values], Key]
) -> dict[Key, Key]:
    """Of what is stored under keys whose first part is that of a given record."""
    first = table.c[names[0]]
    columns = [column for column in table.c if column.name not in ("config", "reason", "settings", "summary")]
    ages = {}
    for some in _parts(sorted({values[first.name] for values in found})):
        for row in connection.execute(select(*columns).where(first.in_(some))).mappings():
            values = {column.name: row[column] for column in columns}
            ages[tuple(values[name] for name in names)] = age(values)
    return ages


def _parts(values: Sequence[Any]) -> Iterable[Sequence[Any]]:
    return (values[start : start + AT_ONCE] for start in range(0, len(values), AT_ONCE))


def _task_ids(connection: Connection, tasks: Iterable[Task]) -> dict[Task, int]:
    return {task: _task_id(connection, task) for task in dict.fromkeys(tasks)}


def _task_id(connection: Connection, task: Task) -> int:
    k = schema.task.c
    known = connection.execute(select(k.id, k.family).where(of_task(task))).first()
    if known is None:
        values = {name: getattr(task, name) for name in task.__slots__}
        made = connection.execute(insert(schema.task).values(values)).inserted_primary_key
        assert made is not None
        return int(made[0])
    if task.family and task.family != known.family:
        connection.execute(update(schema.task).where(k.id == known.id).values(family=task.family))
    return int(known.id)
