"""Pooling and batch normalisation of arrays: from a call to running work, with what calls of a kind need looked up by
their signature."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from convgen.api import host, settings
from convgen.api.choice import Chooser
from convgen.api.dispatch import MAX_CALLS, target_of
from convgen.api.layer_arguments import TENSORS, Options, Request, request
from convgen.api.operands import Operand, check_same_place, check_writable, operand
from convgen.compiler import compile_cuda
from convgen.errors import UsageError
from convgen.plan import Plan
from convgen.render import render
from convgen.runtime.cuda import CudaProgram, load
from convgen.runtime.driver import is_capturing, relaxed_capture
from convgen.runtime.physical import unflat
from convgen.runtime.sim import SimProgram
from convgen.runtime.transfer import has_gpu, to_gpu, to_host
from convgen.target import DEFAULT_TARGET, Target


@dataclass(frozen=True, slots=True)
class _Entry:
    """What calls of one signature need."""

    wanted: Request
    program: CudaProgram | SimProgram | None
    """None where NumPy arrays are computed on a GPU: they are a call of another signature there."""


class LayerDispatcher:
    """What every pooling and batch normalisation goes through. Thread-safe."""

    def __init__(self, chooser: Chooser) -> None:
        self._chooser = chooser
        self._calls: dict[Hashable, _Entry] = {}
        self._programs: dict[Hashable, CudaProgram | SimProgram] = {}
        self._lock = threading.Lock()

    def call(self, given: Mapping[str, Any], options: Options) -> Any:
        """`given`: input, out and what else there is by name, None for what there is not. Returns y.

        Raises UsageError, ProblemError, NotApplicableError, DeviceError."""
        found = {name: operand(name, array) for name, array in given.items() if array is not None}
        if "input" not in found:
            raise UsageError("input is None, expected an array")
        _refuse_gradient(found)
        signatures = tuple((name, type(o.array), o.signature(o.array)) for name, o in found.items())
        key = (options, settings.current(), *signatures)
        entry = self._calls.get(key)
        if entry is None:
            entry = self._bind(found, options)
            if entry.program is None or not _is_capturing(found["input"]):
                with self._lock:
                    while len(self._calls) >= MAX_CALLS:
                        self._calls.pop(next(iter(self._calls)))
                    self._calls[key] = entry
        if entry.program is None:
            return self._through_gpu(entry.wanted, found, options)
        return _run(entry.wanted, entry.program, found)

    def _bind(self, found: Mapping[str, Operand], options: Options) -> _Entry:
        check_same_place(tuple(found.values()))
        wanted = request({name: array.described for name, array in found.items()}, options)
        for name in ("out", *wanted.written):
            if name in found:
                check_writable(found[name])
        first = found["input"]
        if first.library is None and has_gpu():
            return _Entry(wanted, None)
        setting, problem = settings.current(), wanted.problem
        target = Target.preset(DEFAULT_TARGET) if first.library is None else target_of(first.device)

        def make(plan: Plan) -> CudaProgram | SimProgram:
            place = (first.device, plan.problem, plan.strategy, plan.config)
            if place not in self._programs:
                if first.library is None:
                    self._programs[place] = host.build_for_cpu(plan)
                else:
                    self._programs[place] = load(plan, compile_cuda(render(plan), target, name=f"{plan.name}.cu"))
            program = self._programs[place]
            if first.library is not None and isinstance(program, CudaProgram):
                program.load_on(first.device, first.library.current_stream(first.device))
            return program

        # A first call may come while a graph is captured: it loads code and asks for the device's properties.
        relaxed = contextlib.nullcontext() if first.library is None else relaxed_capture()
        with self._chooser.lock(problem), relaxed:
            if first.library is not None and setting.mode == "on_miss" and not _is_capturing(first):
                self._chooser.tune(problem, target, first.device, setting)
            _, program = self._chooser.choose(problem, target, setting, wanted.workspace_limit, make)
        return _Entry(wanted, program)

    def _through_gpu(self, wanted: Request, found: Mapping[str, Operand], options: Options) -> Any:
        moved = {name: to_gpu(o.array) for name, o in found.items() if name != "out"}
        y = to_host(self.call(moved, options))
        for name in wanted.written:
            found[name].array[...] = to_host(moved[name])
        return _stored(y, found)


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
    y = program.run(inputs, written)["y"]
    if "out" in found:
        return found["out"].array
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


def _is_capturing(first: Operand) -> bool:
    return first.library is not None and is_capturing(first.library.current_stream(first.device))


def _refuse_gradient(found: Mapping[str, Operand]) -> None:
    names = [name for name, o in found.items() if getattr(o.array, "requires_grad", False)]
    if names and sys.modules["torch"].is_grad_enabled():
        raise UsageError(
            f"{', '.join(names)} requires grad, but there are no backward kernels yet: call under torch.no_grad()"
        )
