"""The cost model of `wgmma_swapped`: that of `wgmma_implicit_gemm`, of products whose columns are positions."""

from __future__ import annotations

from collections.abc import Collection

from convgen.problem import Conv
from convgen.strategies import wgmma_cost
from convgen.strategies.wgmma_swapped_tiling import SwappedTiling
from convgen.target import Target


def seconds(problem: Conv, t: SwappedTiling, packed: Collection[str], target: Target) -> float:
    """Predicted seconds of all kernels; `packed`: the operands that are packed first."""
    c = t.c
    wgmma = wgmma_cost.wgmma_cycles(c.block_n) * t.k_steps * c.subtiles
    step = wgmma * wgmma_cost.slowed(problem, target) + wgmma_cost.ALONE * (c.consumers == 1)
    boxes = t.most_rows if c.patches == "rows" else 1
    return wgmma_cost.of_product(problem, t, step, boxes, packed, target)
