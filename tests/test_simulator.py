"""The simulator: right answers, planted faults found and named, counters equal to closed forms."""

from __future__ import annotations

import ctypes
import functools
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from convgen.errors import CompileError, SimulatorFault
from convgen.simulator import FaultKind, Library, Memory, Mode, Report, Site, Texture, Unit, build, toolchain

CASES = Path(__file__).parent / "simulator_cases"
SIDE, TAPS = 64, 5
COMPILERS = [name for name in ("g++", "clang++") if shutil.which(name)] + ["zig"]


@dataclass(frozen=True)
class Param:
    name: str
    ctype: str


@dataclass(frozen=True)
class Kernel:
    name: str
    params: tuple[Param, ...]


@pytest.fixture(params=COMPILERS)
def compiler(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    if request.param == "zig":
        pytest.importorskip("ziglang")
    monkeypatch.setenv("CONVGEN_SIM_CXX", request.param)
    toolchain.find_compiler.cache_clear()
    yield request.param
    toolchain.find_compiler.cache_clear()


def case(file: str) -> Unit:
    source = (CASES / file).read_text()
    found = re.findall(r'extern "C" __global__ void (\w+)\((.*?)\)', source)
    kernels = tuple(
        Kernel(name, tuple(Param(n, t.strip()) for t, n in re.findall(r"(.*?\W)(\w+)(?:,|$)", parameters)))
        for name, parameters in found
    )
    return Unit(source, kernels, file)


@functools.lru_cache(maxsize=32)
def library(file: str, mode: Mode, compiler: str) -> Library:
    return build([case(file)], mode)


def launch(
    library: Library, name: str, grid: Sequence[int], block: Sequence[int], arguments: Mapping[str, Any], **options: Any
) -> tuple[Report, dict[str, npt.NDArray[Any]]]:
    """Run a kernel. Arrays not in `filled` are inputs; a tuple (size, dtype) is an unwritten output."""
    memory = Memory()
    values: list[Any] = []
    outputs = {}
    filled = options.pop("filled", ())
    for key, value in arguments.items():
        if isinstance(value, tuple) or key in filled:
            array = value if key in filled else np.empty(*value)
            b = memory.allocate(key, array.nbytes, writable=True, initialised=key in filled, granule=array.itemsize)
            if key in filled:
                b.bytes.view(array.dtype)[:] = array
            outputs[key] = b.bytes.view(array.dtype)
            values.append(b)
        elif isinstance(value, np.ndarray):
            b = memory.allocate(key, value.nbytes, writable=False, initialised=True, granule=value.itemsize)
            b.bytes.view(value.dtype)[:] = value.ravel()
            values.append(b)
        else:
            values.append(value)
    if (size := options.pop("texture", None)) is not None:
        values[0] = Texture(values[0], *size)
    kernel = next(k for k in library.units[0].kernels if k.name == name)
    shared = options.pop("shared", 0)
    padded = [(*map(int, v), 1, 1)[:3] for v in (grid, block)]
    report = library.launch(0, kernel, padded[0], padded[1], shared, values, memory, **options)
    results = {key: array.copy() for key, array in outputs.items()}
    return report, results


def marked(file: str, kernel: str) -> dict[str, int]:
    """Line of each `MARK what` comment of a kernel."""
    lines = (CASES / file).read_text().splitlines()
    start = next(i for i, line in enumerate(lines) if f" {kernel}(" in line)
    end = next(i for i in range(start, len(lines)) if lines[i] == "}")
    return {m.group(1): i + 1 for i in range(start, end) if (m := re.search(r"// MARK (.*)", lines[i]))}


# --- right answers ------------------------------------------------------------------------------------------------


def convolution_inputs() -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32], npt.NDArray[np.float64]]:
    rng = np.random.default_rng(1)
    x = rng.standard_normal((SIDE + TAPS - 1, SIDE + TAPS - 1)).astype(np.float32)
    w = rng.standard_normal((TAPS, TAPS)).astype(np.float32)
    windows = np.lib.stride_tricks.sliding_window_view(x.astype(np.float64), (TAPS, TAPS))
    return x, w, np.einsum("ijkl,kl->ij", windows, w.astype(np.float64))


def convolve(name: str, mode: Mode, compiler: str, tile: int = 16, **options: Any) -> tuple[Report, npt.NDArray[Any]]:
    x, w, _ = convolution_inputs()
    built = library("convolutions.cu", mode, compiler)
    address, size = built.symbol(0, "filter")
    assert size == w.nbytes
    ctypes.memmove(address, w.ctypes.data, size)
    arguments: dict[str, Any] = {"x": x}
    if name == "naive":
        arguments["w"] = w
    if name == "texture":
        options["texture"] = (len(x), len(x), len(x) * 4)
    arguments |= {"y": (SIDE * SIDE, np.float32), "width": len(x), "out_width": SIDE}
    shared = (tile + TAPS - 1) ** 2 * 4 if "tiled" in name else 0
    grid = (SIDE // tile, SIDE // tile)
    report, outputs = launch(built, name, grid, (tile, tile), arguments, shared=shared, **options)
    return report, outputs["y"].reshape(SIDE, SIDE)


@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize(
    ("name", "tile"), [("naive", 16), ("constant_filter", 16), ("tiled_16", 16), ("tiled_32", 32), ("texture", 16)]
)
def test_convolutions_are_right(name: str, tile: int, mode: Mode, compiler: str) -> None:
    report, got = convolve(name, mode, compiler, tile)
    np.testing.assert_allclose(got, convolution_inputs()[2], atol=1e-5)
    assert report.faults == ()
    assert report.coverage == 1.0


def test_any_number_of_workers_gives_the_same_bits(compiler: str) -> None:
    results = [convolve("tiled_16", Mode.CHECK, compiler, workers=workers) for workers in (1, 2, 5)]
    for report, got in results[1:]:
        np.testing.assert_array_equal(got, results[0][1])
        assert report.counters == results[0][0].counters


def test_chosen_blocks_are_run_and_no_others(compiler: str) -> None:
    report, got = convolve("tiled_16", Mode.CHECK, compiler, blocks=[1, 12])
    expected = np.full((SIDE, SIDE), np.nan)
    expected[0:16, 16:32] = convolution_inputs()[2][0:16, 16:32]
    expected[48:64, 0:16] = convolution_inputs()[2][48:64, 0:16]
    np.testing.assert_allclose(got, expected, atol=1e-5)
    assert report.coverage == 2 / 16


def test_texture_reads_outside_are_zero(compiler: str) -> None:
    x, w, _ = convolution_inputs()
    convolve("texture", Mode.CHECK, compiler)  # fills the filter
    inside = np.zeros_like(x)
    inside[:40, :30] = x[:40, :30]
    built = library("convolutions.cu", Mode.CHECK, compiler)
    _, outputs = launch(
        built, "texture", (4, 4), (16, 16),
        {"x": x, "y": (SIDE * SIDE, np.float32), "unused": 0, "out_width": SIDE}, texture=(30, 40, len(x) * 4),
    )  # fmt: skip
    windows = np.lib.stride_tricks.sliding_window_view(inside.astype(np.float64), (TAPS, TAPS))
    expected = np.einsum("ijkl,kl->ij", windows, w.astype(np.float64))
    np.testing.assert_allclose(outputs["y"].reshape(SIDE, SIDE), expected, atol=1e-5)


@pytest.mark.parametrize("name", ["block_sum", "warp_sum"])
@pytest.mark.parametrize("mode", Mode)
def test_reductions(name: str, mode: Mode, compiler: str) -> None:
    x = np.arange(1024, dtype=np.float32)
    groups = 4 if name == "block_sum" else 32
    built = library("warps.cu", mode, compiler)
    report, out = launch(built, name, (4,), (256,), {"x": x, "y": (groups, np.float32)}, shared=1024)
    np.testing.assert_array_equal(out["y"], x.reshape(groups, -1).sum(axis=1))
    assert report.faults == ()


def test_votes_and_shuffles(compiler: str) -> None:
    x = np.random.default_rng(2).integers(-50, 50, 64).astype(np.int32)
    x[40] = x[50]
    built = library("warps.cu", Mode.CHECK, compiler)
    report, out = launch(built, "votes", (1,), (64,), {"x": x, "y": (64 * 12, np.int32)})
    assert report.faults == ()
    got = out["y"].reshape(64, 12).astype(np.int64)
    for thread in range(64):
        lane, warp = thread % 32, x[thread // 32 * 32 :][:32]
        bits = sum(int(v > 0) << i for i, v in enumerate(warp))
        assert got[thread, 0] & 0xFFFFFFFF == bits
        assert got[thread, 1] == (warp > 40).any()
        assert got[thread, 2] == (warp > -40).all()
        assert got[thread, 3] == warp[3]
        assert got[thread, 4] == warp[lane - 2 if lane >= 2 else lane]
        assert got[thread, 5] == warp[lane + 2 if lane % 8 < 6 else lane]
        assert got[thread, 6] == warp[lane // 8 * 8 + 1]
        assert got[thread, 7] & 0xFFFFFFFF == sum(int(v == warp[lane]) << i for i, v in enumerate(warp))
        assert got[thread, 8] == (x > 0).sum()
        assert got[thread, 9] == (x > -40).all()
        assert got[thread, 10] == (x > 100).any()
        assert got[thread, 11] == (warp[lane ^ 7] if lane < 8 else 0)


@pytest.mark.parametrize("mode", Mode)
def test_atomics(mode: Mode, compiler: str) -> None:
    x = np.random.default_rng(3).integers(0, 16, 64 * 256).astype(np.int32)
    arguments = {
        "x": x, "y": np.zeros(16, np.int32), "sum": np.zeros(1, np.float32), "largest": np.zeros(1, np.uint64)
    }  # fmt: skip
    built = library("warps.cu", mode, compiler)
    report, out = launch(
        built, "histogram", (64,), (256,), arguments, filled=("y", "sum", "largest"), shared=64, workers=3
    )
    np.testing.assert_array_equal(out["y"], np.bincount(x, minlength=16))
    assert out["sum"][0] == x.sum()
    assert out["largest"][0] == int(x.max()) << 40
    assert report.faults == ()


def test_half_conversions_are_exact(compiler: str) -> None:
    built = library("halves.cu", Mode.FAST, compiler)
    every = np.arange(65536, dtype=np.uint16)
    _, out = launch(built, "from_half", (256,), (256,), {"x": every, "y": (65536, np.float32)})
    np.testing.assert_array_equal(out["y"], every.view(np.float16).astype(np.float32))
    _, out = launch(built, "from_bfloat16", (256,), (256,), {"x": every, "y": (65536, np.float32)})
    np.testing.assert_array_equal(out["y"].view(np.uint32), every.astype(np.uint32) << 16)


def float_samples() -> npt.NDArray[np.float32]:
    """Random bit patterns, and every fp16 number and midpoint of two with its neighbours."""
    rng = np.random.default_rng(4)
    halves = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float64)
    midpoints = ((halves[:-1] + halves[1:]) / 2).astype(np.float32)
    near = np.concatenate([np.nextafter(midpoints, np.float32(s * np.inf)) for s in (-1, 1)])
    edges = np.array([65519.996, 65520, 65536, 1e9, np.inf, np.nan, 2**-24, 2**-25, 2**-26, 0], np.float32)
    patterns = rng.integers(0, 1 << 32, 1 << 17, dtype=np.uint64).astype(np.uint32).view(np.float32)
    values = np.concatenate([patterns, halves.astype(np.float32), midpoints, near, edges])
    values = np.concatenate([values, -values])
    return values[: len(values) // 256 * 256]


def test_rounding_to_half_is_exact(compiler: str) -> None:
    x = float_samples()
    built = library("halves.cu", Mode.FAST, compiler)
    _, out = launch(built, "to_half", (len(x) // 256,), (256,), {"x": x, "y": (len(x), np.float16)})
    with np.errstate(over="ignore", invalid="ignore"):
        expected = x.astype(np.float16)
    number = ~np.isnan(x)
    np.testing.assert_array_equal(out["y"].view(np.uint16)[number], expected.view(np.uint16)[number])
    assert np.isnan(out["y"][~number]).all()


def test_rounding_to_bfloat16_is_exact(compiler: str) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    x = float_samples()
    built = library("halves.cu", Mode.FAST, compiler)
    _, out = launch(built, "to_bfloat16", (len(x) // 256,), (256,), {"x": x, "y": (len(x), np.uint16)})
    number = ~np.isnan(x)
    with np.errstate(invalid="ignore"):
        expected = x.astype(ml_dtypes.bfloat16).view(np.uint16)
    np.testing.assert_array_equal(out["y"][number], expected[number])
    assert (out["y"][~number] & 0x7FFF > 0x7F80).all()


# --- planted faults -----------------------------------------------------------------------------------------------

FAULTS = [
    ("out_of_bounds", FaultKind.OUT_OF_BOUNDS, "read of 4 bytes at global x offset 256", 63),
    ("write_beyond", FaultKind.OUT_OF_BOUNDS, "write of 4 bytes at global y offset 256", 32),
    ("far_out_of_bounds", FaultKind.OUT_OF_BOUNDS, "read of 4 bytes at ", 0),
    ("shared_out_of_bounds", FaultKind.OUT_OF_BOUNDS, "write of 4 bytes at shared memory offset 256 of 256", 63),
    ("constant_out_of_bounds", FaultKind.OUT_OF_BOUNDS, "read of 4 bytes at constant table offset 256", 63),
    ("missing_barrier", FaultKind.RACE, "write of 4 bytes at shared memory offset 4 of 256, which thread 0", 1),
    ("same_cell", FaultKind.RACE, "write of 4 bytes at shared memory offset 0 of 256, which thread 0", 1),
    ("same_output", FaultKind.RACE, "write of 4 bytes at global y offset 0, which thread 0", 1),
    ("exited_barrier", FaultKind.DIVERGENT_BARRIER, "waits while thread 60", 0),
    ("two_barriers", FaultKind.DIVERGENT_BARRIER, "waits while thread 32", 0),
    ("never_written", FaultKind.UNINITIALISED, "read of 4 bytes at shared memory offset 28 of 256", 7),
    ("output_read", FaultKind.UNINITIALISED, "read of 4 bytes at global y offset 0", 0),
    ("misaligned", FaultKind.MISALIGNED, "read of 16 bytes at global x offset 4", 1),
    ("input_written", FaultKind.READ_ONLY, "write of 4 bytes at global x offset 0", 0),
    ("absent_lanes", FaultKind.DEADLOCK, "waits for lanes of mask 0xffffffff that never come", 0),
    ("atomic_beyond", FaultKind.OUT_OF_BOUNDS, "write of 4 bytes at global y offset 256", 63),
    ("trapped", FaultKind.TRAP, "the block was stopped", 5),
]


@pytest.mark.parametrize(("name", "kind", "detail", "thread"), FAULTS, ids=[f[0] for f in FAULTS])
def test_planted_faults_are_found_and_named(
    name: str, kind: FaultKind, detail: str, thread: int, compiler: str
) -> None:
    built = library("faults.cu", Mode.CHECK, compiler)
    x = np.ones(64, np.float32)
    report, _ = launch(built, name, (1,), (64,), {"x": x, "y": (64, np.float32)}, shared=256)
    fault = next(f for f in report.faults if f.kind is kind)
    assert marked("faults.cu", name)[kind.value] in fault.lines
    assert any(f"MARK {kind.value}" in line.text for line in fault.place)
    assert fault.detail.startswith(detail)
    assert fault.thread == (thread, 0, 0)
    assert fault.block == (0, 0, 0)
    assert fault.kernel == name
    assert {f.kind for f in report.faults} == {kind}


@pytest.mark.parametrize("mode", Mode)
def test_a_stack_overflow_is_reported(mode: Mode, compiler: str) -> None:
    built = library("faults.cu", mode, compiler)
    report, _ = launch(built, "deep_stack", (1,), (64,), {"x": np.ones(64, np.float32), "y": (64, np.float32)})
    (fault,) = report.faults
    assert str(fault).startswith("stack overflow: the block was stopped, in deep_stack by thread (0, 0, 0)")
    assert str(fault).endswith("unknown line")


def test_a_crash_in_fast_mode_is_reported(compiler: str) -> None:
    built = library("faults.cu", Mode.FAST, compiler)
    for _ in range(2):
        report, _ = launch(built, "null_pointer", (1,), (64,), {"x": np.ones(64, np.float32), "y": (64, np.float32)})
        (fault,) = report.faults
        assert fault.kind is FaultKind.CRASH
        assert fault.detail.startswith("SIGSEGV at address 0x0")
        assert marked("faults.cu", "null_pointer")["crash"] in fault.lines
    _, got = convolve("tiled_16", Mode.FAST, compiler)
    np.testing.assert_allclose(got, convolution_inputs()[2], atol=1e-5)


def test_faults_are_counted_once_a_line(compiler: str) -> None:
    built = library("faults.cu", Mode.CHECK, compiler)
    x = np.ones(256, np.float32)
    report, _ = launch(built, "write_beyond", (1,), (256,), {"x": x, "y": (256, np.float32)})
    (fault,) = report.faults
    assert fault.count == 128


@pytest.mark.parametrize(
    ("grid", "block", "shared", "message"),
    [
        ((1,), (8, 1, 65), 0, r"block \(8, 1, 65\), expected .* z up to 64"),
        ((1,), (1025,), 0, r"block \(1025, 1, 1\), expected 1 to 1024 threads"),
        ((1, 65536), (64,), 0, r"grid \(1, 65536, 1\), expected"),
        ((1,), (64,), 232449, r"232449 bytes of shared memory, expected up to 232448"),
    ],
)
def test_launches_no_gpu_accepts_are_refused(
    grid: tuple[int, ...], block: tuple[int, ...], shared: int, message: str
) -> None:
    built = library("faults.cu", Mode.FAST, COMPILERS[0])
    with pytest.raises(SimulatorFault, match=message):
        launch(
            built, "out_of_bounds", grid, block, {"x": np.ones(65, np.float32), "y": (64, np.float32)}, shared=shared
        )


# --- counters -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "tile", "intensity"),
    [
        ("naive", 16, 0.25),
        ("constant_filter", 16, 0.5),
        ("tiled_16", 16, 8.0),
        ("tiled_32", 32, 2 * 32**2 * 25 / (36**2 * 4)),
    ],
)
def test_arithmetic_intensity_equals_its_closed_form(name: str, tile: int, intensity: float, compiler: str) -> None:
    report, _ = convolve(name, Mode.CHECK, compiler, tile)
    assert report.counters.flops == 2 * SIDE**2 * TAPS**2
    assert report.counters.intensity == pytest.approx(intensity, rel=1e-12)


@pytest.mark.parametrize(("tile", "reuse"), [(16, 16.0), (32, 32**2 * 25 / 36**2)])
def test_tile_reuse_equals_its_closed_form(tile: int, reuse: float, compiler: str) -> None:
    """O^2 (2r+1)^2 / (O+2r)^2: reads of the tile a read of the input."""
    report, _ = convolve(f"tiled_{tile}", Mode.COUNT, compiler, tile)
    read = report.counters.read_bytes
    assert read["shared"] / read["global"] == pytest.approx(reuse, rel=1e-12)
    assert report.counters.barriers == (SIDE // tile) ** 2


def test_footprint_is_the_compulsory_traffic(compiler: str) -> None:
    image = {"x": (SIDE + TAPS - 1) ** 2 * 4, "y": SIDE**2 * 4}
    report, _ = convolve("naive", Mode.COUNT, compiler)
    assert report.counters.footprint == image | {"w": TAPS**2 * 4}
    report, _ = convolve("texture", Mode.COUNT, compiler)
    assert report.counters.footprint == image


def pattern(name: str, space: str, stride: int, offset: int, compiler: str) -> Site:
    built = library("patterns.cu", Mode.COUNT, compiler)
    arguments = {"x": np.ones(2048, np.float32), "y": (32, np.float32), "stride": stride, "offset": offset}
    report, _ = launch(built, name, (1,), (32,), arguments, shared=1056 * 4)
    assert report.faults == ()
    line = marked("patterns.cu", name)[space]
    return next(s for s in report.counters.sites if line in s.lines and s.space == space and not s.is_write)


@pytest.mark.parametrize(
    ("stride", "offset", "sectors", "ideal"),
    [(1, 0, 4, 4), (1, 1, 5, 4), (2, 0, 8, 4), (8, 0, 32, 4), (32, 0, 32, 4), (0, 5, 1, 1)],
)
def test_global_sectors(stride: int, offset: int, sectors: int, ideal: int, compiler: str) -> None:
    site = pattern("global_stride", "global", stride, offset, compiler)
    assert (site.instructions, site.accesses, site.bytes) == (1, 32, 128)
    assert (site.transactions, site.ideal) == (sectors, ideal)
    assert site.efficiency == ideal / sectors


@pytest.mark.parametrize(
    ("stride", "wavefronts"), [(1, 1), (2, 2), (3, 1), (4, 4), (16, 16), (32, 32), (33, 1), (0, 1)]
)
def test_shared_bank_conflicts(stride: int, wavefronts: int, compiler: str) -> None:
    site = pattern("shared_stride", "shared", stride, 0, compiler)
    assert (site.instructions, site.transactions, site.ideal) == (1, wavefronts, 1)


@pytest.mark.parametrize(("stride", "wavefronts"), [(4, 4), (8, 8), (0, 4), (12, 4), (32, 32)])
def test_shared_bank_conflicts_of_16_bytes(stride: int, wavefronts: int, compiler: str) -> None:
    """Phases of 8 lanes, each with all 32 banks."""
    site = pattern("shared_stride_wide", "shared", stride, 0, compiler)
    assert (site.accesses, site.bytes) == (32, 512)
    assert (site.instructions, site.transactions, site.ideal) == (1, wavefronts, 4)


@pytest.mark.parametrize(("stride", "addresses"), [(0, 1), (1, 32), (7, 32)])
def test_constant_replays(stride: int, addresses: int, compiler: str) -> None:
    site = pattern("constant_stride", "constant", stride, 0, compiler)
    assert (site.instructions, site.transactions, site.ideal) == (1, addresses, 1)


# --- building -----------------------------------------------------------------------------------------------------


def test_units_may_share_names(compiler: str) -> None:
    source = 'extern "C" __constant__ float c[1];\nextern "C" __global__ void f(float* y) {{ *y = {value} + c[0]; }}\n'
    kernel = Kernel("f", (Param("y", "float*"),))
    built = build([Unit(source.format(value=v), (kernel,), f"{v}.cu") for v in (1, 2)], Mode.CHECK)
    for unit, value in enumerate((1, 2)):
        address, _ = built.symbol(unit, "c")
        ctypes.memmove(address, np.array([10 * value], np.float32).ctypes.data, 4)
    for unit, expected in enumerate((11, 22)):
        memory = Memory()
        y = memory.allocate("y", 4, writable=True, initialised=False)
        report = built.launch(unit, kernel, (1, 1, 1), (1, 1, 1), 0, [y], memory)
        assert report.faults == ()
        assert y.bytes.view(np.float32)[0] == expected


def test_a_compile_error_names_the_unit_and_the_line(compiler: str) -> None:
    source = 'extern "C" __global__ void f(float* y) {\n    y[0] = nonsense;\n}\n'
    unit = Unit(source, (Kernel("f", (Param("y", "float*"),)),), "broken.cu")
    with pytest.raises(CompileError, match=r"broken\.cu:2:.*nonsense"):
        build([unit], Mode.FAST)
