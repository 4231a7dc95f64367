"""The CUDA runtime on a real GPU: CuPy, PyTorch, streams, graphs, textures, constant memory, warm-call time."""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hand_plans
import numpy as np
import pytest

from convgen.compiler import compile_cuda, header_directory
from convgen.errors import DeviceError, UsageError
from convgen.launcher import launcher_files
from convgen.lowering import lower
from convgen.plan import Launch, Plan
from convgen.problem import Conv
from convgen.reference import bound, compare, decode, encode, make_inputs, reference, strict_model
from convgen.render import render
from convgen.runtime.cuda import CudaProgram, build_and_load, load
from convgen.strategies import get_strategy
from convgen.target import Target

pytestmark = pytest.mark.gpu

LENGTH = hand_plans.LENGTH
THREE = np.full((1, 1, 1), 3, np.float32)


@pytest.fixture(scope="module")
def cupy() -> Any:
    return pytest.importorskip("cupy")


@pytest.fixture(scope="module")
def torch() -> Any:
    module = pytest.importorskip("torch")
    if not module.cuda.is_available():
        pytest.skip("PyTorch sees no GPU")
    return module


@pytest.fixture(scope="module")
def target() -> Target:
    return Target.current()


def _scale(plan: Plan) -> CudaProgram:
    return load(plan, compile_cuda(hand_plans.SCALE_SOURCE, plan.target, name="scale.cu"))


def _rows(n: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal((n, 1, LENGTH), dtype=np.float32)


# --- CuPy ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 7, 300])
def test_every_kind_of_step(cupy: Any, target: Target, n: int) -> None:
    x = _rows(n)
    y = _scale(hand_plans.every_step(target)).run({"x": cupy.asarray(x), "w": cupy.asarray(THREE)})["y"]
    np.testing.assert_array_equal(cupy.asnumpy(y), x * 3)


def test_an_empty_batch(cupy: Any, target: Target) -> None:
    y = _scale(hand_plans.every_step(target)).run({"x": cupy.asarray(_rows(0)), "w": cupy.asarray(THREE)})["y"]
    assert y.shape == (0, 1, LENGTH)


def test_a_texture_is_zero_outside_its_image(cupy: Any, target: Target) -> None:
    program = _scale(hand_plans.by_texture(target))
    memory = cupy.zeros(4 * 480 + 64, cupy.float32)
    for offset in (0, 480, 16):  # a new address, and one that is not aligned for a texture
        x = memory[offset : offset + 480].reshape(1, 1, 12, 40)
        x[...] = cupy.random.standard_normal(x.shape, dtype=cupy.float32)
        y = program.run({"x": x, "w": cupy.full((1, 1, 1, 1), 2, cupy.float32)})["y"]
        cupy.testing.assert_array_equal(y, x * 2)


def test_views_outputs_and_overlaps(cupy: Any, target: Target) -> None:
    program = _scale(hand_plans.every_step(target))
    w, wide = cupy.asarray(THREE), cupy.asarray(_rows(40)).reshape(10, 4, LENGTH)
    for x in (
        wide[::2, 1:2],
        wide[::-1, :1],
        cupy.broadcast_to(wide[:1, :1], (4, 1, LENGTH)),
        wide.ravel()[1:201].reshape(4, 1, -1),
    ):
        cupy.testing.assert_array_equal(program.run({"x": x, "w": w})["y"], x * 3)
    out = cupy.zeros((10, 2, LENGTH), cupy.float32)
    program.run({"x": wide[:, :1], "w": w}, {"y": out[:, 1:]})
    cupy.testing.assert_array_equal(out[:, 1:], wide[:, :1] * 3)
    assert not out[:, 0].any()
    x = cupy.asarray(_rows(8))
    expected = x * 3
    program.run({"x": x, "w": w}, {"y": x})
    cupy.testing.assert_array_equal(x, expected)


class _Interface:
    """An array that only has `__cuda_array_interface__`."""

    def __init__(self, array: Any) -> None:
        self._array = array
        self.__cuda_array_interface__ = array.__cuda_array_interface__


class _Exchange:
    """An array that only has DLPack."""

    def __init__(self, array: Any) -> None:
        self._array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self._array.__dlpack_device__()


@pytest.mark.parametrize("wrap", [_Interface, _Exchange])
def test_foreign_arrays(cupy: Any, target: Target, wrap: Callable[[Any], Any]) -> None:
    x, y = cupy.asarray(_rows(9)), cupy.zeros((9, 1, LENGTH), cupy.float32)
    given = wrap(y)
    result = _scale(hand_plans.every_step(target)).run({"x": wrap(x), "w": wrap(cupy.asarray(THREE))}, {"y": given})
    assert result["y"] is given
    cupy.testing.assert_array_equal(y, x * 3)


def test_large_dynamic_shared_memory(cupy: Any, target: Target) -> None:
    plan = hand_plans.every_step(target)
    steps = tuple(
        dataclasses.replace(step, shared_bytes=min(90 << 10, target.shared_per_block))
        if isinstance(step, Launch) and step.kernel.name == "multiply"
        else step
        for step in plan.steps
    )
    x = cupy.asarray(_rows(20))
    y = _scale(dataclasses.replace(plan, steps=steps)).run({"x": x, "w": cupy.asarray(THREE)})["y"]
    cupy.testing.assert_array_equal(y, x * 3)


def test_constant_memory_on_several_streams(cupy: Any, target: Target) -> None:
    program = _scale(hand_plans.every_step(target))
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(4)]
    x = cupy.asarray(_rows(900))
    filters = [cupy.full((1, 1, 1), i + 1, cupy.float32) for i in range(4)]
    outputs = [[cupy.empty_like(x) for _ in range(20)] for _ in streams]
    cupy.cuda.Device().synchronize()
    for round_ in range(20):
        for i, stream in enumerate(streams):
            program.run({"x": x, "w": filters[i]}, {"y": outputs[i][round_]}, stream=stream)
    cupy.cuda.Device().synchronize()
    for i in range(4):
        for y in outputs[i]:
            cupy.testing.assert_array_equal(y, x * (i + 1))


def test_the_callers_stream_orders_the_work(cupy: Any, target: Target) -> None:
    program = _scale(hand_plans.every_step(target))
    w = cupy.asarray(THREE)
    x = cupy.zeros((1000, 1, LENGTH), cupy.float32)
    program.run({"x": x, "w": w})
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    with stream:
        for _ in range(200):  # work the result must wait for
            x += 1
        y = program.run({"x": x, "w": w})["y"]
        y += 1
    stream.synchronize()
    assert (y == 601).all()


def test_a_graph_replays_the_plan(cupy: Any, target: Target) -> None:
    program = _scale(hand_plans.every_step(target))
    x, w, y = cupy.asarray(_rows(50)), cupy.asarray(THREE), cupy.empty((50, 1, LENGTH), cupy.float32)
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        program.run({"x": x, "w": w}, {"y": y})  # loads the module and fills the pool
        stream.begin_capture()
        program.run({"x": x, "w": w}, {"y": y})
        graph = stream.end_capture()
        for seed in range(3):
            x.set(_rows(50, seed))
            y.fill(0)
            scribble = [
                cupy.full(5000, np.nan, cupy.float32) for _ in range(8)
            ]  # would reuse workspace let go too early
            graph.launch()
            stream.synchronize()
            np.testing.assert_array_equal(cupy.asnumpy(y), _rows(50, seed) * 3)
            del scribble


def test_a_cubin_of_another_architecture(cupy: Any, target: Target) -> None:
    other = "sm_75" if target.compute_capability != (7, 5) else "sm_80"
    plan = hand_plans.every_step(target)
    program = load(plan, compile_cuda(hand_plans.SCALE_SOURCE, other, name="scale.cu"))
    with pytest.raises(DeviceError, match=rf"compiled for {other}"):
        program.run({"x": cupy.asarray(_rows(2)), "w": cupy.asarray(THREE)})


# --- problems, whole -----------------------------------------------------------------------------------------------

PROBLEMS = [
    "conv2d n=3 c=16 k=24 in=17x19 filter=3 pad=1 dtype=fp32 epilogue=bias+relu",
    "conv2d n=3 c=16 k=24 in=17x19 filter=3 pad=1 dtype=fp16 layout=nhwc epilogue=scale+shift+residual+silu",
    "conv2d n=2 c=8 k=8 in=13 filter=5 pad=2 dtype=bf16 layout=nhwc groups=8",
    "conv1d n=*<=9 c=6 k=4 in=33 filter=4 stride=2 dtype=fp32 pad=1",
    "conv2d n=2 c=6 k=4 in=9x8 filter=3 stride=2 pad=1 direction=dgrad accumulate=yes",
    "conv2d n=2 c=6 k=4 in=9x8 filter=3 stride=2 pad=1 direction=wgrad dtype=fp16",
    "conv_transpose2d n=2 c=6 k=4 in=9x8 filter=3 stride=2 output_padding=1",
]


def _program(text: str, target: Target) -> CudaProgram:
    return build_and_load(lower(Conv.parse(text), get_strategy("direct"), None, target))


@pytest.mark.parametrize("text", PROBLEMS)
def test_the_direct_strategy_against_the_oracle(cupy: Any, target: Target, text: str) -> None:
    problem = Conv.parse(text)
    concrete = problem.at(5) if problem.is_runtime_batch else problem
    inputs = make_inputs(concrete, seed=1)
    specs = {spec.name: spec for spec in (*concrete.inputs, *concrete.outputs)}
    device = {name: cupy.asarray(encode(values, specs[name].dtype)) for name, values in inputs.items()}
    output = concrete.outputs[0]
    outputs = {output.name: device.pop(output.name)} if problem.accumulate else None
    got = cupy.asnumpy(_program(text, target).run(device, outputs)[output.name])
    numbers = {name: decode(encode(values, specs[name].dtype), specs[name].dtype) for name, values in inputs.items()}
    expected = reference(concrete, numbers)
    outcome = compare(concrete.outputs[0], got, expected, bound(concrete, numbers, expected, strict_model(concrete)))
    assert outcome.ok, outcome.report()


# --- PyTorch -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("channels_last", [False, True])
def test_torch_tensors(torch: Any, target: Target, dtype: str, channels_last: bool) -> None:
    name = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}[dtype]
    layout = "nhwc" if channels_last else "nchw"
    program = _program(f"conv2d n=2 c=8 k=16 in=14 filter=3 pad=1 dtype={name} layout={layout}", target)
    form = torch.channels_last if channels_last else torch.contiguous_format
    generator = torch.Generator("cuda").manual_seed(0)
    x = torch.randn(2, 8, 14, 14, device="cuda", generator=generator).to(getattr(torch, dtype))
    w = torch.randn(16, 8, 3, 3, device="cuda", generator=generator).to(getattr(torch, dtype))
    expected = torch.nn.functional.conv2d(x.double(), w.double(), padding=1)
    for wanted in (torch.contiguous_format, torch.channels_last):  # one of them is copied first
        y = program.run({"x": x.to(memory_format=wanted), "w": w.to(memory_format=wanted)})["y"]
        assert y.dtype == x.dtype
        assert y.is_contiguous(memory_format=form)
        torch.testing.assert_close(y.double(), expected, rtol=2e-2 if name == "bf16" else 2e-3, atol=2e-2)


def test_torch_streams_and_graphs(torch: Any, target: Target) -> None:
    program = _scale(hand_plans.every_step(target))
    w = torch.full((1, 1, 1), 3.0, device="cuda")
    x = torch.ones(100, 1, LENGTH, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        y = program.run({"x": x, "w": w})["y"]
    explicit = program.run({"x": x, "w": w}, stream=side)["y"]
    side.synchronize()
    assert bool((y == 3).all())
    assert bool((explicit == 3).all())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = program.run({"x": x, "w": w})["y"]
    for value in (2.0, 5.0):
        x.fill_(value)
        graph.replay()
        torch.cuda.synchronize()
        assert bool((y == 3 * value).all())


def test_a_host_tensor_is_refused(torch: Any, target: Target) -> None:
    with pytest.raises(UsageError, match=r"\.cuda\(\)"):
        _scale(hand_plans.every_step(target)).run({"x": torch.ones(2, 1, LENGTH), "w": torch.ones(1, 1, 1)})


# --- the C launcher -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", PROBLEMS)
def test_the_c_launcher_runs_without_python(target: Target, text: str, tmp_path: Path) -> None:
    compiler = shutil.which("nvcc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    plan = lower(Conv.parse(text), get_strategy("direct"), None, target)
    binary = compile_cuda(render(plan), plan.target, name=f"{plan.name}.cu")
    for name, content in launcher_files(plan, binary.cubin).items():
        (tmp_path / name).write_text(content)
    program = tmp_path / "example"
    source = tmp_path / f"{plan.name}_example.c"
    link = [f"-I{header_directory()}", "-lcuda", "-lm", "-o", str(program)]
    # A machine may have the driver's library only under its versioned name.
    built = subprocess.run([compiler, str(source), *link], capture_output=True, text=True)
    if built.returncode:
        link[1] = "-l:libcuda.so.1" if "nvcc" not in compiler else "-Xlinker=-l:libcuda.so.1"
        built = subprocess.run([compiler, str(source), *link], capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    done = subprocess.run([program], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " 0 wrong" in done.stdout
