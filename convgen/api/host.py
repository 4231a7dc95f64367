"""NumPy arrays: computed on the GPU if there is one, else in the simulator."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from convgen.api.arguments import OPERANDS, Request
from convgen.api.entries import OUT, WITH_BATCH, Operands
from convgen.api.notice import warn
from convgen.api.prepared import PreparedWeight
from convgen.plan import Plan
from convgen.render import render
from convgen.runtime import sim
from convgen.runtime.arrays import numpy_type
from convgen.runtime.physical import unflat
from convgen.runtime.transfer import to_gpu, to_host


class ThroughGpu:
    """Moves a call's arrays to the GPU, and its output back."""

    __slots__ = ("_call", "_prepared", "problem")

    def __init__(self, wanted: Request, call: Callable[[Operands], Any], prepared: PreparedWeight | None) -> None:
        """`call` takes operands in GPU memory."""
        self.problem = wanted.problem
        self._call = call
        self._prepared = prepared

    def __call__(self, operands: Operands) -> Any:
        moved = [None if array is None else to_gpu(array) for array in operands[:OUT]]
        if self._prepared is not None:
            moved[1] = self._prepared.on_gpu()
        y = to_host(self._call((*moved, None)))
        out = operands[OUT]
        if out is None:
            return y
        out[...] = y
        return out


class InSimulator:
    """Runs a plan on the CPU. Slow: it executes CUDA's model, thread by thread."""

    __slots__ = ("_is_batched", "_prepared", "_program", "problem")

    def __init__(self, wanted: Request, program: sim.SimProgram, prepared: PreparedWeight | None) -> None:
        self.problem = wanted.problem
        self._is_batched = wanted.is_batched
        self._program = program
        self._prepared = prepared

    def __call__(self, operands: Operands) -> Any:
        tell_once()
        inputs = {
            name: array if self._is_batched or index not in WITH_BATCH else array[None]
            for index, (name, array) in enumerate(zip(OPERANDS, operands, strict=False))
            if array is not None
        }
        if self._prepared is not None:
            inputs["w"] = self._prepared.weight
        [spec] = self.problem.outputs
        y = unflat(spec, np.empty(spec.size, numpy_type(spec.dtype)))
        self._program.run(inputs, {spec.name: y}).require_clean()
        result = y if self._is_batched else y[0]
        out = operands[OUT]
        if out is None:
            return result
        out[...] = result
        return out


def build_for_cpu(plan: Plan) -> sim.SimProgram:
    """Raises CompileError, DeviceError if there is no host compiler."""
    [program] = sim.build([plan], [render(plan)], sim.Mode.FAST)
    return program


def tell_once() -> None:
    """Warn, once in a process, that the simulator stands in for a GPU."""
    global _told
    with _lock:
        if _told:
            return
        _told = True
    warn("no GPU: NumPy arrays are computed by the simulator, which is slow; `convgen doctor` tells what is missing")


_told = False
_lock = threading.Lock()
