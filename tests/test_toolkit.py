"""CuPy as this machine has it, or why it cannot be used."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from convgen.errors import DeviceError
from convgen.toolkit import load_cupy

TWICE = """
from convgen.errors import DeviceError
from convgen.toolkit import load_cupy
for _ in range(2):
    try:
        load_cupy()
    except DeviceError as error:
        print(error)
"""

needs_cupy = pytest.mark.skipif(importlib.util.find_spec("cupy") is None, reason="needs CuPy")


@needs_cupy
@pytest.mark.parametrize("name", ["HOME", "CUPY_CACHE_DIR"])
def test_a_cache_that_cannot_be_made_is_told_each_time(name: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    folder = str(tmp_path / "file" / "folder")
    kept = {key: value for key, value in os.environ.items() if key != "CUPY_CACHE_DIR"}
    done = subprocess.run(
        [sys.executable, "-c", TWICE],
        env={**kept, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), name: folder},
        capture_output=True,
        text=True,
        check=True,
    )
    first, second = done.stdout.splitlines()
    assert first == second
    assert first.startswith("CuPy cannot make its cache ([Errno 20] Not a directory: ")
    assert folder in first
    assert "set CUPY_CACHE_DIR to a folder that can be written" in first


def test_cupy_that_is_not_there_is_named_with_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(DeviceError, match=r"^CuPy is not installed: pip install 'convgen\[cuda13\]'"):
        load_cupy()


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("raise OSError('libcublas.so.13: cannot open shared object file')", "OSError: libcublas.so.13: cannot open"),
        ("raise ValueError('Unknown accelerator: foo')", "ValueError: Unknown accelerator: foo"),
        ("import a_module_that_is_not_there", "No module named 'a_module_that_is_not_there'"),
        (
            "try:\n    raise ImportError('libcuda.so.1: no such file')\n"
            "except ImportError as error:\n    raise ImportError('=====\\nFailed to import CuPy.') from error",
            "ImportError: libcuda.so.1: no such file",
        ),
    ],
)
def test_cupy_that_is_broken_is_told_with_the_cause(
    body: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cupy.py").write_text(body)
    monkeypatch.delitem(sys.modules, "cupy", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(DeviceError) as caught:
        load_cupy()
    assert str(caught.value).startswith("CuPy cannot be imported (")
    assert reason in str(caught.value)
    assert "pip install" in str(caught.value)
