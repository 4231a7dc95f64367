"""What is known of a problem before anything runs: its work, the roofline, and what each strategy would make of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from convgen.compiler import compile_cuda
from convgen.errors import DeviceError
from convgen.lowering import lower
from convgen.plan import Plan
from convgen.problem import Attention, Conv, Problem
from convgen.render import render
from convgen.resources import KernelReport, report
from convgen.strategies import all_strategies
from convgen.target import Target


@dataclass(frozen=True)
class Roofline:
    """The least time the target needs, at the rates it can attain.

    Williams, Waterman and Patterson, "Roofline: an insightful visual performance model", 2009. Seconds, FLOP, bytes.
    """

    flops: int
    nbytes: int
    """Compulsory: each input read once, each output written once."""
    flop_rate: float
    bandwidth: float

    @property
    def intensity(self) -> float:
        """FLOP for each compulsory byte."""
        return self.flops / self.nbytes if self.nbytes else 0.0

    @property
    def ridge(self) -> float:
        """The intensity from which arithmetic is the bound."""
        return self.flop_rate / self.bandwidth

    @property
    def arithmetic_seconds(self) -> float:
        return self.flops / self.flop_rate

    @property
    def memory_seconds(self) -> float:
        return self.nbytes / self.bandwidth

    @property
    def seconds(self) -> float:
        return max(self.arithmetic_seconds, self.memory_seconds)

    @property
    def limit(self) -> str:
        """ "arithmetic" or "memory"."""
        return "arithmetic" if self.arithmetic_seconds > self.memory_seconds else "memory"


@dataclass(frozen=True)
class Outlook:
    """What a strategy would make of the problem: the reason it does not apply, or its default and predicted seconds."""

    strategy: str
    reason: str | None
    plan: Plan | None = None
    seconds: float | None = None


@dataclass(frozen=True)
class Explanation:
    """See `explain_problem`."""

    problem: Problem
    target: Target
    roofline: Roofline
    outlooks: tuple[Outlook, ...]
    """Those that apply first, fastest predicted default first."""
    kernels: tuple[KernelReport, ...]
    """One for each launch of the first outlook's plan; empty if there is none or it could not be compiled."""
    not_compiled: str | None
    """Why `kernels` is empty though there is a plan."""

    @property
    def chosen(self) -> Plan | None:
        """The plan that `compile` takes when no strategy is named."""
        return self.outlooks[0].plan if self.outlooks else None


def explain_problem(problem: Problem, target: Target) -> Explanation:
    """Everything `convgen explain` prints. Compiles the chosen plan for its occupancy, if NVRTC is there.

    Raises CompileError if it does not compile.
    """
    outlooks = () if isinstance(problem, Attention) else tuple(sorted(_outlooks(problem, target), key=_order))
    plan = outlooks[0].plan if outlooks else None
    kernels: tuple[KernelReport, ...] = ()
    not_compiled = None
    if plan is not None:
        try:
            kernels = report(plan, compile_cuda(render(plan), target, name=f"{plan.name}.cu").kernels)
        except DeviceError as error:
            not_compiled = str(error)
    rates = target.attainable
    roofline = Roofline(problem.flops, problem.bytes, rates.of(problem.dtype.value), rates.bandwidth)
    return Explanation(problem, target, roofline, outlooks, kernels, not_compiled)


def _outlooks(problem: Conv, target: Target) -> Iterator[Outlook]:
    for strategy in all_strategies():
        reason = strategy.why_not(problem, target)
        if reason is not None:
            yield Outlook(strategy.name, reason)
        else:
            plan = lower(problem, strategy, None, target)
            yield Outlook(strategy.name, None, plan, strategy.cost(problem, plan.config, target))


def _order(outlook: Outlook) -> tuple[bool, float, str]:
    return outlook.seconds is None, outlook.seconds or 0.0, outlook.strategy
