"""What a program computed from weights declared constant, and when it is there."""

from __future__ import annotations

from typing import Any

from convgen.runtime.driver import check, driver, is_capturing, relaxed_capture
from convgen.runtime.module import Module


class PreparedWeights:
    """One program's prepare steps done on one device. Serves every stream, thread and captured graph.

    Keep it as long as graphs that were captured with it. `nbytes` is the device memory it holds beside the weights.
    """

    def __init__(
        self,
        *,
        device: int,
        module: Module | None,
        addresses: dict[str, int],
        weights_range: tuple[int, int],
        owners: list[Any],
        nbytes: int,
        stream: int | None,
    ) -> None:
        """In the device's context. `stream` has the work that fills the memory; None if there was none."""
        self.device = device
        self.module = module
        self.addresses = addresses
        self.weights_range = weights_range
        self.nbytes = nbytes
        self._owners = owners
        self._event: Any = None
        if stream is not None:
            cuda = driver()
            self._event = check(cuda.cuEventCreate(cuda.CUevent_flags.CU_EVENT_DISABLE_TIMING))
            check(cuda.cuEventRecord(self._event, cuda.CUstream(stream)))
        self.is_settled = stream is None
        """Whether the work is known to be done, so that nothing need wait for it."""

    def order(self, stream: int) -> None:
        """Let what is put on the stream from now on come after the preparation."""
        if self.is_settled:
            return
        cuda = driver()
        with relaxed_capture():
            if cuda.cuEventQuery(self._event)[0]:  # not reached yet
                if not is_capturing(stream):
                    check(cuda.cuStreamWaitEvent(cuda.CUstream(stream), self._event, 0))
                    return
                # A graph cannot wait for what happened outside of it, so whoever captures does.
                check(cuda.cuEventSynchronize(self._event))
        self.is_settled = True
