"""Measuring in a process of its own, in the simulator: a fault is an outcome, and the next candidate is measured."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from conformance import TARGET
from faulty_strategy import FAULTY, SIMULATED, THREADS, FaultyConfig
from processes_of import descendants, end_within, is_alive

from convgen.errors import DeviceError
from convgen.problem import Conv
from convgen.strategies import Strategy, get_strategy
from convgen.tuner.builder import Build, Builder
from convgen.tuner.limits import Limits
from convgen.tuner.runner import Outcome, Runner

PROBLEM = Conv.parse("conv2d n=1 c=3 in=8x8 k=4 filter=3x3 pad=1")
PATIENCE = 60.0
LIMITS = Limits(simulate=1.5)
DIRECT = get_strategy("direct")


@contextmanager
def measuring(limits: Limits = LIMITS, problem: Conv | None = PROBLEM) -> Iterator[Runner]:
    before = descendants(os.getpid())
    runner = Runner(TARGET, "sim", limits=limits)
    try:
        if problem is not None:
            runner.start(problem)
        yield runner
    finally:
        runner.close()
    assert descendants(os.getpid()) <= before


def builds_of(faults: Sequence[str], threads: int = 64) -> dict[str, Build]:
    builder = Builder(1, PATIENCE, backend="sim")
    futures = {fault: builder.submit(PROBLEM, FAULTY, FaultyConfig(fault, threads), TARGET) for fault in faults}
    builds = {fault: future.result(PATIENCE) for fault, future in futures.items()}
    builder.close()
    return builds


def build_of(problem: Conv, strategy: Strategy) -> Build:
    builder = Builder(1, PATIENCE, backend="sim")
    build = builder.submit(problem, strategy, strategy.default(problem, TARGET), TARGET).result(PATIENCE)
    builder.close()
    return build


@pytest.fixture(scope="module")
def builds() -> dict[str, Build]:
    return builds_of([fault for fault in SIMULATED if fault != "slow_compile"])


def test_a_right_candidate_is_timed_by_the_cost_model(builds: dict[str, Build]) -> None:
    predicted = FAULTY.cost(PROBLEM, FaultyConfig("none", 64), TARGET)
    with measuring() as runner:
        outcome = runner.measure(builds["none"])
        assert (outcome.status, outcome.reason, outcome.stage) == ("ok", "", "confirm")
        assert outcome.timing is not None
        assert predicted <= outcome.timing.low <= outcome.timing.median <= outcome.timing.high <= 1.02 * predicted
        assert outcome.bound is not None
        assert outcome.error is not None
        assert 0 <= outcome.error <= outcome.bound
        assert outcome.source_key == builds["none"].source_key
        assert runner.measure(builds["none"]) == outcome  # the clock is the program's
        screened = runner.measure(builds["none"], incumbent=predicted / 1.2)
        assert screened.timing is not None
        assert (screened.stage, screened.timing.rounds) == ("screen", 3)
        info = runner.info()
        assert info is not None
        assert (info.device, runner.driver) == (f"simulated {TARGET.name}", "")


def test_every_fault_is_named_and_the_next_candidate_is_measured(builds: dict[str, Build]) -> None:
    said = {
        "wrong_element": "1 of 256 elements wrong",
        "illegal_address": "out of bounds",
        "canary": "out of bounds",
        "endless_loop": "simulating it took longer than 1.5 s and was stopped",
        "launch_failure": "2048",
        "out_of_memory": "unused",
        "compile_error": "an_undeclared_name",
        "kill_worker": "the measuring process ended by SIGABRT (simulate)",
    }
    with measuring() as runner:
        for fault, build in builds.items():
            before = runner.pid
            outcome = runner.measure(build)
            assert outcome.status == SIMULATED[fault], outcome.reason
            assert said.get(fault, "") in outcome.reason
            assert (outcome.timing is None) == (fault != "none")
            assert outcome.source_key == build.source_key
            replaced = fault in ("endless_loop", "kill_worker")
            assert (runner.pid is None) == replaced
            assert runner.measure(builds["none"]).status == "ok"
            assert (runner.pid != before) == replaced


def test_what_harmed_a_process_is_not_run_again(builds: dict[str, Build]) -> None:
    with measuring() as runner:
        first = runner.measure(builds["kill_worker"])
        assert runner.measure(builds["none"]).status == "ok"
        pid = runner.pid
        again = runner.measure(builds["kill_worker"])
        assert (again.status, again.reason) == ("worker_died", f"known bad: {first.reason}")
        assert runner.pid == pid
        wrong = [runner.measure(builds["wrong_element"]) for _ in range(2)]
        assert wrong[0] == wrong[1]
        runner.start(PROBLEM, seed=1)
        assert runner.measure(builds["kill_worker"]).reason == again.reason


@pytest.mark.parametrize("by", ["the tuner", "the simulator"])
def test_what_is_too_slow_to_simulate_is_no_hang_and_is_run_again(
    by: str, builds: dict[str, Build], monkeypatch: pytest.MonkeyPatch
) -> None:
    if by == "the simulator":
        monkeypatch.setenv("CONVGEN_SIM_TIMEOUT", "1")
    with measuring(LIMITS if by == "the tuner" else Limits()) as runner:
        first = runner.measure(builds["endless_loop"])
        assert first.status == "run_timeout"
        assert ("CONVGEN_SIM_TIMEOUT" in first.reason) == (by == "the simulator")
        assert runner.measure(builds["endless_loop"]) == first  # not "known bad"


def test_a_run_in_the_simulator_may_take_longer_than_one_on_a_gpu(builds: dict[str, Build]) -> None:
    with measuring(Limits(run=0.0)) as runner:
        assert runner.measure(builds["none"]).status == "ok"


def test_a_process_that_is_killed_is_replaced_and_works_on_the_same_problem(builds: dict[str, Build]) -> None:
    with measuring() as runner:
        first = runner.measure(builds["none"])
        assert runner.pid is not None
        threading.Timer(0.3, os.kill, (runner.pid, signal.SIGKILL)).start()
        outcome = runner.measure(builds["endless_loop"])
        assert (outcome.status, outcome.reason) == ("worker_died", "the measuring process ended by SIGKILL (simulate)")
        assert runner.measure(builds["none"]) == first


def test_a_candidate_that_was_not_built_is_what_its_build_says() -> None:
    build = Build("direct", DIRECT.default(PROBLEM, TARGET), status="compile_timeout", reason="too slow")
    with measuring(problem=None) as runner:
        assert runner.measure(build) == Outcome("compile_timeout", "too slow")
        assert runner.pid is None


def test_processes_lost_one_after_the_other_end_the_search(builds: dict[str, Build]) -> None:
    fatal = [builds["kill_worker"], *builds_of(["kill_worker"], 128).values(), *builds_of(["kill_worker"], 32).values()]
    with measuring(Limits(replacements=1)) as runner:
        assert runner.measure(fatal[0]).status == "worker_died"
        assert runner.measure(builds["none"]).status == "ok"
        assert runner.measure(fatal[1]).status == "worker_died"
        with pytest.raises(
            DeviceError, match=r"2 measuring processes were lost one after the other, the last: the meas"
        ):
            runner.measure(fatal[2])


def test_a_process_that_cannot_start_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONVGEN_SIM_CXX", "nosuch")
    with (
        measuring(problem=None) as runner,
        pytest.raises(DeviceError, match=r"cannot be measured: CONVGEN_SIM_CXX=nosuch"),
    ):
        runner.start(PROBLEM)


@pytest.mark.parametrize(
    "text",
    [
        "conv2d n=*<=4~2 c=3 in=7x6 k=4 filter=3x3 layout=nhwc",
        "conv2d n=2 c=3 in=7x6 k=4 filter=3x3 accumulate=yes direction=dgrad",
        "conv1d n=2 c=4 in=300 k=4 filter=3 direction=wgrad dtype=bf16",
    ],
)
def test_every_kind_of_problem_is_measured(text: str) -> None:
    problem = Conv.parse(text)
    build = build_of(problem, DIRECT)
    with measuring(problem=problem) as runner:
        outcome = runner.measure(build)
        assert outcome.status == "ok", outcome.reason


def test_finalists_have_as_many_rounds_each_and_those_that_fail_have_none(builds: dict[str, Build]) -> None:
    others = [builds_of(["none"], threads)["none"] for threads in THREADS[2:]]
    with measuring() as runner:
        runner.measure(builds["kill_worker"])
        times = runner.finals([builds["none"], builds["kill_worker"], *others], 9)
        assert [len(seconds) for seconds in times] == [9, 0, 9, 9]
        for build, seconds in zip([builds["none"], *others], [times[0], *times[2:]], strict=True):
            assert build.predicted is not None
            assert build.predicted <= min(seconds) < max(seconds) <= 1.02 * build.predicted
        assert runner.pid is not None
        os.kill(runner.pid, signal.SIGKILL)
        assert runner.finals([builds["none"]], 9) == [times[0]]
        assert runner.finals([], 9) == []


def test_closing_ends_a_measurement_in_progress(builds: dict[str, Build]) -> None:
    with measuring(Limits()) as runner, ThreadPoolExecutor(1) as pool:
        measured = pool.submit(runner.measure, builds["endless_loop"])
        time.sleep(0.5)
        runner.close()
        with pytest.raises(DeviceError, match="closed"):
            measured.result(PATIENCE)


SCRIPT = """
    import os, sys
    from conformance import TARGET
    from test_runner import PROBLEM, builds_of
    from convgen.tuner.limits import Limits
    from convgen.tuner.runner import Runner
    [build] = builds_of(["endless_loop"]).values()
    runner = Runner(TARGET, "sim", limits=Limits())
    runner.start(PROBLEM)
    print(runner.pid, flush=True)
    runner.measure(build)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_nothing_is_left_when_the_tuner_is_ended_while_it_measures(number: signal.Signals, tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text(textwrap.dedent(SCRIPT))
    with subprocess.Popen(
        [sys.executable, str(path)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    ) as parent:
        try:
            assert parent.stdout is not None
            worker = int(parent.stdout.readline())
            time.sleep(0.5)
            assert is_alive(worker)
            below = descendants(parent.pid)
            os.killpg(parent.pid, number)
            assert end_within(20, {*below, worker})
            assert parent.wait(20) != 0
        finally:
            parent.kill()
