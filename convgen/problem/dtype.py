"""The words a problem is described with: element types, layouts, directions, border modes, accuracy."""

from __future__ import annotations

import enum

__all__ = ["Accuracy", "AttentionLayout", "DType", "Direction", "Layout", "PadMode"]


class DType(enum.StrEnum):
    """An element type. `tf32` is fp32 in memory, rounded to 11 significant bits when it is multiplied;
    `fp8` is e4m3; `int32` occurs only as the output of integer problems."""

    FP32 = "fp32"
    TF32 = "tf32"
    FP16 = "fp16"
    BF16 = "bf16"
    INT8 = "int8"
    UINT8 = "uint8"
    FP8 = "fp8"
    INT32 = "int32"

    @property
    def itemsize(self) -> int:
        """Bytes of one element in memory."""
        return _ITEMSIZE[self]

    @property
    def storage(self) -> DType:
        """The type that lies in memory: fp32 for tf32, else the type itself."""
        return DType.FP32 if self is DType.TF32 else self

    @property
    def default_output(self) -> DType:
        """The output type of a problem with operands of this type: the stored type, int32 for integers."""
        return DType.INT32 if self.is_integer else self.storage

    @property
    def ctype(self) -> str:
        """The CUDA C++ type of one element in memory."""
        return _CTYPE[self]

    @property
    def eps(self) -> float:
        """Unit roundoff: the largest relative error of rounding a normal number to this type; 0 for integers."""
        return _EPS[self]

    @property
    def is_integer(self) -> bool:
        return self in (DType.INT8, DType.UINT8, DType.INT32)


_ITEMSIZE = {
    DType.FP32: 4,
    DType.TF32: 4,
    DType.FP16: 2,
    DType.BF16: 2,
    DType.INT8: 1,
    DType.UINT8: 1,
    DType.FP8: 1,
    DType.INT32: 4,
}
_CTYPE = {
    DType.FP32: "float",
    DType.TF32: "float",
    DType.FP16: "__half",
    DType.BF16: "__nv_bfloat16",
    DType.INT8: "signed char",
    DType.UINT8: "unsigned char",
    DType.FP8: "__nv_fp8_e4m3",
    DType.INT32: "int",
}
_EPS = {
    DType.FP32: 2.0**-24,
    DType.TF32: 2.0**-11,
    DType.FP16: 2.0**-11,
    DType.BF16: 2.0**-8,
    DType.INT8: 0.0,
    DType.UINT8: 0.0,
    DType.FP8: 2.0**-4,
    DType.INT32: 0.0,
}


class Layout(enum.StrEnum):
    """Memory order of a convolution's tensors: N, C, spatial… or N, spatial…, C (filters K, C, … or K, …, C)."""

    CHANNELS_FIRST = "channels_first"
    CHANNELS_LAST = "channels_last"

    def text(self, nd: int) -> str:
        """The usual name for `nd` spatial dimensions: ncl, nchw, ncdhw or nlc, nhwc, ndhwc."""
        spatial = {1: "l", 2: "hw", 3: "dhw"}[nd]
        return f"nc{spatial}" if self is Layout.CHANNELS_FIRST else f"n{spatial}c"

    def order(self, rank: int) -> tuple[int, ...]:
        """The logical axes (N, C, spatial…) in memory order, outermost first."""
        if self is Layout.CHANNELS_LAST and rank > 2:
            return (0, *range(2, rank), 1)
        return tuple(range(rank))


class AttentionLayout(enum.StrEnum):
    """Memory order of attention's (B, H, S, D) tensors."""

    BHSD = "bhsd"
    BSHD = "bshd"

    def order(self, rank: int) -> tuple[int, ...]:
        """The logical axes in memory order, outermost first. Tensors that are not 4-D are in logical order."""
        return (0, 2, 1, 3) if self is AttentionLayout.BSHD and rank == 4 else tuple(range(rank))


class Direction(enum.StrEnum):
    """Which of an operation's tensors is computed.

    A Conv has `fprop` (y from x, w), `dgrad` (dx from dy, w) and `wgrad` (dw from dy, x); an Attention has
    `fprop` and `bprop` (dq, dk, dv together).
    """

    FPROP = "fprop"
    DGRAD = "dgrad"
    WGRAD = "wgrad"
    BPROP = "bprop"


class PadMode(enum.StrEnum):
    """What a tap outside the input reads, named as PyTorch's `padding_mode`."""

    ZEROS = "zeros"
    REFLECT = "reflect"
    REPLICATE = "replicate"
    CIRCULAR = "circular"


class Accuracy(enum.StrEnum):
    """`strict`: the error class of the direct kernel; `fast`: a larger bound, stated by the strategy."""

    STRICT = "strict"
    FAST = "fast"
