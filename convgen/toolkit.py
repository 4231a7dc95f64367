"""NVIDIA's libraries, headers and tools: where they are looked for, and the command that installs them."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

INSTALL = "pip install 'convgen[cuda13]' (convgen[cuda12] for a driver before 580)"


def wheel_folders() -> list[Path]:
    """Where NVIDIA's wheels are installed."""
    spec = importlib.util.find_spec("nvidia")
    return [Path(folder) for folder in (spec.submodule_search_locations or ())] if spec else []


def cuda_homes() -> list[Path]:
    """What CUDA_HOME and CUDA_PATH name, in this order."""
    return [Path(os.environ[name]) for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
