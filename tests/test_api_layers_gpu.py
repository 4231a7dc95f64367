"""Pooling and batch normalisation of CuPy arrays and CUDA tensors, on a real GPU, against float64."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from gpu_arrays import Arrays, CupyArrays, Predicting, TorchArrays, check, inputs_of

import convgen
from convgen.api import layers
from convgen.api.choice import Chooser
from convgen.api.layer_dispatch import LayerDispatcher
from convgen.errors import UsageError
from convgen.problem import BatchNorm, Pool

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def shared() -> LayerDispatcher:
    """One for all tests, so that a kernel is compiled once."""
    return LayerDispatcher(Chooser(Predicting))


@pytest.fixture(autouse=True)
def dispatcher(monkeypatch: pytest.MonkeyPatch, shared: LayerDispatcher) -> None:
    monkeypatch.setattr(layers, "LAYERS", shared)


# --- pooling ------------------------------------------------------------------------------------------

POOLS = [
    ("max_pool1d n=2 c=5 in=33 filter=3 stride=2 pad=1", (3, 2, 1), {}),
    ("avg_pool1d n=2 c=8 in=32 filter=4 dtype=fp16 layout=nlc", (4,), {}),
    ("max_pool2d n=2 c=8 in=15x14 filter=3x3 stride=2 pad=1 dtype=fp16 layout=nhwc", (3, 2, 1), {}),
    ("max_pool2d n=2 c=3 in=12x11 filter=3x2 stride=1 dilation=2x3", ((3, 2), 1), {"dilation": (2, 3)}),
    (
        "avg_pool2d n=2 c=8 in=13x12 filter=3x3 stride=2 pad=1 ceil_mode=yes count_include_pad=no dtype=bf16 "
        "layout=nhwc",
        (3, 2, 1, True, False),
        {},
    ),
    ("avg_pool2d n=4 c=16 in=7x7 filter=7x7 layout=nhwc", (7,), {}),
    ("max_pool3d n=1 c=4 in=5x6x7 filter=3x2x3 stride=2x1x2 dtype=fp16 layout=ndhwc", ((3, 2, 3), (2, 1, 2)), {}),
    ("avg_pool3d n=1 c=3 in=4x6x8 filter=2x2x2 divisor_override=3", (2,), {"divisor_override": 3}),
]


@pytest.mark.parametrize(("text", "positional", "options"), POOLS)
def test_pooling(arrays: Arrays, text: str, positional: tuple[Any, ...], options: dict[str, Any]) -> None:
    problem = Pool.parse(text)
    [spec] = problem.outputs
    function = getattr(convgen, problem.op)
    for seed in range(2):  # the first call binds, the second finds it
        inputs = inputs_of(problem, seed)
        x = arrays.of(problem.inputs[0], inputs["x"])
        y = function(x, *positional, **options)
        assert (type(y), tuple(y.shape), y.dtype) == (type(x), spec.shape, x.dtype)
        assert arrays.strides(y) == spec.strides
        check(problem, inputs, {"y": arrays.host(y)})
    out = arrays.empty(spec)
    assert function(x, *positional, **options, out=out) is out
    check(problem, inputs, {"y": arrays.host(out)})


def test_pooling_of_views_and_in_place(arrays: Arrays) -> None:
    """Every second channel, from a misaligned address; a result written over its input; no batch."""
    problem = Pool.parse("max_pool2d n=2 c=4 in=9x8 filter=3x3 stride=1 pad=1")
    wide = Pool.parse("max_pool2d n=2 c=9 in=9x8 filter=3x3 stride=1 pad=1")
    values = inputs_of(wide)["x"]
    view = arrays.of(wide.inputs[0], values)[:, 1::2]
    inputs = {"x": values[:, 1::2]}
    check(problem, inputs, {"y": arrays.host(convgen.max_pool2d(view, 3, 1, 1))})
    alone = convgen.max_pool2d(view[1], 3, 1, 1)
    assert tuple(alone.shape) == (4, 9, 8)
    check(problem.at(1), {"x": inputs["x"][1:]}, {"y": arrays.host(alone)[None]})
    assert convgen.max_pool2d(view, 3, 1, 1, out=view) is view
    check(problem, inputs, {"y": arrays.host(view)})


def test_an_empty_batch(arrays: Arrays) -> None:
    x = arrays.empty(Pool.parse("max_pool2d n=0 c=4 in=9x8 filter=3x3").inputs[0])
    assert tuple(convgen.max_pool2d(x, 3).shape) == (0, 4, 3, 2)


# --- batch normalisation ------------------------------------------------------------------------------

TRAINING = "batch_norm n=4 c=12 in=9x7 mode=training eps=0.001 momentum=0.25"
NORMS = [
    TRAINING,
    "batch_norm n=4 c=16 in=8x8 mode=training residual=yes activation=relu dtype=fp16 layout=nhwc",
    "batch_norm n=3 c=8 in=4x5x6 mode=training dtype=bf16 layout=ndhwc",
    "batch_norm n=64 c=24 mode=training affine=no running=no",
    "batch_norm n=2 c=5 in=37 activation=leaky_relu slope=0.2",
    "batch_norm n=4 c=16 in=8x8 residual=yes activation=silu dtype=bf16 layout=nhwc",
    "batch_norm n=2 c=6 in=3x4x5 affine=no dtype=fp16",
]
_NAMES = {"scale": "weight", "bias": "bias", "residual": "residual"}


def _normalise(problem: BatchNorm, given: Mapping[str, Any], out: Any = None) -> Any:
    activation = ("leaky_relu", problem.slope) if problem.activation == "leaky_relu" else problem.activation.value
    options = {word: given[name] for name, word in _NAMES.items() if name in given}
    return convgen.batch_norm(
        given["x"],
        given.get("mean"),
        given.get("var"),
        training=problem.is_training,
        momentum=problem.momentum,
        eps=problem.eps,
        activation=None if activation == "none" else activation,
        out=out,
        **options,
    )


def _updated(problem: BatchNorm, arrays: Arrays, given: Mapping[str, Any]) -> dict[str, Any]:
    """The running statistics, which training writes where they lie."""
    if not problem.is_training or not problem.running:
        return {}
    return {f"running_{name}": arrays.host(given[name]) for name in ("mean", "var")}


@pytest.mark.parametrize("text", NORMS)
def test_batch_norm(arrays: Arrays, text: str) -> None:
    problem = BatchNorm.parse(text)
    for seed in range(2):
        inputs = inputs_of(problem, seed)
        given = {spec.name: arrays.of(spec, inputs[spec.name]) for spec in problem.inputs}
        y = _normalise(problem, given)
        assert arrays.strides(y) == problem.outputs[0].strides
        check(problem, inputs, {"y": arrays.host(y)} | _updated(problem, arrays, given))
        unwritten = problem.inputs if not problem.is_training else [problem.tensor("x")]
        for spec in unwritten:
            untouched = arrays.host(arrays.of(spec, inputs[spec.name]))
            np.testing.assert_array_equal(arrays.host(given[spec.name]), untouched)


def test_training_over_its_input_with_statistics_in_the_middle_of_others(arrays: Arrays) -> None:
    problem = BatchNorm.parse(TRAINING)
    inputs = inputs_of(problem)
    given = {spec.name: arrays.of(spec, inputs[spec.name]) for spec in problem.inputs}
    longer = BatchNorm.parse("batch_norm n=4 c=26 in=9x7 mode=training").tensor("mean")
    memory = arrays.of(longer, np.full(26, 7.0))
    for name, part in (("mean", memory[1:13]), ("var", memory[13:25])):
        part[...] = given[name]
        given[name] = part
    assert _normalise(problem, given, out=given["x"]) is given["x"]
    check(problem, inputs, {"y": arrays.host(given["x"])} | _updated(problem, arrays, given))
    assert (arrays.host(memory)[[0, 25]] == 7).all()


def test_numpy_arrays_go_through_the_gpu() -> None:
    problem = BatchNorm.parse(TRAINING)
    inputs = inputs_of(problem)
    given = {name: value.astype(np.float32) for name, value in inputs.items()}
    y = _normalise(problem, given)
    check(problem, inputs, {"y": y, "running_mean": given["mean"], "running_var": given["var"]})
    pool = Pool.parse("max_pool2d n=2 c=3 in=8x8 filter=2x2")
    x = inputs_of(pool)
    check(pool, x, {"y": convgen.max_pool2d(x["x"].astype(np.float32), 2)})


# --- streams and graphs -------------------------------------------------------------------------------


def test_the_callers_stream_orders_the_work(cupy: Any) -> None:
    x = cupy.zeros((32, 8, 64, 64), np.float32)
    convgen.avg_pool2d(x, 2)
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    with stream:
        for _ in range(200):  # work the result must wait for
            x += 1
        y = convgen.avg_pool2d(x, 2)
        y += 1
    stream.synchronize()
    assert (y == 201).all()


def test_a_captured_first_call_trains_at_every_replay_and_keeps_its_memory(
    cupy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layers, "LAYERS", LayerDispatcher(Chooser(Predicting)))
    arrays, problem = CupyArrays(cupy), BatchNorm.parse(TRAINING)
    inputs = inputs_of(problem)
    given = {spec.name: arrays.of(spec, inputs[spec.name]) for spec in problem.inputs}
    y = arrays.empty(problem.outputs[0])
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    with stream:
        stream.begin_capture()
        _normalise(problem, given, out=y)
        graph = stream.end_capture()
        # What the call let go of while it was captured must not be handed to others.
        others = [cupy.full(problem.c, 7, np.float32) for _ in range(64)]
        for seed in range(2):
            x = inputs_of(problem, seed)["x"]
            arrays.fill(given["x"], x)
            inputs |= {"x": x, "mean": arrays.host(given["mean"]), "var": arrays.host(given["var"])}
            graph.launch()
            stream.synchronize()
            check(problem, inputs, {"y": arrays.host(y)} | _updated(problem, arrays, given))
        assert all((other == 7).all() for other in others)


def test_a_graph_and_a_side_stream_of_pytorch(torch: Any) -> None:
    arrays, problem = TorchArrays(torch), BatchNorm.parse(NORMS[1])
    inputs = inputs_of(problem)
    given = {spec.name: arrays.of(spec, inputs[spec.name]) for spec in problem.inputs}
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        y = _normalise(problem, given)
        pooled = convgen.max_pool2d(y, 2)
    side.synchronize()
    check(problem, inputs, {"y": arrays.host(y)} | _updated(problem, arrays, given))
    assert torch.equal(pooled, torch.nn.functional.max_pool2d(y, 2))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        pooled = convgen.max_pool2d(_normalise(problem, given), 2)
    for seed in range(2):
        x = inputs_of(problem, seed)["x"]
        arrays.fill(given["x"], x)
        inputs |= {"x": x, "mean": arrays.host(given["mean"]), "var": arrays.host(given["var"])}
        graph.replay()
        torch.cuda.synchronize()
        check(problem, inputs, _updated(problem, arrays, given))
        again = _normalise(problem, given)
        assert torch.equal(pooled, torch.nn.functional.max_pool2d(again, 2))


def test_the_layers_of_a_model(torch: Any) -> None:
    """Parameters that want gradients, buffers, channels-last: under no_grad, as PyTorch computes them."""
    layer = torch.nn.BatchNorm2d(16, device="cuda")
    x = torch.randn(4, 16, 8, 8, device="cuda").to(memory_format=torch.channels_last)
    with pytest.raises(UsageError, match="weight, bias requires grad"):
        convgen.batch_norm(x, layer.running_mean, layer.running_var, layer.weight, layer.bias, True)
    ours = torch.zeros(16, device="cuda"), torch.ones(16, device="cuda")
    with torch.no_grad():
        expected = layer(x)
        y = convgen.batch_norm(x, *ours, layer.weight, layer.bias, True)
    torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(ours[0], layer.running_mean, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(ours[1], layer.running_var, rtol=1e-4, atol=1e-6)
    assert y.is_contiguous(memory_format=torch.channels_last)
