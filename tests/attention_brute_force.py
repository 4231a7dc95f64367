"""Attention by its definition, one score at a time, in plain Python: the oracle's own oracle."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from convgen.problem import Align, Attention

_AXES = {"key": "bk", "pair": "qk", "batch": "bqk", "head": "hqk", "full": "bhqk"}


def brute_force(problem: Attention, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """o and lse, whether the problem asks for it or not."""
    batch, queries, keys = problem.typical_sizes
    group = problem.heads_q // problem.heads_kv
    o = np.zeros((batch, problem.heads_q, queries, problem.head_dim_v))
    lse = np.full((batch, problem.heads_q, queries), -math.inf)
    for b, h, i in np.ndindex(*lse.shape):
        scores = {j: score(problem, inputs, b, h, i, j) for j in range(keys) if is_seen(problem, inputs, b, h, i, j)}
        scores = {j: s for j, s in scores.items() if s != -math.inf}
        if not scores:
            continue
        logits = [*scores.values(), *([float(inputs["sink"][h])] if problem.sink else [])]
        total = math.fsum(math.exp(s - max(logits)) for s in logits)
        lse[b, h, i] = max(logits) + math.log(total)
        for d in range(problem.head_dim_v):
            terms = (math.exp(s - max(logits)) * float(inputs["v"][b, h // group, j, d]) for j, s in scores.items())
            o[b, h, i, d] = math.fsum(terms) / total
    return {"o": o, "lse": lse}


def score(problem: Attention, inputs: Mapping[str, Any], b: int, h: int, i: int, j: int) -> float:
    group = problem.heads_q // problem.heads_kv
    products = zip(inputs["q"][b, h, i], inputs["k"][b, h // group, j], strict=True)
    value = problem.scale * math.fsum(float(x) * float(y) for x, y in products)
    if problem.softcap > 0:
        value = problem.softcap * math.tanh(value / problem.softcap)
    if problem.bias != "none":
        value += float(_element(inputs["bias"], problem.bias, b, h, i, j))
    if problem.alibi:
        value -= float(inputs["alibi"][h]) * abs(position(problem, i) - j)
    return value


def is_seen(problem: Attention, inputs: Mapping[str, Any], b: int, h: int, i: int, j: int) -> bool:
    left, right = problem.window
    at = position(problem, i)
    if (left is not None and j < at - left) or (right is not None and j > at + right):
        return False
    return problem.mask == "none" or bool(_element(inputs["mask"], problem.mask, b, h, i, j))


def position(problem: Attention, i: int) -> int:
    """The key on the diagonal of query i."""
    _, queries, keys = problem.typical_sizes
    return i + (keys - queries if problem.align is Align.BOTTOM_RIGHT else 0)


def _element(array: Any, kind: str, b: int, h: int, i: int, j: int) -> Any:
    return array[tuple({"b": b, "h": h, "q": i, "k": j}[axis] for axis in _AXES[kind])]
