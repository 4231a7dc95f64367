"""Records as rows and back, and the statements on them."""

from __future__ import annotations

import hashlib
import json
import warnings
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, and_, bindparam, func, insert, select, update
from sqlalchemy.exc import IntegrityError

from tuning_db import schema
from tuning_db.errors import DatabaseError, TuningDatabaseWarning
from tuning_db.records import STAGES, Peer, Task, Toolchain, Trial, checked_trial, config_of, config_text


def task_columns() -> tuple[ColumnElement[Any], ...]:
    return tuple(column for column in schema.task.c if column.name != "id")


def is_task(task: Task) -> ColumnElement[bool]:
    k = schema.task.c
    return and_(
        k.problem == task.problem,
        k.device == task.device,
        k.capability == task.capability,
        k.sm_count == task.sm_count,
    )


def task_id_of(connection: Connection, task: Task) -> int:
    known = connection.execute(select(schema.task.c.id, schema.task.c.family).where(is_task(task))).first()
    if known is not None:
        if task.family and task.family != known.family:
            connection.execute(update(schema.task).where(schema.task.c.id == known.id).values(family=task.family))
        return int(known.id)
    values = {name: getattr(task, name) for name in task.__slots__}
    try:
        with connection.begin_nested():
            inserted = connection.execute(insert(schema.task).values(values)).inserted_primary_key
            assert inserted is not None
            return int(inserted[0])
    except IntegrityError:  # another writer was first
        return int(connection.execute(select(schema.task.c.id).where(is_task(task))).scalar_one())


def every_trial(where: ColumnElement[bool] | None) -> Any:
    query = select(*schema.trial.c, *task_columns()).join_from(
        schema.trial, schema.task, schema.trial.c.task_id == schema.task.c.id
    )
    return query if where is None else query.where(where)


def best_first(where: ColumnElement[bool] | None) -> Any:
    t = schema.trial.c
    return every_trial(where).where(t.status == "ok").order_by(t.stage.desc(), t.seconds, t.id)


def is_winner(where: ColumnElement[bool] | None) -> ColumnElement[bool]:
    """The condition that a trial is the winner of its task, and its task meets `where`."""
    t = schema.trial.c
    place = func.row_number().over(partition_by=t.task_id, order_by=(t.stage.desc(), t.seconds, t.id)).label("place")
    placed = select(t.id, place).where(t.status == "ok")
    if where is not None:
        placed = placed.join_from(schema.trial, schema.task, t.task_id == schema.task.c.id).where(where)
    ranked = placed.subquery()
    return t.id.in_(select(ranked.c.id).where(ranked.c.place == 1))


def trial_values(trial: Trial, task_id: int) -> dict[str, Any]:
    config = config_text(trial.config)
    plain = (
        "run", "strategy", "status", "reason", "seconds", "low", "high", "rounds", "tied", "origin", "error", "bound",
        "source_key", "convgen", "driver", "created",
    )  # fmt: skip
    return {
        **{name: getattr(trial, name) for name in plain},
        "task_id": task_id,
        "config": config,
        "config_key": hashlib.sha256(config.encode()).hexdigest(),
        "codegen": trial.toolchain.codegen,
        "compiler": trial.toolchain.compiler,
        "protocol": trial.toolchain.protocol,
        "stage": STAGES.index(trial.stage),
    }


def peer_values(peer: Peer, task_id: int) -> dict[str, Any]:
    names = [name for name in peer.__slots__ if name != "task"]
    return {"task_id": task_id, **{name: getattr(peer, name) for name in names}}


def trial_of(row: Row[Any], name: str) -> Trial | None:
    """A row as a trial; None, with a warning, for one that somebody has edited into something else."""
    try:
        plain = (
            "run", "strategy", "status", "reason", "seconds", "low", "high", "rounds", "tied", "origin", "error",
            "bound", "source_key", "convgen", "driver", "created",
        )  # fmt: skip
        return checked_trial(
            Trial(
                task=task_of(row),
                config=config_of(row.config),
                toolchain=Toolchain(row.codegen, row.compiler, row.protocol),
                stage=STAGES[row.stage],
                **{key: getattr(row, key) for key in plain},
            )
        )
    except (DatabaseError, IndexError, TypeError) as error:
        warnings.warn(
            f"{name}: a trial of {str(row.problem)[:120]} cannot be read ({error}); it is passed over. "
            "`convgen db forget` removes it",
            TuningDatabaseWarning,
            stacklevel=5,
        )
        return None


def task_of(row: Row[Any]) -> Task:
    return Task(**{name: getattr(row, name) for name in Task.__slots__})


def object_of(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


# Built once: making a statement takes longer than running it.
RIGHT_TRIALS = best_first(
    and_(
        schema.task.c.problem == bindparam("problem"),
        schema.task.c.device == bindparam("device"),
        schema.task.c.capability == bindparam("capability"),
        schema.task.c.sm_count == bindparam("sms"),
    )
)
