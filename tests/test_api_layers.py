"""Pooling and batch normalisation of NumPy arrays, in the simulator, against definitions written out here."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.lib.stride_tricks import sliding_window_view

import convgen
from convgen.errors import ProblemError, UsageError


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("convgen.api.calls.has_gpu", lambda: False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def array(*shape: int, dtype: Any = np.float32, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def windows(x: Any, size: int, stride: int, pad: int, fill: float) -> Any:
    """(N, C, P, Q, size, size)."""
    padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (pad, pad), (pad, pad)), constant_values=fill)
    return sliding_window_view(padded, (size, size), axis=(2, 3))[:, :, ::stride, ::stride]


def test_max_pooling() -> None:
    x = array(2, 3, 11, 9)
    y = convgen.max_pool2d(x, 3, 2, 1)
    assert (y.shape, y.dtype) == ((2, 3, 6, 5), np.float32)
    np.testing.assert_array_equal(y, windows(x, 3, 2, 1, -np.inf).max(axis=(-1, -2)))


def test_average_pooling_counts_padding_unless_told() -> None:
    x = array(2, 3, 11, 9)
    sums = windows(x, 3, 2, 1, 0).sum(axis=(-1, -2))
    counts = windows(np.ones_like(x), 3, 2, 1, 0).sum(axis=(-1, -2))
    np.testing.assert_allclose(convgen.avg_pool2d(x, 3, 2, 1), sums / 9, rtol=1e-5, atol=1e-6)
    got = convgen.avg_pool2d(x, (3, 3), [2, 2], 1, False, False)
    np.testing.assert_allclose(got, sums / counts, rtol=1e-5, atol=1e-6)
    got = convgen.avg_pool2d(x, 3, 2, 1, divisor_override=2)
    np.testing.assert_allclose(got, sums / 2, rtol=1e-5, atol=1e-6)


def test_stride_is_the_kernel_size() -> None:
    x = np.arange(12, dtype=np.float32).reshape(1, 1, 12)
    np.testing.assert_array_equal(convgen.max_pool1d(x, 3), [[[2, 5, 8, 11]]])
    np.testing.assert_array_equal(convgen.avg_pool1d(x, 4), [[[1.5, 5.5, 9.5]]])
    np.testing.assert_array_equal(convgen.avg_pool1d(x, 5, ceil_mode=True), [[[2, 7, 10.5]]])
    np.testing.assert_array_equal(convgen.max_pool1d(x, 2, 3, 0, 4), [[[4, 7, 10]]])


def test_volumes_and_a_missing_batch() -> None:
    x = array(3, 4, 6, 8)
    blocks = x.reshape(3, 2, 2, 3, 2, 4, 2)
    np.testing.assert_allclose(convgen.avg_pool3d(x, 2), blocks.mean(axis=(2, 4, 6)), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(convgen.max_pool3d(x, 2), blocks.max(axis=(2, 4, 6)))
    assert convgen.max_pool2d(array(3, 9, 9), 3).shape == (3, 3, 3)


def test_layout_and_out() -> None:
    x = np.ascontiguousarray(array(2, 8, 8, 4)).transpose(0, 3, 1, 2)
    y = convgen.max_pool2d(x, 2)
    assert y.transpose(0, 2, 3, 1).flags.c_contiguous
    out = np.zeros((2, 4, 4, 4), np.float32)
    assert convgen.max_pool2d(x, 2, out=out) is out
    np.testing.assert_array_equal(out, x.reshape(2, 4, 4, 2, 4, 2).max(axis=(3, 5)))


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float16, 2e-3), (ml_dtypes.bfloat16, 2e-2)])
def test_16_bits(dtype: Any, tolerance: float) -> None:
    x = array(2, 3, 8, 8, dtype=dtype)
    y = convgen.avg_pool2d(x, 8)
    assert y.dtype == dtype
    expected = x.astype(np.float64).mean(axis=(2, 3), keepdims=True)
    np.testing.assert_allclose(y.astype(np.float64), expected, rtol=tolerance, atol=tolerance)


def statistics(x: Any) -> tuple[Any, Any]:
    return x.mean(axis=(0, 2, 3)), x.var(axis=(0, 2, 3))


def column(vector: Any) -> Any:
    return np.asarray(vector)[:, None, None]


def test_batch_norm_in_inference() -> None:
    x, scale, bias, mean = array(3, 4, 5, 6), array(4, seed=1), array(4, seed=2), array(4, seed=3)
    var = np.abs(array(4, seed=4)) + 0.5
    y = convgen.batch_norm(x, mean, var, scale, bias, activation="relu")
    expected = np.maximum((x - column(mean)) / np.sqrt(column(var) + 1e-5) * column(scale) + column(bias), 0)
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)
    plain = convgen.batch_norm(x, mean, var, residual=x)
    np.testing.assert_allclose(plain, (x - column(mean)) / np.sqrt(column(var) + 1e-5) + x, rtol=1e-5, atol=1e-5)


def test_batch_norm_in_training_updates_the_running_statistics_in_place() -> None:
    x, scale, bias = array(3, 4, 5, 6), array(4, seed=1), array(4, seed=2)
    running_mean, running_var = np.ones(4, np.float32), np.full(4, 2, np.float32)
    y = convgen.batch_norm(x, running_mean, running_var, scale, bias, True, 0.25, 1e-3)
    mean, var = statistics(x)
    expected = (x - column(mean)) / np.sqrt(column(var) + 1e-3) * column(scale) + column(bias)
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(running_mean, 0.75 + 0.25 * mean, rtol=1e-5)
    np.testing.assert_allclose(running_var, 1.5 + 0.25 * var * 90 / 89, rtol=1e-5)


def test_batch_norm_in_training_needs_no_running_statistics() -> None:
    x = array(6, 4)
    y = convgen.batch_norm(x, None, None, training=True)
    np.testing.assert_allclose(y, (x - x.mean(0)) / np.sqrt(x.var(0) + 1e-5), rtol=1e-4, atol=1e-5)


def test_an_empty_batch() -> None:
    assert convgen.max_pool2d(np.empty((0, 3, 8, 8), np.float32), 2).shape == (0, 3, 4, 4)


X = array(2, 3, 8, 8)
V = np.ones(3, np.float32)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: convgen.max_pool2d(X, 3, return_indices=True), UsageError, "return_indices"),
        (lambda: convgen.max_pool1d(X, 3), UsageError, "takes 3 dimensions"),
        (lambda: convgen.max_pool2d(X, 9), ProblemError, r"input.shape\[2:\]"),
        (lambda: convgen.max_pool2d(X, 0), ProblemError, "kernel_size"),
        (lambda: convgen.avg_pool2d(X, 2, padding=2), ProblemError, "padding"),
        (lambda: convgen.avg_pool2d(X, 2, divisor_override=0), ProblemError, "divisor_override"),
        (lambda: convgen.avg_pool2d(X.astype(int), 2), UsageError, "int64"),
        (lambda: convgen.avg_pool2d(X, 2, out=np.empty((2, 3, 8, 8), np.float32)), UsageError, "out has shape"),
        (lambda: convgen.avg_pool2d([1.0], 2), UsageError, "expected a NumPy"),
        (lambda: convgen.batch_norm(X, None, None), UsageError, "running_mean is None"),
        (lambda: convgen.batch_norm(X, V, None, training=True), UsageError, "both or neither"),
        (lambda: convgen.batch_norm(X, V, V, V), UsageError, "weight without bias"),
        (lambda: convgen.batch_norm(X, V, V, V[:2], V[:2]), UsageError, "weight has shape"),
        (lambda: convgen.batch_norm(X, V, V.astype(np.float16)), UsageError, "running_var is float16"),
        (lambda: convgen.batch_norm(X, V, V, momentum=None), UsageError, "momentum"),
        (lambda: convgen.batch_norm(X, V, V, eps=0.0), ProblemError, "eps"),
        (lambda: convgen.batch_norm(X, V, V, activation="tanh"), UsageError, "activation"),
        (lambda: convgen.batch_norm(X[:1, :, 0, 0], V, V, training=True), ProblemError, "two values"),
    ],
)
def test_what_does_not_fit_is_said(call: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize("value", ["False", "yes", 1, 0.0, None])
def test_booleans_are_true_or_false(value: Any) -> None:
    """Also where the same call with the equal boolean was computed."""
    calls: dict[str, Callable[[Any], Any]] = {
        "ceil_mode": lambda flag: convgen.max_pool2d(X, 3, ceil_mode=flag),
        "count_include_pad": lambda flag: convgen.avg_pool2d(X, 3, count_include_pad=flag),
        "return_indices": lambda flag: convgen.max_pool3d(X, 3, return_indices=flag),
        "training": lambda flag: convgen.batch_norm(X, V.copy(), V.copy(), training=flag),
    }
    for name, call in calls.items():
        np.testing.assert_array_equal(call(np.False_), call(False))
        if name != "return_indices":
            np.testing.assert_array_equal(call(np.True_), call(True))
        with pytest.raises(UsageError, match=f"{name}={value!r}: expected True or False"):
            call(value)


def test_what_is_refused_stays_refused_when_its_equal_was_computed() -> None:
    convgen.max_pool2d(X, 1, 1)
    for options in ((1.0, 1), (1, True), ((1, 1.0), 1), (1, 1, False), (1, 1, 0, 1.0)):
        with pytest.raises(ProblemError, match="expected an integer"):
            convgen.max_pool2d(X, *options)
    convgen.avg_pool2d(X, 2, divisor_override=2)
    with pytest.raises(ProblemError, match="divisor_override"):
        convgen.avg_pool2d(X, 2, divisor_override=2.0)


def test_masks_are_not_ignored() -> None:
    with pytest.raises(UsageError, match="input is a masked array"):
        convgen.max_pool2d(np.ma.masked_array(X), 2)
    with pytest.raises(UsageError, match="running_var is a masked array"):
        convgen.batch_norm(X, V, np.ma.masked_array(V))
