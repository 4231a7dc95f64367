"""The host's C++ compiler, and the libraries built with it, kept in the user's cache."""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from convgen.cache import cache_directory, content_key, default_cache
from convgen.errors import CompileError, DeviceError

OVERRIDE = "CONVGEN_SIM_CXX"
ZIG = "zig"

HERE = Path(__file__).parent
INCLUDE = HERE / "include"
RUNTIME = HERE / "src"

COMMON_FLAGS = (
    "-std=gnu++20",
    "-fPIC",
    "-fvisibility=hidden",
    "-fno-exceptions",
    "-fno-rtti",
    "-fno-threadsafe-statics",
    "-fno-math-errno",
    "-fno-strict-aliasing",  # kernels read memory as other types than it was written as, which GPUs' compilers let them
    "-ffp-contract=off",
    "-nostdinc++",
    "-march=native",
)
KERNEL_FLAGS = ("-w", "-I", str(INCLUDE), "-include", "convgen_sim.h")
FAST_FLAGS = ("-O2", "-g1")
CHECK_FLAGS = ("-O1", "-g1", "-fsanitize=thread", "-DCONVGEN_SIM_CHECK")
# Instructions of a warpgroup are told by their addresses first: it is well if few are copied onto several paths.
FAMILY_FLAGS = {"gcc": ("-fno-thread-jumps",), "clang": ()}
INSTRUMENTATION_FLAGS = {
    "gcc": ("--param", "tsan-instrument-func-entry-exit=0", "-fno-tree-vectorize"),
    # Masked and scattered vector accesses are not instrumented.
    "clang": (
        *("-fno-vectorize", "-fno-slp-vectorize"),
        *("-mllvm", "-tsan-instrument-func-entry-exit=0"),
        *("-mllvm", "-tsan-instrument-read-before-write=1"),
    ),
}
# Against no library: zig would first build its own C library, for 40 s. The process has libc and libm.
LINK_FLAGS = {"gcc": ("-lm",), "clang": ("-nostdlib", "-Wl,-z,undefs")}
RUNTIME_FLAGS = ("-O2", "-g0")
MAX_LOG_LINES = 60
PATIENCE = 60.0
"""Seconds for a compiler to say what it is: zig takes several to start for the first time."""

_ERRNOS = ("ENOSPC", "EDQUOT", "ENOMEM", "EACCES", "EROFS", "EIO", "EMFILE", "ENFILE", "EAGAIN")
_OF_THE_MACHINE = re.compile(
    "|".join(
        (
            *(re.escape(os.strerror(getattr(errno, name))) for name in _ERRNOS),
            *("memory exhausted", "out of memory", "Killed", "Bus error", "(cannot|unable to) execute"),
            *("NoSpaceLeft", "OutOfMemory", "AccessDenied"),  # zig's own words
        )
    )
)
"""What a compiler's log says where the machine, not the source, is at fault."""


@dataclass(frozen=True)
class Compiler:
    """A C++ compiler: its command, its family ("gcc" or "clang") and what its version command prints."""

    command: tuple[str, ...]
    family: str
    version: str

    def compile(self, source: Path, flags: tuple[str, ...], output: Path) -> None:
        """Compile one C++ file to an object. Raises CompileError with the compiler's log, DeviceError for want of
        memory, space or a part of the compiler."""
        tuned = INSTRUMENTATION_FLAGS[self.family] if "-fsanitize=thread" in flags else ()
        self._run(
            "-x", "c++", *COMMON_FLAGS, *FAMILY_FLAGS[self.family], *flags, *tuned, "-c", str(source), "-o", str(output)
        )

    def link(self, objects: tuple[Path, ...], output: Path) -> None:
        """Link objects to a shared library. Raises as `compile` does."""
        self._run("-shared", *map(str, objects), "-o", str(output), *LINK_FLAGS[self.family])

    def _run(self, *arguments: str) -> None:
        done = _call(self.command, *arguments)
        if not done.returncode:
            return
        lines = done.stderr.strip().splitlines()
        hindrance = next(filter(_OF_THE_MACHINE.search, lines), None)
        # A source that is refused is refused with a reason.
        if hindrance is not None or not lines:
            said = hindrance or f"it ended with status {done.returncode} and no word"
            raise DeviceError(
                f"{' '.join(self.command)} cannot work on this machine ({said}): free memory and space, or set TMPDIR "
                "to a folder with room"
            )
        log = "\n".join(lines[:MAX_LOG_LINES])
        raise CompileError(f"{' '.join(self.command)} failed on the simulator's source:\n{log}")


@functools.cache
def find_compiler() -> Compiler:
    """The first that answers of g++ and clang++ of the PATH and the `ziglang` package.

    `CONVGEN_SIM_CXX` overrides the choice: the name or path of a g++ or clang++, without arguments, or `zig`.
    Raises DeviceError if there is none, or if the one that was chosen cannot be used.
    """
    wanted = os.environ.get(OVERRIDE)
    if wanted:
        try:
            return _found(wanted)
        except DeviceError as error:
            raise DeviceError(
                f"{OVERRIDE}={wanted}: expected the name or path of g++ or clang++, without arguments, or zig; {error}"
            ) from None
    reasons = []
    for name in ("g++", "clang++", ZIG):
        try:
            return _found(name)
        except DeviceError as error:
            reasons.append(str(error))
    raise DeviceError(
        f"the simulator needs a C++ compiler: install g++, or pip install 'convgen[sim]' ({'; '.join(reasons)})"
    )


def _found(name: str) -> Compiler:
    if name == ZIG:
        if importlib.util.find_spec("ziglang") is None:
            raise DeviceError("the ziglang package is not installed")
        return _asked((sys.executable, "-m", "ziglang", "cc"))
    path = shutil.which(name)
    if path is None:
        raise DeviceError(f"there is no program {name}")
    return _asked((path,))


def _asked(command: tuple[str, ...]) -> Compiler:
    """The compiler behind a command, by the macros that it defines: what it calls itself differs by distribution."""
    macros = _call(command, "-std=gnu++20", "-x", "c++", "-E", "-dM", os.devnull, timeout=PATIENCE)
    version = _call(command, "--version", timeout=PATIENCE)
    if macros.returncode or version.returncode or "#define __GNUC__ " not in macros.stdout:
        log = (macros.stderr or version.stderr).strip().splitlines()[:1]
        raise DeviceError(": ".join([f"{' '.join(command)} does not answer as a compiler of C++20", *log]))
    return Compiler(command, "clang" if "#define __clang__ " in macros.stdout else "gcc", version.stdout)


def _call(command: tuple[str, ...], *arguments: str, timeout: float | None = None) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            [*command, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            env={**os.environ, "LC_ALL": "C", **(_zig_environment() if "ziglang" in command else {})},
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise DeviceError(f"{' '.join(command)} does not answer within {timeout:g} s") from error
    except OSError as error:
        raise DeviceError(f"{' '.join(command)} cannot be run ({error.strerror})") from error


def _zig_environment() -> dict[str, str]:
    """Zig does not start without a folder for its own cache, which it would look for in HOME."""
    folder = str(_zig_folder())
    return {name: os.environ.get(name) or folder for name in ("ZIG_GLOBAL_CACHE_DIR", "ZIG_LOCAL_CACHE_DIR")}


@functools.cache
def _zig_folder() -> Path:
    folder = cache_directory().absolute() / "zig"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError:
        return Path(_temporary_folder().name)


@functools.cache
def _temporary_folder() -> tempfile.TemporaryDirectory[str]:
    """Kept until the process ends, and removed then."""
    return tempfile.TemporaryDirectory(prefix="convgen-zig-")


@contextlib.contextmanager
def working_folder() -> Iterator[Path]:
    """A temporary folder. Raises DeviceError for whatever its file system refuses while it is in use."""
    try:
        with tempfile.TemporaryDirectory(prefix="convgen-") as name:
            yield Path(name)
    except OSError as error:
        raise DeviceError(
            f"the simulator cannot work in its temporary folder ({error}): set TMPDIR to a folder with room, from "
            "which programs may be loaded"
        ) from error


def build_library(text: str, *, check: bool) -> bytes:
    """The shared library of this C++ text and the simulator's runtime, from the cache if it is there.

    Raises CompileError, DeviceError.
    """
    compiler = find_compiler()
    flags = (*KERNEL_FLAGS, *(CHECK_FLAGS if check else FAST_FLAGS))
    key = _key(compiler, flags, text)
    found = default_cache().get(key)
    if found is not None:
        return found
    with working_folder() as folder:
        source, runtime, library = folder / "kernels.cpp", folder / "runtime.o", folder / "kernels.so"
        source.write_text(text, encoding="utf-8")
        runtime.write_bytes(_runtime_object(compiler, folder))
        compiler.compile(source, flags, folder / "kernels.o")
        compiler.link((folder / "kernels.o", runtime), library)
        built = library.read_bytes()
    default_cache().put(key, built)
    return built


def _runtime_object(compiler: Compiler, folder: Path) -> bytes:
    key = _key(compiler, RUNTIME_FLAGS, "")
    found = default_cache().get(key)
    if found is not None:
        return found
    compiler.compile(RUNTIME / "runtime.cpp", RUNTIME_FLAGS, folder / "built.o")
    built = (folder / "built.o").read_bytes()
    default_cache().put(key, built)
    return built


def _key(compiler: Compiler, flags: tuple[str, ...], text: str) -> str:
    named = [flag for flag in (*COMMON_FLAGS, *flags) if flag != str(INCLUDE)]
    named += [*FAMILY_FLAGS[compiler.family], *INSTRUMENTATION_FLAGS[compiler.family], *LINK_FLAGS[compiler.family]]
    return content_key("sim", *compiler.command, compiler.version, " ".join(named), _processor(), _own_sources(), text)


@functools.cache
def _own_sources() -> str:
    files = sorted([*INCLUDE.iterdir(), *RUNTIME.iterdir()])
    return hashlib.sha256(b"\0".join(f.name.encode() + b"\0" + f.read_bytes() for f in files)).hexdigest()


@functools.cache
def _processor() -> str:
    """What `-march=native` depends on."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    wanted = ("model name", "flags", "Features", "CPU part")
    return "\n".join(sorted({line for line in lines if line.startswith(wanted)}))
