"""Which kernel to use for a problem, from what is known: a tuned winner, a neighbour's, or the cost model."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from convgen.errors import ConvgenError, NotApplicableError, ProblemError, UsageError
from convgen.lowering import applicable, lower, preference, refusal, why_not
from convgen.problem import Problem, parse_problem
from convgen.render import render
from convgen.space import Config
from convgen.strategies import Strategy, strategies_of
from convgen.target import Target
from convgen.tuner.builder import program_key
from convgen.tuner.keys import task_of, toolchains
from convgen.tuner.neighbours import FARTHEST, distance
from tuning_db import Layers, Trial
from tuning_db.records import config_text

Origin = Literal["tuned", "unfinished", "stale", "neighbour", "predicted"]

WORSE = 1.2
"""A neighbour's config is not taken where the cost models predict it this much slower than the best of the defaults."""


@dataclass(frozen=True)
class Decision:
    """A strategy and config that pass `check`, and why they were taken.

    tuned      the winner of this very problem and GPU, the same program as today's code makes
    unfinished the same, of a search that was interrupted or left out strategies that apply
    stale      the same, by code or a compiler that has changed since
    neighbour  the winner of a similar problem on the same GPU
    predicted  the default that the cost model thinks fastest
    """

    strategy: Strategy
    config: Config
    origin: Origin
    trial: Trial | None = None

    def sentence(self) -> str:
        """Why it was chosen, for people."""
        if self.trial is None:
            return "predicted fastest by the cost model; `convgen tune` on the GPU finds out"
        seconds = (self.trial.seconds or 0.0) * 1e6
        measured = f"{seconds:.4g} µs when it was measured on {self.trial.task.device}"
        if self.origin == "neighbour":
            return f"taken from a similar problem, {self.trial.task.problem} ({measured})"
        return f"tuned: {measured}{_RESERVES.get(self.origin, '')}"


_RESERVES: Mapping[Origin, str] = {
    "unfinished": ", in a search that was not finished or left out strategies; `convgen tune` goes on",
    "stale": ", by code that has changed since",
}


def decide(
    problem: Problem,
    target: Target,
    layers: Layers | None,
    *,
    workspace_limit: int | None = None,
    simulated: bool = False,
) -> Decision:
    """The best kernel known for a problem; `layers=None` asks no database. Never tunes.

    `workspace_limit` passes over what needs more bytes. Raises NotApplicableError if no strategy applies, UsageError
    naming the least workspace possible if every one needs more than the limit.
    """
    least: int | None = None
    for decision in ranked(problem, target, layers, simulated=simulated):
        if workspace_limit is None:
            return decision
        plan = lower(problem, decision.strategy, decision.config, target)
        needed = plan.workspace_bytes(problem.sizes)
        if needed <= workspace_limit:
            return decision
        least = needed if least is None else min(least, needed)
    raise UsageError(f"workspace_limit={workspace_limit}: {problem} needs at least {least} bytes")


def ranked(problem: Problem, target: Target, layers: Layers | None, *, simulated: bool = False) -> Iterator[Decision]:
    """Every decision there is, best first; the last ones are the defaults of all strategies that apply."""
    if layers is not None:
        # Asked first: ordering the defaults takes longer than finding a winner.
        yield from known(problem, target, layers, strategies_of(problem), simulated=simulated)
    for strategy in applicable(problem, target):
        yield Decision(strategy, strategy.default(problem, target), "predicted")


def known(
    problem: Problem, target: Target, layers: Layers, strategies: Sequence[Strategy], *, simulated: bool = False
) -> Iterator[Decision]:
    """What has been tuned, best first: the problem's own winner, then those of similar problems."""
    own = stored(problem, target, layers, strategies, simulated=simulated)
    if own is not None:
        yield own
    yield from _neighbours(problem, target, layers, strategies, simulated)


def stored(
    problem: Problem, target: Target, layers: Layers, strategies: Sequence[Strategy], *, simulated: bool = False
) -> Decision | None:
    """The problem's own winner: of what is stored the best that is legal here. What is not is passed over, with one
    warning."""
    current = toolchains(strategies)
    refused: list[str] = []
    choices: dict[str, tuple[Strategy, Config]] = {}

    def accepts(trial: Trial) -> bool:
        choice = _restored(trial, problem, strategies, target, refused)
        if choice is not None:
            choices[_mark(trial)] = choice
        return choice is not None

    def is_todays(trial: Trial) -> bool:
        """Whether older code made what today's makes: a strategy's files change more often than its kernels."""
        strategy, config = choices[_mark(trial)]
        toolchain = current[strategy.name]
        if not trial.source_key or (trial.toolchain.compiler, trial.toolchain.protocol) != (
            toolchain.compiler,
            toolchain.protocol,
        ):
            return False
        plan = lower(problem, strategy, config, target)
        return trial.source_key == program_key(plan, render(plan), "sim" if simulated else "cuda")

    found = layers.winner(task_of(problem, target, simulated=simulated), current, accepts, is_todays)
    if refused:
        warnings.warn(
            f"the tuning database's config of {refused[0]}; the next best is taken. `convgen db forget` removes such, "
            "`convgen tune --retune` replaces it",
            stacklevel=2,
        )
    if found is None:
        return None
    choice = choices[_mark(found.trial)]
    if found.tier == "stale":
        return Decision(*choice, "stale", found.trial)
    untried = layers.untried(found, [s.name for s in strategies])
    searched = all(why_not(problem, s, target) is not None for s in strategies if s.name in untried)
    return Decision(*choice, "tuned" if searched else "unfinished", found.trial)


def _mark(trial: Trial) -> str:
    return f"{trial.strategy} {config_text(trial.config)}"


def _restored(
    trial: Trial, problem: Problem, strategies: Sequence[Strategy], target: Target, refused: list[str]
) -> tuple[Strategy, Config] | None:
    """A stored config, checked as a proposal would be; None if it is not legal here, and then `refused` has why."""
    strategy = next((s for s in strategies if s.name == trial.strategy), None)
    if strategy is None or refusal(problem, strategy, target) is not None:
        return None
    try:
        config = strategy.space(problem, target).config_type.from_mapping(trial.config)
        strategy.check(problem, config, target)
    except ConvgenError as error:
        refused.append(f"{trial.strategy} for {problem} is not legal ({error})")
        return None
    return strategy, config


def _neighbours(
    problem: Problem, target: Target, layers: Layers, strategies: Sequence[Strategy], simulated: bool
) -> Iterator[Decision]:
    by_distance: list[tuple[float, int, Trial]] = []
    for position, trial in enumerate(layers.neighbours(task_of(problem, target, simulated=simulated))):
        other = _parse(trial.task.problem)
        if other is not None and other != problem and (apart := distance(problem, other)) <= FARTHEST:
            by_distance.append((apart, position, trial))
    seen: set[tuple[str, Config]] = set()
    least: float | None = None  # predicted for what is used where nothing is known
    for _, _, trial in sorted(by_distance):
        strategy = next((s for s in strategies if s.name == trial.strategy), None)
        config = _legal(strategy, trial.config, problem, target) if strategy else None
        if strategy is None or config is None or (strategy.name, config) in seen:
            continue
        seen.add((strategy.name, config))
        if least is None:
            usable = [s for s in strategies if isinstance(problem, s.solves) and why_not(problem, s, target) is None]
            _, least = min((preference(problem, s, target) for s in usable), default=(False, math.inf))
        if strategy.cost(problem, config, target) <= WORSE * least:
            yield Decision(strategy, config, "neighbour", trial)


def _legal(strategy: Strategy, values: Mapping[str, Any], problem: Problem, target: Target) -> Config | None:
    # That a neighbour's config does not fit is no fault of the database's.
    if refusal(problem, strategy, target) is not None:
        return None
    try:
        config = strategy.space(problem, target).config_type.from_mapping(values)
        strategy.check(problem, config, target)
    except ConvgenError:
        return None
    return config


def _parse(text: str) -> Problem | None:
    try:
        return parse_problem(text)
    except (ProblemError, NotApplicableError):
        return None
