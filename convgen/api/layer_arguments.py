"""The arguments of pooling and batch normalisation calls, in PyTorch's words, to a problem."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from convgen.api.arguments import DTYPES, Described, boolean, check_dtype, epilogue_of, padding_of
from convgen.api.layouts import layout_of
from convgen.errors import ProblemError, UsageError
from convgen.problem import BatchNorm, Layout, Pool
from convgen.problem.pool_form import split_op
from convgen.problem.values import dims, size

TENSORS = {
    "input": "x",
    "weight": "scale",
    "bias": "bias",
    "running_mean": "mean",
    "running_var": "var",
    "residual": "residual",
}
"""A call's arrays, and the problem's names of them."""

UPDATED = ("running_mean", "running_var")
"""Arrays that training writes, which are outputs of the same names too."""


class PoolOptions(NamedTuple):
    """A pooling call's arguments that are no arrays, as given."""

    op: str
    kernel_size: Any
    stride: Any
    padding: Any
    dilation: Any
    ceil_mode: Any
    count_include_pad: Any
    divisor_override: Any
    layout: Any
    workspace_limit: Any


class BatchNormOptions(NamedTuple):
    """A batch normalisation call's arguments that are no arrays, as given."""

    training: Any
    momentum: Any
    eps: Any
    activation: Any
    layout: Any
    workspace_limit: Any


Options = PoolOptions | BatchNormOptions


@dataclass(frozen=True, slots=True)
class Request:
    """A call understood. `is_batched`: the caller's arrays have a batch, as the problem's have."""

    problem: Pool | BatchNorm
    is_batched: bool
    workspace_limit: int | None

    @property
    def written(self) -> tuple[str, ...]:
        """Of the call's arrays, those that are outputs of the same name."""
        names = {spec.name for spec in self.problem.outputs}
        return tuple(name for name in UPDATED if name in names)


def request(arrays: Mapping[str, Described], options: Options) -> Request:
    """The problem of a call with these arrays by name and plain options. Raises UsageError, ProblemError."""
    check_dtype("input", arrays["input"], DTYPES)
    wanted = _pooling(arrays, options) if isinstance(options, PoolOptions) else _normalisation(arrays, options)
    _check_arrays(wanted, arrays)
    return wanted


def _pooling(arrays: Mapping[str, Described], options: PoolOptions) -> Request:
    nd = split_op(options.op)[1]
    input = arrays["input"]
    if len(input.shape) not in (nd + 1, nd + 2):
        raise UsageError(
            f"input has shape {input.shape}: {options.op} takes {nd + 2} dimensions, or {nd + 1} without a batch"
        )
    is_batched = len(input.shape) == nd + 2
    input = input if is_batched else input.with_batch()
    taps = dims("kernel_size", options.kernel_size, nd, at_least=1)
    stride, divisor = options.stride, options.divisor_override
    try:
        problem = Pool.of(
            options.op,
            n=input.shape[0],
            c=input.shape[1],
            spatial=input.shape[2:],
            filter=taps,
            stride=None if stride is None or stride == () else dims("stride", stride, nd, at_least=1),
            pad=padding_of(options.padding, transposed=False),
            dilation=dims("dilation", options.dilation, nd, at_least=1),
            ceil_mode=boolean("ceil_mode", options.ceil_mode),
            count_include_pad=boolean("count_include_pad", options.count_include_pad),
            divisor_override=0 if divisor is None else size("divisor_override", divisor, at_least=1),
            dtype=DTYPES[input.dtype],
            layout=_layout(input, options.layout),
        )
    except ProblemError as error:
        words = {"pad": "padding", "filter": "kernel_size", "in": f"input.shape[{2 if is_batched else 1}:]"}
        raise ProblemError(words.get(error.key, error.key), error.value, error.expected) from error
    return Request(problem, is_batched, _limit(options.workspace_limit))


def _normalisation(arrays: Mapping[str, Described], options: BatchNormOptions) -> Request:
    input = arrays["input"]
    if not 2 <= len(input.shape) <= 5:
        raise UsageError(f"input has shape {input.shape}: batch_norm takes (N, C) and up to 3 spatial dimensions")
    training = boolean("training", options.training)
    for pair in (("weight", "bias"), UPDATED):
        if len(given := [name for name in pair if name in arrays]) == 1:
            raise UsageError(f"{given[0]} without {(set(pair) - set(given)).pop()}: expected both or neither")
    if not training and "running_mean" not in arrays:
        raise UsageError("running_mean is None: expected an array, since without training=True it is what normalises")
    if options.momentum is None:
        raise UsageError("momentum is None, a cumulative average: expected a number, as 1 / (batches so far + 1)")
    epilogue = epilogue_of((), options.activation)
    try:
        problem = BatchNorm.of(
            n=input.shape[0],
            c=input.shape[1],
            spatial=input.shape[2:],
            mode="training" if training else "inference",
            eps=options.eps,
            momentum=options.momentum,
            affine="weight" in arrays,
            running="running_mean" in arrays,
            residual="residual" in arrays,
            activation=epilogue.activation,
            slope=epilogue.slope,
            dtype=DTYPES[input.dtype],
            layout=_layout(input, options.layout),
        )
    except ProblemError as error:
        words = {"n": "input.shape[0]", "in": "input.shape[2:]"}
        raise ProblemError(words.get(error.key, error.key), error.value, error.expected) from error
    return Request(problem, True, _limit(options.workspace_limit))


def _check_arrays(wanted: Request, arrays: Mapping[str, Described]) -> None:
    problem = wanted.problem
    specs = {name: problem.tensor(TENSORS[name]) for name in arrays if name in TENSORS}
    specs |= {"out": problem.outputs[0]} if "out" in arrays else {}
    for name, spec in specs.items():
        array = arrays[name]
        shape = spec.shape if wanted.is_batched or len(spec.shape) == 1 else spec.shape[1:]
        if array.shape != shape:
            raise UsageError(f"{name} has shape {array.shape}, expected {shape}")
        expected = next(word for word, dtype in DTYPES.items() if dtype == spec.dtype.value)
        if array.dtype != expected:
            raise UsageError(f"{name} is {array.dtype}, expected {expected}")
        if name == "out" or name in wanted.written:
            array.check_apart(name)


def _layout(input: Described, given: Any) -> Layout:
    pair = input.shape, input.strides
    return layout_of(pair, pair, given)


def _limit(limit: Any) -> int | None:
    return None if limit is None else size("workspace_limit", limit)
