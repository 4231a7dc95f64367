"""Whether a record is one: for what is to be stored, and for what is read back, since a file may hold anything."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import MISSING, fields, replace
from typing import Any, TypeVar

from sqlalchemy import String, Table

from tuning_db import schema
from tuning_db.errors import DatabaseError
from tuning_db.records import (
    OUTCOMES,
    STAGES,
    STATUSES,
    Peer,
    Record,
    Run,
    Task,
    Toolchain,
    Trial,
    Value,
    config_text,
    finite,
)

MAX_CONFIG_BYTES = 4096
MAX_CONFIG_FIELDS = 64
MAX_REASON = 4096
MAX_INTEGER = 2**31 - 1

CUT = ("reason", "driver", "convgen", "origin")
"""Texts that only tell: one too long is cut. All others identify something, and are refused."""

_KINDS: Mapping[str, tuple[type, ...]] = {
    "str": (str,), "int": (int,), "bool": (bool,), "float": (int, float), "float | None": (int, float, type(None)),
}  # fmt: skip

_R = TypeVar("_R")


def storable_trial(trial: Trial) -> Trial:
    """The trial as it is stored: texts that only tell are cut, what is not finite of its error is left out.

    Raises DatabaseError if it is none.
    """
    clean: dict[str, Any] = {name: _cut(schema.trial, name, getattr(trial, name)) for name in CUT}
    return checked_trial(replace(trial, **clean, error=finite(trial.error), bound=finite(trial.bound)))


def storable_peer(peer: Peer) -> Peer:
    """As `storable_trial`."""
    return checked_peer(replace(peer, driver=_cut(schema.peer, "driver", peer.driver)))


def checked_trial(trial: Trial) -> Trial:
    """The trial itself, if every field is what it should be. Raises DatabaseError."""
    _check_fields(trial.task)
    _check_fields(trial.toolchain)
    _check_fields(trial)
    size = len(config_text(checked_config(dict(trial.config) if isinstance(trial.config, Mapping) else trial.config)))
    if size > MAX_CONFIG_BYTES:
        raise DatabaseError(f"a config of {size} bytes: expected at most {MAX_CONFIG_BYTES}")
    if trial.status not in STATUSES:
        raise DatabaseError(f"status {trial.status!r}: expected one of {', '.join(STATUSES)}")
    if trial.stage not in STAGES:
        raise DatabaseError(f"stage {trial.stage!r}: expected one of {', '.join(STAGES)}")
    if trial.status == "ok" and not _is_time(trial.seconds):
        raise DatabaseError(f"seconds={trial.seconds}: expected a positive number for a trial that went well")
    return trial


def checked_peer(peer: Peer) -> Peer:
    """The peer itself, if every field is what it should be. Raises DatabaseError."""
    _check_fields(peer.task)
    _check_fields(peer)
    if not _is_time(peer.seconds):
        raise DatabaseError(f"{peer.peer}: seconds={peer.seconds}: expected a positive number")
    return peer


def checked_run(run: Run) -> Run:
    """The run itself, if every field is what it should be. Raises DatabaseError."""
    _check_fields(run.task)
    _check_fields(run)
    if run.outcome not in OUTCOMES:
        raise DatabaseError(f"outcome {run.outcome!r}: expected one of {', '.join(OUTCOMES)}")
    for name in ("settings", "summary"):
        value = getattr(run, name)
        if not isinstance(value, Mapping):
            raise DatabaseError(f"{name}={str(value)[:40]!r}: expected an object")
        try:
            json.dumps(finite(value))
        except (TypeError, ValueError, RecursionError) as error:
            raise DatabaseError(f"{name}={str(value)[:40]!r}: {error}") from error
    return run


def checked_config(value: object) -> dict[str, Value]:
    """The value itself, if it is a flat mapping of names to integers, words and flags. Raises DatabaseError."""
    if not isinstance(value, dict) or len(value) > MAX_CONFIG_FIELDS:
        raise DatabaseError(f"config {str(value)[:80]!r}: expected an object of at most {MAX_CONFIG_FIELDS} fields")
    for key, item in value.items():
        if not isinstance(key, str) or not isinstance(item, int | str):
            raise DatabaseError(f"config field {str(key)[:40]!r}={str(item)[:40]!r}: expected an integer, word or flag")
        if not is_text(key) or (isinstance(item, str) and not is_text(item)):
            raise DatabaseError(f"config field {key[:40]!a}={str(item)[:40]!a}: expected UTF-8")
    return value


def config_of(text: object) -> dict[str, Value]:
    """A config from what should be its text. Raises DatabaseError."""
    if not isinstance(text, str) or len(text) > MAX_CONFIG_BYTES:
        raise DatabaseError(f"config {ascii(text)[:80]}: expected a text of at most {MAX_CONFIG_BYTES} bytes")
    try:
        return checked_config(json.loads(text))
    except (ValueError, RecursionError) as error:
        raise DatabaseError(f"config {text[:80]!a}: expected a JSON object") from error


def from_json(values: object) -> Record:
    """What `records.to_json` wrote, from data that may come from anywhere. Raises DatabaseError."""
    if not isinstance(values, dict):
        raise DatabaseError(f"record {str(values)[:60]!r}: expected a JSON object")
    match values.get("kind"):
        case "trial":
            parts = {"task": _taken(Task, values), "toolchain": _taken(Toolchain, values)}
            trial = _taken(Trial, {**values, **parts})
            return checked_trial(replace(trial, error=finite(trial.error), bound=finite(trial.bound)))
        case "run":
            return checked_run(_taken(Run, {**values, "task": _taken(Task, values)}))
        case "peer":
            return checked_peer(_taken(Peer, {**values, "task": _taken(Task, values)}))
        case other:
            raise DatabaseError(f"kind {str(other)[:40]!a}: expected trial, run or peer")


def is_text(value: str) -> bool:
    """Whether every database can hold it: no half of a surrogate pair, which also stands for a byte that is no UTF-8,
    and no NUL."""
    if value.isascii():
        return "\0" not in value
    return "\0" not in value and not any("\ud800" <= letter <= "\udfff" for letter in value)


def plain(value: object) -> str:
    """Any value as a text that can be stored and shown."""
    return str(value).encode("utf-8", "replace").decode().replace("\0", "")


def _taken(kind: type[_R], values: Mapping[str, Any]) -> _R:
    members = fields(kind)  # type: ignore[arg-type]
    has_default = {m.name for m in members if not (m.default is MISSING and m.default_factory is MISSING)}
    needed = [m.name for m in members if m.name not in has_default | {"task", "toolchain"}]  # whose own fields lie flat
    lacking = [name for name in needed if name not in values]
    if lacking:
        given = f"a {values['kind']} without {', '.join(lacking)}"
        raise DatabaseError(f"{given}: expected all of {', '.join(needed)}")
    return kind(**{m.name: values[m.name] for m in members if m.name in values})


def _cut(table: Table, name: str, value: object) -> str:
    column = table.c[name].type
    return plain(value)[: (column.length if isinstance(column, String) else None) or MAX_REASON]


def _limits(kind: type, table: Table) -> tuple[tuple[str, str, tuple[type, ...], int | None], ...]:
    rows = []
    for member in fields(kind):
        if (allowed := _KINDS.get(str(member.type))) is None or member.name not in table.c:
            continue
        column = table.c[member.name].type
        length = column.length if isinstance(column, String) and member.name not in CUT else None
        rows.append((member.name, str(member.type), allowed, length))
    return tuple(rows)


_FIELDS = {
    kind: _limits(kind, table)
    for kind, table in (
        (Task, schema.task), (Toolchain, schema.trial), (Trial, schema.trial), (Run, schema.run), (Peer, schema.peer),
    )
}  # fmt: skip


def _check_fields(record: Task | Toolchain | Record) -> None:
    for name, expected, allowed, length in _FIELDS[type(record)]:
        value: Any = getattr(record, name)
        if not isinstance(value, allowed) or (value.__class__ is bool and bool not in allowed):
            raise DatabaseError(f"{name}={ascii(value)[:40]}: expected {expected}")
        if isinstance(value, str):
            if not is_text(value):
                raise DatabaseError(f"{name}={value[:40]!a}: expected UTF-8 without NUL")
            if length is not None and len(value) > length:
                raise DatabaseError(f"{name}={value[:40]!r}...: expected at most {length} characters")
        elif isinstance(value, float):
            if not math.isfinite(value):
                raise DatabaseError(f"{name}={value}: expected a finite number")
        elif isinstance(value, int) and not -MAX_INTEGER <= value <= MAX_INTEGER:
            raise DatabaseError(f"{name} is beyond {MAX_INTEGER}")


def _is_time(seconds: object) -> bool:
    return isinstance(seconds, int | float) and not isinstance(seconds, bool) and 0 < seconds < math.inf
