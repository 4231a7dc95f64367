"""The text and JSON forms of an attention: read into the keywords of `Attention.of`, and written from an Attention."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from convgen.problem import text
from convgen.problem.attention_words import Align, Bias, Mask, Varlen
from convgen.problem.dtype import Accuracy, AttentionLayout, Direction
from convgen.problem.text import refusal

if TYPE_CHECKING:
    from convgen.problem.attention import Attention


def _window(key: str, source: str) -> list[int | None]:
    sides = source.split(":")
    return [None if side == "*" else text.integer(key, side) for side in sides]


OP = "attention"

_READERS = {
    "batch": text.size,
    "heads_q": text.integer,
    "heads_kv": text.integer,
    "seq_q": text.size,
    "seq_kv": text.size,
    "head_dim": text.integer,
    "head_dim_v": text.integer,
    "causal": text.word,
    "window": _window,
    "align": text.word,
    "softcap": text.number,
    "scale": text.number,
    "dtype": text.word,
    "out_dtype": text.word,
    "layout": text.word,
    "direction": text.word,
    "mask": text.word,
    "bias": text.word,
    "alibi": text.flag,
    "sink": text.flag,
    "varlen": text.word,
    "paged": text.integer,
    "lse": text.flag,
    "accuracy": text.word,
}
KEYS = ("op", "causal_align", *_READERS)
"""The keys of the JSON form."""

_PUBLISHED_BIAS: dict[str, dict[str, Any]] = {
    "padding_mask": {"mask": Mask.KEY},
    "mask": {"bias": Bias.BATCH},
    "rel_pos": {"bias": Bias.HEAD},
    "t5_rel_pos": {"bias": Bias.HEAD},
    "pair_bias": {"bias": Bias.HEAD},
    "sink": {"sink": True},
}
"""What the `bias` words of published problem lists stand for. `mask` is the additive (B, 1, S_q, S_kv) mask of
oneDNN's graphs."""


def from_text(source: object) -> dict[str, Any]:
    """Keywords of `Attention.of`. Raises ProblemError."""
    op, tokens = text.tokens(source)
    if op != OP:
        raise refusal("op", op, OP)
    return _complete(text.read_tokens(tokens, _READERS))


def from_json(entry: object) -> dict[str, Any]:
    """Keywords of `Attention.of`. Beside the text form's values, `causal` may be true or false with `causal_align`, a
    `window` or one of its sides null, and `bias` a word of a published list (`padding_mask`, `rel_pos`, …). Raises
    ProblemError."""
    if not isinstance(entry, Mapping):
        raise refusal("problem", entry, "an object with the keys of an attention")
    text.check_keys(entry, KEYS)
    values = dict(entry)
    if values.pop("op", OP) != OP:
        raise refusal("op", entry["op"], OP)
    align = values.pop("causal_align", None)
    if values.get("window") is None:
        values.pop("window", None)
    if isinstance(values.get("causal"), bool):
        causal = values.pop("causal")
        if causal:
            values["causal"] = align or Align.BOTTOM_RIGHT
        elif align is not None and "window" in values:
            values["align"] = align
    elif align is not None:
        raise refusal("causal_align", align, "causal=true or false with it, or the alignment in causal itself")
    published = values.get("bias")
    if isinstance(published, str) and published in _PUBLISHED_BIAS:
        values |= {"bias": Bias.NONE} | _PUBLISHED_BIAS[published]
    return _complete(values)


def _complete(values: dict[str, Any]) -> dict[str, Any]:
    for key in ("heads_q", "seq_q", "head_dim"):
        if values.get(key) is None:
            raise refusal(key, "nothing", "a value; heads_q, seq_q and head_dim have no default")
    return values


def window_of(value: object) -> tuple[int | None, int | None]:
    """A pair of sizes, None for an unbounded side. Raises ProblemError; the sizes are checked later."""
    if not isinstance(value, (list, tuple)) or len(value) != 2:
        raise refusal("window", value, "a pair left:right, * for an unbounded side")
    return value[0], value[1]


def layout_of(value: object) -> AttentionLayout:
    """A layout from its name in any case. Raises ProblemError."""
    if isinstance(value, str) and value.lower() in list(AttentionLayout):
        return AttentionLayout(value.lower())
    raise refusal("layout", value, f"one of {', '.join(AttentionLayout)}")


def default_scale(head_dim: int) -> float:
    """1 / sqrt(head_dim)."""
    return 1 / math.sqrt(head_dim)


def to_text(attention: Attention) -> str:
    """The canonical text: fixed order, defaults left out."""
    return " ".join([OP, *(f"{key}={value}" for key, value in _canonical(attention).items())])


def to_json(attention: Attention) -> dict[str, Any]:
    """The JSON form: every size, and the other keys where they differ from the default."""
    typed = {
        "batch": _plain(attention.batch),
        "heads_q": attention.heads_q,
        "heads_kv": attention.heads_kv,
        "seq_q": _plain(attention.seq_q),
        "seq_kv": _plain(attention.seq_kv),
        "head_dim": attention.head_dim,
        "head_dim_v": attention.head_dim_v,
        "window": list(attention.window),
        "softcap": attention.softcap,
        "scale": attention.scale,
        "alibi": attention.alibi,
        "sink": attention.sink,
        "paged": attention.paged,
        "lse": attention.lse,
    }
    words = _canonical(attention)
    return {"op": OP} | {key: typed.get(key, value) for key, value in words.items()}


def _plain(size: object) -> int | str:
    return size if isinstance(size, int) else str(size)


def _canonical(attention: Attention) -> dict[str, str]:
    left, right = attention.window
    causal = right == 0
    words = {
        "batch": str(attention.batch),
        "heads_q": str(attention.heads_q),
        "heads_kv": str(attention.heads_kv),
        "seq_q": str(attention.seq_q),
        "seq_kv": str(attention.seq_kv),
        "head_dim": str(attention.head_dim),
        "head_dim_v": str(attention.head_dim_v),
        "causal": attention.align.value if causal else "",
        "window": "" if causal and left is None else f"{_side(left)}:{_side(right)}",
        "align": "" if causal else attention.align.value,
        "softcap": repr(attention.softcap),
        "scale": repr(attention.scale),
        "dtype": attention.dtype.value,
        "out_dtype": attention.out_dtype.value,
        "layout": attention.layout.value,
        "direction": attention.direction.value,
        "mask": attention.mask.value,
        "bias": attention.bias.value,
        "alibi": _yes(attention.alibi),
        "sink": _yes(attention.sink),
        "varlen": attention.varlen.value,
        "paged": str(attention.paged),
        "lse": _yes(attention.lse),
        "accuracy": attention.accuracy.value,
    }
    defaults = {
        "heads_kv": words["heads_q"],
        "seq_kv": words["seq_q"],
        "head_dim_v": words["head_dim"],
        "causal": "",
        "window": "" if causal else "*:*",
        "align": "" if causal else Align.BOTTOM_RIGHT.value,
        "softcap": repr(0.0),
        "scale": repr(default_scale(attention.head_dim)),
        "dtype": "fp32",
        "out_dtype": attention.dtype.default_output.value,
        "layout": AttentionLayout.BHSD.value,
        "direction": Direction.FPROP.value,
        "mask": Mask.NONE.value,
        "bias": Bias.NONE.value,
        "alibi": "no",
        "sink": "no",
        "varlen": Varlen.NONE.value,
        "paged": "0",
        "lse": "no",
        "accuracy": Accuracy.STRICT.value,
    }
    return {key: value for key, value in words.items() if defaults.get(key) != value}


def _side(side: int | None) -> str:
    return "*" if side is None else str(side)


def _yes(value: bool) -> str:
    return "yes" if value else "no"
