"""Pooling as a problem: what to compute, nothing of how."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Self

from convgen.problem import pool_form, pool_rules, values
from convgen.problem.batched import Batched
from convgen.problem.dtype import Accuracy, Direction, DType, Layout
from convgen.problem.pool_words import PoolMode
from convgen.problem.size import RuntimeSize
from convgen.problem.tensor import TensorSpec
from convgen.problem.window_form import layout_of, same_padding

__all__ = ["Pool"]


@dataclass(frozen=True)
class Pool(Batched):
    """Average or maximum over a window that slides over 1, 2 or 3 spatial dimensions, channel by channel.

    y[n, c, o] = max, or sum / divisor, over f of x[n, c, o * stride + f * dilation - pad_lo], positions in the padding
    left out. As in PyTorch, whose averages have no dilation, and in ONNX:

    - The output's extent is floor((in + pad_lo + pad_hi - reach) / stride) + 1; reach is dilation * (filter - 1) + 1.
      With `ceil_mode` the quotient is rounded up, but a window that would start at in + pad_lo or later is dropped.
    - The divisor of an average is the number of the window's positions that lie in x or in the padding (`pad_hi` beyond
      x and no further, which matters with `ceil_mode`), or with `count_include_pad` False in x alone; or
      `divisor_override` if that is not 0. A window without a position in x averages to 0.
    - A maximum over a window that holds a NaN is NaN; over one without a position in x it is the lowest number, -inf.

    `n` may be a RuntimeSize: `inputs`, `outputs`, `macs` and `bytes` then stand for `typical_batch`; `at(n)` fixes it.
    Build one with `Pool.of`, `Pool.parse` or `Pool.from_json`. Raises ProblemError for what means nothing.
    """

    kind: ClassVar[str] = "poolings"

    mode: PoolMode
    n: int | RuntimeSize
    c: int
    spatial: tuple[int, ...]
    filter: tuple[int, ...]
    stride: tuple[int, ...]
    pad_lo: tuple[int, ...]
    pad_hi: tuple[int, ...]
    dilation: tuple[int, ...]
    ceil_mode: bool
    count_include_pad: bool
    divisor_override: int
    dtype: DType
    layout: Layout
    direction: Direction

    def __post_init__(self) -> None:
        pool_rules.check(self)

    @classmethod
    def of(
        cls,
        op: str,
        *,
        c: int,
        spatial: int | Sequence[int],
        filter: int | Sequence[int],
        n: int | str | RuntimeSize = 1,
        stride: int | Sequence[int] | None = None,
        pad: int | str | Sequence[int | Sequence[int]] = 0,
        dilation: int | Sequence[int] = 1,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int = 0,
        dtype: str = DType.FP32,
        layout: str = Layout.CHANNELS_FIRST,
        direction: str = Direction.FPROP,
    ) -> Self:
        """Build from the values of the text form: `Pool.of("max_pool2d", c=64, spatial=112, filter=3, stride=2)`.

        A scalar stands for every spatial dimension. `stride` is `filter` unless given. `pad` is as a convolution's,
        "same" included. Raises ProblemError.
        """
        mode, nd = pool_form.split_op(op)
        extents = values.dims("in", spatial, nd, at_least=0)
        taps = values.dims("filter", filter, nd, at_least=1)
        strides = taps if stride is None else values.dims("stride", stride, nd, at_least=1)
        dilations = values.dims("dilation", dilation, nd, at_least=1)
        if pad == "same":
            low, high = same_padding(extents, taps, strides, dilations)
        else:
            low, high = values.pads("pad", pad, nd)
        return cls(
            mode=mode,
            n=values.runtime_size("n", n),
            c=c,
            spatial=extents,
            filter=taps,
            stride=strides,
            pad_lo=low,
            pad_hi=high,
            dilation=dilations,
            ceil_mode=values.flag("ceil_mode", ceil_mode),
            count_include_pad=values.flag("count_include_pad", count_include_pad),
            divisor_override=divisor_override,
            dtype=values.word("dtype", dtype, DType, pool_rules.dtypes(mode)),
            layout=layout_of(layout),
            direction=values.direction(direction, pool_rules.DIRECTIONS),
        )

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse `max_pool2d n=32 c=64 in=112x112 filter=3x3 stride=2 pad=1 …`. Raises ProblemError."""
        return cls.of(**pool_form.from_text(text))

    @classmethod
    def from_json(cls, entry: Any) -> Self:
        """Build from a decoded JSON object with the keys of the text form. Raises ProblemError."""
        return cls.of(**pool_form.from_json(entry))

    def to_json(self) -> dict[str, Any]:
        """The JSON form, which `from_json` reads back equal."""
        return pool_form.to_json(self)

    def __str__(self) -> str:
        return pool_form.to_text(self)

    # --- shape ---------------------------------------------------------------------------------------

    @property
    def nd(self) -> int:
        """Spatial dimensions: 1, 2 or 3."""
        return len(self.spatial)

    @property
    def op(self) -> str:
        """The op's name in the text form: `avg_pool2d`, `max_pool1d`, …"""
        return f"{self.mode}_pool{self.nd}d"

    @property
    def is_max(self) -> bool:
        return self.mode is PoolMode.MAX

    @property
    def reach(self) -> tuple[int, ...]:
        """Positions from a window's first to its last, both included."""
        return tuple(d * (f - 1) + 1 for d, f in zip(self.dilation, self.filter, strict=True))

    @cached_property
    def out(self) -> tuple[int, ...]:
        """Spatial extents of y."""
        axes = zip(self.spatial, self.pad_lo, self.pad_hi, self.reach, self.stride, strict=True)
        return tuple(self._extent(*axis) for axis in axes)

    def _extent(self, size: int, low: int, high: int, reach: int, stride: int) -> int:
        room = size + low + high - reach
        extent = (room + (stride - 1 if self.ceil_mode else 0)) // stride + 1
        return extent - (self.ceil_mode and (extent - 1) * stride >= size + low)

    # --- work ----------------------------------------------------------------------------------------

    @property
    def layout_name(self) -> str:
        """See `protocol.Problem`; likewise what follows."""
        return self.layout.text(self.nd)

    @property
    def out_dtype(self) -> DType:
        return self.dtype

    @property
    def accuracy(self) -> Accuracy:
        return Accuracy.STRICT

    @property
    def accumulate(self) -> bool:
        return False

    @property
    def macs(self) -> int:
        """Positions of all windows, those in the padding included: each is added or compared once."""
        return self.typical_batch * self.c * math.prod(self.out) * math.prod(self.filter)

    @property
    def flops(self) -> int:
        """One for each position of a window."""
        return self.macs

    @property
    def bytes(self) -> int:
        """Compulsory traffic: x read once and y written once."""
        return sum(tensor.nbytes for tensor in (*self.inputs, *self.outputs))

    # --- tensors -------------------------------------------------------------------------------------

    @cached_property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """x alone."""
        return (TensorSpec("x", (self.typical_batch, self.c, *self.spatial), self.dtype, self.layout),)

    @cached_property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """y alone."""
        return (TensorSpec("y", (self.typical_batch, self.c, *self.out), self.dtype, self.layout),)

    def tensor(self, name: str) -> TensorSpec:
        """The input or output of that name. Raises KeyError."""
        return {spec.name: spec for spec in (*self.inputs, *self.outputs)}[name]
