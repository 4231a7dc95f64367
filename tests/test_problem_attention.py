"""What an Attention says of itself, and what it refuses."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from convgen.errors import ProblemError
from convgen.problem import Align, Attention, Bias, DType, Mask, parse_problem

SIDES = st.none() | st.integers(0, 12)
SIZES = st.integers(0, 10)


def visible(attention: Attention) -> int:
    """Visible pairs, by asking each."""
    _, queries, keys = attention.typical_sizes
    left, right = attention.window
    offset = keys - queries if attention.align is Align.BOTTOM_RIGHT else 0
    return sum(
        (left is None or key >= query + offset - left) and (right is None or key <= query + offset + right)
        for query in range(queries)
        for key in range(keys)
    )


@st.composite
def attentions(draw: st.DrawFn) -> Attention:
    heads_kv = draw(st.integers(1, 3))
    left, right = draw(SIDES), draw(SIDES)
    backward = draw(st.booleans())
    options: dict[str, Any] = {
        "batch": draw(SIZES | st.sampled_from(["*", "*<=8~2"])),
        "heads_q": heads_kv * draw(st.integers(1, 5)),
        "heads_kv": heads_kv,
        "seq_q": draw(SIZES | st.sampled_from(["*<=9"])),
        "seq_kv": draw(SIZES | st.sampled_from(["*~5"])),
        "head_dim": draw(st.integers(1, 20)),
        "head_dim_v": draw(st.integers(1, 20)),
        "window": (left, right),
        "align": draw(st.sampled_from(["top_left", "bottom_right"])) if (left, right) != (None, None) else None,
        "softcap": draw(st.sampled_from([0.0, 15, 30.5])),
        "scale": draw(st.none() | st.floats(-10, 10)),
        "dtype": draw(st.sampled_from(["fp32", "tf32", "fp16", "bf16", "fp8"])),
        "out_dtype": draw(st.sampled_from([None, "fp32", "fp16"])),
        "layout": draw(st.sampled_from(["bhsd", "BSHD"])),
        "direction": "bprop" if backward else "fprop",
        "mask": draw(st.sampled_from(["none", "key", "pair", "batch", "head", "full"])),
        "bias": draw(st.sampled_from(["none", "key", "pair", "batch", "head", "full"])),
        "alibi": draw(st.booleans()),
        "sink": draw(st.booleans()),
        "varlen": draw(st.sampled_from(["none", "padded", "packed"])),
        "paged": 0 if backward else draw(st.sampled_from([0, 0, 16])),
        "lse": False if backward else draw(st.booleans()),
    }
    return Attention.of(**options)


@settings(max_examples=150, deadline=None)
@given(attentions())
def test_reads_back_equal_and_counts_visible_pairs(attention: Attention) -> None:
    assert parse_problem(str(attention)) == attention
    assert Attention.from_json(json.loads(json.dumps(attention.to_json()))) == attention
    assert attention.visible_pairs == visible(attention)
    assert attention.bytes == sum(tensor.nbytes for tensor in (*attention.inputs, *attention.outputs))


def test_defaults() -> None:
    attention = Attention.parse("attention heads_q=8 seq_q=128 head_dim=64")
    assert (attention.batch, attention.heads_kv, attention.seq_kv, attention.head_dim_v) == (1, 8, 128, 64)
    assert attention.scale == 1 / math.sqrt(64)
    assert attention.macs == 8 * 128 * 128 * 128
    assert str(attention) == "attention batch=1 heads_q=8 seq_q=128 head_dim=64"


def test_causal_is_a_window_closed_on_the_right() -> None:
    base = "attention heads_q=1 seq_q=4 seq_kv=6 head_dim=1 "
    assert Attention.parse(base + "causal=bottom_right") == Attention.parse(base + "window=*:0")
    assert Attention.parse(base + "causal=top_left window=2:5") == Attention.parse(base + "align=top_left window=2:0")
    assert Attention.parse(base + "causal=top_left").visible_pairs == 1 + 2 + 3 + 4
    assert Attention.parse(base + "causal=bottom_right").visible_pairs == 3 + 4 + 5 + 6
    assert not Attention.parse(base + "window=3:3").is_causal


@pytest.mark.parametrize(
    ("entry", "text"),
    [
        ({"causal": True, "causal_align": None}, " causal=bottom_right"),
        ({"causal": True, "causal_align": "top_left", "window": [3, 0]}, " causal=top_left window=3:0"),
        ({"causal": False, "causal_align": "top_left", "window": [3, None]}, " window=3:* align=top_left"),
        ({"causal": False, "causal_align": "top_left", "window": None}, ""),
        ({"causal": "top_left"}, " causal=top_left"),
    ],
)
def test_published_windows(entry: dict[str, Any], text: str) -> None:
    base = "attention batch=1 heads_q=1 seq_q=4 head_dim=8"
    assert str(Attention.from_json({"heads_q": 1, "seq_q": 4, "head_dim": 8} | entry)) == base + text


def test_published_bias_words() -> None:
    entry = {"heads_q": 2, "seq_q": 4, "head_dim": 8}
    expected = {
        "padding_mask": (Mask.KEY, Bias.NONE, False),
        "mask": (Mask.NONE, Bias.BATCH, False),
        "t5_rel_pos": (Mask.NONE, Bias.HEAD, False),
        "sink": (Mask.NONE, Bias.NONE, True),
    }
    for published, (mask, bias, sink) in expected.items():
        attention = Attention.from_json(entry | {"bias": published})
        assert (attention.mask, attention.bias, attention.sink) == (mask, bias, sink)


def test_tensors() -> None:
    text = (
        "attention batch=2 heads_q=4 heads_kv=2 seq_q=3 seq_kv=5 head_dim=8 head_dim_v=6 dtype=fp16 layout=bshd lse=yes"
    )
    attention = Attention.parse(text + " mask=key bias=head sink=yes")
    shapes = {tensor.name: tensor.shape for tensor in (*attention.inputs, *attention.outputs)}
    assert shapes == {
        "q": (2, 4, 3, 8),
        "k": (2, 2, 5, 8),
        "v": (2, 2, 5, 6),
        "mask": (2, 5),
        "bias": (4, 3, 5),
        "sink": (4,),
        "o": (2, 4, 3, 6),
        "lse": (2, 4, 3),
    }
    assert attention.tensor("q").strides == (3 * 4 * 8, 8, 4 * 8, 1)
    assert attention.tensor("lse").dtype is DType.FP32
    backward = Attention.parse(text.replace("lse=yes", "direction=bprop"))
    assert [tensor.name for tensor in backward.inputs] == ["q", "k", "v", "o", "do", "lse"]
    assert [tensor.shape for tensor in backward.outputs] == [shapes["q"], shapes["k"], shapes["v"]]
    assert backward.macs == 2 * 4 * 3 * 5 * (3 * 8 + 2 * 6)


def test_packed_and_paged_tensors() -> None:
    packed = Attention.parse("attention batch=3 heads_q=2 seq_q=10 head_dim=8 varlen=packed")
    assert packed.tensor("q").shape == (1, 2, 30, 8)
    assert packed.tensor("offsets_kv").shape == (4,)
    paged = Attention.parse("attention batch=3 heads_q=2 seq_q=1 seq_kv=33 head_dim=8 paged=16")
    assert paged.tensor("k").shape == (9, 2, 16, 8)
    assert paged.tensor("block_table").shape == (3, 3)


def test_runtime_sizes() -> None:
    attention = Attention.parse("attention batch=* heads_q=2 seq_q=1 seq_kv=*<=131072~4096 head_dim=8")
    assert attention.typical_sizes == (1, 1, 4096)
    assert attention.at(batch=2, seq_kv=7).visible_pairs == 7
    with pytest.raises(ProblemError, match="at most 131072"):
        attention.at(seq_kv=131073)


@pytest.mark.parametrize(
    ("key", "tokens"),
    [
        ("heads_kv", "heads_kv=3"),
        ("heads_kv", "heads_kv=0"),
        ("head_dim_v", "head_dim_v=0"),
        ("causal", "causal=yes"),
        ("align", "causal=top_left align=bottom_right"),
        ("align", "align=top_left"),
        ("window", "window=3"),
        ("window", "window=-1:0"),
        ("window", "window=1:2:3"),
        ("softcap", "softcap=-1"),
        ("scale", "scale=inf"),
        ("scale", "scale=1/8"),
        ("dtype", "dtype=int8"),
        ("out_dtype", "out_dtype=int32"),
        ("layout", "layout=nchw"),
        ("direction", "direction=dgrad"),
        ("lse", "lse=yes direction=bwd"),
        ("paged", "paged=16 direction=bwd"),
        ("mask", "mask=causal"),
        ("bias", "bias=padding_mask"),
        ("varlen", "varlen=yes"),
        ("stride", "stride=1"),
        ("seq_kv", "seq_kv=*<=x"),
        ("k", "batch=4294967296 seq_kv=4294967296"),
        ("macs", "seq_kv=4294967296000000"),
    ],
)
def test_refusal_names_the_key(key: str, tokens: str) -> None:
    with pytest.raises(ProblemError) as caught:
        Attention.parse(f"attention heads_q=4 seq_q=1024 head_dim=64 {tokens}")
    assert caught.value.key == key


def test_required_keys() -> None:
    with pytest.raises(ProblemError, match="head_dim"):
        Attention.parse("attention heads_q=4 seq_q=1024")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("batch", True),
        ("heads_q", 2.0),
        ("window", [1, 2]),
        ("window", (1, -2)),
        ("window", (1,)),
        ("scale", math.nan),
        ("scale", "1"),
        ("mask", "key"),
        ("lse", 1),
        ("paged", -1),
    ],
)
def test_constructor_refuses_wrong_types(key: str, value: object) -> None:
    attention = Attention.parse("attention heads_q=4 seq_q=16 head_dim=64")
    changes: dict[str, Any] = {key: value}
    with pytest.raises(ProblemError):
        dataclasses.replace(attention, **changes)
