"""What this machine has of what convgen can use, and the command that mends what it lacks."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import platform
import tempfile
from collections.abc import Callable
from dataclasses import dataclass

from convgen.artifact import find_nvdisasm
from convgen.cache import cache_directory
from convgen.compiler import header_directory, nvrtc_version
from convgen.errors import DeviceError
from convgen.problem import shipped_suites
from convgen.render import template_root
from convgen.simulator.toolchain import OVERRIDE, find_compiler
from convgen.strategies import all_strategies
from convgen.target import Target
from convgen.toolkit import CUPY_CACHE, INSTALL, load_cupy

SIM_EXTRA = "pip install 'convgen[sim]', or install g++"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked for. `needed_for` is "everything", "compile", "simulate", "locate" (a fault's source line),
    "run", "read" (SASS) or "speed"."""

    name: str
    needed_for: str
    found: bool
    detail: str
    """What was found, or what is missing."""
    mend: str = ""
    """The command or act that supplies it; empty if it is there."""


def diagnose() -> tuple[Finding, ...]:
    """Look at this machine. Raises nothing: what cannot be asked is a finding."""
    return tuple(check() for check in _CHECKS)


def can_compile(findings: tuple[Finding, ...]) -> bool:
    """True if `convgen compile --verify no` works with what was found."""
    return all(f.found for f in findings if f.needed_for in ("everything", "compile"))


def _python() -> Finding:
    return Finding("Python", "everything", True, f"{platform.python_version()} on {platform.platform()}")


def _distribution(name: str, needed_for: str, mend: str) -> Finding:
    try:
        return Finding(name, needed_for, True, importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        return Finding(name, needed_for, False, "not installed", mend)


def _numpy() -> Finding:
    return _distribution("numpy", "everything", "pip install numpy")


def _jinja() -> Finding:
    return _distribution("jinja2", "everything", "pip install jinja2")


def _templates() -> Finding:
    root = template_root()
    missing = [s.name for s in all_strategies() if not (root / s.template).is_file()]
    if missing:
        return Finding("templates", "everything", False, f"{root} lacks {', '.join(missing)}", "reinstall convgen")
    return Finding("templates", "everything", True, f"{len(all_strategies())} strategies in {root}")


def _suites() -> Finding:
    names = shipped_suites()
    if not names:
        return Finding("suites", "everything", False, "none", "reinstall convgen")
    return Finding("suites", "everything", True, ", ".join(names))


def _cache() -> Finding:
    # Compiling works without it, only slower: this is advice, whatever is found.
    directory = cache_directory()
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=directory):
            pass
    except OSError as error:
        reason = f"{directory} cannot be written ({error.strerror})"
        return Finding("cache", "speed", False, reason, "set CONVGEN_CACHE_DIR to a folder that can")
    return Finding("cache", "speed", True, str(directory))


def _nvrtc() -> Finding:
    try:
        major, minor = nvrtc_version()
    except DeviceError as error:
        return Finding("NVRTC", "compile", False, str(error), INSTALL)
    return Finding("NVRTC", "compile", True, f"{major}.{minor}")


def _headers() -> Finding:
    try:
        directory = header_directory()
    except DeviceError:
        directory = None
    if directory is None:
        return Finding("CUDA headers", "compile", False, "no cuda_fp16.h: fp16 and bf16 do not compile", INSTALL)
    return Finding("CUDA headers", "compile", True, str(directory))


def _host_compiler() -> Finding:
    try:
        compiler = find_compiler()
    except DeviceError as error:
        mend = f"unset {OVERRIDE}, or mend it" if os.environ.get(OVERRIDE) else SIM_EXTRA
        return Finding("C++ compiler", "simulate", False, str(error), mend)
    version = compiler.version.splitlines()[0]
    return Finding("C++ compiler", "simulate", True, f"{' '.join(compiler.command)} ({version})")


def _pyelftools() -> Finding:
    try:
        return Finding("pyelftools", "locate", True, importlib.metadata.version("pyelftools"))
    except importlib.metadata.PackageNotFoundError:
        lost = "not installed: the simulator's reports of faults name no source lines"
        return Finding("pyelftools", "locate", False, lost, "pip install 'convgen[sim]'")


def _cupy() -> Finding:
    try:
        cupy = load_cupy()
    except DeviceError as error:
        return Finding("CuPy", "run", False, str(error), CUPY_CACHE if CUPY_CACHE in str(error) else INSTALL)
    return Finding("CuPy", "run", True, cupy.__version__)


def _gpu() -> Finding:
    try:
        load_cupy()
    except DeviceError:
        return Finding("GPU", "run", False, "not known: CuPy, which is to tell, cannot be used", "mend CuPy")
    try:
        target = Target.current()
    except DeviceError as error:
        mend = "a machine with an NVIDIA GPU and driver; until then kernels are checked in the simulator"
        return Finding("GPU", "run", False, str(error), mend)
    return Finding("GPU", "run", True, str(target))


def _nvdisasm() -> Finding:
    path = find_nvdisasm()
    if path is None:
        return Finding("nvdisasm", "read", False, "not found: no --emit sass", "pip install nvidia-cuda-nvdisasm")
    return Finding("nvdisasm", "read", True, path)


_CHECKS: tuple[Callable[[], Finding], ...] = (
    _python,
    _numpy,
    _jinja,
    _templates,
    _suites,
    _cache,
    _nvrtc,
    _headers,
    _host_compiler,
    _pyelftools,
    _cupy,
    _gpu,
    _nvdisasm,
)
