"""What a signature is bound to: each takes a call's operands and returns its output."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, Protocol

from convgen.api.arguments import OPERANDS, Described, Request
from convgen.api.operands import Operand
from convgen.errors import UsageError
from convgen.problem import Conv
from convgen.runtime.bound import BoundCall
from convgen.runtime.cuda import CudaProgram
from convgen.runtime.driver import ActiveContext
from convgen.runtime.prepared import PreparedWeights
from convgen.runtime.sized import Tensor

Operands = tuple[Any, ...]
"""Input, weight, scale, shift, bias, residual, out; None for what a call has not, and for a prepared weight."""

NAMES = (*OPERANDS.values(), "out")
WEIGHT = NAMES.index("weight")
OUT = len(NAMES) - 1
WITH_BATCH = (0, NAMES.index("residual"), OUT)


class Entry(Protocol):
    """A bound call. May be called from several threads."""

    problem: Conv

    def __call__(self, operands: Operands) -> Any: ...


class OnGpu:
    """A program on the arrays of a GPU library: by the short way where that is open, else by `CudaProgram.run`."""

    __slots__ = (
        "_arrays",
        "_bound",
        "_device",
        "_is_batched",
        "_make",
        "_needs_no_grad",
        "_prepared",
        "_program",
        "_weight",
        "problem",
    )

    def __init__(
        self,
        wanted: Request,
        program: CudaProgram,
        make: Callable[[Any], Any],
        device: int,
        operands: Operands,
        bound: BoundCall | None = None,
        prepared: PreparedWeights | None = None,
        weight: Any = None,
    ) -> None:
        """`make` returns a new output, given the input; `operands` are an example; `weight` stands for a prepared one
        that has nothing prepared."""
        self.problem = wanted.problem
        self._is_batched = wanted.is_batched
        self._program = program
        self._make = make
        self._device = device
        self._bound = bound
        self._prepared = prepared
        self._weight = weight
        self._arrays = _picker([i for i, array in enumerate(operands[:OUT]) if array is not None])
        self._needs_no_grad = requires_grad(operands)

    def __call__(self, operands: Operands) -> Any:
        if self._needs_no_grad:
            refuse_grad(operands)
        if self._bound is not None:
            y = self._bound(self._arrays(operands), operands[OUT])
            if y is not None:
                return y
        return self._run(operands)

    def _run(self, operands: Operands) -> Any:
        out = operands[OUT]
        if out is None:
            with ActiveContext(self._device):
                out = self._make(operands[0])
        weight = operands[WEIGHT] if self._weight is None else self._weight
        operands = (operands[0], weight, *operands[WEIGHT + 1 : OUT], out)
        if not self._is_batched:
            operands = tuple(
                array[None] if array is not None and i in WITH_BATCH else array for i, array in enumerate(operands)
            )
        inputs = {name: array for name, array in zip(OPERANDS, operands, strict=False) if array is not None}
        self._program.run(inputs, {"y": operands[OUT]}, prepared=self._prepared)
        return out


class Empty:
    """An output without elements: nothing is computed."""

    __slots__ = ("_device", "_make", "_needs_no_grad", "problem")

    def __init__(self, wanted: Request, make: Callable[[Any], Any], device: int, operands: Operands) -> None:
        self.problem = wanted.problem
        self._make = make
        self._device = device
        self._needs_no_grad = requires_grad(operands)

    def __call__(self, operands: Operands) -> Any:
        if self._needs_no_grad:
            refuse_grad(operands)
        if operands[OUT] is not None:
            return operands[OUT]
        with ActiveContext(self._device):
            return self._make(operands[0])


def bind(
    wanted: Request,
    program: CudaProgram,
    make: Callable[[Any], Any],
    operands: Sequence[Operand],
    prepared: PreparedWeights | None,
) -> BoundCall | None:
    """The short way through the program for arrays like these, in the order of NAMES. None if there is none: a step
    needs a texture, an array must be copied first, or several libraries are involved."""
    sizes = wanted.problem.sizes
    sized = program.sized(sizes)
    tensors = {OPERANDS[t.name]: t for t in sized.inputs} | {"out": sized.outputs[0]}
    library, device = operands[0].library, operands[0].device
    if library is None or program.textures:
        return None
    for other in operands:
        whole = other.described if len(other.described.shape) != wanted.problem.nd + 1 else other.described.with_batch()
        if other.library is not library or not _is_dense(tensors[other.name], whole):
            return None
    return BoundCall(program, library, device, sizes, make, prepared)


def requires_grad(operands: Operands) -> bool:
    return any(getattr(array, "requires_grad", False) for array in operands)


def refuse_grad(arrays: Operands, names: Sequence[str] = NAMES) -> None:
    """Raise UsageError if PyTorch would want a gradient of a call with these arrays."""
    wanting = [name for name, array in zip(names, arrays, strict=True) if getattr(array, "requires_grad", False)]
    if wanting and sys.modules["torch"].is_grad_enabled():
        raise UsageError(
            f"{', '.join(wanting)} requires grad, and there are no kernels for the backward pass yet: "
            f"call under torch.no_grad(), or pass {', '.join(f'{name}.detach()' for name in wanting)}"
        )


def _picker(indices: list[int]) -> Callable[[Operands], tuple[Any, ...]]:
    if len(indices) == 1:
        [index] = indices
        return lambda operands: (operands[index],)
    return itemgetter(*indices)


def _is_dense(tensor: Tensor, array: Described) -> bool:
    return not tensor.nbytes or all(
        extent == 1 or stride == want
        for extent, stride, want in zip(array.shape, array.strides, tensor.strides, strict=True)
    )
