"""How alike two problems are, so that one's winner may serve the other."""

from __future__ import annotations

import math

from convgen.problem import Conv, Problem

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
}


def distance(a: Problem, b: Problem) -> float:
    """0 for equal shapes; each doubling of a size adds its weight, infinite where the problems are of another kind."""
    if not (isinstance(a, Conv) and isinstance(b, Conv)) or _kind(a) != _kind(b):
        return math.inf
    total = 0.0
    for name, sizes in _sizes(a).items():
        other = _sizes(b)[name]
        total += _WEIGHTS[name] * sum(abs(math.log2(x / y)) for x, y in zip(sizes, other, strict=True)) / len(sizes)
    return total


def _kind(p: Conv) -> tuple[object, ...]:
    depthwise = p.groups > 1 and p.groups in (p.c, p.k)
    return (
        p.op, p.direction, p.dtype, p.out_dtype, p.layout, p.pad_mode, p.accuracy, p.is_runtime_batch, depthwise,
        p.groups == 1, min(p.c // p.groups, 4), math.prod(p.filter) == 1, p.epilogue.residual, p.accumulate,
    )  # fmt: skip


def _sizes(p: Conv) -> dict[str, tuple[int, ...]]:
    return {
        "batch": (max(p.typical_batch, 1),),
        "channels": (max(p.c // p.groups, 1), max(p.k // p.groups, 1)),
        "positions": tuple(max(extent, 1) for extent in p.out),
        "filter": p.filter,
        "stride": p.stride,
        "dilation": p.dilation,
        "groups": (p.groups,),
    }
