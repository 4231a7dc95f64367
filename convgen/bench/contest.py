"""Timing contestants in turn: as many repetitions each, captured the same way, replayed round by round.

How long that takes is planned from a first look at each: a slow kernel is not repeated more than a median needs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from convgen import measure
from convgen.errors import ConvgenError
from convgen.measure import DIRECT_SECONDS, Replay

LEAST_ROUNDS = 7
MOST_ROUNDS = 15

TIMING_SECONDS = 0.3
"""What the timed part of a contest aims at; more if seven rounds of single calls take longer."""


class Contestant(Protocol):
    """One way to compute a problem, on rotating sets of buffers."""

    name: str

    def run(self, index: int) -> Any:
        """Put the computation, on the set of buffers of that index, on the stream."""

    def capture(self, repetitions: int) -> Replay:
        """The computation so many times, on one set of buffers after the other, as a graph."""


class Arena(Protocol):
    """Where contestants are timed: the GPU, or a stand-in for it."""

    sets: int
    """Sets of buffers there are."""

    def once(self, contestant: Contestant) -> float:
        """Seconds of one call, roughly, after a first that is not timed."""

    def times(self, replays: Mapping[str, Replay], rounds: int) -> dict[str, list[float]]:
        """Seconds of one repetition of each in every round, interleaved."""


@dataclass(frozen=True)
class Contest:
    """Seconds of one call by contestant, one a round; `lost` has the reasons of those that could not be timed."""

    times: Mapping[str, list[float]]
    repetitions: int
    rounds: int
    lost: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Schedule:
    """Calls in a graph, and how often each graph is replayed."""

    repetitions: int
    rounds: int

    @classmethod
    def of(cls, estimates: Sequence[float], sets: int, rounds: int | None = None) -> Schedule:
        """For contestants that take about so many seconds a call, with so many sets of buffers.

        All have the same repetitions: those that `measure.repetitions` gives the fastest; fewer, but half a cycle
        through the sets at least, where the least number of rounds would pass TIMING_SECONDS; one where even the
        fastest takes so long that neither its launch nor the caches matter. `rounds` are taken as given.
        """
        together, fastest = max(sum(estimates), 1e-9), min(estimates, default=DIRECT_SECONDS)
        least = LEAST_ROUNDS if rounds is None else rounds
        affordable = int(TIMING_SECONDS / (together * (least + 1)))
        repetitions = 1
        if fastest < DIRECT_SECONDS:
            repetitions = max(min(measure.repetitions(fastest, sets), affordable), -(-sets // 2))
        fitting = int(TIMING_SECONDS / (together * repetitions)) - 1
        return cls(repetitions, rounds or max(LEAST_ROUNDS, min(fitting, MOST_ROUNDS)))


def hold(arena: Arena, contestants: Iterable[Contestant], rounds: int | None = None) -> Contest:
    """Time all that can be timed. What a contestant raises on the way is its reason, and no other's trouble."""
    estimates: dict[str, float] = {}
    present: list[Contestant] = []
    lost: dict[str, str] = {}
    for contestant in contestants:
        try:
            estimates[contestant.name] = arena.once(contestant)
            present.append(contestant)
        except Exception as error:  # another library's: it may raise anything
            lost[contestant.name] = sentence(error)
    schedule = Schedule.of(list(estimates.values()), arena.sets, rounds)
    replays: dict[str, Replay] = {}
    for contestant in present:
        try:
            replays[contestant.name] = contestant.capture(schedule.repetitions)
        except Exception as error:
            lost[contestant.name] = sentence(error)
    times = arena.times(replays, schedule.rounds) if replays else {}
    return Contest(times, schedule.repetitions, schedule.rounds, lost)


def sentence(error: BaseException) -> str:
    """The first line of what went wrong, with the kind of an error that is not convgen's."""
    text = str(error).strip().split("\n")[0][:200]
    return text if isinstance(error, ConvgenError) and text else f"{type(error).__name__}: {text}".rstrip(": ")
