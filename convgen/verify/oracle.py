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

    def stored(self, name: str) -> Any:
        """A tensor's values as its type stores them, in logical order."""
        return encode(self.values[name], self.problem.tensor(name).dtype, self.xp)

    def judge(self, got: Any, indices: Any | None = None) -> Comparison:
        """Hold a whole output, or the elements at flat `indices` of it, against what is right."""
        if indices is None:
            return compare(self.problem, got, *self._whole, self.xp)
        chosen, expected, limit = (array.ravel()[self.xp.asarray(indices)] for array in (got, *self._whole))
        return compare(self.problem, chosen, expected, limit, self.xp, indices)

    def judge_sampled(self, got: Any, indices: Any) -> Comparison:
        """The same for flat `indices`, without computing the rest: for outputs that are large."""
        expected = reference_sampled(self.problem, self.values, indices, self.xp)
        limit = bound(self.problem, self.values, expected, strict_model(self.problem), self.xp, indices)
        return compare(self.problem, got.ravel()[self.xp.asarray(indices)], expected, limit, self.xp, indices)

    @functools.cached_property
    def _whole(self) -> tuple[Any, Any]:
        expected = reference(self.problem, self.values, self.xp)
        return expected, bound(self.problem, self.values, expected, strict_model(self.problem), self.xp)


class Oracles:
    """The oracle of one problem at a time, kept while the next plan is for the same problem."""

    def __init__(self, settings: Settings, xp: Any = numpy) -> None:
        self._settings = settings
        self._xp = xp
        self._latest: Oracle | None = None

    def of(self, problem: Conv) -> Oracle:
        """The oracle of `problem`, at the batch to verify it with."""
        fixed = fixed_batch(problem)
        if self._latest is None or self._latest.problem != fixed:
            self._latest = None  # its arrays go before the next ones come
            values = make_inputs(fixed, self._settings.seed, self._settings.inputs, self._xp)
            self._latest = Oracle(fixed, values, self._xp)
        return self._latest


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
