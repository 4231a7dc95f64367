"""Rounding to element types, against NumPy's and ml_dtypes' own, and the inputs that kernels are checked on."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from convgen.problem import Conv, DType
from convgen.reference import decode, encode, make_inputs, reference, round_to

NUMPY_TYPES = {
    DType.FP32: np.float32,
    DType.FP16: np.float16,
    DType.BF16: ml_dtypes.bfloat16,
}


def awkward_values() -> Any:
    random = np.random.default_rng(9)
    values = random.standard_normal(4000) * 2.0 ** random.integers(-160, 140, 4000)
    ties = (1 + np.arange(-40, 40) / 512) * 2.0 ** random.integers(-140, 120, 80)
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, 65504, 65519.99, 65520, 2.0**-24, 2.0**-25, 3 * 2.0**-26, 2.0**128]
    return np.concatenate([values, ties, special])


@pytest.mark.parametrize("dtype", NUMPY_TYPES)
def test_rounding_is_to_nearest_even(dtype: DType) -> None:
    # ml_dtypes goes through fp32, so it is given values that fp32 holds.
    values = awkward_values()
    if dtype is DType.BF16:
        with np.errstate(over="ignore"):
            values = values.astype(np.float32).astype(np.float64)
    with np.errstate(over="ignore"):
        expected = values.astype(NUMPY_TYPES[dtype])
    rounded = round_to(values, dtype)
    np.testing.assert_array_equal(rounded, expected.astype(np.float64))
    np.testing.assert_array_equal(np.signbit(rounded), np.signbit(values))
    stored = encode(values, dtype)
    finite = ~np.isnan(values)
    bits = {2: np.uint16, 4: np.uint32}[dtype.itemsize]
    np.testing.assert_array_equal(stored.view(bits)[finite], expected.view(bits)[finite])
    np.testing.assert_array_equal(decode(stored, dtype), rounded)


def test_rounding_does_not_round_twice() -> None:
    just_over_a_tie = 1 + 2.0**-8 + 2.0**-40
    assert round_to(np.array(just_over_a_tie), DType.BF16) == 1 + 2.0**-7
    assert np.float64(np.float32(just_over_a_tie)) == 1 + 2.0**-8


def test_rounding_to_tf32_and_fp8_and_integers() -> None:
    values = np.array([1 + 2.0**-11, 1 + 3 * 2.0**-11, -1 - 2.0**-10])
    np.testing.assert_array_equal(round_to(values, DType.TF32), [1, 1 + 2.0**-9, -1 - 2.0**-10])
    eights = np.random.default_rng(10).standard_normal(2000).astype(np.float32) * 40
    expected = eights.astype(ml_dtypes.float8_e4m3fn).astype(np.float64)
    np.testing.assert_array_equal(round_to(eights, DType.FP8), expected)
    np.testing.assert_array_equal(round_to([500.0, -1e9, np.inf, np.nan], DType.FP8), [448, -448, 448, np.nan])
    np.testing.assert_array_equal(round_to([-129, 0.5, 1.5, 200], DType.INT8), [-128, 0, 2, 127])
    np.testing.assert_array_equal(round_to([-1, 255.4, 256], DType.UINT8), [0, 255, 255])


def test_bits_of_fp8_are_those_of_ml_dtypes() -> None:
    bits = np.arange(256, dtype=np.uint8)
    values = bits.view(ml_dtypes.float8_e4m3fn).astype(np.float64)
    np.testing.assert_array_equal(decode(bits, DType.FP8), values)
    np.testing.assert_array_equal(decode(bits.view(ml_dtypes.float8_e4m3fn), DType.FP8), values)
    np.testing.assert_array_equal(encode(values, DType.FP8) & 0x7F, bits & 0x7F)
    np.testing.assert_array_equal((encode(values, DType.FP8) ^ bits)[~np.isnan(values)], 0)


@pytest.mark.parametrize("dtype", ["fp32", "tf32", "fp16", "bf16", "fp8", "int8", "uint8"])
@pytest.mark.parametrize("kind", ["normal", "positive", "small_integers", "specials"])
def test_inputs_are_what_their_dtype_holds(dtype: str, kind: Any) -> None:
    problem = Conv.parse(f"conv2d n=2 c=3 k=4 in=5 filter=3 dtype={dtype} epilogue=bias accumulate=yes")
    inputs = make_inputs(problem, seed=13, kind=kind)
    for spec in (*problem.inputs, *problem.outputs):
        array = inputs[spec.name]
        assert array.shape == spec.shape
        np.testing.assert_array_equal(decode(encode(array, spec.dtype), spec.dtype), array)
        assert np.unique(array[np.isfinite(array)]).size > 1
    again = make_inputs(problem, seed=13, kind=kind)
    assert all(np.array_equal(inputs[name], again[name], equal_nan=True) for name in inputs)
    assert not np.array_equal(make_inputs(problem, seed=14, kind=kind)["w"], inputs["w"])


def test_kinds_of_inputs() -> None:
    problem = Conv.parse("conv2d n=8 c=8 k=4 in=16 filter=3")
    assert make_inputs(problem, 15, "positive")["x"].min() > 0
    integers = make_inputs(problem, 15, "small_integers")
    assert set(np.unique(integers["x"])) == set(range(-4, 5))
    specials = make_inputs(problem, 15, "specials")
    assert np.isnan(specials["x"]).any()
    assert np.isposinf(specials["x"]).any()
    assert np.isneginf(specials["x"]).any()
    assert np.isfinite(specials["w"]).all()
    long_sum = Conv.parse("conv2d n=64 c=1 k=1 in=128 filter=1 dtype=fp16 direction=wgrad")
    assert reference(long_sum, make_inputs(long_sum, 16, "positive")).max() < 65504
