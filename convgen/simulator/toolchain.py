"""The host's C++ compiler, and the libraries built with it, kept in the user's cache."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from convgen.cache import content_key, default_cache
from convgen.errors import CompileError, DeviceError

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
    "-ffp-contract=off",
    "-nostdinc++",
    "-march=native",
)
KERNEL_FLAGS = ("-w", "-I", str(INCLUDE), "-include", "convgen_sim.h")
FAST_FLAGS = ("-O2", "-g1")
CHECK_FLAGS = ("-O1", "-g1", "-fsanitize=thread", "-DCONVGEN_SIM_CHECK")
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


@dataclass(frozen=True)
class Compiler:
    """A C++ compiler: its command, its family ("gcc" or "clang") and what its version command prints."""

    command: tuple[str, ...]
    family: str
    version: str

    def compile(self, source: Path, flags: tuple[str, ...], output: Path) -> None:
        """Compile one C++ file to an object. Raises CompileError with the compiler's log."""
        tuned = INSTRUMENTATION_FLAGS[self.family] if "-fsanitize=thread" in flags else ()
        self._run("-x", "c++", *COMMON_FLAGS, *flags, *tuned, "-c", str(source), "-o", str(output))

    def link(self, objects: tuple[Path, ...], output: Path) -> None:
        """Link objects to a shared library. Raises CompileError with the linker's log."""
        self._run("-shared", *map(str, objects), "-o", str(output), *LINK_FLAGS[self.family])

    def _run(self, *arguments: str) -> None:
        done = subprocess.run([*self.command, *arguments], capture_output=True, text=True, check=False)
        if done.returncode:
            log = "\n".join(done.stderr.strip().splitlines()[:MAX_LOG_LINES])
            raise CompileError(f"{' '.join(self.command)} failed on the simulator's source:\n{log}")


@functools.cache
def find_compiler() -> Compiler:
    """g++ or clang++ of the PATH, else the `ziglang` package.

    `CONVGEN_SIM_CXX` (a command, or `zig`) overrides the choice. Raises DeviceError if there is none.
    """
    wanted = os.environ.get("CONVGEN_SIM_CXX", "")
    for name in [wanted] if wanted and wanted != "zig" else ["g++", "clang++"] if not wanted else []:
        if path := shutil.which(name):
            version = _version((path,))
            return Compiler((path,), "clang" if "clang" in version else "gcc", version)
    if importlib.util.find_spec("ziglang"):
        command = (sys.executable, "-m", "ziglang")
        return Compiler((*command, "cc"), "clang", _version((*command, "cc")))
    raise DeviceError("the simulator needs a C++ compiler: install g++, or pip install 'convgen[sim]'")


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
    with tempfile.TemporaryDirectory(prefix="convgen-") as name:
        folder = Path(name)
        source, runtime, library = folder / "kernels.cpp", folder / "runtime.o", folder / "kernels.so"
        source.write_text(text)
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
    named += [*INSTRUMENTATION_FLAGS[compiler.family], *LINK_FLAGS[compiler.family]]
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


def _version(command: tuple[str, ...]) -> str:
    return subprocess.run([*command, "--version"], capture_output=True, text=True, check=True).stdout
