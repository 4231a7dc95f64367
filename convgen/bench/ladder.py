"""One problem from the textbook kernel up: every strategy that applies, untuned and tuned, timed in turn."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from convgen.bench.choices import best_of
from convgen.bench.contest import Contest, hold
from convgen.bench.session import Venue
from convgen.bench.settling import Lineup, attained, floor_seconds, microseconds
from convgen.errors import ConfigError, NotApplicableError
from convgen.lowering import applicable
from convgen.problem import Conv
from convgen.strategies import Strategy, get_strategy
from convgen.target import Target
from convgen.tuner.decide import Decision
from tuning_db import Layers

NAIVE = "naive"

TEXTBOOK = (
    "along_x=column,threads_channel=1,threads_column=256,tile_b=1,tile_channel=1,tile_position=1,vector=1,"
    "filter=global,input=global,split_q=1,split_taps=1"
)
"""The kernel that every course on CUDA begins with, as a config of `direct`: one thread, one output, no reuse but the
caches'."""


@dataclass(frozen=True)
class Rung:
    """One kernel of the ladder, or a peer beside it. Times in microseconds of one call, None with a reason."""

    name: str
    is_peer: bool
    strategy: str | None
    config: Mapping[str, Any] | None
    us: float | None
    over_naive: float | None
    """How many times as fast as the naive kernel."""
    attained: float | None
    """Fraction of the floor."""
    is_wrong: bool
    """Whether its answer is outside the error bound; only a peer has a time all the same."""
    reason: str = ""


def candidates(
    problem: Conv, target: Target, layers: Layers | None, strategies: Sequence[Strategy] | None = None
) -> dict[str, Decision]:
    """The kernels to time, by rung. `strategies` are those that apply, unless given."""
    usable = applicable(problem, target) if strategies is None else strategies
    found: dict[str, Decision] = {}
    naive = _naive(problem, target)
    if naive is not None:
        found[NAIVE] = naive
    for strategy in usable:
        untuned, tuned = best_of(strategy, problem, target, None), best_of(strategy, problem, target, layers)
        found[f"{strategy.name}, untuned"] = untuned
        if tuned.config != untuned.config:
            found[f"{strategy.name}, {tuned.origin}"] = tuned
    return found


def _naive(problem: Conv, target: Target) -> Decision | None:
    direct = get_strategy("direct")
    try:
        if direct.why_not(problem, target) is not None:
            return None
        default = direct.default(problem, target)
        config = type(default).parse(TEXTBOOK, default)
        direct.check(problem, config, target)
    except (ConfigError, NotApplicableError):
        return None
    return Decision(direct, config, "predicted")


def climb(
    problem: Conv, target: Target, venue: Venue, chosen: Mapping[str, Decision], rounds: int | None = None
) -> list[Rung]:
    """Every rung, the slowest first, peers among them; then those that have no time. Raises DeviceError."""
    venue.prebuild([(problem, decision) for decision in chosen.values()])
    with venue.open(problem, chosen) as (arena, lineup):
        contest = hold(arena, lineup.timed(), rounds)
    return rungs(contest, lineup, chosen, floor_seconds(problem, target))


def rungs(contest: Contest, lineup: Lineup, chosen: Mapping[str, Decision], floor: float) -> list[Rung]:
    """From times to rungs; `floor` in seconds."""
    seconds = {name: statistics.median(times) for name, times in contest.times.items()}
    wrong = {name: verdict.reason for name, verdict in lineup.verdicts.items() if not verdict.ok}
    reasons = {**lineup.refused, **contest.lost, **wrong}
    naive = seconds.get(NAIVE)

    def rung(name: str) -> Rung:
        decision, time = chosen.get(name), seconds.get(name)
        return Rung(
            name,
            decision is None,
            None if decision is None else decision.strategy.name,
            None if decision is None else decision.config.as_dict(),
            None if time is None else microseconds(time),
            None if time is None or naive is None else round(naive / time, 3),
            None if time is None else round(attained(floor, time), 4),
            name in wrong,
            reasons.get(name, ""),
        )

    timed = sorted(seconds, key=lambda name: -seconds[name])
    return [rung(name) for name in [*timed, *(name for name in reasons if name not in seconds)]]
