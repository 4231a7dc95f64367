"""The oracle of attention against its definition, against ONNX's cases, and against kernels' arithmetic."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from attention_brute_force import brute_force
from attention_generators import random_attentions

from convgen.plan import Numerics
from convgen.problem import Attention, DType
from convgen.reference import attention as oracle
from convgen.reference import compare, round_to

FP32 = Numerics()
KINDS = ("normal", "positive", "peaked", "small_integers")


@pytest.mark.parametrize("seed", range(60))
def test_it_is_the_definition(seed: int) -> None:
    [problem] = random_attentions(seed, 1, 12_000)
    problem = dataclasses.replace(problem, lse=True)
    inputs = oracle.make_inputs(problem, seed, KINDS[seed % 3])
    found, right = oracle.reference(problem, inputs), brute_force(problem, inputs)
    for name in ("o", "lse"):
        np.testing.assert_allclose(found[name], right[name], rtol=1e-12, atol=1e-13, err_msg=str(problem))


def test_rows_that_see_no_key() -> None:
    problem = Attention.parse("attention heads_q=1 seq_q=5 seq_kv=3 head_dim=4 causal=bottom_right lse=yes sink=yes")
    found = oracle.reference(problem, oracle.make_inputs(problem, 0))
    assert (found["o"][0, 0, :2] == 0).all()
    assert (found["lse"][0, 0, :2] == -np.inf).all()
    assert (found["o"][0, 0, 2:] != 0).all()
    limits = oracle.bound(problem, oracle.make_inputs(problem, 0), found, FP32)
    assert (limits["o"][0, 0, :2] <= 2e-45).all()
    assert (limits["lse"][0, 0, :2] == 0).all()


def test_without_any_key() -> None:
    problem = Attention.parse("attention heads_q=2 seq_q=3 seq_kv=0 head_dim=4 lse=yes")
    inputs = oracle.make_inputs(problem, 0)
    found = oracle.reference(problem, inputs)
    assert (found["o"] == 0).all()
    assert (found["lse"] == -np.inf).all()
    assert (oracle.bound(problem, inputs, found, FP32)["lse"] == 0).all()


def test_what_a_query_does_not_see_never_shows() -> None:
    problem = Attention.parse("attention heads_q=1 seq_q=6 head_dim=8 causal=top_left lse=yes")
    inputs = oracle.make_inputs(problem, 3)
    right = oracle.reference(problem, inputs)
    inputs["k"][0, 0, 4:] = np.nan
    found = oracle.reference(problem, inputs)
    for name, array in right.items():
        np.testing.assert_array_equal(found[name][:, :, :4], array[:, :, :4])
        assert np.isnan(found[name][:, :, 4:]).all()
        limit = oracle.bound(problem, inputs, found, FP32)[name]
        np.testing.assert_array_equal(limit[:, :, :4], oracle.bound(problem, inputs, right, FP32)[name][:, :, :4])


def test_sizes_known_at_run_time_are_those_of_the_arrays() -> None:
    fixed = Attention.parse("attention batch=2 heads_q=4 heads_kv=2 seq_q=1 seq_kv=37 head_dim=8 causal=bottom_right")
    free = Attention.parse("attention batch=* heads_q=4 heads_kv=2 seq_q=1 seq_kv=*<=99 head_dim=8 causal=bottom_right")
    inputs = oracle.make_inputs(fixed, 5)
    np.testing.assert_array_equal(oracle.reference(free, inputs)["o"], oracle.reference(fixed, inputs)["o"])


@pytest.mark.parametrize("seed", range(8))
def test_sampled_elements_are_those_of_the_whole(seed: int) -> None:
    [problem] = random_attentions(100 + seed, 1)
    problem = dataclasses.replace(problem, lse=True)
    inputs = oracle.make_inputs(problem, seed)
    whole = oracle.reference(problem, inputs)
    rng = np.random.default_rng(seed)
    indices = {name: np.unique(rng.integers(0, array.size, 40)) for name, array in whole.items()}
    some = oracle.reference_at(problem, inputs, indices)
    limits = oracle.bound_at(problem, inputs, some, FP32, indices)
    for name, array in oracle.bound(problem, inputs, whole, FP32).items():
        np.testing.assert_allclose(some[name], whole[name].ravel()[indices[name]], rtol=1e-13, atol=1e-14)
        np.testing.assert_allclose(limits[name], array.ravel()[indices[name]], rtol=1e-9)


# --- the bound, held against fp32 arithmetic done here ------------------------------------------------


def online(problem: Attention, inputs: Mapping[str, Any], block: int, weights: DType) -> dict[str, Any]:
    """Flash attention as a kernel rounds: fp32 throughout, keys in blocks, weights rounded before their product."""
    single = np.float32
    _, _, keys = problem.typical_sizes
    o = np.zeros(problem.tensor("o").shape)
    lse = np.zeros(o.shape[:3])
    log2e = single(1.4426950408889634)
    for b, h in np.ndindex(*o.shape[:2]):
        shared = h * problem.heads_kv // problem.heads_q
        q, k, v = (inputs[n][b, x].astype(single) for n, x in (("q", h), ("k", shared), ("v", shared)))
        scores = np.zeros((q.shape[0], keys), single)
        for d in range(problem.head_dim):
            scores += q[:, d, None] * k[:, d]
        scores *= single(problem.scale) * log2e
        place = (b, np.full(len(q), h), np.arange(len(q)))
        rows = oracle._scores(problem, inputs, place, np)  # who sees whom, no arithmetic
        scores = np.where(rows.values == -np.inf, single(-np.inf), scores)
        most, total = np.full(q.shape[0], single(-np.inf)), np.zeros(q.shape[0], single)
        acc = np.zeros((q.shape[0], problem.head_dim_v), single)
        for first in range(0, keys, block):
            part = scores[:, first : first + block]
            new = np.maximum(most, part.max(axis=1))
            safe = np.where(new == -np.inf, single(0), new)
            decay = np.exp2(most - safe)
            p = np.exp2(part - safe[:, None])
            total, acc, most = total * decay, acc * decay[:, None], new
            stored = round_to(p, weights).astype(single)
            for j in range(part.shape[1]):
                total += p[:, j]
                acc += stored[:, j, None] * v[first + j]
        with np.errstate(all="ignore"):
            o[b, h] = np.where(total[:, None] > 0, acc / total[:, None], 0)
            lse[b, h] = most / log2e + np.log(total)
    return {"o": round_to(o, problem.out_dtype), "lse": lse}


CALIBRATED = (
    "attention batch=2 heads_q=4 heads_kv=2 seq_q=33 seq_kv=70 head_dim=64 causal=bottom_right",
    "attention heads_q=2 seq_q=70 head_dim=128 head_dim_v=40 window=20:3",
    "attention heads_q=1 seq_q=4 seq_kv=1000 head_dim=16",
)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("text", CALIBRATED)
def test_the_bound_holds_for_online_softmax_and_is_not_idle(text: str, dtype: str, kind: str) -> None:
    """On normal, positive and peaked scores; the worst element comes within a factor of 2000 of it."""
    problem = Attention.parse(f"{text} dtype={dtype} lse=yes")
    numerics = FP32 if dtype == "fp32" else Numerics(eps_in=problem.dtype.eps)
    inputs = oracle.make_inputs(problem, 7, kind)
    right = oracle.reference(problem, inputs)
    limits = oracle.bound(problem, inputs, right, numerics)
    got = online(problem, inputs, 16, problem.dtype)
    ratios = np.where(limits["o"] > 0, np.abs(got["o"] - right["o"]) / limits["o"], 0)
    assert ratios.max() < 1, ratios.max()
    assert ratios.max() > 5e-4
    difference = np.abs(np.where(np.isfinite(right["lse"]), got["lse"] - right["lse"], 0))
    assert (difference <= limits["lse"]).all()


FAULTS = {
    "a mask that is one key too wide": {"window": (None, 1)},
    "another scale": {"scale": 0.126},
    "no softcap": {"softcap": 0.0},
    "a window one too long": {"window": (9, 0)},
}


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_the_bound_does_not_admit(name: str, dtype: str) -> None:
    """Answers to problems that differ in one word."""
    problem = Attention.parse(f"attention heads_q=2 seq_q=40 head_dim=64 causal=bottom_right softcap=3 dtype={dtype}")
    if "window" in name:
        problem = dataclasses.replace(problem, window=(8, 0))
    inputs = oracle.make_inputs(problem, 1)
    right = oracle.reference(problem, inputs)
    limit = oracle.bound(problem, inputs, right, Numerics(eps_in=problem.dtype.eps))["o"]
    other = oracle.reference(dataclasses.replace(problem, **FAULTS[name]), inputs)["o"]  # type: ignore[arg-type]
    assert (np.abs(other - right["o"]) > limit).any()


@pytest.mark.parametrize("words", ["scale=1e9", "scale=-1e30", "scale=1e9 sink=yes"])
def test_the_bound_is_near_where_one_key_has_all_the_weight(words: str) -> None:
    problem = Attention.parse(f"attention heads_q=2 seq_q=40 head_dim=16 {words}")
    inputs = oracle.make_inputs(problem, 1)
    limit = oracle.bound(problem, inputs, oracle.reference(problem, inputs), FP32)["o"]
    assert (limit < 1e-4).mean() > 0.9


def test_weights_that_may_be_anything_have_no_bound() -> None:
    """Two equal scores, of sums that round apart by more than an exponential: either key may have all the weight."""
    problem = Attention.parse("attention heads_q=1 seq_q=1 seq_kv=2 head_dim=2 scale=1e9")
    q, k = np.array([[[[1.0, 1 / 3]]]]), np.array([[[[1.0, 0.0], [0.0, 3.0]]]])
    inputs = {"q": q, "k": k, "v": np.array([[[[1.0, 0.0], [0.0, 1.0]]]])}
    right = oracle.reference(problem, inputs)["o"]
    limit = oracle.bound(problem, inputs, {"o": right}, FP32)["o"]
    assert (limit == np.inf).all()
    assert not compare(problem.tensor("o"), right, right, limit).ok


def test_a_softcap_beyond_every_score_changes_nothing() -> None:
    problem = Attention.parse("attention heads_q=2 seq_q=40 head_dim=16 softcap=1e38")
    inputs = oracle.make_inputs(problem, 1)
    right = oracle.reference(problem, inputs)["o"]
    without = oracle.reference(dataclasses.replace(problem, softcap=0.0), inputs)["o"]
    np.testing.assert_allclose(right, without, rtol=1e-12, atol=1e-13)
    limit = oracle.bound(problem, inputs, {"o": right}, FP32)["o"]
    assert (limit < 1e-3).all()
    assert (abs(inputs["v"].mean(axis=2, keepdims=True) - right) > limit).mean() > 0.9  # of scores lost to rounding


def test_specials_go_where_the_definition_sends_them() -> None:
    problem = Attention.parse("attention heads_q=2 seq_q=30 head_dim=8 causal=bottom_right bias=pair")
    inputs = oracle.make_inputs(problem, 2, "specials")
    found = oracle.reference(problem, inputs)["o"]
    bad = np.isnan(found).all(axis=-1)
    assert bad.any()
    assert np.isfinite(found[~bad]).all()
    first = np.flatnonzero(np.isnan(inputs["k"][0, 0]).any(axis=1))[0]
    assert np.isnan(found[0, 0, first:]).all(axis=-1)[np.isfinite(inputs["bias"][first:, first])].all()


def test_compare_takes_the_outputs_of_this_oracle() -> None:
    problem = Attention.parse("attention heads_q=1 seq_q=4 head_dim=8 dtype=bf16")
    inputs = oracle.make_inputs(problem, 0)
    right = oracle.reference(problem, inputs)["o"]
    limit = oracle.bound(problem, inputs, {"o": right}, Numerics(eps_in=2.0**-8))["o"]
    assert compare(problem.tensor("o"), round_to(right, DType.BF16), right, limit).ok
    assert not compare(problem.tensor("o"), right + 2 * limit, right, limit).ok
