"""Verifying plans on the GPU: inputs made there, the oracle computed there in float64."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from convgen.compiler import Binary, Job, compile_many
from convgen.errors import ConvgenError, DeviceError
from convgen.plan import Plan
from convgen.problem import TensorSpec
from convgen.reference import sample_indices
from convgen.render import render
from convgen.runtime.cuda import CudaProgram, load
from convgen.toolkit import INSTALL
from convgen.verify.case import Settings, VerifyResult
from convgen.verify.oracle import Oracle, Oracles, input_kinds, outcome

WHOLE_MACS = 2 * 10**11
"""Up to here every element is compared; above, a sample with corners and edges."""

COMPARED_ELEMENTS = 32768

GUARD_BYTES = 1024
"""Before and after the output, to see writes beyond it; a multiple of every alignment a plan relies on."""

POISON, CANARY = 0xFF, 0xA5


def verify_group(plans: Sequence[Plan], settings: Settings) -> list[VerifyResult | ConvgenError | MemoryError]:
    """One result or error a plan, in order; compiled side by side.

    Raises DeviceError if there is no GPU, CuPy or NVRTC.
    """
    xp = _cupy()
    started = time.perf_counter()
    jobs = [Job(render(plan), plan.target, name=f"{plan.name}.cu") for plan in plans]
    binaries = compile_many(jobs, settings.jobs)
    share = (time.perf_counter() - started) / max(len(plans), 1)
    oracles = Oracles(settings, xp)
    results: list[VerifyResult | ConvgenError | MemoryError] = []
    for plan, binary in zip(plans, binaries, strict=True):
        began = time.perf_counter()
        try:
            if isinstance(binary, ConvgenError):
                raise binary
            result = _run(plan, binary, settings, oracles)
            results.append(replace(result, seconds=share + time.perf_counter() - began))
        except (ConvgenError, MemoryError) as error:
            results.append(error)
        except xp.cuda.memory.OutOfMemoryError as error:
            results.append(MemoryError(str(error)))
        finally:
            xp.get_default_memory_pool().free_all_blocks()
    return results


def _run(plan: Plan, binary: Binary, settings: Settings, oracles: Oracles) -> VerifyResult:
    result: VerifyResult | None = None
    with load(plan, binary) as program:
        for kind in input_kinds(plan.problem, settings):
            latest = _run_once(program, settings, oracles.of(plan.problem, kind))
            if latest.status != "ok":
                return latest
            result = latest if result is None else result.joined(latest)
    assert result is not None
    return result


def _run_once(program: CudaProgram, settings: Settings, oracle: Oracle) -> VerifyResult:
    xp, plan = oracle.xp, program.plan
    [spec] = oracle.problem.outputs
    memory, output = _guarded(spec, xp)
    if oracle.problem.accumulate:
        output[...] = oracle.stored(spec.name)
    inputs = {i.name: _laid_out(i, oracle.stored(i.name), xp) for i in oracle.problem.inputs}
    program.run(inputs, {spec.name: output})
    try:
        xp.cuda.get_current_stream().synchronize()
    except xp.cuda.runtime.CUDARuntimeError as error:
        raise DeviceError(f"{plan.name}: {error}") from error
    guards = xp.concatenate([memory[:GUARD_BYTES], memory[GUARD_BYTES + spec.nbytes :]])
    fault = "" if bool((guards == CANARY).all()) else f"write beyond the ends of {spec.name}"
    if oracle.problem.macs <= WHOLE_MACS:
        comparison = oracle.judge(output)
    else:
        comparison = oracle.judge_sampled(output, sample_indices(oracle.problem, COMPARED_ELEMENTS, settings.seed))
    return outcome(plan, settings, oracle, comparison, fault=fault)


def _guarded(spec: TensorSpec, xp: Any) -> tuple[Any, Any]:
    """Memory with canaries at both ends, and the poisoned output between them, in its layout."""
    memory = xp.full(spec.nbytes + 2 * GUARD_BYTES, CANARY, xp.uint8)
    inside = memory[GUARD_BYTES : GUARD_BYTES + spec.nbytes]
    inside[...] = POISON
    return memory, _shaped(spec, inside.view(_array_type(spec, xp)))


def _laid_out(spec: TensorSpec, values: Any, xp: Any) -> Any:
    """The same elements, dense in the tensor's memory order, so that nothing is copied before the kernel."""
    order = spec.layout.order(len(spec.shape))
    return _shaped(spec, xp.ascontiguousarray(values.transpose(order)).ravel())


def _shaped(spec: TensorSpec, elements: Any) -> Any:
    order = spec.layout.order(len(spec.shape))
    inverse = sorted(range(len(order)), key=lambda axis: order[axis])
    return elements.reshape([spec.shape[axis] for axis in order]).transpose(inverse)


def _array_type(spec: TensorSpec, xp: Any) -> Any:
    return {"bf16": xp.uint16, "fp16": xp.float16, "int32": xp.int32}.get(spec.dtype.value, xp.float32)


def _cupy() -> Any:
    try:
        import cupy
    except ImportError as error:
        raise DeviceError(f"CuPy is not installed: {INSTALL}") from error
    try:
        cupy.cuda.runtime.getDevice()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise DeviceError(f"no usable GPU: {error}") from error
    return cupy
