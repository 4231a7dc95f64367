"""The oracles of pooling and batch normalisation against plain Python, and their bounds against broken answers."""

from __future__ import annotations

import itertools
import math
import statistics
from typing import Any

import numpy as np
import pytest
from pooling_generators import random_batch_norms, random_pools

from convgen.plan import Numerics
from convgen.problem import BatchNorm, Pool
from convgen.reference import batch_norm, pool


def window(problem: Pool, x: Any, n: int, c: int, start: tuple[int, ...]) -> tuple[list[float], int]:
    """The numbers of x that a window sees, and how many of its positions lie in x or in the padding."""
    seen, counted = [], 0
    for tap in itertools.product(*map(range, problem.filter)):
        at = tuple(
            o * s + t * d - low
            for o, s, t, d, low in zip(start, problem.stride, tap, problem.dilation, problem.pad_lo, strict=True)
        )
        if all(0 <= p < size for p, size in zip(at, problem.spatial, strict=True)):
            seen.append(float(x[(n, c, *at)]))
        counted += all(p < size + high for p, size, high in zip(at, problem.spatial, problem.pad_hi, strict=True))
    return seen, counted


def pooled(problem: Pool, x: Any) -> Any:
    y = np.empty(problem.outputs[0].shape)
    for n, c, *start in np.ndindex(*y.shape):
        seen, counted = window(problem, x, n, c, tuple(start))
        if problem.is_max:
            y[(n, c, *start)] = math.nan if any(map(math.isnan, seen)) else max(seen, default=-math.inf)
        else:
            divisor = problem.divisor_override or (counted if problem.count_include_pad else len(seen))
            y[(n, c, *start)] = sum(seen) / divisor if seen else 0.0
    return y


@pytest.mark.parametrize("kind", ["normal", "specials"])
def test_pooling_by_its_definition(kind: Any) -> None:
    for problem in random_pools(seed=1, count=40, max_macs=4_000):
        inputs = pool.make_inputs(problem, 1, kind)
        np.testing.assert_allclose(pool.reference(problem, inputs)["y"], pooled(problem, inputs["x"]), rtol=1e-12)


def test_pooling_at_indices_is_the_whole_at_indices() -> None:
    for problem in random_pools(seed=2, count=40, max_macs=4_000):
        inputs, size = pool.make_inputs(problem, 1), problem.outputs[0].size
        indices = {"y": np.unique(np.random.default_rng(1).integers(0, size, 20))} if size else {"y": np.arange(0)}
        whole, some = pool.reference(problem, inputs), pool.reference_at(problem, inputs, indices)
        np.testing.assert_array_equal(some["y"], whole["y"].ravel()[indices["y"]])
        limits = pool.bound(problem, inputs, whole, Numerics())["y"].ravel()[indices["y"]]
        np.testing.assert_array_equal(pool.bound_at(problem, inputs, some, Numerics(), indices)["y"], limits)


def test_pytorchs_documented_cases() -> None:
    """avg_pool1d's example, and the windows that ceil_mode adds: clipped to the padded input, counted so."""
    x = np.arange(1.0, 8.0).reshape(1, 1, 7)

    def of(text: str) -> list[float]:
        return [float(v) for v in pool.reference(Pool.parse(text), {"x": x})["y"].ravel()]

    assert of("avg_pool1d c=1 in=7 filter=3 stride=2") == [2, 4, 6]
    assert of("avg_pool1d c=1 in=7 filter=2 ceil_mode=yes") == [1.5, 3.5, 5.5, 7]
    assert of("avg_pool1d c=1 in=7 filter=4 stride=3 pad=1 ceil_mode=yes") == [1.5, 4.5, 13 / 3]
    assert of("avg_pool1d c=1 in=7 filter=4 stride=3 pad=1 ceil_mode=yes count_include_pad=no") == [2, 4.5, 6.5]
    assert of("avg_pool1d c=1 in=7 filter=3 stride=2 divisor_override=2") == [3, 6, 9]
    assert of("max_pool1d c=1 in=7 filter=2 dilation=3 pad=1") == [3, 5, 7]


def test_the_bound_of_an_average_notices_a_missing_term() -> None:
    problem = Pool.parse("avg_pool2d n=1 c=2 in=14x14 filter=7x7 stride=7")
    inputs = pool.make_inputs(problem, 1, "positive")
    expected = pool.reference(problem, inputs)
    limit = pool.bound(problem, inputs, expected, Numerics())["y"]
    assert np.all(limit < 1e-4)
    in_fp32 = np.zeros((1, 2, 2, 2), np.float32)
    for i, j in np.ndindex(7, 7):
        in_fp32 += inputs["x"][:, :, i::7, j::7].astype(np.float32)
    assert np.all(np.abs(in_fp32 / np.float32(49) - expected["y"]) <= limit)
    assert np.all(np.abs((in_fp32 - np.float32(0.02)) / np.float32(49) - expected["y"]) > limit)


def normalised(problem: BatchNorm, inputs: dict[str, Any]) -> dict[str, Any]:
    """By Python's own exact statistics, without the activation."""
    x = inputs["x"]
    outputs: dict[str, Any] = {name: np.empty(problem.c) for name in [t.name for t in problem.outputs][1:]}
    outputs["y"] = np.empty(x.shape)
    for c in range(problem.c):
        values = [float(v) for v in x[:, c].ravel()]
        if problem.running:
            mean, var = float(inputs["mean"][c]), float(inputs["var"][c])
        if problem.is_training and problem.running:
            keep = 1 - problem.momentum
            outputs["running_mean"][c] = keep * mean + problem.momentum * statistics.fmean(values)
            outputs["running_var"][c] = keep * var + problem.momentum * statistics.variance(values)
        if problem.is_training:
            mean, var = statistics.fmean(values), statistics.pvariance(values)
            outputs["save_mean"][c], outputs["save_inv_std"][c] = mean, 1 / math.sqrt(var + problem.eps)
        scale, bias = (inputs["scale"][c], inputs["bias"][c]) if problem.affine else (1.0, 0.0)
        rows = (x[:, c] - mean) / math.sqrt(var + problem.eps) * scale + bias
        outputs["y"][:, c] = rows + (inputs["residual"][:, c] if problem.residual else 0)
    return outputs


def test_batch_normalisation_by_its_definition() -> None:
    plain = (p for p in random_batch_norms(seed=1, count=150) if p.activation == "none" and p.outputs[0].size)
    for problem in itertools.islice(plain, 40):
        inputs = batch_norm.make_inputs(problem, 1)
        got, expected = batch_norm.reference(problem, inputs), normalised(problem, inputs)
        assert set(got) == set(expected) == {t.name for t in problem.outputs}
        for name, array in got.items():
            np.testing.assert_allclose(array, expected[name], rtol=1e-9, atol=1e-9)


def test_batch_normalisation_at_indices_is_the_whole_at_indices() -> None:
    for problem in random_batch_norms(seed=3, count=20):
        if not problem.outputs[0].size:
            continue
        inputs = batch_norm.make_inputs(problem, 1)
        indices = {t.name: np.arange(0, t.size, 3) for t in problem.outputs}
        whole, some = batch_norm.reference(problem, inputs), batch_norm.reference_at(problem, inputs, indices)
        limits = batch_norm.bound(problem, inputs, whole, Numerics())
        few = batch_norm.bound_at(problem, inputs, some, Numerics(), indices)
        for name, chosen in indices.items():
            np.testing.assert_array_equal(some[name], whole[name].ravel()[chosen])
            np.testing.assert_array_equal(few[name], limits[name].ravel()[chosen])


TRAINING = BatchNorm.parse("batch_norm n=8 c=3 in=16x16 mode=training activation=relu")


def in_fp32(inputs: dict[str, Any], mean: Any, var: Any) -> Any:
    column = [np.float32(v)[:, None, None] for v in (mean, var, inputs["scale"], inputs["bias"])]
    m, v, scale, bias = column
    x = inputs["x"].astype(np.float32)
    return np.maximum((x - m) * (np.float32(1) / np.sqrt(v + np.float32(TRAINING.eps)) * scale) + bias, 0)


def test_the_bound_holds_two_passes_in_fp32_and_no_mean_of_squares() -> None:
    """x is far from 0 for its spread: the mean of squares less the square of the mean has lost what is left."""
    inputs = batch_norm.make_inputs(TRAINING, 1)
    inputs["x"] = np.float64(np.float32(inputs["x"] + 2000.0))
    expected = batch_norm.reference(TRAINING, inputs)
    limit = batch_norm.bound(TRAINING, inputs, expected, Numerics(steps=64))["y"]
    x = inputs["x"].astype(np.float32)
    mean = x.mean(axis=(0, 2, 3), dtype=np.float32)
    var = ((x - mean[:, None, None]) ** 2).mean(axis=(0, 2, 3), dtype=np.float32)
    assert np.all(np.abs(in_fp32(inputs, mean, var) - expected["y"]) <= limit)
    squares = (x**2).mean(axis=(0, 2, 3), dtype=np.float32) - mean**2
    assert np.any(np.abs(in_fp32(inputs, mean, np.maximum(squares, 0)) - expected["y"]) > limit)


def test_the_bound_notices_a_value_left_out_of_the_statistics() -> None:
    inputs = batch_norm.make_inputs(TRAINING, 1)
    expected = batch_norm.reference(TRAINING, inputs)
    limits = batch_norm.bound(TRAINING, inputs, expected, Numerics(steps=64))
    fewer = {**inputs, "x": inputs["x"].copy()}
    fewer["x"][0, :, 0, 0] = 0.0
    got = batch_norm.reference(TRAINING, fewer)
    for name in ("save_mean", "running_mean", "running_var", "save_inv_std"):
        assert np.all(np.abs(got[name] - expected[name]) > limits[name])


def test_specials_spoil_their_channel_alone() -> None:
    inputs = batch_norm.make_inputs(TRAINING, 1)
    inputs["x"][1, 1, 2, 3] = np.inf
    got = batch_norm.reference(TRAINING, inputs)
    assert got["save_mean"][1] == np.inf
    assert np.isnan(got["save_inv_std"][1])
    assert np.isnan(got["y"][:, 1]).all()
    assert np.isfinite(got["y"][:, [0, 2]]).all()
