"""How alike two problems are, so that one's winner may serve the other."""

from __future__ import annotations

import math
from dataclasses import dataclass

from convgen.problem import Attention, Conv, Problem

FARTHEST = 8.0
"""Distance beyond which a winner says nothing: three doublings of a channel count and one of everything else."""

_WEIGHTS = {
    "batch": 0.5,
    "channels": 1.0,
    "positions": 0.5,
    "filter": 2.0,
    "stride": 2.0,
    "dilation": 2.0,
    "groups": 2.0,
    "heads": 0.5,
    "queries": 1.0,
    "keys": 0.5,
}


def distance(a: Problem, b: Problem) -> float:
    """0 for equal shapes; each doubling of a size adds its weight, infinite where the problems are of another kind."""
    first, second = _features(a), _features(b)
    if first is None or second is None or first.kind != second.kind:
        return math.inf
    total = 0.0
    for name, sizes in first.sizes.items():
        other = second.sizes[name]
        total += _WEIGHTS[name] * sum(abs(math.log2(x / y)) for x, y in zip(sizes, other, strict=True)) / len(sizes)
    return total


@dataclass(frozen=True)
class _Features:
    kind: tuple[object, ...]
    """What must be equal."""
    sizes: dict[str, tuple[int, ...]]
    """What may differ; at least 1."""


def _features(problem: Problem) -> _Features | None:
    """None for problems of which none is like another."""
    match problem:
        case Conv():
            return _of_conv(problem)
        case Attention():
            return _of_attention(problem)
    return None


def _of_conv(p: Conv) -> _Features:
    depthwise = p.groups > 1 and p.groups in (p.c, p.k)
    kind = (
        p.op, p.direction, p.dtype, p.out_dtype, p.layout, p.pad_mode, p.accuracy, p.is_runtime_batch, depthwise,
        p.groups == 1, min(p.c // p.groups, 4), math.prod(p.filter) == 1, p.epilogue.residual, p.accumulate,
    )  # fmt: skip
    sizes = {
        "batch": (max(p.typical_batch, 1),),
        "channels": (max(p.c // p.groups, 1), max(p.k // p.groups, 1)),
        "positions": tuple(max(extent, 1) for extent in p.out),
        "filter": p.filter,
        "stride": p.stride,
        "dilation": p.dilation,
        "groups": (p.groups,),
    }
    return _Features(kind, sizes)


def _of_attention(p: Attention) -> _Features:
    kind = (
        p.op, p.direction, p.dtype, p.out_dtype, p.layout, p.accuracy, p.runtime_sizes, p.head_dim, p.head_dim_v,
        p.is_causal, p.window[0] is None, p.softcap > 0, p.mask, p.bias, p.alibi, p.sink, p.varlen, p.paged, p.lse,
    )  # fmt: skip
    batch, queries, keys = (max(size, 1) for size in p.typical_sizes)
    sizes = {"batch": (batch,), "heads": (p.heads_q, p.heads_kv), "queries": (queries,), "keys": (keys,)}
    return _Features(kind, sizes)
