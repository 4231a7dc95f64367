"""What is stored: plain values, checked when they are read back, since a file may hold anything."""

from __future__ import annotations

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

MAX_CONFIG_BYTES = 4096
MAX_CONFIG_FIELDS = 64


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


def config_of(text: str) -> dict[str, Value]:
    """A config from text that may come from anywhere. Raises DatabaseError."""
    if len(text) > MAX_CONFIG_BYTES:
        raise DatabaseError(f"a config of {len(text)} bytes: expected at most {MAX_CONFIG_BYTES}")
    try:
        return checked_config(json.loads(text))
    except (ValueError, RecursionError) as error:
        raise DatabaseError(f"config {text[:80]!r}: expected a JSON object") from error


def checked_config(value: object) -> dict[str, Value]:
    """The value itself, if it is a flat mapping of names to integers, words and flags. Raises DatabaseError."""
    if not isinstance(value, dict) or len(value) > MAX_CONFIG_FIELDS:
        raise DatabaseError(f"config {str(value)[:80]!r}: expected an object of at most {MAX_CONFIG_FIELDS} fields")
    for key, item in value.items():
        if not isinstance(key, str) or not isinstance(item, int | str):
            raise DatabaseError(f"config field {str(key)[:40]!r}={str(item)[:40]!r}: expected an integer, word or flag")
    return value


def checked_trial(trial: Trial) -> Trial:
    """The trial itself, if every field is what it should be. Raises DatabaseError."""
    checked_config(dict(trial.config))
    if trial.status not in STATUSES:
        raise DatabaseError(f"status {trial.status!r}: expected one of {', '.join(STATUSES)}")
    if trial.stage not in STAGES:
        raise DatabaseError(f"stage {trial.stage!r}: expected one of {', '.join(STAGES)}")
    if trial.status == "ok" and not _is_time(trial.seconds):
        raise DatabaseError(f"seconds={trial.seconds}: expected a positive number for a trial that went well")
    return trial


def checked_peer(peer: Peer) -> Peer:
    """The peer itself, if its time is one. Raises DatabaseError."""
    if not _is_time(peer.seconds):
        raise DatabaseError(f"{peer.peer}: seconds={peer.seconds}: expected a positive number")
    return peer


def _is_time(seconds: object) -> bool:
    return isinstance(seconds, int | float) and not isinstance(seconds, bool) and 0 < seconds < math.inf


# --- to and from JSON ----------------------------------------------------------------------------------------


def to_json(record: Trial | Run | Peer) -> dict[str, Any]:
    """A record as one flat JSON object; `kind` tells which."""
    values = asdict(record)
    task = values.pop("task")
    toolchain = values.pop("toolchain", {})
    return {"kind": type(record).__name__.lower(), **task, **toolchain, **values}


def from_json(values: object) -> Trial | Run | Peer:
    """What `to_json` wrote, from data that may come from anywhere. Raises DatabaseError."""
    if not isinstance(values, dict):
        raise DatabaseError(f"record {str(values)[:60]!r}: expected a JSON object")
    kinds: dict[object, type[Trial] | type[Run] | type[Peer]] = {"trial": Trial, "run": Run, "peer": Peer}
    kind = kinds.get(values.get("kind"))
    if kind is None:
        raise DatabaseError(f"kind {values.get('kind')!r}: expected trial, run or peer")
    try:
        task = _taken(Task, values)
        if kind is Trial:
            return checked_trial(_taken(Trial, {**values, "task": task, "toolchain": _taken(Toolchain, values)}))
        if kind is Peer:
            return checked_peer(_taken(Peer, {**values, "task": task}))
        return _taken(Run, {**values, "task": task})
    except (TypeError, KeyError) as error:
        raise DatabaseError(f"a {values['kind']} record lacks {error}") from error


_R = TypeVar("_R")

_KINDS: Mapping[str, tuple[type, ...]] = {
    "str": (str,), "int": (int,), "bool": (bool,), "float": (int, float), "float | None": (int, float, type(None)),
}  # fmt: skip


def _taken(kind: type[_R], values: Mapping[str, Any]) -> _R:
    """Those of the values that are fields of the class, of the types they should have."""
    given: dict[str, Any] = {}
    for member in fields(kind):  # type: ignore[arg-type]
        if member.name not in values:
            continue
        value = values[member.name]
        allowed = _KINDS.get(str(member.type))
        if allowed is not None and (
            not isinstance(value, allowed) or (isinstance(value, bool) and bool not in allowed)
        ):
            raise DatabaseError(f"{member.name}={str(value)[:40]!r}: expected {member.type}")
        given[member.name] = value
    return kind(**given)
