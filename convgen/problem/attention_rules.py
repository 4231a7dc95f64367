"""What makes an attention meaningful: the checks behind `Attention`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from convgen.problem import values
from convgen.problem.attention_words import Align, Bias, Mask, Varlen
from convgen.problem.dtype import Accuracy, AttentionLayout, Direction, DType
from convgen.problem.size import RuntimeSize
from convgen.problem.text import LIMIT, refusal

if TYPE_CHECKING:
    from convgen.problem.attention import Attention

DTYPES = tuple(dtype for dtype in DType if not dtype.is_integer)
OUT_DTYPES = tuple(dtype for dtype in DTYPES if dtype is not DType.TF32)
DIRECTIONS = (Direction.FPROP, Direction.BPROP)

_TYPES = {
    "align": Align,
    "dtype": DType,
    "out_dtype": DType,
    "layout": AttentionLayout,
    "direction": Direction,
    "mask": Mask,
    "bias": Bias,
    "alibi": bool,
    "sink": bool,
    "varlen": Varlen,
    "lse": bool,
    "accuracy": Accuracy,
}


def check(attention: Attention) -> None:
    """Raise ProblemError for the first rule that the attention breaks."""
    _check_fields(attention)
    _check_options(attention)
    _check_sizes(attention)


def _check_fields(attention: Attention) -> None:
    for name, kind in _TYPES.items():
        if not isinstance(getattr(attention, name), kind):
            raise refusal(name, getattr(attention, name), f"a {kind.__name__}")
    for name in ("batch", "seq_q", "seq_kv"):
        if not isinstance(getattr(attention, name), RuntimeSize):
            values.size(name, getattr(attention, name))
    for name in ("heads_q", "heads_kv", "head_dim", "head_dim_v"):
        values.size(name, getattr(attention, name), at_least=1)
    values.size("paged", attention.paged)
    window = attention.window
    if not isinstance(window, tuple) or len(window) != 2:
        raise refusal("window", window, "a pair: left, right")
    for side in window:
        if side is not None:
            values.size("window", side)
    values.number("scale", attention.scale)
    if values.number("softcap", attention.softcap) < 0:
        raise refusal("softcap", attention.softcap, "a positive number, or 0 for none")


def _check_options(attention: Attention) -> None:
    if attention.heads_q % attention.heads_kv:
        raise refusal("heads_kv", attention.heads_kv, f"a divisor of heads_q={attention.heads_q}")
    if attention.align is Align.TOP_LEFT and attention.window == (None, None) and not attention.alibi:
        raise refusal("align", attention.align, "causal, a window or alibi with it, because nothing else depends on it")
    if attention.dtype not in DTYPES:
        raise refusal("dtype", attention.dtype, f"one of {', '.join(DTYPES)}")
    if attention.out_dtype not in OUT_DTYPES:
        raise refusal("out_dtype", attention.out_dtype, f"one of {', '.join(OUT_DTYPES)}")
    if attention.direction not in DIRECTIONS:
        raise refusal("direction", attention.direction, f"one of {', '.join(DIRECTIONS)}")
    if attention.direction is Direction.BPROP and attention.lse:
        raise refusal("lse", "yes", "no, because bprop reads the logsumexp and does not write it")
    if attention.direction is Direction.BPROP and attention.paged:
        raise refusal("paged", attention.paged, "0, because a paged cache is read-only")


def _check_sizes(attention: Attention) -> None:
    sizes = {name: getattr(attention, name) for name in ("batch", "seq_q", "seq_kv")}
    runtime = {name: size for name, size in sizes.items() if isinstance(size, RuntimeSize)}
    if runtime:
        attention.at(**{name: size.bound or size.typical for name, size in runtime.items()})
        return
    for tensor in (*attention.inputs, *attention.outputs):
        if max(tensor.size, tensor.nbytes) >= LIMIT:
            raise refusal(tensor.name, tensor.shape, "fewer than 2^63 bytes")
    if attention.macs >= LIMIT:
        raise refusal("macs", attention.macs, "fewer than 2^63 multiply-adds")
