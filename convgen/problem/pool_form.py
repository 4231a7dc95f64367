"""The text and JSON forms of a pooling: read into the keywords of `Pool.of`, and written from a Pool."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from convgen.problem import text
from convgen.problem.dtype import Direction, DType, Layout
from convgen.problem.pool_words import PoolMode
from convgen.problem.text import refusal
from convgen.problem.values import size
from convgen.problem.window_form import joined, merge_padding, merged, padding

if TYPE_CHECKING:
    from convgen.problem.pool import Pool

_OP = re.compile(r"(avg|max)_pool([123])d")
_FAMILIES = ("avg_pool", "max_pool")
OPS = tuple(f"{family}{nd}d" for family in _FAMILIES for nd in (1, 2, 3))
"""The ops of the text form."""

_READERS = {
    "n": text.size,
    "c": text.integer,
    "in": text.dims,
    "filter": text.dims,
    "stride": text.dims,
    "pad": text.pads,
    "dilation": text.dims,
    "ceil_mode": text.flag,
    "count_include_pad": text.flag,
    "divisor_override": text.integer,
    "dtype": text.word,
    "layout": text.word,
    "direction": text.word,
}
_JSON_ONLY = ("op", "nd", "pad_lo", "pad_hi")
KEYS = (*_JSON_ONLY, *_READERS)
"""The keys of the JSON form."""


def is_pool(op: object) -> bool:
    """Whether it is a pooling's op, of the text form or of the JSON form."""
    return op in _FAMILIES or op in OPS


def split_op(op: object) -> tuple[PoolMode, int]:
    """What becomes of a window, and spatial dimensions: `max_pool2d` is (MAX, 2)."""
    match = _OP.fullmatch(op) if isinstance(op, str) else None
    if match is None:
        raise refusal("op", op, f"one of {', '.join(OPS)}")
    return PoolMode(match[1]), int(match[2])


def from_text(source: object) -> dict[str, Any]:
    """Keywords of `Pool.of`. Raises ProblemError."""
    op, values = text.tokens(source)
    split_op(op)
    return {"op": op, **_renamed(text.read_tokens(values, _READERS))}


def from_json(entry: object) -> dict[str, Any]:
    """Keywords of `Pool.of`. `op` is `avg_pool` or `max_pool` with `nd` (or as many dimensions as `in` has), or an op
    of the text form. Padding is `pad`, or `pad_lo` and `pad_hi`. Raises ProblemError."""
    if not isinstance(entry, Mapping):
        raise refusal("problem", entry, "an object with the keys of a pooling")
    text.check_keys(entry, KEYS)
    values = dict(entry)
    op, extent = values.pop("op", None), values.get("in")
    if op in _FAMILIES:
        implied = len(extent) if isinstance(extent, (list, tuple)) else 1
        op = f"{op}{size('nd', values.pop('nd', implied), at_least=1)}d"
    nd = split_op(op)[1]
    if values.pop("nd", nd) != nd:
        raise refusal("nd", entry["nd"], f"{nd} for {op}, or no nd")
    merge_padding(values, nd)
    return {"op": op, **_renamed(values)}


def _renamed(values: dict[str, Any]) -> dict[str, Any]:
    for key in ("c", "in", "filter"):
        if key not in values:
            raise refusal(key, "nothing", "a value; c, in and filter have no default")
    values["spatial"] = values.pop("in")
    return values


def to_text(pool: Pool) -> str:
    """The canonical text: fixed order, defaults left out."""
    return " ".join([pool.op, *(f"{key}={value}" for key, value in _canonical(pool).items())])


def to_json(pool: Pool) -> dict[str, Any]:
    """The JSON form: every size, and the other keys where they differ from the default."""
    entry = {
        "op": f"{pool.mode}_pool",
        "nd": pool.nd,
        "n": pool.n if isinstance(pool.n, int) else str(pool.n),
        "c": pool.c,
        "in": list(pool.spatial),
        "filter": list(pool.filter),
        "stride": list(pool.stride),
        "pad_lo": list(pool.pad_lo),
        "pad_hi": list(pool.pad_hi),
        "dilation": list(pool.dilation),
    }
    words = {key: value for key, value in _canonical(pool).items() if key not in (*entry, "pad")}
    typed = {
        "ceil_mode": pool.ceil_mode,
        "count_include_pad": pool.count_include_pad,
        "divisor_override": pool.divisor_override,
    }
    return entry | {key: typed.get(key, value) for key, value in words.items()}


def _canonical(pool: Pool) -> dict[str, str]:
    words = {
        "n": str(pool.n),
        "c": str(pool.c),
        "in": joined(pool.spatial),
        "filter": joined(pool.filter),
        "stride": merged(pool.stride),
        "pad": padding(pool.pad_lo, pool.pad_hi),
        "dilation": merged(pool.dilation),
        "ceil_mode": "yes" if pool.ceil_mode else "no",
        "count_include_pad": "yes" if pool.count_include_pad else "no",
        "divisor_override": str(pool.divisor_override),
        "dtype": pool.dtype.value,
        "layout": pool.layout.text(pool.nd),
        "direction": pool.direction.value,
    }
    defaults = {
        "stride": merged(pool.filter),
        "pad": "0",
        "dilation": "1",
        "ceil_mode": "no",
        "count_include_pad": "yes",
        "divisor_override": "0",
        "dtype": DType.FP32.value,
        "layout": Layout.CHANNELS_FIRST.text(pool.nd),
        "direction": Direction.FPROP.value,
    }
    return {key: value for key, value in words.items() if defaults.get(key) != value}
