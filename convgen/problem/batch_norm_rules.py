"""What makes a batch normalisation meaningful: the checks behind `BatchNorm`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from convgen.problem import values
from convgen.problem.batch_norm_words import BatchNormMode
from convgen.problem.dtype import Direction, DType, Layout
from convgen.problem.epilogue import Epilogue
from convgen.problem.size import RuntimeSize
from convgen.problem.text import LIMIT, refusal

if TYPE_CHECKING:
    from convgen.problem.batch_norm import BatchNorm

DIRECTIONS = (Direction.FPROP,)
DTYPES = (DType.FP32, DType.FP16, DType.BF16)
"""Of x, residual and y."""

_TYPES = {
    "mode": BatchNormMode,
    "affine": bool,
    "running": bool,
    "residual": bool,
    "dtype": DType,
    "layout": Layout,
    "direction": Direction,
}


def check(norm: BatchNorm) -> None:
    """Raise ProblemError for the first rule that the batch normalisation breaks."""
    for name, kind in _TYPES.items():
        if not isinstance(getattr(norm, name), kind):
            raise refusal(name, getattr(norm, name), f"a {kind.__name__}")
    if norm.dtype not in DTYPES:
        raise refusal("dtype", norm.dtype, f"one of {', '.join(DTYPES)}")
    if norm.direction not in DIRECTIONS:
        raise refusal("direction", norm.direction, f"{', '.join(DIRECTIONS)}, the only one there is for batch_norm")
    Epilogue(activation=norm.activation, slope=norm.slope)
    if values.number("eps", norm.eps) <= 0:
        raise refusal("eps", norm.eps, "a number above 0, so that a constant channel can be divided by its spread")
    if not 0 <= values.number("momentum", norm.momentum) <= 1:
        raise refusal("momentum", norm.momentum, "a number from 0 to 1, the weight of the batch's own statistics")
    if not norm.running and not norm.is_training:
        raise refusal("running", "no", "yes, because inference normalises by the running statistics")
    _check_sizes(norm)


def _check_sizes(norm: BatchNorm) -> None:
    if not isinstance(norm.spatial, tuple) or len(norm.spatial) > 3:
        raise refusal("in", norm.spatial, "a tuple of at most 3 extents")
    for extent in norm.spatial:
        values.size("in", extent)
    values.size("c", norm.c)
    if isinstance(norm.n, RuntimeSize):
        # The smallest batch that a channel's variance can be taken of may be 2.
        norm.at(norm.n.bound or max(norm.n.typical, 2))
        return
    values.size("n", norm.n)
    for tensor in norm.inputs:
        if max(tensor.size, tensor.nbytes) >= LIMIT:
            raise refusal(tensor.name, tensor.shape, "fewer than 2^63 bytes")
    if norm.macs >= LIMIT:
        raise refusal("macs", norm.macs, "fewer than 2^63 multiply-adds")
    if norm.is_training and norm.count < 2:
        raise refusal("n", norm.n, "at least two values a channel in training, where their variance is taken")
