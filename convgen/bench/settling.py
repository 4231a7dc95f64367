"""From times to what is said of them: medians, ratios with their intervals, fractions of the floor."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from convgen.bench.contest import Contest, Contestant
from convgen.bench.judge import Verdict
from convgen.bench.results import Entry
from convgen.measure import Timing
from convgen.problem import SuiteEntry
from convgen.ratios import order_interval, ratios
from convgen.target import Target

LEAST_FLOOR = 2e-6
"""Seconds below which no kernel is expected to go, however little it has to do."""

OURS, DEFAULT, FROZEN = "ours", "default", "frozen"
"""Our contestants: the best known, the untuned default, and the best known with its weights declared constant."""

MINE = (OURS, DEFAULT, FROZEN)


@dataclass(frozen=True)
class Lineup:
    """Who takes part in one problem's contest, by name, each with its verdict; the others have their reasons."""

    ours: Mapping[str, Contestant]
    peers: Mapping[str, Contestant]
    verdicts: Mapping[str, Verdict]
    refused: Mapping[str, str] = field(default_factory=dict)
    caches: str = ""
    """As in `results.Entry`."""

    def timed(self) -> list[Contestant]:
        """A wrong answer of ours has no time. A peer's has one, and a flag."""
        return [c for name, c in self.ours.items() if self.verdicts[name].ok] + list(self.peers.values())


def described(entry: SuiteEntry, target: Target) -> Entry:
    """What an entry says before anything is measured."""
    problem = entry.problem
    return Entry(
        id=entry.id or str(problem),
        family=entry.family,
        problem=str(problem),
        dtype=problem.dtype.value,
        direction=problem.direction.value,
        layout=problem.layout_name,
        accuracy=problem.accuracy.value,
        floor_us=microseconds(floor_seconds(problem, target)),
        flops=problem.flops,
        bytes=problem.bytes,
    )


def floor_seconds(problem: Any, target: Target) -> float:
    """The larger of arithmetic and compulsory traffic, at the rates the target can attain."""
    rates = target.attainable
    return float(max(problem.flops / rates.of(problem.dtype.value), problem.bytes / rates.bandwidth))


def attained(floor: float, seconds: float) -> float:
    """Fraction of the floor (seconds) reached."""
    return max(floor, LEAST_FLOOR) / seconds


def settled(blank: Entry, contest: Contest, lineup: Lineup, same: bool) -> Entry:
    """The entry with what the contest found; `same`: ours is the untuned default itself."""
    times, verdicts = contest.times, lineup.verdicts
    medians = {name: statistics.median(seconds) for name, seconds in times.items()}
    peers = [name for name in times if name in lineup.peers]
    best = min(peers, key=lambda name: medians[name], default=None)
    untuned = OURS if same else DEFAULT
    reasons = {**lineup.refused, **contest.lost}
    reasons |= {name: verdicts[name].reason for name in lineup.ours if not verdicts[name].ok}
    verdict = verdicts.get(OURS)
    made = dataclasses.replace(
        blank,
        **_comparison(times, best, untuned),
        ours_us=_us(medians, OURS),
        spread=_spread(times[OURS]) if OURS in times else None,
        prepare_us=_spared(times),
        frozen_us=_us(medians, FROZEN),
        default_us=_us(medians, untuned),
        peers={name: microseconds(medians[name]) for name in peers},
        peer_spreads={name: _spread(times[name]) for name in peers},
        peer_reasons={name: reason for name, reason in reasons.items() if name not in MINE},
        verified=verdict is not None and all(verdicts[name].ok for name in lineup.ours),
        reason="; ".join(name_and_reason(name, reasons[name]) for name in MINE if name in reasons),
        error=None if verdict is None else verdict.as_json(),
        peer_errors={name: verdicts[name].as_json() for name in lineup.peers},
        out_of_bound=[name for name in peers if not verdicts[name].ok],
        rounds=contest.rounds,
        repetitions=contest.repetitions,
        caches=lineup.caches,
    )
    floor = (blank.floor_us or 0.0) * 1e-6
    return dataclasses.replace(
        made,
        attained=round(attained(floor, medians[OURS]), 4) if OURS in medians else None,
        peer_attained=round(attained(floor, medians[best]), 4) if best is not None else None,
    )


def name_and_reason(name: str, reason: str) -> str:
    """A reason for ours speaks for itself; one for another contestant of ours says whose it is."""
    return reason if name == OURS else f"{name}: {reason}"


def quartiles(times: Sequence[float]) -> tuple[float, float, float]:
    """Median, low and high."""
    timing = Timing.of(times)
    return timing.median, timing.low, timing.high


def microseconds(seconds: float) -> float:
    """To the nanosecond."""
    return round(seconds * 1e6, 3)


def _comparison(times: Mapping[str, list[float]], best: str | None, untuned: str) -> dict[str, Any]:
    """The best peer over each of ours, round by round."""
    if best is None:
        return {}
    over = {name: order_interval(ratios(times[best], times[name])) for name in MINE if name in times}
    found: dict[str, Any] = {"best_peer": best}
    if OURS in over:
        median, low, high, confidence = (round(value, 4) for value in dataclasses.astuple(over[OURS]))
        found |= {"ratio": median, "ratio_low": low, "ratio_high": high, "confidence": confidence}
    for key, name in (("default_ratio", untuned), ("frozen_ratio", FROZEN)):
        if name in over:
            found[key] = round(over[name].median, 4)
    return found


def _spared(times: Mapping[str, list[float]]) -> float | None:
    """What declaring the weights constant spares a call, in microseconds."""
    if OURS not in times or FROZEN not in times:
        return None
    spared = [whole - frozen for whole, frozen in zip(times[OURS], times[FROZEN], strict=True)]
    return microseconds(max(0.0, statistics.median(spared)))


def _us(medians: Mapping[str, float], name: str) -> float | None:
    return microseconds(medians[name]) if name in medians else None


def _spread(times: Sequence[float]) -> tuple[float, float]:
    _, low, high = quartiles(times)
    return microseconds(low), microseconds(high)
