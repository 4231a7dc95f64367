"""Many cases, a group at a time, on as many processes as asked."""

from __future__ import annotations

import itertools
import multiprocessing
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool

from convgen.errors import ConvgenError, SimulatorFault
from convgen.lowering import lower
from convgen.plan import Plan
from convgen.problem import Conv
from convgen.space import Config
from convgen.strategies import Strategy
from convgen.verify import cuda, sim
from convgen.verify.case import Case, Settings, Status, VerifyResult

GROUP = {"sim": 16, "cuda": 64}
"""Cases that are built together: one start of the host's compiler serves them all, one of NVRTC's pool of threads."""


def verify_cases(cases: Iterable[Case], settings: Settings) -> Iterator[VerifyResult]:
    """Verify every case; results come in the order of the cases, as they are ready.

    Raises DeviceError if the backend is not there, SimulatorFault if a process died: all else is a result.
    """
    waiting, size = list(cases), GROUP[settings.backend]
    groups = [waiting[start : start + size] for start in range(0, len(waiting), size)]
    if settings.jobs == 1 or settings.backend == "cuda" or len(groups) < 2:
        for group in groups:
            yield from _verify_group(group, settings)
        return
    # A kernel that takes its process down must not take the caller's: spawned, so that no lock is inherited held.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(settings.jobs, len(groups)), mp_context=context) as pool:
        try:
            for results in pool.map(_verify_group, groups, itertools.repeat(settings)):
                yield from results
        except BrokenProcessPool as error:
            raise SimulatorFault(
                "a kernel took its process down; with one job (--jobs 1) it can be told which"
            ) from error


def verify_problem(problem: Conv, strategy: Strategy, config: Config | None, settings: Settings) -> VerifyResult:
    """Verify one strategy on one problem; `config=None` is its default. Raises as `verify_cases` does."""
    return next(verify_cases([Case(problem, strategy, config)], settings))


def verify_plan(plan: Plan, settings: Settings) -> VerifyResult:
    """Verify a plan that is already lowered. Raises as `verify_cases` does."""
    return _verify_plans([plan], settings)[0]


def _verify_group(cases: Sequence[Case], settings: Settings) -> list[VerifyResult]:
    lowered = [_lower(case, settings) for case in cases]
    verified = iter(_verify_plans([plan for plan in lowered if isinstance(plan, Plan)], settings))
    return [next(verified) if isinstance(found, Plan) else found for found in lowered]


def _lower(case: Case, settings: Settings) -> Plan | VerifyResult:
    def result(status: Status, reason: str) -> VerifyResult:
        config = None if case.config is None else case.config.as_dict()
        return VerifyResult(case.problem, case.strategy.name, settings.backend, status, reason, config)

    reason = case.strategy.why_not(case.problem, settings.target)
    if reason is not None:
        return result("not_applicable", reason)
    try:
        return lower(case.problem, case.strategy, case.config, settings.target)
    except ConvgenError as error:
        return result("failed", str(error))


def _verify_plans(plans: Sequence[Plan], settings: Settings) -> list[VerifyResult]:
    run = sim.verify_group if settings.backend == "sim" else cuda.verify_group
    pairs = zip(plans, run(plans, settings), strict=True)
    return [found if isinstance(found, VerifyResult) else _refused(plan, settings, found) for plan, found in pairs]


def _refused(plan: Plan, settings: Settings, error: ConvgenError | MemoryError) -> VerifyResult:
    status: Status = "wrong" if isinstance(error, SimulatorFault) else "failed"
    reason = str(error) or type(error).__name__
    return VerifyResult(plan.problem, plan.strategy, settings.backend, status, reason, plan.config.as_dict())
