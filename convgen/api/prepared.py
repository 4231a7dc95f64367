"""A weight declared constant: what depends on it alone is computed once and kept."""

from __future__ import annotations

import threading
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

from convgen.runtime.transfer import to_gpu

if TYPE_CHECKING:
    from convgen.api.entries import Entry
    from convgen.runtime.cuda import CudaProgram
    from convgen.runtime.prepared import PreparedWeights


class PreparedWeight:
    """What `prepare` returns, to be passed in place of `weight` to any number of convolutions, threads and streams.

    For each problem it is used in it keeps what the kernel can be given ahead: the weights in the kernel's memory
    format, transformed, or in constant memory. Keep it as long as CUDA graphs that were captured with it.
    """

    def __init__(self, weight: Any) -> None:
        # Being constant, it has no gradient.
        self.weight = weight.detach() if getattr(weight, "requires_grad", False) else weight
        self.calls: dict[Hashable, Entry] = {}
        """Calls bound to this weight, by signature."""
        self.states: dict[CudaProgram, PreparedWeights] = {}
        self._lock = threading.Lock()
        self._on_gpu: PreparedWeight | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.weight.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of GPU memory that it holds beside the weight it was made of."""
        held = sum(state.nbytes for state in list(self.states.values()))
        moved = self._on_gpu
        return held if moved is None else held + int(moved.weight.nbytes) + moved.nbytes

    def on_gpu(self) -> PreparedWeight:
        """For a NumPy weight: the same in GPU memory, moved there once."""
        with self._lock:
            if self._on_gpu is None:
                self._on_gpu = PreparedWeight(to_gpu(self.weight))
            return self._on_gpu

    def __repr__(self) -> str:
        problems = len(self.states) if self._on_gpu is None else len(self._on_gpu.states)
        return f"<PreparedWeight {self.shape}, {self.nbytes} bytes for {problems} problems>"
