"""A problem as calls of PyTorch: padding where the convolution cannot pad by itself, the convolution, the epilogue.

The functions take the module `torch` and tensors on any device, so that they are tested on the CPU against the oracle.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from convgen.problem import Activation, BatchNorm, Conv, Direction, DType, Epilogue, PadMode, Pool, TensorSpec

Windowed = TypeVar("Windowed", bound=Conv | Pool | BatchNorm)
"""Problems on images."""

Tensors = Mapping[str, Any]
Call = Callable[[Tensors], Any]

DTYPES = {DType.FP32: "float32", DType.FP16: "float16", DType.BF16: "bfloat16"}
"""Element types that PyTorch computes with on a GPU, and what it calls them."""

_PAD_MODES = {PadMode.ZEROS: "constant", PadMode.REFLECT: "reflect", PadMode.REPLICATE: "replicate",
              PadMode.CIRCULAR: "circular"}  # fmt: skip
_OF_HEIGHT_1 = {
    "spatial": 1, "filter": 1, "stride": 1, "pad_lo": 0, "pad_hi": 0, "dilation": 1, "output_padding": 0,
}  # fmt: skip
_PAD_GRADIENTS = {PadMode.REFLECT: "reflection", PadMode.REPLICATE: "replication"}


def why_not(problem: Conv) -> str | None:
    """Why PyTorch cannot compute the problem on a GPU; None if it can."""
    for dtype in (problem.dtype, problem.out_dtype):
        if dtype.storage not in DTYPES:
            return f"PyTorch has no GPU convolution of {dtype}"
    if problem.direction is Direction.DGRAD and problem.pad_mode is PadMode.CIRCULAR:
        return "PyTorch has no call for the dgrad of pad_mode=circular"
    return None


def unsqueezed(problem: Windowed) -> Windowed:
    """A 1-D problem as the 2-D one of height 1, which is the same memory."""
    grown: dict[str, Any] = {
        name: (one, *getattr(problem, name)) for name, one in _OF_HEIGHT_1.items() if hasattr(problem, name)
    }
    return dataclasses.replace(problem, **grown)


def call_of(problem: Conv, torch: Any, like: Callable[[TensorSpec], Any]) -> Call:
    """What computes the output from the problem's inputs by name, and `old`, what `accumulate` adds to.

    `like` makes a tensor from a spec: PyTorch's gradients ask for the tensor that they do not read, for its shape.
    The result may be a view into a larger one, where PyTorch must compute more than is asked for.
    """
    convolve = _convolution(problem, torch, like)
    fused_bias = problem.epilogue.bias and not (problem.epilogue.scale or problem.epilogue.shift)
    rest = dataclasses.replace(problem.epilogue, bias=False) if fused_bias else problem.epilogue
    out = getattr(torch, DTYPES[problem.out_dtype.storage])

    def call(tensors: Tensors) -> Any:
        result = convolve(tensors, tensors["bias"] if fused_bias else None)
        if result.dtype != out:
            result = result.to(out)
        result = finished(rest, torch, result, tensors)
        return result.add_(tensors["old"]) if problem.accumulate else result

    return call


# --- the convolution ----------------------------------------------------------------------------------


def _convolution(problem: Conv, torch: Any, like: Callable[[TensorSpec], Any]) -> Callable[[Tensors, Any], Any]:
    # What PyTorch pads by itself is the same on both sides; the rest is padding (or, transposed, cropping) apart.
    whole = problem.pad_mode is not PadMode.ZEROS or problem.pad_lo != problem.pad_hi
    shared = tuple(map(min, problem.pad_lo, problem.pad_hi))
    inside = shared if problem.transposed or not whole else (0,) * problem.nd
    options = (problem.stride, inside, problem.dilation, problem.transposed, problem.output_padding, problem.groups)
    low, high = ([p - s for p, s in zip(side, inside, strict=True)] for side in (problem.pad_lo, problem.pad_hi))
    aside = any(low) or any(high)

    def pad(tensor: Any, mode: PadMode = problem.pad_mode) -> Any:
        if not aside:
            return tensor
        return torch.nn.functional.pad(tensor, _pairs(low, high), mode=_PAD_MODES[mode])

    def crop(tensor: Any) -> Any:
        for axis, (first, last) in enumerate(zip(low, high, strict=True), start=2):
            tensor = tensor.narrow(axis, first, tensor.shape[axis] - first - last)
        return tensor

    def fprop(tensors: Tensors, bias: Any) -> Any:
        x = tensors["x"] if problem.transposed else pad(tensors["x"])
        y = torch.ops.aten.convolution(x, tensors["w"], bias, *options)
        return crop(y) if problem.transposed and aside else y

    if problem.direction is Direction.FPROP:
        return fprop

    given = {spec.name for spec in problem.inputs}
    padded = not problem.transposed and aside
    x_spec, w_spec = _fprop_spec(problem, "x"), _fprop_spec(problem, "w")
    unread = {}
    if "x" not in given:
        unread["x"] = like(_grown(x_spec, low, high) if padded else x_spec)
    if "w" not in given:
        unread["w"] = like(w_spec)
    gradient = torch.ops.aten.convolution_backward

    def dgrad(tensors: Tensors, bias: Any) -> Any:
        dy = pad(tensors["dy"]) if problem.transposed else tensors["dy"]
        dx = gradient(dy, unread["x"], tensors["w"], None, *options, [True, False, False])[0]
        if not padded:
            return dx
        if problem.pad_mode is PadMode.ZEROS:
            return crop(dx)
        fold = getattr(torch.ops.aten, f"{_PAD_GRADIENTS[problem.pad_mode]}_pad{problem.nd}d_backward")
        return fold(dx, whole_x, _pairs(low, high))

    def wgrad(tensors: Tensors, bias: Any) -> Any:
        dy = pad(tensors["dy"]) if problem.transposed else tensors["dy"]
        x = tensors["x"] if problem.transposed else pad(tensors["x"])
        return gradient(dy, x, unread["w"], None, *options, [False, True, False])[1]

    whole_x = like(x_spec) if padded and problem.direction is Direction.DGRAD else None
    return dgrad if problem.direction is Direction.DGRAD else wgrad


def _fprop_spec(problem: Conv, name: str) -> TensorSpec:
    return dataclasses.replace(problem, direction=Direction.FPROP, accumulate=False).tensor(name)


def _grown(spec: TensorSpec, low: Sequence[int], high: Sequence[int]) -> TensorSpec:
    n, c, *extents = spec.shape
    padded = (extent + first + last for extent, first, last in zip(extents, low, high, strict=True))
    return dataclasses.replace(spec, shape=(n, c, *padded))


def _pairs(low: Sequence[int], high: Sequence[int]) -> list[int]:
    """As PyTorch's pad wants it: the last axis first."""
    return [value for pair in reversed(list(zip(low, high, strict=True))) for value in pair]


# --- the epilogue ---------------------------------------------------------------------------------------


def finished(epilogue: Epilogue, torch: Any, y: Any, tensors: Tensors) -> Any:
    """Elementwise calls behind what gave `y`, in place where PyTorch can."""

    def vector(name: str) -> Any:
        return tensors[name].view(-1, *(1,) * (y.dim() - 2))

    if epilogue.scale and epilogue.shift:
        y = torch.addcmul(vector("shift"), y, vector("scale"), out=y)
    elif epilogue.scale:
        y = y.mul_(vector("scale"))
    elif epilogue.shift:
        y = y.add_(vector("shift"))
    if epilogue.bias:
        y = y.add_(vector("bias"))
    if epilogue.residual:
        y = y.add_(tensors["residual"])
    return _activated(epilogue, torch, y)


def _activated(epilogue: Epilogue, torch: Any, y: Any) -> Any:
    functional = torch.nn.functional
    match epilogue.activation:
        case Activation.RELU:
            return y.relu_()
        case Activation.RELU6:
            return functional.hardtanh(y, 0.0, 6.0, inplace=True)
        case Activation.LEAKY_RELU:
            return functional.leaky_relu(y, epilogue.slope, inplace=True)
        case Activation.HARDSWISH:
            return functional.hardswish(y, inplace=True)
        case Activation.SILU:
            return functional.silu(y, inplace=True)
        case Activation.GELU:
            return functional.gelu(y)
    return y
