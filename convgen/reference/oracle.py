"""The right answer to a convolution, in float64."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy

from convgen.problem import Conv, TensorSpec
from convgen.reference import sampled
from convgen.reference.arrays import Array, Module, quiet
from convgen.reference.correlation import Correlation
from convgen.reference.epilogue import Stage, stages
from convgen.reference.sampled import Indices


@dataclass(frozen=True, slots=True)
class Roles:
    """The tensors that play the fine, the coarse and the filter role of a problem's correlation; one is the output."""

    fine: str
    coarse: str
    filters: str
    output: str

    @classmethod
    def of(cls, problem: Conv) -> Roles:
        output = problem.outputs[0].name
        named = {spec.name.removeprefix("d"): spec.name for spec in (*problem.inputs, *problem.outputs)}
        fine, coarse = ("y", "x") if problem.transposed else ("x", "y")
        return cls(named[fine], named[coarse], named["w"], output)

    @property
    def operands(self) -> tuple[str, str]:
        """The two tensors that are multiplied."""
        first, second = (name for name in (self.fine, self.coarse, self.filters) if name != self.output)
        return first, second


def reference(problem: Conv, inputs: Mapping[str, Array], xp: Module = numpy) -> Array:
    """The output in float64, in logical order: epilogue and accumulation included, conversion to `out_dtype` not.

    `inputs` holds the problem's inputs by name, as arrays of numbers of any dtype in logical order, all NumPy's or all
    CuPy's, whichever `xp` is; with `accumulate` also what the output held before, under the output's name. The batch is
    that of the arrays. The border is a padded tensor's: a zero there meets an infinite filter tap as 0 * inf = NaN.
    Memory: the output in float64, and temporaries of about 1 GiB or what a single image needs.
    """
    return finish(problem, accumulator(problem, inputs, xp), inputs, xp)


def reference_sampled(problem: Conv, inputs: Mapping[str, Array], indices: Indices, xp: Module = numpy) -> Array:
    """The elements of `reference` at flat `indices` of the output (logical order), as a vector of float64."""
    return finish(problem, accumulator(problem, inputs, xp, indices), inputs, xp, indices)


def sample_indices(spec: TensorSpec, count: int, seed: int) -> Indices:
    """About `count` flat indices of an output, sorted, none twice: its corners, then half on edges, half anywhere.

    An index on an edge is first or last along one axis, drawn evenly. All indices if there are no more than `count`.
    """
    if spec.size <= count:
        return numpy.arange(spec.size)
    random = numpy.random.default_rng(seed)
    corners = numpy.array(list(itertools.product(*({0, extent - 1} for extent in spec.shape))))
    drawn = numpy.stack([random.integers(extent, size=count) for extent in spec.shape], axis=1)
    edges = numpy.arange(count // 2)
    axis = random.integers(len(spec.shape), size=edges.size)
    drawn[edges, axis] = random.integers(2, size=edges.size) * (numpy.array(spec.shape)[axis] - 1)
    points = numpy.concatenate([corners, drawn])[:count]
    return numpy.unique(numpy.ravel_multi_index(tuple(points.T), spec.shape))


@quiet
def accumulator(
    problem: Conv, inputs: Mapping[str, Array], xp: Module = numpy, indices: Indices | None = None
) -> Array:
    """The sum of products alone, whole or at flat `indices` of the output."""
    roles = Roles.of(problem)
    left, right = (inputs[name] for name in roles.operands)
    shape = Correlation.of(problem)
    if indices is None:
        whole = {roles.fine: shape.scatter, roles.coarse: shape.correlate, roles.filters: shape.filter_gradient}
        return whole[roles.output](left, right, xp)
    some = {
        roles.fine: sampled.scatter_at,
        roles.coarse: sampled.correlate_at,
        roles.filters: sampled.filter_gradient_at,
    }
    at = numpy.unravel_index(indices, _output_shape(problem, inputs))
    return some[roles.output](shape, at, left, right, xp)


@quiet
def finish(
    problem: Conv, value: Array, inputs: Mapping[str, Array], xp: Module = numpy, indices: Indices | None = None
) -> Array:
    """What follows the accumulator `value`: the epilogue and the accumulation."""
    for stage in finishing(problem, value, inputs, xp, indices):
        value = stage.value
    return value


def finishing(
    problem: Conv, value: Array, inputs: Mapping[str, Array], xp: Module, indices: Indices | None
) -> Iterator[Stage]:
    """The stages of `finish`."""
    fused = _epilogue_operands(problem, inputs, xp, indices)
    for stage in stages(problem.epilogue, value, fused, xp):
        value = stage.value
        yield stage
    if problem.accumulate:
        value = value + _select(inputs[problem.outputs[0].name], indices, xp)
        yield Stage(value, 1.0, value, 1.0)


def _epilogue_operands(
    problem: Conv, inputs: Mapping[str, Array], xp: Module, indices: Indices | None
) -> dict[str, Array]:
    operands = {name: xp.asarray(inputs[name], dtype=xp.float64) for name in problem.epilogue.operands}
    for name, array in operands.items():
        if name == "residual":
            operands[name] = _select(array, indices, xp)
        elif indices is None:
            operands[name] = array.reshape(-1, *(1,) * problem.nd)
        else:
            channel = numpy.unravel_index(indices, _output_shape(problem, inputs))[1]
            operands[name] = array[xp.asarray(channel)]
    return operands


def _select(array: Array, indices: Indices | None, xp: Module) -> Array:
    chosen = array if indices is None else array[tuple(map(xp.asarray, numpy.unravel_index(indices, array.shape)))]
    return xp.asarray(chosen, dtype=xp.float64)


def _output_shape(problem: Conv, inputs: Mapping[str, Array]) -> tuple[int, ...]:
    shape = problem.outputs[0].shape
    if problem.outputs[0].name.endswith("w"):
        return shape
    batch: int = inputs[problem.inputs[0].name].shape[0]
    return (batch, *shape[1:])
