"""What a Conv says of itself: shapes, work, tensors, and what it refuses."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any

import numpy as np
import pytest
from generators import random_convs, valid_convs
from hypothesis import given, settings

from convgen.errors import ProblemError
from convgen.problem import (
    Activation,
    Conv,
    Direction,
    DType,
    Epilogue,
    Layout,
    RuntimeSize,
    TensorSpec,
    fold_batch_norm,
)


def positions(conv: Conv, axis: int) -> int:
    """Output extent by trying every position of the dilated filter, instead of the formula."""
    reach = 1 + sum(conv.dilation[axis] for _ in range(conv.filter[axis] - 1))
    if not conv.transposed:
        padded = conv.pad_lo[axis] + conv.spatial[axis] + conv.pad_hi[axis]
        return sum(1 for start in range(0, padded, conv.stride[axis]) if start + reach <= padded)
    written = {
        pixel * conv.stride[axis] + tap * conv.dilation[axis]
        for pixel in range(conv.spatial[axis])
        for tap in range(conv.filter[axis])
    }
    return max(written) + 1 + conv.output_padding[axis] - conv.pad_lo[axis] - conv.pad_hi[axis]


@settings(max_examples=100, deadline=None)
@given(valid_convs())
def test_output_extent_counts_filter_positions(conv: Conv) -> None:
    assert conv.out == tuple(positions(conv, axis) for axis in range(conv.nd))


def test_macs_count_every_term() -> None:
    for conv in random_convs(seed=5, count=40, max_macs=300):
        features = conv.spatial if conv.transposed else conv.out
        terms = itertools.product(
            range(conv.typical_batch),
            range(conv.k),
            range(conv.c // conv.groups),
            *map(range, conv.filter),
            *map(range, features),
        )
        assert conv.macs == sum(1 for _ in terms)
        assert conv.flops == 2 * conv.macs


def test_zero_sizes() -> None:
    empty = Conv.of("conv2d", n=0, c=3, k=4, spatial=3, filter=2)
    assert (empty.out, empty.macs) == ((2, 2), 0)
    flat = Conv.of("conv2d", n=2, c=32, k=1, spatial=(0, 5), filter=2, pad=1)
    assert flat.out == (1, 6)
    assert flat.tensor("x").size == 0
    assert flat.tensor("x").strides == (160, 5, 5, 1)
    assert Conv.of("conv1d", c=0, k=0, spatial=4, filter=1, groups=3).tensor("w").shape == (0, 0, 1)


@pytest.mark.parametrize(
    ("size", "taps", "stride", "dilation", "pad", "out"),
    [
        (7, 3, 1, 1, (1, 1), 7),
        (7, 4, 1, 1, (1, 2), 7),
        (7, 2, 1, 3, (1, 2), 7),
        (8, 3, 2, 1, (0, 1), 4),
        (7, 3, 2, 1, (1, 1), 4),
        (9, 1, 3, 1, (0, 0), 3),
        (5, 1, 4, 1, (0, 0), 2),
    ],
)
def test_same_padding(size: int, taps: int, stride: int, dilation: int, pad: tuple[int, int], out: int) -> None:
    """Values of torch.nn.functional.conv1d(padding="same") at stride 1, of tf.nn.conv1d("SAME") above it."""
    conv = Conv.parse(f"conv1d c=1 k=1 in={size} filter={taps} stride={stride} dilation={dilation} pad=same")
    assert ((conv.pad_lo[0], conv.pad_hi[0]), conv.out) == (pad, (out,))


def test_tensors_of_each_direction() -> None:
    text = "conv2d n=2 c=6 k=9 in=5x7 filter=3x2 groups=3 dtype=fp16 layout=nhwc direction="
    shapes = {"x": (2, 6, 5, 7), "w": (9, 2, 3, 2), "y": (2, 9, 3, 6)}
    expected = {
        "fprop": (["x", "w"], "y"),
        "dgrad": (["dy", "w"], "dx"),
        "wgrad": (["dy", "x"], "dw"),
    }
    for direction, (inputs, output) in expected.items():
        conv = Conv.parse(text + direction)
        assert [tensor.name for tensor in conv.inputs] == inputs
        assert [tensor.name for tensor in conv.outputs] == [output]
        for tensor in (*conv.inputs, *conv.outputs):
            assert tensor.shape == shapes[tensor.name.removeprefix("d")]
            assert tensor.dtype is DType.FP16


def test_transposed_weight_is_input_channels_first() -> None:
    conv = Conv.parse("conv_transpose1d c=4 k=6 in=5 filter=3 stride=2 groups=2 output_padding=1 pad=1")
    assert conv.tensor("w").shape == (4, 3, 3)
    assert conv.out == (10,)


def test_epilogue_operands() -> None:
    conv = Conv.parse(
        "conv1d n=2 c=1 k=5 in=4 filter=1 dtype=bf16 out_dtype=fp32 epilogue=scale+shift+bias+residual+relu"
    )
    specs = {tensor.name: (tensor.shape, tensor.dtype) for tensor in conv.inputs[2:]}
    assert specs == {
        "scale": ((5,), DType.FP32),
        "shift": ((5,), DType.FP32),
        "bias": ((5,), DType.BF16),
        "residual": ((2, 5, 4), DType.FP32),
    }


@pytest.mark.parametrize(
    ("dtype", "x", "w", "y", "bias"),
    [
        ("tf32", "fp32", "fp32", "fp32", "fp32"),
        ("fp16", "fp16", "fp16", "fp16", "fp16"),
        ("int8", "int8", "int8", "int32", "fp32"),
        ("uint8", "uint8", "int8", "int32", "fp32"),
        ("fp8", "fp8", "fp8", "fp8", "fp32"),
    ],
)
def test_stored_types(dtype: str, x: str, w: str, y: str, bias: str) -> None:
    conv = Conv.parse(f"conv1d c=1 k=1 in=1 filter=1 epilogue=bias dtype={dtype}")
    assert [conv.tensor(name).dtype for name in ("x", "w", "y", "bias")] == [x, w, y, bias]


@pytest.mark.parametrize("rank", [3, 4, 5])
def test_strides_are_those_of_a_dense_array(rank: int) -> None:
    shape = (2, 3, 5, 7, 11)[:rank]
    first = np.empty(shape, np.int8)
    last = np.moveaxis(np.empty((shape[0], *shape[2:], shape[1]), np.int8), -1, 1)
    assert TensorSpec("x", shape, DType.INT8, Layout.CHANNELS_FIRST).strides == first.strides
    assert TensorSpec("x", shape, DType.INT8, Layout.CHANNELS_LAST).strides == last.strides


def test_vectors_ignore_the_layout() -> None:
    assert TensorSpec("bias", (8,), DType.FP32, Layout.CHANNELS_LAST).strides == (1,)


def test_bytes_read_inputs_and_write_outputs_once() -> None:
    conv = Conv.parse("conv1d n=2 c=3 k=4 in=10 filter=3 dtype=fp16 epilogue=bias")
    sizes = {"x": 2 * 3 * 10, "w": 4 * 3 * 3, "y": 2 * 4 * 8, "bias": 4}
    assert conv.bytes == 2 * sum(sizes.values())
    assert dataclasses.replace(conv, accumulate=True).bytes == conv.bytes + 2 * sizes["y"]


def test_runtime_batch() -> None:
    conv = Conv.parse("conv1d n=*<=128~32 c=1 k=1 in=4 filter=1")
    assert (conv.is_runtime_batch, conv.max_batch, conv.typical_batch) == (True, 128, 32)
    assert conv.tensor("x").shape == conv.at(32).tensor("x").shape == (32, 1, 4)
    assert conv.at(128).macs == 512
    assert conv.at(0).macs == 0
    with pytest.raises(ProblemError, match="at most 128"):
        conv.at(129)
    assert Conv.parse("conv1d n=* c=1 k=1 in=4 filter=1").max_batch is None
    assert [RuntimeSize.parse("n", text).typical for text in ("*", "*<=9", "*~7", "*<=9~7")] == [1, 9, 7, 7]


def test_unit_roundoff_bounds_the_rounding_error() -> None:
    values = np.random.default_rng(0).uniform(1, 2, 1000)
    for dtype, name in ((DType.FP32, "float32"), (DType.FP16, "float16")):
        rounded = values.astype(name).astype(np.float64)
        error = np.max(np.abs(rounded - values) / values)
        assert dtype.eps / 3 < error <= dtype.eps


def test_fold_batch_norm_equals_the_definition() -> None:
    rng = np.random.default_rng(0)
    gamma, beta, mean = rng.standard_normal((3, 16))
    var = rng.uniform(0, 2, 16)
    accumulator = rng.standard_normal((50, 16))
    scale, shift = fold_batch_norm(gamma, beta, mean, var, eps=1e-3)
    expected = gamma * (accumulator - mean) / np.sqrt(var + 1e-3) + beta
    assert scale.dtype == shift.dtype == np.float32
    np.testing.assert_allclose(accumulator * scale + shift, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "changes",
    [
        {"gamma": "text"},
        {"beta": [1.0, 2.0, 3.0]},
        {"mean": 1.0},
        {"var": [-1.0, 1.0]},
        {"eps": [1.0, 2.0, 3.0]},
        {"mean": np.ma.masked_array([0.0, 0.0])},
    ],
)
def test_fold_batch_norm_refuses(changes: dict[str, Any]) -> None:
    good: dict[str, Any] = {"gamma": [1.0, 1.0], "beta": [0.0, 0.0], "mean": [0.0, 0.0], "var": [1.0, 1.0]}
    with pytest.raises(ProblemError):
        fold_batch_norm(**good | changes)


BASE = "conv2d n=2 c=4 k=4 in=8x8 filter=3x3 "
BAD = [
    ("pad", "pad=-1"),
    ("pad", "pad=1:-1"),
    ("pad", "pad=1x1x1"),
    ("pad", "pad=1:1:1"),
    ("pad", "pad=8 pad_mode=reflect"),
    ("pad", "pad=9 pad_mode=circular"),
    ("pad_mode", "pad_mode=mirror"),
    ("groups", "groups=3"),
    ("groups", "groups=0"),
    ("stride", "stride=0"),
    ("stride", "stride=1x2x3"),
    ("dilation", "dilation=0"),
    ("in", "dilation=4"),
    ("output_padding", "output_padding=1"),
    ("dtype", "dtype=int32"),
    ("dtype", "dtype=float"),
    ("out_dtype", "out_dtype=tf32"),
    ("out_dtype", "out_dtype=int8"),
    ("layout", "layout=hwcn"),
    ("direction", "direction=bprop"),
    ("direction", "direction=backwards"),
    ("epilogue", "epilogue=relu+bias"),
    ("epilogue", "epilogue=bias+bias"),
    ("epilogue", "epilogue=relu+gelu"),
    ("epilogue", "epilogue=softmax"),
    ("epilogue", "epilogue=bias direction=dgrad"),
    ("slope", "slope=0.2"),
    ("slope", "epilogue=leaky_relu slope=1e39"),
    ("slope", "epilogue=leaky_relu slope=nan"),
    ("accumulate", "accumulate=maybe"),
    ("accuracy", "accuracy=exact"),
    ("kernel", "kernel=3"),
    ("token", "bias"),
    ("token", "pad="),
    ("stride", "stride=1 stride=1"),
]


@pytest.mark.parametrize(("key", "tokens"), BAD)
def test_refusal_names_the_key(key: str, tokens: str) -> None:
    with pytest.raises(ProblemError) as caught:
        Conv.parse(BASE + tokens)
    assert caught.value.key == key
    assert caught.value.expected
    assert str(caught.value).startswith(f"{key}=")


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("problem", ""),
        ("problem", "n=1 c=1"),
        ("op", "conv4d c=1 k=1 in=1 filter=1"),
        ("op", "convolution c=1 k=1 in=1 filter=1"),
        ("k", "conv1d c=1 in=1 filter=1"),
        ("in", "conv1d c=1 k=1 in=1x1 filter=1"),
        ("in", "conv1d c=1 k=1 in=2 filter=3"),
        ("filter", "conv1d c=1 k=1 in=2 filter=0"),
        ("c", "conv1d c=1.5 k=1 in=2 filter=1"),
        ("c", "conv1d c=-1 k=1 in=2 filter=1"),
        ("c", "conv1d c=\u0661 k=1 in=2 filter=1"),
        ("n", "conv1d n=*<=0 c=1 k=1 in=2 filter=1"),
        ("n", "conv1d n=*<=4~8 c=1 k=1 in=2 filter=1"),
        ("n", "conv1d n=*4 c=1 k=1 in=2 filter=1"),
        ("k", "conv1d c=1 k=9223372036854775808 in=2 filter=1"),
        ("k", "conv1d c=1 k=99999999999999999999 in=2 filter=1"),
        ("x", "conv1d n=4294967296 c=2147483648 k=1 in=1 filter=1"),
        ("x", "conv1d n=4294967296 c=1073741824 k=1 in=1 filter=1"),
        ("x", "conv1d n=*<=4294967296~1 c=1073741824 k=1 in=1 filter=1"),
        ("y", "conv1d n=4294967296 c=1 k=2147483648 in=1 filter=1"),
        ("macs", "conv1d n=2097152 c=2097152 k=2097152 in=1 filter=1"),
        ("in", "conv1d c=0 k=0 in=9223372036854775807 filter=1 pad=1"),
        ("pad", "conv_transpose1d c=1 k=1 in=2 filter=3 pad=3"),
        ("pad", "conv_transpose1d c=1 k=1 in=2 filter=3 pad=same"),
        ("pad", "conv1d c=1 k=1 in=0 filter=1 pad=1 pad_mode=replicate"),
        ("pad_mode", "conv_transpose1d c=1 k=1 in=2 filter=3 pad_mode=reflect"),
        ("output_padding", "conv_transpose1d c=1 k=1 in=2 filter=3 stride=2 dilation=3 output_padding=3"),
    ],
)
def test_refusal_of_a_whole_text(key: str, text: str) -> None:
    with pytest.raises(ProblemError) as caught:
        Conv.parse(text)
    assert caught.value.key == key


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("n", True),
        ("n", 2.0),
        ("c", np.int64(4)),
        ("k", None),
        ("groups", "1"),
        ("spatial", [8, 8]),
        ("spatial", ()),
        ("filter", (3,)),
        ("stride", (1, True)),
        ("pad_hi", (1, -1)),
        ("transposed", 0),
        ("dtype", "fp32"),
        ("layout", "nchw"),
        ("direction", None),
        ("epilogue", "bias"),
        ("accumulate", 1),
    ],
)
def test_constructor_refuses_wrong_types(key: str, value: object) -> None:
    conv = Conv.parse(BASE)
    changes: dict[str, Any] = {key: value}
    with pytest.raises(ProblemError):
        dataclasses.replace(conv, **changes)


def test_epilogue_refuses() -> None:
    arguments: list[dict[str, Any]] = [{"bias": 1}, {"activation": "relu"}, {"slope": 0.5}, {"slope": math.nan}]
    for wrong in arguments:
        with pytest.raises(ProblemError):
            Epilogue(**wrong)
    assert Epilogue().is_identity
    assert not Epilogue(activation=Activation.RELU).is_identity


def test_problems_are_hashable_values() -> None:
    one, other = Conv.parse(BASE), Conv.parse("conv2d filter=3 in=8 k=4 c=4 n=2 direction=fwd")
    assert one == other
    assert len({one, other}) == 1
    assert other.direction is Direction.FPROP
