"""Is an answer right? The same question for ours and for every peer, put to the same numbers."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from convgen.problem import Conv, DType
from convgen.reference import (
    ErrorModel,
    bound,
    compare,
    encode,
    make_inputs,
    reference,
    reference_sampled,
    sample_indices,
    strict_model,
)
from convgen.runtime.physical import with_strides

WHOLE_MACS = 10**10
WHOLE_ELEMENTS = 1 << 22
"""Up to both, every element of the output is compared; above, a sample with corners and edges: an answer that is timed
here was, if it is ours, verified whole when it was tuned."""

COMPARED_ELEMENTS = 16384


@dataclass(frozen=True, slots=True)
class Verdict:
    """`max_error` is the largest |got - reference|, `of_bound` the largest |got - reference| / bound."""

    ok: bool
    max_error: float
    of_bound: float
    reason: str = ""

    def as_json(self) -> dict[str, float | None]:
        finite = self.of_bound if self.of_bound < float("inf") else None
        return {"max_error": self.max_error, "of_bound": finite}


def admitted(problem: Conv) -> ErrorModel:
    """The arithmetic that the problem's dtype admits: `strict_model`, but tf32 may round its operands.

    Ours is held to the strict model. A peer that was asked for tf32 is not called wrong for taking it.
    """
    model = strict_model(problem)
    return dataclasses.replace(model, eps_in=DType.TF32.eps) if problem.dtype is DType.TF32 else model


class Judge:
    """Inputs of a problem (its batch fixed) and the right answer to them, on NumPy's or CuPy's arrays (`xp`)."""

    def __init__(self, problem: Conv, xp: Any, seed: int = 0) -> None:
        self.problem = problem
        self._xp = xp
        self._values: Mapping[str, Any] = make_inputs(problem, seed, "normal", xp)
        self._bounds: dict[ErrorModel, Any] = {}
        size = problem.outputs[0].size
        whole = problem.macs <= WHOLE_MACS and size <= WHOLE_ELEMENTS
        self._indices = None if whole else sample_indices(problem.outputs[0], COMPARED_ELEMENTS, seed)

    @functools.cached_property
    def arrays(self) -> Mapping[str, Any]:
        """Every input, and of an output that is added to what it holds before, as it lies in memory."""
        specs = [self.problem.tensor(name) for name in self._values]
        return {
            spec.name: with_strides(spec, encode(self._values[spec.name], spec.dtype, self._xp), self._xp)
            for spec in specs
        }

    def verdict(self, got: Any, model: ErrorModel) -> Verdict:
        """On an output in logical order, of any strides (bf16 as its bits)."""
        indices = self._indices
        chosen = got if indices is None else got.ravel()[self._xp.asarray(indices)]
        comparison = compare(self.problem.outputs[0], chosen, self._expected, self._bound(model), self._xp, indices)
        reason = "" if comparison.ok else comparison.report().replace("\n", ";")
        return Verdict(comparison.ok, comparison.max_error, comparison.max_ratio, reason)

    @functools.cached_property
    def _expected(self) -> Any:
        if self._indices is None:
            return reference(self.problem, self._values, self._xp)
        return reference_sampled(self.problem, self._values, self._indices, self._xp)

    def _bound(self, model: ErrorModel) -> Any:
        if model not in self._bounds:
            self._bounds[model] = bound(self.problem, self._values, self._expected, model, self._xp, self._indices)
        return self._bounds[model]
