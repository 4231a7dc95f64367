"""What each type of problem means: where its inputs, its right answers and their bounds are computed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from convgen.errors import NotApplicableError
from convgen.plan import Numerics
from convgen.problem import Attention, BatchNorm, Conv, Pool, Problem
from convgen.reference import attention, batch_norm, convolution, pool
from convgen.reference.arrays import Array, Module
from convgen.reference.inputs import InputKind
from convgen.reference.sampled import Indices

__all__ = ["Definition", "definition_of", "terms"]


class Definition(Protocol):
    """A module of functions for one type of problem. Arrays are float64, in logical order, by tensor name."""

    def make_inputs(self, problem: Any, seed: int, kind: InputKind = ..., xp: Module = ...) -> dict[str, Array]:
        """The inputs, with `accumulate` also what the outputs held before; numbers that their dtypes hold exactly."""

    def reference(self, problem: Any, inputs: Mapping[str, Array], xp: Module = ...) -> dict[str, Array]:
        """Every output."""

    def reference_at(
        self, problem: Any, inputs: Mapping[str, Array], indices: Mapping[str, Indices], xp: Module = ...
    ) -> dict[str, Array]:
        """Outputs at flat indices, without computing the rest."""

    def bound(
        self,
        problem: Any,
        inputs: Mapping[str, Array],
        expected: Mapping[str, Array],
        numerics: Numerics,
        xp: Module = ...,
    ) -> dict[str, Array]:
        """The largest right |got - expected| of every element; 0 where what is expected is not finite."""

    def bound_at(
        self,
        problem: Any,
        inputs: Mapping[str, Array],
        expected: Mapping[str, Array],
        numerics: Numerics,
        indices: Mapping[str, Indices],
        xp: Module = ...,
    ) -> dict[str, Array]:
        """The same at flat indices, for what `reference_at` returned."""


def definition_of(problem: Problem) -> Definition:
    """The definition of a problem's type. Raises NotApplicableError for one that has none yet."""
    if isinstance(problem, Conv):
        return convolution
    if isinstance(problem, Attention):
        return attention
    if isinstance(problem, Pool):
        return pool
    if isinstance(problem, BatchNorm):
        return batch_norm
    raise NotApplicableError(f"{problem.op} is described and validated, but has no oracle yet")


def terms(problem: Problem) -> int:
    """Multiply-adds that an element of the outputs takes, on average; at least 1."""
    return max(problem.macs // max(sum(spec.size for spec in problem.outputs), 1), 1)
