"""Sums that are split over several blocks: their partial results and the kernel that adds them in order.

The kernel is `templates/conv/reduce.cu.j2`; it takes what `constants` gives beside the constants of every gather.
"""

from __future__ import annotations

from typing import Any

from convgen.gather import Gather
from convgen.plan import Buffer, Launch, Param, WorkspaceArg
from convgen.problem import Conv
from convgen.space import Config
from convgen.strategies import common, operands
from convgen.strategies.operands import Operand

THREADS = 256
"""Threads a block of the kernel, each one element of y."""


def sum_type(g: Gather) -> str:
    """The CUDA type of sums: int of integers, else float. Both have four bytes."""
    return "int" if g.x.dtype.is_integer else "float"


def stored(g: Gather) -> Operand:
    """What a kernel writes its part of the sums to: sum_type[part][element of y]."""
    return Param("partial", f"{sum_type(g)}*"), WorkspaceArg("partial")


def reduce(problem: Conv, g: Gather, strategy: str, config: Config) -> Launch:
    """The launch that adds the parts of each sum and applies the epilogue."""
    parts = Param("partial", f"const {sum_type(g)}*"), WorkspaceArg("partial")
    taken = (parts, *operands.epilogue(problem), operands.y(g), *operands.runtime_batch(g))
    grid = (common.per_batch(g, g.y.size, by=THREADS), 1, 1)
    return operands.launch(common.kernel_name(problem, strategy, config, "reduce"), taken, grid, (THREADS, 1, 1))


def workspace(g: Gather, parts: int) -> tuple[Buffer, ...]:
    """The buffer of partial results; none where sums are whole."""
    return (Buffer("partial", common.per_batch(g, 4 * parts * g.y.size)),) if parts > 1 else ()


def constants(g: Gather, launch: Launch, parts: int) -> dict[str, Any]:
    """The template constants of the kernel that `launch` runs."""
    return {
        "reduce_kernel": launch.kernel.name,
        "reduce_params": launch.kernel.params,
        "parts": parts,
        "sum_t": sum_type(g),
        "to_out": "static_cast<out_t>" if g.y.dtype.is_integer else "from_float<out_t>",
        "result_elements": "static_cast<offset_t>(batch) * kYBatch" if g.batch is None else g.y.size,
        "channel_stride": g.y.strides[0 if g.y.name == "dw" else 1],
    }
