"""What leads from one version of the schema to the next.

A version is never edited once released: a change is one more step at the end of `MIGRATIONS`. So each step has its own
copy of what it makes, and `schema` has the sum of all.
"""

from __future__ import annotations

from collections.abc import Callable

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
from tuning_db.schema import meta, metadata, views

Migration = Callable[[Connection], None]


def _first(connection: Connection) -> None:
    made = MetaData()
    Table(
        "task", made, _number(), _text("problem", 768), _text("op", 32), _text("direction", 16), _text("dtype", 16),
        _text("layout", 16), _text("device", 64), _text("capability", 16), _integer("sm_count"), _text("family", 64),
        UniqueConstraint("problem", "device", "capability", "sm_count"),
        Index("task_kind", "device", "op", "direction", "dtype", "layout"),
    )  # fmt: skip
    Table(
        "run", made, Column("id", String(64), primary_key=True), _task(index=True), _text("started", 32),
        _text("finished", 32), _text("outcome", 16), _text("settings"), _text("summary"),
    )  # fmt: skip
    Table(
        "trial", made, _number(), _task(), _text("run", 64), _text("strategy", 64), _text("config"),
        _text("config_key", 64), _text("codegen", 64), _text("compiler", 64), _integer("protocol"), _text("status", 32),
        _text("reason"), Column("seconds", Float), Column("low", Float), Column("high", Float), _integer("rounds"),
        _integer("stage"), Column("tied", Boolean, nullable=False), _text("origin", 32), Column("error", Float),
        Column("bound", Float), Column("source_key", String(64), nullable=False, index=True), _text("convgen", 32),
        _text("driver", 32), _text("created", 32),
        UniqueConstraint("run", "task_id", "strategy", "config_key"),
        Index("trial_best", "task_id", "status", "stage", "seconds"),
    )  # fmt: skip
    Table(
        "peer", made, _number(), _task(), _text("peer", 64), Column("seconds", Float, nullable=False),
        Column("low", Float), Column("high", Float), _integer("rounds"), _text("version", 64), _text("driver", 32),
        _integer("protocol"), _text("created", 32),
        UniqueConstraint("task_id", "peer", "version"),
    )  # fmt: skip
    Table("convgen_meta", made, Column("name", String(32), primary_key=True), _text("value"))
    made.create_all(connection)


def _second(connection: Connection) -> None:
    """An index that holds all that a winner is chosen by."""
    columns = (
        _text("task_id"), _text("status"), _text("strategy"), _text("codegen"), _text("compiler"), _text("protocol"),
        _text("stage"), _text("seconds"), _text("created"),
    )  # fmt: skip
    trial = Table("trial", MetaData(), *columns)
    Index("trial_pick", *trial.c).create(connection)
    Index("trial_best", trial.c.task_id).drop(connection)


MIGRATIONS: tuple[Migration, ...] = (_first, _second)


def newest() -> int:
    """The version that this code reads and writes."""
    return len(MIGRATIONS)


def version_of(connection: Connection) -> int:
    """The schema's version; 0 for a database that holds nothing. Raises DatabaseError for one of somebody else's."""
    names = inspect(connection).get_table_names()
    if meta.name not in names:
        if names:
            raise DatabaseError(f"it holds other tables ({', '.join(names[:3])}) and no tuning database")
        return 0
    value = connection.execute(select(meta.c.value).where(meta.c.name == "schema_version")).scalar()
    if not isinstance(value, str) or not value.isdecimal():
        raise DatabaseError(f"schema_version {value!r}: expected a number")
    lacking = [name for name in metadata.tables if name not in names]
    if int(value) == newest() and lacking:
        raise DatabaseError(mismatch(newest(), f"there is no table {lacking[0]}"))
    return int(value)


def mismatch(version: int, reason: str) -> str:
    """What is said of a database whose version marker somebody has edited."""
    return (
        f"its marker says schema version {version}, but its tables are not that version's ({reason}): put right "
        f"schema_version in its table {meta.name}, or move it away and merge in a copy or an export"
    )


def migrate(connection: Connection) -> None:
    """Bring the schema to the newest version, within the caller's transaction. Raises DatabaseError if it is newer."""
    version = version_of(connection)
    if version > newest():
        raise DatabaseError(
            f"its schema is version {version}, this convgen knows {newest()}: upgrade convgen, or use another "
            "database (CONVGEN_TUNING_DB)"
        )
    if version == newest():
        return
    # Views hold nothing, and some databases do not change a table that one looks at.
    made = views(connection.dialect)
    for name in made:
        connection.execute(text(f"DROP VIEW IF EXISTS {name}"))
    for migration in MIGRATIONS[version:]:
        migration(connection)
    for name, query in made.items():
        connection.execute(text(f"CREATE VIEW {name} AS {query}"))
    if version == 0:
        connection.execute(insert(meta).values(name="schema_version", value=str(newest())))
    else:
        connection.execute(update(meta).where(meta.c.name == "schema_version").values(value=str(newest())))


def _number() -> Column[int]:
    return Column("id", Integer, primary_key=True)


def _task(*, index: bool = False) -> Column[int]:
    return Column("task_id", ForeignKey("task.id"), nullable=False, index=index)


def _integer(name: str) -> Column[int]:
    return Column(name, Integer, nullable=False)


def _text(name: str, length: int | None = None) -> Column[str]:
    return Column(name, Text if length is None else String(length), nullable=False)
