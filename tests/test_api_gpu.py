"""The embedding API on a real GPU: both libraries, streams, graphs, threads, prepared weights, NumPy."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from gpu_arrays import Predicting

import convgen
from convgen.api import dispatch, functions
from convgen.api.decision import Chosen, place_of, write_decisions
from convgen.errors import UsageError
from convgen.problem import Conv
from convgen.reference import bound, compare, decode, encode, reference, strict_model
from convgen.runtime.cuda import CudaProgram
from convgen.strategies import get_strategy
from convgen.target import Target

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def dispatcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(functions, "DISPATCHER", dispatch.Dispatcher(Predicting))


@pytest.fixture
def long_ways(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What went through `CudaProgram.run`, which a warm call is not to need."""
    taken: list[str] = []
    run = CudaProgram.run

    def counted(self: CudaProgram, *arguments: Any, **options: Any) -> Any:
        taken.append(str(self.plan.problem))
        return run(self, *arguments, **options)

    monkeypatch.setattr(CudaProgram, "run", counted)
    return taken


def constant_filter(text: str) -> Any:
    """A setting by which the problem is computed by the direct kernel with its filter in constant memory."""
    problem, target, strategy = Conv.parse(text), Target.current(), get_strategy("direct")
    default = strategy.default(problem, target)
    values = {"filter": "constant", "along_x": "column", "threads_channel": 1, "vector": 1, "tile_channel": 1}
    config = type(default).from_mapping(values, default)
    strategy.check(problem, config, target)
    decision = Chosen(strategy, config, "frozen")
    return convgen.tuning("frozen", decisions=write_decisions([(place_of(problem, target), decision)]))


def _random(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed + sum(shape)).standard_normal(shape, dtype=np.float32)


def _check(problem: str, y: Any, **tensors: Any) -> None:
    conv = Conv.parse(problem)
    numbers = {
        name: decode(encode(array, conv.tensor(name).dtype), conv.tensor(name).dtype) for name, array in tensors.items()
    }
    expected = reference(conv, numbers)
    outcome = compare(conv.outputs[0], y, expected, bound(conv, numbers, expected, strict_model(conv)))
    assert outcome.ok, outcome.report()


# --- CuPy ---------------------------------------------------------------------------------------------

CALLS = [
    ("conv1d", "n=2 c=4 k=6 in=17 filter=3 stride=2 pad=1 groups=2", {"stride": 2, "padding": 1, "groups": 2}),
    ("conv2d", "n=2 c=3 k=4 in=9x8 filter=3x2 stride=2x1 pad=1x0", {"stride": (2, 1), "padding": (1, 0)}),
    ("conv2d", "n=2 c=3 k=4 in=9x8 filter=4x2 pad=same dilation=1x3", {"padding": "same", "dilation": (1, 3)}),
    ("conv2d", "n=2 c=3 k=4 in=9x8 filter=3", {"padding": "valid"}),
    ("conv2d", "n=1 c=8 k=8 in=12 filter=5 pad=2:1 groups=8", {"padding": ((2, 1), (2, 1)), "groups": 8}),
    ("conv3d", "n=1 c=2 k=3 in=5x4x6 filter=3x1x2 pad=1x0x1", {"padding": [1, 0, 1]}),
    ("conv_transpose2d", "n=2 c=4 k=6 in=5x4 filter=3 stride=2 pad=1 output_padding=1 groups=2",
     {"stride": 2, "padding": 1, "output_padding": 1, "groups": 2}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text", "options"), CALLS)
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_calls_against_the_oracle(
    cupy: Any, long_ways: list[str], name: str, text: str, options: dict[str, Any], layout: str
) -> None:
    problem = Conv.parse(f"{name} {text} layout={layout} epilogue=bias")
    x, w, bias = (_random(*spec.shape) for spec in problem.inputs)
    order = problem.layout.order(problem.nd + 2)
    on_gpu = [
        cupy.ascontiguousarray(cupy.asarray(array).transpose(order)).transpose(np.argsort(order)) for array in (x, w)
    ]
    for _ in range(3):  # the first binds, the others are warm
        y = getattr(convgen, name)(*on_gpu, cupy.asarray(bias), **options)
        assert tuple(s // 4 for s in y.strides) == problem.outputs[0].strides
        _check(str(problem), y.get(), x=x, w=w, bias=bias)
    assert long_ways == []


def test_warm_calls_read_new_data(cupy: Any, long_ways: list[str]) -> None:
    for seed in range(4):
        x, w = _random(2, 3, 8, 8, seed=seed), _random(4, 3, 3, 3, seed=seed)
        _check("conv2d n=2 c=3 k=4 in=8 filter=3", convgen.conv2d(cupy.asarray(x), cupy.asarray(w)).get(), x=x, w=w)
    assert long_ways == []


def test_all_that_is_fused_and_an_output_given(cupy: Any) -> None:
    text = "conv2d n=2 c=3 k=4 in=6x5 filter=3 pad=1 epilogue=scale+shift+bias+residual+leaky_relu slope=0.25"
    host = {spec.name: _random(*spec.shape, seed=i) for i, spec in enumerate(Conv.parse(text).inputs)}
    gpu = {name: cupy.asarray(array) for name, array in host.items()}
    x, w, bias = gpu.pop("x"), gpu.pop("w"), gpu.pop("bias")
    out = cupy.full((2, 4, 6, 5), np.nan, np.float32)
    for _ in range(2):
        assert convgen.conv2d(x, w, bias, padding=1, activation=("leaky_relu", 0.25), out=out, **gpu) is out
        _check(text, out.get(), **host)


def test_misaligned_strided_overlapping(cupy: Any) -> None:
    memory = cupy.asarray(_random(2 * 4 * 64 + 3))
    w = _random(4, 4, 3, 3)
    for offset in (0, 1, 3):
        x = memory[offset : offset + 512].reshape(2, 4, 8, 8)
        _check("conv2d n=2 c=4 k=4 in=8 filter=3 pad=1", convgen.conv2d(x, cupy.asarray(w), padding=1).get(),
               x=x.get(), w=w)  # fmt: skip
    wide = cupy.asarray(_random(2, 8, 8, 8))
    y = convgen.conv2d(wide[:, ::2], cupy.asarray(w), padding=1)
    _check("conv2d n=2 c=4 k=4 in=8 filter=3 pad=1", y.get(), x=wide[:, ::2].get(), w=w)
    x = cupy.asarray(_random(2, 4, 8, 8))
    before = x.get()
    convgen.conv2d(x, cupy.asarray(w), padding=1, out=x)
    _check("conv2d n=2 c=4 k=4 in=8 filter=3 pad=1", x.get(), x=before, w=w)


def test_without_a_batch_and_with_an_empty_one(cupy: Any) -> None:
    x, w = _random(3, 8, 8), _random(4, 3, 3, 3)
    for _ in range(2):
        y = convgen.conv2d(cupy.asarray(x), cupy.asarray(w))
        assert y.shape == (4, 6, 6)
        _check("conv2d n=1 c=3 k=4 in=8 filter=3", y.get()[None], x=x[None], w=w)
    assert convgen.conv2d(cupy.zeros((0, 3, 8, 8), np.float32), cupy.asarray(w)).shape == (0, 4, 6, 6)


def test_numpy_arrays_go_through_the_gpu() -> None:
    x, w = _random(2, 8, 8, 3).transpose(0, 3, 1, 2), _random(4, 3, 3, 3)
    y = convgen.conv2d(x, w)
    assert isinstance(y, np.ndarray)
    assert y.transpose(0, 2, 3, 1).flags.c_contiguous
    _check("conv2d n=2 c=3 k=4 in=8 filter=3 layout=nhwc", y, x=x, w=w)
    out = np.zeros((2, 4, 6, 6), np.float32)
    weight = convgen.prepare(w, x)
    assert convgen.conv2d(x, weight, out=out) is out
    np.testing.assert_array_equal(out, y)
    assert weight.nbytes >= w.nbytes


def test_the_callers_stream_orders_the_work(cupy: Any) -> None:
    w = cupy.ones((1, 1, 1, 1), np.float32)
    x = cupy.zeros((64, 1, 128, 128), np.float32)
    convgen.conv2d(x, w)
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    for _ in range(2):
        x.fill(0)
        cupy.cuda.Device().synchronize()
        with stream:
            for _ in range(200):  # work the result must wait for
                x += 1
            y = convgen.conv2d(x, w)
            y += 1
        stream.synchronize()
        assert (y == 201).all()


def test_a_graph_replays_with_new_data(cupy: Any) -> None:
    x, w, y = cupy.zeros((2, 3, 8, 8), np.float32), cupy.asarray(_random(4, 3, 3, 3)), cupy.zeros((2, 4, 6, 6), "f")
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    with stream:
        convgen.conv2d(x, w, out=y)
        stream.begin_capture()
        convgen.conv2d(x, w, out=y)
        graph = stream.end_capture()
        for seed in range(3):
            x.set(_random(2, 3, 8, 8, seed=seed))
            y.fill(0)
            graph.launch()
            stream.synchronize()
            _check("conv2d n=2 c=3 k=4 in=8 filter=3", y.get(), x=x.get(), w=w.get())


def test_a_first_call_is_captured(cupy: Any) -> None:
    x, w, y = cupy.asarray(_random(1, 3, 8, 8)), cupy.asarray(_random(4, 3, 3, 3)), cupy.zeros((1, 4, 6, 6), "f")
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    with stream, convgen.tuning("on_miss"):
        stream.begin_capture()
        convgen.conv2d(x, w, out=y)
        graph = stream.end_capture()
        graph.launch()
        stream.synchronize()
    _check("conv2d n=1 c=3 k=4 in=8 filter=3", y.get(), x=x.get(), w=w.get())


# --- constant memory and prepared weights -------------------------------------------------------------

CONSTANT = "conv2d n=1 c=1 k=1 in=256 filter=3 pad=1"


def test_a_constant_filter_on_several_streams(cupy: Any) -> None:
    x = cupy.asarray(_random(1, 1, 256, 256))
    filters = [cupy.full((1, 1, 3, 3), i + 1, np.float32) for i in range(4)]
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in filters]
    outputs: list[list[Any]] = [[] for _ in filters]
    with constant_filter(CONSTANT):
        one = convgen.conv2d(x, cupy.ones((1, 1, 3, 3), np.float32), padding=1)
        cupy.cuda.Device().synchronize()
        for _ in range(20):
            for stream, w, ys in zip(streams, filters, outputs, strict=True):
                with stream:
                    ys.append(convgen.conv2d(x, w, padding=1))
    cupy.cuda.Device().synchronize()
    for i, ys in enumerate(outputs):
        for y in ys:
            cupy.testing.assert_allclose(y, one * (i + 1), rtol=1e-5, atol=1e-4)


def test_prepared_weights_on_streams_and_in_threads(cupy: Any, long_ways: list[str]) -> None:
    x = cupy.asarray(_random(1, 1, 256, 256))
    failures: list[int] = []
    with constant_filter(CONSTANT):
        one = convgen.conv2d(x, cupy.ones((1, 1, 3, 3), np.float32), padding=1)
        weights = [convgen.prepare(cupy.full((1, 1, 3, 3), i + 1, np.float32), x, padding=1) for i in range(4)]
    assert all(weight.nbytes == 36 for weight in weights)

    def work(i: int) -> None:
        stream = cupy.cuda.Stream(non_blocking=True)
        with constant_filter(CONSTANT), stream:
            for _ in range(20):
                y = convgen.conv2d(x, weights[i], padding=1)
                if not cupy.allclose(y, one * (i + 1), rtol=1e-5, atol=1e-4):
                    failures.append(i)

    cupy.cuda.Device().synchronize()
    _in_threads(work, 4)
    assert failures == []
    assert long_ways == []


def test_a_prepared_weight_in_a_graph(cupy: Any) -> None:
    x, y = cupy.zeros((1, 1, 256, 256), np.float32), cupy.zeros((1, 1, 256, 256), np.float32)
    w = _random(1, 1, 3, 3)
    stream = cupy.cuda.Stream(non_blocking=True)
    with constant_filter(CONSTANT):
        weight = convgen.prepare(cupy.asarray(w), x.shape, padding=1)
        with stream:
            stream.begin_capture()
            convgen.conv2d(x, weight, padding=1, out=y)
            graph = stream.end_capture()
            for seed in range(2):
                x.set(_random(1, 1, 256, 256, seed=seed))
                graph.launch()
                stream.synchronize()
                _check(CONSTANT, y.get(), x=x.get(), w=w)


def test_a_weight_of_another_layout_is_copied_once(cupy: Any) -> None:
    x = cupy.asarray(_random(2, 8, 8, 16)).transpose(0, 3, 1, 2)
    w = cupy.asarray(_random(32, 16, 3, 3))
    weight = convgen.prepare(w, x, padding=1)
    assert weight.nbytes >= w.nbytes
    cupy.testing.assert_array_equal(convgen.conv2d(x, weight, padding=1), convgen.conv2d(x, w, padding=1))


def _in_threads(work: Any, count: int) -> None:
    threads = [threading.Thread(target=work, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_threads_on_one_signature(cupy: Any) -> None:
    w, failures = _random(4, 3, 3, 3), []
    weight = cupy.asarray(w)

    def work(seed: int) -> None:
        x = _random(2, 3, 8, 8, seed=seed)
        with cupy.cuda.Stream(non_blocking=True) as stream:
            on_gpu = cupy.asarray(x)
            expected = None
            for _ in range(50):
                y = convgen.conv2d(on_gpu, weight).get()
                if expected is None:
                    expected = y
                    try:
                        _check("conv2d n=2 c=3 k=4 in=8 filter=3", y, x=x, w=w)
                    except AssertionError:
                        failures.append(seed)
                elif not np.array_equal(y, expected):
                    failures.append(seed)
            stream.synchronize()

    cupy.cuda.Device().synchronize()
    _in_threads(work, 6)
    assert failures == []


# --- PyTorch ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("channels_last", [False, True])
def test_tensors(torch: Any, long_ways: list[str], dtype: str, channels_last: bool) -> None:
    form = torch.channels_last if channels_last else torch.contiguous_format
    generator = torch.Generator("cuda").manual_seed(0)
    x, w, b = (
        torch.randn(shape, device="cuda", generator=generator).to(getattr(torch, dtype))
        for shape in ((2, 8, 14, 14), (16, 8, 3, 3), (16,))
    )
    x, w = x.to(memory_format=form), w.to(memory_format=form)
    expected = torch.nn.functional.conv2d(x.double(), w.double(), b.double(), padding=1)
    for _ in range(3):
        y = convgen.conv2d(x, w, b, padding=1)
        assert y.dtype == x.dtype
        assert y.is_contiguous(memory_format=form)
        torch.testing.assert_close(y.double(), expected, rtol=2e-2 if dtype == "bfloat16" else 2e-3, atol=2e-2)
    assert long_ways == []
    other = w.to(memory_format=torch.contiguous_format if channels_last else torch.channels_last)
    torch.testing.assert_close(convgen.conv2d(x, other, b, padding=1), y, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("name", "shape", "filters", "options"),
    [
        ("conv1d", (4, 19), (6, 2, 4), {"groups": 2, "padding": "same"}),
        ("conv3d", (1, 2, 5, 6, 7), (3, 2, 3, 2, 1), {"padding": 1, "stride": (1, 2, 1)}),
        ("conv_transpose1d", (2, 4, 7), (4, 3, 4), {"stride": 3, "padding": 1, "output_padding": 2}),
        ("conv_transpose2d", (4, 5, 6), (4, 3, 3, 2), {"stride": (1, 2), "dilation": 2}),
    ],
)
def test_as_pytorch_has_it(torch: Any, name: str, shape: Any, filters: Any, options: dict[str, Any]) -> None:
    x, w = torch.from_numpy(_random(*shape)).cuda(), torch.from_numpy(_random(*filters)).cuda()
    expected = getattr(torch.nn.functional, name)(x.double(), w.double(), **options)
    for _ in range(2):
        y = getattr(convgen, name)(x, w, **options)
        torch.testing.assert_close(y.double(), expected, rtol=1e-5, atol=1e-5)


def test_gradients(torch: Any) -> None:
    x = torch.ones(1, 1, 8, 8, device="cuda")
    layer = torch.nn.Conv2d(1, 1, 3, device="cuda")
    both = r"^weight, bias requires grad.*torch\.no_grad\(\), or pass weight\.detach\(\), bias\.detach\(\)$"
    with pytest.raises(UsageError, match=both):
        convgen.conv2d(x, layer.weight, layer.bias)
    with torch.no_grad():
        expected = layer(x)
        for _ in range(2):
            torch.testing.assert_close(convgen.conv2d(x, layer.weight, layer.bias), expected, rtol=1e-4, atol=1e-4)
    with pytest.raises(UsageError, match=both):
        convgen.conv2d(x, layer.weight, layer.bias)
    with pytest.raises(UsageError, match=r"^weight requires grad.*or pass weight\.detach\(\)$"):
        convgen.conv2d(x, layer.weight, layer.bias.detach())
    prepared = convgen.prepare(layer.weight, x, layer.bias)
    torch.testing.assert_close(convgen.conv2d(x, prepared, layer.bias.detach()), expected, rtol=1e-4, atol=1e-4)


def test_a_side_stream_and_a_graph(torch: Any) -> None:
    x = torch.ones(64, 1, 128, 128, device="cuda")
    w = torch.full((1, 1, 1, 1), 3.0, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            y = convgen.conv2d(x, w)
    side.synchronize()
    assert bool((y == 3).all())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = convgen.conv2d(x, w) + 1
    for value in (2.0, 5.0):
        x.fill_(value)
        graph.replay()
        torch.cuda.synchronize()
        assert bool((y == 3 * value + 1).all())


def test_threads_that_never_used_cuda(torch: Any) -> None:
    x, w = torch.ones(1, 1, 8, 8, device="cuda"), torch.ones(1, 1, 3, 3, device="cuda")
    convgen.conv2d(x, w)
    torch.cuda.synchronize()
    wrong: list[int] = []

    def work(i: int) -> None:
        for _ in range(20):
            if not bool((convgen.conv2d(x, w) == 9).all()):
                wrong.append(i)

    _in_threads(work, 4)
    assert wrong == []


def test_a_tensor_on_the_host_is_refused(torch: Any) -> None:
    with pytest.raises(UsageError, match=r"input: a tensor is on cpu.*\.cuda\(\)"):
        convgen.conv2d(torch.ones(1, 1, 8, 8), torch.ones(1, 1, 3, 3))
