"""From a problem to something that computes it: the first decision whose plan fits, compiles and loads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterator
from typing import Any, TypeVar

from convgen.api.decision import Chosen, Decider, Decision, Place, place_of, predicted, write_decisions
from convgen.api.notice import warn
from convgen.api.settings import Setting
from convgen.errors import NotApplicableError, UsageError
from convgen.lowering import lower
from convgen.plan import Plan
from convgen.problem import Problem
from convgen.target import Target

Made = TypeVar("Made")


class Chooser:
    """Takes decisions by a `Setting`, and remembers those taken. Thread-safe.

    What a database, a neighbour or a text proposes is only a proposal: what breaks a rule, does not compile or does not
    load is passed over with one warning. Only a strategy's own default, for which nothing is left to stand in, raises.
    """

    def __init__(self, decider: Callable[[], Decider]) -> None:
        """`decider` is called when a decision first asks for one."""
        self._decider = decider
        self._taken: dict[tuple[Any, ...], Decision] = {}
        self._latest: dict[Place, Decision] = {}
        self._searched: set[tuple[Problem, Target]] = set()
        self._rejected: set[tuple[Problem, Target, str, str]] = set()
        self._told: set[str] = set()
        self._locks: dict[Problem, threading.RLock] = {}

    def lock(self, problem: Problem) -> threading.RLock:
        """What is held while a problem is decided, tuned and compiled, so that two threads do not both do it."""
        return self._locks.setdefault(problem, threading.RLock())

    def choose(
        self,
        problem: Problem,
        target: Target,
        setting: Setting,
        workspace_limit: int | None,
        make: Callable[[Plan], Made],
    ) -> tuple[Decision, Made]:
        """The decision and what `make` made of its plan.

        Raises NotApplicableError if no strategy applies, UsageError naming the least workspace if all need more, and
        what `make` raises for a strategy's default.
        """
        key = (problem, target, _source(setting), workspace_limit)
        least: int | None = None
        for decision in self._proposals(key, problem, target, setting):
            mark = (problem, target, decision.strategy.name, str(decision.config))
            if mark in self._rejected:
                continue
            try:
                plan = lower(problem, decision.strategy, decision.config, target)
                needed = plan.workspace_bytes(problem.sizes)
                if workspace_limit is not None and needed > workspace_limit:
                    least = needed if least is None else min(least, needed)
                    continue
                made = make(plan)
            # A stored config is anybody's data, and nothing it does to a strategy may fail the convolution.
            except Exception as error:
                if decision.origin == "predicted":
                    raise
                self.reject(problem, target, decision, error)
                continue
            self._taken[key] = decision
            self._latest[place_of(problem, target)] = decision
            return decision, made
        raise UsageError(f"workspace_limit={workspace_limit}: {problem} needs at least {least} bytes")

    def reject(self, problem: Problem, target: Target, decision: Decision, error: Exception) -> None:
        """Never propose it again in this process, and say so."""
        self._rejected.add((problem, target, decision.strategy.name, str(decision.config)))
        self.forget(problem)
        self.tell(
            f"{decision.strategy.name} with {decision.config}, {decision.origin} for {problem}, cannot be used "
            f"({error}), so the next best is taken"
        )

    def tune(self, problem: Problem, target: Target, device: int, setting: Setting) -> bool:
        """Tune the problem if it is not, once in a process. Whether that was done."""
        if (problem, target) in self._searched:
            return False
        self._searched.add((problem, target))
        best = next(iter(self._ranking(problem, target)))
        if best.origin == "tuned":
            return False
        try:
            self._decider().tune(problem, target, device, time_limit=setting.time_limit, trials=setting.trials)
        except NotApplicableError:
            raise
        except Exception as error:
            self.tell(f"{problem} could not be tuned ({error}); the best known is used")
        self.forget(problem)
        return True

    def forget(self, problem: Problem | None = None) -> None:
        """Decide a problem anew, or every one."""
        for key in [key for key in list(self._taken) if problem in (None, key[0])]:
            self._taken.pop(key, None)

    def decisions(self) -> str:
        """The text of the latest decision for every problem and device."""
        return write_decisions(list(self._latest.items()))

    def tell(self, text: str) -> None:
        """Warn, once for a text."""
        if text not in self._told:
            self._told.add(text)
            warn(text)

    def _proposals(
        self, key: tuple[Any, ...], problem: Problem, target: Target, setting: Setting
    ) -> Iterator[Decision]:
        if key in self._taken:
            yield self._taken[key]
        if setting.mode in ("cached", "on_miss"):
            yield from self._ranking(problem, target)
            return
        if setting.frozen is not None and (stated := self._stated(problem, target, setting)) is not None:
            yield stated
        yield from predicted(problem, target)

    def _ranking(self, problem: Problem, target: Target) -> Iterator[Decision]:
        """The decider's proposals, each asked for when those before it will not do; in trouble the cost model's."""
        given = False
        try:
            for decision in self._decider().ranked(problem, target):
                given = True
                yield decision
            if given:
                return
        except NotApplicableError:
            raise
        except Exception as error:
            self.tell(f"what is tuned cannot be asked for ({error}); the cost model decides")
        yield from predicted(problem, target)

    def _stated(self, problem: Problem, target: Target, setting: Setting) -> Chosen | None:
        stated = None if setting.frozen is None else setting.frozen.find(problem, target)
        if stated is None:
            return None
        try:
            return stated.decision(problem, target)
        except Exception as error:
            self.tell(f"the decision for {problem} cannot be used ({error}); the cost model decides")
            return None


def _source(setting: Setting) -> Hashable:
    return "database" if setting.mode in ("cached", "on_miss") else setting
