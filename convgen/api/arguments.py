"""A call's arguments, in PyTorch's words, to a problem; what is wrong with them is said in the same words."""

from __future__ import annotations

import marshal
import numbers
import operator
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from convgen.api.layouts import layout_of
from convgen.errors import ProblemError, UsageError
from convgen.problem import Activation, Conv, DType, Epilogue, TensorSpec
from convgen.problem.conv_form import split_op
from convgen.problem.epilogue import DEFAULT_SLOPE
from convgen.problem.values import dims, size
from convgen.problem.window_form import layout_of as layout_named

DTYPES = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
"""Names of array dtypes, and the problem's word for each."""

CONV_DTYPES = DTYPES | {"float8_e4m3fn": "fp8"}
"""Those of convolutions."""

OPERANDS = {"x": "input", "w": "weight", "scale": "scale", "shift": "shift", "bias": "bias", "residual": "residual"}
"""A problem's tensors in its order, and what a call names them."""

EXACT = 2
"""The version of Python's marshal that writes a value, however many refer to it, in one way."""

_BITS = {"uint16": "bfloat16", "uint8": "float8_e4m3fn"}
"""Types of arrays that hold the bits of a type which not every library has."""

_KEYS = {"pad": "padding", "c": "input channels", "k": "weight channels", "macs": "multiply-adds"}


class Options(NamedTuple):
    """A call's arguments that are no arrays, as given."""

    stride: Any
    padding: Any
    output_padding: Any
    dilation: Any
    groups: Any
    layout: Any
    activation: Any
    out_dtype: Any
    accuracy: Any
    workspace_limit: Any


class Described(NamedTuple):
    """What matters of an array; strides count elements."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str

    def check_apart(self, name: str) -> None:
        """Check, of an array that is written, that no two elements are the same memory. Raises UsageError."""
        if any(extent > 1 and not step for extent, step in zip(self.shape, self.strides, strict=True)):
            raise UsageError(f"{name} has stride 0: several of its elements share memory, so it cannot be written")

    def with_batch(self) -> Described:
        """The same memory with a batch of 1 before the other extents."""
        return Described((1, *self.shape), (0, *self.strides), self.dtype)


@dataclass(frozen=True, slots=True)
class Request:
    """A call understood. `shape` and `strides` (elements) are the output's as the caller sees it."""

    problem: Conv
    is_batched: bool
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    workspace_limit: int | None


def request(op: str, input: Described, weight: Described, extras: Collection[str], options: Options) -> Request:
    """The problem of a call; `extras` names the other operands it has ("bias", "residual", …). Options are plain.

    Raises UsageError for arrays that do not fit each other, ProblemError for another argument.
    """
    nd, transposed = split_op(op)
    is_batched = _is_batched(op, nd, input, weight)
    input = input if is_batched else input.with_batch()
    groups = size("groups", options.groups, at_least=1)
    channels, k = _channels(input.shape[1], weight.shape, groups, transposed)
    try:
        problem = Conv.of(
            op,
            n=input.shape[0],
            c=channels,
            k=k,
            spatial=input.shape[2:],
            filter=_filter(weight.shape[2:]),
            stride=dims("stride", options.stride, nd, at_least=1),
            pad=padding_of(options.padding, transposed),
            output_padding=dims("output_padding", options.output_padding, nd, at_least=0),
            dilation=dims("dilation", options.dilation, nd, at_least=1),
            groups=groups,
            dtype=_dtype(input, weight),
            out_dtype=_out_dtype(options.out_dtype),
            layout=layout_of((input.shape, input.strides), (weight.shape, weight.strides), options.layout),
            epilogue=epilogue_of(extras, options.activation),
            accuracy=options.accuracy,
        )
    except ProblemError as error:
        raise _in_the_callers_words(error, is_batched) from error
    [y] = problem.outputs
    limit = options.workspace_limit
    return Request(
        problem=problem,
        is_batched=is_batched,
        shape=y.shape if is_batched else y.shape[1:],
        strides=y.strides if is_batched else y.strides[1:],
        workspace_limit=None if limit is None else size("workspace_limit", limit),
    )


def described_shape(shape: tuple[int, ...], weight: Described, layout: Any) -> Described:
    """An input of that shape which is dense in the given layout, else in the weight's."""
    pair = weight.shape, weight.strides
    order = layout_of(pair, pair, None) if layout is None else layout_named(layout)
    whole = shape if len(shape) == len(weight.shape) else (1, *shape)
    strides = TensorSpec("input", whole, DType.FP32, order).strides
    return Described(shape, strides[len(whole) - len(shape) :], weight.dtype)


def check_extras(wanted: Request, extras: Mapping[str, Described]) -> None:
    """Check the operands beside input and weight, and "out", by name. Raises UsageError."""
    problem = wanted.problem
    specs = {OPERANDS[spec.name]: spec for spec in problem.inputs[2:]} | {"out": problem.outputs[0]}
    for name, array in extras.items():
        spec = specs[name]
        if name == "out":
            array.check_apart(name)
        shape = spec.shape if wanted.is_batched or len(spec.shape) == 1 else spec.shape[1:]
        if array.shape != shape:
            raise UsageError(f"{name} has shape {array.shape}, expected {shape}")
        if CONV_DTYPES.get(array.dtype) != spec.dtype.value:
            wanted_dtype = next(name for name, word in CONV_DTYPES.items() if word == spec.dtype.value)
            is_result = name in ("residual", "out") and array.dtype in CONV_DTYPES
            other = f", or out_dtype={array.dtype!r}" if is_result else ""
            raise UsageError(f"{name} is {array.dtype}, expected {wanted_dtype}{other}")


def check_dtype(name: str, array: Described, known: Collection[str]) -> None:
    """Raise UsageError for a type that is none of these."""
    if array.dtype not in known:
        viewed = _BITS.get(array.dtype)
        hint = f"; bits are to be viewed as {viewed}" if viewed in known else ""
        raise UsageError(f"{name} is {array.dtype}, expected {', '.join(known)}{hint}")


def _is_batched(op: str, nd: int, input: Described, weight: Described) -> bool:
    if len(weight.shape) != nd + 2:
        raise UsageError(f"weight has shape {weight.shape}: {op} takes {nd + 2} dimensions")
    if len(input.shape) not in (nd + 1, nd + 2):
        raise UsageError(f"input has shape {input.shape}: {op} takes {nd + 2} dimensions, or {nd + 1} without a batch")
    return len(input.shape) == nd + 2


def _dtype(input: Described, weight: Described) -> str:
    check_dtype("input", input, CONV_DTYPES)
    if weight.dtype != input.dtype:
        raise UsageError(f"weight is {weight.dtype}, expected {input.dtype} as input is")
    return CONV_DTYPES[input.dtype]


def _out_dtype(given: Any) -> str | None:
    if given is None:
        return None
    if not isinstance(given, str) or given not in CONV_DTYPES:
        raise UsageError(f"out_dtype={given!r}: expected None, as input, or one of {', '.join(CONV_DTYPES)}")
    return CONV_DTYPES[given]


def _channels(channels: int, weight: tuple[int, ...], groups: int, transposed: bool) -> tuple[int, int]:
    """Input and output channels."""
    expected = weight[0] if transposed else weight[1] * groups
    if channels != expected:
        per_group = "" if groups == 1 or transposed else f" ({weight[1]} in each of {groups} groups)"
        raise UsageError(f"input has {channels} channels, weight of shape {weight} takes {expected}{per_group}")
    return channels, weight[1] * groups if transposed else weight[0]


def _filter(extents: tuple[int, ...]) -> tuple[int, ...]:
    if 0 in extents:
        raise UsageError(f"weight has a filter of {'x'.join(map(str, extents))}, expected at least 1 tap a dimension")
    return extents


def padding_of(padding: Any, transposed: bool) -> Any:
    """A call's padding as a problem takes it. Raises ProblemError for a word that is none."""
    if isinstance(padding, str):
        if padding == "valid" and not transposed:
            return 0
        if padding != "same" or transposed:
            words = "" if transposed else ", 'same' or 'valid'"
            raise ProblemError("padding", repr(padding), f"integers, one or one for each spatial dimension{words}")
    return padding


def plain(value: Any) -> Any:
    """Numbers, booleans, words and sequences of any library as Python's own; the rest as it is, to be refused.

    What is Python's own already comes back as the same object.
    """
    if isinstance(value, bool | np.bool_):
        return bool(value)
    if isinstance(value, str):
        return str(value)
    if isinstance(value, tuple | list):
        parts = tuple(map(plain, value))
        return value if type(value) is tuple and all(map(operator.is_, parts, value)) else parts
    try:
        return operator.index(value)
    except TypeError:
        return float(value) if isinstance(value, numbers.Real) else value


def dtype_name(value: Any) -> Any:
    """The name of a dtype of NumPy, CuPy or PyTorch; what is no dtype as it is, to be refused."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, np.dtype) or (isinstance(value, type) and issubclass(value, np.generic)):
        return np.dtype(value).name
    if type(value).__module__ == "torch" and type(value).__name__ == "dtype":
        return str(value).removeprefix("torch.")
    return value


def exact(options: tuple[Any, ...]) -> bytes:
    """What tells options apart, types included, which equality does not: 1.0 and True equal 1, and are no strides.

    Raises ValueError for an option that is no value of Python's own, `plain` or not.
    """
    return marshal.dumps(options, EXACT)


def boolean(name: str, value: Any) -> bool:
    """A plain True or False. Raises UsageError."""
    if isinstance(value, bool):
        return value
    raise UsageError(f"{name}={value!r}: expected True or False")


def epilogue_of(extras: Collection[str], activation: Any) -> Epilogue:
    """The epilogue of a call with those operands. Raises UsageError for an activation that there is not."""
    scale, shift, bias, residual = (name in extras for name in ("scale", "shift", "bias", "residual"))
    name, slope = activation if isinstance(activation, tuple) and len(activation) == 2 else (activation, DEFAULT_SLOPE)
    if name is None:
        return Epilogue(scale, shift, bias, residual)
    words = [word.value for word in Activation if word is not Activation.NONE]
    if name not in words or (name != Activation.LEAKY_RELU and isinstance(activation, tuple)):
        raise UsageError(
            f"activation={activation!r}: expected None, one of {', '.join(words)}, or ('leaky_relu', slope)"
        )
    return Epilogue(scale, shift, bias, residual, Activation(name), slope)


def _in_the_callers_words(error: ProblemError, is_batched: bool) -> ProblemError:
    spatial = {"in": f"input.shape[{2 if is_batched else 1}:]", "filter": "weight.shape[2:]"}
    return ProblemError((_KEYS | spatial).get(error.key, error.key), error.value, error.expected)
