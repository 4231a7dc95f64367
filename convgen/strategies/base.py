"""The contract every strategy keeps."""

from __future__ import annotations

from typing import Any, Protocol

from convgen.plan import Plan
from convgen.problem import Problem
from convgen.space import Space
from convgen.target import Target


class Strategy(Protocol):
    """An algorithm for a problem. Stateless: every method is a pure function of its arguments.

    `Any` stands for the problem it solves, and for the strategy's own config class, whose base is `space.Config`.
    """

    @property
    def solves(self) -> type[Problem]:
        """The type of problem it is for."""

    template: str
    """Beneath `templates/`: what its kernels are made of; or the absolute path of one outside the package."""

    name: str
    """Template name, database key and test name. Never changes."""

    summary: str
    """One line for `convgen list strategies`."""

    calibrated: bool
    """Whether `cost` has been fitted to kernels that ran on a GPU: untuned, only such strategies are chosen among, as
    long as one of them applies."""

    def why_not(self, problem: Any, target: Target) -> str | None:
        """The reason the strategy does not apply, as a sentence; None if it does."""

    def space(self, problem: Any, target: Target) -> Space:
        """The dimensions worth searching for this problem."""

    def check(self, problem: Any, config: Any, target: Target) -> None:
        """Raise ConfigError with the broken rule and its why. The one legality check there is."""

    def default(self, problem: Any, target: Target) -> Any:
        """A config that always passes `check`, in constant time."""

    def cost(self, problem: Any, config: Any, target: Target) -> float:
        """Predicted seconds: traffic, FMA issue, occupancy, waves and launches."""

    def lower(self, problem: Any, config: Any, target: Target) -> Plan:
        """The plan for a config that passes `check`."""
