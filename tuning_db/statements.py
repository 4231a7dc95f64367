"""Statements on the tables. Those of a database hit are built once: building one takes longer than running it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, Select, and_, bindparam, func, select

from tuning_db.records import Task
from tuning_db.schema import best, peer, run, task, trial

_TASK = tuple(column for column in task.c if column.name != "id")
_PEER = tuple(column for column in peer.c if column.name not in ("id", "task_id"))
_WITH_TASK = task.join(trial, trial.c.task_id == task.c.id)


def of_task(identity: Task) -> ColumnElement[bool]:
    """The condition that a row of `schema.task` is this one."""
    names = ("problem", "device", "capability", "sm_count")
    return and_(*(task.c[name] == getattr(identity, name) for name in names))


def of_kind(like: Task) -> ColumnElement[bool]:
    """The condition that a task is of the same kind, on the same GPU."""
    names = ("device", "capability", "sm_count", "op", "direction", "dtype", "layout")
    return and_(*(task.c[name] == getattr(like, name) for name in names))


def tasks_of(where: ColumnElement[bool]) -> ColumnElement[bool]:
    """A condition on tasks alone: that the task, or a trial of it, meets one on `schema.task` and `schema.trial`."""
    joined = task.outerjoin(trial, trial.c.task_id == task.c.id)
    return task.c.id.in_(select(task.c.id).select_from(joined).where(where))


def every_trial(where: ColumnElement[bool] | None = None) -> Select[Any]:
    query = select(*trial.c, *_TASK).select_from(_WITH_TASK)
    return query if where is None else query.where(where)


def winners(where: ColumnElement[bool] | None = None, without: Sequence[int] = ()) -> Select[Any]:
    """Every task's winner that meets a condition, none of these ids."""
    found = best(None if where is None else tasks_of(where), without).subquery()
    return every_trial(where).join(found, found.c.id == trial.c.id)


def every_run(where: ColumnElement[bool] | None = None) -> Select[Any]:
    query = select(*run.c, *_TASK).select_from(task.join(run, run.c.task_id == task.c.id))
    return query if where is None else query.where(tasks_of(where))


def every_peer(where: ColumnElement[bool] | None = None) -> Select[Any]:
    query = select(*_PEER, *_TASK).select_from(task.join(peer, peer.c.task_id == task.c.id))
    return query if where is None else query.where(tasks_of(where))


_IDENTITY = ("problem", "device", "capability", "sm_count")
_THIS_TASK = and_(*(task.c[name] == bindparam(name) for name in _IDENTITY))

_t = trial.c
_GROUP = (_t.task_id, _t.strategy, _t.codegen, _t.compiler, _t.protocol, _t.stage)

GROUPS = (
    select(*_GROUP, func.min(_t.seconds)).select_from(_WITH_TASK).where(_THIS_TASK, _t.status == "ok").group_by(*_GROUP)
)
"""The groups that a task's right trials fall into, with the least time of each: few, however often it was tuned."""

BEST_OF_GROUP = (
    every_trial(and_(_t.status == "ok", *(column == bindparam(f"its_{column.name}") for column in _GROUP)))
    .order_by(_t.seconds, _t.run, _t.config_key)
    .limit(100)
)
"""The best trials of one of them: more than one, in case somebody has edited the first into something else."""

_TRIED_WITH = ("strategy", "codegen", "compiler", "protocol")

RUNS_WITH = every_run().where(
    _THIS_TASK,
    run.c.id.in_(
        select(_t.run).where(
            _t.task_id == run.c.task_id, *(_t[name] == bindparam(f"its_{name}") for name in _TRIED_WITH)
        )
    ),
)
"""A task's runs in which a strategy was tried by a toolchain."""
