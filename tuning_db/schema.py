"""Tables, the flat views over them, and the migrations that lead from one version to the next.

`task`, `run`, `trial` and `peer` hold the records; what to read are the views, which stay as they are from release to
release: `trials` and `peers` have one row a record with everything about it, and `winners` one row a task (see
`best`).

A change of a table is a change here and a new migration (see `migrations`); views are made anew by each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import (
    Boolean,
    Column,
    ColumnElement,
    Dialect,
    Float,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    Select,
    String,
    Table,
    Text,
    UniqueConstraint,
    and_,
    case,
    func,
    or_,
    select,
    true,
)

from tuning_db.records import STAGES

metadata = MetaData()

_LONGEST = 1e9  # seconds; what is beyond has been edited
_PROBLEM = 768  # an indexed text has a bound in some databases

task = Table(
    "task",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("problem", String(_PROBLEM), nullable=False),
    Column("op", String(32), nullable=False),
    Column("direction", String(16), nullable=False),
    Column("dtype", String(16), nullable=False),
    Column("layout", String(16), nullable=False),
    Column("device", String(64), nullable=False),
    Column("capability", String(16), nullable=False),
    Column("sm_count", Integer, nullable=False),
    Column("family", String(64), nullable=False),
    UniqueConstraint("problem", "device", "capability", "sm_count"),
    Index("task_kind", "device", "op", "direction", "dtype", "layout"),
)

run = Table(
    "run",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("task_id", ForeignKey("task.id"), nullable=False, index=True),
    Column("started", String(32), nullable=False),
    Column("finished", String(32), nullable=False),
    Column("outcome", String(16), nullable=False),
    Column("settings", Text, nullable=False),
    Column("summary", Text, nullable=False),
)

_PICKED = ("task_id", "status", "strategy", "codegen", "compiler", "protocol", "stage")  # what a winner is chosen by

trial = Table(
    "trial",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("task_id", ForeignKey("task.id"), nullable=False),
    Column("run", String(64), nullable=False),
    Column("strategy", String(64), nullable=False),
    Column("config", Text, nullable=False),
    Column("config_key", String(64), nullable=False),
    Column("codegen", String(64), nullable=False),
    Column("compiler", String(64), nullable=False),
    Column("protocol", Integer, nullable=False),
    Column("status", String(32), nullable=False),
    Column("reason", Text, nullable=False),
    Column("seconds", Float),
    Column("low", Float),
    Column("high", Float),
    Column("rounds", Integer, nullable=False),
    Column("stage", Integer, nullable=False),
    Column("tied", Boolean, nullable=False),
    Column("origin", String(32), nullable=False),
    Column("error", Float),
    Column("bound", Float),
    Column("source_key", String(64), nullable=False, index=True),
    Column("convgen", String(32), nullable=False),
    Column("driver", String(32), nullable=False),
    Column("created", String(32), nullable=False),
    UniqueConstraint("run", "task_id", "strategy", "config_key"),
    Index("trial_pick", *_PICKED, "seconds", "created"),
)

peer = Table(
    "peer",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("task_id", ForeignKey("task.id"), nullable=False),
    Column("peer", String(64), nullable=False),
    Column("seconds", Float, nullable=False),
    Column("low", Float),
    Column("high", Float),
    Column("rounds", Integer, nullable=False),
    Column("version", String(64), nullable=False),
    Column("driver", String(32), nullable=False),
    Column("protocol", Integer, nullable=False),
    Column("created", String(32), nullable=False),
    UniqueConstraint("task_id", "peer", "version"),
)

meta = Table(
    "convgen_meta",
    metadata,
    Column("name", String(32), primary_key=True),
    Column("value", Text, nullable=False),
)

_TASK = "k.problem, k.op, k.direction, k.dtype, k.layout, k.family, k.device, k.capability, k.sm_count"
_STAGE = "CASE t.stage " + " ".join(f"WHEN {rank} THEN '{name}'" for rank, name in enumerate(STAGES)) + " END"
_TRIAL = (
    "t.strategy, t.config, t.status, t.reason, t.seconds, t.seconds * 1e6 AS us, t.low, t.high, t.rounds, "
    f"{_STAGE} AS stage, t.tied, t.origin, t.error, t.bound, t.codegen, t.compiler, t.protocol, t.source_key, t.run, "
    "t.convgen, t.driver, t.created"
)
_WINNERS = (
    f"SELECT {_TASK}, {_TRIAL}, "
    "(SELECT MIN(d.seconds) FROM trial d WHERE d.task_id = t.task_id AND d.run = t.run AND d.status = 'ok' "
    "AND d.origin = 'default') AS default_seconds, "
    "(SELECT MIN(o.seconds) FROM trial o WHERE o.task_id = t.task_id AND o.run = t.run AND o.status = 'ok' "
    "AND o.strategy <> t.strategy) AS runner_up_seconds, "
    "(SELECT MIN(p.seconds) FROM peer p WHERE p.task_id = t.task_id) AS best_peer_seconds "
    "FROM trial t JOIN task k ON k.id = t.task_id JOIN ({best}) b ON b.id = t.id"
)
_PEERS = (
    f"SELECT {_TASK}, p.peer, p.seconds, p.seconds * 1e6 AS us, p.low, p.high, p.rounds, p.version, p.driver, "
    "p.protocol, p.created FROM peer p JOIN task k ON k.id = p.task_id"
)


def views(dialect: Dialect) -> dict[str, str]:
    """The queries behind the views, in a database's own words."""
    ids = best().compile(dialect=dialect, compile_kwargs={"literal_binds": True})
    return {
        "trials": f"SELECT {_TASK}, {_TRIAL} FROM trial t JOIN task k ON k.id = t.task_id",
        "winners": _WINNERS.format(best=ids),
        "peers": _PEERS,
    }


def best(tasks: ColumnElement[bool] | None = None, without: Sequence[int] = ()) -> Select[Any]:
    """The ids of the winners of the tasks that meet a condition. `without` has the ids of trials that cannot win.

    First are trials of the toolchain that their strategy was last tried with, then older ones; of each, best known
    before less well known (final, confirm, screen), then by time. No order depends on ids alone, which a copy has its
    own of.
    """
    t, own = trial.c, trial.alias("own").c
    keys = [t[name] for name in _PICKED]
    sound = and_(t.stage.between(0, len(STAGES) - 1), t.seconds > 0, t.seconds < _LONGEST, _is_none_of(t.id, without))
    # Of groups of trials, which are few, and which `trial_pick` has in this order.
    grouped = select(*keys, func.min(t.seconds).label("seconds"), func.max(t.created).label("created"))
    grouped = grouped.where(or_(t.status != "ok", sound)).group_by(*keys)
    if tasks is not None:
        grouped = grouped.where(t.task_id.in_(select(task.c.id).where(tasks)))
    g = grouped.subquery("grouped").c
    chain = (g.codegen, g.compiler, g.protocol)
    today = and_(*(column == _latest(g, column) for column in chain))
    a = select(*g, case((today, 0), else_=1).label("outdated")).subquery("aged").c
    order = (a.outdated, a.stage.desc(), a.seconds, a.strategy, a.codegen, a.compiler, a.protocol)
    place = func.row_number().over(partition_by=a.task_id, order_by=order).label("place")
    r = select(*a, place).where(a.status == "ok").subquery("ranked").c
    same = and_(*(own[key.name] == r[key.name] for key in keys), own.seconds == r.seconds, _is_none_of(own.id, without))
    fastest = select(own.id).where(same).order_by(own.run, own.config_key).limit(1).scalar_subquery()
    return select(fastest.label("id")).where(r.place == 1)


def _is_none_of(column: ColumnElement[int], ids: Sequence[int]) -> ColumnElement[bool]:
    return column.not_in(ids) if ids else true()


def _latest(groups: Any, column: ColumnElement[Any]) -> ColumnElement[Any]:
    order = (groups.created.desc(), groups.codegen, groups.compiler, groups.protocol)
    return func.first_value(column).over(partition_by=(groups.task_id, groups.strategy), order_by=order)
