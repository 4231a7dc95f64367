"""Pooling and batch normalisation, with the arguments of `torch.nn.functional` in its order."""

from __future__ import annotations

from typing import Any

from convgen.api.arguments import boolean, plain
from convgen.api.functions import DISPATCHER, Activation, Extents, Padding
from convgen.api.layer_arguments import BatchNormOptions, PoolOptions
from convgen.api.layer_dispatch import LayerDispatcher
from convgen.errors import UsageError

LAYERS = LayerDispatcher(DISPATCHER.chooser)


def avg_pool1d(
    input: Any,
    kernel_size: Extents,
    stride: Extents | None = None,
    padding: Padding = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
    *,
    layout: str | None = None,
    out: Any = None,
) -> Any:
    """`avg_pool2d` over one dimension: input (N, C, L) or (C, L)."""
    options = (kernel_size, stride, padding, 1, ceil_mode, count_include_pad, divisor_override)
    return _pooled("avg_pool1d", input, options, layout, out)


def avg_pool2d(
    input: Any,
    kernel_size: Extents,
    stride: Extents | None = None,
    padding: Padding = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
    *,
    layout: str | None = None,
    out: Any = None,
) -> Any:
    """The mean over windows of `input` (N, C, H, W) or (C, H, W), as `torch.nn.functional.avg_pool2d` has it.

    `stride` is `kernel_size` unless given. With `ceil_mode` the output's extents are rounded up, but a window that
    would start behind the input and its padding before is left out. A window's sum is divided by the number of its
    positions in the input and its padding, with `count_include_pad=False` in the input alone, or by `divisor_override`.

    Arrays, `layout`, `padding` and `out` are as `conv2d` takes them; float16 and bfloat16 are summed in fp32. Raises
    as `conv2d` does.
    """
    options = (kernel_size, stride, padding, 1, ceil_mode, count_include_pad, divisor_override)
    return _pooled("avg_pool2d", input, options, layout, out)


def avg_pool3d(
    input: Any,
    kernel_size: Extents,
    stride: Extents | None = None,
    padding: Padding = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
    *,
    layout: str | None = None,
    out: Any = None,
) -> Any:
    """`avg_pool2d` over three dimensions: input (N, C, D, H, W) or (C, D, H, W)."""
    options = (kernel_size, stride, padding, 1, ceil_mode, count_include_pad, divisor_override)
    return _pooled("avg_pool3d", input, options, layout, out)


def max_pool1d(
    input: Any,
    kernel_size: Extents,
    stride: Extents | None = None,
    padding: Padding = 0,
    dilation: Extents = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
    *,
    layout: str | None = None,
    out: Any = None,
) -> Any:
    """`max_pool2d` over one dimension: input (N, C, L) or (C, L)."""
    _refuse_indices(return_indices)
    return _pooled("max_pool1d", input, (kernel_size, stride, padding, dilation, ceil_mode, True, None), layout, out)


def max_pool2d(
    input: Any,
    kernel_size: Extents,
    stride: Extents | None = None,
    padding: Padding = 0,
    dilation: Extents = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
    *,
    layout: str | None = None,
    out: Any = None,
) -> Any:
    """The maximum over windows of `input` (N, C, H, W) or (C, H, W), as `torch.nn.functional.max_pool2d` has it.

    All is as in `avg_pool2d`; `dilation` is the distance between a window's positions. A NaN in a window is its
    maximum. `return_indices` must be False: where the maxima are is not computed.
    """
    _refuse_indices(return_indices)
    return _pooled("max_pool2d", input, (kernel_size, stride, padding, dilation, ceil_mode, True, None), layout, out)


def max_pool3d(
    input: Any,
    kernel_size: Extents,
    stride: Extents | None = None,
    padding: Padding = 0,
    dilation: Extents = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
    *,
    layout: str | None = None,
    out: Any = None,
) -> Any:
    """`max_pool2d` over three dimensions: input (N, C, D, H, W) or (C, D, H, W)."""
    _refuse_indices(return_indices)
    return _pooled("max_pool3d", input, (kernel_size, stride, padding, dilation, ceil_mode, True, None), layout, out)


def batch_norm(
    input: Any,
    running_mean: Any,
    running_var: Any,
    weight: Any = None,
    bias: Any = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
    *,
    residual: Any = None,
    activation: Activation = None,
    layout: str | None = None,
    workspace_limit: int | None = None,
    out: Any = None,
) -> Any:
    """activation((input - mean) / sqrt(var + eps) * weight + bias + residual), channel by channel.

    `input` is (N, C) with up to three spatial dimensions more. Without `training` mean and variance are `running_mean`
    and `running_var`. With it they are the input's own, over all but the channels, and the running ones, where they are
    not None, are updated in place as PyTorch does: (1 - momentum) times their value plus momentum times the batch's,
    whose variance is divided by one less than the count.

    `weight`, `bias`, `running_mean` and `running_var` are float32 (C,) whatever the input's dtype, `residual` and `out`
    are as the input. Arrays, `layout`, `activation` and `workspace_limit` are as in `conv2d`, and so are the errors.
    """
    return LAYERS.call(
        {
            "input": input,
            "running_mean": running_mean,
            "running_var": running_var,
            "weight": weight,
            "bias": bias,
            "residual": residual,
            "out": out,
        },
        BatchNormOptions(training, momentum, eps, activation, layout, workspace_limit),
    )


def _pooled(op: str, input: Any, options: tuple[Any, ...], layout: str | None, out: Any) -> Any:
    return LAYERS.call({"input": input, "out": out}, PoolOptions._make((op, *options, layout, None)))


def _refuse_indices(return_indices: bool) -> None:
    if boolean("return_indices", plain(return_indices)):
        raise UsageError("return_indices=True: where the maxima are is not computed, expected False")
