"""How long to time, in which order, and on which memory."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from fake_clock import LAUNCH_SECONDS, FakeStream, fake_cupy

from convgen import measure
from convgen.measure import BufferSets, Replay, Rounds, Timing, adaptive, buffer_sets, interleave, repeat, repetitions
from convgen.problem import Conv
from convgen.reference import encode, make_inputs
from convgen.runtime.physical import with_strides

L2 = 50 << 20


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> FakeStream:
    monkeypatch.setitem(sys.modules, "cupy", fake_cupy())
    return FakeStream()


def test_quartiles_lie_between_the_times() -> None:
    assert Timing.of([3.0, 1.0]) == Timing(2.0, 1.5, 2.5, 2)
    timing = Timing.of([5.0, 1.0, 4.0, 2.0, 3.0])
    assert timing == Timing(3.0, 2.0, 4.0, 5)
    assert timing.spread == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("nbytes", "sets"), [(1, 1024), (4 * L2 // 1024, 1024), (1 << 20, 200), (3 << 20, 67), (L2, 4), (1 << 30, 2)]
)
def test_sets_exceed_the_l2_four_times_as_far_as_a_graph_allows(nbytes: int, sets: int) -> None:
    assert buffer_sets(nbytes, L2) == sets


@pytest.mark.parametrize(
    ("us", "sets", "count"),
    [(2, 1024, 1024), (2, 4, 52), (20, 4, 8), (25, 4, 4), (100, 2, 2), (1900, 2, 2), (7, 3, 15)],
)
def test_a_graph_takes_100_us_in_whole_cycles(us: int, sets: int, count: int) -> None:
    assert repetitions(us * 1e-6, sets) == count


# --- how many rounds --------------------------------------------------------------------------------------


def steady(seconds: float, spread: float = 0.0) -> Callable[[], float]:
    return map(seconds.__mul__, itertools.cycle([1.0, 1.0 - spread, 1.0 + spread])).__next__


def test_a_candidate_far_from_the_incumbent_is_only_screened() -> None:
    assert adaptive(steady(11.1e-6), 10e-6, 1e-4) == (Timing(11.1e-6, 11.1e-6, 11.1e-6, 3), "screen")


@pytest.mark.parametrize("incumbent", [10e-6, None])
def test_one_near_the_incumbent_is_confirmed_until_it_is_settled(incumbent: float | None) -> None:
    timing, stage = adaptive(steady(10.5e-6, 0.001), incumbent, 1e-4)
    assert (stage, timing.rounds) == ("confirm", 7)
    timing, stage = adaptive(steady(10.5e-6, 0.05), incumbent, 1e-4)
    assert (stage, timing.rounds) == ("confirm", 30)
    assert timing.median == pytest.approx(10.5e-6)


def test_slow_work_is_run_twice_and_a_few_times_more_if_it_is_the_best() -> None:
    assert adaptive(steady(0.1), 0.01, 0.1, known=[0.1])[0].rounds == 2
    assert adaptive(steady(0.1, 0.05), 0.1, 0.1)[0].rounds == 5
    timing, stage = adaptive(steady(3.0, 0.05), None, 3.0)
    assert (timing.median, timing.rounds, stage) == (pytest.approx(2.925), 2, "confirm")


# --- in which order ---------------------------------------------------------------------------------------


def test_contestants_are_replayed_forwards_and_backwards_on_a_busy_gpu(stream: FakeStream) -> None:
    lengths = {"a": 10e-6, "b": 20e-6, "c": 30e-6}
    replays = {name: measure.capture(stream, [stream.work(name, t)] * 4) for name, t in lengths.items()}
    stream.log.clear()
    times = interleave(stream, replays, 3)
    replayed = [name for name, _ in itertools.groupby(stream.log)]
    assert stream.log.count("b") == 4 * 4
    # One more of what comes first keeps the GPU busy; it runs into that contestant's own replay.
    assert replayed == ["a", "b", "c", "b", "a", "b", "c", "b", "a"]
    assert [stream.log.count(name) for name in "abc"] == [4 * 6, 4 * 4, 4 * 6]
    for name, seconds in lengths.items():
        assert times[name] == pytest.approx([seconds] * 3)


def test_long_work_is_not_repeated_to_keep_the_gpu_busy(stream: FakeStream) -> None:
    rounds = Rounds(stream, {"slow": Replay(stream.work("slow", 0.1), 1, 0.1)})
    assert rounds.next() == {"slow": pytest.approx(0.1, rel=1e-3)}
    assert stream.log == ["slow"]


def runner(stream: FakeStream, seconds: float) -> Callable[[int], None]:
    return lambda index: stream.work(f"set {index}", seconds)()


@pytest.mark.parametrize(
    ("us", "sets", "graphs"), [(2.0, 4, [12, 40]), (30.0, 4, [4]), (90.0, 3, [3]), (2.0, 200, [200])]
)
def test_a_graph_is_as_long_as_the_kernel_needs_not_its_launch(
    stream: FakeStream, us: float, sets: int, graphs: list[int]
) -> None:
    replay, known = repeat(stream, runner(stream, us * 1e-6), sets)
    assert stream.graphs == graphs
    assert (replay.repetitions, known) == (graphs[-1], ())
    assert replay.seconds == pytest.approx(us * 1e-6 + LAUNCH_SECONDS / graphs[-1])
    stream.log.clear()
    replay.launch()
    assert stream.log == [f"set {i % sets}" for i in range(graphs[-1])]


def test_long_work_needs_no_graph_and_takes_the_sets_in_turn(stream: FakeStream) -> None:
    replay, known = repeat(stream, runner(stream, 0.1), 3)
    assert known == (pytest.approx(0.1, rel=1e-3),)
    for _ in range(4):
        replay.launch()
    assert stream.log == ["set 0", "set 1", "set 2", "set 0", "set 1"]
    assert stream.graphs == []


def test_a_capture_that_fails_leaves_the_stream_as_it_was(stream: FakeStream) -> None:
    def refused(index: int) -> None:
        if index == 1:
            raise MemoryError("no workspace")
        stream.work("first", 1e-6)()

    with pytest.raises(MemoryError):
        repeat(stream, refused, 2)
    stream.begin_capture()


# --- on which memory --------------------------------------------------------------------------------------


def arrays_of(problem: Conv) -> dict[str, Any]:
    values = make_inputs(problem, 0)
    specs = [problem.tensor(name) for name in values]
    return {s.name: with_strides(s, encode(values[s.name], s.dtype)) for s in specs}


@pytest.mark.parametrize(
    "text", ["dtype=bf16 layout=nhwc", "dtype=fp16 accumulate=yes direction=dgrad", "epilogue=bias"]
)
def test_every_set_has_the_problems_arrays_as_they_lie_in_memory(text: str) -> None:
    problem = Conv.parse(f"conv2d n=2 c=4 in=9x8 k=6 filter=3x3 pad=1 {text}")
    arrays = arrays_of(problem)
    sets = BufferSets(problem, arrays, 5 * problem.bytes // 4, np)
    assert len(sets) == 5
    for spec in problem.inputs:
        copies = [inputs[spec.name] for inputs in sets.inputs]
        assert len({copy.ctypes.data for copy in copies} | {arrays[spec.name].ctypes.data}) == 6
        for copy in copies:
            np.testing.assert_array_equal(copy, arrays[spec.name])
            assert tuple(s // copy.itemsize for s in copy.strides) == spec.strides
    [spec] = problem.outputs
    output = sets.outputs[3][spec.name]
    assert tuple(s // output.itemsize for s in output.strides) == spec.strides
    output[...] = 1
    sets.refill(3)
    if problem.accumulate:
        np.testing.assert_array_equal(output, arrays[spec.name])
    else:
        assert output.tobytes() == b"\xff" * spec.nbytes


@pytest.mark.parametrize(("fitting", "made"), [(1, 1), (2, 2), (3, 2), (4, 3), (9, 5)])
def test_fewer_sets_serve_where_memory_is_short(fitting: int, made: int, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = Conv.parse("conv1d n=2 c=4 in=9 k=6 filter=3")
    left = fitting

    class Short:
        @staticmethod
        def empty(size: int, dtype: Any) -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                raise MemoryError
            return np.empty(size, dtype)

    assert len(BufferSets(problem, arrays_of(problem), 5 * problem.bytes // 4, Short)) == made
    left = 0
    with pytest.raises(MemoryError):
        BufferSets(problem, arrays_of(problem), 5 * problem.bytes // 4, Short)
