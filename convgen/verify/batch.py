"""Many cases, a group at a time, on as many processes as asked."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterable, Iterator, Sequence

from convgen.errors import ConvgenError, DeviceError, SimulatorFault, UsageError
from convgen.lowering import lower, why_not
from convgen.plan import Plan
from convgen.problem import Problem
from convgen.processes import Announce, Child, ChildDied, ChildNotStarted, Pool, Serve
from convgen.space import Config
from convgen.strategies import Strategy
from convgen.verify import cuda, sim
from convgen.verify.case import Case, Settings, Status, VerifyResult

GROUP = {"sim": 16, "cuda": 64}
"""Cases that are built together: one start of the host's compiler serves them all, one of NVRTC's pool of threads."""


def verify_cases(cases: Iterable[Case], settings: Settings) -> Iterator[VerifyResult]:
    """Verify every case; results come in the order of the cases, as they are ready.

    The processes that share the work end with this one, however it ends, or when no more results are asked for.
    Raises DeviceError if the backend is not there, or the machine lacks what it takes; UsageError for a setting of the
    simulator's in the environment; SimulatorFault if a process died: all else is a result.
    """
    waiting, size = list(cases), GROUP[settings.backend]
    groups = [waiting[start : start + size] for start in range(0, len(waiting), size)]
    if settings.jobs == 1 or settings.backend == "cuda" or len(groups) < 2:
        for group in groups:
            yield from _verify_group(group, settings)
        return
    yield from _shared(groups, settings)


def _shared(groups: Sequence[Sequence[Case]], settings: Settings) -> Iterator[VerifyResult]:
    told: dict[str | tuple[str, type[Warning], int], int] = {}
    # A kernel that takes its process down must not take the caller's.
    pool = Pool(min(settings.jobs, len(groups)), _server, settings, name="verifying")
    try:
        shared = [pool.submit(functools.partial(_verified_by, group)) for group in groups]
        for future in shared:
            results, remarks = future.result()
            for remark in remarks:
                warnings.warn_explicit(*remark, registry=told)
            yield from results
    except ChildNotStarted as error:
        raise DeviceError(f"free memory, or verify with fewer processes (--jobs): {error}") from error
    except ChildDied as error:
        raise SimulatorFault(
            f"a kernel took its process down; with one job (--jobs 1) it can be told which ({error})"
        ) from error
    finally:
        pool.close()  # else it would go on with what nobody will ask for


def _verified_by(cases: Sequence[Case], child: Child) -> tuple[list[VerifyResult], list[Remark]]:
    reply = child.call(cases, None)
    if isinstance(reply, ConvgenError):
        raise reply
    results, remarks = reply
    return results, remarks


def _server(settings: Settings) -> Serve:
    def serve(cases: Sequence[Case], _: Announce) -> tuple[list[VerifyResult], list[Remark]] | ConvgenError:
        try:
            return _verify_shared(cases, settings)
        except (DeviceError, UsageError) as error:
            return error

    return serve


Remark = tuple[str, type[Warning], str, int]
"""A warning: text, category, file and line."""


def _verify_shared(cases: Sequence[Case], settings: Settings) -> tuple[list[VerifyResult], list[Remark]]:
    """The results of a group, and the warnings on the way, which are the caller's to show or not."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        results = _verify_group(cases, settings)
    return results, [(str(w.message), w.category, w.filename, w.lineno) for w in caught]


def verify_problem(problem: Problem, strategy: Strategy, config: Config | None, settings: Settings) -> VerifyResult:
    """Verify one strategy on one problem; `config=None` is its default. Raises as `verify_cases` does."""
    return next(verify_cases([Case(problem, strategy, config)], settings))


def verify_plan(plan: Plan, settings: Settings) -> VerifyResult:
    """Verify a plan that is already lowered.

    Raises as `verify_cases` does, and DeviceError also where this machine cannot do it, as for want of memory.
    """
    [(_, found)] = _run([plan], settings)
    if isinstance(found, MemoryError):
        raise DeviceError(f"too little memory: {found or 'it could not be had'}") from found
    if isinstance(found, DeviceError):
        raise found
    return _result(plan, settings, found)


def _verify_group(cases: Sequence[Case], settings: Settings) -> list[VerifyResult]:
    lowered = [_lower(case, settings) for case in cases]
    verified = iter(_verify_plans([plan for plan in lowered if isinstance(plan, Plan)], settings))
    return [next(verified) if isinstance(found, Plan) else found for found in lowered]


def _lower(case: Case, settings: Settings) -> Plan | VerifyResult:
    def result(status: Status, reason: str) -> VerifyResult:
        config = None if case.config is None else case.config.as_dict()
        return VerifyResult(case.problem, case.strategy.name, settings.backend, status, reason, config)

    reason = why_not(case.problem, case.strategy, settings.target)
    if reason is not None:
        return result("not_applicable", reason)
    try:
        return lower(case.problem, case.strategy, case.config, settings.target)
    except ConvgenError as error:
        return result("failed", str(error))


def _verify_plans(plans: Sequence[Plan], settings: Settings) -> list[VerifyResult]:
    return [_result(plan, settings, found) for plan, found in _run(plans, settings)]


def _run(plans: Sequence[Plan], settings: Settings) -> Iterator[tuple[Plan, VerifyResult | ConvgenError | MemoryError]]:
    run = sim.verify_group if settings.backend == "sim" else cuda.verify_group
    return zip(plans, run(plans, settings), strict=True)


def _result(plan: Plan, settings: Settings, found: VerifyResult | ConvgenError | MemoryError) -> VerifyResult:
    if isinstance(found, VerifyResult):
        return found
    status: Status = "wrong" if isinstance(found, SimulatorFault) else "failed"
    reason = str(found) or type(found).__name__
    return VerifyResult(plan.problem, plan.strategy, settings.backend, status, reason, plan.config.as_dict())
