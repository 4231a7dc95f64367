"""One problem's inputs, and the judgement of what a kernel made of them."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy

from convgen.errors import MemoryShortage
from convgen.host_memory import available_bytes
from convgen.plan import Numerics, Plan
from convgen.problem import Conv, Problem, Sizes
from convgen.reference import (
    Comparison,
    Definition,
    InputKind,
    compare,
    definition_of,
    encode,
    exact_numerics,
    joined,
    reduction_length,
)
from convgen.runtime.physical import with_strides
from convgen.simulator import FaultKind
from convgen.verify.case import Settings, Status, VerifyResult

LONG_SUM = 512
"""Terms of a sum from which on its bound is too wide to notice every missing term."""

LARGE_ELEMENTS = 1 << 29
"""Elements of a problem's tensors above which two sets of inputs and answers are not kept together."""

UNBOUNDED_SIZE = 3
"""To verify a size with that is known at launch only, where the problem suggests none."""


def fixed(problem: Problem) -> Problem:
    """The problem with what is known at launch only replaced by the sizes to verify with."""
    if not problem.runtime_sizes:
        return problem
    chosen = problem.sizes.as_dict()
    if problem.largest is None:
        chosen = {
            name: UNBOUNDED_SIZE if size == 1 and name in problem.runtime_sizes else size
            for name, size in chosen.items()
        }
    return problem.with_sizes(Sizes.of(**chosen))


@dataclass(frozen=True)
class _Sample:
    """What is right at flat `indices` of each output, and the bounds there for each kind of arithmetic asked about."""

    indices: Mapping[str, Any]
    expected: Mapping[str, Any]
    limits: dict[Numerics, Mapping[str, Any]] = field(default_factory=dict)

    def is_at(self, indices: Mapping[str, Any]) -> bool:
        return self.indices.keys() == indices.keys() and all(
            numpy.array_equal(self.indices[name], some) for name, some in indices.items()
        )


@dataclass(frozen=True)
class Oracle:
    """Inputs of a problem (its sizes fixed) as float64 arrays of `xp`, and what is right for them."""

    problem: Problem
    values: Mapping[str, Any]
    kind: InputKind
    xp: Any = numpy
    _limits: dict[Numerics, Mapping[str, Any]] = field(default_factory=dict, repr=False, compare=False)
    _samples: list[_Sample] = field(default_factory=list, repr=False, compare=False)
    """The latest one: a tuner's candidates are all judged at the same places."""

    def held_to(self, numerics: Numerics) -> Numerics:
        """The arithmetic that a plan's kernels are held to."""
        if self.kind == "small_integers" and isinstance(self.problem, Conv):
            return exact_numerics(self.problem, numerics)
        return numerics

    def stored(self, name: str) -> Any:
        """A tensor's values as its type stores them, in logical order."""
        return encode(self.values[name], self.problem.tensor(name).dtype, self.xp)

    @functools.cached_property
    def arrays(self) -> Mapping[str, Any]:
        """The same of every input, and of an output that is added to, as it lies in memory. Not to be written."""
        specs = [self.problem.tensor(name) for name in self.values]
        return {spec.name: with_strides(spec, self.stored(spec.name), self.xp) for spec in specs}

    def judge(self, got: Mapping[str, Any], numerics: Numerics, indices: Mapping[str, Any] | None = None) -> Comparison:
        """Hold whole outputs, or the elements at flat `indices` of each, against what is right."""
        limits = self._limit(numerics)
        found = []
        for spec in self.problem.outputs:
            arrays = got[spec.name], self.expected[spec.name], limits[spec.name]
            if indices is None:
                found.append(compare(spec, *arrays, self.xp))
                continue
            chosen = self.xp.asarray(indices[spec.name])
            output, expected, limit = (array.ravel()[chosen] for array in arrays)
            found.append(compare(spec, output, expected, limit, self.xp, indices[spec.name]))
        return joined(found)

    def judge_sampled(self, got: Mapping[str, Any], numerics: Numerics, indices: Mapping[str, Any]) -> Comparison:
        """The same for flat `indices`, without computing the rest: for outputs that are large."""
        sample = self._sample(indices)
        limits = self._sample_limits(sample, numerics)
        return joined(
            [
                compare(
                    spec,
                    got[spec.name].ravel()[self.xp.asarray(indices[spec.name])],
                    sample.expected[spec.name],
                    limits[spec.name],
                    self.xp,
                    indices[spec.name],
                )
                for spec in self.problem.outputs
            ]
        )

    @functools.cached_property
    def expected(self) -> Mapping[str, Any]:
        """What is right for every element of every output. Computed once."""
        return self._definition.reference(self.problem, self.values, self.xp)

    @property
    def _definition(self) -> Definition:
        return definition_of(self.problem)

    def _sample(self, indices: Mapping[str, Any]) -> _Sample:
        if not self._samples or not self._samples[0].is_at(indices):
            expected = self._definition.reference_at(self.problem, self.values, indices, self.xp)
            self._samples[:] = [_Sample(indices, expected)]
        return self._samples[0]

    def _sample_limits(self, sample: _Sample, numerics: Numerics) -> Mapping[str, Any]:
        if numerics not in sample.limits:
            sample.limits[numerics] = self._definition.bound_at(
                self.problem, self.values, sample.expected, self.held_to(numerics), sample.indices, self.xp
            )
        return sample.limits[numerics]

    def _limit(self, numerics: Numerics) -> Mapping[str, Any]:
        """The bound of each. Computed once for a kind of arithmetic."""
        if numerics not in self._limits:
            self._limits[numerics] = self._definition.bound(
                self.problem, self.values, self.expected, self.held_to(numerics), self.xp
            )
        return self._limits[numerics]


class Oracles:
    """The oracles of one problem at a time, one a kind of inputs, kept while the next plan is for that problem."""

    def __init__(self, settings: Settings, xp: Any = numpy) -> None:
        self._settings = settings
        self._xp = xp
        self._problem: Problem | None = None
        self._known: dict[InputKind, Oracle] = {}

    def of(self, problem: Problem, kind: InputKind) -> Oracle:
        """The oracle of `problem`, at the sizes to verify it with. Raises MemoryShortage, before it is made, if this
        machine would have too little for the arrays and for simulating what is held against them."""
        wanted = fixed(problem)
        if self._problem != wanted or (kind not in self._known and _is_large(wanted)):
            self._known.clear()  # their arrays go before the next ones come
            self._problem = wanted
        if kind not in self._known:
            if self._xp is numpy:
                _check_room(wanted)
            values = definition_of(wanted).make_inputs(wanted, self._settings.seed, kind, self._xp)
            self._known[kind] = Oracle(wanted, values, kind, self._xp)
        return self._known[kind]

    def prepare(self, problem: Problem, is_whole: Callable[[Problem], bool]) -> None:
        """Compute ahead what plans of the problem are held against, if every element is."""
        for kind in input_kinds(problem, self._settings):
            oracle = self.of(problem, kind)
            if is_whole(oracle.problem):
                _ = oracle.expected  # computed once, and kept


def input_kinds(problem: Problem, settings: Settings) -> tuple[InputKind, ...]:
    """The inputs to verify with: long sums of normal numbers are followed by exact ones, whose bound is tight."""
    if settings.inputs != "normal" or not isinstance(problem, Conv):
        return (settings.inputs,)
    is_long = reduction_length(problem.with_sizes(fixed(problem).sizes)) >= LONG_SUM
    return ("normal", "small_integers") if is_long else ("normal",)


def _is_large(problem: Problem) -> bool:
    return sum(tensor.size for tensor in (*problem.inputs, *problem.outputs)) > LARGE_ELEMENTS


def _check_room(problem: Problem) -> None:
    # In float64, twice while they are made; as they are stored, for the kernel too.
    tensors = (*problem.inputs, *problem.outputs)
    needed = sum(tensor.size * 2 * (8 + tensor.dtype.itemsize) for tensor in tensors)
    available = available_bytes()
    if needed > available:
        work = f"verifying {problem} in the simulator"
        raise MemoryShortage(work, needed, available, "choose a smaller batch, or a machine's GPU (--backend cuda)")


def _is_exact(oracle: Oracle, numerics: Numerics) -> bool:
    is_integer = isinstance(oracle.problem, Conv) and oracle.problem.dtype.is_integer
    return is_integer or oracle.held_to(numerics).eps_acc == 0.0


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
    """The result of a run that was compared; faults, told by `fault`, make it wrong whatever its numbers. Without
    anything to judge by it has failed."""
    worst = comparison.worst
    finite = worst is not None and all(map(math.isfinite, (worst.got, worst.reference)))
    size = sum(spec.size for spec in oracle.problem.outputs)
    right = comparison.ok and not faults
    status: Status = "ok" if right else "wrong" if faults or comparison.count_wrong else "failed"
    return VerifyResult(
        problem=plan.problem,
        strategy=plan.strategy,
        backend=settings.backend,
        status=status,
        reason="" if right else fault or f"{comparison.report()} ({oracle.kind} inputs)",
        config=plan.config.as_dict(),
        max_error=abs(worst.got - worst.reference) if worst and finite else None,
        bound=worst.bound if worst else None,
        compared=comparison.count,
        coverage=comparison.count / size if size else 1.0,
        sanitized=sanitized,
        exact=_is_exact(oracle, plan.numerics),
        faults=faults,
    )
