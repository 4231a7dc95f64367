"""Checks on single values, whichever form they came in: text, JSON or Python.

Each takes the key for the message and returns the value in the type that the problem's field has, or raises
ProblemError.
"""

from __future__ import annotations

import enum
from collections.abc import Collection
from typing import TypeVar

from convgen.problem.dtype import Direction
from convgen.problem.size import RuntimeSize
from convgen.problem.text import LIMIT, refusal

Word = TypeVar("Word", bound=enum.StrEnum)

_FP32_MAX = (2 - 2**-23) * 2.0**127


def size(key: str, value: object, at_least: int = 0) -> int:
    """A Python int (no bool) in [at_least, 2^63)."""
    if type(value) is not int or not at_least <= value < LIMIT:
        raise refusal(key, value, f"an integer of at least {at_least} and below 2^63")
    return value


def runtime_size(key: str, value: object) -> int | RuntimeSize:
    """A size of at least 0, a RuntimeSize, or its text (`*`, `*<=128~32`)."""
    if isinstance(value, RuntimeSize):
        return value
    if isinstance(value, str):
        return RuntimeSize.parse(key, value)
    return size(key, value)


def dims(key: str, value: object, nd: int, at_least: int) -> tuple[int, ...]:
    """`nd` integers of at least `at_least`; one integer, or a list of one, stands for all."""
    if not isinstance(value, (int, list, tuple)):
        raise refusal(key, value, f"an integer of at least {at_least}, or a list of one for each dimension")
    parts = value if isinstance(value, (list, tuple)) else (value,)
    if len(parts) not in (1, nd):
        raise refusal(key, value, f"{nd} integers, one for each spatial dimension" if nd > 1 else "one integer")
    checked = tuple(size(key, part, at_least) for part in parts)
    return checked * nd if len(checked) < nd else checked


def pads(key: str, value: object, nd: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Padding before and after, for `nd` dimensions: an integer, or a list with one entry (or one for each
    dimension), each an integer or a pair [lo, hi]."""
    if not isinstance(value, (int, list, tuple)):
        expected = "an integer, or a list of one (or of [lo, hi]) for each dimension; a convolution also takes 'same'"
        raise refusal(key, value, expected)
    parts = value if isinstance(value, (list, tuple)) else (value,)
    if len(parts) not in (1, nd):
        raise refusal(
            key, value, f"one entry (p or lo:hi) for each of {nd} spatial dimensions; a convolution also takes 'same'"
        )
    pairs = [part if isinstance(part, (list, tuple)) else (part, part) for part in parts]
    if any(len(pair) != 2 for pair in pairs):
        raise refusal(key, value, "a pair lo:hi for each dimension")
    low, high = (tuple(size(key, pair[side]) for pair in pairs) for side in (0, 1))
    return (low, high) if len(pairs) == nd else (low * nd, high * nd)


def word(key: str, value: object, vocabulary: type[Word], valid: Collection[Word] | None = None) -> Word:
    """A member of `vocabulary`, or its text. The message offers those that are `valid` for the key: the rules, which
    know why, refuse the others."""
    if isinstance(value, str) and value in list(vocabulary):
        return vocabulary(value)
    raise refusal(key, value, f"one of {', '.join(vocabulary if valid is None else valid)}")


def direction(value: object, valid: Collection[Direction]) -> Direction:
    """A Direction or its text; `fwd` is fprop and `bwd` is bprop, as benchmarks call them."""
    aliases = {"fwd": "fprop", "bwd": "bprop"}
    return word("direction", aliases.get(value, value) if isinstance(value, str) else value, Direction, valid)


def flag(key: str, value: object) -> bool:
    """True or False, or their text `yes` and `no`."""
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value in ("yes", "no"):
        return value == "yes"
    raise refusal(key, value, "true or false")


def number(key: str, value: object) -> float:
    """A float that fp32 can hold; an int is taken as one."""
    if (type(value) is int or isinstance(value, float)) and abs(value) <= _FP32_MAX:
        return float(value)
    raise refusal(key, value, "a finite number within the range of fp32")
