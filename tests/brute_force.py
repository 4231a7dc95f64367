"""Convolution by its definition, one product at a time, in plain Python: the oracle's own oracle."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from convgen.problem import Conv, PadMode

Index = tuple[int, ...]


def products(problem: Conv) -> Iterator[tuple[Index, Index, Index]]:
    """Every product of the convolution, as the indices in x, w and y that it joins. Zeros outside x are left out."""
    per_group = problem.k // problem.groups
    depth = problem.c // problem.groups
    ends = problem.spatial if problem.transposed else problem.out
    channels = itertools.product(range(problem.typical_batch), range(problem.groups), range(per_group), range(depth))
    for n, g, m, q in channels:
        c, k = g * depth + q, g * per_group + m
        for start, tap in itertools.product(np.ndindex(*ends), np.ndindex(*problem.filter)):
            position = tuple(
                e * s + t * d - p
                for e, s, t, d, p in zip(start, problem.stride, tap, problem.dilation, problem.pad_lo, strict=True)
            )
            if problem.transposed:
                if all(0 <= p < extent for p, extent in zip(position, problem.out, strict=True)):
                    yield (n, c, *start), (c, m, *tap), (n, k, *position)
            else:
                pixel = [border(p, e, problem.pad_mode) for p, e in zip(position, problem.spatial, strict=True)]
                inside = [p for p in pixel if p is not None]
                if len(inside) == problem.nd:
                    yield (n, c, *inside), (k, q, *tap), (n, k, *start)


def border(position: int, extent: int, mode: PadMode) -> int | None:
    """The pixel that a position in or outside [0, extent) reads; None for zero. PyTorch's padding modes."""
    if 0 <= position < extent:
        return position
    match mode:
        case PadMode.REPLICATE:
            return 0 if position < 0 else extent - 1
        case PadMode.CIRCULAR:
            return position + extent if position < 0 else position - extent
        case PadMode.REFLECT:
            return -position if position < 0 else 2 * (extent - 1) - position
    return None


def brute_force(problem: Conv, inputs: Mapping[str, Any]) -> Any:
    """The accumulator of any direction: a float64 array of the output's shape."""
    output = problem.outputs[0]
    total = np.zeros(output.shape)
    for x, w, y in products(problem):
        match output.name:
            case "y":
                total[y] += inputs["x"][x] * inputs["w"][w]
            case "dx":
                total[x] += inputs["dy"][y] * inputs["w"][w]
            case "dw":
                total[w] += inputs["dy"][y] * inputs["x"][x]
    return total
