"""How long each step of a trial may take, and how much trouble a tuner puts up with."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Seconds after which a process is stopped, by what it does. What is stopped is a trial's outcome, not an error."""

    build: float = 60.0
    """Lower, render and compile one candidate; on the simulator also its host compiler."""
    start: float = 300.0
    """Start the measuring process, make a problem's inputs and compute what is right."""
    load: float = 60.0
    """Load a candidate and launch it."""
    run: float = 10.0
    """Wait for its kernels on the GPU, once."""
    simulate: float | None = None
    """In the simulator, all runs that verify it. No limit of their own: it ends a block itself that takes longer than
    CONVGEN_SIM_TIMEOUT. What takes long there tells of this machine, not of the kernel: it is no hang."""
    verify: float = 120.0
    """Hold its answer against what is right."""
    time: float = 20.0
    """Capture a candidate's graph, and each round of timing."""
    replacements: int = 32
    """Measuring processes lost one after the other, with no right answer in between, before the tuner gives up."""

    @property
    def phases(self) -> dict[str, float | None]:
        """By what a measuring process announces."""
        return {
            "build": self.build,
            "load": self.load,
            "run": self.run,
            "simulate": self.simulate,
            "verify": self.verify,
            "time": self.time,
        }
