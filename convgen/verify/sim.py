"""Verifying plans in the simulator, several to a build."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy

from convgen.errors import CompileError, ConvgenError
from convgen.plan import Numerics, Plan
from convgen.problem import Problem
from convgen.reference import Comparison, encode, terms
from convgen.render import render
from convgen.runtime.sim import BlockSample, Mode, SimProgram, SimResult, build
from convgen.simulator import launch_timeout
from convgen.verify.case import Settings, VerifyResult
from convgen.verify.oracle import Oracle, Oracles, fixed, input_kinds, outcome

SANITIZED_MACS = 200_000
"""Up to here the whole problem is run with every access checked."""

WHOLE_MACS = 30_000_000
"""Up to here the whole problem is run; above, a sample of blocks."""

SAMPLED_BLOCKS = 64
SANITIZED_BLOCKS = 8
COMPARED_MACS = 10_000_000
"""Multiply-adds that the oracle spends on the elements of a sample of blocks; it compares as many as that allows."""


def is_whole(problem: Problem) -> bool:
    """Whether the whole problem is run, and every element compared."""
    return problem.macs <= WHOLE_MACS


@dataclass(frozen=True)
class _Pass:
    """One run of a plan: how it is built, and which of its blocks are run (None: all)."""

    mode: Mode
    blocks: BlockSample | None = None


@dataclass(frozen=True)
class Built:
    """A plan in every mode that its passes need; where the host's compiler refused it, the error."""

    plan: Plan
    passes: tuple[_Pass, ...]
    programs: Mapping[Mode, SimProgram | CompileError]


def verify_group(plans: Sequence[Plan], settings: Settings) -> list[VerifyResult | ConvgenError | MemoryError]:
    """One result or error a plan, in order; built together as far as they need the same mode.

    Raises as `build_group` does.
    """
    sources = [render(plan) for plan in plans]
    started = time.perf_counter()
    group = build_group(plans, sources, settings)
    share = (time.perf_counter() - started) / max(len(plans), 1)
    oracles = Oracles(settings)
    results: list[VerifyResult | ConvgenError | MemoryError] = []
    for built in group:
        began = time.perf_counter()
        try:
            result = verify_built(built, settings, oracles)
            results.append(replace(result, seconds=share + time.perf_counter() - began))
        except (ConvgenError, MemoryError) as error:
            results.append(error)
    return results


def build_group(plans: Sequence[Plan], sources: Sequence[str], settings: Settings) -> list[Built]:
    """Build rendered plans for what `settings` asks of each.

    Raises DeviceError if there is no host compiler or it cannot work, UsageError for a wrong `CONVGEN_SIM_TIMEOUT`.
    """
    launch_timeout()
    passes = [_passes(plan.problem, settings) for plan in plans]
    programs: list[dict[Mode, SimProgram | CompileError]] = [{} for _ in plans]
    for mode in Mode:
        members = [i for i, wanted in enumerate(passes) if any(p.mode is mode for p in wanted)]
        built = _build([plans[i] for i in members], [sources[i] for i in members], mode)
        for i, program in zip(members, built, strict=True):
            programs[i][mode] = program
    return [Built(*of_plan) for of_plan in zip(plans, passes, programs, strict=True)]


def _passes(problem: Problem, settings: Settings) -> tuple[_Pass, ...]:
    sized = fixed(problem)
    macs = sized.macs
    blocks = None if is_whole(sized) else BlockSample(SAMPLED_BLOCKS, settings.seed)
    if settings.check == "sanitize" or (settings.check == "auto" and macs <= SANITIZED_MACS):
        return (_Pass(Mode.CHECK, blocks),)
    if settings.check == "fast":
        return (_Pass(Mode.FAST, blocks),)
    return _Pass(Mode.FAST, blocks), _Pass(Mode.CHECK, BlockSample(SANITIZED_BLOCKS, settings.seed))


def _build(plans: list[Plan], sources: list[str], mode: Mode) -> list[SimProgram | CompileError]:
    if not plans:
        return []
    try:
        return list(build(plans, sources, mode))
    except CompileError as error:
        if len(plans) == 1:
            return [error]
    # One of them is refused: the others must not suffer for it.
    return [_build([plan], [source], mode)[0] for plan, source in zip(plans, sources, strict=True)]


def verify_built(built: Built, settings: Settings, oracles: Oracles) -> VerifyResult:
    """Every pass on the first kind of inputs, then the first pass on the others.

    Raises CompileError if the plan was refused, SimulatorFault for a launch that no GPU accepts, MemoryError.
    """
    plan, passes = built.plan, built.passes
    first, *others = input_kinds(plan.problem, settings)
    runs = [(wanted, first) for wanted in passes] + [(passes[0], kind) for kind in others]
    result: VerifyResult | None = None
    for wanted, kind in runs:
        program = built.programs[wanted.mode]
        if isinstance(program, CompileError):
            raise program
        oracle = oracles.of(plan.problem, kind)
        ran, outputs = _simulate(program, oracle, wanted.blocks)
        found = ran.report.faults
        comparison = _compare(oracle, plan.numerics, outputs, ran.written)
        latest = outcome(
            plan,
            settings,
            oracle,
            comparison,
            sanitized=wanted.mode is Mode.CHECK,
            fault="\n".join(map(str, found)),
            faults=tuple(fault.kind for fault in found),
        )
        if latest.status != "ok":
            return latest
        result = latest if result is None else result.joined(latest)
    assert result is not None
    return result


def _simulate(program: SimProgram, oracle: Oracle, blocks: BlockSample | None) -> tuple[SimResult, dict[str, Any]]:
    problem = oracle.problem
    inputs = {spec.name: oracle.arrays[spec.name] for spec in problem.inputs}
    outputs = {
        spec.name: oracle.stored(spec.name) if problem.accumulate else encode(numpy.zeros(spec.shape), spec.dtype)
        for spec in problem.outputs
    }
    return program.run(inputs, outputs, blocks=blocks, workers=1), outputs


def _compare(oracle: Oracle, numerics: Numerics, outputs: Mapping[str, Any], written: Mapping[str, Any]) -> Comparison:
    small = is_whole(oracle.problem)
    if small and all(mask.all() for mask in written.values()):
        return oracle.judge(outputs, numerics)
    indices = {name: numpy.flatnonzero(mask) for name, mask in written.items()}
    if small:
        return oracle.judge(outputs, numerics, indices)
    most = max(COMPARED_MACS // terms(oracle.problem), 1)
    for name, some in indices.items():
        if some.size > most:
            indices[name] = some[numpy.linspace(0, some.size - 1, most).astype(numpy.int64)]
    return oracle.judge_sampled(outputs, numerics, indices)
