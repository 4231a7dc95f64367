"""Convolutions, by the names that `definition.Definition` gives things."""

from __future__ import annotations

from collections.abc import Mapping

import numpy

from convgen.plan import Numerics
from convgen.problem import Conv
from convgen.reference import bounds, oracle
from convgen.reference.arrays import Array, Module
from convgen.reference.inputs import make_inputs
from convgen.reference.sampled import Indices

__all__ = ["bound", "bound_at", "make_inputs", "reference", "reference_at"]


def reference(problem: Conv, inputs: Mapping[str, Array], xp: Module = numpy) -> dict[str, Array]:
    """See `oracle.reference`."""
    return {problem.outputs[0].name: oracle.reference(problem, inputs, xp)}


def reference_at(
    problem: Conv, inputs: Mapping[str, Array], indices: Mapping[str, Indices], xp: Module = numpy
) -> dict[str, Array]:
    """See `oracle.reference_sampled`."""
    return {name: oracle.reference_sampled(problem, inputs, chosen, xp) for name, chosen in indices.items()}


def bound(
    problem: Conv,
    inputs: Mapping[str, Array],
    expected: Mapping[str, Array],
    numerics: Numerics,
    xp: Module = numpy,
) -> dict[str, Array]:
    """See `bounds.bound`."""
    model = bounds.model_of(problem, numerics)
    return {name: bounds.bound(problem, inputs, values, model, xp) for name, values in expected.items()}


def bound_at(
    problem: Conv,
    inputs: Mapping[str, Array],
    expected: Mapping[str, Array],
    numerics: Numerics,
    indices: Mapping[str, Indices],
    xp: Module = numpy,
) -> dict[str, Array]:
    """See `bounds.bound`."""
    model = bounds.model_of(problem, numerics)
    return {name: bounds.bound(problem, inputs, values, model, xp, indices[name]) for name, values in expected.items()}
