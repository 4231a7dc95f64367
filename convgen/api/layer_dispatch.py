"""Pooling and batch normalisation of arrays: from a call to running work."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from convgen.api import host
from convgen.api.calls import Calls, Entry
from convgen.api.choice import Chooser
from convgen.api.layer_arguments import TENSORS, Options, Request, request
from convgen.api.operands import Operand, check_writable, operand
from convgen.errors import UsageError
from convgen.runtime.cuda import CudaProgram
from convgen.runtime.physical import unflat
from convgen.runtime.sim import SimProgram
from convgen.runtime.transfer import to_gpu, to_host


class LayerDispatcher:
    """What every pooling and batch normalisation goes through. Thread-safe."""

    def __init__(self, chooser: Chooser) -> None:
        self._calls = Calls(chooser, "input", _understood)

    def call(self, given: Mapping[str, Any], options: Options) -> Any:
        """`given`: input, out and what else there is by name, None for what there is not. Returns y.

        Raises UsageError, ProblemError, NotApplicableError, DeviceError."""
        found = {name: operand(name, array) for name, array in given.items() if array is not None}
        if "input" not in found:
            raise UsageError("input is None, expected an array")

        def work(entry: Entry[Request]) -> Any:
            if entry.program is None:
                return self._through_gpu(entry.wanted, found, options)
            return _run(entry.wanted, entry.program, found)

        y = self._calls.run(found, options, work)
        return y if given.get("out") is None else given["out"]

    def _through_gpu(self, wanted: Request, found: Mapping[str, Operand], options: Options) -> Any:
        moved = {name: to_gpu(o.array) for name, o in found.items() if name != "out"}
        y = to_host(self.call(moved, options))
        for name in wanted.written:
            found[name].array[...] = to_host(moved[name])
        return _stored(y, found)


def _understood(found: Mapping[str, Operand], options: Options) -> Request:
    wanted = request({name: array.described for name, array in found.items()}, options)
    for name in ("out", *wanted.written):
        if name in found:
            check_writable(found[name])
    return wanted


def _run(wanted: Request, program: CudaProgram | SimProgram, found: Mapping[str, Operand]) -> Any:
    """The work of a call, in the shapes that the caller has."""
    inputs = {TENSORS[name]: _batched(wanted, o.array) for name, o in found.items() if name != "out"}
    written = {name: found[name].array for name in wanted.written}
    if isinstance(program, SimProgram):
        host.tell_once()
        dtypes = {"y": found["input"].array.dtype}
        outputs = {
            spec.name: unflat(spec, np.empty(spec.size, dtypes.get(spec.name, np.float32)))
            for spec in wanted.problem.outputs
        }
        program.run(inputs, outputs).require_clean()
        for name, array in written.items():
            array[...] = outputs[name]
        return _stored(outputs["y"] if wanted.is_batched else outputs["y"][0], found)
    if "out" in found:
        written["y"] = _batched(wanted, found["out"].array)
    # What training saves for its backward pass is no result of the call.
    unread = [spec.name for spec in wanted.problem.outputs if spec.name != "y"]
    y = program.run(inputs, written, unread=unread)["y"]
    return y if wanted.is_batched else y[0]


def _stored(y: Any, found: Mapping[str, Operand]) -> Any:
    """A NumPy result, in `out` if that is given."""
    if "out" not in found:
        return y
    found["out"].array[...] = y
    return found["out"].array


def _batched(wanted: Request, array: Any) -> Any:
    """The same memory with a batch."""
    return array if wanted.is_batched or array.ndim == 1 else array[None]
