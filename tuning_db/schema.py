"""Tables, the flat views over them, and the migrations that lead from one version to the next.

`task`, `run`, `trial` and `peer` hold the records; what to read are the views, which stay as they are from release to
release: `trials` and `peers` have one row a record with everything about it, and `winners` one row a task: its fastest
right trial, of those that are known best (final before confirm before screen), whatever code it was made by.

A version is never edited once released: a change is a new migration at the end of `MIGRATIONS`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sqlalchemy import (
    Boolean,
    Column,
    Connection,
    Float,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    insert,
    inspect,
    select,
    text,
    update,
)

from tuning_db.errors import DatabaseError
from tuning_db.records import STAGES

metadata = MetaData()

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
    Index("trial_best", "task_id", "status", "stage", "seconds"),
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
_BEST = (
    "SELECT id, ROW_NUMBER() OVER (PARTITION BY task_id ORDER BY stage DESC, seconds, id) AS place "
    "FROM trial WHERE status = 'ok'"
)
_VIEWS = {
    "trials": f"SELECT {_TASK}, {_TRIAL} FROM trial t JOIN task k ON k.id = t.task_id",
    "winners": (
        f"SELECT {_TASK}, {_TRIAL}, "
        "(SELECT MIN(d.seconds) FROM trial d WHERE d.task_id = t.task_id AND d.run = t.run AND d.status = 'ok' "
        "AND d.origin = 'default') AS default_seconds, "
        "(SELECT MIN(o.seconds) FROM trial o WHERE o.task_id = t.task_id AND o.run = t.run AND o.status = 'ok' "
        "AND o.strategy <> t.strategy) AS runner_up_seconds, "
        "(SELECT MIN(p.seconds) FROM peer p WHERE p.task_id = t.task_id) AS best_peer_seconds "
        f"FROM trial t JOIN task k ON k.id = t.task_id JOIN ({_BEST}) b ON b.id = t.id WHERE b.place = 1"
    ),
    "peers": (
        f"SELECT {_TASK}, p.peer, p.seconds, p.seconds * 1e6 AS us, p.low, p.high, p.rounds, p.version, p.driver, "
        "p.protocol, p.created FROM peer p JOIN task k ON k.id = p.task_id"
    ),
}

Migration = Callable[[Connection], None]


def _first(connection: Connection) -> None:
    metadata.create_all(connection)
    for name, query in _VIEWS.items():
        connection.execute(text(f"CREATE VIEW {name} AS {query}"))


MIGRATIONS: tuple[Migration, ...] = (_first,)

VERSION = len(MIGRATIONS)


def version_of(connection: Connection) -> int:
    """The schema's version; 0 for a database that holds nothing. Raises DatabaseError for one of somebody else's."""
    names = inspect(connection).get_table_names()
    if meta.name not in names:
        if names:
            raise DatabaseError(f"it holds other tables ({', '.join(names[:3])}) and no tuning database")
        return 0
    value = connection.execute(select(meta.c.value).where(meta.c.name == "schema_version")).scalar()
    if value is None or not value.isdecimal():
        raise DatabaseError(f"schema_version {value!r}: expected a number")
    return int(value)


def migrate(connection: Connection, migrations: Sequence[Migration] = MIGRATIONS) -> None:
    """Bring the schema to the newest version, within the caller's transaction. Raises DatabaseError if it is newer."""
    version = version_of(connection)
    if version > len(migrations):
        raise DatabaseError(
            f"its schema is version {version}, this convgen knows {len(migrations)}: upgrade convgen, or use another "
            "database (CONVGEN_TUNING_DB)"
        )
    if version == len(migrations):
        return
    for migration in migrations[version:]:
        migration(connection)
    known = connection.execute(select(meta.c.value).where(meta.c.name == "schema_version")).scalar()
    values = {"name": "schema_version", "value": str(len(migrations))}
    connection.execute(insert(meta).values(values) if known is None else update(meta).values(value=values["value"]))
