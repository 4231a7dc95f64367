"""scaled_dot_product_attention of NumPy arrays, in the simulator, against the definition written out here."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import convgen
from convgen.api import attention_arguments
from convgen.api.functions import ATTENTION, DISPATCHER
from convgen.errors import ProblemError, UsageError


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("convgen.api.calls.has_gpu", lambda: False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def arrays(*shapes: tuple[int, ...], dtype: Any = np.float32, seed: int = 0) -> list[Any]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape).astype(dtype) for shape in shapes]


def attend(
    q: Any, k: Any, v: Any, seen: Any = True, added: Any = 0.0, scale: float | None = None, cap: float = 0
) -> Any:
    """The definition on (B, H, S, D), all heads given. Rows that see nothing are 0."""
    q, k, v = (np.asarray(a, np.float64) for a in (q, k, v))
    x = q @ k.swapaxes(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    x = cap * np.tanh(x / cap) if cap else x
    x = np.where(seen, x + added, -np.inf)
    largest = np.maximum(x.max(axis=-1, keepdims=True), -1e300)
    weights = np.exp(x - largest)
    total = weights.sum(axis=-1, keepdims=True)
    return weights @ v / np.where(total == 0, 1, total)


sdpa = convgen.scaled_dot_product_attention


def test_it_is_softmax_times_value() -> None:
    q, k, v = arrays((2, 3, 20, 16), (2, 3, 35, 16), (2, 3, 35, 24))
    y = sdpa(q, k, v)
    assert (y.shape, y.dtype) == ((2, 3, 20, 24), np.float32)
    np.testing.assert_allclose(y, attend(q, k, v), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("dtype", "rtol"), [(np.float16, 2e-3), (ml_dtypes.bfloat16, 2e-2)])
def test_of_16_bits(dtype: Any, rtol: float) -> None:
    q, k, v = arrays((1, 2, 20, 16), (1, 2, 35, 16), (1, 2, 35, 16), dtype=dtype)
    y = sdpa(q, k, v, is_causal=True)
    assert y.dtype == dtype
    seen = np.tril(np.ones((20, 35), bool))
    np.testing.assert_allclose(y.astype(np.float64), attend(q, k, v, seen), rtol=rtol, atol=rtol)


def test_causal_begins_at_the_first_key_unless_aligned() -> None:
    """As PyTorch has it: tril(diagonal=0) also where there are more keys than queries."""
    q, k, v = arrays((1, 1, 4, 8), (1, 1, 9, 8), (1, 1, 9, 8))
    np.testing.assert_allclose(sdpa(q, k, v, is_causal=True)[0, 0, 0], v[0, 0, 0], rtol=1e-6)
    seen = np.tril(np.ones((4, 9), bool), k=5)
    y = sdpa(q, k, v, is_causal=True, align="bottom_right")
    np.testing.assert_allclose(y, attend(q, k, v, seen), rtol=1e-5, atol=1e-6)
    window = seen & ~np.tril(np.ones((4, 9), bool), k=2)
    y = sdpa(q, k, v, is_causal=True, align="bottom_right", window=(2, None))
    np.testing.assert_allclose(y, attend(q, k, v, window), rtol=1e-5, atol=1e-6)


def test_a_step_of_decoding_sees_the_whole_cache() -> None:
    q, k, v = arrays((2, 4, 1, 8), (2, 2, 30, 8), (2, 2, 30, 8))
    y = sdpa(q, k, v, is_causal=True, align="bottom_right", enable_gqa=True)
    np.testing.assert_allclose(y, attend(q, k.repeat(2, 1), v.repeat(2, 1)), rtol=1e-5, atol=1e-6)


def test_heads_that_share_keys_are_neighbours() -> None:
    """repeat_interleave along the heads, not repeat."""
    q, k, v = arrays((1, 6, 5, 8), (1, 2, 7, 8), (1, 2, 7, 8))
    y = sdpa(q, k, v, enable_gqa=True)
    np.testing.assert_allclose(y, attend(q, k.repeat(3, 1), v.repeat(3, 1)), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "shape",
    [
        (7,),
        (5, 7),
        (1, 7),
        (5, 1),
        (3, 5, 7),
        (3, 1, 1),
        (2, 1, 5, 7),
        (2, 3, 5, 7),
        (2, 1, 1, 7),
        (2, 3, 1, 1),
        (1, 1, 1, 1),
    ],
)
@pytest.mark.parametrize("kind", ["bool", "added"])
def test_masks_broadcast(shape: tuple[int, ...], kind: str) -> None:
    q, k, v = arrays((2, 3, 5, 8), (2, 3, 7, 8), (2, 3, 7, 8))
    [mask] = arrays(shape, seed=3)
    if kind == "bool":
        mask = mask > -0.3
        expected = attend(q, k, v, mask)
    else:
        expected = attend(q, k, v, added=mask)
    np.testing.assert_allclose(sdpa(q, k, v, mask), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["bool", "added"])
def test_masks_are_read_by_their_strides(kind: str) -> None:
    """Transposed, in steps, reversed, repeated; rows of 43 in memory, which no load of several elements fits."""
    q, k, v = arrays((2, 3, 5, 8), (2, 3, 7, 8), (2, 3, 7, 8))
    [whole] = arrays((2, 3, 14, 43), seed=4)
    whole = whole > -0.3 if kind == "bool" else whole
    for mask in (
        whole[:, :, :5, :7],
        whole[:, :, :7, :5].swapaxes(2, 3),
        whole[:, ::-1, 1:11:2, 20:6:-2],
        np.broadcast_to(whole[:, :1, :5, :7], (2, 3, 5, 7)),
        whole[0, 0, 0, 3:10],
    ):
        expected = attend(q, k, v, mask) if kind == "bool" else attend(q, k, v, added=mask)
        np.testing.assert_allclose(sdpa(q, k, v, mask), expected, rtol=1e-5, atol=1e-6)


def test_a_mask_that_hides_all_gives_zeros() -> None:
    q, k, v = arrays((1, 1, 8, 8), (1, 1, 8, 8), (1, 1, 8, 8))
    mask = np.ones((8, 8), bool)
    mask[2] = False
    y, lse = sdpa(q, k, v, mask, return_lse=True)
    assert (y[0, 0, 2] == 0).all()
    assert lse[0, 0, 2] == -np.inf
    assert np.isfinite(lse[0, 0, 3:]).all()
    added = np.where(mask, 0, -np.inf).astype(np.float32)
    np.testing.assert_allclose(sdpa(q, k, v, added), y, rtol=1e-5, atol=1e-6)
    assert (sdpa(q, k, v, added)[0, 0, 2] == 0).all()


def test_the_least_finite_number_added_everywhere_is_no_mask() -> None:
    """Models add finfo.min where they mean to hide; a row that has it throughout is a mean, as in PyTorch."""
    q, k, v = arrays((1, 1, 4, 8), (1, 1, 6, 8), (1, 1, 6, 8))
    added = np.zeros((4, 6), np.float32)
    added[1] = np.finfo(np.float32).min
    y = sdpa(q, k, v, added)
    np.testing.assert_allclose(y[0, 0, 1], v[0, 0].mean(axis=0), rtol=1e-5, atol=1e-6)


def test_scale_softcap_alibi_sink_and_logarithm() -> None:
    q, k, v = arrays((1, 2, 5, 8), (1, 2, 6, 8), (1, 2, 6, 8))
    np.testing.assert_allclose(sdpa(q, k, v, scale=0.1), attend(q, k, v, scale=0.1), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(sdpa(q, k, v, softcap=0.5), attend(q, k, v, cap=0.5), rtol=1e-5, atol=1e-6)
    slopes = np.array([0.5, 0.25], np.float32)
    distance = -np.abs(np.arange(5)[:, None] - np.arange(6)) * slopes[:, None, None]
    np.testing.assert_allclose(
        sdpa(q, k, v, alibi_slopes=slopes), attend(q, k, v, added=distance), rtol=1e-5, atol=1e-6
    )
    sink = np.array([1.0, -2.0], np.float32)
    y, lse = sdpa(q, k, v, sink=sink, return_lse=True)
    x = q.astype(float) @ k.swapaxes(-1, -2) * 8**-0.5
    total = np.exp(x).sum(axis=-1) + np.exp(sink)[:, None]
    np.testing.assert_allclose(y, np.exp(x) @ v / total[..., None], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(lse, np.log(total), rtol=1e-5, atol=1e-6)


def test_without_heads_or_batch() -> None:
    q, k, v = arrays((2, 5, 8), (2, 6, 8), (2, 6, 4))
    y, lse = sdpa(q, k, v, return_lse=True)
    assert (y.shape, lse.shape) == ((2, 5, 4), (2, 5))
    np.testing.assert_allclose(y, attend(q, k, v), rtol=1e-5, atol=1e-6)
    y = sdpa(q[0], k[0], v[0])
    assert y.shape == (5, 4)
    np.testing.assert_allclose(y, attend(q[0], k[0], v[0]), rtol=1e-5, atol=1e-6)


def test_strides_are_free() -> None:
    """(B, S, H, D) memory, steps, reversal, and a repeated head; the output lies as query does."""
    whole = arrays((2, 6, 3, 8), (2, 14, 3, 8), (2, 14, 3, 16))
    q, k, v = (a.transpose(0, 2, 1, 3) for a in whole)
    y = sdpa(q, k, v)
    np.testing.assert_allclose(y, attend(q, k, v), rtol=1e-5, atol=1e-6)
    assert y.transpose(0, 2, 1, 3).flags.c_contiguous
    k, v = k[:, :, ::-2], v[:, :, ::2, ::2]
    np.testing.assert_allclose(sdpa(q, k, v), attend(q, k, v), rtol=1e-5, atol=1e-6)
    one = np.broadcast_to(k[:, :1], k.shape)
    np.testing.assert_allclose(sdpa(q, one, v), attend(q, one, v), rtol=1e-5, atol=1e-6)


def test_a_single_query_and_keys_of_permuted_memory() -> None:
    """(1, 1, 2048) beside (1, 16, 128) permuted: extents of 1 have any stride."""
    q, k, v = arrays((1, 1, 2048), (1, 128, 16), (128, 16, 1))
    q, k, v = (
        q.reshape(1, 1, 16, 128).transpose(0, 2, 1, 3),
        k.transpose(0, 2, 1)[:, None],
        v.transpose(2, 1, 0)[:, None],
    )
    k, v = (np.broadcast_to(a, (1, 16, 16, 128)) for a in (k, v))
    [mask] = arrays((1, 1, 1, 16), seed=5)
    np.testing.assert_allclose(sdpa(q, k, v, mask), attend(q, k, v, added=mask), rtol=1e-5, atol=1e-5)


def test_out_is_written() -> None:
    q, k, v = arrays((1, 2, 5, 8), (1, 2, 6, 8), (1, 2, 6, 8))
    out = np.empty((1, 2, 5, 8), np.float32)
    assert sdpa(q, k, v, out=out) is out
    np.testing.assert_allclose(out, attend(q, k, v), rtol=1e-5, atol=1e-6)


def test_without_elements() -> None:
    assert sdpa(*arrays((0, 2, 5, 8), (0, 2, 6, 8), (0, 2, 6, 8))).shape == (0, 2, 5, 8)
    assert (sdpa(*arrays((1, 2, 5, 8), (1, 2, 0, 8), (1, 2, 0, 8))) == 0).all()


def test_a_decode_loop_is_built_once() -> None:
    """For caches of 1 to 512 keys."""
    q, k, v = arrays((1, 2, 1, 24), (1, 2, 40, 24), (1, 2, 40, 24))
    before = len(ATTENTION._calls._programs)
    for keys in (1, 2, 17, 40):
        y = sdpa(q, k[:, :, :keys], v[:, :, :keys])
        np.testing.assert_allclose(y, attend(q, k[:, :, :keys], v[:, :, :keys]), rtol=1e-5, atol=1e-6)
    assert len(ATTENTION._calls._programs) == before + 1
    assert "seq_kv=*~512" in DISPATCHER.decisions()


@pytest.mark.parametrize(("keys", "usual"), [(1, 512), (512, 512), (513, 2048), (100_000, 131_072)])
def test_numbers_of_keys_that_share_a_kernel(keys: int, usual: int) -> None:
    assert attention_arguments._usual(keys) == usual


WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"dropout_p": 0.1}, UsageError, "dropout_p=0.1"),
    ({"is_causal": 1}, UsageError, "is_causal=1"),
    ({"window": 3}, UsageError, "window=3"),
    ({"window": (-2, 0)}, ProblemError, "window"),
    ({"softcap": -1.0}, ProblemError, "softcap"),
    ({"scale": "x"}, ProblemError, "scale"),
    ({"align": "middle"}, UsageError, "align=.middle."),
    ({"accuracy": "most"}, ProblemError, "accuracy"),
    ({"attn_mask": np.ones((5, 7), bool)}, UsageError, r"attn_mask has shape \(5, 7\)"),
    ({"attn_mask": np.ones((5, 6), np.float64)}, UsageError, "attn_mask is float64"),
    ({"sink": np.ones(3, np.float32)}, UsageError, "sink is float32"),
    ({"alibi_slopes": np.ones(2)}, UsageError, "alibi_slopes is float64"),
    ({"key": np.ones((1, 2, 6, 9), np.float32)}, UsageError, "key has shape"),
    ({"key": np.ones((1, 1, 6, 8), np.float32), "value": np.ones((1, 1, 6, 8), np.float32)}, UsageError, "enable_gqa"),
    ({"value": np.ones((1, 2, 5, 8), np.float32)}, UsageError, "value has shape"),
    ({"value": np.ones((1, 2, 6, 8), np.float16)}, UsageError, "value is float16"),
    ({"query": np.ones(8, np.float32)}, UsageError, "query has shape"),
    ({"query": [1.0]}, UsageError, "query is a builtins.list"),
    ({"query": np.ones((1, 2, 5, 8))}, UsageError, "query is float64"),
    ({"out": np.ones((1, 2, 5, 9), np.float32)}, UsageError, "out is float32"),
    ({"key": None}, UsageError, "key is None"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "error", "words"), WRONG)
def test_what_is_wrong_is_said_in_the_callers_words(
    changes: dict[str, Any], error: type[Exception], words: str
) -> None:
    given = dict(zip(("query", "key", "value"), arrays((1, 2, 5, 8), (1, 2, 6, 8), (1, 2, 6, 8)), strict=True))
    with pytest.raises(error, match=words):
        sdpa(**(given | changes))


@pytest.mark.parametrize("name", ["is_causal", "enable_gqa", "return_lse"])
@pytest.mark.parametrize("value", ["False", 1, 1.0])
def test_booleans_are_true_or_false(name: str, value: Any) -> None:
    """Also where the same call with the equal boolean was computed."""
    given = arrays((1, 2, 5, 8), (1, 2, 6, 8), (1, 2, 6, 8))
    np.testing.assert_equal(sdpa(*given, **{name: np.True_}), sdpa(*given, **{name: True}))
    with pytest.raises(UsageError, match=f"{name}={value!r}: expected True or False"):
        sdpa(*given, **{name: value})


def test_numbers_of_other_libraries_are_numbers() -> None:
    given = arrays((1, 2, 5, 8), (1, 2, 6, 8), (1, 2, 6, 8))
    expected = sdpa(*given, scale=0.5, window=(2, None), workspace_limit=1 << 20)
    got = sdpa(*given, scale=np.float32(0.5), window=[np.int64(2), None], workspace_limit=np.int64(1 << 20))
    np.testing.assert_array_equal(got, expected)
    for name, value in (("scale", True), ("window", (2.0, None)), ("workspace_limit", float(1 << 20))):
        with pytest.raises(ProblemError, match=name):
            sdpa(*given, **({"scale": 0.5, "window": (2, None), "workspace_limit": 1 << 20} | {name: value}))


def test_masks_are_not_ignored() -> None:
    q, k, v = arrays((1, 2, 5, 8), (1, 2, 6, 8), (1, 2, 6, 8))
    with pytest.raises(UsageError, match="value is a masked array"):
        sdpa(q, k, np.ma.masked_array(v))
    with pytest.raises(UsageError, match="attn_mask is a masked array"):
        sdpa(q, k, v, np.ma.ones((5, 6), bool))


def test_groups_must_divide() -> None:
    with pytest.raises(ProblemError, match="heads of key"):
        sdpa(*arrays((1, 3, 5, 8), (1, 2, 6, 8), (1, 2, 6, 8)), enable_gqa=True)
