"""Kernels built for the CPU, and launches of them."""

from __future__ import annotations

import _ctypes
import contextlib
import ctypes
import dataclasses
import enum
import functools
import math
import os
import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from convgen.errors import SimulatorFault, UsageError
from convgen.simulator import abi, tensor_map
from convgen.simulator.findings import Findings
from convgen.simulator.lines import LineTable
from convgen.simulator.memory import Block, Memory
from convgen.simulator.regions import regions
from convgen.simulator.report import Report
from convgen.simulator.toolchain import build_library, working_folder
from convgen.simulator.units import KernelLike, Unit, constants_name, entry_name, translation_unit
from convgen.tensor_map import Im2colMap, TensorMap

MAX_FAULTS = 256
MAX_SITES = 8192
MAX_THREADS = 1024
MAX_SHARED_BYTES = 227 * 1024
DEFAULT_TIMEOUT = "600"
MAX_TIMEOUT = 10_000_000
CANCEL_SECONDS = 0.01
"""Between one request to a launch to end and the next."""


class Copies(enum.Enum):
    """When an asynchronous copy moves its bytes: as soon as it is issued, or not before it is waited for."""

    EARLY = "early"
    LATE = "late"


class Mode(enum.Enum):
    """FAST runs at full speed; CHECK also looks for faults; COUNT also counts transactions per line."""

    FAST = "fast"
    CHECK = "check"
    COUNT = "count"


@dataclass(frozen=True)
class Texture:
    """A 2-D texture over a buffer of fp32 (or fp16) elements: `width` x `height`, rows `pitch` bytes apart."""

    block: Block
    width: int
    height: int
    pitch: int
    is_half: bool = False


@dataclass(frozen=True)
class BoundTensorMap:
    """A tensor map over a buffer."""

    block: Block
    map: TensorMap | Im2colMap


Argument = Block | Texture | BoundTensorMap | int | float

_SCALARS: dict[str, type[ctypes._SimpleCData]] = {  # type: ignore[type-arg]
    "int": ctypes.c_int32,
    "unsigned": ctypes.c_uint32,
    "unsigned int": ctypes.c_uint32,
    "long long": ctypes.c_int64,
    "unsigned long long": ctypes.c_uint64,
    "size_t": ctypes.c_uint64,
    "float": ctypes.c_float,
}


def build(units: Sequence[Unit], mode: Mode) -> Library:
    """Build the units into one library, or take it from the cache.

    Raises CompileError with the compiler's log, DeviceError if the machine has no compiler, or too little memory or
    space for it.
    """
    return Library(build_library(translation_unit(units), check=mode is not Mode.FAST), tuple(units), mode)


class Library:
    """A loaded library of kernels. One launch at a time; several threads take turns outside."""

    def __init__(self, image: bytes, units: tuple[Unit, ...], mode: Mode) -> None:
        self.units = units
        self.mode = mode
        self._dll = _load(image)
        self._turn = threading.Lock()
        self._lines = functools.cache(lambda: LineTable(image))
        if self._dll.convgen_sim_launch_bytes() != ctypes.sizeof(abi.Launch):
            raise AssertionError("abi.py and launch.h differ")
        self.close = weakref.finalize(self, _ctypes.dlclose, self._dll._handle)

    def symbol(self, unit: int, name: str) -> tuple[int, int]:
        """Address and size in bytes of a unit's `__constant__` array. Raises KeyError if it has no such array."""
        names = self.units[unit].constants
        if name not in names:
            raise KeyError(f"{name}: {self.units[unit].label} has the __constant__ arrays {', '.join(names) or 'none'}")
        row = self._constants(unit)[names.index(name)]
        return row.base, row.bytes

    def launch(
        self,
        unit: int,
        kernel: KernelLike,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        shared_bytes: int,
        arguments: Sequence[Argument],
        memory: Memory,
        *,
        cluster: tuple[int, int, int] = (1, 1, 1),
        is_early: bool = False,
        blocks: Sequence[int] | None = None,
        workers: int | None = None,
        copies: Copies = Copies.LATE,
    ) -> Report:
        """Run a kernel, all of its grid or the blocks of these linear indices and those of their clusters.

        The blocks of a cluster run at the same time. `is_early`: it may begin before the launch before it has ended;
        what it touches too early is a fault. `workers` OS threads share the clusters (default: one a core).
        Faults are reported, not raised; but a launch that no GPU would accept raises SimulatorFault. A block that takes
        longer than `CONVGEN_SIM_TIMEOUT` seconds of CPU time (default 600; 0: no limit) is a fault and ends the launch;
        UsageError if that is no such number. In the main thread, what a signal's handler raises ends the launch too.
        """
        _check_limits(kernel, grid, block, cluster, shared_bytes, arguments)
        memory.begin_launch(is_early)
        textures = [a for a in arguments if isinstance(a, Texture)]
        values = [
            _marshal(param.ctype, argument, textures) for param, argument in zip(kernel.params, arguments, strict=True)
        ]
        pointers = (ctypes.c_void_p * max(1, len(values)))(*(ctypes.addressof(v) for v in values))
        count = self.mode is Mode.COUNT
        timeout = launch_timeout()
        buffers = memory.table(count=count)
        texture_table = (abi.Texture * max(1, len(textures)))(
            *(abi.Texture(t.block.address, t.pitch, t.width, t.height, t.is_half, t.block.index) for t in textures)
        )
        constants = self._constants(unit)
        begin, end = self._constants_range()
        faults = (abi.Fault * MAX_FAULTS)()
        sites = (abi.Site * (MAX_SITES if count else 1))()
        mbarriers = (abi.MbarrierState * (abi.MAX_MBARRIERS * abi.MAX_CLUSTER))()
        mbarriers_taken = ctypes.c_uint32(0)
        chosen = None if blocks is None else _clusters_of(blocks, grid, cluster)
        total, size = math.prod(grid), math.prod(cluster)
        clusters = total // size if chosen is None else len(chosen)
        entry = getattr(self._dll, entry_name(unit, kernel.name))
        launch = abi.Launch(
            entry=ctypes.cast(entry, ctypes.c_void_p),
            arguments=ctypes.addressof(pointers),
            grid=abi.Index3(*grid),
            block=abi.Index3(*block),
            cluster=abi.Index3(*cluster),
            shared_bytes=shared_bytes,
            check=self.mode is not Mode.FAST,
            count=count,
            workers=min(workers or _cores(), clusters, abi.MAX_WORKERS),
            late_copies=copies is Copies.LATE,
            timeout_ms=math.ceil(timeout * 1000),
            clusters=None if chosen is None else chosen.ctypes.data,
            cluster_count=clusters,
            arena_base=memory.base,
            buffers=ctypes.addressof(buffers),
            buffer_count=len(memory.blocks),
            constants=ctypes.addressof(constants),
            constant_count=len(self.units[unit].constants),
            constants_begin=begin,
            constants_end=end,
            textures=ctypes.addressof(texture_table),
            texture_count=len(textures),
            faults=ctypes.addressof(faults),
            fault_capacity=MAX_FAULTS,
            sites=ctypes.addressof(sites),
            site_capacity=MAX_SITES if count else 0,
            mbarriers=ctypes.addressof(mbarriers),
            mbarriers_taken=ctypes.addressof(mbarriers_taken),
        )
        with self._turn, regions(launch.workers * size) as memory_of_workers:
            launch.regions = ctypes.addressof(memory_of_workers)
            self._run(launch)
        memory.end_launch(buffers, bool(launch.waited))
        footprint = {b.name: b.footprint() for b in memory.blocks} if count else {}
        names = tuple(b.name for b in memory.blocks)
        stuck = [b for b in mbarriers if b.expected]
        findings = Findings(self._lines, self.units[unit], kernel.name, names, shared_bytes, timeout, size, stuck)
        report = findings.report(launch, faults[: launch.fault_count], sites[: launch.site_count], total)
        return dataclasses.replace(report, counters=dataclasses.replace(report.counters, footprint=footprint))

    def _run(self, launch: abi.Launch) -> None:
        """In a thread of its own: a signal's handler does not run before the call that it interrupts returns."""
        ended = threading.Event()  # Thread.join takes a thread that it is called away from for ended
        failed: list[int] = []

        def run() -> None:
            failed.append(self._dll.convgen_sim_launch(ctypes.byref(launch)))
            ended.set()

        threading.Thread(target=run, daemon=True).start()
        try:
            ended.wait()
        except BaseException:
            while not ended.wait(CANCEL_SECONDS):
                self._dll.convgen_sim_cancel()
            raise
        if failed != [0]:
            raise MemoryError("the simulator could not map the clocks of its threads")

    def _constants(self, unit: int) -> ctypes.Array[abi.ConstantArray]:
        size = max(1, len(self.units[unit].constants))
        return (abi.ConstantArray * size).in_dll(self._dll, constants_name(unit))

    def _constants_range(self) -> tuple[int, int]:
        arrays = [row for unit in range(len(self.units)) for row in self._constants(unit) if row.bytes]
        if not arrays:
            return 0, 0
        return min(a.base for a in arrays), max((a.base + a.bytes + 4096) & -4096 for a in arrays)


def _clusters_of(
    blocks: Sequence[int], grid: tuple[int, int, int], cluster: tuple[int, int, int]
) -> npt.NDArray[np.uint64]:
    """Linear indices of the clusters that the blocks of these linear indices belong to."""
    x, y, z = cluster
    at = np.unravel_index(np.asarray(blocks, np.int64), grid[::-1])
    counts = (grid[2] // z, grid[1] // y, grid[0] // x)
    linear = np.ravel_multi_index((at[0] // z, at[1] // y, at[2] // x), counts)
    return np.ascontiguousarray(np.unique(linear), np.uint64)


def _check_limits(
    kernel: KernelLike,
    grid: tuple[int, int, int],
    block: tuple[int, int, int],
    cluster: tuple[int, int, int],
    shared_bytes: int,
    arguments: Sequence[Argument],
) -> None:
    threads = block[0] * block[1] * block[2]
    if not 1 <= threads <= MAX_THREADS or block[2] > 64:
        raise SimulatorFault(f"{kernel.name}: block {block}, expected 1 to {MAX_THREADS} threads, z up to 64")
    if not (1 <= grid[0] < 2**31 and 1 <= grid[1] < 65536 and 1 <= grid[2] < 65536):
        raise SimulatorFault(f"{kernel.name}: grid {grid}, expected x from 1 to 2^31-1, y and z from 1 to 65535")
    if min(cluster) < 1 or math.prod(cluster) > abi.MAX_CLUSTER:
        raise SimulatorFault(f"{kernel.name}: cluster {cluster}, expected 1 to {abi.MAX_CLUSTER} blocks")
    if any(blocks % extent for blocks, extent in zip(grid, cluster, strict=True)):
        raise SimulatorFault(f"{kernel.name}: grid {grid}, expected a multiple of the cluster, {cluster}")
    if not 0 <= shared_bytes <= MAX_SHARED_BYTES:
        raise SimulatorFault(f"{kernel.name}: {shared_bytes} bytes of shared memory, expected up to {MAX_SHARED_BYTES}")
    if len(arguments) != len(kernel.params):
        raise SimulatorFault(f"{kernel.name}: {len(arguments)} arguments, expected {len(kernel.params)}")


def _aligned(bits: bytes, alignment: int) -> ctypes.Array[ctypes.c_uint8]:
    """The bytes in memory of their own, at a multiple of `alignment`."""
    room = (ctypes.c_uint8 * (len(bits) + alignment))()
    place = (ctypes.c_uint8 * len(bits)).from_buffer(room, -ctypes.addressof(room) % alignment)
    place[:] = list(bits)
    return place


def _marshal(
    ctype: str, argument: Argument, textures: list[Texture]
) -> ctypes._SimpleCData | ctypes.Array[ctypes.c_uint8]:  # type: ignore[type-arg]
    if isinstance(argument, BoundTensorMap):
        return _aligned(tensor_map.encode(argument.map, argument.block.address), tensor_map.ALIGNMENT)
    if isinstance(argument, Block):
        return ctypes.c_void_p(argument.address)
    if isinstance(argument, Texture):
        return ctypes.c_uint64(textures.index(argument) + 1)
    plain = ctype.removeprefix("const ").strip()
    if plain not in _SCALARS:
        raise UsageError(f"a parameter of type {ctype} cannot take the value {argument}")
    return _SCALARS[plain](argument)


def launch_timeout() -> float:
    """Seconds of CPU time for a block, by `CONVGEN_SIM_TIMEOUT`; see `Library.launch`. Raises UsageError."""
    text = os.environ.get("CONVGEN_SIM_TIMEOUT") or DEFAULT_TIMEOUT
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= MAX_TIMEOUT:
        raise UsageError(f"CONVGEN_SIM_TIMEOUT={text!r}: expected seconds from 0 (no limit) to {MAX_TIMEOUT}")
    return seconds


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def _load(image: bytes) -> ctypes.CDLL:
    with contextlib.suppress(OSError):  # where it is no library of its own, it is part of libc
        ctypes.CDLL("libm.so.6", ctypes.RTLD_GLOBAL)
    with working_folder() as folder:  # loaded, it needs its name no more
        file = folder / "kernels.so"
        file.write_bytes(image)
        return ctypes.CDLL(str(file))
