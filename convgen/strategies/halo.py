"""What the two strategies that tile the input have in common: the problems they take, and a block along one axis."""

from __future__ import annotations

from dataclasses import dataclass

from convgen.gather import Axis, gather
from convgen.problem import Conv, Direction
from convgen.strategies import common


def unsuitable(problem: Conv) -> str | None:
    """Why no input tile serves the problem; None if one does."""
    reason = common.not_covered(problem)
    if reason is not None:
        return reason
    if problem.direction is Direction.WGRAD:
        return "in wgrad the output gradient plays the filter: a tile would have to span the whole image"
    g = gather(problem)
    if any(a.divisor > 1 for a in g.axes):
        return "dgrad with a stride: neighbouring results read different taps, so one tile does not serve them alike"
    if g.preimages:
        return f"dgrad of pad_mode={problem.pad_mode.value}: a result gathers from pixels far outside its tile too"
    if not g.has_terms:
        return "there is nothing to sum, so nothing to tile"
    return None


@dataclass(frozen=True)
class AxisBlock:
    """One axis of a block: `block` results, which read `span` pixels between them."""

    axis: Axis
    block: int

    @property
    def blocks(self) -> int:
        return -(-self.axis.out // self.block)

    @property
    def span(self) -> int:
        return self.axis.span(self.block)
