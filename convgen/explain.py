"""What is known of a problem before anything runs: its work, the roofline, and what each strategy would make of it."""

from __future__ import annotations

from dataclasses import dataclass

from convgen.compiler import compile_cuda
from convgen.crossover import Crossover, crossover
from convgen.errors import CompileError, DeviceError
from convgen.lowering import lower, why_not
from convgen.plan import Plan
from convgen.problem import Conv, Problem
from convgen.render import render
from convgen.resources import KernelReport, report
from convgen.strategies import Strategy, strategies_of
from convgen.target import Target


@dataclass(frozen=True)
class Roofline:
    """The time that the target needs at the rates of a large matrix product and a long copy.

    No bound: power limits those rates, so kernels that draw less of it have been measured at 1.07 times them in fp16;
    and a strategy may need fewer FLOP than the definition, or compute fp32 on tensor cores.
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
    """What a strategy would make of the problem: the reason it does not apply, or its default and what that costs."""

    strategy: str
    reason: str | None
    plan: Plan | None = None
    seconds: float | None = None
    """Predicted."""
    kernels: tuple[KernelReport, ...] = ()
    """One for each launch of the plan; empty if it could not be compiled."""
    is_calibrated: bool = True
    """Whether `seconds` are of a cost model that has been fitted to kernels that ran."""
    not_compiled: str | None = None
    """Why there are no kernels though there is a plan."""


@dataclass(frozen=True)
class Explanation:
    """See `explain_problem`."""

    problem: Problem
    target: Target
    roofline: Roofline
    outlooks: tuple[Outlook, ...]
    """Those that apply first, fastest predicted default first: `compile` takes the first."""
    crossover: Crossover | None
    """Of the same problem with other filters; None where the filter's size is not what matters."""


def explain_problem(problem: Problem, target: Target) -> Explanation:
    """Everything `convgen explain` prints. Raises nothing for a valid problem: what cannot be compiled says why.

    Defaults are compiled for the target to know their occupancy; that needs NVRTC but no GPU.
    """
    outlooks = [_outlook(strategy, problem, target) for strategy in strategies_of(problem)]
    rates = target.attainable
    roofline = Roofline(problem.flops, problem.bytes, rates.of(problem.dtype.value), rates.bandwidth)
    across = crossover(problem, strategies_of(problem), target) if isinstance(problem, Conv) else None
    return Explanation(problem, target, roofline, tuple(sorted(outlooks, key=_order)), across)


def _outlook(strategy: Strategy, problem: Problem, target: Target) -> Outlook:
    reason = why_not(problem, strategy, target)
    if reason is not None:
        return Outlook(strategy.name, reason)
    plan = lower(problem, strategy, None, target)
    seconds = strategy.cost(problem, plan.config, target)
    try:
        kernels = report(plan, compile_cuda(render(plan), target, name=f"{plan.name}.cu").kernels)
    except (DeviceError, CompileError) as error:
        return Outlook(strategy.name, None, plan, seconds, (), strategy.calibrated, str(error))
    return Outlook(strategy.name, None, plan, seconds, kernels, strategy.calibrated)


def _order(outlook: Outlook) -> tuple[bool, bool, float, str]:
    return outlook.seconds is None, not outlook.is_calibrated, outlook.seconds or 0.0, outlook.strategy
