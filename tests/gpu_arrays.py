"""CuPy's and PyTorch's arrays alike: a problem's inputs on the GPU, and what came of them held against the oracle."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import pytest

from convgen.api.decision import Decision, predicted
from convgen.bench.judge import admitted
from convgen.problem import Problem, TensorSpec
from convgen.reference import compare, definition_of, encode
from convgen.runtime.physical import flat
from convgen.target import Target


class Predicting:
    """A decider that has no database."""

    def ranked(self, problem: Problem, target: Target) -> tuple[Decision, ...]:
        return predicted(problem, target)

    def tune(self, problem: Problem, target: Target, device: int, **limits: Any) -> None:
        raise AssertionError("nothing here is to be tuned")


class Arrays(Protocol):
    """An array library. Strides count elements."""

    def of(self, spec: TensorSpec, values: Any) -> Any:
        """The values (float64, logical order) rounded to the tensor's type, in its strides; a mask's as bool."""

    def empty(self, spec: TensorSpec) -> Any:
        """An array like the tensor, full of NaN."""

    def host(self, array: Any) -> Any:
        """As NumPy has it; bf16 as its bits."""

    def strides(self, array: Any) -> tuple[int, ...]: ...

    def fill(self, array: Any, values: Any) -> None:
        """Write the values (as `of` takes them) into an array."""


class CupyArrays:
    def __init__(self, cupy: Any) -> None:
        self.cupy = cupy

    def of(self, spec: TensorSpec, values: Any) -> Any:
        elements = self.cupy.asarray(_elements(spec, values))
        if spec.dtype == "bf16":
            elements = elements.view(_bfloat16())
        elif spec.name == "mask":
            elements = elements.view(np.bool_)
        strides = [stride * elements.itemsize for stride in spec.strides]
        return self.cupy.ndarray(spec.shape, elements.dtype, elements.data, strides)

    def empty(self, spec: TensorSpec) -> Any:
        return self.of(spec, np.full(spec.shape, np.nan))

    def host(self, array: Any) -> Any:
        return _bits(array.get())

    def strides(self, array: Any) -> tuple[int, ...]:
        return tuple(stride // array.itemsize for stride in array.strides)

    def fill(self, array: Any, values: Any) -> None:
        array[...] = self.cupy.asarray(values)


class TorchArrays:
    def __init__(self, torch: Any) -> None:
        self.torch = torch

    def of(self, spec: TensorSpec, values: Any) -> Any:
        elements = _elements(spec, values)
        if spec.dtype == "bf16":
            tensor = self.torch.from_numpy(elements.view(np.int16)).cuda().view(self.torch.bfloat16)
        else:
            tensor = self.torch.from_numpy(elements.view(np.bool_) if spec.name == "mask" else elements).cuda()
        return tensor.as_strided(spec.shape, spec.strides)

    def empty(self, spec: TensorSpec) -> Any:
        return self.of(spec, np.full(spec.shape, np.nan))

    def host(self, array: Any) -> Any:
        is_bf16 = array.dtype == self.torch.bfloat16
        return array.view(self.torch.int16).cpu().numpy().view(np.uint16) if is_bf16 else array.cpu().numpy()

    def strides(self, array: Any) -> tuple[int, ...]:
        return tuple(array.stride())

    def fill(self, array: Any, values: Any) -> None:
        array.copy_(self.torch.from_numpy(values))


def inputs_of(problem: Problem, seed: int = 0) -> dict[str, Any]:
    """Float64 values of every input, which their types hold exactly."""
    return dict(definition_of(problem).make_inputs(problem, seed))


def check(problem: Problem, inputs: Mapping[str, Any], got: Mapping[str, Any]) -> None:
    """Hold outputs by name (NumPy arrays) against float64, within the bound of what the problem's dtype admits."""
    definition = definition_of(problem)
    expected = definition.reference(problem, inputs)
    limits = definition.bound(problem, inputs, expected, admitted(problem))
    for name, array in got.items():
        outcome = compare(problem.tensor(name), array, expected[name], limits[name])
        assert outcome.ok, f"{problem}: {outcome.report()}"


def _elements(spec: TensorSpec, values: Any) -> Any:
    return np.ascontiguousarray(flat(spec, np.asarray(encode(values, spec.dtype))))


def _bits(array: Any) -> Any:
    return array.view(np.uint16) if array.dtype.name == "bfloat16" else array


def _bfloat16() -> Any:
    module = pytest.importorskip("ml_dtypes")
    cupy = pytest.importorskip("cupy")
    if int(cupy.__version__.split(".")[0]) < 14:
        pytest.skip("CuPy has bfloat16 from version 14 on")
    return np.dtype(module.bfloat16)
