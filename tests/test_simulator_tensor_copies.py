"""TMA on the simulator: boxes as NumPy cuts and swizzles them, planted faults found and named."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from device_cases import fault_at, library, marked, unit
from test_simulator import compiler as compiler  # a fixture

from convgen.compiler import compile_cuda
from convgen.errors import UsageError
from convgen.problem import DType
from convgen.simulator import Argument, BoundTensorMap, Copies, FaultKind, Memory, Mode, Report
from convgen.tensor_map import Swizzle, TensorMap

FILE = "tensor_copies.cu"
HEADERS = ("shared", "shared_address", "mbarrier", "fence", "tensor_map", "cp_async_bulk", "cp_async_bulk_tensor")
SHARED = 32768 + 256
TYPES = {1: DType.INT8, 2: DType.BF16, 4: DType.FP32}


def bits(itemsize: int) -> np.dtype[Any]:
    return np.dtype(f"u{itemsize}")


def tensor_map(x: npt.NDArray[Any], box: tuple[int, ...], **options: Any) -> TensorMap:
    """The map of an array whose last axis is dimension 0."""
    return TensorMap(TYPES[x.itemsize], x.shape[::-1], x.strides[-2::-1], box, **options)


def run(
    name: str,
    mapped: TensorMap,
    x: npt.NDArray[Any],
    numbers: tuple[int, ...],
    compiler: str,
    mode: Mode,
    copies: Copies,
) -> tuple[Report, npt.NDArray[np.uint8], npt.NDArray[Any]]:
    """What the kernel wrote into y, and x afterwards."""
    built = library(FILE, HEADERS, mode, compiler)
    memory = Memory()
    source = memory.allocate("x", x.nbytes, writable=True, initialised=True, granule=x.itemsize)
    source.bytes[:] = x.view(np.uint8).ravel()
    y = memory.allocate("y", 32768, writable=True, initialised=False, granule=1)
    kernel = next(k for k in built.units[0].kernels if k.name == name)
    arguments: list[Argument] = [BoundTensorMap(source, mapped), y, *numbers]
    report = built.launch(0, kernel, (1, 1, 1), (64, 1, 1), SHARED, arguments, memory, copies=copies)
    return report, y.bytes.copy(), source.bytes.view(x.dtype).reshape(x.shape).copy()


def swizzled(rows: npt.NDArray[np.uint8], swizzle: Swizzle) -> npt.NDArray[np.uint8]:
    """Packed rows as they lie in shared memory from address 0 on: a piece of 16 bytes goes to column c ^ row % period,
    where a row is 128 bytes of memory and the period is that of the swizzle."""
    pieces = rows.reshape(-1, 16)
    out = np.empty_like(pieces)
    for index, piece in enumerate(pieces):
        line, column = divmod(index, 8)
        out[line * 8 + (column ^ line % max(swizzle.value // 16, 1))] = piece
    return out.ravel()


def box_of(x: npt.NDArray[Any], tensor: TensorMap, at: tuple[int, ...]) -> npt.NDArray[Any]:
    """The box by its definition: element by element, zero outside."""
    shape = tuple(-(-b // s) for b, s in zip(tensor.box, tensor.steps, strict=True))[::-1]
    out = np.zeros(shape, x.dtype)
    for index in itertools.product(*map(range, shape)):
        place = tuple(a + i * s for a, i, s in zip(at[::-1], index, tensor.steps[::-1], strict=True))
        if all(0 <= p < e for p, e in zip(place, x.shape, strict=True)):
            out[index] = x[place]
    return out


LOADS = [
    ((64,), 4, (32,), (), Swizzle.NONE, (8,)),
    ((40,), 2, (32,), (), Swizzle.NONE, (-8,)),
    ((20, 48), 4, (8, 4), (), Swizzle.B32, (44, 17)),
    ((20, 48), 2, (32, 16), (), Swizzle.B64, (-8, -5)),
    ((20, 64), 2, (64, 16), (), Swizzle.B128, (0, 3)),
    ((6, 7, 32), 1, (16, 5, 3), (), Swizzle.NONE, (16, -1, 4)),
    ((2, 11, 12, 64), 2, (64, 10, 10, 1), (), Swizzle.B128, (0, -1, -1, 1)),
    ((2, 11, 12, 16), 2, (16, 9, 8, 1), (1, 2, 2, 1), Swizzle.B32, (0, -1, 3, 1)),
    ((2, 3, 5, 6, 32), 4, (32, 4, 3, 2, 2), (1, 1, 2, 1, 1), Swizzle.B128, (-4, 3, 1, 2, 0)),
]


@pytest.mark.parametrize("mode", [Mode.FAST, Mode.CHECK])
@pytest.mark.parametrize("copies", Copies)
@pytest.mark.parametrize(("shape", "itemsize", "box", "steps", "swizzle", "at"), LOADS)
def test_loads_bring_the_box(
    shape: tuple[int, ...],
    itemsize: int,
    box: tuple[int, ...],
    steps: tuple[int, ...],
    swizzle: Swizzle,
    at: tuple[int, ...],
    copies: Copies,
    mode: Mode,
    compiler: str,
) -> None:
    x = np.random.default_rng(1).integers(1, 250, (*shape[:-1], shape[-1] * itemsize), np.uint8).view(bits(itemsize))
    mapped = tensor_map(x, box, element_strides=steps, swizzle=swizzle)
    report, got, _ = run(f"load_{len(shape)}", mapped, x, (mapped.box_bytes, *at), compiler, mode, copies)
    expected = swizzled(box_of(x, mapped, at).view(np.uint8).ravel(), swizzle)
    assert len(expected) == mapped.box_bytes
    np.testing.assert_array_equal(got[: len(expected)], expected)
    assert report.faults == ()


@pytest.mark.parametrize("copies", Copies)
def test_one_lane_waits_for_its_warp(copies: Copies, compiler: str) -> None:
    x = np.arange(64 * 64, dtype=np.uint16).reshape(64, 64)
    report, got, _ = run("one_lane_waits", tensor_map(x, (64, 16)), x, (2048,), compiler, Mode.CHECK, copies)
    np.testing.assert_array_equal(got[:2048], x[:16].view(np.uint8).ravel())
    assert report.faults == ()


@pytest.mark.parametrize("mode", [Mode.FAST, Mode.CHECK])
@pytest.mark.parametrize("swizzle", Swizzle)
@pytest.mark.parametrize("at", [(0, 0), (40, 30), (40, -8)])
def test_stores_write_what_lies_within(at: tuple[int, int], swizzle: Swizzle, mode: Mode, compiler: str) -> None:
    x = np.zeros((37, 64), np.uint16)
    row = swizzle.value // 2 or 40
    mapped = tensor_map(x, (row, 8), swizzle=swizzle)
    i = np.arange(mapped.box_bytes)
    linear = (i * 7 + i // 256).astype(np.uint8)
    # The exclusive or undoes itself.
    box = swizzled(linear, swizzle).view(np.uint16).reshape(8, row)
    report, _, got = run("store", mapped, x, (mapped.box_bytes, *at), compiler, mode, Copies.EARLY)
    expected = np.zeros((37 + 80, 64 + 200), np.uint16)
    expected[at[1] + 40 : at[1] + 48, at[0] + 100 : at[0] + 100 + row] = box
    np.testing.assert_array_equal(got, expected[40:77, 100:164])
    assert report.faults == ()


X = np.arange(64 * 64, dtype=np.uint16).reshape(64, 64)
STORE_FAULTS = [
    ("no_fence", "MARK missing", FaultKind.PROXY, "read of 16 bytes at shared memory offset 0 of 33024 by an asynch"),
    ("no_barrier", "MARK race", FaultKind.RACE, "read of 16 bytes at shared memory offset 0 of 33024, which thread "),
    ("no_store_wait", "MARK race", FaultKind.RACE, "write of 1 bytes at shared memory offset "),
    ("ends_while_storing", "MARK illegal copy", FaultKind.COPY, "the block ends while this copy from shared memory"),
]
LOAD_FAULTS = [
    (
        "expects_too_much",
        "MARK deadlock",
        FaultKind.DEADLOCK,
        "waits for parity 0 of the mbarrier at shared",
    ),
    ("not_fenced_init", "MARK missing", FaultKind.PROXY, "the mbarrier at shared memory offset 32768 completes a copy"),
    ("odd_place", "MARK illegal copy", FaultKind.COPY, "shared memory offset 64 must be a multiple of 128"),
    ("other_rank", "MARK illegal copy", FaultKind.COPY, "the tensor map has 2 dimensions, the copy 3"),
    (
        "beyond_shared",
        "MARK out of bounds",
        FaultKind.OUT_OF_BOUNDS,
        "write of 2048 bytes at shared memory offset",
    ),
]


@pytest.mark.parametrize("copies", Copies)
@pytest.mark.parametrize(("name", "mark", "kind", "detail"), STORE_FAULTS, ids=[fault[0] for fault in STORE_FAULTS])
def test_faults_of_stores_are_found_and_named(
    name: str, mark: str, kind: FaultKind, detail: str, copies: Copies, compiler: str
) -> None:
    mapped = tensor_map(X, (64, 16), swizzle=Swizzle.B128)
    report, _, _ = run(name, mapped, X, (2048, 0, 0), compiler, Mode.CHECK, copies)
    assert fault_at(report, kind, marked(unit(FILE, HEADERS), name, mark)).detail.startswith(detail)


@pytest.mark.parametrize("copies", Copies)
@pytest.mark.parametrize(("name", "mark", "kind", "detail"), LOAD_FAULTS, ids=[fault[0] for fault in LOAD_FAULTS])
def test_faults_of_loads_are_found_and_named(
    name: str, mark: str, kind: FaultKind, detail: str, copies: Copies, compiler: str
) -> None:
    report, _, _ = run(name, tensor_map(X, (64, 16)), X, (2048,), compiler, Mode.CHECK, copies)
    assert fault_at(report, kind, marked(unit(FILE, HEADERS), name, mark)).detail.startswith(detail)


@pytest.mark.parametrize(
    ("name", "at", "detail"),
    [
        ("load_2", (5, 0), "innermost coordinate lies 10 bytes behind a multiple of 16 bytes"),
        ("load_2", (-3, 0), "innermost coordinate lies 10 bytes behind a multiple of 16 bytes"),
        ("store", (0, -3), "begins 3 before the tensor and reaches into it"),
    ],
)
def test_boxes_begin_where_tma_takes_them(name: str, at: tuple[int, int], detail: str, compiler: str) -> None:
    """On an H200 each of these is an illegal instruction."""
    report, _, _ = run(name, tensor_map(X, (64, 16)), X, (2048, *at), compiler, Mode.CHECK, Copies.EARLY)
    [fault] = report.faults
    assert fault.kind is FaultKind.COPY
    assert detail in fault.detail


@pytest.mark.parametrize("copies", Copies)
@pytest.mark.parametrize("name", ["no_wait", "expects_too_little"])
def test_a_read_before_the_copy_is_over_is_found(name: str, copies: Copies, compiler: str) -> None:
    x = X + list(Copies).index(copies)  # another than lies in memory from the run before
    report, got, _ = run(name, tensor_map(x, (64, 16)), x, (2048,), compiler, Mode.CHECK, copies)
    fault = fault_at(report, FaultKind.RACE, marked(unit(FILE, HEADERS), "dump", "DUMP"))
    assert "which a copy may still write" in fault.detail
    assert (got[:2048] == x[:16].view(np.uint8).ravel()).all() == (copies is Copies.EARLY)


def test_a_copy_that_was_not_expected_is_named(compiler: str) -> None:
    mapped = tensor_map(X, (64, 16))
    report, _, _ = run("expects_too_little", mapped, X, (2048,), compiler, Mode.CHECK, Copies.LATE)
    second = marked(unit(FILE, HEADERS), "expects_too_little", "SECOND")
    assert "expect_tx said too few" in fault_at(report, FaultKind.MBARRIER, second).detail


@pytest.mark.parametrize("copies", Copies)
def test_an_early_release_is_found(copies: Copies, compiler: str) -> None:
    report, _, _ = run("released_too_early", tensor_map(X, (64, 16)), X, (2048,), compiler, Mode.CHECK, copies)
    lines = {line for fault in report.faults if fault.kind is FaultKind.RACE for line in fault.lines}
    source = unit(FILE, HEADERS)
    assert lines & {marked(source, "released_too_early", mark) for mark in ("REFILL", "READ")}


@pytest.mark.parametrize("copies", Copies)
@pytest.mark.parametrize("mode", [Mode.FAST, Mode.CHECK])
def test_bytes_in_a_row_go_there_and_back(mode: Mode, copies: Copies, compiler: str) -> None:
    built = library(FILE, HEADERS, mode, compiler)
    memory = Memory()
    x = memory.allocate("x", 20000, writable=False, initialised=True, granule=1)
    x.bytes[:] = np.random.default_rng(2).integers(0, 256, 20000, np.uint8)
    y = memory.allocate("y", 20000, writable=True, initialised=False, granule=1)
    kernel = next(k for k in built.units[0].kernels if k.name == "bulk")
    report = built.launch(0, kernel, (1, 1, 1), (64, 1, 1), SHARED, [x, y, 20000], memory, copies=copies)
    np.testing.assert_array_equal(y.bytes, x.bytes)
    assert report.faults == ()


REFUSED = [
    ({"extents": (4, 4, 4, 4, 4, 4)}, "extents"),
    ({"strides": (24,)}, "strides=(24,): expected multiples of 16"),
    ({"box": (64, 257)}, "box"),
    ({"box": (4, 4)}, "rows of a multiple of 16 bytes"),
    ({"element_strides": (2, 1)}, "1 in front"),
    ({"element_strides": (1, 9)}, "each from 1 to 8"),
    ({"swizzle": Swizzle.B64}, "rows of 64 bytes"),
]


@pytest.mark.parametrize(("changed", "message"), REFUSED)
def test_what_cuda_refuses_is_refused(changed: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {"dtype": DType.BF16, "extents": (64, 9), "strides": (128,), "box": (64, 4)}
    TensorMap(**arguments)
    with pytest.raises(UsageError) as caught:
        TensorMap(**(arguments | changed))
    assert message in str(caught.value)


def test_the_wrappers_compile() -> None:
    binary = compile_cuda(unit(FILE, HEADERS).source, "sm_90a")
    for rank in range(1, 6):
        assert f"cp.async.bulk.tensor.{rank}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes" in binary.ptx
    assert "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group" in binary.ptx
