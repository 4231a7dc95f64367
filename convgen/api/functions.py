"""The convolutions and attention, with the arguments of `torch.nn.functional` in its order, and `prepare`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from convgen.api.arguments import CONV_DTYPES, boolean, check_dtype, dtype_name, plain
from convgen.api.attention import AttentionDispatcher
from convgen.api.attention_arguments import Options as AttentionOptions
from convgen.api.dispatch import Dispatcher
from convgen.api.operands import operand
from convgen.api.prepared import PreparedWeight
from convgen.api.tuned import connect
from convgen.errors import UsageError

Extents = int | Sequence[int]
"""One integer for every spatial dimension, or one for each."""

Padding = int | str | Sequence[int | Sequence[int]]
"""As Extents, a pair (before, after) for a dimension, "same" or "valid"."""

Activation = str | tuple[str, float] | None

DISPATCHER = Dispatcher(connect)
ATTENTION = AttentionDispatcher(DISPATCHER.chooser)


def conv1d(
    input: Any,
    weight: Any,
    bias: Any = None,
    stride: Extents = 1,
    padding: Padding = 0,
    dilation: Extents = 1,
    groups: int = 1,
    *,
    layout: str | None = None,
    scale: Any = None,
    shift: Any = None,
    residual: Any = None,
    activation: Activation = None,
    out_dtype: Any = None,
    accuracy: str = "strict",
    workspace_limit: int | None = None,
    out: Any = None,
) -> Any:
    """`conv2d` over one dimension: input (N, C, L) or (C, L), weight (K, C/groups, filter)."""
    return DISPATCHER.call(
        "conv1d",
        (input, weight, scale, shift, bias, residual, out),
        (stride, padding, 0, dilation, groups, layout, activation, dtype_name(out_dtype), accuracy, workspace_limit),
    )


def conv2d(
    input: Any,
    weight: Any,
    bias: Any = None,
    stride: Extents = 1,
    padding: Padding = 0,
    dilation: Extents = 1,
    groups: int = 1,
    *,
    layout: str | None = None,
    scale: Any = None,
    shift: Any = None,
    residual: Any = None,
    activation: Activation = None,
    out_dtype: Any = None,
    accuracy: str = "strict",
    workspace_limit: int | None = None,
    out: Any = None,
) -> Any:
    """activation(conv(input, weight) * scale + shift + bias + residual), each part but the convolution optional.

    Arrays are CUDA tensors of PyTorch, CuPy arrays, what CuPy can wrap, or NumPy's, which are computed on the GPU if
    there is one, else in the simulator with a warning. The work is put on the library's current stream; nothing waits
    for it (but NumPy). Each is float32, float16, bfloat16 or float8_e4m3fn:

    - `input` (N, C, H, W), or (C, H, W) for one image; `weight` (K, C/groups, R, S) of its dtype, or what `prepare`
      made of one;
    - `bias` (K,) of the input's dtype, float32 for float8_e4m3fn; `scale` and `shift` (K,) float32; `residual` and
      `out` as the output. The output is `out`, which is overwritten, or a new array of the input's library,
      (N, K, P, Q) or (K, P, Q), of `out_dtype`: a dtype or its name, the input's unless given.

    All are summed in fp32, and float32 is multiplied in fp32 but for `accuracy="fast"`. float8_e4m3fn is computed on
    Hopper, by tensor cores that add at most 128 products with 13 bits; results of that type saturate at 448, and
    `scale` takes the factors that operands and results are scaled by. The layout is read from the strides of `input`
    (`torch.channels_last` is one) and is the output's; arrays in another layout, and strided views, are copied first.
    `layout` ("nchw", "nhwc", …) settles what strides leave open: a single channel, a single position, a strided view.

    `padding` is an integer, one for each dimension, a pair (before, after) for a dimension, "valid", or "same": an
    output of ceil(extent / stride), the odd element of padding after. `activation` is "relu", "relu6", "gelu" (exact),
    "silu", "hardswish", "leaky_relu", or ("leaky_relu", slope). `accuracy="fast"` admits kernels with a larger stated
    error, which for float32 may round `input` and `weight` to TF32 (11 significant bits) before they are multiplied.
    `workspace_limit`, in bytes, passes over kernels that need more temporary memory.

    Which kernel runs is a matter of `tuning`. May be captured in a CUDA graph. Raises UsageError and ProblemError for
    arguments that do not fit, also for a tensor that requires grad, since there are no backward kernels yet;
    NotApplicableError where no kernel applies; DeviceError for what CUDA refuses.
    """
    return DISPATCHER.call(
        "conv2d",
        (input, weight, scale, shift, bias, residual, out),
        (stride, padding, 0, dilation, groups, layout, activation, dtype_name(out_dtype), accuracy, workspace_limit),
    )


def conv3d(
    input: Any,
    weight: Any,
    bias: Any = None,
    stride: Extents = 1,
    padding: Padding = 0,
    dilation: Extents = 1,
    groups: int = 1,
    *,
    layout: str | None = None,
    scale: Any = None,
    shift: Any = None,
    residual: Any = None,
    activation: Activation = None,
    out_dtype: Any = None,
    accuracy: str = "strict",
    workspace_limit: int | None = None,
    out: Any = None,
) -> Any:
    """`conv2d` over three dimensions: input (N, C, D, H, W) or (C, D, H, W), weight (K, C/groups, T, R, S)."""
    return DISPATCHER.call(
        "conv3d",
        (input, weight, scale, shift, bias, residual, out),
        (stride, padding, 0, dilation, groups, layout, activation, dtype_name(out_dtype), accuracy, workspace_limit),
    )


def conv_transpose1d(
    input: Any,
    weight: Any,
    bias: Any = None,
    stride: Extents = 1,
    padding: Padding = 0,
    output_padding: Extents = 0,
    groups: int = 1,
    dilation: Extents = 1,
    *,
    layout: str | None = None,
    scale: Any = None,
    shift: Any = None,
    residual: Any = None,
    activation: Activation = None,
    out_dtype: Any = None,
    accuracy: str = "strict",
    workspace_limit: int | None = None,
    out: Any = None,
) -> Any:
    """`conv_transpose2d` over one dimension: input (N, C, L) or (C, L), weight (C, K/groups, filter)."""
    return DISPATCHER.call(
        "conv_transpose1d",
        (input, weight, scale, shift, bias, residual, out),
        (
            stride,
            padding,
            output_padding,
            dilation,
            groups,
            layout,
            activation,
            dtype_name(out_dtype),
            accuracy,
            workspace_limit,
        ),
    )


def conv_transpose2d(
    input: Any,
    weight: Any,
    bias: Any = None,
    stride: Extents = 1,
    padding: Padding = 0,
    output_padding: Extents = 0,
    groups: int = 1,
    dilation: Extents = 1,
    *,
    layout: str | None = None,
    scale: Any = None,
    shift: Any = None,
    residual: Any = None,
    activation: Activation = None,
    out_dtype: Any = None,
    accuracy: str = "strict",
    workspace_limit: int | None = None,
    out: Any = None,
) -> Any:
    """The transposed convolution, with all that `conv2d` says of its arguments.

    `weight` is (C, K/groups, R, S). The output extent is (extent - 1) * stride - padding before and after +
    dilation * (filter - 1) + 1 + output_padding; `output_padding` is less than the larger of stride and dilation.
    """
    return DISPATCHER.call(
        "conv_transpose2d",
        (input, weight, scale, shift, bias, residual, out),
        (
            stride,
            padding,
            output_padding,
            dilation,
            groups,
            layout,
            activation,
            dtype_name(out_dtype),
            accuracy,
            workspace_limit,
        ),
    )


def conv_transpose3d(
    input: Any,
    weight: Any,
    bias: Any = None,
    stride: Extents = 1,
    padding: Padding = 0,
    output_padding: Extents = 0,
    groups: int = 1,
    dilation: Extents = 1,
    *,
    layout: str | None = None,
    scale: Any = None,
    shift: Any = None,
    residual: Any = None,
    activation: Activation = None,
    out_dtype: Any = None,
    accuracy: str = "strict",
    workspace_limit: int | None = None,
    out: Any = None,
) -> Any:
    """`conv_transpose2d` over three dimensions: input (N, C, D, H, W) or without N, weight (C, K/groups, T, R, S)."""
    return DISPATCHER.call(
        "conv_transpose3d",
        (input, weight, scale, shift, bias, residual, out),
        (
            stride,
            padding,
            output_padding,
            dilation,
            groups,
            layout,
            activation,
            dtype_name(out_dtype),
            accuracy,
            workspace_limit,
        ),
    )


def scaled_dot_product_attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    window: Sequence[int | None] | None = None,
    align: str = "top_left",
    softcap: float = 0.0,
    alibi_slopes: Any = None,
    sink: Any = None,
    return_lse: bool = False,
    accuracy: str = "strict",
    workspace_limit: int | None = None,
    out: Any = None,
) -> Any:
    """softmax(query key^T * scale + attn_mask) value, with the arguments of `torch.nn.functional`, and more.

    Arrays are as `conv2d` takes them: float32, float16 or bfloat16, all of one dtype but where said.

    - `query` (B, H, L, E), `key` (B, H, S, E), `value` (B, H, S, Ev); without H, or without B and H. Strides are free;
      dense (B, H, S, E) and (B, S, H, E) memory is read as it lies, anything else is copied first.
    - `enable_gqa`: key and value may have fewer heads, a divisor of query's.
    - `attn_mask` broadcasts to (B, H, L, S): bool, True where a query sees a key; or query's dtype, added to the
      scores. With `is_causal` and `window` a key must be seen by all.
    - `is_causal` hides keys behind the diagonal; `window` (left, right) those farther before and after it, None for no
      limit. The diagonal of query i is key i, or with `align="bottom_right"` key i + S - L, as decoding with a cache
      needs it.
    - `scale` is 1 / sqrt(E) unless given. `softcap` c > 0: scores become c * tanh(score / c) before anything is added.
    - `alibi_slopes` (H,) float32: -slope * distance from the diagonal is added. `sink` (H,) float32: a score that joins
      each softmax's sum and has no value.
    - `dropout_p` must be 0.

    Returns (B, H, L, Ev) in query's layout and dtype, in `out` if given; with `return_lse` also the natural logarithm
    of each row's sum of exponentials, (B, H, L) float32. A row that sees no key is 0, its logarithm -inf. With up to 16
    queries one kernel serves any number of keys, and is chosen anew when they are four times as many.

    Sums are fp32; for float16 and bfloat16 weights are rounded to that type before they are multiplied with `value`.
    `value` has to be finite where keys are hidden. Raises as `conv2d` does.
    """
    return ATTENTION.call(
        {
            "query": query,
            "key": key,
            "value": value,
            "attn_mask": attn_mask,
            "alibi_slopes": alibi_slopes,
            "sink": sink,
            "out": out,
        },
        AttentionOptions(
            dropout_p,
            is_causal,
            scale,
            enable_gqa,
            window,
            align,
            softcap,
            return_lse,
            accuracy,
            workspace_limit,
        ),
    )


def prepare(
    weight: Any,
    input: Any = None,
    bias: Any = None,
    stride: Extents = 1,
    padding: Padding = 0,
    dilation: Extents = 1,
    groups: int = 1,
    *,
    transposed: bool = False,
    output_padding: Extents = 0,
    layout: str | None = None,
    scale: Any = None,
    shift: Any = None,
    residual: Any = None,
    activation: Activation = None,
    out_dtype: Any = None,
    accuracy: str = "strict",
    workspace_limit: int | None = None,
) -> PreparedWeight:
    """Declare a weight constant, so that what depends on it alone is computed once for each problem and kept.

    What is returned stands for `weight` in any convolution, stream, thread or CUDA graph. With `input`, an example or
    its shape, and the arguments of the calls to come, the work is done at once (`bias`, `scale`, `shift` and `residual`
    only count as given or not: True will do); without, at the first call of each problem. While a graph is captured
    nothing is prepared: a weight not prepared before is then used like any other.

    The weight must not be written afterwards. Its `requires_grad` does not matter. Raises as the convolutions do.
    """
    if isinstance(weight, PreparedWeight):
        raise UsageError(f"weight is {weight!r}, prepared already: pass it to the convolutions as it is")
    is_transposed = boolean("transposed", plain(transposed))
    given = operand("weight", weight)
    check_dtype("weight", given.described, CONV_DTYPES)
    prepared = PreparedWeight(given.array)
    if not 3 <= len(prepared.shape) <= 5:
        raise UsageError(f"weight has shape {prepared.shape}: expected 3, 4 or 5 dimensions")
    if input is not None:
        extras = {"bias": bias, "scale": scale, "shift": shift, "residual": residual}
        DISPATCHER.prepare(
            f"conv{'_transpose' if is_transposed else ''}{len(prepared.shape) - 2}d",
            prepared,
            input,
            [name for name, value in extras.items() if value is not None and not _is_false(value)],
            (
                stride,
                padding,
                output_padding,
                dilation,
                groups,
                layout,
                activation,
                dtype_name(out_dtype),
                accuracy,
                workspace_limit,
            ),
        )
    return prepared


def _is_false(value: Any) -> bool:
    return isinstance(value, bool | np.bool_) and not value


def decisions() -> str:
    """The decisions that calls took in this process, as JSON text: what `tuning("frozen", decisions=…)` is served from.

    Sorted, so that equal decisions give equal text.
    """
    return DISPATCHER.decisions()
