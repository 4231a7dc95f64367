"""What one array of a problem looks like."""

from __future__ import annotations

import math
from dataclasses import dataclass

from convgen.problem.dtype import AttentionLayout, DType, Layout

__all__ = ["TensorSpec"]


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """An input or output: `shape` in logical order, whatever the layout.

    Convolution: N, C, spatial… for x and y; K, C/groups, filter… for w (C, K/groups, filter… when transposed);
    K for vectors. Attention: B, H, S, D. `dtype` is what lies in memory, so never tf32.
    """

    name: str
    shape: tuple[int, ...]
    dtype: DType
    layout: Layout | AttentionLayout

    @property
    def strides(self) -> tuple[int, ...]:
        """Element strides, in logical order, of the dense array in this layout."""
        strides = [1] * len(self.shape)
        step = 1
        for axis in reversed(self.layout.order(len(self.shape))):
            strides[axis] = step
            step *= max(self.shape[axis], 1)
        return tuple(strides)

    @property
    def size(self) -> int:
        """Elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize
