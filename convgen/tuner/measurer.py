"""What a measuring process must do, whatever it measures on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from convgen.problem import Problem
from convgen.processes import Announce
from convgen.tuner.builder import Build
from convgen.tuner.outcome import Outcome


@dataclass(frozen=True)
class Info:
    """What it measures on, and how that is at the moment; None is not known."""

    device: str
    driver: str = ""
    """Of the GPU, "580.159.04"."""
    cuda: str = ""
    """Version of the CUDA runtime, "13.0"."""
    sm_mhz: float | None = None
    celsius: float | None = None


@dataclass(frozen=True)
class Verdict:
    """`trusted`: whether the process can go on; else its memory or its context may be damaged."""

    outcome: Outcome
    trusted: bool = True


@dataclass(frozen=True)
class Finals:
    """For each build the seconds of every round; none for one that could not be timed."""

    seconds: list[list[float]]
    trusted: bool = True


class Measurer(Protocol):
    """Verifies and times builds for one problem at a time.

    What it announces: "build", "load", "run", "verify" and "time", each round anew.
    """

    def start(self, problem: Problem, seed: int) -> None:
        """Make the problem's inputs and what is right. Raises DeviceError or MemoryError if it cannot."""

    def measure(self, build: Build, incumbent: float | None, announce: Announce) -> Verdict:
        """Verify a build that is ok and, if it is right, time it against the incumbent's seconds.

        Raises DeviceError for what is wrong with the machine rather than with the build.
        """

    def finals(self, builds: Sequence[Build], rounds: int, announce: Announce) -> Finals:
        """Time builds that were right, in one interleaved session of as many rounds for each."""

    def info(self) -> Info:
        """The device, and its clock and temperature now."""
