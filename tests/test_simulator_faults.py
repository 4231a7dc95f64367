"""Faults that come together, and blocks that never end."""

from __future__ import annotations

import re
import signal
import time
from pathlib import Path

import pytest
from test_simulator import Kernel, Param
from test_simulator import compiler as compiler  # a fixture

from convgen.errors import UsageError
from convgen.simulator import FaultKind, Library, Memory, Mode, Report, Unit, build, launch_timeout

pytestmark = pytest.mark.usefixtures("compiler")

# Kernels that break a rule in a way that breaks others too, or never end. All take y and run on 64
# threads.
MORE_FAULTS = """
extern "C" __constant__ float first[1024];
extern "C" __constant__ float second[1024];
extern "C" __constant__ float third[1024];

extern "C" __global__ void beyond_pages(float* y) {
    const int i = threadIdx.x + 961;
    y[threadIdx.x] = first[i]  // MARK first
        + second[i]  // MARK second
        + third[i];  // MARK third
}

extern "C" __global__ void half_a_barrier(float* y) {
    float* tile = static_cast<float*>(convgen_sim_shared());
    if (threadIdx.x % 4) tile[threadIdx.x] = 1.0f;
    if (threadIdx.x % 2) __syncthreads();  // MARK divergent barrier
    y[threadIdx.x] = tile[threadIdx.x ^ 1];
}

#define READ(i) { volatile float r = y[i]; }
#define READS(i) READ(i) READ(i + 1) READ(i + 2) READ(i + 3) READ(i + 4) READ(i + 5) READ(i + 6) READ(i + 7)
extern "C" __global__ void many_faults(float* y) {
    READS(0) READS(8) READS(16) READS(24) READS(32) READS(40) READS(48) READS(56) READS(0) READS(8)
    if (threadIdx.x % 2) __syncthreads();  // MARK divergent barrier
}

extern "C" __global__ void atomic_on_unset(float* y) {
    atomicAdd(&y[threadIdx.x], 1.0f);
}

extern "C" __global__ void waits_for_a_value(float* y) {
    volatile float* flag = y + threadIdx.x;
    flag[0] = 0.0f;
    while (flag[0] == 0.0f) {}  // MARK endless
}

extern "C" __global__ void counts_past_its_end(float* y) {
    unsigned i = threadIdx.x;
    while (i != 1000000001u) { i = i * 4u; asm volatile("" : "+r"(i)); }  // MARK endless
    y[threadIdx.x] = i;
}

extern "C" __global__ void waits_at_barriers(float* y) {
    while (__syncthreads_or(threadIdx.x == 0)) {}  // MARK endless
    y[threadIdx.x] = 0.0f;
}
"""


def run_more(name: str, mode: Mode) -> Report:
    return launch_more(build_more(mode), name)


def build_more(mode: Mode) -> Library:
    names = re.findall(r"void (\w+)\(float\* y\)", MORE_FAULTS)
    kernels = tuple(Kernel(found, (Param("y", "float*"),)) for found in names)
    return build([Unit(MORE_FAULTS, kernels, "more.cu")], mode)


def launch_more(built: Library, name: str, blocks: int = 1) -> Report:
    memory = Memory()
    y = memory.allocate("y", 256, writable=True, initialised=False)
    kernel = next(k for k in built.units[0].kernels if k.name == name)
    return built.launch(0, kernel, (blocks, 1, 1), (64, 1, 1), 256, [y], memory, workers=blocks)


def test_a_read_beyond_a_constant_array_of_whole_pages_is_found() -> None:
    """64 threads read elements 961 … 1024 of 1024."""
    faults = run_more("beyond_pages", Mode.CHECK).faults
    assert {f.kind for f in faults} == {FaultKind.OUT_OF_BOUNDS}
    details = {f"read of 4 bytes at constant {array} offset 4096" for array in ("first", "second", "third")}
    assert {f.detail for f in faults} == details
    assert all(f.thread == (63, 0, 0) for f in faults)
    assert all(f.count == 1 for f in faults)


@pytest.mark.parametrize("name", ["half_a_barrier", "many_faults"])
def test_causes_are_told_before_what_they_lead_to(name: str) -> None:
    faults = run_more(name, Mode.CHECK).faults
    assert faults[0].kind is FaultKind.DIVERGENT_BARRIER
    assert faults[0].place[0].text.endswith("// MARK divergent barrier")
    assert faults[-1].kind is FaultKind.UNINITIALISED


def test_an_atomic_on_unset_memory_is_a_read_of_it() -> None:
    (fault,) = run_more("atomic_on_unset", Mode.CHECK).faults
    assert fault.kind is FaultKind.UNINITIALISED
    assert fault.detail == "read of 4 bytes at global y offset 0"
    assert fault.count == 64


@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize("name", ["waits_for_a_value", "counts_past_its_end", "waits_at_barriers"])
def test_a_block_without_end_is_stopped(name: str, mode: Mode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONVGEN_SIM_TIMEOUT", "0.1")
    (fault,) = run_more(name, mode).faults
    assert fault.kind is FaultKind.ENDLESS
    assert fault.detail == "a block ran for 0.1 seconds (CONVGEN_SIM_TIMEOUT) and was stopped"
    assert fault.place[0].text.endswith("// MARK endless")
    assert run_more("beyond_pages", Mode.FAST).faults == ()


@pytest.mark.parametrize("text", ["soon", "-1", "nan", "inf"])
def test_a_timeout_that_is_no_number_of_seconds_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONVGEN_SIM_TIMEOUT", text)
    with pytest.raises(UsageError, match=f"CONVGEN_SIM_TIMEOUT='{text}': expected seconds from 0"):
        run_more("atomic_on_unset", Mode.FAST)
    monkeypatch.setenv("CONVGEN_SIM_TIMEOUT", "")
    assert launch_timeout() == 600


# --- what a launch leaves to the process ------------------------------------------------------------------


class _Alarm(Exception):
    pass


@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize("name", ["waits_for_a_value", "counts_past_its_end", "waits_at_barriers"])
def test_what_a_signals_handler_raises_ends_a_launch(name: str, mode: Mode, monkeypatch: pytest.MonkeyPatch) -> None:
    def ring(*_: object) -> None:
        raise _Alarm

    monkeypatch.setenv("CONVGEN_SIM_TIMEOUT", "30")
    built = build_more(mode)
    former = signal.signal(signal.SIGALRM, ring)
    began = time.monotonic()
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(_Alarm):
            launch_more(built, name, blocks=2)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, former)
    assert time.monotonic() - began < 10
    assert launch_more(built, "atomic_on_unset").coverage == 1.0


def test_libraries_that_are_kept_share_the_memory_of_workers() -> None:
    kept = [build_more(Mode.FAST) for _ in range(5)]
    sizes = []
    for built in kept:
        launch_more(built, "atomic_on_unset", blocks=4)
        sizes.append(_mapped_bytes())
    # The first launches also make what the C library keeps for threads.
    assert sizes[-1] - sizes[1] < 64 << 20


def _mapped_bytes() -> int:
    [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmSize:")]
    return int(line.split()[1]) * 1024
