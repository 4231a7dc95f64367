"""Attention of arrays: from a call to running work."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from convgen.api import host
from convgen.api.attention_arguments import Options, Request, request
from convgen.api.calls import Calls, Entry
from convgen.api.choice import Chooser
from convgen.api.operands import Operand, check_writable, operand
from convgen.errors import UsageError
from convgen.problem import TensorSpec
from convgen.runtime.cuda import CudaProgram
from convgen.runtime.physical import unflat
from convgen.runtime.sim import SimProgram
from convgen.runtime.transfer import to_gpu, to_host

_TENSORS = {"query": "q", "key": "k", "value": "v", "alibi_slopes": "alibi", "sink": "sink"}
"""A call's arrays, and the problem's names of them; attn_mask is its mask or its bias."""


class AttentionDispatcher:
    """What every attention goes through. Thread-safe."""

    def __init__(self, chooser: Chooser) -> None:
        self._calls = Calls(chooser, "query", _understood)

    def call(self, given: Mapping[str, Any], options: Options) -> Any:
        """`given`: query, key, value, attn_mask, alibi_slopes, sink and out by name, None for what there is not.

        Returns the output, or (output, lse) if that is asked for. Raises UsageError, ProblemError, NotApplicableError,
        DeviceError."""
        found = {name: operand(name, array) for name, array in given.items() if array is not None}
        for name in ("query", "key", "value"):
            if name not in found:
                raise UsageError(f"{name} is None, expected an array")

        def work(entry: Entry[Request]) -> Any:
            if entry.program is None:
                return self._through_gpu(found, options)
            return _run(entry.wanted, entry.program, found)

        result = self._calls.run(found, options, work)
        if given.get("out") is None:
            return result
        return (given["out"], result[1]) if isinstance(result, tuple) else given["out"]

    def _through_gpu(self, found: Mapping[str, Operand], options: Options) -> Any:
        moved = {name: to_gpu(o.array) for name, o in found.items() if name != "out"}
        result = self.call(moved, options)
        o, *others = result if isinstance(result, tuple) else (result,)
        output = to_host(o)
        if "out" in found:
            found["out"].array[...] = output
            output = found["out"].array
        return (output, *map(to_host, others)) if others else output


def _understood(found: Mapping[str, Operand], options: Options) -> Request:
    wanted = request({name: array.described for name, array in found.items()}, options)
    if "out" in found:
        check_writable(found["out"])
    return wanted


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
