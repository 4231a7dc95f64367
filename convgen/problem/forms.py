"""Any problem from its text or JSON."""

from __future__ import annotations

from collections.abc import Mapping

from convgen.problem import attention_form, batch_norm_form, conv_form, pool_form
from convgen.problem.attention import Attention
from convgen.problem.batch_norm import BatchNorm
from convgen.problem.conv import Conv
from convgen.problem.pool import Pool
from convgen.problem.protocol import Problem
from convgen.problem.text import refusal, tokens

__all__ = ["OPS", "Problem", "parse_problem", "problem_from_json"]

OPS = (*conv_form.OPS, *pool_form.OPS, batch_norm_form.OP, attention_form.OP)
"""The first words of problems' texts."""


def parse_problem(text: str) -> Problem:
    """Parse a problem's text, by its first word. Raises ProblemError."""
    return _kind(tokens(text)[0]).parse(text)


def problem_from_json(entry: object) -> Problem:
    """Build a problem from a decoded JSON object, by its `op`; without one, an object with `heads_q` is an attention.

    Raises ProblemError.
    """
    return _kind(_op(entry)).from_json(entry)


def is_attention(entry: object) -> bool:
    """Whether a decoded JSON object describes an attention."""
    return _op(entry) == attention_form.OP


def is_convolution(entry: object) -> bool:
    """Whether a decoded JSON object describes a convolution."""
    return conv_form.is_convolution(_op(entry))


def keys_of(entry: object) -> tuple[str, ...]:
    """The keys of a decoded JSON object that describe its problem. Raises ProblemError."""
    kind = _kind(_op(entry))
    if kind is Attention:
        return attention_form.KEYS
    if kind is BatchNorm:
        return batch_norm_form.KEYS
    return pool_form.KEYS if kind is Pool else conv_form.KEYS


def _op(entry: object) -> object:
    if not isinstance(entry, Mapping):
        raise refusal("problem", entry, "an object with the keys of a problem")
    return entry.get("op", attention_form.OP if "heads_q" in entry else "conv")


def _kind(op: object) -> type[Conv] | type[Attention] | type[Pool] | type[BatchNorm]:
    if op == attention_form.OP:
        return Attention
    if op == batch_norm_form.OP:
        return BatchNorm
    if pool_form.is_pool(op):
        return Pool
    if conv_form.is_convolution(op):
        return Conv
    raise refusal("op", op, f"one of {', '.join(OPS)}")
