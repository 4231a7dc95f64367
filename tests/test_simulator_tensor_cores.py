"""mma.sync, ldmatrix and cp.async on the simulator: right answers, planted faults found and named, counters."""

from __future__ import annotations

import functools
import re
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from test_simulator import CASES, Kernel, Param, launch
from test_simulator import compiler as compiler  # a fixture

from convgen.compiler import compile_cuda
from convgen.render import template_root
from convgen.simulator import Copies, FaultKind, Library, Mode, Report, Unit, build

HEADERS = ("shared", "mma", "ldmatrix", "cp_async")

Matrix = npt.NDArray[np.float64]


@functools.cache
def unit(file: str) -> Unit:
    """A case behind the device headers it uses."""
    devices = "".join((template_root() / "device" / f"{name}.cuh").read_text() for name in HEADERS)
    source = devices + (CASES / file).read_text()
    found = re.findall(r'extern "C" __global__ void (\w+)\((.*?)\)', source)
    kernels = tuple(
        Kernel(name, tuple(Param(n, t.strip()) for t, n in re.findall(r"(.*?\W)(\w+)(?:,|$)", parameters)))
        for name, parameters in found
    )
    return Unit(source, kernels, file)


@functools.lru_cache(maxsize=32)
def library(file: str, mode: Mode, compiler: str) -> Library:
    return build([unit(file)], mode)


def marked(file: str, kernel: str, mark: str) -> int:
    lines = unit(file).source.splitlines()
    start = next(i for i, line in enumerate(lines) if f" {kernel}(" in line)
    return next(i + 1 for i in range(start, len(lines)) if f"// {mark}" in lines[i])


# --- mma ----------------------------------------------------------------------------------------------------------


def a_place(lane: int, i: int, k: int) -> tuple[int, int]:
    """Row and k of element i of a lane's A fragment, from the tables of the PTX ISA for m16n8k{k}."""
    group, in_group = lane >> 2, lane % 4
    if k == 8:
        return (group if i in (0, 2) else group + 8), (in_group if i < 2 else in_group + 4)
    if k == 16:
        return (group if 0 <= i < 2 or 4 <= i < 6 else group + 8), in_group * 2 + (i & 1) + (8 if i >= 4 else 0)
    return (group if 0 <= i < 4 or 8 <= i < 12 else group + 8), in_group * 4 + (i & 3) + (16 if i >= 8 else 0)


def b_place(lane: int, i: int, k: int) -> tuple[int, int]:
    """k and column of element i of a lane's B fragment."""
    group, in_group = lane >> 2, lane % 4
    if k == 8:
        return in_group + 4 * i, group
    if k == 16:
        return in_group * 2 + (i & 1) + (8 if i >= 2 else 0), group
    return in_group * 4 + (i & 3) + (16 if i >= 4 else 0), group


def d_place(lane: int, i: int) -> tuple[int, int]:
    return (lane >> 2) + (0 if i < 2 else 8), lane % 4 * 2 + (i & 1)


def bits_of(kernel: str, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The operand type's bit patterns of values it can hold."""
    if kernel == "mma_fp16":
        return values.astype(np.float16).view(np.uint16)
    if kernel == "mma_bf16":
        return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    if kernel == "mma_tf32":
        return values.astype(np.float32).view(np.uint32)
    return values.astype(np.int64).astype(np.uint8)


def multiply(
    kernel: str, a: npt.NDArray[Any], b: npt.NDArray[Any], d: npt.NDArray[Any], compiler: str, mode: Mode = Mode.CHECK
) -> tuple[Report, npt.NDArray[Any]]:
    """d + a * b by one instruction."""
    k = a.shape[1]
    a_bits, b_bits = bits_of(kernel, a), bits_of(kernel, b)
    fragments = [
        np.array([[bits[place(lane, i, k)] for i in range(count * k // 8)] for lane in range(32)]).view(np.uint32)
        for bits, place, count in ((a_bits, a_place, 4), (b_bits, b_place, 2))
    ]
    sums = np.array([[d[d_place(lane, i)] for i in range(4)] for lane in range(32)]).ravel()
    arguments = {"a": fragments[0], "b": fragments[1], "d": sums}
    report, out = launch(
        library("tensor_cores.cu", mode, compiler), kernel, (1,), (32,), arguments, filled=("d",), shared=0
    )
    got = np.zeros_like(d)
    for lane in range(32):
        for i in range(4):
            got[d_place(lane, i)] = out["d"].reshape(32, 4)[lane, i]
    return report, got


TYPES = [("mma_fp16", 16), ("mma_bf16", 16), ("mma_tf32", 8)]


@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize(("kernel", "k"), [*TYPES, ("mma_int8", 32), ("mma_uint8", 32)])
def test_products_of_integers_are_exact(kernel: str, k: int, mode: Mode, compiler: str) -> None:
    rng = np.random.default_rng(1)
    integer = k == 32
    low, high = (-128, 128) if integer else (-60, 60)
    a = rng.integers(*((0, 256) if kernel == "mma_uint8" else (low, high)), (16, k))
    b = rng.integers(low, high, (k, 8))
    d = rng.integers(-1000, 1000, (16, 8)).astype(np.int32 if integer else np.float32)
    report, got = multiply(kernel, a, b, d, compiler, mode)
    np.testing.assert_array_equal(got, d + a @ b)
    assert report.faults == ()
    if mode is not Mode.FAST:
        assert report.counters.flops == 2 * 16 * 8 * k


@pytest.mark.parametrize(("kernel", "k"), TYPES)
@pytest.mark.parametrize("positive", [False, True])
def test_a_step_errs_by_the_stated_unit(kernel: str, k: int, positive: bool, compiler: str) -> None:
    """2^-22 of the sum of magnitudes a step, the unit that the error bounds of tensor core kernels count in."""
    rng = np.random.default_rng(2)
    worst = 0.0
    for _ in range(20):
        a, b = (rng.standard_normal(shape).astype(np.float16).astype(np.float32) for shape in ((16, k), (k, 8)))
        a, b = (bits_to_float(kernel, bits_of(kernel, values)) for values in (a, b))
        d = rng.standard_normal((16, 8)).astype(np.float32)
        if positive:
            a, b, d = abs(a), abs(b), abs(d)
        _, got = multiply(kernel, a, b, d, compiler)
        exact = d.astype(np.float64) + a.astype(np.float64) @ b.astype(np.float64)
        size = abs(d).astype(np.float64) + abs(a).astype(np.float64) @ abs(b).astype(np.float64)
        worst = max(worst, float((abs(got - exact) / size).max()))
    assert 0 < worst <= 2.0**-22


def bits_to_float(kernel: str, bits: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    if kernel == "mma_fp16":
        return bits.view(np.float16).astype(np.float32)
    if kernel == "mma_bf16":
        return (bits.astype(np.uint32) << 16).view(np.float32)
    return (bits & np.uint32(0xFFFFE000)).view(np.float32)


@pytest.mark.parametrize(
    ("start", "product", "expected"),
    [
        (1.0, 2.0**-25, 1.0 + 2.0**-21),  # sixteen of the smallest that a product is cut to
        (1.0, 2.0**-26, 1.0),  # cut one by one, they are nothing
        (1.0, -(2.0**-25), 1.0 - 2.0**-21),
        (0.0, 2.0**-24, 2.0**-20),
        (np.inf, 1.0, np.inf),
        (np.nan, 1.0, np.nan),
        (2.0**24, 1.0, 2.0**24 + 16),
    ],
)
def test_sums_are_cut_as_tensor_cores_cut_them(start: float, product: float, expected: float, compiler: str) -> None:
    root = 2.0 ** np.floor(np.log2(abs(product)) / 2)
    a, b = np.full((16, 16), root), np.full((16, 8), product / root)
    _, got = multiply("mma_fp16", a, b, np.full((16, 8), start, np.float32), compiler)
    np.testing.assert_array_equal(got, np.full((16, 8), expected, np.float32))


def test_the_low_bits_of_a_tf32_operand_are_ignored(compiler: str) -> None:
    a, b = np.full((16, 8), 1 + 2.0**-11), np.eye(8)
    _, got = multiply("mma_tf32", a, b, np.zeros((16, 8), np.float32), compiler)
    np.testing.assert_array_equal(got, np.ones((16, 8)))


def test_rounding_to_tf32_is_to_nearest(compiler: str) -> None:
    rng = np.random.default_rng(3)
    patterns = rng.integers(0, 1 << 32, 1 << 14, dtype=np.uint64).astype(np.uint32).view(np.float32)
    x = np.concatenate([patterns, np.array([np.inf, -np.inf, np.nan, 0.0, 1 + 2.0**-11, -1 - 2.0**-11], np.float32)])
    x = np.resize(x, len(x) // 64 * 64 + 64)
    built = library("tensor_cores.cu", Mode.FAST, compiler)
    _, out = launch(built, "round_to_tf32", (len(x) // 64,), (64,), {"x": x, "y": (len(x), np.uint32)})
    got, number = out["y"].view(np.float32), ~np.isnan(x)
    assert (out["y"] & 0x1FFF == 0)[number].all()
    with np.errstate(over="ignore", invalid="ignore"):
        wide = x.astype(np.float64)
        exponent = np.floor(np.log2(np.maximum(abs(wide), 2.0**-126)))
        unit = 2.0 ** (exponent - 10)
        expected = (np.sign(wide) * np.floor(abs(wide) / unit + 0.5) * unit).astype(np.float32)
    finite = np.isfinite(x)
    np.testing.assert_array_equal(got[finite], expected[finite])
    np.testing.assert_array_equal(got[np.isinf(x)], x[np.isinf(x)])
    assert np.isnan(got[~number]).all()


# --- ldmatrix -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize("copies", Copies)
@pytest.mark.parametrize("name", ["tile_b_along_k", "tile_b_along_n"])
def test_a_tile_goes_from_global_memory_to_the_product(name: str, copies: Copies, mode: Mode, compiler: str) -> None:
    rng = np.random.default_rng(4)
    a, b = rng.integers(-9, 9, (16, 16)).astype(np.float16), rng.integers(-9, 9, (16, 8)).astype(np.float16)
    stored = np.ascontiguousarray(b if name == "tile_b_along_n" else b.T)
    arguments = {"a": a.view(np.uint16), "b": stored.view(np.uint16), "d": (128, np.float32), "pitch": 48}
    report, out = launch(
        library("tensor_cores.cu", mode, compiler), name, (1,), (32,), arguments, shared=32 * 48, copies=copies
    )
    np.testing.assert_array_equal(out["d"].reshape(16, 8), a.astype(np.float64) @ b.astype(np.float64))
    assert report.faults == ()
    if mode is not Mode.FAST:
        assert report.counters.read_bytes == {"global": 768, "shared": 768, "constant": 0, "texture": 0}
        assert report.counters.written_bytes["shared"] == 768


@pytest.mark.parametrize(("pitch", "wavefronts"), [(32, 8), (48, 4), (64, 16), (128, 32), (144, 4)])
def test_bank_conflicts_of_ldmatrix(pitch: int, wavefronts: int, compiler: str) -> None:
    """Eight rows of 16 bytes a matrix: all banks once if they lie an odd multiple of 16 bytes apart."""
    zeros = np.zeros(256, np.uint16)
    arguments = {"a": zeros, "b": zeros[:128], "d": (128, np.float32), "pitch": pitch}
    report, _ = launch(
        library("tensor_cores.cu", Mode.COUNT, compiler), "tile_b_along_k", (1,), (32,), arguments, shared=32 * pitch
    )
    line = marked("tensor_cores.cu", "multiply_tile", "MARK a")
    [site] = [site for site in report.counters.sites if line in site.lines and site.space == "shared"]
    assert (site.instructions, site.bytes, site.transactions, site.ideal) == (1, 512, wavefronts, 4)


FAULTS = [
    ("half_a_warp", FaultKind.DIVERGENT_WARP, "lanes of mask 0x0000ffff execute it, all 32 must"),
    ("half_waits_elsewhere", FaultKind.DEADLOCK, "waits for lanes of mask 0xffffffff that never come"),
    ("two_instructions", FaultKind.DIVERGENT_WARP, "threads come to it at another place"),
    ("odd_rows", FaultKind.MISALIGNED, "read of 16 bytes at shared memory offset 24 of 1024"),
    ("unset_rows", FaultKind.UNINITIALISED, "read of 16 bytes at shared memory offset 0 of 1024"),
    ("rows_of_other_lanes", FaultKind.RACE, "read of 16 bytes at shared memory offset 16 of 1024, which thread "),
    ("rows_beyond", FaultKind.OUT_OF_BOUNDS, "read of 16 bytes at shared memory offset 1024 of 1024"),
]


@pytest.mark.parametrize(("name", "kind", "detail"), FAULTS, ids=[fault[0] for fault in FAULTS])
def test_planted_faults_are_found_and_named(name: str, kind: FaultKind, detail: str, compiler: str) -> None:
    zeros = np.zeros(128, np.uint32)
    arguments = {"a": zeros, "b": zeros, "d": (32, np.float32)}
    built = library("tensor_cores.cu", Mode.CHECK, compiler)
    report, _ = launch(built, name, (1,), (32,), arguments, shared=1024)
    line = marked("tensor_cores.cu", name, f"MARK {kind.value}")
    [fault] = [fault for fault in report.faults if fault.kind is kind and line in fault.lines]
    assert fault.kernel == name
    assert fault.detail.startswith(detail)


# --- cp.async -----------------------------------------------------------------------------------------------------

STEPS = 7


def ring(name: str, copies: Copies, mode: Mode, compiler: str) -> tuple[Report, npt.NDArray[Any], npt.NDArray[Any]]:
    x = np.arange(STEPS * 64, dtype=np.float32) ** 2
    arguments = {"x": x, "y": (64, np.float32), "steps": STEPS}
    built = library("async_copies.cu", mode, compiler)
    report, out = launch(built, name, (1,), (64,), arguments, shared=3 * 64 * 4, copies=copies)
    return report, out["y"], np.roll(x.reshape(STEPS, 64).sum(axis=0), -1)


@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize("copies", Copies)
def test_a_ring_of_copies_is_right(copies: Copies, mode: Mode, compiler: str) -> None:
    report, got, expected = ring("right", copies, mode, compiler)
    np.testing.assert_array_equal(got, expected)
    assert report.faults == ()
    if mode is not Mode.FAST:
        assert report.counters.read_bytes["global"] == report.counters.written_bytes["shared"] == STEPS * 64 * 4


PENDING = "which an asynchronous copy of thread 1 may still write: its wait and a barrier must come between"
RING_FAULTS = [
    ("no_wait", "READ", PENDING),
    ("waits_for_too_few", "READ", PENDING),
    ("no_barrier", "READ", PENDING),
    ("reused_too_early", "FILL", "accessed with no barrier between"),
]


@pytest.mark.parametrize(("name", "mark", "detail"), RING_FAULTS, ids=[fault[0] for fault in RING_FAULTS])
@pytest.mark.parametrize("copies", Copies)
def test_faults_of_a_ring_are_found_and_named(name: str, mark: str, detail: str, copies: Copies, compiler: str) -> None:
    report, _, _ = ring(name, copies, Mode.CHECK, compiler)
    found = [fault for fault in report.faults if marked("async_copies.cu", "fill", mark) in fault.lines]
    assert found
    assert found[0].kind is FaultKind.RACE
    assert found[0].detail.endswith(detail)


@pytest.mark.parametrize("name", ["no_wait", "waits_for_too_few"])
def test_late_copies_show_what_early_ones_hide(name: str, compiler: str) -> None:
    _, early, expected = ring(name, Copies.EARLY, Mode.FAST, compiler)
    np.testing.assert_array_equal(early, expected)
    _, late, _ = ring(name, Copies.LATE, Mode.FAST, compiler)
    assert (late != expected).any()


def test_what_a_copy_does_not_bring_is_zero(compiler: str) -> None:
    x = np.arange(1, 257, dtype=np.float32)
    arguments = {"x": x, "y": (256, np.float32), "steps": 0}
    built = library("async_copies.cu", Mode.CHECK, compiler)
    report, out = launch(built, "filled_up", (1,), (64,), arguments, shared=1024)
    expected = np.where(np.arange(4) < np.arange(64)[:, None] % 5, x.reshape(64, 4), 0)
    np.testing.assert_array_equal(out["y"].reshape(64, 4), expected)
    assert report.faults == ()


def test_an_unaligned_copy_is_found(compiler: str) -> None:
    arguments = {"x": np.zeros(256, np.float32), "y": (64, np.float32), "steps": 0}
    built = library("async_copies.cu", Mode.CHECK, compiler)
    report, _ = launch(built, "odd_source", (1,), (64,), arguments, shared=1024)
    [fault] = report.faults
    assert fault.kind is FaultKind.MISALIGNED
    assert marked("async_copies.cu", "odd_source", "MARK misaligned") in fault.lines


# --- the same text on a GPU ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_90a"])
def test_the_wrappers_compile(arch: str) -> None:
    binary = compile_cuda(unit("tensor_cores.cu").source, arch)
    assert all(kernel.spill_stores == 0 for kernel in binary.kernels)
    names = {kernel.name for kernel in binary.kernels}
    assert ("mma_bf16" in names) == (arch != "sm_75")
