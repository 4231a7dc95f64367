"""Where a benchmark ran: the GPU, and the versions of all that matters."""

from __future__ import annotations

import datetime
import subprocess
from pathlib import Path
from typing import Any

import convgen
from convgen.measure import PROTOCOL
from convgen.runtime.nvml import Nvml


def provenance(nvml: Nvml, versions: dict[str, str | None]) -> dict[str, Any]:
    """A result's `meta`, but for what is known when the run ends. `versions` are the peers'."""
    import cupy

    runtime = cupy.cuda.runtime
    number = runtime.runtimeGetVersion()
    return {
        "gpu": runtime.getDeviceProperties(cupy.cuda.Device().id)["name"].decode(),
        "driver": nvml.driver,
        "cuda": versions.get("cuda") or f"{number // 1000}.{number % 1000 // 10}",
        "cudnn": versions.get("cudnn"),
        "torch": versions.get("torch"),
        "convgen": convgen.__version__,
        "commit": commit(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "protocol": PROTOCOL,
    }


def commit(file: Path = Path(__file__)) -> str | None:
    """The commit of the checkout that tracks the file, with `-dirty` if that was edited since; None if none does."""
    if _git(file.parent, "ls-files", "--error-unmatch", file.name) is None:
        return None
    return _git(file.parent, "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*")


def _git(folder: Path, *words: str) -> str | None:
    try:
        command = ["git", "-C", str(folder), *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None
