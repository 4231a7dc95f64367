"""A GPU's clock for tests: streams whose time passes as work is launched, and the part of CuPy that reads it."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

LAUNCH_SECONDS = 8e-6
"""What launching takes where the GPU has nothing else to do."""


class FakeStream:
    """Work on it takes as long as it says; `log` has the names of what ran, captured or not."""

    def __init__(self) -> None:
        self.now = 0.0
        self.log: list[str] = []
        self.graphs: list[int] = []
        self._captured: list[tuple[str, float]] | None = None
        self._idle = True

    def work(self, name: str, seconds: float) -> Callable[[], None]:
        """What puts a kernel of that length on the stream."""

        def launch() -> None:
            if self._captured is not None:
                self._captured.append((name, seconds))
            else:
                self._run([(name, seconds)])

        return launch

    def _run(self, kernels: list[tuple[str, float]]) -> None:
        self.now += sum(seconds for _, seconds in kernels) + (LAUNCH_SECONDS if self._idle else 0.0)
        self.log.extend(name for name, _ in kernels)
        self._idle = False

    def begin_capture(self) -> None:
        assert self._captured is None
        self._captured = []

    def end_capture(self) -> Any:
        assert self._captured is not None
        kernels, self._captured = self._captured, None
        self.graphs.append(len(kernels))
        return types.SimpleNamespace(launch=lambda stream: stream._run(kernels))

    def synchronize(self) -> None:
        self._idle = True


class FakeEvent:
    def record(self, stream: FakeStream) -> None:
        self._stream = stream
        self.time = stream.now

    def synchronize(self) -> None:
        self._stream.synchronize()


def fake_cupy() -> types.ModuleType:
    """`cupy` as far as `convgen.measure` times with it; elapsed times are in milliseconds."""
    module = types.ModuleType("cupy")
    module.cuda = types.SimpleNamespace(  # type: ignore[attr-defined]
        Event=FakeEvent, get_elapsed_time=lambda begin, end: (end.time - begin.time) * 1e3
    )
    return module
