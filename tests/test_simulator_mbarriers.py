"""mbarriers on the simulator: rings of warps are right, planted faults found and named, deadlocks told whole."""

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

FILE, HEADERS = "mbarriers.cu", ("shared", "shared_address", "cp_async", "mbarrier", "fence")
STEPS = 7


def run(name: str, mode: Mode, compiler: str) -> tuple[Report, npt.NDArray[Any], npt.NDArray[Any]]:
    x = np.arange(STEPS * 32, dtype=np.float32) ** 2
    arguments = {"x": x, "y": (32, np.float32), "steps": STEPS}
    report, out = launch(library(FILE, HEADERS, mode, compiler), name, (3,), (64,), arguments, shared=512, workers=1)
    return report, out["y"], x.reshape(STEPS, 32).sum(axis=0)[::-1]


@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize("name", ["right", "copies_that_arrive"])
def test_a_ring_of_warps_is_right(name: str, mode: Mode, compiler: str) -> None:
    report, got, expected = run(name, mode, compiler)
    np.testing.assert_array_equal(got, expected)
    races = [fault for fault in report.faults if "global y" not in fault.detail]  # three blocks write the same y
    assert races == []


def test_memory_of_an_mbarrier_can_be_used_again(compiler: str) -> None:
    report, got, _ = run("given_back", Mode.CHECK, compiler)
    np.testing.assert_array_equal(got, np.full(32, 5))
    assert [fault for fault in report.faults if "global y" not in fault.detail] == []


def test_an_mbarrier_is_forgotten_with_its_launch(compiler: str) -> None:
    built = library(FILE, HEADERS, Mode.CHECK, compiler)
    run("right", Mode.CHECK, compiler)
    x = np.arange(32, dtype=np.float32)
    for steps in (1, 2):  # up to where the mbarriers were, and beyond
        arguments = {"x": x, "y": (32, np.float32), "steps": steps}
        report, out = launch(built, "plain", (1,), (64,), arguments, shared=256 * steps, workers=1)
        np.testing.assert_array_equal(out["y"], x)
        assert [fault for fault in report.faults if "shared" in fault.detail] == []


FAULTS = [
    ("no_wait", "MARK race", FaultKind.RACE, "with no barrier between"),
    ("read_as_memory", "MARK race", FaultKind.RACE, "where an mbarrier lies"),
    ("not_initialised", "MARK misuse", FaultKind.MBARRIER, "no mbarrier at shared memory offset 256"),
    ("no_barrier_after_init", "MARK misuse", FaultKind.MBARRIER, "a barrier of the block must come between"),
    ("initialised_twice", "MARK misuse", FaultKind.MBARRIER, "is in use: mbarrier_inval it first"),
    ("arrives_too_often", "MARK misuse", FaultKind.MBARRIER, "1 arrivals at the mbarrier at shared memory offset 272"),
    ("expects_too_much", "MARK misuse", FaultKind.MBARRIER, "to expect 1048576 bytes more, it counts up to 1048575"),
    ("expects_bytes_and_ends", "MARK misuse", FaultKind.MBARRIER, "still expects 64 bytes: the sum of expect_tx"),
]


@pytest.mark.parametrize(("name", "mark", "kind", "detail"), FAULTS, ids=[fault[0] for fault in FAULTS])
def test_planted_faults_are_found_and_named(name: str, mark: str, kind: FaultKind, detail: str, compiler: str) -> None:
    report, _, _ = run(name, Mode.CHECK, compiler)
    assert detail in fault_at(report, kind, marked(unit(FILE, HEADERS), name, mark)).detail


@pytest.mark.parametrize("name", ["released_too_early", "no_syncwarp"])
def test_an_early_release_is_found_where_the_buffer_is_filled(name: str, compiler: str) -> None:
    report, _, _ = run(name, Mode.CHECK, compiler)
    assert [fault.kind for fault in report.faults if "shared" in fault.detail]
    for fault in report.faults:
        if "shared" in fault.detail:
            assert fault.kind is FaultKind.RACE
    lines = {line for fault in report.faults for line in fault.lines}
    assert marked(unit(FILE, HEADERS), "produce", "FILL") in lines


DEADLOCKS = [
    (
        "wrong_parity",
        "waits for parity 0 of the mbarrier at shared memory offset 272, whose phase never ends; "
        "mbarrier at 256: phase 0, 32 of 32 arrivals and 0 bytes pending; "
        "mbarrier at 272: phase 0, 1 of 1 arrivals and 0 bytes pending; "
        "mbarrier at 264: phase 0, 32 of 32 arrivals and 0 bytes pending; "
        "mbarrier at 280: phase 0, 1 of 1 arrivals and 0 bytes pending",
    ),
    (
        "expects_bytes_that_nobody_copies",
        "waits for parity 0 of the mbarrier at shared memory offset 256, whose phase never ends; "
        "mbarrier at 256: phase 0, 0 of 32 arrivals and 128 bytes pending; "
        "mbarrier at 272: phase 0, 1 of 1 arrivals and 0 bytes pending; "
        "mbarrier at 264: phase 0, 32 of 32 arrivals and 0 bytes pending; "
        "mbarrier at 280: phase 0, 1 of 1 arrivals and 0 bytes pending",
    ),
]


@pytest.mark.parametrize("mode", [Mode.FAST, Mode.CHECK])
@pytest.mark.parametrize(("name", "detail"), DEADLOCKS, ids=[deadlock[0] for deadlock in DEADLOCKS])
def test_a_deadlock_tells_how_every_mbarrier_stands(name: str, detail: str, mode: Mode, compiler: str) -> None:
    report, _, _ = run(name, mode, compiler)
    fault = fault_at(report, FaultKind.DEADLOCK, marked(unit(FILE, HEADERS), name, "MARK deadlock"))
    assert fault.detail == detail


def test_the_wrappers_compile() -> None:
    binary = compile_cuda(unit(FILE, HEADERS).source, "sm_90a")
    for instruction in (
        "mbarrier.init",
        "mbarrier.try_wait.parity",
        "mbarrier.arrive.expect_tx",
        "fence.mbarrier_init",
    ):
        assert instruction in binary.ptx
