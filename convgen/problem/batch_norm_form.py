"""The text and JSON forms of a batch normalisation: read into the keywords of `BatchNorm.of`, and written from one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from convgen.problem import text
from convgen.problem.batch_norm_words import BatchNormMode
from convgen.problem.dtype import Direction, DType, Layout
from convgen.problem.epilogue import DEFAULT_SLOPE, Activation
from convgen.problem.text import refusal
from convgen.problem.window_form import joined

if TYPE_CHECKING:
    from convgen.problem.batch_norm import BatchNorm

OP = "batch_norm"

_READERS = {
    "n": text.size,
    "c": text.integer,
    "in": text.dims,
    "mode": text.word,
    "eps": text.number,
    "momentum": text.number,
    "affine": text.flag,
    "running": text.flag,
    "residual": text.flag,
    "activation": text.word,
    "slope": text.number,
    "dtype": text.word,
    "layout": text.word,
    "direction": text.word,
}
KEYS = ("op", *_READERS)
"""The keys of the JSON form."""


def from_text(source: object) -> dict[str, Any]:
    """Keywords of `BatchNorm.of`. Raises ProblemError."""
    op, values = text.tokens(source)
    return _renamed(op, text.read_tokens(values, _READERS))


def from_json(entry: object) -> dict[str, Any]:
    """Keywords of `BatchNorm.of`. Raises ProblemError."""
    if not isinstance(entry, Mapping):
        raise refusal("problem", entry, "an object with the keys of a batch normalisation")
    text.check_keys(entry, KEYS)
    values = dict(entry)
    return _renamed(values.pop("op", OP), values)


def _renamed(op: object, values: dict[str, Any]) -> dict[str, Any]:
    if op != OP:
        raise refusal("op", op, OP)
    if "c" not in values:
        raise refusal("c", "nothing", "a value; c has no default")
    if "in" in values:
        values["spatial"] = values.pop("in")
    return values


def to_text(norm: BatchNorm) -> str:
    """The canonical text: fixed order, defaults left out."""
    return " ".join([OP, *(f"{key}={value}" for key, value in _canonical(norm).items())])


def to_json(norm: BatchNorm) -> dict[str, Any]:
    """The JSON form: every size, and the other keys where they differ from the default."""
    entry = {
        "op": OP,
        "n": norm.n if isinstance(norm.n, int) else str(norm.n),
        "c": norm.c,
        "in": list(norm.spatial),
        "mode": norm.mode.value,
    }
    typed: dict[str, float | bool] = {"eps": norm.eps, "momentum": norm.momentum, "slope": norm.slope}
    typed |= {"affine": norm.affine, "running": norm.running, "residual": norm.residual}
    words = {key: value for key, value in _canonical(norm).items() if key not in entry}
    return entry | {key: typed.get(key, value) for key, value in words.items()}


def _canonical(norm: BatchNorm) -> dict[str, str]:
    words = {
        "n": str(norm.n),
        "c": str(norm.c),
        "in": joined(norm.spatial),
        "mode": norm.mode.value,
        "eps": repr(norm.eps),
        "momentum": repr(norm.momentum),
        "affine": "yes" if norm.affine else "no",
        "running": "yes" if norm.running else "no",
        "residual": "yes" if norm.residual else "no",
        "activation": norm.activation.value,
        "slope": repr(norm.slope),
        "dtype": norm.dtype.value,
        "layout": norm.layout_name,
        "direction": norm.direction.value,
    }
    defaults = {
        "in": "",
        "eps": repr(1e-5),
        "momentum": repr(0.1),
        "affine": "yes",
        "running": "yes",
        "residual": "no",
        "activation": Activation.NONE.value,
        "slope": repr(DEFAULT_SLOPE),
        "dtype": DType.FP32.value,
        "layout": Layout.CHANNELS_FIRST.text(norm.nd) if norm.nd else Layout.CHANNELS_FIRST.value,
        "direction": Direction.FPROP.value,
        "mode": BatchNormMode.INFERENCE.value,
    }
    return {key: value for key, value in words.items() if defaults.get(key) != value}
