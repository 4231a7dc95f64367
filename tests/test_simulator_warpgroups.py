"""Named barriers, setmaxnreg, elect.sync and stmatrix on the simulator: right, and planted faults found and named."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from device_cases import fault_at, library, marked, unit
from test_simulator import compiler as compiler  # a fixture
from test_simulator import launch

from convgen.compiler import compile_cuda
from convgen.simulator import FaultKind, Mode, Report

FILE, HEADERS = "warpgroups.cu", ("shared", "named_barrier", "setmaxnreg", "elect", "stmatrix")
STEPS = 5
X = np.random.default_rng(1).integers(0, 1 << 31, STEPS * 128).astype(np.int32)


def run(name: str, threads: int, size: int, mode: Mode, compiler: str) -> tuple[Report, npt.NDArray[Any]]:
    arguments = {"x": X, "y": (size, np.int32), "steps": STEPS}
    report, out = launch(library(FILE, HEADERS, mode, compiler), name, (1,), (threads,), arguments, shared=1040)
    return report, out["y"]


@pytest.mark.parametrize("mode", Mode)
def test_rows_are_handed_over(mode: Mode, compiler: str) -> None:
    report, got = run("hand_over", 256, STEPS * 128, mode, compiler)
    np.testing.assert_array_equal(got.reshape(STEPS, 128), X.reshape(STEPS, 128)[:, ::-1])
    assert report.faults == ()


@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize(("name", "threads"), [("registers", 256), ("registers_of_three", 384)])
def test_registers_change_hands(name: str, threads: int, mode: Mode, compiler: str) -> None:
    report, got = run(name, threads, threads, mode, compiler)
    np.testing.assert_array_equal(got, np.full(threads, STEPS))
    assert report.faults == ()


@pytest.mark.parametrize("mode", Mode)
def test_one_thread_with_work_of_its_own_stays_with_its_warpgroup(mode: Mode, compiler: str) -> None:
    """What all threads do together is one instruction, however a compiler would like to copy it onto two paths."""
    report, _ = run("one_thread_between", 128, 128, mode, compiler)
    assert FaultKind.DIVERGENT_WARP not in {fault.kind for fault in report.faults}


def test_one_lane_of_each_warp_is_elected(compiler: str) -> None:
    report, got = run("elects", 64, 64, Mode.CHECK, compiler)
    assert got.reshape(2, 32).sum(axis=1).tolist() == [1, 1]
    assert report.faults == ()


@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize(
    "name", ["stmatrix_1", "stmatrix_2", "stmatrix_4", "stmatrix_1_transposed", "stmatrix_4_transposed"]
)
def test_matrices_are_stored(name: str, mode: Mode, compiler: str) -> None:
    matrices = int(name.split("_")[1])
    report, got = run(name, 32, matrices * 32, mode, compiler)
    pairs = X[: matrices * 32].view(np.uint16).reshape(matrices, 32, 2)
    expected = np.zeros((matrices, 8, 8), np.uint16)
    for lane in range(32):
        for half in range(2):
            expected[:, lane // 4, lane % 4 * 2 + half] = pairs[:, lane, half]
    if name.endswith("transposed"):
        expected = expected.swapaxes(1, 2)
    np.testing.assert_array_equal(got.view(np.uint16).reshape(expected.shape), expected)
    assert report.faults == ()


FAULTS = [
    ("no_second_barrier", 256, "race", FaultKind.RACE, "write of 4 bytes at shared memory offset "),
    ("barrier_of_one_warpgroup", 256, "race", FaultKind.RACE, "read of 4 bytes at shared memory offset "),
    ("too_few_come", 128, "deadlock", FaultKind.DEADLOCK, "waits at barrier 3 of 128 threads, of which 96 have come"),
    ("barrier_zero", 256, "misuse", FaultKind.BARRIER, "barrier 0, expected 1 to 15"),
    (
        "counts_differ",
        256,
        "misuse",
        FaultKind.BARRIER,
        "barrier 1 of 128 threads, of which others say",
    ),
    (
        "too_many_registers",
        384,
        "deadlock",
        FaultKind.DEADLOCK,
        "setmaxnreg_inc to 224 registers a thread needs 7168",
    ),
    (
        "decrease_that_is_none",
        384,
        "misuse",
        FaultKind.REGISTERS,
        "setmaxnreg_dec to 240 registers a thread, which",
    ),
    ("registers_of_a_warp", 128, "deadlock", FaultKind.DEADLOCK, "waits for the other threads of its warpgroup"),
    ("stmatrix_at_odd_rows", 32, "misaligned", FaultKind.MISALIGNED, "write of 16 bytes at shared memory offset 8 of"),
]


@pytest.mark.parametrize(("name", "threads", "mark", "kind", "detail"), FAULTS, ids=[fault[0] for fault in FAULTS])
def test_planted_faults_are_found_and_named(
    name: str, threads: int, mark: str, kind: FaultKind, detail: str, compiler: str
) -> None:
    report, _ = run(name, threads, STEPS * 128, Mode.CHECK, compiler)
    assert fault_at(report, kind, marked(unit(FILE, HEADERS), name, f"MARK {mark}")).detail.startswith(detail)


def test_the_wrappers_compile() -> None:
    binary = compile_cuda(unit(FILE, HEADERS).source, "sm_90a")
    for instruction in ("bar.sync", "bar.arrive", "setmaxnreg.inc", "setmaxnreg.dec", "elect.sync", "stmatrix.sync"):
        assert instruction in binary.ptx
