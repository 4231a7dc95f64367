"""Pooling and batch normalisation as PyTorch's functions, on each of the backends that they have.

The functions take the module `torch` and tensors on any device, so that they are tested on the CPU against the oracle.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from convgen.bench.torch_calls import DTYPES, finished
from convgen.problem import BatchNorm, Epilogue, Pool

Tensors = Mapping[str, Any]
Outputs = tuple[Any, ...]

STATISTICS = ("mean", "var")
"""Inputs that training overwrites with its outputs `running_mean` and `running_var`."""

_OPERATORS = {"cudnn": "cudnn_batch_norm", "aten": "native_batch_norm", "torch": "_batch_norm_impl_index"}
"""The last gives torch.nn.functional.batch_norm its result, and the statistics that this leaves out."""


def backends(problem: Pool | BatchNorm, group: str) -> tuple[str, ...]:
    """What a group of `peers.GROUPS` stands for: cuDNN's kernels and PyTorch's own, or those that PyTorch takes by
    itself. It pools with its own alone."""
    if isinstance(problem, Pool):
        return ("aten",)
    return ("cudnn", "aten") if group == "cudnn" else ("torch",)


def why_not(problem: Pool | BatchNorm, backend: str) -> str | None:
    """Why a backend cannot compute the problem; None if it can."""
    if problem.dtype not in DTYPES:
        return f"PyTorch has no {problem.op} of {problem.dtype} on a GPU"
    if isinstance(problem, BatchNorm):
        return "cuDNN normalises with scale and bias only" if backend == "cudnn" and not problem.affine else None
    reasons = {
        "it pads both sides alike": problem.pad_lo != problem.pad_hi,
        "it pads by half a window at most": any(2 * p > f for p, f in zip(problem.pad_lo, problem.filter, strict=True)),
        "its averages have no dilation": not problem.is_max and set(problem.dilation) != {1},
        "its 1-D averages have no divisor_override": problem.nd == 1 and problem.divisor_override > 0,
    }
    found = [reason for reason, holds in reasons.items() if holds]
    return f"PyTorch's {problem.op} does not do it: {', '.join(found)}" if found else None


def call_of(problem: Pool | BatchNorm, backend: str, torch: Any) -> Callable[[Tensors], Outputs]:
    """What computes the outputs, in the problem's order, from its inputs by name.

    Training's running statistics are the tensors `mean` and `var` themselves, written in place.
    """
    return _pooling(problem, torch) if isinstance(problem, Pool) else _normalisation(problem, backend, torch)


def _pooling(problem: Pool, torch: Any) -> Callable[[Tensors], Outputs]:
    pool = getattr(torch.nn.functional, problem.op)
    options: dict[str, Any] = {"stride": problem.stride, "padding": problem.pad_lo, "ceil_mode": problem.ceil_mode}
    if problem.is_max:
        options["dilation"] = problem.dilation
    else:
        options["count_include_pad"] = problem.count_include_pad
        if problem.divisor_override:
            options["divisor_override"] = problem.divisor_override
    return lambda tensors: (pool(tensors["x"], problem.filter, **options),)


def _normalisation(problem: BatchNorm, backend: str, torch: Any) -> Callable[[Tensors], Outputs]:
    normalise = getattr(torch.ops.aten, _OPERATORS[backend])
    # True: cuDNN where it serves.
    options = (problem.is_training, problem.momentum, problem.eps, *((True,) if backend == "torch" else ()))
    rest = Epilogue(residual=problem.residual, activation=problem.activation, slope=problem.slope)

    def call(tensors: Tensors) -> Outputs:
        operands = (tensors.get(name) for name in ("scale", "bias", *STATISTICS))
        y, *saved = normalise(tensors["x"], *operands, *options)
        running = (tensors[name] for name in STATISTICS if name in tensors)
        outputs = (finished(rest, torch, y, tensors), *saved[:2], *running)
        return outputs[: len(problem.outputs)]

    return call
