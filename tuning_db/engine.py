"""Where a tuning database is, and the SQLAlchemy engine that reaches it."""

from __future__ import annotations

import functools
import os
import sqlite3
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError
from sqlalchemy.pool import QueuePool

from tuning_db.errors import DatabaseError

BUSY_SECONDS = 30.0
"""How long a writer waits for another."""

CONNECT_SECONDS = 5
"""How long a server may take to answer, unless its URL says so itself."""

_POSTGRES = {"connect_timeout": CONNECT_SECONDS, "tcp_user_timeout": int(BUSY_SECONDS * 1000)}
_MYSQL = {"connect_timeout": CONNECT_SECONDS, "read_timeout": int(BUSY_SECONDS)}

TIME_LIMITS: dict[str, dict[str, int]] = {
    "psycopg": _POSTGRES,
    "psycopg2": _POSTGRES,
    "pg8000": {"timeout": int(BUSY_SECONDS)},
    "pymysql": _MYSQL,
    "mysqldb": _MYSQL,
    "mariadbconnector": _MYSQL,
    "mysqlconnector": {"connection_timeout": CONNECT_SECONDS},
}
"""What a driver calls its time limits, for a server that accepts and is silent, and for one that is gone later."""

NETWORK_FILE_SYSTEMS = frozenset(
    (
        "9p", "afs", "beegfs", "ceph", "cifs", "fuse.beegfs", "fuse.ceph", "fuse.ceph-fuse", "fuse.gcsfuse",
        "fuse.glusterfs", "fuse.s3fs", "fuse.sshfs", "glusterfs", "gpfs", "lustre", "nfs", "nfs4", "orangefs", "panfs",
        "pvfs2", "smb", "smb2", "smb3", "smbfs",
    )
)  # fmt: skip
"""Where SQLite's write-ahead log does not work: it needs memory that all writers share."""

MOUNTS = Path("/proc/self/mountinfo")


def user_location() -> Path | URL | None:
    """`CONVGEN_TUNING_DB` (a path or URL), else `XDG_DATA_HOME/convgen/tuning.sqlite`, else
    `~/.local/share/convgen/tuning.sqlite`; None if there is no home folder."""
    chosen = os.environ.get("CONVGEN_TUNING_DB")
    if chosen:
        return location(chosen)
    base = os.environ.get("XDG_DATA_HOME", "")
    if not os.path.isabs(base):  # as its specification has it: a relative one is passed over
        home = os.path.expanduser("~")
        if not os.path.isabs(home) or os.environ.get("HOME") == "":
            return None
        base = os.path.join(home, ".local", "share")
    return Path(base) / "convgen" / "tuning.sqlite"


def shared_location() -> Path | URL | None:
    """`CONVGEN_SHARED_TUNING_DB`, None if it is not set."""
    chosen = os.environ.get("CONVGEN_SHARED_TUNING_DB")
    return location(chosen) if chosen else None


def location(place: str | Path | URL) -> Path | URL:
    """A database's URL, or the absolute path of an SQLite file. Raises DatabaseError for a URL that is none, and for
    "shipped": the word stands for what ships with the package, wherever a database is named."""
    if isinstance(place, URL):
        return place
    text = str(place)
    if place == "shipped":
        raise DatabaseError("shipped: the winners that ship are only read: name another database")
    if text == ":memory:":
        return URL.create("sqlite")
    if isinstance(place, Path) or "://" not in text:
        try:
            return Path(place).expanduser().absolute()
        except RuntimeError as error:
            raise DatabaseError(f"database {text!r}: {error}") from error
    try:
        url = make_url(text)
    except ArgumentError as error:
        raise DatabaseError(f"database {text!r}: expected a path, or a URL as SQLAlchemy takes it") from error
    if url.get_backend_name() == "sqlite" and url.database not in (None, "", ":memory:"):
        return Path(str(url.database)).absolute()
    return url


def is_on_network(path: Path, mounts: Path = MOUNTS) -> bool:
    """Whether the file system that holds the path is reached over a network."""
    try:
        lines = mounts.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return False
    target = os.path.realpath(path)
    best, kind = "", ""
    for line in lines:
        mount, _, system = line.partition(" - ")
        words, types = mount.split(), system.split()
        if len(words) < 5 or not types:
            continue
        folder = words[4].replace("\\040", " ")
        inside = target == folder or target.startswith(folder.rstrip("/") + "/")
        if inside and len(folder) >= len(best):
            best, kind = folder, types[0]
    return kind in NETWORK_FILE_SYSTEMS


def memory_engine() -> Engine:
    """A database of this process alone. Its one connection holds it: a thread waits until another is done with it."""
    engine = create_engine(
        "sqlite://", connect_args={"check_same_thread": False}, poolclass=QueuePool, pool_size=1, max_overflow=0
    )
    _prepare_sqlite(engine, {"foreign_keys": "ON"})
    return engine


def file_engine(path: Path) -> Engine:
    """An SQLite file to read and write."""
    journal = "DELETE" if is_on_network(path.parent) else "WAL"
    engine = create_engine(URL.create("sqlite", database=str(path)), connect_args={"timeout": BUSY_SECONDS})
    _prepare_sqlite(engine, {"foreign_keys": "ON", "journal_mode": journal, "synchronous": "NORMAL"})
    return engine


def read_only_engine(path: Path) -> Engine:
    """An SQLite file to read. Where even the lock files cannot be made it is read as it lies."""

    def connect() -> sqlite3.Connection:
        base = path.resolve().as_uri()
        for mode in ("mode=ro", "mode=ro&immutable=1"):
            connection = sqlite3.connect(f"{base}?{mode}", uri=True, timeout=BUSY_SECONDS, check_same_thread=False)
            try:
                connection.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()
            except sqlite3.OperationalError:
                connection.close()
                if mode.endswith("immutable=1"):
                    raise
                continue
            return connection
        raise AssertionError

    engine = create_engine("sqlite://", creator=connect, poolclass=QueuePool)
    _prepare_sqlite(engine, {})
    return engine


def server_engine(url: URL) -> Engine:
    """Any other database that SQLAlchemy reaches. Raises DatabaseError if its driver is not installed."""
    try:
        known = TIME_LIMITS.get(url.get_dialect().driver, {})
        limits = {name: value for name, value in known.items() if name not in url.query}
        return create_engine(url, pool_pre_ping=True, pool_timeout=BUSY_SECONDS, connect_args=limits)
    except (ImportError, ArgumentError) as error:
        raise DatabaseError(f"database {url.render_as_string()}: {error}") from error


def _prepare_sqlite(engine: Engine, pragmas: dict[str, str]) -> None:
    # The driver would begin transactions by itself, and late: two readers that turn writers would lock each other out.
    @event.listens_for(engine, "connect")
    def on_connect(connection: Any, _: Any) -> None:
        connection.isolation_level = None
        # A text that is no UTF-8 makes one row unreadable, not the query.
        connection.text_factory = functools.partial(str, encoding="utf-8", errors="surrogateescape")
        for name, value in pragmas.items():
            connection.execute(f"PRAGMA {name} = {value}")

    @event.listens_for(engine, "begin")
    def on_begin(connection: Connection) -> None:
        # A read is one statement, and needs no transaction.
        if connection.get_execution_options().get("writes", False):
            connection.exec_driver_sql("BEGIN IMMEDIATE")
