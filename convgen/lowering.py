"""From a problem to a plan: check that the strategy applies and the config is legal, then lower."""

from __future__ import annotations

from collections.abc import Mapping

from convgen.errors import ConfigError, NotApplicableError
from convgen.plan import Plan
from convgen.problem import DType, Problem
from convgen.space import Config
from convgen.strategies import Strategy, strategies_of
from convgen.target import Target


def lower(problem: Problem, strategy: Strategy, config: Config | None, target: Target) -> Plan:
    """The plan of `strategy` for `problem`; `config=None` takes the strategy's default.

    Raises NotApplicableError with the strategy's reason, ConfigError with the rule the config breaks.
    """
    reason = refusal(problem, strategy, target) if config is not None else why_not(problem, strategy, target)
    if reason is not None:
        raise NotApplicableError(f"{strategy.name} does not apply: {reason}")
    chosen = strategy.default(problem, target) if config is None else config
    strategy.check(problem, chosen, target)
    return strategy.lower(problem, chosen, target)


def refusal(problem: Problem, strategy: Strategy, target: Target) -> str | None:
    """The reason the strategy itself gives: all there is to ask about a config that is checked anyway."""
    if not isinstance(problem, strategy.solves):
        return f"it solves {strategy.solves.kind}, not {problem.op}"
    return strategy.why_not(problem, target)


def why_not(problem: Problem, strategy: Strategy, target: Target) -> str | None:
    """The reason a strategy does not apply, be it that not even its default fits; None if it does."""
    reason = refusal(problem, strategy, target)
    if reason is None:
        try:
            strategy.check(problem, strategy.default(problem, target), target)
        except ConfigError as error:
            return str(error)
    return reason


def applicable(problem: Problem, target: Target) -> tuple[Strategy, ...]:
    """The strategies that apply, by `preference`.

    Raises NotApplicableError naming every strategy's reason when there is none.
    """
    reasons = {s: why_not(problem, s, target) for s in strategies_of(problem)}
    usable = [s for s, reason in reasons.items() if reason is None]
    if not usable:
        raise nothing_applies(problem, reasons)
    return tuple(sorted(usable, key=lambda s: preference(problem, s, target)))


def preference(problem: Problem, strategy: Strategy, target: Target) -> tuple[bool, float]:
    """What strategies that apply are ordered by, best first, where nothing has been measured: the predicted seconds of
    their defaults, those whose cost model is not calibrated behind the others."""
    return not strategy.calibrated, strategy.cost(problem, strategy.default(problem, target), target)


def nothing_applies(problem: Problem, reasons: Mapping[Strategy, str | None]) -> NotApplicableError:
    """What to raise where no strategy applies; a reason that several share is told once."""
    if not reasons:
        return NotApplicableError(f"{problem.op} is described and validated, but no strategy computes it yet")
    sharing: dict[str | None, list[str]] = {}
    for strategy, reason in reasons.items():
        sharing.setdefault(reason, []).append(strategy.name)
    listed = "; ".join(f"{', '.join(names)}: {reason}" for reason, names in sharing.items())
    advice = ""
    if problem.dtype is DType.FP8:
        advice = "; take dtype=fp16 or bf16: they hold every number of fp8, and other strategies compute them"
    return NotApplicableError(f"no strategy applies to {problem}: {listed}{advice}")
