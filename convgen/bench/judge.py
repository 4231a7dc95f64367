"""Is an answer right? The same question for ours and for every peer, put to the same numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from convgen.plan import Numerics
from convgen.problem import Attention, DType, Problem
from convgen.reference import definition_of, sample_indices
from convgen.verify.oracle import Oracle

WHOLE_MACS = 10**10
WHOLE_ELEMENTS = 1 << 22
"""Up to both, every element of the output is compared; above, a sample with corners and edges: an answer that is timed
here was, if it is ours, verified whole when it was tuned."""

COMPARED_ELEMENTS = 16384

TENSOR_CORE_EPS = 2.0**-22
"""Of an addition in a tensor core, which truncates."""


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


def admitted(problem: Problem) -> Numerics:
    """The arithmetic that the problem's dtype admits: the direct kernel's, but tf32 may round its operands, and a fused
    attention its weights to the operands' type.

    Ours is held to what its plan states. A peer that was asked for tf32 is not called wrong for taking it.
    """
    if isinstance(problem, Attention):
        return Numerics(eps_in=problem.dtype.eps, eps_acc=TENSOR_CORE_EPS)
    return Numerics(eps_in=DType.TF32.eps) if problem.dtype is DType.TF32 else Numerics()


class Judge:
    """Inputs of a problem (its sizes fixed) and the right answer to them, on NumPy's or CuPy's arrays (`xp`)."""

    def __init__(self, problem: Problem, xp: Any, seed: int = 0) -> None:
        self.problem = problem
        self._oracle = Oracle(problem, definition_of(problem).make_inputs(problem, seed, "normal", xp), "normal", xp)
        size = sum(spec.size for spec in problem.outputs)
        whole = problem.macs <= WHOLE_MACS and size <= WHOLE_ELEMENTS
        self._indices = (
            None if whole else {spec.name: sample_indices(spec, COMPARED_ELEMENTS, seed) for spec in problem.outputs}
        )

    @property
    def arrays(self) -> Mapping[str, Any]:
        """Every input, and of an output that is added to what it holds before, as it lies in memory."""
        return self._oracle.arrays

    def verdict(self, got: Mapping[str, Any], numerics: Numerics) -> Verdict:
        """On every output in logical order, of any strides (bf16 as its bits)."""
        if self._indices is None:
            comparison = self._oracle.judge(got, numerics)
        else:
            comparison = self._oracle.judge_sampled(got, numerics, self._indices)
        reason = "" if comparison.ok else comparison.report().replace("\n", ";")
        return Verdict(comparison.ok, comparison.max_error, comparison.max_ratio, reason)
