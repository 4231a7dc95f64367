"""What the embedding functions ask: the database and, on a miss that is to be tuned, a tuner."""

from __future__ import annotations

import threading
from collections.abc import Iterator

from convgen.problem import Problem
from convgen.target import Target
from convgen.tuner.decide import Decision, ranked
from convgen.tuner.events import Budget
from convgen.tuner.session import Tuner
from tuning_db import Layers, open_layers

IDLE_SECONDS = 20.0
"""How long a tuner's processes, and the GPU memory they hold, wait for the next problem."""


class DatabaseDecider:
    """Decisions from the layers of tuning databases, opened when first asked. Thread-safe; one search at a time."""

    def __init__(self, layers: Layers | None = None) -> None:
        self._layers = layers
        self._opening = threading.Lock()
        self._searching = threading.Lock()
        self._tuner: tuple[tuple[Target, int, Budget], Tuner] | None = None
        self._idle: threading.Timer | None = None

    @property
    def layers(self) -> Layers:
        """The user's database, the shared one and the winners that ship."""
        with self._opening:
            if self._layers is None:
                self._layers = open_layers()
            return self._layers

    def ranked(self, problem: Problem, target: Target) -> Iterator[Decision]:
        """Best first: what was tuned, neighbours' winners, the defaults. Raises NotApplicableError."""
        return ranked(problem, target, self.layers)

    def tune(
        self, problem: Problem, target: Target, device: int, *, time_limit: float | None, trials: int | None
    ) -> None:
        """Search the problem on that device, and record what is found. Raises DeviceError, NotApplicableError."""
        with self._searching:
            self._tuner_for(target, device, Budget(trials=trials, seconds=time_limit)).tune(problem)
            self._idle = threading.Timer(IDLE_SECONDS, self._end_idle)
            self._idle.daemon = True
            self._idle.start()

    def close(self) -> None:
        """End the tuner's processes, and close the databases."""
        with self._searching:
            self._end()
        with self._opening:
            if self._layers is not None:
                self._layers.close()
                self._layers = None

    def _tuner_for(self, target: Target, device: int, budget: Budget) -> Tuner:
        if self._idle is not None:
            self._idle.cancel()
        wanted = (target, device, budget)
        if self._tuner is None or self._tuner[0] != wanted:
            self._end()
            tuner = Tuner(target, database=self.layers, budget=budget, devices=(device,))
            self._tuner = wanted, tuner
        return self._tuner[1]

    def _end_idle(self) -> None:
        # A search that has begun since then keeps its tuner.
        if self._searching.acquire(blocking=False):
            try:
                self._end()
            finally:
                self._searching.release()

    def _end(self) -> None:
        if self._tuner is not None:
            self._tuner[1].close()
            self._tuner = None
