"""The CUDA runtime: its own logic on a fake GPU, then the real one where there is one."""

from __future__ import annotations

import subprocess
import sys
import threading
import types
from collections.abc import Iterator
from typing import Any

import hand_plans
import ml_dtypes
import numpy as np
import pytest
from fake_gpu import Fake, FakeTensor, Status, aligned, installed, tensor

from convgen.errors import DeviceError, ProblemError, UsageError
from convgen.problem import Conv
from convgen.runtime import arrays, transfer
from convgen.runtime import cuda as runtime
from convgen.target import Target

H200 = Target.preset("h200")
LENGTH = hand_plans.LENGTH


@pytest.fixture
def gpu() -> Iterator[Fake]:
    with installed() as fake:
        yield fake


def _random(*shape: int) -> Any:
    return np.random.default_rng(len(shape) + sum(shape)).standard_normal(shape, dtype=np.float32)


def _inputs(n: int, factor: float = 3.0) -> dict[str, Any]:
    return {"x": tensor(_random(n, 1, LENGTH)), "w": tensor(np.full((1, 1, 1), factor, np.float32))}


# --- order, sizes, arguments -------------------------------------------------------------------------------


def test_every_step_in_order_with_its_sizes(gpu: Fake) -> None:
    inputs = _inputs(11)
    y = gpu.program(hand_plans.every_step(H200)).run(inputs)["y"]
    np.testing.assert_array_equal(y.array, inputs["x"].array * 3)
    assert gpu.driver.calls == [
        ("load", 100),
        ("attribute", "multiply", 8, 256),
        ("copy", 4, 7),
        ("memset", 255, 11, 7),
        ("memset", 0, 2200, 7),
        ("launch", "multiply", (18, 1, 1), (64, 1, 1), 256, 7),
        ("launch", "finish", (9, 1, 1), (64, 1, 1), 0, 7),
    ]
    assert (gpu.driver.current, gpu.driver.capture_mode) == (0, 0)  # the caller's context and mode are back


def test_one_program_serves_every_batch(gpu: Fake) -> None:
    program = gpu.program(hand_plans.every_step(H200))
    for n in (1, 5, 300, 5):
        inputs = _inputs(n, factor=n)
        np.testing.assert_array_equal(program.run(inputs)["y"].array, inputs["x"].array * n)
    assert gpu.driver.names().count("load") == 1


def test_an_empty_batch_gives_an_empty_output(gpu: Fake) -> None:
    y = gpu.program(hand_plans.every_step(H200)).run(_inputs(0))["y"]
    assert y.shape == (0, 1, LENGTH)
    assert "launch" not in gpu.driver.names()
    assert ("memset", 0, 0, 7) not in gpu.driver.calls


def test_a_batch_beyond_the_bound_or_not_the_problems_is_refused(gpu: Fake) -> None:
    program = gpu.program(hand_plans.every_step(H200))
    with pytest.raises(ProblemError, match="1001"):
        program.run(_inputs(1001))
    fixed = gpu.program(hand_plans.by_texture(H200))
    with pytest.raises(UsageError, match=r"x has shape \(2, 1, 12, 40\), expected \(1, 1, 12, 40\)"):
        fixed.run({"x": tensor(_random(2, 1, 12, 40)), "w": tensor(_random(1, 1, 1, 1))})


# --- arrays -------------------------------------------------------------------------------------------------


def test_a_given_output_is_written_and_returned(gpu: Fake) -> None:
    inputs, y = _inputs(4), tensor(np.zeros((4, 1, LENGTH), np.float32))
    assert gpu.program(hand_plans.every_step(H200)).run(inputs, {"y": y})["y"] is y
    np.testing.assert_array_equal(y.array, inputs["x"].array * 3)
    assert len(gpu.torch.allocated) == 1  # the workspace alone


@pytest.mark.parametrize("offset", [4, 8, 12])
def test_a_misaligned_input_is_copied_to_where_it_can_be_read(gpu: Fake, offset: int) -> None:
    inputs = _inputs(4) | {"x": tensor(_random(4, 1, LENGTH), offset)}
    y = gpu.program(hand_plans.every_step(H200)).run(inputs)["y"]
    np.testing.assert_array_equal(y.array, inputs["x"].array * 3)
    assert [nbytes for _, nbytes in gpu.torch.allocated] == [800, 800, 1280]  # copy, output, workspace


def test_strided_views_are_never_misread(gpu: Fake) -> None:
    program = gpu.program(hand_plans.every_step(H200))
    wide, w = aligned((8, 2, 2 * LENGTH)), _inputs(1)["w"]
    wide[...] = _random(8, 2, 2 * LENGTH)
    for view in (wide[::2, :1, ::2], wide[3::-1, 1:, LENGTH:], np.broadcast_to(wide[:1, :1, :LENGTH], (4, 1, LENGTH))):
        y = program.run({"x": FakeTensor(view), "w": w})["y"]
        np.testing.assert_array_equal(y.array, view * 3)


def test_a_strided_output_is_computed_aside_and_copied_back(gpu: Fake) -> None:
    whole = aligned((4, 2, LENGTH))
    whole[...] = 5
    inputs = _inputs(4)
    result = gpu.program(hand_plans.every_step(H200)).run(inputs, {"y": FakeTensor(whole[:, 1:])})
    np.testing.assert_array_equal(whole[:, 1:], inputs["x"].array * 3)
    np.testing.assert_array_equal(whole[:, 0], np.full((4, LENGTH), 5))
    assert result["y"].array.base is not None


def test_an_output_over_its_input_is_computed_aside(gpu: Fake) -> None:
    inputs = _inputs(4)
    expected = inputs["x"].array * 3
    gpu.program(hand_plans.every_step(H200)).run(inputs, {"y": inputs["x"]})
    np.testing.assert_array_equal(inputs["x"].array, expected)
    assert [nbytes for _, nbytes in gpu.torch.allocated] == [800, 1280]


def test_strides_of_single_extents_do_not_matter(gpu: Fake) -> None:
    inputs = _inputs(1)
    odd = np.lib.stride_tricks.as_strided(inputs["x"].array, (1, 1, LENGTH), (12345, 4, 4))
    gpu.program(hand_plans.every_step(H200)).run({"x": FakeTensor(odd), "w": inputs["w"]})
    assert [nbytes for _, nbytes in gpu.torch.allocated] == [200, 512]  # output and workspace, no copy


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": FakeTensor(aligned((4, 2, LENGTH)))}, r"x has shape \(4, 2, 50\), expected \(4, 1, 50\)"),
        ({"x": FakeTensor(aligned((4, 1, LENGTH), np.float64))}, r"x is float64, expected float32"),
        ({"w": FakeTensor(aligned((1, 1, 1)), device=1)}, r"w is on device 1, the first input on device 0"),
        ({"w": FakeTensor(aligned((1, 1, 1)), device=-1, is_cuda=False)}, r"\.cuda\(\)"),
        ({"bias": FakeTensor(aligned((1,)))}, r"inputs: unknown bias; the problem has w, x"),
    ],
)
def test_arrays_that_do_not_fit_are_refused_by_name(gpu: Fake, change: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        gpu.program(hand_plans.every_step(H200)).run(_inputs(4) | change)
    assert "launch" not in gpu.driver.names()


def test_a_missing_array_is_named(gpu: Fake) -> None:
    with pytest.raises(UsageError, match="inputs: w missing; the problem has w, x"):
        gpu.program(hand_plans.every_step(H200)).run({"x": _inputs(4)["x"]})
    summed = hand_plans.one_launch(Conv.parse("conv1d n=1 c=1 k=1 in=5 filter=1 accumulate=yes"), H200)
    for absent in (None, {}, {"y": None}):
        with pytest.raises(UsageError, match="outputs: y missing"):
            gpu.program(summed).run({"x": tensor(_random(1, 1, 5)), "w": tensor(_random(1, 1, 1))}, absent)
    with pytest.raises(UsageError, match="outputs: unknown z; the problem has y"):
        gpu.program(summed).run({"x": tensor(_random(1, 1, 5)), "w": tensor(_random(1, 1, 1))}, {"z": None})


def test_an_output_whose_elements_share_memory_is_refused(gpu: Fake) -> None:
    y = FakeTensor(np.broadcast_to(aligned((1, 1, LENGTH)), (4, 1, LENGTH)))
    with pytest.raises(UsageError, match="y has stride 0"):
        gpu.program(hand_plans.every_step(H200)).run(_inputs(4), {"y": y})


def test_host_arrays_are_refused_with_the_way_out(gpu: Fake) -> None:
    pytest.importorskip("cupy")
    with pytest.raises(UsageError, match=r"x is a numpy\.ndarray, not an array in GPU memory.*cupy\.asarray"):
        gpu.program(hand_plans.every_step(H200)).run({"x": _random(4, 1, LENGTH), "w": _random(1, 1, 1)})


# --- element types that not every library has --------------------------------------------------------------


class CupyOfNumpy(np.ndarray):
    """An array as CuPy has it: only types of NumPy's own are copied and come to the host."""

    def __setitem__(self, key: Any, values: Any) -> None:
        assert self.dtype.kind != "V"
        super().__setitem__(key, values)

    def get(self) -> Any:
        assert self.dtype.kind != "V"
        return np.asarray(self)

    @staticmethod
    def asarray(array: Any) -> Any:
        assert array.dtype.kind != "V"
        return array.view(CupyOfNumpy)


@pytest.mark.parametrize("kind", [np.float32, np.float16, np.bool_, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn])
def test_arrays_of_every_type_go_to_the_gpu_and_back(monkeypatch: pytest.MonkeyPatch, kind: Any) -> None:
    monkeypatch.setattr(transfer, "load_cupy", lambda: CupyOfNumpy)
    host = _random(2, 5, 6, 3).transpose(0, 3, 1, 2).astype(kind, order="K")
    there = transfer.to_gpu(host)
    back = transfer.to_host(there)
    assert there.dtype == back.dtype == kind
    assert there.strides == back.strides == host.strides
    np.testing.assert_array_equal(back.astype(float), host.astype(float))


def test_strided_arrays_of_every_type_are_copied() -> None:
    source = _random(4, 6).astype(ml_dtypes.float8_e4m3fn).view(CupyOfNumpy)[::2, 1::3]
    destination = np.zeros((2, 2), ml_dtypes.float8_e4m3fn).view(CupyOfNumpy)
    arrays._CUPY.copy(destination, source)
    np.testing.assert_array_equal(np.asarray(destination).astype(float), np.asarray(source).astype(float))


def test_types_that_numpy_has_with_ml_dtypes_alone() -> None:
    assert arrays.numpy_type("bf16") == ml_dtypes.bfloat16
    assert arrays.numpy_type("fp8") == ml_dtypes.float8_e4m3fn
    code = "from convgen.runtime.arrays import numpy_type\nprint(numpy_type('fp16'))\nnumpy_type('bf16')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "float16\n"
    assert "UsageError: bfloat16 is no type of NumPy's or CuPy's own: import ml_dtypes first" in done.stderr


# --- streams, modules, textures, graphs ----------------------------------------------------------------------------


class _Protocol:
    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, 21


@pytest.mark.parametrize(
    "stream", [21, types.SimpleNamespace(ptr=21), types.SimpleNamespace(cuda_stream=21), _Protocol()]
)
def test_work_and_memory_go_to_the_given_stream(gpu: Fake, stream: Any) -> None:
    inputs = _inputs(4) | {"x": tensor(_random(4, 1, LENGTH), offset=4)}
    gpu.program(hand_plans.every_step(H200)).run(inputs, stream=stream)
    assert {call[-1] for call in gpu.driver.calls if call[0] in ("copy", "memset", "launch")} == {21}
    assert {asked_on for asked_on, _ in gpu.torch.allocated} == {21}
    assert gpu.torch.stream == 7


def test_a_thing_that_is_no_stream_is_refused(gpu: Fake) -> None:
    with pytest.raises(UsageError, match="stream='fast'"):
        gpu.program(hand_plans.every_step(H200)).run(_inputs(4), stream="fast")


def test_constant_memory_is_loaded_once_a_stream(gpu: Fake) -> None:
    program = gpu.program(hand_plans.every_step(H200))
    for stream in (7, 21, 7, 21):
        program.run(_inputs(4), stream=stream)
    assert gpu.driver.names().count("load") == 2
    program.close()
    assert gpu.driver.names()[-3:] == ["synchronize", "unload", "unload"]
    assert not gpu.driver.modules


def test_a_plan_without_constants_is_loaded_once(gpu: Fake) -> None:
    program = gpu.program(hand_plans.by_texture(H200))
    arguments = {"x": tensor(_random(1, 1, 12, 40)), "w": tensor(_random(1, 1, 1, 1))}
    for stream in (7, 21):
        program.run(arguments, stream=stream)
    assert gpu.driver.names().count("load") == 1


def test_a_texture_belongs_to_an_address_and_is_kept(gpu: Fake) -> None:
    w = tensor(np.full((1, 1, 1, 1), 2, np.float32))
    first, second = (tensor(_random(1, 1, 12, 40) + i) for i in range(2))
    with gpu.program(hand_plans.by_texture(H200)) as program:
        for x in (first, second, first):
            np.testing.assert_array_equal(program.run({"x": x, "w": w})["y"].array, x.array * 2)
        assert gpu.driver.names().count("texture") == 2
    assert not gpu.driver.textures


def test_a_texture_over_a_misaligned_image_reads_a_copy(gpu: Fake) -> None:
    x, w = tensor(_random(1, 1, 12, 40), offset=64), tensor(np.full((1, 1, 1, 1), 2, np.float32))
    y = gpu.program(hand_plans.by_texture(H200)).run({"x": x, "w": w})["y"]
    np.testing.assert_array_equal(y.array, x.array * 2)


def test_textures_are_bounded_and_destroyed_after_a_wait(gpu: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "MAX_TEXTURES", 3)
    program = gpu.program(hand_plans.by_texture(H200))
    w = tensor(_random(1, 1, 1, 1))
    images = [tensor(_random(1, 1, 12, 40)) for _ in range(8)]
    gpu.driver.capturing = True
    program.run({"x": images[0], "w": w})
    captured = set(gpu.driver.textures)
    gpu.driver.capturing = False
    for x in images[1:]:
        program.run({"x": x, "w": w})
        assert len(gpu.driver.textures) <= 3
        assert captured <= set(gpu.driver.textures)  # a graph still reads through it
    names = gpu.driver.names()
    assert names[names.index("destroy") - 1] == "synchronize"


def test_nothing_waits_in_a_run(gpu: Fake) -> None:
    gpu.program(hand_plans.every_step(H200)).run(_inputs(4))
    assert "synchronize" not in gpu.driver.names()


def test_a_cubin_of_another_gpu_says_so(gpu: Fake) -> None:
    gpu.driver.load_status = Status(209)
    with pytest.raises(DeviceError, match=r"compiled for sm_90a.*Target\.current"):
        gpu.program(hand_plans.every_step(H200)).run(_inputs(4))


def test_a_driver_error_carries_cudas_name(gpu: Fake) -> None:
    gpu.driver.load_status = Status(1)
    with pytest.raises(DeviceError, match="CUDA_ERROR_INVALID_VALUE: text of the error"):
        gpu.program(hand_plans.every_step(H200)).run(_inputs(4))
    assert gpu.driver.current == 0


def test_threads_share_a_program(gpu: Fake) -> None:
    program = gpu.program(hand_plans.every_step(H200))
    failures: list[int] = []

    def work(n: int) -> None:
        inputs = _inputs(n, factor=n)
        for _ in range(20):
            if not np.array_equal(program.run(inputs, stream=n)["y"].array, inputs["x"].array * n):
                failures.append(n)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(1, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
