"""Measuring on the GPU: what candidates can do to it, and what the times are."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Iterator

import pytest
from faulty_strategy import FAULTY, STATUSES, FaultyConfig
from processes_of import descendants

from convgen.problem import Conv
from convgen.space import Config
from convgen.strategies import Strategy, get_strategy
from convgen.target import Target
from convgen.tuner.builder import Build, Builder
from convgen.tuner.limits import Limits
from convgen.tuner.runner import Runner

pytestmark = pytest.mark.gpu

PROBLEM = Conv.parse("conv2d n=1 c=3 in=8x8 k=4 filter=3x3 pad=1")
SLOW = Conv.parse("conv2d n=16 c=256 in=64x64 k=256 filter=3x3 pad=1")
PATIENCE = 120.0
LIMITS = Limits(run=3.0)
GPU_STATUSES = {**STATUSES, "kill_worker": "ok"}


@pytest.fixture(scope="module")
def target() -> Target:
    return Target.current()


@pytest.fixture(scope="module")
def runner(target: Target) -> Iterator[Runner]:
    """One for the whole file: what a test does to it must not matter to the next."""
    before = descendants(os.getpid())
    runner = Runner(target, limits=LIMITS)
    yield runner
    runner.close()
    assert descendants(os.getpid()) <= before


@pytest.fixture(scope="module")
def builder() -> Iterator[Builder]:
    builder = Builder(4, PATIENCE)
    yield builder
    builder.close()


@pytest.fixture(scope="module")
def builds(builder: Builder, target: Target) -> dict[str, Build]:
    return {
        fault: builder.submit(PROBLEM, FAULTY, FaultyConfig(fault, 64), target).result(PATIENCE)
        for fault in STATUSES
        if fault != "slow_compile"
    }


def build_of(builder: Builder, problem: Conv, strategy: Strategy, config: Config | None, target: Target) -> Build:
    chosen = strategy.default(problem, target) if config is None else config
    build = builder.submit(problem, strategy, chosen, target).result(PATIENCE)
    assert build.status == "ok", build.reason
    return build


@pytest.mark.parametrize("fault", [fault for fault in STATUSES if fault != "slow_compile"])
def test_every_fault_is_named_and_the_next_candidate_is_measured(
    runner: Runner, builds: dict[str, Build], fault: str
) -> None:
    said = {
        "wrong_element": "1 of 256 elements wrong",
        "canary": "write beyond the ends of y",
        "endless_loop": "no end after 3 s while its kernels ran; it was stopped",
        "illegal_address": "illegal",
        "launch_failure": "INVALID_VALUE",
        "compile_error": "an_undeclared_name",
    }
    runner.start(PROBLEM)
    before = runner.pid
    outcome = runner.measure(builds[fault])
    assert outcome.status == GPU_STATUSES[fault], outcome.reason
    assert said.get(fault, "") in outcome.reason
    replaced = fault in ("wrong_element", "canary", "endless_loop", "illegal_address")
    assert (runner.pid is None) == replaced
    assert runner.measure(builds["none"]).status == "ok"
    assert (runner.pid != before) == replaced
    if replaced and fault != "wrong_element":
        pid = runner.pid
        again = runner.measure(builds[fault])
        assert (again.status, again.reason) == (outcome.status, f"known bad: {outcome.reason}")
        assert runner.pid == pid


def test_a_process_that_is_killed_is_replaced(target: Target, builds: dict[str, Build]) -> None:
    runner = Runner(target, limits=Limits(run=60.0))
    runner.start(PROBLEM)
    assert runner.pid is not None
    threading.Timer(1.0, os.kill, (runner.pid, signal.SIGKILL)).start()
    outcome = runner.measure(builds["endless_loop"])
    assert (outcome.status, outcome.reason) == ("worker_died", "the measuring process ended by SIGKILL (run)")
    assert runner.measure(builds["none"]).status == "ok"
    runner.close()


def test_closing_ends_a_kernel_that_would_not(target: Target, builds: dict[str, Build]) -> None:
    before = descendants(os.getpid())
    runner = Runner(target, limits=Limits(run=600.0))
    runner.start(PROBLEM)
    thread = threading.Thread(target=_quietly, args=(runner, builds["endless_loop"]))
    thread.start()
    time.sleep(1.0)
    runner.close()
    thread.join(PATIENCE)
    assert not thread.is_alive()
    assert descendants(os.getpid()) <= before


def _quietly(runner: Runner, build: Build) -> None:
    with pytest.raises(Exception, match="closed"):
        runner.measure(build)


def test_the_device_is_told(runner: Runner, target: Target) -> None:
    runner.start(PROBLEM)
    info = runner.info()
    assert info is not None
    assert info.device
    assert re.fullmatch(r"\d+\.\d+", info.cuda)
    assert re.fullmatch(r"[\d.]*", info.driver)
    assert runner.driver == info.driver
    assert info.sm_mhz is None or 100 < info.sm_mhz < 5000
    assert info.celsius is None or 0 < info.celsius < 120


@pytest.mark.parametrize(
    ("text", "strategy", "changes"),
    [
        ("conv2d n=2 c=16 in=20x20 k=24 filter=3x3 pad=1 dtype=bf16 layout=nhwc epilogue=bias+relu", "direct", ""),
        ("conv2d n=*<=8~4 c=16 in=20x20 k=16 filter=3x3 dtype=fp16", "direct", ""),
        ("conv2d n=2 c=8 in=20x20 k=8 filter=3x3 accumulate=yes direction=dgrad", "direct", ""),
        ("conv2d n=8 c=32 in=28x28 k=64 filter=3x3 pad=1 direction=wgrad", "im2col", ""),
        ("conv1d n=4 c=32 in=4000 k=32 filter=5", "direct", ""),
        ("conv2d n=1 c=1 in=512x512 k=1 filter=5x5 pad=2", "direct", "filter=constant"),
        ("conv2d n=1 c=1 in=300x304 k=1 filter=3x3 pad=1", "direct", "input=texture"),
        ("conv2d n=1 c=64 in=56x56 k=64 filter=3x3 pad=1", "im2col", ""),
        ("conv2d n=16 c=64 in=112x112 k=64 filter=3x3 pad=1", "direct", ""),
    ],
)
def test_every_kind_of_kernel_is_timed(
    runner: Runner, builder: Builder, target: Target, text: str, strategy: str, changes: str
) -> None:
    problem, chosen = Conv.parse(text), get_strategy(strategy)
    config = chosen.default(problem, target)
    if changes == "input=texture":
        textbook = (
            "along_x=column,threads_channel=1,threads_column=256,tile_b=1,tile_channel=1,tile_position=1,vector=1"
        )
        changes = f"{textbook},filter=constant,{changes},split_q=1,split_taps=1"
    build = build_of(builder, problem, chosen, type(config).parse(changes, config), target)
    runner.start(problem)
    outcome = runner.measure(build)
    assert outcome.status == "ok", outcome.reason
    assert outcome.timing is not None
    assert (outcome.stage, outcome.timing.low > 0) == ("confirm", True)
    assert outcome.error is not None
    assert outcome.bound is not None
    assert outcome.error <= outcome.bound
    # Nothing is faster than the card: what is must have been left out.
    fixed = problem.at(problem.typical_batch) if problem.is_runtime_batch else problem
    assert outcome.timing.median > fixed.flops / target.peak.fp32


def test_a_slow_candidate_is_run_twice_and_a_finalist_at_least_seven_times(
    runner: Runner, builder: Builder, target: Target
) -> None:
    slow = build_of(builder, SLOW, FAULTY, FaultyConfig("none", 32), target)
    quick = build_of(builder, SLOW, get_strategy("direct"), None, target)
    runner.start(SLOW)
    outcome = runner.measure(slow, incumbent=1e-6)
    assert outcome.timing is not None
    assert (outcome.stage, outcome.timing.rounds <= 3) == ("screen", True)
    assert runner.measure(quick, incumbent=outcome.timing.median).stage == "confirm"
    times = runner.finals([quick, slow], 21)
    assert len(times[0]) == len(times[1])
    assert 7 <= len(times[0]) <= 21
    assert max(times[0]) < min(times[1])


def test_memory_is_given_back_from_candidate_to_candidate(runner: Runner, builder: Builder, target: Target) -> None:
    """The answer takes 0.5 GB, and as much again to be verified: on no GPU would there be room for all of them."""
    problem = Conv.parse("conv2d n=64 c=1 in=1024x1024 k=2 filter=1x1")
    build = build_of(builder, problem, FAULTY, FaultyConfig("none", 256), target)
    runner.start(problem)
    pid = runner.pid
    for _ in range(300):
        outcome = runner.measure(build, incumbent=1e-9)
        assert outcome.status == "ok", outcome.reason
    assert runner.pid == pid
