"""Records for the tests of the tuning database."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tuning_db import Layers, Peer, Run, Task, Toolchain, Trial, open_layers
from tuning_db.lines import lines_of
from tuning_db.records import Record

NOW = Toolchain("code-1", "NVRTC 13.0", 2)
BEFORE = Toolchain("code-0", "NVRTC 13.0", 2)
CURRENT = {"direct": NOW, "im2col": NOW}


def a_task(problem: str = "conv2d c=64 k=128 in=56x56 filter=3x3", **changes: Any) -> Task:
    values: dict[str, Any] = {
        "op": "conv2d", "direction": "fprop", "dtype": "fp32", "layout": "nchw", "device": "h200", "capability": "9.0",
        "sm_count": 132, "family": "textbook",
    }  # fmt: skip
    return Task(problem, **{**values, **changes})


def a_trial(seconds: float | None = 1e-4, task: Task | None = None, **changes: Any) -> Trial:
    values: dict[str, Any] = {
        "run": "run-1", "strategy": "direct", "config": {"tile": 4, "filter": "constant", "split": False},
        "toolchain": NOW, "status": "ok", "stage": "confirm", "created": "2026-11-30T00:00:00+00:00",
    }  # fmt: skip
    return Trial(task or a_task(), seconds=seconds, **{**values, **changes})


def a_failure(status: str, **changes: Any) -> Trial:
    return a_trial(None, status=status, reason=f"it ended in {status}", **changes)


def a_peer(seconds: float = 2e-4, peer: str = "cudnn_nchw", **changes: Any) -> Peer:
    return Peer(changes.pop("task", a_task()), peer, seconds, version=changes.pop("version", "cuDNN 9.19.0"), **changes)


def a_run(**changes: Any) -> Run:
    values: dict[str, Any] = {"id": "run-1", "task": a_task(), "started": "2026-11-30T00:00:00+00:00"}
    return Run(**{**values, **changes})


def write_lines(found: Iterable[Record], path: Path) -> None:
    path.write_text("".join(lines_of(found)))


def layers_of(monkeypatch: pytest.MonkeyPatch, place: str | Path) -> Layers:
    monkeypatch.setenv("CONVGEN_TUNING_DB", str(place))
    monkeypatch.delenv("CONVGEN_SHARED_TUNING_DB", raising=False)
    return open_layers()


def serves_what_it_records(layers: Layers) -> None:
    layers.record([a_trial()])
    found = layers.winner(a_task(), CURRENT)
    assert found is not None
    assert found.trial == a_trial()
