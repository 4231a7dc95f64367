"""A convolution as a problem: what to compute, nothing of how."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Self

from convgen.problem import conv_form, conv_rules, values
from convgen.problem.batched import Batched
from convgen.problem.dtype import Accuracy, Direction, DType, Layout, PadMode
from convgen.problem.epilogue import DEFAULT_SLOPE, Epilogue
from convgen.problem.size import RuntimeSize
from convgen.problem.tensor import TensorSpec
from convgen.problem.window_form import layout_of, same_padding

__all__ = ["Conv"]


@dataclass(frozen=True)
class Conv(Batched):
    """A convolution (cross-correlation, as in deep learning) in 1, 2 or 3 spatial dimensions, or its transpose.

    y[n, k, o] = sum over c, f of x[n, c, o * stride + f * dilation - pad_lo] * w[k, c, f], within each group.
    Transposed: y[n, k, i * stride + f * dilation - pad_lo] += x[n, c, i] * w[c, k, f], which is the dgrad of the
    convolution with c and k exchanged; `spatial` is the extent of its own x, `output_padding` lengthens y at the end.

    Spatial tuples are outermost first (D, H, W). `pad_lo` and `pad_hi` are the padding before and after each
    dimension, filled as `pad_mode` says. A sum over nothing (c = 0) is 0, so zero sizes are valid as long as the
    output's spatial extents are at least 1.

    `dtype` is that of the operands (a `uint8` problem has x in uint8 and w in int8), `out_dtype` that of the output.
    `accumulate` adds to what the output holds: output = convert(epilogue(sum) + output).
    `n` may be a RuntimeSize: `inputs`, `outputs`, `macs` and `bytes` then stand for `typical_batch`; `at(n)` fixes it.

    Build one with `Conv.of`, `Conv.parse` or `Conv.from_json`. Raises ProblemError for what means nothing.
    """

    kind: ClassVar[str] = "convolutions"

    n: int | RuntimeSize
    c: int
    k: int
    spatial: tuple[int, ...]
    filter: tuple[int, ...]
    stride: tuple[int, ...]
    pad_lo: tuple[int, ...]
    pad_hi: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    transposed: bool
    output_padding: tuple[int, ...]
    pad_mode: PadMode
    dtype: DType
    out_dtype: DType
    layout: Layout
    direction: Direction
    epilogue: Epilogue
    accumulate: bool
    accuracy: Accuracy

    def __post_init__(self) -> None:
        conv_rules.check(self)

    @classmethod
    def of(
        cls,
        op: str,
        *,
        c: int,
        k: int,
        spatial: int | Sequence[int],
        filter: int | Sequence[int],
        n: int | str | RuntimeSize = 1,
        stride: int | Sequence[int] = 1,
        pad: int | str | Sequence[int | Sequence[int]] = 0,
        pad_mode: str = PadMode.ZEROS,
        dilation: int | Sequence[int] = 1,
        groups: int = 1,
        output_padding: int | Sequence[int] = 0,
        dtype: str = DType.FP32,
        out_dtype: str | None = None,
        layout: str = Layout.CHANNELS_FIRST,
        direction: str = Direction.FPROP,
        epilogue: str | Epilogue = "none",
        slope: float = DEFAULT_SLOPE,
        accumulate: bool = False,
        accuracy: str = Accuracy.STRICT,
    ) -> Self:
        """Build from the values of the text form: `Conv.of("conv2d", c=64, k=128, spatial=56, filter=3, pad=1)`.

        A scalar stands for every spatial dimension. `pad` is p, [p, …], [[lo, hi], …] or "same": an output of
        ceil(in / stride), the odd element of padding at the end, as in TensorFlow, and in PyTorch at stride 1.
        `out_dtype` is that of the operands unless given, fp32 for tf32, int32 for integers. Raises ProblemError.
        """
        nd, transposed = conv_form.split_op(op)
        extents = values.dims("in", spatial, nd, at_least=0)
        taps = values.dims("filter", filter, nd, at_least=1)
        strides = values.dims("stride", stride, nd, at_least=1)
        dilations = values.dims("dilation", dilation, nd, at_least=1)
        if pad == "same" and not transposed:
            low, high = same_padding(extents, taps, strides, dilations)
        else:
            low, high = values.pads("pad", pad, nd)
        kind = values.word("dtype", dtype, DType, conv_rules.DTYPES)
        return cls(
            n=values.runtime_size("n", n),
            c=c,
            k=k,
            spatial=extents,
            filter=taps,
            stride=strides,
            pad_lo=low,
            pad_hi=high,
            dilation=dilations,
            groups=groups,
            transposed=transposed,
            output_padding=values.dims("output_padding", output_padding, nd, at_least=0),
            pad_mode=values.word("pad_mode", pad_mode, PadMode, conv_rules.pad_modes(transposed)),
            dtype=kind,
            out_dtype=kind.default_output
            if out_dtype is None
            else values.word("out_dtype", out_dtype, DType, conv_rules.out_dtypes(kind)),
            layout=layout_of(layout),
            direction=values.direction(direction, conv_rules.DIRECTIONS),
            epilogue=epilogue if isinstance(epilogue, Epilogue) else Epilogue.parse(epilogue, slope),
            accumulate=values.flag("accumulate", accumulate),
            accuracy=values.word("accuracy", accuracy, Accuracy),
        )

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse `conv2d n=32 c=64 in=56x56 k=128 filter=3x3 pad=1 …`. Raises ProblemError."""
        return cls.of(**conv_form.from_text(text))

    @classmethod
    def from_json(cls, entry: Any) -> Self:
        """Build from a decoded JSON object with the keys of the text form. Raises ProblemError."""
        return cls.of(**conv_form.from_json(entry))

    def to_json(self) -> dict[str, Any]:
        """The JSON form, which `from_json` reads back equal."""
        return conv_form.to_json(self)

    def __str__(self) -> str:
        return conv_form.to_text(self)

    # --- shape ---------------------------------------------------------------------------------------

    @property
    def nd(self) -> int:
        """Spatial dimensions: 1, 2 or 3."""
        return len(self.spatial)

    @property
    def layout_name(self) -> str:
        """The layout as the text form prints it: `nhwc`."""
        return self.layout.text(self.nd)

    @property
    def op(self) -> str:
        """The op's name in the text form: `conv2d`, `conv_transpose1d`, …"""
        return f"conv_transpose{self.nd}d" if self.transposed else f"conv{self.nd}d"

    @cached_property
    def out(self) -> tuple[int, ...]:
        """Spatial extents of y, whatever the direction."""
        reach = [d * (f - 1) + 1 for d, f in zip(self.dilation, self.filter, strict=True)]
        padding = [low + high for low, high in zip(self.pad_lo, self.pad_hi, strict=True)]
        if self.transposed:
            return tuple(
                (size - 1) * s - p + r + extra
                for size, s, p, r, extra in zip(
                    self.spatial, self.stride, padding, reach, self.output_padding, strict=True
                )
            )
        return tuple(
            (size + p - r) // s + 1 for size, s, p, r in zip(self.spatial, self.stride, padding, reach, strict=True)
        )

    # --- work ----------------------------------------------------------------------------------------

    @property
    def macs(self) -> int:
        """Multiply-adds, taps in the padding included: the same for every direction."""
        positions = math.prod(self.spatial if self.transposed else self.out)
        return self.typical_batch * self.k * (self.c // self.groups) * math.prod(self.filter) * positions

    @property
    def flops(self) -> int:
        """Two for each multiply-add; the epilogue is not counted."""
        return 2 * self.macs

    @property
    def bytes(self) -> int:
        """Compulsory traffic: every input read once and every output written once (and read, with `accumulate`)."""
        written = sum(tensor.nbytes for tensor in self.outputs)
        return sum(tensor.nbytes for tensor in self.inputs) + written * (2 if self.accumulate else 1)

    # --- tensors -------------------------------------------------------------------------------------

    @cached_property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """fprop: x, w, then the epilogue's operands; dgrad: dy, w; wgrad: dy, x."""
        x, w, y = self._shapes
        operand = self.dtype.storage
        signed = DType.INT8 if operand is DType.UINT8 else operand
        if self.direction is Direction.DGRAD:
            return self._spec("dy", y, signed), self._spec("w", w, signed)
        if self.direction is Direction.WGRAD:
            return self._spec("dy", y, signed), self._spec("x", x, operand)
        extras = {
            "scale": ((self.k,), DType.FP32),
            "shift": ((self.k,), DType.FP32),
            "bias": ((self.k,), DType.FP32 if operand.itemsize == 1 else operand),
            "residual": (y, self.out_dtype),
        }
        fused = (self._spec(name, *extras[name]) for name in self.epilogue.operands)
        return self._spec("x", x, operand), self._spec("w", w, signed), *fused

    @cached_property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """fprop: y; dgrad: dx; wgrad: dw."""
        x, w, y = self._shapes
        name, shape = {Direction.FPROP: ("y", y), Direction.DGRAD: ("dx", x)}.get(self.direction, ("dw", w))
        return (self._spec(name, shape, self.out_dtype),)

    def tensor(self, name: str) -> TensorSpec:
        """The input or output of that name. Raises KeyError."""
        return {spec.name: spec for spec in (*self.inputs, *self.outputs)}[name]

    @property
    def _shapes(self) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        n = self.typical_batch
        first, second = (self.c, self.k) if self.transposed else (self.k, self.c)
        return (n, self.c, *self.spatial), (first, second // self.groups, *self.filter), (n, self.k, *self.out)

    def _spec(self, name: str, shape: tuple[int, ...], dtype: DType) -> TensorSpec:
        return TensorSpec(name, shape, dtype, self.layout)
