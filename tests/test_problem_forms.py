"""Text and JSON: every valid problem reads back equal, everything else is refused as a ProblemError."""

from __future__ import annotations

import json
import random
import string
from typing import Any

import pytest
from generators import valid_convs
from hypothesis import given, settings
from hypothesis import strategies as st

from convgen.errors import ProblemError
from convgen.problem import Attention, Conv, Layout, Problem, parse_problem, problem_from_json
from convgen.problem.text import load_json

ATTENTION = "attention batch=2 heads_q=4 heads_kv=2 seq_q=8 seq_kv=9 head_dim=16 causal=bottom_right window=3:0"
CONV = "conv2d n=2 c=4 k=4 in=8x8 filter=3x3 stride=2 pad=0:1x2 groups=2 dtype=fp16 layout=nhwc epilogue=bias+relu"

KEYS = [token.split("=")[0] for token in f"{CONV} {ATTENTION}".split() if "=" in token]
KEYS += ["op", "nd", "pad_lo", "pad_hi", "dilation", "output_padding", "slope", "accumulate", "causal_align", "align"]
KEYS += ["scale", "softcap", "mask", "bias", "alibi", "sink", "varlen", "paged", "lse", "out_dtype", "accuracy", "id"]

VALUES = ["", "0", "1", "-1", "3", "8x8", "1x", "x", "1:2", "::", "same", "*", "*<=4", "*<=4~2", "yes", "no", "nan"]
VALUES += [
    "inf",
    "1e999",
    "0.5",
    "fp16",
    "nhwc",
    "wgrad",
    "bias+relu",
    "9" * 18,
    "9" * 19,
    "9" * 100_000,
    "\u0661",
    "\u00b2",
]
VALUES += ["\ud800", "=", "reflect", "top_left", "*:*", "3:*", "null", "packed", "key", "0x10", "1_0", "+1"]


@settings(max_examples=200, deadline=None)
@given(valid_convs(), st.sampled_from([None, "*", "*~3", "*<=4096", "*<=128~32"]))
def test_convolutions_read_back_equal(conv: Conv, n: str | None) -> None:
    if n is not None:
        conv = Conv.from_json(conv.to_json() | {"n": n})
    assert Conv.parse(str(conv)) == conv
    assert str(Conv.parse(str(conv))) == str(conv)
    assert Conv.from_json(json.loads(json.dumps(conv.to_json()))) == conv


def test_token_order_and_defaults_do_not_matter() -> None:
    tokens = CONV.split()
    shuffled = tokens[1:]
    random.Random(0).shuffle(shuffled)
    assert Conv.parse(" ".join([tokens[0], *shuffled, "dilation=1x1", "direction=fprop"])) == Conv.parse(CONV)


def test_canonical_text() -> None:
    assert str(Conv.parse(CONV)) == CONV
    assert str(Conv.of("conv2d", c=64, k=128, spatial=56, filter=3, pad=1)) == (
        "conv2d n=1 c=64 k=128 in=56x56 filter=3x3 pad=1"
    )
    assert str(parse_problem(ATTENTION)) == ATTENTION


@pytest.mark.parametrize("name", ["ncl", "NCHW", "ncdhw", "channels_first"])
def test_layout_names_are_about_the_channels(name: str) -> None:
    text = "conv2d c=1 k=1 in=2x2 filter=1x1 layout="
    assert Conv.parse(text + name).layout is Layout.CHANNELS_FIRST
    last = name.replace("c", "", 1) + "c" if name == "ncl" else "NHWC"
    assert Conv.parse(text + last).layout is Layout.CHANNELS_LAST


def test_json_form() -> None:
    entry = {"op": "conv", "nd": 2, "c": 3, "in": [9, 8], "k": 4, "filter": [3, 2], "pad_lo": [1, 0], "pad_hi": [0, 2]}
    assert str(Conv.from_json(entry)) == "conv2d n=1 c=3 k=4 in=9x8 filter=3x2 pad=1:0x0:2"
    assert str(Conv.from_json({"op": "conv1d", "c": 1, "k": 1, "in": 5, "filter": 3, "pad": "same"})).endswith("pad=1")


@pytest.mark.parametrize(
    ("key", "change"),
    [
        ("kernel", {"kernel": 3}),
        ("id", {"id": "resnet"}),
        ("nd", {"nd": 3.0}),
        ("nd", {"nd": True}),
        ("op", {"nd": 4}),
        ("op", {"op": ["conv"]}),
        ("op", {"op": "pool"}),
        ("in", {"nd": 3}),
        ("nd", {"op": "conv3d", "nd": 2}),
        ("pad", {"pad": 1, "pad_lo": [1, 1]}),
        ("pad_lo", {"pad_lo": [1]}),
        ("pad", {"pad_lo": [1, None]}),
        ("pad", {"pad_lo": [[1], [1]]}),
        ("pad", {"pad": [[1, 2, 3], 1]}),
        ("pad", {"pad": {"lo": 1}}),
        ("c", {"c": True}),
        ("c", {"c": 3.0}),
        ("c", {"c": "3"}),
        ("c", {"c": [3]}),
        ("c", {"c": 10**4000}),
        ("c", {"c": 10**5000}),
        ("n", {"n": {}}),
        ("n", {"n": "3"}),
        ("in", {"in": [9, [8]]}),
        ("in", {"in": "9x8"}),
        ("dtype", {"dtype": ["fp16"]}),
        ("epilogue", {"epilogue": ["bias"]}),
        ("slope", {"epilogue": "leaky_relu", "slope": "0.5"}),
        ("slope", {"epilogue": "leaky_relu", "slope": float("nan")}),
        ("accumulate", {"accumulate": 1}),
        ("layout", {"layout": None}),
    ],
)
def test_json_refusal_names_the_key(key: str, change: dict[str, Any]) -> None:
    entry = {"op": "conv", "nd": 2, "n": 2, "c": 3, "in": [9, 8], "k": 4, "filter": [3, 2]}
    with pytest.raises(ProblemError) as caught:
        problem_from_json(entry | change)
    assert caught.value.key == key
    assert len(str(caught.value)) < 600


_CONV = {"op": "conv2d", "c": 3, "in": [9, 9], "k": 4, "filter": [3, 3]}
_POOL = {"op": "max_pool2d", "c": 3, "in": [9, 9], "filter": [3, 3]}


@pytest.mark.parametrize(
    ("entry", "key"),
    [(entry, key) for entry in (_CONV, _POOL) for key in ("in", "filter", "stride", "dilation", "pad", "pad_lo")]
    + [({"op": "batch_norm", "c": 3}, "in")],
)
def test_json_refusal_of_text_for_extents_offers_a_list(entry: dict[str, Any], key: str) -> None:
    with pytest.raises(ProblemError, match=r"=1x1: expected an integer.*, or a list of one .*for each dim") as caught:
        problem_from_json(entry | {key: "1x1"})
    assert caught.value.key == key


@pytest.mark.parametrize("value", [None, 3, b"conv2d c=1", [], {"op": "conv2d"}, float("nan")])
def test_text_must_be_text(value: Any) -> None:
    with pytest.raises(ProblemError):
        parse_problem(value)


SHORT = "conv2d c=4 k=4 in=8 filter=3"
SHORT_ATTENTION = "attention heads_q=1 seq_q=4 head_dim=8"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"{SHORT} direction=x", "one of fprop, dgrad, wgrad"),
        (f"{SHORT} direction=bwd", "one of fprop, dgrad, wgrad"),
        (f"{SHORT_ATTENTION} direction=x", "one of fprop, bprop"),
        (f"{SHORT} dtype=x", "one of fp32, tf32, fp16, bf16, int8, uint8, fp8"),
        (f"{SHORT_ATTENTION} dtype=x", "one of fp32, tf32, fp16, bf16, fp8"),
        (f"{SHORT} dtype=bf16 out_dtype=x", "one of fp32, fp16, bf16, fp8"),
        (f"{SHORT} dtype=int8 out_dtype=x", "one of fp32, fp16, bf16, int8, uint8, fp8, int32"),
        (f"{SHORT_ATTENTION} out_dtype=x", "one of fp32, fp16, bf16, fp8"),
        (f"{SHORT} pad_mode=x", "one of zeros, reflect, replicate, circular"),
        (SHORT.replace("conv2d", "conv_transpose2d") + " pad_mode=x", "one of zeros"),
    ],
)
def test_a_message_offers_only_what_would_be_taken(text: str, expected: str) -> None:
    with pytest.raises(ProblemError) as caught:
        parse_problem(text)
    assert caught.value.expected == expected
    *same, (key, _) = (token.partition("=")[::2] for token in text.split()[1:])
    for word in expected.removeprefix("one of ").split(", "):
        parse_problem(" ".join([text.split()[0], *(f"{k}={v}" for k, v in same), f"{key}={word}"]))


def test_a_refused_value_is_printed_as_its_text() -> None:
    with pytest.raises(ProblemError, match=r"^epilogue=bias\+relu: expected none, because direction is dgrad$"):
        parse_problem(f"{SHORT} direction=dgrad epilogue=bias+relu")


def test_messages_stay_short_and_printable() -> None:
    for text in ("9" * 100_000, "\ud800\n" * 5000, "x" * 10**6):
        with pytest.raises(ProblemError) as caught:
            Conv.parse(f"conv1d c=1 k=1 in=1 filter=1 {text}={text}")
        assert len(str(caught.value)) < 600
        assert str(caught.value).encode("utf-8")


def outcome(function: Any, value: Any) -> Problem | ProblemError:
    try:
        problem: Problem = function(value)
    except ProblemError as error:
        return error
    return problem


def read(function: Any, value: Any) -> None:
    """Whatever the value, the function returns a problem that reads back equal, or raises ProblemError."""
    result = outcome(function, value)
    if isinstance(result, ProblemError):
        assert len(str(result)) < 600
        return
    assert parse_problem(str(result)) == result
    assert problem_from_json(result.to_json()) == result


OPS = st.sampled_from(["conv1d", "conv2d", "conv3d", "conv_transpose2d", "attention", "conv", "pool2d", ""])
TOKENS = st.builds("{}={}".format, st.sampled_from(KEYS), st.sampled_from(VALUES) | st.text(max_size=6))
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6) | st.sampled_from(VALUES)
NESTED = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner))


@settings(max_examples=300, deadline=None)
@given(OPS, st.lists(TOKENS, max_size=12))
def test_random_tokens(op: str, tokens: list[str]) -> None:
    read(parse_problem, " ".join([op, *tokens]))


@settings(max_examples=300, deadline=None)
@given(st.sampled_from([CONV, ATTENTION]), st.dictionaries(st.sampled_from(KEYS), st.sampled_from(VALUES), max_size=2))
def test_valid_text_with_values_replaced(text: str, changes: dict[str, str]) -> None:
    op, *tokens = text.split()
    values = dict(token.split("=", 1) for token in tokens) | changes
    read(parse_problem, " ".join([op, *(f"{key}={value}" for key, value in values.items())]))


@settings(max_examples=200, deadline=None)
@given(st.text() | st.binary() | st.text(string.printable))
def test_random_text(text: Any) -> None:
    read(parse_problem, text)
    if isinstance(text, str):
        with pytest.raises(ProblemError):
            problem_from_json(load_json(text, "file"))


@settings(max_examples=300, deadline=None)
@given(st.sampled_from([CONV, ATTENTION]), st.dictionaries(st.sampled_from(KEYS), NESTED, max_size=3))
def test_valid_json_with_values_replaced(text: str, changes: dict[str, Any]) -> None:
    read(problem_from_json, parse_problem(text).to_json() | changes)


@settings(max_examples=200, deadline=None)
@given(NESTED)
def test_random_json(value: Any) -> None:
    for function in (problem_from_json, Conv.from_json, Attention.from_json):
        read(function, value)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[" * 100_000,
        '{"a":' * 50_000,
        '{"c": 1, "c": 2}',
        '{"c": NaN}',
        '{"c": -Infinity}',
        '{"c": 1e999}',
        f'{{"c": {"9" * 100_000}}}',
        "\ufeff{}",
        "\x00",
    ],
)
def test_load_json_refuses(text: str) -> None:
    with pytest.raises(ProblemError):
        load_json(text, "problem.json")
