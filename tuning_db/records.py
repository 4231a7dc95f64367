"""What is stored: plain values, checked when they are read back, since a file may hold anything."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, TypeVar

from tuning_db.errors import DatabaseError

Value = int | str | bool
Stage = Literal["screen", "confirm", "final"]

STAGES: tuple[Stage, ...] = ("screen", "confirm", "final")
"""How well a time is known, least first: a few runs, many, many in turn with the other finalists."""

STATUSES = (
    "ok", "compile_error", "compile_timeout", "launch_failure", "illegal_access", "hang", "wrong_result",
    "out_of_memory", "worker_died", "failed",
)  # fmt: skip
"""What can come of a candidate."""

BAD_STATUSES = ("illegal_access", "hang", "worker_died")
"""Those after which the same source is not run again."""

OUTCOMES = ("running", "finished", "interrupted")
"""What has become of a run."""

MAX_CONFIG_BYTES = 4096
MAX_CONFIG_FIELDS = 64

MAX_LENGTHS: Mapping[str, int] = {
    "problem": 768, "op": 32, "direction": 16, "dtype": 16, "layout": 16, "device": 64, "capability": 16, "family": 64,
    "id": 64, "run": 64, "strategy": 64, "codegen": 64, "compiler": 64, "status": 32, "origin": 32, "source_key": 64,
    "convgen": 32, "driver": 32, "created": 40, "started": 40, "finished": 40, "outcome": 16, "peer": 64, "version": 64,
}  # fmt: skip
"""Characters of each text; `reason` may be of any length."""


@dataclass(frozen=True, slots=True)
class Task:
    """What was tuned, on what. Two tasks are the same if problem, device, capability and SM count are."""

    problem: str
    """Canonical text."""
    op: str
    direction: str
    dtype: str
    layout: str
    device: str
    capability: str
    """Compute capability in full, "9.0"."""
    sm_count: int
    family: str = ""

    @property
    def identity(self) -> tuple[str, str, str, int]:
        return self.problem, self.device, self.capability, self.sm_count


@dataclass(frozen=True, slots=True)
class Toolchain:
    """What a kernel and its time depend on besides problem and GPU. A winner of another one is stale."""

    codegen: str
    """Hash of the strategy's code."""
    compiler: str
    """"NVRTC 13.0"."""
    protocol: int
    """Version of the way of timing."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One candidate of one tuning run. Times in seconds of one call."""

    task: Task
    run: str
    strategy: str
    config: Mapping[str, Value]
    toolchain: Toolchain
    status: str
    reason: str = ""
    seconds: float | None = None
    """Median; `low` and `high` are quartiles."""
    low: float | None = None
    high: float | None = None
    rounds: int = 0
    stage: str = "screen"
    tied: bool = False
    """Whether it cannot be told from the run's best within the noise."""
    origin: str = ""
    """Which sampler proposed it."""
    error: float | None = None
    """|got - reference| of the element nearest its bound, and that bound."""
    bound: float | None = None
    source_key: str = ""
    """Hash of the source, options, architecture and compiler."""
    convgen: str = ""
    driver: str = ""
    created: str = ""
    """ISO 8601, UTC."""


@dataclass(frozen=True, slots=True)
class Run:
    """One search for one task."""

    id: str
    task: Task
    started: str
    finished: str = ""
    outcome: str = "running"
    settings: Mapping[str, Any] = field(default_factory=dict)
    summary: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Peer:
    """How long another library takes for a task."""

    task: Task
    peer: str
    """"cudnn_nchw"."""
    seconds: float
    low: float | None = None
    high: float | None = None
    rounds: int = 0
    version: str = ""
    """"cuDNN 9.19.0"."""
    driver: str = ""
    protocol: int = 0
    created: str = ""


@dataclass(frozen=True, slots=True)
class Found:
    """A winner, how far it can be trusted, and which layer knew it."""

    trial: Trial
    tier: Literal["trusted", "stale"]
    layer: str = "user"


def config_text(config: Mapping[str, Value]) -> str:
    """The one text of a config. Raises DatabaseError for what is no config."""
    return json.dumps(checked_config(dict(config)), sort_keys=True, separators=(",", ":"))


def config_of(text: object) -> dict[str, Value]:
    """A config from what may come from anywhere. Raises DatabaseError."""
    if not isinstance(text, str) or len(text) > MAX_CONFIG_BYTES:
        raise DatabaseError(f"config {str(text)[:40]!r}: expected JSON of at most {MAX_CONFIG_BYTES} characters")
    return checked_config(_object_of(text, "config"))


def object_text(values: Mapping[str, Any]) -> str:
    """Settings or a summary as JSON; what JSON has no word for becomes null or its text."""
    return json.dumps(_plain(dict(values)), sort_keys=True, default=str)


def checked_config(value: object) -> dict[str, Value]:
    """The value itself, if it is a flat mapping of names to integers, words and flags. Raises DatabaseError."""
    if not isinstance(value, dict) or len(value) > MAX_CONFIG_FIELDS:
        raise DatabaseError(f"config {str(value)[:80]!r}: expected an object of at most {MAX_CONFIG_FIELDS} fields")
    for key, item in value.items():
        if not isinstance(key, str) or not isinstance(item, int | str):
            raise DatabaseError(f"config field {str(key)[:40]!r}={str(item)[:40]!r}: expected an integer, word or flag")
    if sum(len(key) + len(str(item)) for key, item in value.items()) > MAX_CONFIG_BYTES:
        raise DatabaseError(f"config {str(value)[:80]!r}: expected at most {MAX_CONFIG_BYTES} characters")
    return value


R = TypeVar("R", "Trial", "Run", "Peer")


def checked(record: R) -> R:
    """The record itself, if every field is what it should be. Raises DatabaseError."""
    for part in (record, record.task, *([record.toolchain] if isinstance(record, Trial) else [])):
        for name, allowed, meaning in _members(type(part)):
            _check_field(name, getattr(part, name), allowed, meaning)
    if isinstance(record, Trial):
        checked_config(record.config)
        _check_choice("status", record.status, STATUSES)
        _check_choice("stage", record.stage, STAGES)
        if record.status == "ok" and not _is_time(record.seconds):
            raise DatabaseError(f"seconds={record.seconds}: expected a positive number for a trial that went well")
    elif isinstance(record, Peer):
        if not _is_time(record.seconds):
            raise DatabaseError(f"{record.peer}: seconds={record.seconds}: expected a positive number")
    else:
        _check_choice("outcome", record.outcome, OUTCOMES)
    return record


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise DatabaseError(f"{name} {value[:40]!r}: expected one of {', '.join(choices)}")


def _check_field(name: str, value: object, allowed: tuple[type, ...], meaning: str) -> None:
    if not allowed:
        return
    if not isinstance(value, allowed) or (isinstance(value, bool) and bool not in allowed):
        raise DatabaseError(f"{name}={str(value)[:40]!r}: expected {meaning}")
    longest = MAX_LENGTHS.get(name)
    if longest is not None and isinstance(value, str) and len(value) > longest:
        raise DatabaseError(f"{name}={value[:40]!r}…: {len(value)} characters, expected at most {longest}")


def _is_time(seconds: object) -> bool:
    return isinstance(seconds, int | float) and not isinstance(seconds, bool) and 0 < seconds < math.inf


def finite(value: float | None) -> float | None:
    """The value, or None where neither JSON nor every database has a number for it."""
    return value if value is not None and math.isfinite(value) else None


# --- to and from flat mappings ---------------------------------------------------------------------------------


def to_json(record: Trial | Run | Peer) -> dict[str, Any]:
    """A record as one flat JSON object; `kind` tells which."""
    values: dict[str, Any] = asdict(record)
    task = values.pop("task")
    toolchain = values.pop("toolchain", {})
    plain: dict[str, Any] = _plain({"kind": type(record).__name__.lower(), **task, **toolchain, **values})
    return plain


def from_json(values: object) -> Trial | Run | Peer:
    """What `to_json` wrote, from data that may come from anywhere. Raises DatabaseError."""
    if not isinstance(values, dict):
        raise DatabaseError(f"record {str(values)[:60]!r}: expected a JSON object")
    kind = values.get("kind")
    if kind == "trial":
        return trial_from(values)
    if kind == "run":
        return run_from(values)
    if kind == "peer":
        return peer_from(values)
    raise DatabaseError(f"kind {str(kind)[:40]!r}: expected trial, run or peer")


def trial_from(values: Mapping[str, Any]) -> Trial:
    """A trial of the flat fields of itself, its task and its toolchain. Raises DatabaseError."""
    return checked(_made(Trial, values, task=_made(Task, values), toolchain=_made(Toolchain, values)))


def run_from(values: Mapping[str, Any]) -> Run:
    """A run of the flat fields of itself and its task. Raises DatabaseError."""
    return checked(_made(Run, values, task=_made(Task, values)))


def peer_from(values: Mapping[str, Any]) -> Peer:
    """A peer's time of the flat fields of itself and its task. Raises DatabaseError."""
    return checked(_made(Peer, values, task=_made(Task, values)))


_M = TypeVar("_M")

_KINDS: Mapping[str, tuple[tuple[type, ...], str]] = {
    "str": ((str,), "a text"),
    "int": ((int,), "an integer"),
    "bool": ((bool,), "true or false"),
    "float": ((int, float), "a number"),
    "float | None": ((int, float, type(None)), "a number or null"),
    "Mapping[str, Value]": ((Mapping,), "an object"),
    "Mapping[str, Any]": ((Mapping,), "an object"),
}


@functools.cache
def _members(kind: type) -> tuple[tuple[str, tuple[type, ...], str], ...]:
    """(name, types allowed, in words) of each field; no types for a record within the record."""
    return tuple((member.name, *_KINDS.get(str(member.type), ((), ""))) for member in fields(kind))


def _made(kind: type[_M], values: Mapping[str, Any], **parts: object) -> _M:
    given = {name: values[name] for name, _, _ in _members(kind) if name in values and name not in parts}
    try:
        return kind(**given, **parts)
    except TypeError as error:
        raise DatabaseError(f"{kind.__name__.lower()}: {error}") from error


def _object_of(text: str, name: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DatabaseError(f"{name} {text[:80]!r}: expected a JSON object") from error


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return finite(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value
