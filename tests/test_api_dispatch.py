"""Calls on a fake GPU: signatures, the way the first takes and the later ones, prepared weights, threads, capture."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from fake_decisions import Rig, by_hand, rig, w_of, x_of
from fake_gpu import FakeTensor, Status, aligned, tensor

import convgen
from convgen.api import dispatch, functions
from convgen.errors import DeviceError, UsageError
from convgen.runtime import arrays
from convgen.runtime.cuda import CudaProgram


@pytest.fixture
def gpu() -> Iterator[Rig]:
    with rig() as made:
        yield made


@pytest.fixture
def long_ways(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What `CudaProgram.run` was called for."""
    taken: list[str] = []
    run = CudaProgram.run

    def counted(self: CudaProgram, *arguments: Any, **options: Any) -> Any:
        taken.append(str(self.plan.problem))
        return run(self, *arguments, **options)

    monkeypatch.setattr(CudaProgram, "run", counted)
    return taken


# --- signatures ---------------------------------------------------------------------------------------


def test_like_calls_are_decided_compiled_and_loaded_once(gpu: Rig, long_ways: list[str]) -> None:
    for seed in range(4):
        np.testing.assert_array_equal(convgen.conv1d(x_of(seed=seed), w_of(seed)).array, x_of(seed=seed).array * seed)
    assert (gpu.decider.asked, len(gpu.compiled)) == (1, 1)
    assert gpu.fake.driver.names().count("load") == 1
    assert long_ways == []


def test_one_program_serves_every_signature_of_a_problem(gpu: Rig) -> None:
    wide = aligned((4, 2, 50))
    wide[...] = 1
    for x in (x_of(), FakeTensor(wide[:, :1]), x_of(offset=4)):
        np.testing.assert_array_equal(convgen.conv1d(x, w_of(2), stride=[1]).array, x.array * 2)
        np.testing.assert_array_equal(convgen.conv1d(x, w_of(2), padding="valid").array, x.array * 2)
    assert len(gpu.compiled) == 1


def test_lists_are_tuples(gpu: Rig) -> None:
    table = functions.DISPATCHER._calls
    for stride in ([1], (1,), [1]):
        convgen.conv1d(x_of(), w_of(2), stride=stride)
    assert len(table) == 1


def test_the_table_is_bounded_and_forgets_the_oldest(gpu: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "MAX_CALLS", 3)
    for n in (1, 2, 3, 4, 5):
        np.testing.assert_array_equal(convgen.conv1d(x_of(n), w_of(2)).array, x_of(n).array * 2)
    batches = [key[3][0][0] for key in functions.DISPATCHER._calls]
    assert batches == [3, 4, 5]
    convgen.conv1d(x_of(1), w_of(2))
    assert len(gpu.compiled) == 5  # the program was kept


def test_what_is_unusual_goes_the_long_way(gpu: Rig, long_ways: list[str]) -> None:
    x = x_of()
    expected = x.array * 2
    convgen.conv1d(x, w_of(2))
    np.testing.assert_array_equal(convgen.conv1d(x_of(offset=4), w_of(2)).array, expected)
    assert len(long_ways) == 1
    assert convgen.conv1d(x, w_of(2), out=x) is x
    np.testing.assert_array_equal(x.array, expected)
    assert len(long_ways) == 2
    gpu.fake.torch.device = 1
    np.testing.assert_array_equal(convgen.conv1d(x_of(), w_of(2)).array, expected)
    assert len(long_ways) == 3


def test_an_input_without_a_batch(gpu: Rig, long_ways: list[str]) -> None:
    x = tensor(x_of(1).array[0])
    for given in (x, tensor(x.array, offset=4)):
        y = convgen.conv1d(given, w_of(3))
        np.testing.assert_array_equal(y.array, x.array * 3)
        out = FakeTensor(aligned((1, 50)))
        assert convgen.conv1d(given, w_of(3), out=out) is out
        np.testing.assert_array_equal(out.array, x.array * 3)
    assert len(long_ways) == 2


def test_an_empty_batch_compiles_nothing(gpu: Rig) -> None:
    assert convgen.conv1d(x_of(0), w_of(3)).shape == (0, 1, 50)
    out = FakeTensor(aligned((0, 1, 50)))
    assert convgen.conv1d(x_of(0), w_of(3), out=out) is out
    assert gpu.compiled == []


def test_a_new_output_has_the_type_asked_for(gpu: Rig) -> None:
    """Seen on an empty batch, which no kernel is needed for."""
    x, w = (FakeTensor(np.zeros(shape, ml_dtypes.float8_e4m3fn)) for shape in ((0, 1, 50), (1, 1, 1)))
    bfloat16 = type("dtype", (), {"__module__": "torch", "__str__": lambda self: "torch.bfloat16"})()
    for _ in range(2):
        for given, found in ((None, "float8_e4m3fn"), ("float32", "float32"), (bfloat16, "bfloat16")):
            y = convgen.conv1d(x, w, out_dtype=given)
            assert (y.dtype, y.array.dtype.name, y.shape) == (f"torch.{found}", found, (0, 1, 50))


def test_an_output_of_the_long_way_lies_as_the_short_ways_does(gpu: Rig, long_ways: list[str]) -> None:
    for x in (x_of(), x_of(offset=4)):
        y = convgen.conv1d(x, w_of(2))
        assert (y.dtype, y.shape, y.stride(), y.get_device()) == ("torch.float32", (4, 1, 50), (50, 50, 1), 0)
    assert len(long_ways) == 1


def test_nothing_waits_for_the_gpu(gpu: Rig) -> None:
    for _ in range(2):
        convgen.conv1d(x_of(), w_of(3))
    assert not {"synchronize", "wait for event"} & set(gpu.fake.driver.names())


# --- arrays that are refused --------------------------------------------------------------------------


def test_arrays_of_two_devices(gpu: Rig) -> None:
    with pytest.raises(UsageError, match="weight is on device 1, input on device 0: move one of them"):
        convgen.conv1d(x_of(), FakeTensor(w_of(3).array, device=1))


def test_arrays_of_host_and_gpu(gpu: Rig) -> None:
    with pytest.raises(UsageError, match="weight is a NumPy array and input in GPU memory: move one of them"):
        convgen.conv1d(x_of(), w_of(3).array)


def test_a_tensor_on_the_host(gpu: Rig) -> None:
    with pytest.raises(UsageError, match=r"input: a tensor is on -1, expected a CUDA device: move it with \.cuda\(\)"):
        convgen.conv1d(FakeTensor(x_of().array, device=-1, is_cuda=False), w_of(3))


@pytest.mark.parametrize("warm", [False, True])
def test_a_tensor_that_requires_grad(gpu: Rig, warm: bool) -> None:
    x = x_of()
    x.requires_grad = True
    if warm:
        np.testing.assert_array_equal(convgen.conv1d(x, w_of(3)).array, x.array * 3)
    gpu.fake.torch.grad = True
    with pytest.raises(UsageError, match=r"input requires grad.*torch\.no_grad\(\), or pass input\.detach\(\)"):
        convgen.conv1d(x, w_of(3))
    np.testing.assert_array_equal(convgen.conv1d(x_of(), w_of(3)).array, x_of().array * 3)
    bias = tensor(np.zeros(1, np.float32))
    bias.requires_grad = True
    with pytest.raises(UsageError, match="bias requires grad"):
        convgen.conv1d(x_of(), w_of(3), bias)


def test_gradients_of_float8_are_refused(gpu: Rig) -> None:
    x, w = (FakeTensor(np.zeros(shape, ml_dtypes.float8_e4m3fn)) for shape in ((4, 1, 50), (1, 1, 1)))
    w.requires_grad = gpu.fake.torch.grad = True
    with pytest.raises(UsageError, match=r"^weight requires grad, and there are no kernels for the backward pass yet"):
        convgen.conv1d(x, w)


def test_an_array_that_cupy_cannot_wrap(gpu: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    class Foreign:
        def __dlpack__(self) -> None: ...

        def __dlpack_device__(self) -> tuple[int, int]:
            return 2, 0

    class Cupy:
        @staticmethod
        def from_dlpack(array: Any) -> Any:
            raise TypeError("Unsupported dtype. dtype code: 10")

    monkeypatch.setattr(arrays, "_cupy", lambda: Cupy)
    with pytest.raises(
        UsageError, match=r"input is a .*Foreign that CuPy cannot wrap \(Unsupported .*: pass a CUDA tensor"
    ):
        convgen.conv1d(Foreign(), w_of(3))


@pytest.mark.parametrize("warm", [False, True])
def test_all_tensors_that_require_grad_are_named(gpu: Rig, warm: bool) -> None:
    x, w, bias = x_of(), w_of(3), tensor(np.zeros(1, np.float32))
    w.requires_grad = bias.requires_grad = True
    for _ in range(2 if warm else 0):
        np.testing.assert_array_equal(convgen.conv1d(x, w, bias).array, x.array * 3)
    gpu.fake.torch.grad = True
    both = r"^weight, bias requires grad.*torch\.no_grad\(\), or pass weight\.detach\(\), bias\.detach\(\)$"
    with pytest.raises(UsageError, match=both):
        convgen.conv1d(x, w, bias)
    np.testing.assert_array_equal(convgen.conv1d(x, w.detach(), bias.detach()).array, x.array * 3)
    with pytest.raises(UsageError, match=r"^bias requires grad.*or pass bias\.detach\(\)$"):
        convgen.conv1d(x, convgen.prepare(w), bias)


# --- prepared weights ---------------------------------------------------------------------------------


def _copies(gpu: Rig) -> int:
    return gpu.fake.driver.names().count("copy")


def test_a_weight_is_prepared_at_its_first_use(gpu: Rig, long_ways: list[str]) -> None:
    weight = convgen.prepare(w_of(3))
    assert (weight.nbytes, _copies(gpu)) == (0, 0)
    for seed in range(3):
        np.testing.assert_array_equal(convgen.conv1d(x_of(seed=seed), weight).array, x_of(seed=seed).array * 3)
    assert (weight.nbytes, _copies(gpu)) == (4, 1)
    np.testing.assert_array_equal(convgen.conv1d(x_of(offset=4), weight).array, x_of().array * 3)
    assert (_copies(gpu), len(long_ways)) == (1, 1)


@pytest.mark.parametrize("example", [(4, 1, 50), [4, 1, 50], x_of()])
def test_a_weight_is_prepared_at_once_for_an_example(gpu: Rig, example: Any) -> None:
    weight = convgen.prepare(w_of(3), example)
    assert (weight.nbytes, _copies(gpu)) == (4, 1)
    assert repr(weight) == "<PreparedWeight (1, 1, 1), 4 bytes for 1 problems>"
    np.testing.assert_array_equal(convgen.conv1d(x_of(), weight).array, x_of().array * 3)
    assert _copies(gpu) == 1


def test_a_weight_is_prepared_for_each_problem(gpu: Rig) -> None:
    weight = convgen.prepare(w_of(3))
    for n in (1, 2, 1):
        convgen.conv1d(x_of(n), weight)
    assert (weight.nbytes, _copies(gpu)) == (8, 2)


def test_a_weight_that_requires_grad_may_be_prepared(gpu: Rig) -> None:
    w = w_of(3)
    w.requires_grad = gpu.fake.torch.grad = True
    w.detach = lambda: FakeTensor(w.array)  # type: ignore[method-assign]
    np.testing.assert_array_equal(convgen.conv1d(x_of(), convgen.prepare(w)).array, x_of().array * 3)


def test_a_prepared_weight_does_not_outlive_its_user(gpu: Rig) -> None:
    weight = convgen.prepare(w_of(3))
    convgen.conv1d(x_of(), weight)
    assert len(weight.calls) == 1
    assert not functions.DISPATCHER._calls


# --- capture, threads, errors -------------------------------------------------------------------------


def test_a_first_call_may_be_captured(gpu: Rig) -> None:
    gpu.fake.driver.capturing = True
    np.testing.assert_array_equal(convgen.conv1d(x_of(), w_of(3)).array, x_of().array * 3)
    assert gpu.fake.driver.capture_mode == 0


def test_a_weight_is_not_prepared_by_a_captured_call(gpu: Rig) -> None:
    weight = convgen.prepare(w_of(3))
    gpu.fake.driver.capturing = True
    np.testing.assert_array_equal(convgen.conv1d(x_of(), weight).array, x_of().array * 3)
    assert (weight.nbytes, weight.calls) == (0, {})
    gpu.fake.driver.capturing = False
    convgen.conv1d(x_of(), weight)
    assert weight.nbytes == 4


def test_threads_bind_a_problem_once(gpu: Rig) -> None:
    meeting = threading.Barrier(6)
    wrong: list[int] = []

    def work(seed: int) -> None:
        meeting.wait()
        for _ in range(10):
            if not np.array_equal(convgen.conv1d(x_of(seed=seed), w_of(seed)).array, x_of(seed=seed).array * seed):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (wrong, len(gpu.compiled)) == ([], 1)


def test_what_cuda_refuses_of_a_default_is_told(gpu: Rig) -> None:
    gpu.fake.driver.launch_status = Status(1)
    with pytest.raises(DeviceError, match="CUDA_ERROR_INVALID_VALUE"):
        convgen.conv1d(x_of(), w_of(3))


def test_a_stored_config_that_does_not_launch_is_passed_over(gpu: Rig) -> None:
    gpu.decider.ranking = [by_hand(1024, "tuned"), by_hand()]
    launch = gpu.fake.driver.cuLaunchKernel

    def refuse(*arguments: Any) -> Any:
        return (Status(701),) if len(gpu.compiled) == 1 else launch(*arguments)

    gpu.fake.driver.cuLaunchKernel = refuse  # type: ignore[method-assign]
    with pytest.warns(UserWarning, match=r"by_hand with workspace=1024, tuned for conv1d .* cannot be used"):
        y = convgen.conv1d(x_of(), w_of(3))
    np.testing.assert_array_equal(y.array, x_of().array * 3)
    assert [config.workspace for config in gpu.compiled] == [1024, 0]
