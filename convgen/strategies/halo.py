"""What the two strategies that tile the input have in common: which problems they take, and the constant filter."""

from __future__ import annotations

from convgen.errors import ConfigError
from convgen.gather import Gather, gather
from convgen.problem import Conv, Direction
from convgen.strategies import common
from convgen.target import Target


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


def check_constant_filter(g: Gather, target: Target) -> None:
    """Raise ConfigError if the filter does not fit in constant memory."""
    if g.w.nbytes > target.constant_bytes:
        raise ConfigError(
            f"filter=constant: {g.w.name} has {g.w.nbytes} bytes, constant memory {target.constant_bytes}"
        )
    if g.w.size == 0:
        raise ConfigError(f"filter=constant: {g.w.name} is empty, and an array cannot be")


def power_dividing(value: int, limit: int) -> int:
    """The largest power of two that divides `value` and is at most `limit`, itself a power of two."""
    return min(value & -value, limit)
