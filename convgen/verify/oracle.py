"""One problem's inputs, and the judgement of what a kernel made of them."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy

from convgen.plan import Numerics, Plan
from convgen.problem import Conv
from convgen.reference import (
    Comparison,
    ErrorModel,
    InputKind,
    bound,
    compare,
    encode,
    exact_model,
    make_inputs,
    model_of,
    reduction_length,
    reference,
    reference_sampled,
)
from convgen.runtime.physical import with_strides
from convgen.simulator import FaultKind
from convgen.verify.case import Settings, VerifyResult

LONG_SUM = 512
"""Terms of a sum from which on its bound is too wide to notice every missing term."""

LARGE_ELEMENTS = 1 << 29
"""Elements of a problem's tensors above which two sets of inputs and answers are not kept together."""

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
    kind: InputKind
    xp: Any = numpy

    _limits: dict[Numerics, Any] = field(default_factory=dict, repr=False, compare=False)

    def model(self, numerics: Numerics) -> ErrorModel:
        """The arithmetic that a plan's kernels are held to."""
        return (exact_model if self.kind == "small_integers" else model_of)(self.problem, numerics)

    def stored(self, name: str) -> Any:
        """A tensor's values as its type stores them, in logical order."""
        return encode(self.values[name], self.problem.tensor(name).dtype, self.xp)

    @functools.cached_property
    def arrays(self) -> Mapping[str, Any]:
        """The same of every input, and of an output that is added to, as it lies in memory. Not to be written."""
        specs = [self.problem.tensor(name) for name in self.values]
        return {spec.name: with_strides(spec, self.stored(spec.name), self.xp) for spec in specs}

    def judge(self, got: Any, numerics: Numerics, indices: Any | None = None) -> Comparison:
        """Hold a whole output, or the elements at flat `indices` of it, against what is right."""
        limit = self._limit(numerics)
        if indices is None:
            return compare(self.problem, got, self.expected, limit, self.xp)
        chosen, expected, limit = (array.ravel()[self.xp.asarray(indices)] for array in (got, self.expected, limit))
        return compare(self.problem, chosen, expected, limit, self.xp, indices)

    def judge_sampled(self, got: Any, numerics: Numerics, indices: Any) -> Comparison:
        """The same for flat `indices`, without computing the rest: for outputs that are large."""
        expected = reference_sampled(self.problem, self.values, indices, self.xp)
        limit = bound(self.problem, self.values, expected, self.model(numerics), self.xp, indices)
        return compare(self.problem, got.ravel()[self.xp.asarray(indices)], expected, limit, self.xp, indices)

    @functools.cached_property
    def expected(self) -> Any:
        """What is right for every element of the output. Computed once."""
        return reference(self.problem, self.values, self.xp)

    def _limit(self, numerics: Numerics) -> Any:
        """The bound of each. Computed once for a kind of arithmetic."""
        if numerics not in self._limits:
            self._limits[numerics] = bound(self.problem, self.values, self.expected, self.model(numerics), self.xp)
        return self._limits[numerics]


class Oracles:
    """The oracles of one problem at a time, one a kind of inputs, kept while the next plan is for that problem."""

    def __init__(self, settings: Settings, xp: Any = numpy) -> None:
        self._settings = settings
        self._xp = xp
        self._problem: Conv | None = None
        self._known: dict[InputKind, Oracle] = {}

    def of(self, problem: Conv, kind: InputKind) -> Oracle:
        """The oracle of `problem`, at the batch to verify it with."""
        fixed = fixed_batch(problem)
        if self._problem != fixed or (kind not in self._known and _is_large(fixed)):
            self._known.clear()  # their arrays go before the next ones come
            self._problem = fixed
        if kind not in self._known:
            values = make_inputs(fixed, self._settings.seed, kind, self._xp)
            self._known[kind] = Oracle(fixed, values, kind, self._xp)
        return self._known[kind]

    def prepare(self, problem: Conv, whole_macs: int) -> None:
        """Compute ahead what plans of the problem are held against, if it has no more multiply-adds than that."""
        for kind in input_kinds(problem, self._settings):
            oracle = self.of(problem, kind)
            if oracle.problem.macs <= whole_macs:
                _ = oracle.expected  # computed once, and kept


def input_kinds(problem: Conv, settings: Settings) -> tuple[InputKind, ...]:
    """The inputs to verify with: long sums of normal numbers are followed by exact ones, whose bound is tight."""
    if settings.inputs == "normal" and reduction_length(fixed_batch(problem)) >= LONG_SUM:
        return "normal", "small_integers"
    return (settings.inputs,)


def _is_large(problem: Conv) -> bool:
    return sum(tensor.size for tensor in (*problem.inputs, *problem.outputs)) > LARGE_ELEMENTS


def outcome(
    plan: Plan,
    settings: Settings,
    oracle: Oracle,
    comparison: Comparison,
    *,
    sanitized: bool = False,
    fault: str = "",
    faults: tuple[FaultKind, ...] = (),
) -> VerifyResult:
    """The result of a run that was compared; faults, told by `fault`, make it wrong whatever its numbers."""
    worst = comparison.worst
    finite = worst is not None and all(map(math.isfinite, (worst.got, worst.reference)))
    size = oracle.problem.outputs[0].size
    right = comparison.ok and not faults
    return VerifyResult(
        problem=plan.problem,
        strategy=plan.strategy,
        backend=settings.backend,
        status="ok" if right else "wrong",
        reason="" if right else fault or f"{comparison.report()} ({oracle.kind} inputs)",
        config=plan.config.as_dict(),
        max_error=abs(worst.got - worst.reference) if worst and finite else None,
        bound=worst.bound if worst else None,
        compared=comparison.count,
        coverage=comparison.count / size if size else 1.0,
        sanitized=sanitized,
        exact=oracle.model(plan.numerics).eps_acc == 0.0,
        faults=faults,
    )
