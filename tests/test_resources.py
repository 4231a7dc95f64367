"""Resource numbers against NVIDIA's own tools, occupancy against NVIDIA's own calculator."""

from __future__ import annotations

import dataclasses
import itertools
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from convgen.cache import DiskCache
from convgen.compiler import Binary, compile_cuda, header_directory
from convgen.resources import KernelResources, kernel_resources, occupancy, warnings
from convgen.target import Target

pytest.importorskip("cuda.bindings.nvrtc")

HERE = Path(__file__).parent
SOURCE = (HERE / "cuda_sources" / "resources.cu").read_text(encoding="utf-8")
ARCHES = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90a", "sm_100")


@pytest.fixture(scope="module")
def binaries(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Binary]:
    cache = DiskCache(tmp_path_factory.mktemp("cache"))
    return {arch: compile_cuda(SOURCE, arch, cache=cache) for arch in ARCHES}


# --- what a kernel uses ---------------------------------------------------------------------------------


@pytest.mark.parametrize("arch", ARCHES)
def test_shared_and_constant_memory(binaries: dict[str, Binary], arch: str) -> None:
    kernels = {kernel.name: kernel for kernel in binaries[arch].kernels}
    assert kernels["static_shared"].static_shared == 256 * 4
    assert kernels["plain_half"].static_shared == 0
    assert {kernel.constant for kernel in kernels.values()} == {25 * 4}


@pytest.mark.parametrize("arch", ARCHES)
def test_a_plain_kernel_has_no_local_memory_and_no_warning(binaries: dict[str, Binary], arch: str) -> None:
    plain = binaries[arch].kernel("plain_half")
    assert (plain.stack, plain.spill_stores, plain.spill_loads, plain.local_arrays) == (0, 0, 0, 0)
    assert 0 < plain.registers < 32
    assert warnings(plain) == ()


@pytest.mark.parametrize("arch", ARCHES)
def test_an_indexed_array_is_told_from_a_spill(binaries: dict[str, Binary], arch: str) -> None:
    kernel = binaries[arch].kernel("indexed_array")
    assert (kernel.stack, kernel.local_arrays, kernel.spill_stores) == (24 * 4, 24 * 4, 0)
    assert kernel.local_array_line is not None
    line = SOURCE.splitlines()[kernel.local_array_line - 1]
    assert "sums[where[" in line
    (sentence,) = warnings(kernel)
    assert sentence.startswith("indexed_array: 96 bytes of stack")
    assert f"run-time value on line {kernel.local_array_line}" in sentence
    assert "compile-time constant" in sentence


@pytest.mark.parametrize("arch", ARCHES)
def test_a_spill_names_the_launch_bounds(binaries: dict[str, Binary], arch: str) -> None:
    kernel = binaries[arch].kernel("spilling")
    assert (kernel.max_threads, kernel.min_blocks) == (1024, 2)
    assert kernel.spill_stores > 0
    assert kernel.spill_loads > 0
    assert kernel.local_arrays == 0
    # Two blocks of 1024 threads in 65536 registers; where an SM holds fewer than 2048 threads ptxas drops the second.
    assert kernel.registers == (32 if arch in ("sm_80", "sm_90a", "sm_100") else 64)
    (sentence,) = warnings(kernel)
    assert f"__launch_bounds__(1024, 2) leaves {kernel.registers} a thread" in sentence


def test_a_spill_without_bounds_names_the_255_registers(binaries: dict[str, Binary]) -> None:
    kernel = binaries["sm_90a"].kernel("unbounded")
    assert kernel.max_threads is None
    assert kernel.spill_stores > 0
    assert "255 a thread can have" in warnings(kernel)[0]


def test_a_spill_by_option_names_the_option(tmp_path: Path) -> None:
    binary = compile_cuda(SOURCE, "sm_80", ["--maxrregcount=40"], cache=DiskCache(tmp_path))
    kernel = binary.kernel("unbounded")
    assert kernel.registers <= 40
    assert "--maxrregcount" in warnings(kernel)[0]


def test_a_spill_that_the_bounds_did_not_force_is_told_apart() -> None:
    held_back = KernelResources("k", 96, 0, 0, stack=8, spill_stores=8, spill_loads=8, max_threads=128)
    assert "kept to 96 of the 255 a thread that __launch_bounds__(128) allows" in warnings(held_back)[0]
    assert "__launch_bounds__(128, 1)" in warnings(held_back)[0]
    forced = dataclasses.replace(held_back, registers=128, max_threads=512)
    assert "__launch_bounds__(512) leaves 128 a thread" in warnings(forced)[0]


def test_a_stack_frame_of_neither_kind_is_told() -> None:
    kernel = KernelResources("k", 20, 0, 0, stack=16, spill_stores=0, spill_loads=0)
    assert "without spills or indexed arrays" in warnings(kernel)[0]


def test_logs_of_older_compilers_are_read(binaries: dict[str, Binary]) -> None:
    log = (
        "ptxas info    : 0 bytes gmem, 100 bytes cmem[3]\n"
        "ptxas info    : Compiling entry function 'old' for 'sm_80'\n"
        "ptxas info    : Function properties for old\n"
        "    16 bytes stack frame, 12 bytes spill stores, 8 bytes spill loads\n"
        "ptxas info    : Used 40 registers, 2048 bytes smem, 372 bytes cmem[0]\n"
    )
    (kernel,) = kernel_resources(log, "", binaries["sm_80"].cubin)
    assert kernel == KernelResources("old", 40, 2048, 100, 16, 12, 8)


@pytest.mark.parametrize("arch", ARCHES)
def test_numbers_agree_with_cuobjdump(binaries: dict[str, Binary], arch: str, tmp_path: Path) -> None:
    nvidia = pytest.importorskip("nvidia")
    tools = [Path(root) / "cu13" / "bin" / "cuobjdump" for root in nvidia.__path__]
    tool = next((str(path) for path in tools if path.is_file()), shutil.which("cuobjdump"))
    if tool is None:
        pytest.skip("no cuobjdump here")
    (tmp_path / "k.cubin").write_bytes(binaries[arch].cubin)
    text = subprocess.run([tool, "-res-usage", tmp_path / "k.cubin"], capture_output=True, text=True, check=True).stdout
    found = re.findall(r"Function (\w+):\s+REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)", text)
    assert len(found) == 5
    reserved = 1024 if arch in ("sm_90a", "sm_100") else 0  # the cubin counts what the driver takes there
    for name, registers, stack, shared, _ in found:
        kernel = binaries[arch].kernel(name)
        assert (kernel.registers, kernel.stack, kernel.static_shared + reserved) == (
            int(registers),
            int(stack),
            int(shared),
        )
    assert f"CONSTANT[3]:{binaries[arch].kernels[0].constant}" in text


# --- occupancy --------------------------------------------------------------------------------------------

# By hand from the programming guide's limits: (target, threads, registers, shared bytes) -> blocks an SM, limiter.
BY_HAND = [
    ("h200", 256, 32, 0, 8, "threads"),  # 2048 / 256
    ("h200", 128, 64, 0, 8, "registers"),  # 64 * 32 = 2048 a warp; 65536 / 2048 = 32 warps of 4 a block
    ("h200", 128, 65, 0, 7, "registers"),  # 65 * 32 = 2080 -> 2304 a warp: 7 warps in each quarter, 28 / 4
    ("h200", 384, 168, 0, 1, "registers"),  # 5376 a warp: 3 in each quarter, 12 warps = one block of 12
    ("h200", 128, 32, 100 << 10, 2, "shared memory"),  # 101 KB with the reserved one: 228 / 101
    ("h200", 128, 32, 227 << 10, 1, "shared memory"),
    ("h200", 32, 16, 0, 32, "blocks"),
    ("a10", 32, 16, 0, 16, "blocks"),
    ("l4", 512, 40, 0, 3, "threads"),  # 1536 / 512
    ("t4", 1024, 64, 0, 1, "threads"),
    ("t4", 64, 32, 16 << 10, 4, "shared memory"),  # 64 KB, nothing reserved
    ("a100", 1024, 255, 0, 0, "registers"),  # 32 warps * 8160 > 65536: cannot run
]


@pytest.mark.parametrize(("name", "threads", "registers", "shared", "blocks", "limiter"), BY_HAND)
def test_occupancy_by_hand(name: str, threads: int, registers: int, shared: int, blocks: int, limiter: str) -> None:
    target = Target.preset(name)
    found = occupancy(target, threads, registers, shared)
    assert (found.blocks_per_sm, found.limiter) == (blocks, limiter)
    warps = blocks * -(-threads // 32)
    assert found.warps_per_sm == warps
    assert found.fraction == pytest.approx(warps * 32 / target.max_threads_per_sm)


def test_a_block_beyond_a_limit_does_not_run() -> None:
    h200 = Target.preset("h200")
    assert occupancy(h200, 1056, 16, 0).blocks_per_sm == 0
    assert occupancy(h200, 128, 16, (227 << 10) + 1).blocks_per_sm == 0


def test_a_small_grid_is_the_limit() -> None:
    h200 = Target.preset("h200")
    assert occupancy(h200, 256, 32, 0, grid_blocks=8 * 132).limiter == "threads"
    few = occupancy(h200, 256, 32, 0, grid_blocks=132)
    assert (few.limiter, few.blocks_per_sm, few.fraction) == ("grid", 1, 0.125)


@pytest.fixture(scope="module")
def calculator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler, headers = shutil.which("g++") or shutil.which("clang++"), header_directory()
    if compiler is None or headers is None or not (headers / "cuda_occupancy.h").is_file():
        pytest.skip("needs a C++ compiler and cuda_occupancy.h")
    program = tmp_path_factory.mktemp("occupancy") / "occupancy"
    subprocess.run([compiler, HERE / "occupancy.cpp", f"-I{headers}", "-o", program], check=True)
    return program


@pytest.mark.parametrize("name", ["t4", "a100", "a10", "orin", "l4", "h200", "b200", "rtx5090"])
def test_occupancy_equals_nvidias_calculator(calculator: Path, name: str) -> None:
    t = Target.preset(name)
    major, minor = t.compute_capability
    questions = [
        (threads, registers, shared)
        for threads, registers, shared in itertools.product(
            (32, 33, 64, 96, 128, 160, 256, 320, 384, 512, 768, 1024),
            (1, 8, 16, 24, 32, 33, 40, 48, 64, 72, 80, 96, 128, 168, 200, 255),
            (0, 1, 127, 1024, 9000, 16384, 40000, 49152, 50000, 65536, 99 << 10, 100 << 10, 163 << 10, 227 << 10),
        )
        if shared <= t.shared_per_block
    ]
    limits = (major, minor, t.max_threads_per_sm, t.shared_per_sm, t.shared_per_block, t.shared_reserved, t.sm_count)
    lines = "\n".join(" ".join(map(str, (*limits, *question))) for question in questions)
    done = subprocess.run([calculator], input=lines, capture_output=True, text=True, check=True)
    expected = [int(answer) for answer in done.stdout.split()]
    # The calculator knows the block limit of each architecture by itself; ours is the target's.
    assert [occupancy(t, *question).blocks_per_sm for question in questions] == expected


def test_fewer_resources_never_lower_occupancy() -> None:
    t = Target.preset("h200")
    more = [occupancy(t, 256, registers, 0).blocks_per_sm for registers in range(1, 256)]
    assert more == sorted(more, reverse=True)
    assert dataclasses.asdict(occupancy(t, 256, 1, 0))["blocks_per_sm"] == 8
