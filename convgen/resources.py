"""What a compiled kernel uses of a GPU, what that leaves running on an SM, and a plain word when it is bad.

Registers, stack and spills come from the compiler's log, local arrays and launch bounds from the PTX, constant
memory from the cubin. Occupancy follows the formulae of NVIDIA's occupancy calculator (`cuda_occupancy.h`).
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from convgen.plan import Launch, Plan, extent_at
from convgen.problem import Sizes
from convgen.target import Target


@dataclass(frozen=True, slots=True)
class KernelResources:
    """One kernel as compiled. Registers are 32-bit and per thread; every size is in bytes."""

    name: str
    registers: int
    static_shared: int
    constant: int
    """`__constant__` arrays of the whole module; kernel parameters are not counted."""
    stack: int
    """Local memory per thread: arrays and spilled registers together."""
    spill_stores: int
    spill_loads: int
    local_arrays: int = 0
    """Bytes of arrays that the compiler could not keep in registers, per thread."""
    local_array_line: int | None = None
    """Source line that first indexes such an array by a run-time value."""
    max_threads: int | None = None
    """First argument of `__launch_bounds__`."""
    min_blocks: int | None = None
    """Second argument of `__launch_bounds__`."""


@dataclass(frozen=True, slots=True)
class Occupancy:
    """How many blocks of a kernel live on one SM at a time, and which resource sets that number."""

    blocks_per_sm: int
    warps_per_sm: int
    fraction: float
    """Warps resident of warps possible."""
    limiter: str
    """"registers", "shared memory", "threads", "blocks", or "grid" when there are not enough blocks to fill the GPU."""


@dataclass(frozen=True, slots=True)
class KernelReport:
    """One launch of a plan: the kernel's resources, its occupancy, and what deserves a warning."""

    resources: KernelResources
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    cluster: tuple[int, int, int]
    shared_bytes: int
    """Static and dynamic together, per block."""
    occupancy: Occupancy
    warnings: tuple[str, ...]


# --- from the compiler's output ---------------------------------------------------------------------------

_ENTRY = re.compile(r"Compiling entry function '(\S+)' for")
_FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers")
_CUMULATIVE_STACK = re.compile(r"(\d+) bytes cumulative stack size")
_SHARED = re.compile(r"(\d+) bytes smem")

_PTX_ENTRY = re.compile(r"^\s*(?:\.visible\s+)?\.entry\s+(\S+?)\s*\(", re.MULTILINE)
_PTX_DEPOT = re.compile(r"\.local\s+\.align\s+\d+\s+\.b8\s+__local_depot\d+\[(\d+)\]")
_PTX_MAX_THREADS = re.compile(r"\.maxntid\s+(\d+)(?:,\s*(\d+))?(?:,\s*(\d+))?")
_PTX_MIN_BLOCKS = re.compile(r"\.minnctapersm\s+(\d+)")
_PTX_LINE = re.compile(r"^\s*\.loc\s+\d+\s+(\d+)")
_PTX_LOCAL_BASE = re.compile(r"add\.[us]64\s+(%rd\d+), %SPL, \d+;")
_PTX_INDEXED = re.compile(r"add\.s64\s+%rd\d+, (%rd\d+), %rd\d+;")


def kernel_resources(log: str, ptx: str, cubin: bytes) -> tuple[KernelResources, ...]:
    """Every kernel of a compiled module, from the log of `--ptxas-options=-v`, the PTX and the cubin."""
    constant = sum(size for name, size in _sections(cubin) if name == ".nv.constant3")
    functions = dict(_ptx_functions(ptx))
    return tuple(
        _resources(name, "\n".join(lines), functions.get(name, ""), constant) for name, lines in _log_entries(log)
    )


def _log_entries(log: str) -> Iterator[tuple[str, list[str]]]:
    name: str | None = None
    lines: list[str] = []
    for line in log.splitlines():
        entry = _ENTRY.search(line)
        if entry:
            if name is not None:
                yield name, lines
            name, lines = entry.group(1), []
        lines.append(line)
    if name is not None:
        yield name, lines


def _ptx_functions(ptx: str) -> Iterator[tuple[str, str]]:
    entries = list(_PTX_ENTRY.finditer(ptx))
    bounds = [*(entry.start() for entry in entries), len(ptx)]
    for entry, start, end in zip(entries, bounds, bounds[1:], strict=False):
        yield entry.group(1), ptx[start:end]


def _resources(name: str, log: str, ptx: str, constant: int) -> KernelResources:
    # Functions that were not inlined are listed after the kernel that calls them: their spills are its own.
    frames = [tuple(map(int, frame.groups())) for frame in _FRAME.finditer(log)]
    depot = _PTX_DEPOT.search(ptx)
    stack = max([_first(_CUMULATIVE_STACK, log) or 0, *(frame[0] for frame in frames)])
    # What PTX declares local, ptxas may still put into registers: then the frame is smaller.
    local_arrays = min(stack, int(depot.group(1))) if depot else 0
    bounds = _PTX_MAX_THREADS.search(ptx)
    max_threads = None
    if bounds:
        x, y, z = (int(extent or 1) for extent in bounds.groups())
        max_threads = x * y * z
    return KernelResources(
        name=name,
        registers=_first(_USED, log) or 0,
        static_shared=_first(_SHARED, log) or 0,
        constant=constant,
        stack=stack,
        spill_stores=sum(frame[1] for frame in frames),
        spill_loads=sum(frame[2] for frame in frames),
        local_arrays=local_arrays,
        local_array_line=_indexed_line(ptx) if local_arrays else None,
        max_threads=max_threads,
        min_blocks=_first(_PTX_MIN_BLOCKS, ptx),
    )


def _indexed_line(ptx: str) -> int | None:
    bases: set[str] = set()
    line = None
    for text in ptx.splitlines():
        if location := _PTX_LINE.match(text):
            line = int(location.group(1))
        elif base := _PTX_LOCAL_BASE.search(text):
            bases.add(base.group(1))
        elif (indexed := _PTX_INDEXED.search(text)) and indexed.group(1) in bases:
            return line
    return None


def _first(pattern: re.Pattern[str], text: str) -> int | None:
    match = pattern.search(text)
    return int(match.group(1)) if match else None


def _sections(elf: bytes) -> Iterator[tuple[str, int]]:
    """(name, bytes) of the sections of a 64-bit little-endian ELF file."""
    table_at, entry_bytes, count, names_index = struct.unpack_from("<Q10xHHH", elf, 0x28)
    headers = [struct.unpack_from("<II4Q", elf, table_at + i * entry_bytes) for i in range(count)]
    names_at = headers[names_index][4]
    for name, _, _, _, _, size in headers:
        start = names_at + name
        yield elf[start : elf.index(b"\0", start)].decode(), size


# --- occupancy --------------------------------------------------------------------------------------------

_REGISTER_FILE = 65536
_MAX_REGISTERS = 255
_REGISTER_UNIT = 256
_SUBPARTITIONS = 4


def occupancy(
    target: Target, threads: int, registers: int, shared_bytes: int, grid_blocks: int | None = None
) -> Occupancy:
    """Occupancy of blocks of `threads`, each thread with `registers`, each block with `shared_bytes` in all.

    Registers are given to warps in units of 256 out of the register file's four parts; shared memory is rounded
    up to 128 bytes (256 before compute capability 8.0) after adding what the driver reserves for a block.
    `grid_blocks`, where given, is checked against what the whole GPU holds at once.
    """
    warps = -(-threads // target.warp)
    per_warp = _round_up(max(registers, 1) * target.warp, _REGISTER_UNIT)
    warps_by_registers = target.registers_per_sm // _SUBPARTITIONS // per_warp * _SUBPARTITIONS
    shared = _round_up(shared_bytes + target.shared_reserved, 128 if target.compute_capability >= (8, 0) else 256)
    limits = {
        "threads": target.max_threads_per_sm // target.warp // warps,
        "registers": warps_by_registers // warps,
        "shared memory": target.shared_per_sm // shared if shared else target.max_blocks_per_sm,
        "blocks": target.max_blocks_per_sm,
    }
    fits = (
        threads <= target.max_threads_per_block
        and shared_bytes <= target.shared_per_block
        and per_warp * warps <= target.registers_per_sm
    )
    limiter = min(limits, key=lambda name: limits[name])
    blocks = limits[limiter] if fits else 0
    if grid_blocks is not None and grid_blocks < blocks * target.sm_count:
        blocks = min(blocks, -(-grid_blocks // target.sm_count))
        limiter = "grid"
    resident = blocks * warps
    return Occupancy(blocks, resident, resident * target.warp / target.max_threads_per_sm, limiter)


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


# --- what a person wants to know -----------------------------------------------------------------------------


def report(plan: Plan, kernels: tuple[KernelResources, ...]) -> tuple[KernelReport, ...]:
    """One entry for each launch of the plan, in order, for its typical sizes."""
    found = {kernel.name: kernel for kernel in kernels}
    sizes = plan.problem.sizes
    return tuple(_report(launch, found[launch.kernel.name], plan.target, sizes) for launch in plan.launches)


def _report(launch: Launch, resources: KernelResources, target: Target, sizes: Sizes) -> KernelReport:
    x, y, z = (extent_at(extent, sizes) for extent in launch.grid)
    shared = resources.static_shared + launch.shared_bytes
    return KernelReport(
        resources=resources,
        grid=(x, y, z),
        block=launch.block,
        cluster=launch.cluster,
        shared_bytes=shared,
        occupancy=occupancy(target, launch.threads, resources.registers, shared, x * y * z),
        warnings=warnings(resources),
    )


def warnings(kernel: KernelResources) -> tuple[str, ...]:
    """A sentence for each way the kernel uses local memory: its cause and what mends it."""
    sentences = []
    if kernel.spill_stores or kernel.spill_loads:
        sentences.append(
            f"{kernel.name}: registers spill to local memory ({kernel.spill_stores} bytes of stores, "
            f"{kernel.spill_loads} bytes of loads in its code): {_register_limit(kernel)}"
        )
    if kernel.local_arrays:
        where = f" on line {kernel.local_array_line}" if kernel.local_array_line else ""
        sentences.append(
            f"{kernel.name}: {kernel.local_arrays} bytes of stack a thread: an array is indexed by a run-time value"
            f"{where} and was put into local memory; make the index a compile-time constant (unroll the loop) or "
            "shrink the array"
        )
    if kernel.stack and not sentences:
        sentences.append(
            f"{kernel.name}: {kernel.stack} bytes of stack a thread, without spills or indexed arrays: a function "
            "was not inlined or a variable's address is taken; force the inlining or keep the value in a register"
        )
    return tuple(sentences)


def _register_limit(kernel: KernelResources) -> str:
    if kernel.registers >= _MAX_REGISTERS - 1:
        return f"the kernel needs more than the {_MAX_REGISTERS} a thread can have; use a smaller tile a thread"
    if kernel.max_threads is None:
        return (
            f"--maxrregcount, or a function that was not inlined, leaves {kernel.registers} a thread; raise the cap, "
            "force the inlining or use a smaller tile a thread"
        )
    blocks = kernel.min_blocks or 1
    allowed = min(_REGISTER_FILE // (kernel.max_threads * blocks) // 8 * 8, _MAX_REGISTERS)
    bounds = str(kernel.max_threads) + (f", {kernel.min_blocks}" if kernel.min_blocks else "")
    if kernel.registers < allowed - 8:
        # Seen with NVRTC 13: without the second argument ptxas holds back, with it the same kernel does not spill.
        return (
            f"the compiler kept to {kernel.registers} of the {allowed} a thread that __launch_bounds__({bounds}) "
            f"allows; state the blocks an SM too, __launch_bounds__({kernel.max_threads}, {blocks}), or use a smaller "
            "tile a thread"
        )
    mend = "fewer blocks an SM, " if blocks > 1 else ""
    return (
        f"__launch_bounds__({bounds}) leaves {kernel.registers} a thread; ask for {mend}fewer threads a block "
        "or a smaller tile a thread"
    )
