"""Bound calls and prepared weights on a fake GPU: the short way does what the long way does, or leaves it to it."""

from __future__ import annotations

import ctypes
import dataclasses
import gc
import threading
from array import array
from collections.abc import Iterator
from typing import Any

import hand_plans
import numpy as np
import pytest
from fake_gpu import Fake, FakeTensor, Status, aligned, installed, tensor

from convgen.errors import UsageError
from convgen.plan import Buffer, CopyToSymbol, Launch, Plan, ScalarArg, TensorArg, WorkspaceArg
from convgen.problem import Sizes
from convgen.runtime import bound as module
from convgen.runtime.arrays import native
from convgen.runtime.bound import BoundCall
from convgen.runtime.cuda import CudaProgram
from convgen.runtime.prepared import PreparedWeights
from convgen.target import Target
from convgen.tensor_map import TensorMap

LENGTH = hand_plans.LENGTH
PLAN = hand_plans.every_step(Target.preset("h200"), n="4")


@pytest.fixture
def gpu() -> Iterator[Fake]:
    with installed() as fake:
        fake.driver.current = 100  # as in a thread that has used CUDA
        yield fake


def _x(seed: int = 0, offset: int = 0) -> FakeTensor:
    return tensor(np.random.default_rng(seed).standard_normal((4, 1, LENGTH), dtype=np.float32), offset)


def _w(factor: float) -> FakeTensor:
    return tensor(np.full((1, 1, 1), factor, np.float32))


def _bound(program: CudaProgram, prepared: PreparedWeights | None = None) -> BoundCall:
    library, x = native("x", _x())
    make = library.maker((4, 1, LENGTH), (LENGTH, LENGTH, 1), "fp32", x)
    return BoundCall(program, library, 0, Sizes.of(n=4), make, prepared)


def _launches(fake: Fake) -> list[Any]:
    return [call for call in fake.driver.calls if call[0] in ("copy", "memset", "launch")]


# --- the short way ------------------------------------------------------------------------------------


def test_the_short_way_puts_the_same_work_on_the_stream(gpu: Fake) -> None:
    program = gpu.program(PLAN)
    long = program.run({"x": _x(), "w": _w(3)})["y"]
    done, gpu.driver.calls = _launches(gpu), []
    short = _bound(program)((_x(), _w(3)))
    np.testing.assert_array_equal(short.array, long.array)
    assert _launches(gpu) == done
    assert len(done) == 5


def test_both_ways_launch_clusters(gpu: Fake) -> None:
    program = gpu.program(hand_plans.in_clusters(Target.preset("h200"), n="4"))
    long = program.run({"x": _x(), "w": _w(3)})["y"]
    done, gpu.driver.calls = gpu.driver.calls, []
    short = _bound(program)((_x(), _w(3)))
    np.testing.assert_array_equal(short.array, long.array)
    launches = [call for call in gpu.driver.calls if call[0] in ("cluster", "launch")]
    assert launches == [call for call in done if call[0] in ("cluster", "launch")]
    assert launches[0] == ("cluster", (2, 1, 1))
    assert [call[1] for call in launches[1:]] == ["multiply", "finish"]


def test_every_call_reads_its_own_arrays(gpu: Fake) -> None:
    call = _bound(gpu.program(PLAN))
    for seed in range(5):
        np.testing.assert_array_equal(call((_x(seed), _w(seed))).array, _x(seed).array * seed)
    assert gpu.driver.names().count("load") == 1


def test_the_current_stream_is_used(gpu: Fake) -> None:
    call = _bound(gpu.program(PLAN))
    for stream in (7, 21, 7):
        gpu.torch.stream = stream
        gpu.driver.calls.clear()
        call((_x(), _w(3)))
        assert {c[-1] for c in _launches(gpu)} == {stream}
        assert gpu.torch.allocated[-1][0] == stream


def test_tensor_maps_follow_their_tensors(gpu: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fake map is its tensor's address, 16 times: kernels find those of this call, whichever the last one had."""
    encoded: list[int] = []

    def encode(tensor_map: TensorMap, address: int) -> array[int]:
        encoded.append(address)
        return array("Q", [address] * 16)

    monkeypatch.setattr(module, "encode", encode)
    monkeypatch.setattr(module, "MAX_ADDRESSES", 3)
    found: list[list[int]] = []
    multiply = gpu.driver._multiply

    def watched(pointers: int, constants: Any) -> None:
        places = (ctypes.c_uint64 * 8).from_address(pointers)
        maps = [list((ctypes.c_uint64 * 16).from_address(places[slot])) for slot in (5, 6, 7)]
        assert all(len(set(words)) == 1 for words in maps)
        product = ctypes.c_uint64.from_address(places[1]).value
        found.append([words[0] for words in maps])
        assert maps[1][0] == product
        multiply(pointers, constants)

    monkeypatch.setattr(gpu.driver, "_multiply", watched)
    call = _bound(gpu.program(hand_plans.by_maps(Target.preset("h200"), n="4")))
    xs, ws = [_x(seed) for seed in range(5)], [_w(2), _w(3)]
    for x, w in [(xs[0], ws[0]), (xs[0], ws[0]), (xs[1], ws[0]), (xs[0], ws[1]), *((x, ws[0]) for x in xs)]:
        y = call((x, w))
        np.testing.assert_array_equal(y.array, x.array * w.array[0, 0, 0])
        assert (found[-1][0], found[-1][2]) == (x.data_ptr(), w.data_ptr())
    assert encoded.count(ws[0].data_ptr()) == 1  # remembered
    assert encoded.count(xs[0].data_ptr()) <= 2  # forgotten once, of four that came in between


def test_maps_of_prepared_weights_stay(gpu: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def encode(tensor_map: TensorMap, address: int) -> array[int]:
        seen.append(address)
        return array("Q", [address] * 16)

    monkeypatch.setattr(module, "encode", encode)
    monkeypatch.setattr("convgen.runtime.cuda.encode", lambda tensor_map, address: array("Q", [address] * 16))
    program = gpu.program(hand_plans.by_maps(Target.preset("h200"), n="4"))
    w = _w(3)
    call = _bound(program, program.prepare(w))
    for seed in range(3):
        np.testing.assert_array_equal(call((_x(seed),)).array, _x(seed).array * 3)
    assert seen.count(w.data_ptr()) == 1


def test_streams_are_bounded(gpu: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_STREAMS", 3)
    call = _bound(gpu.program(PLAN))
    for stream in range(10, 20):
        gpu.torch.stream = stream
        np.testing.assert_array_equal(call((_x(), _w(3))).array, _x().array * 3)
        assert len(call._streams) <= 3


def test_a_given_output_is_written(gpu: Fake) -> None:
    out = FakeTensor(aligned((4, 1, LENGTH)))
    assert _bound(gpu.program(PLAN))((_x(), _w(3)), out) is out
    np.testing.assert_array_equal(out.array, _x().array * 3)


def test_nothing_waits(gpu: Fake) -> None:
    _bound(gpu.program(PLAN))((_x(), _w(3)))
    assert "synchronize" not in gpu.driver.names()


def test_threads_share_a_call(gpu: Fake) -> None:
    call = _bound(gpu.program(PLAN))
    wrong: list[int] = []

    def work(seed: int) -> None:
        for _ in range(30):
            if not np.array_equal(call((_x(seed), _w(seed))).array, _x(seed).array * seed):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(1, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


# --- what it leaves to the long way -------------------------------------------------------------------


@pytest.mark.parametrize("offset", [4, 8, 12])
def test_a_misaligned_array_is_left(gpu: Fake, offset: int) -> None:
    assert _bound(gpu.program(PLAN))((_x(offset=offset), _w(3))) is None
    assert not _launches(gpu)


def test_an_array_aligned_as_it_needs_is_taken(gpu: Fake) -> None:
    w = tensor(np.full((1, 1, 1), 3, np.float32), offset=4)  # x needs 16 bytes, w its element's 4
    np.testing.assert_array_equal(_bound(gpu.program(PLAN))((_x(), w)).array, _x().array * 3)


def test_an_overlapping_output_is_left(gpu: Fake) -> None:
    x = _x()
    before = x.array.copy()
    assert _bound(gpu.program(PLAN))((x, _w(3)), x) is None
    np.testing.assert_array_equal(x.array, before)


def test_another_current_device_is_left(gpu: Fake) -> None:
    gpu.torch.device = 1
    assert _bound(gpu.program(PLAN))((_x(), _w(3))) is None
    assert not gpu.torch.allocated


def test_a_launch_that_cuda_refuses_is_left(gpu: Fake) -> None:
    call = _bound(gpu.program(PLAN))
    gpu.driver.launch_status = Status(701)
    assert call((_x(), _w(3))) is None
    gpu.driver.launch_status = Status(0)
    np.testing.assert_array_equal(call((_x(), _w(3))).array, _x().array * 3)


def test_a_thread_without_a_context_has_one_after_the_first_call(gpu: Fake) -> None:
    call = _bound(gpu.program(PLAN))
    gpu.driver.current, gpu.driver.launch_status = 0, Status(201)
    assert call((_x(), _w(3))) is None
    assert gpu.driver.current == 100


def test_workspace_of_a_captured_call_is_left_where_the_library_would_reuse_it(gpu: Fake) -> None:
    call = _bound(gpu.program(PLAN))
    gpu.driver.capturing = True
    assert call((_x(), _w(3))) is not None  # PyTorch keeps a graph's memory
    call._library.owns_graph_memory = False
    try:
        assert call((_x(), _w(3))) is None
    finally:
        call._library.owns_graph_memory = True


# --- prepared weights ---------------------------------------------------------------------------------


def test_prepared_weights_are_copied_once(gpu: Fake) -> None:
    program = gpu.program(PLAN)
    prepared = program.prepare(_w(3))
    assert [c[0] for c in _launches(gpu)] == ["copy"]
    assert prepared.nbytes == 4
    call = _bound(program, prepared)
    for seed in range(3):
        gpu.driver.calls.clear()
        np.testing.assert_array_equal(call((_x(seed),)).array, _x(seed).array * 3)
        assert [c[0] for c in _launches(gpu)] == ["memset", "memset", "launch", "launch"]
        long = program.run({"x": _x(seed)}, prepared=prepared)["y"]
        np.testing.assert_array_equal(long.array, _x(seed).array * 3)


def test_prepared_weights_do_not_disturb_others(gpu: Fake) -> None:
    program = gpu.program(PLAN)
    three, five = program.prepare(_w(3)), program.prepare(_w(5))
    calls = [(_bound(program, three), 3), (_bound(program, five), 5)]
    for _ in range(2):
        for call, factor in calls:
            np.testing.assert_array_equal(call((_x(),)).array, _x().array * factor)
            np.testing.assert_array_equal(_bound(program)((_x(), _w(9))).array, _x().array * 9)


def test_a_stream_waits_for_the_preparation_until_it_is_known_to_be_done(gpu: Fake) -> None:
    program = gpu.program(PLAN)
    call = _bound(program, program.prepare(_w(3)))
    gpu.driver.event_status = Status(600)  # not ready
    gpu.torch.stream = 21
    call((_x(),))
    call((_x(),))
    assert gpu.driver.calls.count(("stream waits", 21)) == 2
    gpu.driver.event_status = Status(0)
    for _ in range(2):
        call((_x(),))
    assert gpu.driver.calls.count(("stream waits", 21)) == 2
    assert gpu.driver.names().count("record") == 1


def test_a_captured_call_has_its_preparation_behind_it(gpu: Fake) -> None:
    program = gpu.program(PLAN)
    call = _bound(program, program.prepare(_w(3)))
    gpu.driver.event_status, gpu.driver.capturing = Status(600), True
    call((_x(),))
    call((_x(),))
    assert gpu.driver.names().count("wait for event") == 1
    assert "stream waits" not in gpu.driver.names()


def test_a_program_that_prepares_nothing_reads_the_weights(gpu: Fake) -> None:
    steps = tuple(step for step in PLAN.steps if not isinstance(step, CopyToSymbol))
    plain: Plan = dataclasses.replace(PLAN, steps=steps)
    prepared = gpu.program(plain).prepare(_w(3))
    assert (prepared.nbytes, prepared.is_settled) == (0, True)
    assert "record" not in gpu.driver.names()


def test_no_preparation_begins_early(gpu: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the plan it follows a step that does not touch the weights; alone it follows whoever made them."""
    kernel = PLAN.kernels[0]
    scalars = (ScalarArg(0.5), ScalarArg(1), ScalarArg(1))
    args = (TensorArg("w"), WorkspaceArg("kept"), *scalars)
    launch = Launch(kernel, (1, 1, 1), (32, 1, 1), args, is_early=True)
    plan = dataclasses.replace(PLAN, steps=(launch,), workspace=(Buffer("kept", 4),))
    monkeypatch.setattr(gpu.driver, "_multiply", lambda *_: None)
    gpu.program(plan).prepare(_w(3))
    assert _launches(gpu) == [("launch", "multiply", (1, 1, 1), (32, 1, 1), 0, 7)]


def test_weights_that_kernels_cannot_read_are_copied_once(gpu: Fake) -> None:
    texture = hand_plans.by_texture(Target.preset("h200"))
    program = gpu.program(dataclasses.replace(texture, alignment={"w": 16}))
    w = tensor(np.full((1, 1, 1, 1), 2, np.float32), offset=4)
    prepared = program.prepare(w)
    allocated = len(gpu.torch.allocated)
    assert prepared.nbytes == 4
    x = tensor(np.random.default_rng(0).standard_normal((1, 1, 12, 40), dtype=np.float32))
    np.testing.assert_array_equal(program.run({"x": x}, prepared=prepared)["y"].array, x.array * 2)
    assert len(gpu.torch.allocated) == allocated + 1  # the output alone


def test_prepared_weights_stand_in_for_w_alone(gpu: Fake) -> None:
    program = gpu.program(PLAN)
    prepared = program.prepare(_w(3))
    with pytest.raises(UsageError, match="unknown w; the problem has x"):
        program.run({"x": _x(), "w": _w(3)}, prepared=prepared)
    with pytest.raises(UsageError, match="w is prepared on device 0, the first input on device 1"):
        program.run({"x": FakeTensor(_x().array, device=1)}, prepared=prepared)


def test_an_output_over_prepared_weights_is_left(gpu: Fake) -> None:
    whole = aligned((4, 1, LENGTH))
    w = FakeTensor(whole[:1, :, :1])
    whole[...] = 3
    program = gpu.program(PLAN)
    call = _bound(program, program.prepare(w))
    assert call((_x(),), FakeTensor(whole)) is None


def test_code_of_weights_that_were_let_go_is_used_again_once_no_work_uses_it(gpu: Fake) -> None:
    program = gpu.program(PLAN)
    prepared: PreparedWeights | None = program.prepare(_w(3))
    assert gpu.driver.names().count("load") == 1
    prepared = None
    gc.collect()
    again = program.prepare(_w(5))
    assert gpu.driver.names().count("load") == 1
    assert gpu.driver.names().index("synchronize") < len(gpu.driver.names()) - 2
    np.testing.assert_array_equal(_bound(program, again)((_x(),)).array, _x().array * 5)
    assert prepared is None


def test_the_source_of_a_prepared_copy_is_the_weights(gpu: Fake) -> None:
    [copy] = [step for step in PLAN.steps if isinstance(step, CopyToSymbol)]
    assert copy.source == TensorArg("w")
    assert gpu.program(PLAN).preparation.steps == {PLAN.steps.index(copy)}
