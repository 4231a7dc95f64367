"""NVIDIA's libraries, headers and tools, and CuPy: where they are looked for, and what mends their lack."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

from convgen.errors import DeviceError

INSTALL = "pip install 'convgen[cuda13]' (convgen[cuda12] for a driver before 580)"
CUPY_CACHE = "set CUPY_CACHE_DIR to a folder that can be written, in place of ~/.cupy/kernel_cache"


def wheel_folders() -> list[Path]:
    """Where NVIDIA's wheels are installed."""
    spec = importlib.util.find_spec("nvidia")
    return [Path(folder) for folder in (spec.submodule_search_locations or ())] if spec else []


def cuda_homes() -> list[Path]:
    """What CUDA_HOME and CUDA_PATH name, in this order."""
    return [Path(os.environ[name]) for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]


def load_cupy() -> Any:
    """CuPy. Raises DeviceError, with the next step, if it is not installed or cannot be imported."""
    try:
        import cupy
    # It makes the folder of its kernel cache, loads CUDA's libraries and reads its environment variables.
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name == "cupy":
            raise DeviceError(f"CuPy is not installed: {INSTALL}") from error
        if isinstance(error, OSError) and error.errno is not None:
            raise DeviceError(f"CuPy cannot make its cache ({error}): {CUPY_CACHE}") from error
        cause = error.__cause__ or error
        raise DeviceError(f"CuPy cannot be imported ({type(cause).__name__}: {cause}): {INSTALL}") from error
    return cupy
