"""Attention of arrays: from a call to running work, with what calls of a kind need looked up by their signature."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from convgen.api import host, settings
from convgen.api.attention_arguments import Options, Request, request
from convgen.api.choice import Chooser
from convgen.api.dispatch import MAX_CALLS, target_of
from convgen.api.operands import Operand, check_same_place, check_writable, operand
from convgen.compiler import compile_cuda
from convgen.errors import UsageError
from convgen.plan import Plan
from convgen.problem import TensorSpec
from convgen.render import render
from convgen.runtime.cuda import CudaProgram, load
from convgen.runtime.driver import is_capturing, relaxed_capture
from convgen.runtime.physical import unflat
from convgen.runtime.sim import SimProgram
from convgen.runtime.transfer import has_gpu, to_gpu, to_host
from convgen.target import DEFAULT_TARGET, Target

_TENSORS = {"query": "q", "key": "k", "value": "v", "alibi_slopes": "alibi", "sink": "sink"}
"""A call's arrays, and the problem's names of them; attn_mask is its mask or its bias."""


@dataclass(frozen=True, slots=True)
class _Entry:
    """What calls of one signature need."""

    wanted: Request
    program: CudaProgram | SimProgram | None
    """None where NumPy arrays are computed on a GPU: they are a call of another signature there."""


class AttentionDispatcher:
    """What every attention goes through. Thread-safe."""

    def __init__(self, chooser: Chooser) -> None:
        self._chooser = chooser
        self._calls: dict[Hashable, _Entry] = {}
        self._programs: dict[Hashable, CudaProgram | SimProgram] = {}
        self._lock = threading.Lock()

    def call(self, given: Mapping[str, Any], options: Options) -> Any:
        """`given`: query, key, value, attn_mask, alibi_slopes, sink and out by name, None for what there is not.

        Returns the output, or (output, lse) if that is asked for. Raises UsageError, ProblemError, NotApplicableError,
        DeviceError."""
        found = {name: operand(name, array) for name, array in given.items() if array is not None}
        for name in ("query", "key", "value"):
            if name not in found:
                raise UsageError(f"{name} is None, expected an array")
        _refuse_gradient(found)
        key = (options, settings.current(), *((name, type(o.array), o.signature(o.array)) for name, o in found.items()))
        entry = self._calls.get(key)
        if entry is None:
            entry = self._bind(found, options)
            if entry.program is None or not _is_capturing(found["query"]):
                with self._lock:
                    while len(self._calls) >= MAX_CALLS:
                        self._calls.pop(next(iter(self._calls)))
                    self._calls[key] = entry
        if entry.program is None:
            return self._through_gpu(found, options)
        return _run(entry.wanted, entry.program, found)

    def _bind(self, found: Mapping[str, Operand], options: Options) -> _Entry:
        check_same_place(tuple(found.values()))
        wanted = request({name: array.described for name, array in found.items()}, options)
        if "out" in found:
            check_writable(found["out"])
        first = found["query"]
        if first.library is None and has_gpu():
            return _Entry(wanted, None)
        setting = settings.current()
        problem = wanted.problem
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

    def _through_gpu(self, found: Mapping[str, Operand], options: Options) -> Any:
        moved = {name: to_gpu(o.array) for name, o in found.items() if name != "out"}
        result = self.call(moved, options)
        o, *others = result if isinstance(result, tuple) else (result,)
        output = to_host(o)
        if "out" in found:
            found["out"].array[...] = output
            output = found["out"].array
        return (output, *map(to_host, others)) if others else output


def _run(wanted: Request, program: CudaProgram | SimProgram, found: Mapping[str, Operand]) -> Any:
    """The work of a call, in the shapes that the caller has."""
    inputs = {_TENSORS[name]: o.array for name, o in found.items() if name in _TENSORS}
    for name in ("q", "k", "v"):
        inputs[name] = _four(inputs[name], wanted.rank)
    if wanted.mask is not None:
        inputs[wanted.mask] = _spread(wanted, found["attn_mask"])
    out = found["out"].array if "out" in found else None
    if isinstance(program, SimProgram):
        outputs = _simulate(wanted, program, inputs, found["query"].array.dtype)
        if out is not None:
            out[...] = outputs["o"].reshape(wanted.shape)
    else:
        outputs = program.run(inputs, None if out is None else {"o": _four(out, wanted.rank)})
    o = outputs["o"].reshape(wanted.shape) if out is None else out
    return (o, outputs["lse"].reshape(wanted.lse_shape)) if wanted.return_lse else o


def _simulate(wanted: Request, program: SimProgram, inputs: Mapping[str, Any], dtype: Any) -> dict[str, Any]:
    host.tell_once()
    problem = wanted.problem.with_sizes(wanted.problem.sizes_of(lambda name: inputs[name].shape))
    outputs = {spec.name: _empty(spec, dtype if spec.name == "o" else np.float32) for spec in problem.outputs}
    program.run(inputs, outputs).require_clean()
    return outputs


def _empty(spec: TensorSpec, dtype: Any) -> Any:
    return unflat(spec, np.empty(spec.size, dtype))


def _four(array: Any, rank: int) -> Any:
    """The same memory as (B, H, S, D)."""
    if rank == 4:
        return array
    return array[:, None] if rank == 3 else array[None, None]


def _spread(wanted: Request, mask: Operand) -> Any:
    """attn_mask as the problem has it: of its kind's axes, those of extent 1 repeated without a copy; bool as bytes."""
    array = mask.array
    if wanted.mask == "mask":
        array = array.view(sys.modules["torch"].uint8 if hasattr(array, "data_ptr") else np.uint8)
    while array.ndim < 4:
        array = array[None]
    array = array[tuple(slice(None) if axis in wanted.mask_axes else 0 for axis in range(4))]
    if hasattr(array, "expand"):
        return array.expand(wanted.mask_shape)
    module = sys.modules["cupy"] if mask.library is not None else np
    return module.broadcast_to(array, wanted.mask_shape)


def _is_capturing(first: Operand) -> bool:
    return first.library is not None and is_capturing(first.library.current_stream(first.device))


def _refuse_gradient(found: Mapping[str, Operand]) -> None:
    names = [name for name, o in found.items() if getattr(o.array, "requires_grad", False)]
    if names and sys.modules["torch"].is_grad_enabled():
        raise UsageError(
            f"{', '.join(names)} requires grad, but there are no backward kernels yet: call under torch.no_grad()"
        )
