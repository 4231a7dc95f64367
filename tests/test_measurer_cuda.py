"""The GPU's measurer on a stand-in: NumPy in place of CuPy, a clock that work moves on, programs that fail to order."""

from __future__ import annotations

import contextlib
import sys
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from conformance import TARGET
from fake_clock import FakeStream, fake_cupy

from convgen.lowering import lower
from convgen.problem import Conv
from convgen.reference import decode, encode, reference
from convgen.strategies import get_strategy
from convgen.tuner import measurer_cuda
from convgen.tuner.builder import Build
from convgen.tuner.measurer import Verdict
from convgen.tuner.measurer_cuda import CudaMeasurer
from convgen.verify import cuda as verify

PROBLEM = Conv.parse("conv2d n=1 c=3 in=8x8 k=4 filter=3x3 pad=1")
DIRECT = get_strategy("direct")


class CUDARuntimeError(RuntimeError):
    """As CuPy's, by its name."""

    def __init__(self, status: int, name: str) -> None:
        super().__init__(name)
        self.status = status


class Gpu(FakeStream):
    """A stream that an error can stick to."""

    def __init__(self) -> None:
        super().__init__()
        self.error: CUDARuntimeError | None = None

    def use(self) -> None:
        pass

    def synchronize(self) -> None:
        super().synchronize()
        if self.error is not None:
            raise self.error


class Program:
    """Computes by the oracle, in `seconds` of the stream's time; `after` is what a run does besides, given its number.

    Captured runs compute nothing: what is replayed is only timed.
    """

    def __init__(self, build: Build, gpu: Gpu) -> None:
        assert build.plan is not None
        self.plan = build.plan
        self._gpu = gpu
        self._seconds, self._after = build.binary  # type: ignore[misc]
        self._runs = 0

    def run(self, inputs: dict[str, Any], outputs: dict[str, Any], *, stream: Any = None) -> None:
        self._runs += 1
        self._gpu.work("kernel", self._seconds)()
        if self._gpu._captured is None:
            problem = self.plan.problem
            values = {spec.name: decode(inputs[spec.name], spec.dtype) for spec in problem.inputs}
            [spec] = problem.outputs
            outputs[spec.name][...] = encode(reference(problem, values), spec.dtype)
        self._after(self._runs, outputs["y"])

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *_: object) -> None:
        if self._gpu.error is not None:
            raise self._gpu.error


class Bench:
    """A measurer on the stand-in, started on PROBLEM."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.gpu = Gpu()
        self.announced: list[str] = []
        device = types.SimpleNamespace(use=lambda: None, id=0, pci_bus_id="0000:00:00.0")
        pool = types.SimpleNamespace(free_all_blocks=lambda: None)
        xp = fake_cupy()
        xp.__getattr__ = lambda name: getattr(np, name)  # type: ignore[method-assign]
        xp.get_default_memory_pool = lambda: pool  # type: ignore[attr-defined]
        xp.cuda.Device = lambda number: device
        xp.cuda.Stream = lambda non_blocking: self.gpu
        xp.cuda.get_current_stream = lambda: self.gpu
        xp.cuda.using_allocator = contextlib.nullcontext
        xp.cuda.runtime = types.SimpleNamespace(
            CUDARuntimeError=CUDARuntimeError,
            runtimeGetVersion=lambda: 13000,
            getDeviceProperties=lambda number: {"name": b"NVIDIA Stand-in"},
        )
        monkeypatch.setitem(sys.modules, "cupy", xp)
        monkeypatch.setattr(verify, "array_module", lambda: xp)
        monkeypatch.setattr(measurer_cuda, "load", lambda plan, binary: Program(self.builds[id(plan)], self.gpu))
        self.builds: dict[int, Build] = {}
        self.measurer = CudaMeasurer(TARGET, 0)
        self.measurer.start(PROBLEM, 0)

    def build(self, seconds: float = 20e-6, after: Callable[[int, Any], None] = lambda number, y: None) -> Build:
        plan = lower(PROBLEM, DIRECT, None, TARGET)
        build = Build("direct", plan.config, plan=plan, binary=(seconds, after), source_key="key")  # type: ignore[arg-type]
        self.builds[id(plan)] = build
        return build

    def measure(self, build: Build, incumbent: float | None = None) -> Verdict:
        self.announced.clear()
        return self.measurer.measure(build, incumbent, self.announced.append)


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(monkeypatch)


def test_a_right_candidate_is_confirmed_and_looked_at_again(bench: Bench) -> None:
    outcome = bench.measure(bench.build()).outcome
    assert (outcome.status, outcome.reason, outcome.stage, outcome.source_key) == ("ok", "", "confirm", "key")
    assert outcome.timing is not None
    assert outcome.timing.median == pytest.approx(20e-6, rel=1e-3)
    assert outcome.timing.rounds == 7
    assert bench.announced[:4] == ["load", "run", "verify", "time"]
    assert bench.announced[-2:] == ["run", "verify"]
    info = bench.measurer.info()
    assert (info.device, info.cuda) == ("NVIDIA Stand-in", "13.0")


def test_a_slow_candidate_runs_twice_after_it_was_verified(bench: Bench) -> None:
    outcome = bench.measure(bench.build(0.1), incumbent=1e-3).outcome
    assert outcome.timing is not None
    assert (outcome.stage, outcome.timing.rounds) == ("screen", 2)
    assert outcome.timing.median == pytest.approx(0.1, rel=1e-3)
    assert bench.gpu.log.count("kernel") == 1 + 2


def sticking(bench: Bench, on: int, status: int) -> Callable[[int, Any], None]:
    def after(number: int, y: Any) -> None:
        if number == on:
            bench.gpu.error = CUDARuntimeError(status, f"cudaError {status}")

    return after


@pytest.mark.parametrize("on", [1, 2, 5])
@pytest.mark.parametrize("status", [700, 715, 716, 719])
def test_a_sticky_error_is_an_illegal_access_and_ends_trust(bench: Bench, on: int, status: int) -> None:
    verdict = bench.measure(bench.build(after=sticking(bench, on, status)))
    assert (verdict.outcome.status, verdict.trusted) == ("illegal_access", False)
    assert str(status) in verdict.outcome.reason


def raising(error: Exception, on: int = 1) -> Callable[[int, Any], None]:
    def after(number: int, y: Any) -> None:
        if number == on:
            raise error

    return after


@pytest.mark.parametrize("on", [1, 4])
@pytest.mark.parametrize(
    ("error", "status", "trusted"),
    [
        (CUDARuntimeError(1, "cudaErrorInvalidValue"), "launch_failure", True),
        (CUDARuntimeError(701, "cudaErrorLaunchOutOfResources"), "launch_failure", True),
        (CUDARuntimeError(2, "cudaErrorMemoryAllocation"), "out_of_memory", True),
        (MemoryError("32 TB"), "out_of_memory", True),
        (CUDARuntimeError(214, "cudaErrorECCUncorrectable"), "failed", False),
        (KeyError("a bug"), "failed", False),
    ],
)
def test_what_a_launch_raises_is_told_apart(
    bench: Bench, error: Exception, status: str, trusted: bool, on: int
) -> None:
    verdict = bench.measure(bench.build(after=raising(error, on)))
    assert (verdict.outcome.status, verdict.trusted) == (status, trusted)
    if trusted:
        assert bench.measure(bench.build()).outcome.status == "ok"


def test_a_wrong_answer_ends_trust(bench: Bench) -> None:
    def spoil(number: int, y: Any) -> None:
        y[0, 1, 2, 3] += 1

    verdict = bench.measure(bench.build(after=spoil))
    assert (verdict.outcome.status, verdict.trusted) == ("wrong_result", False)
    assert "[0, 1, 2, 3]" in verdict.outcome.reason
    assert verdict.outcome.timing is None
    assert verdict.outcome.error == pytest.approx(1.0, rel=1e-3)


def test_a_write_past_the_end_is_an_illegal_access(bench: Bench) -> None:
    def stray(number: int, y: Any) -> None:
        beyond = np.lib.stride_tricks.as_strided(y.reshape(-1), (y.size + 1,), (4,))
        beyond[-1] = 0

    verdict = bench.measure(bench.build(after=stray))
    assert (verdict.outcome.status, verdict.trusted) == ("illegal_access", False)
    assert verdict.outcome.reason == "write beyond the ends of y"


def test_a_candidate_that_is_right_only_at_first_is_wrong(bench: Bench) -> None:
    def forget(number: int, y: Any) -> None:
        if number > 1:
            y[0, 0, 0, 0] = 7.0

    verdict = bench.measure(bench.build(after=forget))
    assert (verdict.outcome.status, verdict.trusted) == ("wrong_result", False)
    assert verdict.outcome.reason.startswith("wrong when run again: ")


def test_finalists_are_timed_together(bench: Bench) -> None:
    builds = [bench.build(seconds) for seconds in (20e-6, 30e-6, 3e-3)]
    broken = bench.build(after=raising(MemoryError()))
    finals = bench.measurer.finals([*builds, broken], 9, bench.announced.append)
    assert finals.trusted
    assert [len(seconds) for seconds in finals.seconds] == [9, 9, 9, 0]
    for seconds, expected in zip(finals.seconds, (20e-6, 30e-6, 3e-3), strict=False):
        assert seconds == pytest.approx([expected] * 9, rel=5e-3)
    slow = bench.measurer.finals([bench.build(1.0), bench.build(2.0)], 21, bench.announced.append)
    assert [len(seconds) for seconds in slow.seconds] == [7, 7]
    lost = bench.measurer.finals([builds[0], bench.build(after=sticking(bench, 1, 700))], 9, bench.announced.append)
    assert (lost.seconds, lost.trusted) == ([[], []], False)
