"""Any problem from its text or JSON."""

from __future__ import annotations

from collections.abc import Mapping

from convgen.problem.attention import Attention
from convgen.problem.conv import Conv
from convgen.problem.protocol import Problem
from convgen.problem.text import tokens

__all__ = ["Problem", "parse_problem", "problem_from_json"]


def parse_problem(text: str) -> Problem:
    """Parse a problem's text, by its first word. Raises ProblemError."""
    return Attention.parse(text) if tokens(text)[0] == "attention" else Conv.parse(text)


def problem_from_json(entry: object) -> Problem:
    """Build a problem from a decoded JSON object, by its `op`; without one, an object with `heads_q` is an attention.

    Raises ProblemError.
    """
    return Attention.from_json(entry) if is_attention(entry) else Conv.from_json(entry)


def is_attention(entry: object) -> bool:
    """Whether a decoded JSON object describes an attention."""
    return isinstance(entry, Mapping) and entry.get("op", "attention" if "heads_q" in entry else "conv") == "attention"
