"""TMA multicast on the simulator: every block of a cluster gets every box, planted faults found and named."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from device_cases import fault_at, library, marked, unit
from test_simulator import compiler as compiler  # a fixture

from convgen.compiler import compile_cuda
from convgen.problem import DType
from convgen.simulator import Argument, BoundTensorMap, Copies, FaultKind, Memory, Mode, Report
from convgen.tensor_map import Im2colMap, Swizzle, TensorMap

FILE = "multicasts.cu"
HEADERS = (
    *("shared", "shared_address", "mbarrier", "fence", "tensor_map"),
    *("cluster", "cluster_mbarrier", "cluster_multicast", "cluster_multicast_im2col"),
)
BARRIERS_AT = 2 * 8 * 2048
SHARED = BARRIERS_AT + 32
ROWS, STEPS = 16, 5


def run(
    name: str,
    x: npt.NDArray[np.uint16],
    mapped: TensorMap | Im2colMap,
    steps: int,
    compiler: str,
    mode: Mode,
    copies: Copies,
    size: int = 2,
    clusters: int = 1,
) -> tuple[Report, npt.NDArray[np.uint8]]:
    """Report and y, a row a block."""
    built = library(FILE, HEADERS, mode, compiler)
    memory = Memory()
    source = memory.allocate("x", x.nbytes, writable=False, initialised=True, granule=2)
    source.bytes[:] = x.view(np.uint8).ravel()
    blocks = size * clusters
    y = memory.allocate("y", blocks * steps * size * mapped.box_bytes, writable=True, initialised=False, granule=2)
    kernel = next(k for k in built.units[0].kernels if k.name == name)
    arguments: list[Argument] = [BoundTensorMap(source, mapped), y, mapped.box_bytes, ROWS, steps]
    report = built.launch(
        0, kernel, (blocks, 1, 1), (64, 1, 1), SHARED, arguments, memory, cluster=(size, 1, 1), copies=copies
    )
    return report, y.bytes.reshape(blocks, -1).copy()


def rows_of_boxes(size: int, clusters: int, steps: int, seed: int = 1) -> tuple[npt.NDArray[np.uint16], TensorMap]:
    """x, of a box of 16 rows for each block and step, and its map."""
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 1 << 16, (clusters * steps * size * ROWS, 64)).astype(np.uint16)
    return x, TensorMap(DType.BF16, x.shape[::-1], x.strides[:1], (64, ROWS), swizzle=Swizzle.NONE)


@pytest.mark.parametrize("copies", Copies)
@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize(("size", "clusters"), [(1, 2), (2, 3), (4, 1), (8, 1)])
def test_every_block_gets_every_box(size: int, clusters: int, mode: Mode, copies: Copies, compiler: str) -> None:
    x, mapped = rows_of_boxes(size, clusters, STEPS)
    report, got = run("multicast", x, mapped, STEPS, compiler, mode, copies, size, clusters)
    expected = np.repeat(x.view(np.uint8).reshape(clusters, -1), size, axis=0)
    np.testing.assert_array_equal(got, expected)
    assert report.faults == ()
    # Each box is read once, and written to every block.
    if mode is not Mode.FAST:
        assert report.counters.read_bytes["global"] == x.nbytes
        assert report.counters.written_bytes["shared"] == x.nbytes * size


def test_the_initialisation_is_fenced_either_way(compiler: str) -> None:
    x, mapped = rows_of_boxes(2, 1, 1)
    report, got = run("fenced_either_way", x, mapped, 1, compiler, Mode.CHECK, Copies.LATE)
    np.testing.assert_array_equal(got, np.repeat(x.view(np.uint8).reshape(1, -1), 2, axis=0))
    assert report.faults == ()


@pytest.mark.parametrize("copies", Copies)
@pytest.mark.parametrize("mode", Mode)
def test_every_block_gets_the_pixels(mode: Mode, copies: Copies, compiler: str) -> None:
    """Tap 2 of a filter of 3, padded by 1: pixels 1 and on of each image, one beyond its end."""
    x = np.random.default_rng(1).integers(0, 1 << 16, (2, 9, 64)).astype(np.uint16)
    mapped = Im2colMap(DType.BF16, x.shape[::-1], x.strides[1::-1], (-1,), (-1,), 64, 9)
    report, got = run("multicast_im2col", x, mapped, 1, compiler, mode, copies, size=4, clusters=2)
    expected = np.pad(x[:, 1:], ((0, 0), (0, 1), (0, 0))).view(np.uint8).reshape(2, -1)
    np.testing.assert_array_equal(got[:, : mapped.box_bytes], np.repeat(expected, 4, axis=0))
    assert report.faults == ()


FAULTS = [
    (
        "no_mbarrier_there",
        "misuse",
        FaultKind.MBARRIER,
        f"no mbarrier at shared memory offset {BARRIERS_AT} of rank 1",
    ),
    (
        "no_sync_after_init",
        "misuse",
        FaultKind.MBARRIER,
        f"the initialisation of the mbarrier at shared memory offset {BARRIERS_AT} of rank 0 by another thread",
    ),
    (
        "not_fenced",
        "missing",
        FaultKind.PROXY,
        f"the mbarrier at shared memory offset {BARRIERS_AT} of rank 1 completes a copy",
    ),
    (
        "not_fenced_memory",
        "missing",
        FaultKind.PROXY,
        "write of 16 bytes at shared memory offset 0 of 32800 of rank 1 by an asynchronous unit",
    ),
    ("to_a_block_that_ends", "misuse", FaultKind.CLUSTER, "the block of rank 1 may have ended before this access"),
    ("to_no_block", "illegal", FaultKind.COPY, "multicast to the ranks of mask 0x13 in a cluster of 2 blocks"),
]


@pytest.mark.parametrize("copies", Copies)
@pytest.mark.parametrize(("name", "mark", "kind", "detail"), FAULTS, ids=[fault[0] for fault in FAULTS])
def test_planted_faults_are_found_and_named(
    name: str, mark: str, kind: FaultKind, detail: str, copies: Copies, compiler: str
) -> None:
    report, _ = run(name, *rows_of_boxes(2, 1, 1), 1, compiler, Mode.CHECK, copies)
    assert fault_at(report, kind, marked(unit(FILE, HEADERS), name, f"MARK {mark}")).detail.startswith(detail)


@pytest.mark.parametrize("copies", Copies)
def test_a_box_that_others_still_read_is_not_brought_again(copies: Copies, compiler: str) -> None:
    report, _ = run("asks_its_own_block", *rows_of_boxes(2, 1, STEPS), STEPS, compiler, Mode.CHECK, copies)
    fault = fault_at(report, FaultKind.RACE, marked(unit(FILE, HEADERS), "bring", "BRING"))
    assert fault.detail.startswith("write of 16 bytes at shared memory offset ")
    assert "of rank 1, which " in fault.detail or "of rank 0, which " in fault.detail


@pytest.mark.parametrize("mode", [Mode.FAST, Mode.CHECK])
def test_early_bytes_that_are_not_expected_end_no_phase(mode: Mode, compiler: str) -> None:
    report, _ = run("not_expected", *rows_of_boxes(2, 1, 1), 1, compiler, mode, Copies.EARLY)
    fault = fault_at(report, FaultKind.DEADLOCK, marked(unit(FILE, HEADERS), "not_expected", "MARK deadlock"))
    assert fault.detail.startswith(
        f"rank 1 of the cluster: waits for parity 0 of the mbarrier at shared memory offset {BARRIERS_AT} of rank 1, "
        f"whose phase never ends; mbarrier at {BARRIERS_AT} of rank 0: phase 1, 1 of 1 arrivals and 0 bytes pending"
    )
    assert f"mbarrier at {BARRIERS_AT} of rank 1: phase 0, 0 of 1 arrivals and -2048 bytes pending" in fault.detail


def test_late_bytes_that_are_not_expected_come_too_late(compiler: str) -> None:
    report, _ = run("not_expected", *rows_of_boxes(2, 1, 1), 1, compiler, Mode.CHECK, Copies.LATE)
    source = unit(FILE, HEADERS)
    late = fault_at(report, FaultKind.MBARRIER, marked(source, "bring", "BRING"))
    assert late.detail.startswith(
        f"2048 bytes of this copy come when the phase of the mbarrier at shared memory offset {BARRIERS_AT} of rank 1"
    )
    read = fault_at(report, FaultKind.RACE, marked(source, "write", "WRITE"))
    assert "of rank 1, which a copy may still write" in read.detail


@pytest.mark.parametrize("copies", Copies)
def test_a_block_that_does_not_wait_reads_what_is_there(copies: Copies, compiler: str) -> None:
    x, mapped = rows_of_boxes(2, 1, 1, seed=list(Copies).index(copies) + 2)  # another than lies there from before
    report, got = run("no_wait", x, mapped, 1, compiler, Mode.CHECK, copies)
    fault = fault_at(report, FaultKind.RACE, marked(unit(FILE, HEADERS), "write", "WRITE"))
    assert fault.block == (1, 0, 0)
    assert "of rank 1, which a copy may still write" in fault.detail
    expected = x[:ROWS].view(np.uint8).ravel()
    np.testing.assert_array_equal(got[0, :2048], expected)
    assert (got[1, :2048] == expected).all() == (copies is Copies.EARLY)


def test_a_block_that_ends_while_a_box_comes_is_found(compiler: str) -> None:
    report, _ = run("ends_meanwhile", *rows_of_boxes(2, 1, 1), 1, compiler, Mode.CHECK, Copies.LATE)
    fault = fault_at(report, FaultKind.COPY, marked(unit(FILE, HEADERS), "ends_meanwhile", "MARK illegal copy"))
    assert fault.detail.startswith("the block ends while this copy to shared memory offset 0 of rank 1 is under way")


def test_the_wrappers_compile() -> None:
    ptx = compile_cuda(unit(FILE, HEADERS).source, "sm_90a").ptx
    for copy in ("2d.shared::cluster.global.tile", "3d.shared::cluster.global.im2col"):
        assert f"cp.async.bulk.tensor.{copy}.mbarrier::complete_tx::bytes.multicast::cluster" in ptx
