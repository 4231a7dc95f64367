"""One problem's inputs, and the judgement of what a kernel made of them."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy

from convgen.plan import Plan
from convgen.problem import Conv
from convgen.reference import (
    Comparison,
    bound,
    compare,
    encode,
    make_inputs,
    reference,
    reference_sampled,
    strict_model,
)
from convgen.verify.case import Settings, VerifyResult

UNBOUNDED_BATCH = 3
"""Batch to verify a runtime batch with, where the problem suggests none."""


def fixed_batch(problem: Conv) -> Conv:
    """The problem with a runtime batch replaced by the one to verify with."""
    if not problem.is_runtime_batch:
        return problem
    n = problem.typical_batch
    return problem.at(UNBOUNDED_BATCH if n == 1 and problem.max_batch is None else n)


@dataclass(frozen=True)
class Oracle:
    """Inputs of a problem (its batch fixed) as float64 arrays of `xp`, and what is right for them."""

    problem: Conv
    values: Mapping[str, Any]
    xp: Any = numpy

    @classmethod
    def of(cls, problem: Conv, settings: Settings, xp: Any = numpy) -> Oracle:
        return cls(problem, make_inputs(problem, settings.seed, settings.inputs, xp), xp)

    def stored(self, name: str) -> Any:
        """A tensor's values as its type stores them, in logical order."""
        return encode(self.values[name], self.problem.tensor(name).dtype, self.xp)

    def judge(self, got: Any, indices: Any | None = None) -> Comparison:
        """Hold a whole output, or the elements at flat `indices` of it, against what is right."""
        if indices is None:
            expected, limit = self._whole
            return compare(self.problem, got, expected, limit, self.xp)
        expected = reference_sampled(self.problem, self.values, indices, self.xp)
        limit = bound(self.problem, self.values, expected, strict_model(self.problem), self.xp, indices)
        chosen = got.ravel()[self.xp.asarray(indices)]
        return compare(self.problem, chosen, expected, limit, self.xp, indices)

    @functools.cached_property
    def _whole(self) -> tuple[Any, Any]:
        expected = reference(self.problem, self.values, self.xp)
        return expected, bound(self.problem, self.values, expected, strict_model(self.problem), self.xp)


def outcome(
    plan: Plan, settings: Settings, comparison: Comparison, *, sanitized: bool = False, fault: str = ""
) -> VerifyResult:
    """The result of a run that was compared; a fault makes it wrong whatever its numbers."""
    worst = comparison.worst
    finite = worst is not None and all(map(math.isfinite, (worst.got, worst.reference)))
    size = fixed_batch(plan.problem).outputs[0].size
    right = comparison.ok and not fault
    return VerifyResult(
        problem=plan.problem,
        strategy=plan.strategy,
        backend=settings.backend,
        status="ok" if right else "wrong",
        reason="" if right else fault or comparison.report(),
        config=plan.config.as_dict(),
        max_error=abs(worst.got - worst.reference) if worst and finite else None,
        bound=worst.bound if worst else None,
        compared=comparison.count,
        coverage=comparison.count / size if size else 1.0,
        sanitized=sanitized,
    )
