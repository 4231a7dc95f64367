"""CUDA source to cubin through NVRTC: needs no GPU, no driver and no CUDA toolkit.

The cubin is what runs; the PTX is kept for reading and export, since a driver older than NVRTC refuses it.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import re
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from convgen.cache import DiskCache, content_key, default_cache
from convgen.errors import CompileError, DeviceError, UsageError
from convgen.resources import KernelResources, kernel_resources
from convgen.target import Target
from convgen.toolkit import INSTALL, cuda_homes, wheel_folders

BASE_OPTIONS = ("-std=c++17", "-lineinfo", "--ptxas-options=-v")


@dataclass(frozen=True)
class Binary:
    """A compiled module for one architecture."""

    arch: str
    cubin: bytes
    ptx: str
    log: str
    """The compiler's, ptxas's statistics included."""
    kernels: tuple[KernelResources, ...]
    key: str
    """Hash of everything the cubin depends on: source, options, architecture, compiler and headers."""
    compiler: str
    """"NVRTC 13.5"."""
    seconds: float
    """What compiling took, now or when the cache was filled."""
    cached: bool = False

    def kernel(self, name: str) -> KernelResources:
        """The resources of one kernel."""
        return next(kernel for kernel in self.kernels if kernel.name == name)


@dataclass(frozen=True)
class Job:
    """One source to compile: what `compile_cuda` takes."""

    source: str
    target: Target | str
    options: tuple[str, ...] = ()
    name: str = "convgen.cu"


def compile_cuda(
    source: str,
    target: Target | str,
    options: Sequence[str] = (),
    *,
    name: str = "convgen.cu",
    cache: DiskCache | None = None,
) -> Binary:
    """Compile for a target or an architecture ("sm_86"); `options` are NVRTC's, behind `BASE_OPTIONS`.

    `name` is the file name in messages and in the line table that profilers read. `cache` is the user's unless
    given. Raises CompileError with the compiler's log, UsageError for an architecture or option NVRTC does not
    know, DeviceError if NVRTC is not installed or has too little memory.
    """
    arch = target.arch if isinstance(target, Target) else target
    major, minor = nvrtc_version()
    compiler = f"NVRTC {major}.{minor}"
    key = content_key("cubin", compiler, arch, name, source, *BASE_OPTIONS, *options, _header_digest(source))
    store = cache if cache is not None else default_cache()
    payload = store.get(key)
    if payload is not None and (hit := _unpack(payload)) is not None:
        return hit
    started = time.perf_counter()
    cubin, ptx, log = _run_nvrtc(source, arch, tuple(options), name)
    binary = Binary(
        arch=arch,
        cubin=cubin,
        ptx=ptx,
        log=log,
        kernels=kernel_resources(log, ptx, cubin),
        key=key,
        compiler=compiler,
        seconds=time.perf_counter() - started,
    )
    store.put(key, _pack(binary))
    return binary


def compile_many(
    jobs: Iterable[Job], workers: int | None = None, cache: DiskCache | None = None
) -> list[Binary | CompileError]:
    """Compile side by side, results in the order of the jobs; a source that is refused gives its error as the result.

    Threads are enough: NVRTC runs outside the interpreter lock and scales with the cores.
    """

    def run(job: Job) -> Binary | CompileError:
        try:
            return compile_cuda(job.source, job.target, job.options, name=job.name, cache=cache)
        except CompileError as error:
            return error

    with ThreadPoolExecutor(workers or os.cpu_count() or 1) as pool:
        return list(pool.map(run, jobs))


@functools.cache
def nvrtc_version() -> tuple[int, int]:
    """NVRTC's (major, minor). Raises DeviceError if it is not installed."""
    nvrtc = _nvrtc()
    try:
        result, major, minor = nvrtc.nvrtcVersion()
    # The library is looked for at the first call, and each release raises another type when it is missing.
    except Exception as error:
        raise DeviceError(f"the NVRTC library cannot be loaded ({error}): {INSTALL}") from error
    if result != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise DeviceError(f"NVRTC does not start ({result.name}): {INSTALL}")
    return int(major), int(minor)


@functools.cache
def header_directory() -> Path | None:
    """The folder that holds `cuda_fp16.h`: NVIDIA's wheels first, then CUDA_HOME, CUDA_PATH and /usr/local/cuda."""
    return next((path for path in _header_candidates() if (path / "cuda_fp16.h").is_file()), None)


def _nvrtc() -> Any:
    try:
        from cuda.bindings import nvrtc
    except ImportError as error:
        raise DeviceError(f"NVRTC is not installed: {INSTALL}") from error
    return nvrtc


def _header_candidates() -> list[Path]:
    major, _ = nvrtc_version()
    # CUDA 12 has a folder a wheel, CUDA 13 one for all; headers of another major version are the last resort.
    layouts = [f"cu{major}/include", "cuda_runtime/include"]
    return [
        *(root / layout for layout in layouts for root in wheel_folders()),
        *(home / "include" for home in (*cuda_homes(), Path("/usr/local/cuda"))),
    ]


# NVRTC puts the working folder before a relative name and the result into the line table. An absolute one keeps
# the cubin a function of its key alone.
_FOLDER = "/convgen/"

_INCLUDE = re.compile(r"^\s*#\s*include\s*<(\w+)\.h>", re.MULTILINE)


def _header_digest(source: str) -> str:
    return _digest_of(tuple(sorted(set(_INCLUDE.findall(source)))))


@functools.cache
def _digest_of(stems: tuple[str, ...]) -> str:
    if not stems:
        return ""
    directory = header_directory()
    if directory is None:
        raise DeviceError(f"CUDA's headers ({stems[0]}.h) are in no NVIDIA wheel, CUDA_HOME or CUDA_PATH: {INSTALL}")
    files = [directory / f"{stem}{suffix}" for stem in stems for suffix in (".h", ".hpp")]
    return content_key(*(file.read_bytes() for file in files if file.is_file()))


def _run_nvrtc(source: str, arch: str, options: tuple[str, ...], name: str) -> tuple[bytes, str, str]:
    nvrtc = _nvrtc()
    success, invalid = nvrtc.nvrtcResult.NVRTC_SUCCESS, nvrtc.nvrtcResult.NVRTC_ERROR_INVALID_OPTION
    arguments = [*BASE_OPTIONS, f"--gpu-architecture={_checked_arch(nvrtc, arch)}"]
    if (headers := header_directory()) is not None:
        arguments.append(f"--include-path={headers}")
    encoded = [option.encode() for option in (*arguments, *options)]
    created, program = nvrtc.nvrtcCreateProgram(source.encode(), (_FOLDER + name).encode(), 0, [], [])
    _check_machine(nvrtc, created, name)
    if created != success:
        raise CompileError(f"{name}: NVRTC cannot take the source ({created.name})")
    try:
        (result,) = nvrtc.nvrtcCompileProgram(program, len(encoded), encoded)
        log = _fetch(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program).rstrip(b"\0").decode().strip()
        log = log.replace(_FOLDER + name, name)
        _check_machine(nvrtc, result, name)
        if result == invalid:
            raise UsageError(f"options {' '.join(options)} for {arch}: {log}")
        if result != success:
            raise CompileError(f"{name} for {arch} does not compile ({result.name}):\n{_explain(log, source, name)}")
        cubin = _fetch(nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN, program)
        ptx = _fetch(nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX, program).rstrip(b"\0").decode()
    finally:
        nvrtc.nvrtcDestroyProgram(program)
    return cubin, ptx, log


def _check_machine(nvrtc: Any, result: Any, name: str) -> None:
    if result == nvrtc.nvrtcResult.NVRTC_ERROR_OUT_OF_MEMORY:
        raise DeviceError(f"{name}: NVRTC has too little memory: free some, or compile less at once")
    if result == nvrtc.nvrtcResult.NVRTC_ERROR_BUILTIN_OPERATION_FAILURE:
        raise DeviceError(f"{name}: NVRTC cannot load its own library of builtins: {INSTALL}")


def _checked_arch(nvrtc: Any, arch: str) -> str:
    _, known = nvrtc.nvrtcGetSupportedArchs()
    if re.fullmatch(r"sm_\d+[af]?", arch) and int(re.sub(r"\D", "", arch)) in known:
        return arch
    major, minor = nvrtc_version()
    raise UsageError(
        f"arch {arch!r}: NVRTC {major}.{minor} compiles for {', '.join(f'sm_{number}' for number in known)}; "
        "for a newer GPU install a newer nvidia-cuda-nvrtc"
    )


def _fetch(size_of: Any, copy: Any, program: Any) -> bytes:
    _, size = size_of(program)
    buffer = bytearray(size)
    copy(program, buffer)
    return bytes(buffer)


_STATISTICS = re.compile(r"^ptxas (info|        ).*\n?", re.MULTILINE)


def _explain(log: str, source: str, name: str, errors: int = 3, around: int = 2) -> str:
    """The log without ptxas's statistics, then the source around the first few errors."""
    lines = source.splitlines()
    numbers = [int(line) for line in re.findall(re.escape(name) + r"\((\d+)\): (?:catastrophic )?error", log)]
    excerpts = []
    for number in list(dict.fromkeys(numbers))[:errors]:
        first, last = max(1, number - around), min(len(lines), number + around)
        excerpts.append(
            "\n".join(f"{'>' if i == number else ' '}{i:5} | {lines[i - 1]}" for i in range(first, last + 1))
        )
    return "\n\n".join([_STATISTICS.sub("", log).strip(), *excerpts])


def _pack(binary: Binary) -> bytes:
    fields = {
        "arch": binary.arch,
        "log": binary.log,
        "kernels": [dataclasses.asdict(kernel) for kernel in binary.kernels],
        "key": binary.key,
        "compiler": binary.compiler,
        "seconds": binary.seconds,
        "cubin": len(binary.cubin),
    }
    return b"\0".join([json.dumps(fields).encode(), binary.cubin + binary.ptx.encode()])


def _unpack(payload: bytes) -> Binary | None:
    head, _, body = payload.partition(b"\0")
    try:
        fields = json.loads(head)
        size = fields.pop("cubin")
        kernels = tuple(KernelResources(**kernel) for kernel in fields.pop("kernels"))
        return Binary(cubin=body[:size], ptx=body[size:].decode(), kernels=kernels, cached=True, **fields)
    except (ValueError, KeyError, TypeError):
        return None  # written by a version of convgen with other fields
