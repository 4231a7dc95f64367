"""What makes a pooling meaningful: the checks behind `Pool`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from convgen.problem import values
from convgen.problem.dtype import Direction, DType, Layout
from convgen.problem.pool_words import PoolMode
from convgen.problem.size import RuntimeSize
from convgen.problem.text import LIMIT, refusal
from convgen.problem.window_form import joined

if TYPE_CHECKING:
    from convgen.problem.pool import Pool

DIRECTIONS = (Direction.FPROP,)

_FLOATS = (DType.FP32, DType.FP16, DType.BF16, DType.FP8)
_TYPES = {
    "mode": PoolMode,
    "ceil_mode": bool,
    "count_include_pad": bool,
    "dtype": DType,
    "layout": Layout,
    "direction": Direction,
}


def dtypes(mode: PoolMode) -> tuple[DType, ...]:
    """The types of x and y. TF32 is none of them, since nothing is multiplied; an average of integers is none."""
    return (*_FLOATS, DType.INT8, DType.UINT8) if mode is PoolMode.MAX else _FLOATS


def check(pool: Pool) -> None:
    """Raise ProblemError for the first rule that the pooling breaks."""
    _check_fields(pool)
    if pool.dtype not in dtypes(pool.mode):
        raise refusal("dtype", pool.dtype, f"one of {', '.join(dtypes(pool.mode))}")
    if pool.direction not in DIRECTIONS:
        raise refusal("direction", pool.direction, f"{', '.join(DIRECTIONS)}, the only one there is for pooling")
    _check_mode(pool)
    _check_window(pool)
    _check_sizes(pool)


def _check_fields(pool: Pool) -> None:
    for name, kind in _TYPES.items():
        if not isinstance(getattr(pool, name), kind):
            raise refusal(name, getattr(pool, name), f"a {kind.__name__}")
    if not isinstance(pool.n, RuntimeSize):
        values.size("n", pool.n)
    values.size("c", pool.c)
    values.size("divisor_override", pool.divisor_override)
    if not isinstance(pool.spatial, tuple) or not 1 <= len(pool.spatial) <= 3:
        raise refusal("in", pool.spatial, "a tuple of 1, 2 or 3 extents")
    tuples = {
        "in": (pool.spatial, 0),
        "filter": (pool.filter, 1),
        "stride": (pool.stride, 1),
        "dilation": (pool.dilation, 1),
        "pad": (pool.pad_lo, 0),
        "pad_hi": (pool.pad_hi, 0),
    }
    for key, (value, at_least) in tuples.items():
        if not isinstance(value, tuple) or len(value) != pool.nd:
            raise refusal(key, value, f"a tuple of {pool.nd}, one for each spatial dimension")
        values.dims(key, value, pool.nd, at_least)


def _check_mode(pool: Pool) -> None:
    if pool.is_max:
        if not pool.count_include_pad:
            raise refusal("count_include_pad", "no", "nothing, because a maximum counts no positions")
        if pool.divisor_override:
            raise refusal("divisor_override", pool.divisor_override, "nothing, because a maximum has no divisor")


def _check_window(pool: Pool) -> None:
    for reach, *pads in zip(pool.reach, pool.pad_lo, pool.pad_hi, strict=True):
        if max(pads) >= reach:
            raise refusal("pad", max(pads), f"less than {reach}, the positions from a window's first to its last")
    if min(pool.out) < 1:
        needed = (max(r - low - high, 0) for r, low, high in zip(pool.reach, pool.pad_lo, pool.pad_hi, strict=True))
        raise refusal("in", pool.spatial, f"at least {joined(tuple(needed))}, so that the window fits once")


def _check_sizes(pool: Pool) -> None:
    for size, low, high in zip(pool.spatial, pool.pad_lo, pool.pad_hi, strict=True):
        if size + low + high >= LIMIT:
            raise refusal("in", pool.spatial, "padded extents below 2^63")
    if isinstance(pool.n, RuntimeSize):
        pool.at(pool.n.bound or pool.n.typical)
        return
    for tensor in (*pool.inputs, *pool.outputs):
        if max(tensor.size, tensor.nbytes) >= LIMIT:
            raise refusal(tensor.name, tensor.shape, "fewer than 2^63 bytes")
    if pool.macs >= LIMIT:
        raise refusal("macs", pool.macs, "fewer than 2^63 positions of windows")
