"""What is stored: plain values. `checks` has what each may be."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Value = int | str | bool
Stage = Literal["screen", "confirm", "final"]

STAGES: tuple[Stage, ...] = ("screen", "confirm", "final")
"""How well a time is known, least first: a few runs, many, many in turn with the other finalists."""

STATUSES = (
    "ok", "compile_error", "compile_timeout", "launch_failure", "illegal_access", "hang", "run_timeout",
    "wrong_result", "out_of_memory", "worker_died", "failed",
)  # fmt: skip
"""What can come of a candidate."""

BAD_STATUSES = ("illegal_access", "hang", "worker_died")
"""Those after which the same source is not run again."""

OUTCOMES = ("running", "finished", "interrupted")
"""What can become of a run."""


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

    @property
    def quality(self) -> tuple[int, float]:
        """What right trials are ordered by, best first: how well the time is known, then the time."""
        assert self.seconds is not None
        return -STAGES.index(self.stage), self.seconds


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


Record = Trial | Run | Peer


@dataclass(frozen=True, slots=True)
class Found:
    """A winner, how far it can be trusted, and which layer knew it."""

    trial: Trial
    tier: Literal["trusted", "stale"]
    layer: str = "user"

    @property
    def rank(self) -> tuple[bool, int, float]:
        """What winners are ordered by, best first."""
        return self.tier == "stale", *self.trial.quality


def never(trial: Trial) -> bool:
    """Knows no trial."""
    return False


def always(trial: Trial) -> bool:
    """Accepts every trial."""
    return True


def config_text(config: Mapping[str, Value]) -> str:
    """The one text of a config."""
    return json.dumps(dict(config), sort_keys=True, separators=(",", ":"))


def to_json(record: Record) -> dict[str, Any]:
    """A record as one flat JSON object; `kind` tells which. A number that JSON has no word for is null."""
    values = asdict(record)
    task = values.pop("task")
    toolchain = values.pop("toolchain", {})
    return {"kind": type(record).__name__.lower(), **task, **toolchain, **{k: finite(v) for k, v in values.items()}}


def finite(value: Any) -> Any:
    """The value, in which None stands for every infinity and NaN."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    return [finite(item) for item in value] if isinstance(value, list | tuple) else value
