"""The text and JSON forms of a convolution: read into the keywords of `Conv.of`, and written from a Conv."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from convgen.problem import text
from convgen.problem.dtype import Accuracy, Direction, Layout, PadMode
from convgen.problem.epilogue import DEFAULT_SLOPE, Epilogue
from convgen.problem.text import refusal
from convgen.problem.values import size
from convgen.problem.window_form import joined, merge_padding, merged, padding

if TYPE_CHECKING:
    from convgen.problem.conv import Conv

_OP = re.compile(r"(conv|conv_transpose)([123])d")
_FAMILIES = ("conv", "conv_transpose")
OPS = tuple(f"{family}{nd}d" for family in _FAMILIES for nd in (1, 2, 3))
"""The ops of the text form."""

_READERS = {
    "n": text.size,
    "c": text.integer,
    "k": text.integer,
    "in": text.dims,
    "filter": text.dims,
    "stride": text.dims,
    "pad": text.pads,
    "pad_mode": text.word,
    "dilation": text.dims,
    "groups": text.integer,
    "output_padding": text.dims,
    "dtype": text.word,
    "out_dtype": text.word,
    "layout": text.word,
    "direction": text.word,
    "epilogue": text.word,
    "slope": text.number,
    "accumulate": text.flag,
    "accuracy": text.word,
}
_JSON_ONLY = ("op", "nd", "pad_lo", "pad_hi")
KEYS = (*_JSON_ONLY, *_READERS)
"""The keys of the JSON form."""


def is_convolution(op: object) -> bool:
    """Whether it is a convolution's op, of the text form or of the JSON form."""
    return op in _FAMILIES or op in OPS


def split_op(op: object) -> tuple[int, bool]:
    """Spatial dimensions and whether it is transposed: `conv_transpose2d` is (2, True)."""
    match = _OP.fullmatch(op) if isinstance(op, str) else None
    if match is None:
        raise refusal("op", op, f"one of {', '.join(OPS)}")
    return int(match[2]), match[1] == "conv_transpose"


def from_text(source: object) -> dict[str, Any]:
    """Keywords of `Conv.of`. Raises ProblemError."""
    op, values = text.tokens(source)
    split_op(op)
    return {"op": op, **_renamed(text.read_tokens(values, _READERS))}


def from_json(entry: object) -> dict[str, Any]:
    """Keywords of `Conv.of`. `op` is `conv` or `conv_transpose` with `nd` (or as many dimensions as `in` has), or
    an op of the text form. Padding is `pad`, or `pad_lo` and `pad_hi`. Raises ProblemError."""
    if not isinstance(entry, Mapping):
        raise refusal("problem", entry, "an object with the keys of a convolution")
    text.check_keys(entry, KEYS)
    values = dict(entry)
    op, extent = values.pop("op", "conv"), values.get("in")
    if op in _FAMILIES:
        implied = len(extent) if isinstance(extent, (list, tuple)) else 1
        op = f"{op}{size('nd', values.pop('nd', implied), at_least=1)}d"
    nd = split_op(op)[0]
    if values.pop("nd", nd) != nd:
        raise refusal("nd", entry["nd"], f"{nd} for {op}, or no nd")
    merge_padding(values, nd)
    return {"op": op, **_renamed(values)}


def _renamed(values: dict[str, Any]) -> dict[str, Any]:
    for key in ("c", "k", "in", "filter"):
        if key not in values:
            raise refusal(key, "nothing", "a value; c, k, in and filter have no default")
    values["spatial"] = values.pop("in")
    return values


def to_text(conv: Conv) -> str:
    """The canonical text: fixed order, defaults left out."""
    return " ".join([conv.op, *(f"{key}={value}" for key, value in _canonical(conv).items())])


def to_json(conv: Conv) -> dict[str, Any]:
    """The JSON form: every size, and the other keys where they differ from the default."""
    entry = {
        "op": "conv_transpose" if conv.transposed else "conv",
        "nd": conv.nd,
        "n": conv.n if isinstance(conv.n, int) else str(conv.n),
        "c": conv.c,
        "in": list(conv.spatial),
        "k": conv.k,
        "filter": list(conv.filter),
        "stride": list(conv.stride),
        "pad_lo": list(conv.pad_lo),
        "pad_hi": list(conv.pad_hi),
        "dilation": list(conv.dilation),
        "groups": conv.groups,
        "output_padding": list(conv.output_padding),
    }
    words = {key: value for key, value in _canonical(conv).items() if key not in (*entry, "pad")}
    typed = {"slope": conv.epilogue.slope, "accumulate": conv.accumulate}
    return entry | {key: typed.get(key, value) for key, value in words.items()}


def _canonical(conv: Conv) -> dict[str, str]:
    nd = conv.nd
    words = {
        "n": str(conv.n),
        "c": str(conv.c),
        "k": str(conv.k),
        "in": joined(conv.spatial),
        "filter": joined(conv.filter),
        "stride": merged(conv.stride),
        "pad": padding(conv.pad_lo, conv.pad_hi),
        "pad_mode": conv.pad_mode.value,
        "dilation": merged(conv.dilation),
        "groups": str(conv.groups),
        "output_padding": merged(conv.output_padding),
        "dtype": conv.dtype.value,
        "out_dtype": conv.out_dtype.value,
        "layout": conv.layout.text(nd),
        "direction": conv.direction.value,
        "epilogue": str(conv.epilogue),
        "slope": repr(conv.epilogue.slope),
        "accumulate": "yes" if conv.accumulate else "no",
        "accuracy": conv.accuracy.value,
    }
    defaults = {
        "stride": "1",
        "pad": "0",
        "pad_mode": PadMode.ZEROS.value,
        "dilation": "1",
        "groups": "1",
        "output_padding": "0",
        "dtype": "fp32",
        "out_dtype": conv.dtype.default_output.value,
        "layout": Layout.CHANNELS_FIRST.text(nd),
        "direction": Direction.FPROP.value,
        "epilogue": str(Epilogue()),
        "slope": repr(DEFAULT_SLOPE),
        "accumulate": "no",
        "accuracy": Accuracy.STRICT.value,
    }
    return {key: value for key, value in words.items() if defaults.get(key) != value}
