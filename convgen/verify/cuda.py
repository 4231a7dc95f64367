"""Verifying plans on the GPU: inputs made there, the oracle computed there in float64."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from convgen.compiler import Job, compile_many
from convgen.errors import ConvgenError, DeviceError
from convgen.plan import Numerics, Plan
from convgen.problem import Problem, TensorSpec
from convgen.reference import Comparison, sample_indices
from convgen.render import render
from convgen.runtime.cuda import CudaProgram, load
from convgen.runtime.physical import stored_dtype, unflat
from convgen.simulator import FaultKind
from convgen.toolkit import load_cupy
from convgen.verify.case import Settings, VerifyResult
from convgen.verify.oracle import Oracle, Oracles, input_kinds, outcome

WHOLE_MACS = 2 * 10**11
WHOLE_ELEMENTS = 1 << 29
"""Up to both, of the outputs, every element is compared; above, a sample with corners and edges."""

COMPARED_ELEMENTS = 32768

GUARD_BYTES = 1024
"""Before and after the output, to see writes beyond it; a multiple of every alignment a plan relies on."""

POISON, CANARY = 0xFF, 0xA5


def _unheard(phase: str) -> None:
    pass


def verify_group(plans: Sequence[Plan], settings: Settings) -> list[VerifyResult | ConvgenError | MemoryError]:
    """One result or error a plan, in order; compiled side by side.

    Raises DeviceError if there is no GPU, CuPy or NVRTC.
    """
    xp = array_module()
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
            with load(plan, binary) as program:
                result = verify_program(program, settings, oracles)
            results.append(replace(result, seconds=share + time.perf_counter() - began))
        except (ConvgenError, MemoryError) as error:  # CuPy's want of memory is a MemoryError too
            results.append(error)
        finally:
            xp.get_default_memory_pool().free_all_blocks()
    return results


def verify_program(
    program: CudaProgram, settings: Settings, oracles: Oracles, announce: Callable[[str], None] = _unheard
) -> VerifyResult:
    """Run a program on every kind of inputs, on the current stream, and hold the answers against the oracle.

    `announce` is told what comes next: "load", "run" (waiting for the GPU), "verify". Raises DeviceError for a launch
    that fails or a kernel that breaks the context, MemoryError.
    """
    result: VerifyResult | None = None
    for kind in input_kinds(program.plan.problem, settings):
        latest = _run_once(program, settings, oracles.of(program.plan.problem, kind), announce)
        if latest.status != "ok":
            return latest
        result = latest if result is None else result.joined(latest)
    assert result is not None
    return result


def is_whole(problem: Problem) -> bool:
    """Whether every element is compared."""
    return problem.macs <= WHOLE_MACS and sum(spec.size for spec in problem.outputs) <= WHOLE_ELEMENTS


def judge(oracle: Oracle, numerics: Numerics, outputs: Mapping[str, Any], seed: int) -> Comparison:
    """Hold outputs against the oracle: whole, or a sample of each for a problem that is large."""
    if is_whole(oracle.problem):
        return oracle.judge(outputs, numerics)
    indices = {spec.name: sample_indices(spec, COMPARED_ELEMENTS, seed) for spec in oracle.problem.outputs}
    return oracle.judge_sampled(outputs, numerics, indices)


def array_module() -> Any:
    """CuPy. Raises DeviceError if it cannot be imported, or there is no GPU that it can use."""
    cupy = load_cupy()
    try:
        cupy.cuda.runtime.getDevice()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise DeviceError(f"no usable GPU: {error}") from error
    return cupy


def _run_once(
    program: CudaProgram, settings: Settings, oracle: Oracle, announce: Callable[[str], None]
) -> VerifyResult:
    xp, plan = oracle.xp, program.plan
    guarded = {spec.name: _guarded(spec, xp) for spec in oracle.problem.outputs}
    outputs = {name: output for name, (_, output) in guarded.items()}
    if oracle.problem.accumulate:
        for name, output in outputs.items():
            output[...] = oracle.arrays[name]
    announce("load")
    program.run({i.name: oracle.arrays[i.name] for i in oracle.problem.inputs}, outputs)
    announce("run")
    try:
        xp.cuda.get_current_stream().synchronize()
    except xp.cuda.runtime.CUDARuntimeError as error:
        raise DeviceError(f"{plan.name}: {error}") from error
    announce("verify")
    comparison = judge(oracle, plan.numerics, outputs, settings.seed)
    broken = [spec.name for spec in oracle.problem.outputs if not _is_intact(spec, guarded[spec.name][0], xp)]
    if not broken:
        return outcome(plan, settings, oracle, comparison)
    fault = f"write beyond the ends of {', '.join(broken)}"
    return outcome(plan, settings, oracle, comparison, fault=fault, faults=(FaultKind.OUT_OF_BOUNDS,))


def _is_intact(spec: TensorSpec, memory: Any, xp: Any) -> bool:
    guards = xp.concatenate([memory[:GUARD_BYTES], memory[GUARD_BYTES + spec.nbytes :]])
    return bool((guards == CANARY).all())


def _guarded(spec: TensorSpec, xp: Any) -> tuple[Any, Any]:
    """Memory with canaries at both ends, and the poisoned output between them, in its layout."""
    memory = xp.full(spec.nbytes + 2 * GUARD_BYTES, CANARY, xp.uint8)
    inside = memory[GUARD_BYTES : GUARD_BYTES + spec.nbytes]
    inside[...] = POISON
    return memory, unflat(spec, inside.view(stored_dtype(spec)))
