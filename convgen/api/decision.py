"""Which strategy and config a problem is computed with: decisions, who takes them, and their text."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from convgen.errors import UsageError
from convgen.lowering import applicable
from convgen.problem import Problem
from convgen.space import Config
from convgen.strategies import Strategy, get_strategy
from convgen.target import Target

VERSION = 1


class Decision(Protocol):
    """A strategy with a config, and where they come from: "frozen", or as in `tuner.decide.Decision`."""

    @property
    def strategy(self) -> Strategy: ...

    @property
    def config(self) -> Config: ...

    @property
    def origin(self) -> str: ...


class Decider(Protocol):
    """Takes decisions from what has been tuned. Used from several threads; what goes wrong in it is told, and the cost
    model decides."""

    def ranked(self, problem: Problem, target: Target) -> Iterable[Decision]:
        """At once, best first: what was tuned, what was tuned for similar problems, then every strategy's default.

        Raises NotApplicableError if no strategy applies.
        """

    def tune(
        self, problem: Problem, target: Target, device: int, *, time_limit: float | None, trials: int | None
    ) -> None:
        """Measure on the device and remember, so that the winner is what `ranked` gives first from now on."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """A decision of this package's own."""

    strategy: Strategy
    config: Config
    origin: str


def predicted(problem: Problem, target: Target) -> tuple[Chosen, ...]:
    """Every applicable strategy with its default config, fastest by the cost model first. Raises NotApplicableError."""
    return tuple(Chosen(s, s.default(problem, target), "predicted") for s in applicable(problem, target))


# --- as text ---------------------------------------------------------------------------------------------

Place = tuple[str, str, str, int]
"""Problem, and the device's name, compute capability and SM count."""


def place_of(problem: Problem, target: Target) -> Place:
    major, minor = target.compute_capability
    return str(problem), target.name, f"{major}.{minor}", target.sm_count


@dataclass(frozen=True, slots=True)
class Stated:
    """A decision as text has it. Not checked: it may name what there is not."""

    strategy: str
    config: Mapping[str, Any]

    def decision(self, problem: Problem, target: Target) -> Chosen:
        """Raises UsageError for a strategy that there is not, ConfigError for fields it does not have."""
        strategy = get_strategy(self.strategy)
        return Chosen(strategy, strategy.space(problem, target).config_type.from_mapping(self.config), "frozen")


@dataclass(frozen=True, slots=True)
class Table:
    """Stated decisions by place."""

    entries: Mapping[Place, Stated]

    def find(self, problem: Problem, target: Target) -> Stated | None:
        """The decision for this very device, else for the first of any device."""
        place = place_of(problem, target)
        if place in self.entries:
            return self.entries[place]
        return next((stated for other, stated in self.entries.items() if other[0] == place[0]), None)


def write_decisions(decisions: Iterable[tuple[Place, Decision]]) -> str:
    """JSON text, a line a decision, sorted: equal decisions give equal text."""
    lines = []
    for (problem, device, capability, sm_count), decision in sorted(decisions, key=lambda item: item[0]):
        entry = {
            "problem": problem,
            "device": device,
            "capability": capability,
            "sm_count": sm_count,
            "strategy": decision.strategy.name,
            "config": decision.config.as_dict(),
        }
        lines.append(json.dumps(entry))
    return f'{{"version": {VERSION}, "decisions": [\n' + ",\n".join(lines) + "\n]}"


def read_decisions(text: str) -> Table:
    """Raises UsageError for what is not such a text; what its entries say is checked when they are used."""
    try:
        content = json.loads(text)
        if content["version"] != VERSION:
            raise UsageError(f"decisions: version {content['version']}, expected {VERSION}: use one version of convgen")
        entries = {_place(entry): Stated(entry["strategy"], dict(entry["config"])) for entry in content["decisions"]}
    except (TypeError, ValueError, KeyError, RecursionError) as error:
        raise UsageError(f"decisions: not the text of convgen.decisions() ({error!r})") from error
    return Table(dict(sorted(entries.items())))


def _place(entry: Mapping[str, Any]) -> Place:
    return str(entry["problem"]), str(entry["device"]), str(entry["capability"]), int(entry["sm_count"])
