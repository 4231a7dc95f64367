"""Reading untrusted text and JSON, and refusing what means nothing.

The text form is `op key=value key=value …`, in any order. The functions named after a kind of value turn the text
behind `=` into what the JSON form holds for the same key, so that both forms go through the same checks afterwards.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

from convgen.errors import ProblemError

LIMIT = 2**63
"""Sizes, element counts, byte counts and multiply-adds stay below this, so that they fit in 64 bits."""

_INTEGER = re.compile(r"-?[0-9]{1,19}", re.ASCII)
_NUMBER = re.compile(r"-?([0-9]{1,40}(\.[0-9]{0,40})?|\.[0-9]{1,40})(e[-+]?[0-9]{1,4})?", re.ASCII | re.IGNORECASE)


def shorten(value: object, limit: int = 60) -> str:
    """A printable form of any value, at most about `limit` characters long. Never raises."""
    text = _describe(value)
    return text if len(text) <= limit else f"{text[: limit - 15]}… ({len(text)} long)"


def _describe(value: object) -> str:
    if isinstance(value, str):
        return value if value.isprintable() and value.isascii() else ascii(value[:200])
    if isinstance(value, int) and not isinstance(value, bool):
        bits = int.bit_length(value)
        return int.__repr__(value) if bits <= 200 else f"an integer of {bits} bits"
    if value is None or isinstance(value, bool):
        return repr(value)
    if isinstance(value, float):
        return float.__repr__(value)
    if isinstance(value, (tuple, list)) and value and all(type(v) is int for v in value):
        return "x".join(_describe(v) for v in value[:20])
    return f"a {type(value).__name__}"


def refusal(key: object, value: object, expected: str) -> ProblemError:
    """The error for a bad value, with key and value in a short printable form."""
    return ProblemError(shorten(key), shorten(value), expected)


def tokens(text: object) -> tuple[str, dict[str, str]]:
    """Split `op key=value …` into the op and a dictionary.

    Raises ProblemError for anything that is not a text, no op, a token without `=`, or a key given twice.
    """
    if not isinstance(text, str):
        raise refusal("problem", text, "a text such as 'conv2d n=1 c=3 k=8 in=32x32 filter=3x3'")
    op, *rest = text.split() or [""]
    if not op or "=" in op:
        raise refusal("problem", text, "an operation first, as in conv2d n=1 c=3 k=8 in=32x32 filter=3x3")
    values: dict[str, str] = {}
    for token in rest:
        key, equals, value = token.partition("=")
        if not equals or not key or not value:
            raise refusal("token", token, "key=value")
        if key in values:
            raise refusal(key, value, "each key once")
        values[key] = value
    return op, values


def read_tokens(values: Mapping[str, str], readers: Mapping[str, Callable[[str, str], Any]]) -> dict[str, Any]:
    """Apply each key's reader to its text. Raises ProblemError for a key without one."""
    check_keys(values, readers)
    return {key: readers[key](key, text) for key, text in values.items()}


def check_keys(values: Mapping[str, Any], known: Collection[str]) -> None:
    """Raise ProblemError for a key that is not in `known`."""
    for key, value in values.items():
        if key not in known:
            raise refusal(key, value, f"one of the keys {', '.join(known)}")


# --- kinds of value: each takes the key, for the message, and the text behind `=` ------------------------


def word(key: str, text: str) -> str:
    """A word, checked against its vocabulary later."""
    return text


def integer(key: str, text: str) -> int:
    """A decimal integer of at most 19 digits."""
    if not _INTEGER.fullmatch(text):
        raise refusal(key, text, "an integer below 2^63")
    return int(text)


def size(key: str, text: str) -> int | str:
    """An integer, or the text of a RuntimeSize, which begins with `*`."""
    return text if text.startswith("*") else integer(key, text)


def number(key: str, text: str) -> float:
    """A decimal number, as `0.125` or `1e-3`."""
    if not _NUMBER.fullmatch(text):
        raise refusal(key, text, "a number such as 0.125 or 1e-3")
    return float(text)


def flag(key: str, text: str) -> bool:
    """`yes` or `no`."""
    if text not in ("yes", "no"):
        raise refusal(key, text, "yes or no")
    return text == "yes"


def dims(key: str, text: str) -> list[int]:
    """Integers joined by x: `3`, `3x3`, `1x3x3`. One stands for every dimension."""
    return [integer(key, part) for part in text.split("x")]


def pads(key: str, text: str) -> str | list[int | list[int]]:
    """`same`, or one entry a dimension joined by x, each `p` or `lo:hi`. One entry stands for every dimension."""
    return text if text == "same" else [_pad(key, part) for part in text.split("x")]


def _pad(key: str, text: str) -> int | list[int]:
    low, colon, high = text.partition(":")
    return [integer(key, low), integer(key, high)] if colon else integer(key, low)


# --- JSON ------------------------------------------------------------------------------------------------


def load_json(text: str, source: str) -> Any:
    """Decode JSON strictly: no key twice in an object, no NaN or infinity, no integer past 40 digits.

    Raises ProblemError that names `source`.
    """
    try:
        return json.loads(
            text,
            object_pairs_hook=_object,
            parse_constant=_no_constant,
            parse_int=_json_integer,
            parse_float=_json_float,
        )
    except RecursionError:
        raise refusal(source, "JSON", "objects and lists nested less deeply") from None
    except json.JSONDecodeError as error:
        raise refusal(source, text, f"JSON ({error.msg} in line {error.lineno}, column {error.colno})") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, value in pairs:
        if key in values:
            raise refusal(key, value, "each key once in an object")
        values[key] = value
    return values


def _no_constant(text: str) -> float:
    raise refusal("number", text, "a finite number")


def _json_integer(text: str) -> int:
    if len(text) > 40:
        raise refusal("number", text, "an integer below 2^63")
    return int(text)


def _json_float(text: str) -> float:
    value = float(text)
    if value - value != 0:
        raise refusal("number", text, "a finite number")
    return value
