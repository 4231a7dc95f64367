"""Records as rows and back. What is read is checked: somebody may have edited it."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from sqlalchemy import Row

from tuning_db.checks import checked_peer, checked_run, checked_trial, config_of
from tuning_db.errors import DatabaseError
from tuning_db.records import STAGES, Peer, Run, Task, Toolchain, Trial, config_text, finite

_TRIAL = (
    "run", "strategy", "status", "reason", "seconds", "low", "high", "rounds", "tied", "origin", "error", "bound",
    "source_key", "convgen", "driver", "created",
)  # fmt: skip
_PEER = ("peer", "seconds", "low", "high", "rounds", "version", "driver", "protocol", "created")


def trial_values(trial: Trial, task_id: int) -> dict[str, Any]:
    config = config_text(trial.config)
    return {
        **{name: getattr(trial, name) for name in _TRIAL},
        "task_id": task_id,
        "config": config,
        "config_key": hashlib.sha256(config.encode()).hexdigest(),
        "codegen": trial.toolchain.codegen,
        "compiler": trial.toolchain.compiler,
        "protocol": trial.toolchain.protocol,
        "stage": STAGES.index(trial.stage),
    }


def run_values(run: Run, task_id: int) -> dict[str, Any]:
    return {
        "id": run.id,
        "task_id": task_id,
        "started": run.started,
        "finished": run.finished,
        "outcome": run.outcome,
        "settings": json.dumps(finite(run.settings), sort_keys=True),
        "summary": json.dumps(finite(run.summary), sort_keys=True),
    }


def peer_values(peer: Peer, task_id: int) -> dict[str, Any]:
    return {"task_id": task_id, **{name: getattr(peer, name) for name in _PEER}}


def trial_of(row: Row[Any]) -> Trial:
    """Raises DatabaseError, as all of these, for a row that is no record."""
    if row.stage not in range(len(STAGES)):
        raise DatabaseError(f"stage {ascii(row.stage)[:40]}: expected 0 to {len(STAGES) - 1}")
    values = {name: getattr(row, name) for name in _TRIAL}
    values["error"], values["bound"] = finite(row.error), finite(row.bound)
    toolchain = Toolchain(row.codegen, row.compiler, row.protocol)
    stage = STAGES[int(row.stage)]
    return checked_trial(
        Trial(task=task_of(row), config=config_of(row.config), toolchain=toolchain, stage=stage, **values)
    )


def run_of(row: Row[Any]) -> Run:
    settings, summary = _object_of(row.settings), _object_of(row.summary)
    return checked_run(Run(row.id, task_of(row), row.started, row.finished, row.outcome, settings, summary))


def peer_of(row: Row[Any]) -> Peer:
    return checked_peer(Peer(task_of(row), **{name: getattr(row, name) for name in _PEER}))


def task_of(row: Row[Any]) -> Task:
    return Task(**{name: getattr(row, name) for name in Task.__slots__})


def _object_of(text: object) -> dict[str, Any]:
    try:
        value = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise DatabaseError(f"{ascii(text)[:80]}: expected a JSON object")
    return value
