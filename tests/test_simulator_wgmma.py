"""wgmma on the simulator: products as NumPy has them from tiles in every layout, planted faults found and named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from device_cases import fault_at, library, marked, unit
from test_simulator import compiler as compiler  # a fixture
from test_simulator import launch

from convgen.compiler import compile_cuda
from convgen.simulator import Copies, FaultKind, Mode, Report

FILE = "wgmmas.cu.j2"
HEADERS = ("shared", "shared_address", "mbarrier", "fence", "wgmma_descriptor", "wgmma_group", "wgmma")
SHARED, B_AT = 65536, 32768
ROWS = 64

Matrix = npt.NDArray[np.int64]
Place = Callable[[int, int], int]
"""Byte of shared memory before the swizzle, of a row and a byte of k (or of a k and a byte of m, transposed)."""


def constants(kind: str, n: int) -> tuple[tuple[str, Any], ...]:
    return (("wgmma_type", kind), ("wgmma_extents", (n,)))


def bits_of(kind: str, values: Matrix) -> npt.NDArray[Any]:
    """The type's bit patterns of small integers."""
    if kind == "fp16":
        return values.astype(np.float16).view(np.uint16)
    if kind == "bf16":
        return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    if kind == "tf32":
        return values.astype(np.float32).view(np.uint32)
    if kind == "fp8":
        return np.array([fp8_bits(value) for value in values.ravel().tolist()], np.uint8).reshape(values.shape)
    return values.astype(np.uint8)


def fp8_bits(value: int) -> int:
    """e4m3 of an integer of at most 4 bits."""
    if value == 0:
        return 0
    exponent = abs(value).bit_length() - 1
    return (value < 0) << 7 | (exponent + 7) << 3 | (abs(value) << 3 >> exponent) & 7


def swizzled(memory: npt.NDArray[np.uint8], width: int) -> npt.NDArray[np.uint8]:
    """A piece of 16 bytes in column c of the 128-byte line l lies in column c ^ l % (width / 16)."""
    pieces = memory.reshape(-1, 8, 16)
    out = np.empty_like(pieces)
    for line in range(len(pieces)):
        for column in range(8):
            out[line, column ^ line % max(width // 16, 1)] = pieces[line, column]
    return out.ravel()


def placed(rows: npt.NDArray[np.uint8], place: Place, size: int) -> npt.NDArray[np.uint8]:
    memory = np.zeros(size, np.uint8)
    for i in range(rows.shape[0]):
        for j in range(rows.shape[1]):
            memory[place(i, j)] = rows[i, j]
    return memory


def along_k(start: int, leading: int, stride: int, width: int) -> Place:
    if width:
        return lambda m, byte: start + m // 8 * stride + m % 8 * width + byte
    return lambda m, byte: start + m // 8 * stride + m % 8 * 16 + byte // 16 * leading + byte % 16


def along_m(start: int, leading: int, stride: int, width: int) -> Place:
    if width:
        return lambda k, byte: start + byte // width * leading + k // 8 * stride + k % 8 * width + byte % width
    return lambda k, byte: start + byte // 16 * stride + k // 8 * leading + k % 8 * 16 + byte % 16


def as_bytes(bits: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    return np.ascontiguousarray(bits).view(np.uint8)


def result(y: npt.NDArray[Any], n: int) -> npt.NDArray[Any]:
    """D from the threads' registers, by the PTX ISA's figure for wgmma.m64nN."""
    d = np.zeros((ROWS, n), y.dtype)
    for thread, registers in enumerate(y.reshape(128, n // 2)):
        warp, group, in_group = thread // 32, thread % 32 // 4, thread % 4
        for i, value in enumerate(registers):
            d[16 * warp + group + (8 if i & 2 else 0), i // 4 * 8 + in_group * 2 + (i & 1)] = value
    return d


def multiply(
    kernel: str,
    kind: str,
    a: Matrix,
    b: Matrix,
    a_at: tuple[int, int, int],
    b_at: tuple[int, int, int],
    compiler: str,
    mode: Mode = Mode.CHECK,
) -> tuple[Report, npt.NDArray[Any]]:
    """a (64 x k) times b (n x k), transposed, from tiles that begin and lie as told: start, leading, stride."""
    n = len(b)
    width = int(kernel.split("_")[-1]) if not kernel.endswith("none") else 0
    memory = []
    for matrix, at, transposed in ((a, a_at, kernel[0] in "ab"), (b, b_at, kernel.startswith(("b_", "both")))):
        transposed = transposed and not (kernel.startswith("b_") and matrix is a)
        bits = bits_of(kind, matrix.T if transposed else matrix)
        place = (along_m if transposed else along_k)(*at, width)
        memory.append(swizzled(placed(as_bytes(bits), place, B_AT), width))
    itemsize = bits_of(kind, a).itemsize
    steps = a.shape[1] * itemsize // 32
    sums = np.int32 if kind in ("int8", "uint8") else np.float32
    x = np.concatenate(memory)
    arguments = {"x": x, "y": (ROWS * n, sums), "bytes": len(x), "steps": steps}
    arguments |= dict(zip(("as", "al", "ag", "bs", "bl", "bg"), (*a_at, *b_at), strict=True))
    built = library(FILE, HEADERS, mode, compiler, constants(kind, n))
    report, out = launch(built, kernel, (1,), (128,), arguments, shared=SHARED)
    return report, result(out["y"], n)


def integers(rows: int, k: int, seed: int, low: int = -4, high: int = 5) -> Matrix:
    return np.random.default_rng(seed).integers(low, high, (rows, k))


K_OF_32_BYTES = {"fp16": 16, "bf16": 16, "tf32": 8, "int8": 32, "uint8": 32, "fp8": 32}


@pytest.mark.parametrize("mode", [Mode.FAST, Mode.CHECK])
@pytest.mark.parametrize("n", [8, 64])
@pytest.mark.parametrize("kind", K_OF_32_BYTES)
def test_products_of_integers_are_exact(kind: str, n: int, mode: Mode, compiler: str) -> None:
    k = 4 * K_OF_32_BYTES[kind]
    a, b = integers(ROWS, k, 1, *((0, 5) if kind == "uint8" else ())), integers(n, k, 2)
    report, got = multiply("swizzle_128", kind, a, b, (0, 0, 1024), (0, 0, 1024), compiler, mode)
    np.testing.assert_array_equal(got, a @ b.T)
    assert report.faults == ()
    if mode is Mode.CHECK:
        assert report.counters.flops == 2 * ROWS * n * k


LAYOUTS = [
    ("swizzle_64", 32, (0, 0, 512), (0, 0, 512)),
    ("swizzle_32", 16, (0, 0, 256), (0, 0, 256)),
    ("swizzle_none", 16, (0, 128, 256), (0, 1024, 128)),
    ("a_128", 16, (0, 2048, 1024), (0, 0, 1024)),
    ("b_128", 16, (0, 0, 1024), (0, 2048, 1024)),
    ("both_128", 16, (2048, 2048, 1024), (0, 2048, 1024)),
    ("both_64", 16, (0, 1024, 512), (1024, 4096, 2048)),
    ("both_32", 16, (0, 512, 256), (0, 512, 256)),
    ("both_none", 16, (0, 1024, 128), (0, 128, 256)),
]


@pytest.mark.parametrize(("kernel", "k", "a_at", "b_at"), LAYOUTS, ids=[layout[0] for layout in LAYOUTS])
def test_tiles_in_every_layout(
    kernel: str, k: int, a_at: tuple[int, int, int], b_at: tuple[int, int, int], compiler: str
) -> None:
    a, b = integers(ROWS, k, 3), integers(64, k, 4)
    report, got = multiply(kernel, "bf16", a, b, a_at, b_at, compiler)
    np.testing.assert_array_equal(got, a @ b.T)
    assert report.faults == ()


@pytest.mark.parametrize("width", [10, 11, 16])
@pytest.mark.parametrize("shift", [0, 1, 2, 12, 23])
def test_a_tile_may_begin_at_any_pixel_of_a_halo(shift: int, width: int, compiler: str) -> None:
    """Groups of 8 pixels of 128 bytes, a halo's width apart, from any pixel on: what an H200 was seen to do."""
    a, b = integers(ROWS, 64, 5), integers(8, 64, 6)
    report, got = multiply("swizzle_128", "bf16", a, b, (128 * shift, 0, 128 * width), (0, 0, 1024), compiler)
    np.testing.assert_array_equal(got, a @ b.T)
    assert report.faults == ()


@pytest.mark.parametrize("kind", K_OF_32_BYTES)
def test_a_comes_from_registers(kind: str, compiler: str) -> None:
    k, n = K_OF_32_BYTES[kind], 8
    a, b = integers(ROWS, k, 7, *((0, 5) if kind == "uint8" else ())), integers(n, k, 8)
    bits = bits_of(kind, a)
    e = 4 // bits.itemsize
    fragments = np.zeros((128, 4, e), bits.dtype)
    for thread in range(128):
        row, in_group = thread // 32 * 16 + thread % 32 // 4, thread % 4
        for i in range(4):
            first = (in_group + 4 * (i // 2)) * e
            fragments[thread, i] = bits[row + 8 * (i % 2), first : first + e]
    x = np.zeros(SHARED, np.uint8)
    tile = np.zeros((n, 128), np.uint8)
    tile[:, :32] = as_bytes(bits_of(kind, b))
    x[B_AT : B_AT + 1024] = swizzled(tile.ravel(), 128)
    sums = np.int32 if kind in ("int8", "uint8") else np.float32
    arguments = {"x": x, "a": fragments.view(np.uint32), "y": (ROWS * n, sums), "bytes": len(x)}
    built = library(FILE, HEADERS, Mode.CHECK, compiler, constants(kind, n))
    report, out = launch(built, "from_registers", (1,), (128,), arguments, shared=SHARED)
    np.testing.assert_array_equal(result(out["y"], n), a @ b.T)
    assert report.faults == ()


FAULT_HEADERS = (*HEADERS, "cp_async_bulk")
FAULT_CONSTANTS = constants("bf16", 8)


def run_fault(name: str, threads: int, compiler: str, copies: Copies = Copies.LATE) -> tuple[Report, npt.NDArray[Any]]:
    built = library("wgmma_faults.cu", FAULT_HEADERS, Mode.CHECK, compiler, FAULT_CONSTANTS)
    bf16 = np.repeat(np.array([1, 2, 4], np.float32), 512).view(np.uint32) >> 16
    arguments = {"x": bf16.astype(np.uint16).view(np.float32), "y": (512, np.float32)}
    report, out = launch(built, name, (1,), (threads,), arguments, shared=16384 + 16, copies=copies)
    return report, out["y"]


FAULTS = [
    (
        "no_proxy_fence",
        "missing",
        FaultKind.PROXY,
        "read of 16 bytes at shared memory offset 0 of 16400 by ",
    ),
    ("no_wgmma_fence", "illegal", FaultKind.WGMMA, "no wgmma_fence between"),
    ("reads_too_early", "use", FaultKind.IN_FLIGHT, "an accumulator is used while a wgmma may"),
    (
        "waits_for_the_group_before",
        "use",
        FaultKind.IN_FLIGHT,
        "an accumulator is used while a wgmma may",
    ),
    ("overwrites_registers", "use", FaultKind.IN_FLIGHT, "an operand in registers is written while a wgmma may still"),
    ("overwrites_its_tile", "race", FaultKind.RACE, "write of 4 bytes at shared memory offset 0 of 16400, which wgmma"),
    ("never_waits", "illegal", FaultKind.WGMMA, "the block ends while this wgmma is under way"),
    ("a_base_offset", "illegal", FaultKind.WGMMA, "a base offset of 1 in the descriptor"),
    ("warps_differ", "illegal", FaultKind.WGMMA, "the threads of the warpgroup give different descriptors"),
    ("two_instructions", "divergent", FaultKind.DIVERGENT_WARP, "threads come to it at another place"),
    ("one_warp_leaves", "deadlock", FaultKind.DEADLOCK, "waits for the other threads of its warpgroup"),
    ("one_warp_waits_elsewhere", "deadlock", FaultKind.DEADLOCK, "waits for the other threads of its warpgroup"),
]


@pytest.mark.parametrize(("name", "mark", "kind", "detail"), FAULTS, ids=[fault[0] for fault in FAULTS])
def test_planted_faults_are_found_and_named(name: str, mark: str, kind: FaultKind, detail: str, compiler: str) -> None:
    report, _ = run_fault(name, 128, compiler)
    line = marked(unit("wgmma_faults.cu", FAULT_HEADERS, FAULT_CONSTANTS), name, f"MARK {mark}")
    assert fault_at(report, kind, line).detail.startswith(detail)


def test_the_fence_may_be_the_readers(compiler: str) -> None:
    report, got = run_fault("fence_behind_the_barrier", 128, compiler)
    np.testing.assert_array_equal(got, np.full(512, 16))
    assert report.faults == ()


@pytest.mark.parametrize("copies", Copies)
def test_a_tile_is_brought_again_when_its_wgmma_has_ended(copies: Copies, compiler: str) -> None:
    report, got = run_fault("released_in_time", 256, compiler, copies)
    np.testing.assert_array_equal(got, np.full(512, 16 * (1 + 2 + 4)))
    assert report.faults == ()


@pytest.mark.parametrize("copies", Copies)
def test_an_early_release_is_found(copies: Copies, compiler: str) -> None:
    report, _ = run_fault("released_too_early", 256, compiler, copies)
    line = marked(unit("wgmma_faults.cu", FAULT_HEADERS, FAULT_CONSTANTS), "ring", "REFILL")
    assert "which wgmma of warpgroup 0 may still read" in fault_at(report, FaultKind.RACE, line).detail


@pytest.mark.parametrize("kind", K_OF_32_BYTES)
def test_the_wrappers_compile(kind: str) -> None:
    binary = compile_cuda(unit(FILE, HEADERS, constants(kind, 64)).source, "sm_90a")
    types = {"fp16": "f32.f16.f16", "bf16": "f32.bf16.bf16", "tf32": "f32.tf32.tf32", "fp8": "f32.e4m3.e4m3"}
    types |= {"int8": "s32.s8.s8", "uint8": "s32.u8.s8"}
    assert f"wgmma.mma_async.sync.aligned.m64n64k{K_OF_32_BYTES[kind]}.{types[kind]}" in binary.ptx
    assert all(kernel.spill_stores == 0 for kernel in binary.kernels)
