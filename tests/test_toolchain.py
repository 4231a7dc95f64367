"""The host's compiler: what is the source's fault, and what the machine's."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from convgen.errors import CompileError, DeviceError
from convgen.simulator import library, toolchain
from convgen.simulator.toolchain import Compiler, working_folder


def failing(folder: Path, script: str) -> Compiler:
    program = folder / "g++"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return Compiler((str(program),), "gcc", "g++ of the tests")


@pytest.mark.parametrize(
    "said",
    [
        "kernels.cpp:1:1: fatal error: error writing to /tmp/cc1.s: No space left on device",
        "/usr/bin/ld: final link failed: Disk quota exceeded",
        "virtual memory exhausted: Cannot allocate memory",
        "cc1plus: out of memory allocating 65536 bytes after a total of 1000000 bytes",
        "g++: fatal error: Killed signal terminated program cc1plus",
        "collect2: fatal error: ld terminated with signal 7 [Bus error], core dumped",
        "g++: fatal error: cannot execute 'as': execvp: No such file or directory",
        "Assembler messages:\nFatal error: can't create /tmp/kernels.o: Permission denied",
        "error: unable to build: NoSpaceLeft",
    ],
)
def test_what_the_machine_lacks_is_a_device_error(said: str, tmp_path: Path) -> None:
    compiler = failing(tmp_path, f"cat >&2 <<'END'\n{said}\nEND\nexit 1")
    with pytest.raises(DeviceError) as caught:
        compiler.link((), tmp_path / "kernels.so")
    assert said.splitlines()[-1] in str(caught.value)
    assert "TMPDIR" in str(caught.value)


def test_a_compiler_that_dies_without_a_word_has_not_refused_the_source(tmp_path: Path) -> None:
    compiler = failing(tmp_path, "kill -KILL $$")
    with pytest.raises(DeviceError, match=r"cannot work on this machine \(it ended with status -9 and no word\)"):
        compiler.compile(tmp_path / "kernels.cpp", (), tmp_path / "kernels.o")


@pytest.mark.parametrize(
    "said",
    [
        "kernels.cpp:3:5: error: expected unqualified-id before numeric constant",
        "kernels.cpp:3:5: internal compiler error: Segmentation fault signal terminated program cc1plus",
    ],
)
def test_a_source_that_is_refused_is_a_compile_error(said: str, tmp_path: Path) -> None:
    compiler = failing(tmp_path, f"echo '{said}' >&2\nexit 1")
    with pytest.raises(CompileError, match=r"failed on the simulator's source:\nkernels\.cpp:3:5: "):
        compiler.compile(tmp_path / "kernels.cpp", (), tmp_path / "kernels.o")


def test_a_folder_without_room_is_a_device_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        pytest.raises(DeviceError, match=r"temporary folder \(.*No space left on device.*\): set TMPDIR"),
        working_folder(),
    ):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "kernels.cpp")
    monkeypatch.setattr(toolchain.tempfile, "tempdir", "/nowhere")
    with pytest.raises(DeviceError, match=r"temporary folder \(.*/nowhere/.*\): set TMPDIR"):
        library._load(b"")


def test_an_image_that_cannot_be_loaded_is_a_device_error() -> None:
    with pytest.raises(DeviceError, match=r"temporary folder \(.*kernels\.so.*\): set TMPDIR"):
        library._load(b"no library")
