"""The compile pool: what it makes of candidates, good and bad."""

from __future__ import annotations

import dataclasses
import os
import re
import sys
import time
from collections.abc import Iterator
from concurrent.futures import wait

import pytest
from conformance import TARGET
from faulty_strategy import CRASHING, FAULTY, HINDERED, RAISING, THREADS, FaultyConfig
from processes_of import descendants

from convgen.cache import content_key
from convgen.compiler import compile_cuda
from convgen.errors import DeviceError
from convgen.lowering import lower
from convgen.plan import batch_extent, extent_plus
from convgen.problem import Conv
from convgen.processes import ChildDied
from convgen.render import render
from convgen.strategies import get_strategy
from convgen.tuner.builder import Build, Builder, program_key

PROBLEM = Conv.parse("conv2d n=1 c=3 in=8x8 k=4 filter=3x3 pad=1")
DIRECT = get_strategy("direct")
PATIENCE = 60.0


@pytest.fixture(scope="module")
def builder() -> Iterator[Builder]:
    before = descendants(os.getpid())
    builder = Builder(1, PATIENCE)
    yield builder
    builder.close()
    assert descendants(os.getpid()) <= before


def built(builder: Builder, strategy: object, config: object, problem: Conv = PROBLEM) -> Build:
    return builder.submit(problem, strategy, config, TARGET).result(PATIENCE)  # type: ignore[arg-type]


def test_a_candidate_becomes_the_binary_of_its_plan(builder: Builder) -> None:
    config = DIRECT.default(PROBLEM, TARGET)
    build = built(builder, DIRECT, config)
    plan = lower(PROBLEM, DIRECT, config, TARGET)
    assert (build.status, build.reason, build.strategy, build.config) == ("ok", "", "direct", config)
    assert build.plan == plan
    assert build.source == render(plan)
    assert build.binary is not None
    assert build.binary.cubin == compile_cuda(render(plan), TARGET, name=f"{plan.name}.cu").cubin
    assert build.predicted == DIRECT.cost(PROBLEM, config, TARGET)
    assert build.seconds > 0


def test_a_template_may_lie_outside_the_package(builder: Builder) -> None:
    build = built(builder, FAULTY, FaultyConfig("none", 64))
    assert build.status == "ok"
    assert "textbook convolution" in build.source


def test_what_is_wrong_with_a_candidate_is_its_status(builder: Builder) -> None:
    refused = built(builder, FAULTY, FaultyConfig("compile_error", 64))
    assert (refused.status, refused.binary) == ("compile_error", None)
    assert "an_undeclared_name" in refused.reason
    illegal = built(builder, DIRECT, dataclasses.replace(DIRECT.default(PROBLEM, TARGET), threads_column=4096))
    assert (illegal.status, illegal.plan) == ("failed", None)
    assert "4096" in illegal.reason
    other = Conv.parse("conv2d n=1 c=3 in=8x8 k=4 filter=3x3 pad=1 stride=2")
    elsewhere = built(builder, FAULTY, FaultyConfig("none", 64), other)
    assert (elsewhere.status, elsewhere.reason) == (
        "failed",
        "faulty does not apply: it computes plain 2-D convolutions alone",
    )
    bug = built(builder, RAISING, FaultyConfig("none", 64))
    assert (bug.status, bug.reason) == ("failed", "ZeroDivisionError: a bug of the strategy's")


def test_a_strategy_that_cannot_be_sent_fails(builder: Builder) -> None:
    class Local(type(FAULTY)):  # type: ignore[misc]
        pass

    build = built(builder, Local(), FaultyConfig("none", 64))
    assert build.status == "failed"
    assert "cannot be sent" in build.reason


def test_a_candidate_that_crashes_its_process_or_never_ends_is_replaced() -> None:
    before = descendants(os.getpid())
    patient = Builder(1, PATIENCE)
    crashed = built(patient, CRASHING, FaultyConfig("none", 64))
    assert crashed.status == "worker_died"
    assert crashed.reason.startswith("the building process ended by SIGABRT")
    assert built(patient, FAULTY, FaultyConfig("none", 64)).status == "ok"
    patient.close()
    builder = Builder(1, 1.0)
    slow = built(builder, FAULTY, FaultyConfig("slow_compile", 64))
    assert (slow.status, slow.reason) == ("compile_timeout", "building it took longer than 1 s and was stopped")
    assert slow.seconds > 0.9
    builder.close()
    assert descendants(os.getpid()) <= before


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (
            "kill_worker",
            r"^free memory, or build with fewer processes \(--jobs\): the building process ended by SIGKILL",
        ),
        ("out_of_memory", r"^hindered cannot be built on this machine: MemoryError"),
        ("canary", r"^hindered cannot be built on this machine: .*No space left on device"),
    ],
)
def test_what_is_wrong_with_the_machine_is_no_status(builder: Builder, fault: str, said: str) -> None:
    with pytest.raises(DeviceError, match=said):
        built(builder, HINDERED, FaultyConfig(fault, 64))
    assert built(builder, FAULTY, FaultyConfig("none", 64)).status == "ok"


def test_a_process_that_cannot_be_started_is_no_status(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    builder = Builder(1, PATIENCE)
    with pytest.raises(DeviceError, match=r"the building process cannot be started"):
        built(builder, FAULTY, FaultyConfig("none", 64))
    builder.close()


def test_workers_share_the_candidates_and_close_at_once() -> None:
    before = descendants(os.getpid())
    builder = Builder(2, PATIENCE, backend="sim")
    candidates = [FaultyConfig("none", threads) for threads in THREADS]
    futures = [builder.submit(PROBLEM, FAULTY, config, TARGET) for config in candidates]
    builds = [future.result(PATIENCE) for future in futures]
    assert [(build.config, build.status, build.binary) for build in builds] == [(c, "ok", None) for c in candidates]
    slow = [builder.submit(PROBLEM, FAULTY, FaultyConfig("slow_compile", 64), TARGET) for _ in range(4)]
    deadline = time.monotonic() + PATIENCE
    while not (slow[0].running() and slow[1].running()) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert slow[0].running()
    assert slow[1].running()
    assert slow[3].cancel()
    builder.close()
    assert not wait(slow, PATIENCE).not_done
    with pytest.raises(ChildDied):
        slow[0].result()
    assert descendants(os.getpid()) <= before


def test_equal_programs_have_equal_keys_whatever_they_are_called() -> None:
    def key(config: FaultyConfig, problem: Conv = PROBLEM, backend: str = "cuda") -> str:
        plan = lower(problem, FAULTY, config, TARGET)
        return program_key(plan, render(plan), backend)  # type: ignore[arg-type]

    plan = lower(PROBLEM, FAULTY, FaultyConfig("none", 64), TARGET)
    renamed = dataclasses.replace(plan.kernels[0], name="another_name")
    steps = tuple(dataclasses.replace(step, kernel=renamed) for step in plan.launches)
    other = dataclasses.replace(plan, kernels=(renamed,), steps=steps, name="another")
    source = render(plan).replace(plan.kernels[0].name, "another_name")
    source = re.sub(r"^// faulty: .*$", "// faulty: another config", source, flags=re.MULTILINE)
    assert source != render(plan)
    assert program_key(other, source, "cuda") == key(FaultyConfig("none", 64))
    wider = Conv.parse("conv2d n=1 c=3 in=8x9 k=4 filter=3x3 pad=1")
    keys = {
        key(FaultyConfig("none", 64)),
        key(FaultyConfig("none", 128)),
        key(FaultyConfig("wrong_element", 64)),
        key(FaultyConfig("launch_failure", 64)),
        key(FaultyConfig("none", 64), wider),
        key(FaultyConfig("none", 64), backend="sim"),
    }
    assert len(keys) == 6


def test_options_of_launches_that_are_not_used_are_in_no_key() -> None:
    """Databases hold keys of before there were clusters and early launches: their winners are to stay trusted."""
    plan = lower(PROBLEM, FAULTY, FaultyConfig("none", 64), TARGET)
    [launch] = plan.launches
    told = ", ".join(
        f"{name}={getattr(launch, name)!r}" for name in ("kernel", "grid", "block", "args", "shared_bytes")
    )
    steps = f"((Launch({told}),), {plan.workspace!r})".replace(launch.kernel.name, "kernel_0")
    assert program_key(plan, "code", "cuda") == content_key("cuda", TARGET.arch, "code", steps)
    for changed in ({"is_early": True}, {"cluster": (1, 2, 1), "grid": (1, 2, 1)}):
        other = dataclasses.replace(plan, steps=(dataclasses.replace(launch, **changed),))  # type: ignore[arg-type]
        assert program_key(other, "code", "cuda") != program_key(plan, "code", "cuda")
    of_batch = "SizeExtent(factors=(SizeFactor(size='n', times=3, by=1),), scale=1)"
    for grid, is_as_before in ((batch_extent(3), True), (extent_plus(batch_extent(3), 5), False)):
        other = dataclasses.replace(plan, steps=(dataclasses.replace(launch, grid=(grid, 1, 1)),))
        key = content_key("cuda", TARGET.arch, "code", steps.replace(repr(launch.grid), f"({of_batch}, 1, 1)"))
        assert (program_key(other, "code", "cuda") == key) == is_as_before
