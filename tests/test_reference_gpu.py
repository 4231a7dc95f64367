"""The oracle on CuPy arrays gives what it gives on NumPy's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from convgen.problem import Activation, Conv
from convgen.reference import (
    bound,
    compare,
    decode,
    encode,
    make_inputs,
    reference,
    reference_sampled,
    sample_indices,
    strict_model,
)

pytestmark = pytest.mark.gpu

PROBLEMS = [
    "conv1d n=2 c=3 k=4 in=70 filter=3 pad=1 dtype=fp16",
    "conv2d n=2 c=8 k=6 in=13x11 filter=3x5 stride=2x1 pad=1:0x2 groups=2 dtype=bf16",
    "conv2d n=2 c=4 k=4 in=9x10 filter=3 dilation=2 pad=2 groups=4 pad_mode=circular",
    "conv3d n=1 c=2 k=3 in=5x4x6 filter=2x3x2 pad=1 pad_mode=reflect",
    "conv_transpose2d n=2 c=4 k=6 in=5x4 filter=3x2 stride=3x2 groups=2 output_padding=2x1",
    "conv2d n=2 c=0 k=3 in=5 filter=3",
]


@pytest.fixture(scope="module")
def cupy() -> Any:
    module = pytest.importorskip("cupy")
    try:
        module.cuda.runtime.getDeviceCount()
    except module.cuda.runtime.CUDARuntimeError as error:
        pytest.skip(str(error))
    return module


@pytest.mark.parametrize("direction", ["fprop", "dgrad", "wgrad"])
@pytest.mark.parametrize("text", PROBLEMS)
def test_oracle_and_bound(text: str, direction: str, cupy: Any) -> None:
    check_equal(Conv.parse(f"{text} direction={direction} accumulate=yes"), cupy)


@pytest.mark.parametrize("activation", [a for a in Activation if a is not Activation.NONE])
def test_epilogue(activation: Activation, cupy: Any) -> None:
    text = "conv2d n=2 c=3 k=4 in=6 filter=3 epilogue=scale+shift+bias+residual"
    check_equal(Conv.parse(f"{text}+{activation}"), cupy)


def check_equal(problem: Conv, cupy: Any) -> None:
    inputs = make_inputs(problem, seed=1, kind="specials")
    on_device = {name: cupy.asarray(array) for name, array in inputs.items()}
    expected = reference(problem, inputs)
    got = reference(problem, on_device, cupy)
    np.testing.assert_allclose(got.get(), expected, rtol=1e-12, atol=1e-12)
    limit = bound(problem, inputs, expected, strict_model(problem))
    device_limit = bound(problem, on_device, got, strict_model(problem), cupy)
    np.testing.assert_allclose(device_limit.get(), limit, rtol=1e-6)
    indices = sample_indices(problem.outputs[0], 50, seed=2)
    some = reference_sampled(problem, on_device, indices, cupy)
    np.testing.assert_allclose(some.get(), expected.ravel()[indices], rtol=1e-12, atol=1e-12)
    assert compare(problem.outputs[0], encode(got, problem.out_dtype, cupy), got, device_limit, cupy).ok


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16", "int8"])
@pytest.mark.parametrize("kind", ["normal", "positive", "small_integers", "specials"])
def test_inputs(dtype: str, kind: Any, cupy: Any) -> None:
    problem = Conv.parse(f"conv2d n=2 c=3 k=4 in=9 filter=3 dtype={dtype}")
    for spec in problem.inputs:
        array = make_inputs(problem, 3, kind, cupy)[spec.name]
        assert array.shape == spec.shape
        host = array.get()
        np.testing.assert_array_equal(decode(encode(host, spec.dtype), spec.dtype), host)
        np.testing.assert_array_equal(encode(array, spec.dtype, cupy).get(), encode(host, spec.dtype))
