"""`convgen explain PROBLEM`."""

from __future__ import annotations

import argparse
import dataclasses
from typing import Any

from convgen.cli.options import PROBLEM_HELP, add_target, read_problem, read_target
from convgen.cli.output import duration, print_json, quantity, table
from convgen.crossover import Crossover
from convgen.errors import NotApplicableError
from convgen.explain import Explanation, Outlook, explain_problem
from convgen.explain_attention import memory_need
from convgen.plan import Plan
from convgen.problem import Attention
from convgen.resources import KernelReport


def add(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "explain",
        parents=[common],
        help="which strategies apply or why not, the roofline, where operands live",
        description="Exit status 3 if no strategy applies.",
    )
    parser.add_argument("problem", nargs="+", metavar="PROBLEM", help=PROBLEM_HELP)
    add_target(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Explain one problem."""
    explanation = explain_problem(read_problem(args.problem), read_target(args))
    if args.json:
        print_json(_as_json(explanation))
    else:
        print("\n\n".join(_sections(explanation)))
    applies = any(outlook.plan is not None for outlook in explanation.outlooks)
    return 0 if applies else NotApplicableError.exit_code


def _sections(e: Explanation) -> list[str]:
    heads = [f"{e.problem}\ntarget {e.target}", _roofline(e), *_scores(e), _strategies(e)]
    defaults = [_default(o.plan, o) for o in e.outlooks if o.plan is not None]
    return heads + defaults + ([_crossover(e.crossover)] if e.crossover is not None else [])


def _roofline(e: Explanation) -> str:
    r = e.roofline
    arithmetic, memory = duration(r.arithmetic_seconds), duration(r.memory_seconds)
    rows = [
        ("arithmetic", quantity(r.flops, "FLOP"), arithmetic, f"at {quantity(r.flop_rate, 'FLOP/s')}"),
        ("memory", quantity(r.nbytes, "B"), memory, f"at {quantity(r.bandwidth, 'B/s')}"),
    ]
    head = (
        f"Roofline: {duration(r.seconds)}, bound by {r.limit} "
        f"({r.intensity:.3g} FLOP/B, the target's ridge is at {r.ridge:.3g})"
    )
    return f"{head}\n{table(rows)}{_beyond(e)}"


def _beyond(e: Explanation) -> str:
    """What a prediction below the roofline means."""
    if not any(o.seconds is not None and o.is_calibrated and o.seconds < e.roofline.seconds for o in e.outlooks):
        return ""
    return (
        "\n  These are the rates of a large matrix product and a long copy, not bounds: a kernel that draws less power "
        "runs faster,\n  and winograd, fft and fp32 on tensor cores do other arithmetic."
    )


def _scores(e: Explanation) -> list[str]:
    if not isinstance(e.problem, Attention):
        return []
    return [
        "\n".join(["Scores, in memory or not", *(f"  {line}" for line in memory_need(e.problem, e.target).lines())])
    ]


def _strategies(e: Explanation) -> str:
    if not e.outlooks:
        return "Strategies: none computes this kind of problem yet"
    rows = [
        (o.strategy, f"does not apply: {o.reason}" if o.seconds is None else _predicted(o.seconds, o.is_calibrated))
        for o in e.outlooks
    ]
    return "Strategies, with the predicted time of their default\n" + table(rows)


def _predicted(seconds: float, is_calibrated: bool) -> str:
    return duration(seconds) + ("" if is_calibrated else " (a cost model not yet fitted: tune to know)")


def _crossover(c: Crossover) -> str:
    head = ("filter", *c.shown, "fastest")
    columns = zip(*(c.seconds[name] for name in c.shown), strict=True)
    rows = [
        (str(extent), *("-" if seconds is None else duration(seconds) for seconds in column), fastest or "-")
        for extent, column, fastest in zip(c.extents, columns, c.fastest, strict=True)
    ]
    title = "Other filters, as long along each axis, padded by half: predicted times, and the fastest of all strategies"
    return f"{title}\n{table([head, *rows])}\n  {_where_fft_leads(c)}"


def _where_fft_leads(c: Crossover) -> str:
    ahead = c.ahead_from("fft")
    if ahead is not None:
        return f"fft stays ahead from {ahead} on"
    some = [str(extent) for extent, fastest in zip(c.extents, c.fastest, strict=True) if fastest == "fft"]
    return f"fft is ahead at {', '.join(some)}, not at the largest" if some else "fft is not ahead at any of them"


def _default(plan: Plan, outlook: Outlook) -> str:
    operands = table([(p.operand, p.space, quantity(p.nbytes, "B"), p.why) for p in plan.placements])
    # A kernel that is launched once a chunk is told of once.
    lines = list(dict.fromkeys(_occupancy(kernel) for kernel in outlook.kernels))
    kernels = lines or [f"  occupancy not known: {outlook.not_compiled}"]
    notes = [f"  {note}" for note in plan.notes]
    return "\n".join([f"{outlook.strategy}: {plan.config}", *notes, operands, *kernels])


def _occupancy(kernel: KernelReport) -> str:
    o, r = kernel.occupancy, kernel.resources
    residents = f"{o.warps_per_sm} warps in {o.blocks_per_sm} blocks an SM, limited by {o.limiter}"
    return (
        f"  {r.name}: occupancy {o.fraction:.0%}, {residents} ({r.registers} registers, {kernel.shared_bytes} B shared)"
    )


def _as_json(e: Explanation) -> dict[str, Any]:
    roofline = dataclasses.asdict(e.roofline) | {
        "intensity": e.roofline.intensity,
        "ridge": e.roofline.ridge,
        "seconds": e.roofline.seconds,
        "limit": e.roofline.limit,
    }
    need = dataclasses.asdict(memory_need(e.problem, e.target)) if isinstance(e.problem, Attention) else None
    scores = {} if need is None else {"scores": need}
    return {
        "problem": str(e.problem),
        "target": {"name": e.target.name, "arch": e.target.arch, "sm_count": e.target.sm_count},
        "roofline": roofline,
        "strategies": [_outlook_json(outlook) for outlook in e.outlooks],
        **scores,
        "crossover": None if e.crossover is None else _crossover_json(e.crossover),
    }


def _crossover_json(c: Crossover) -> dict[str, Any]:
    return {
        "filters": c.extents,
        "predicted_seconds": dict(c.seconds),
        "fastest": c.fastest,
        "fft_ahead_from": c.ahead_from("fft"),
    }


def _outlook_json(outlook: Outlook) -> dict[str, Any]:
    return {
        "strategy": outlook.strategy,
        "reason": outlook.reason,
        "predicted_seconds": outlook.seconds,
        "calibrated": outlook.is_calibrated,
        "config": outlook.plan.config.as_dict() if outlook.plan else None,
        "notes": list(outlook.plan.notes) if outlook.plan else [],
        "placements": [dataclasses.asdict(placement) for placement in outlook.plan.placements] if outlook.plan else [],
        "kernels": [_kernel_json(kernel) for kernel in outlook.kernels],
        "not_compiled": outlook.not_compiled,
    }


def _kernel_json(kernel: KernelReport) -> dict[str, Any]:
    resources = {
        "name": kernel.resources.name,
        "registers": kernel.resources.registers,
        "shared_bytes": kernel.shared_bytes,
    }
    return resources | dataclasses.asdict(kernel.occupancy)
