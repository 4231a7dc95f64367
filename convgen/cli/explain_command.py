"""`convgen explain PROBLEM`."""

from __future__ import annotations

import argparse
import dataclasses
from typing import Any

from convgen.cli.options import PROBLEM_HELP, add_target, read_problem, read_target
from convgen.cli.output import duration, print_json, quantity, table
from convgen.explain import Explanation, Outlook, explain_problem
from convgen.plan import Plan
from convgen.resources import KernelReport


def add(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "explain", parents=[common], help="which strategies apply or why not, the roofline, where operands live"
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
    return 0


def _sections(e: Explanation) -> list[str]:
    sections = [f"{e.problem}\ntarget {e.target}", _roofline(e), _strategies(e)]
    if e.chosen is not None:
        sections += [_operands(e.chosen), _occupancy(e)]
    return sections


def _roofline(e: Explanation) -> str:
    r = e.roofline
    arithmetic, memory = duration(r.arithmetic_seconds), duration(r.memory_seconds)
    rows = [
        ("arithmetic", quantity(r.flops, "FLOP"), arithmetic, f"at {quantity(r.flop_rate, 'FLOP/s')}"),
        ("memory", quantity(r.nbytes, "B"), memory, f"at {quantity(r.bandwidth, 'B/s')}"),
    ]
    head = (
        f"Roofline: at least {duration(r.seconds)}, bound by {r.limit} "
        f"({r.intensity:.3g} FLOP/B, the target's ridge is at {r.ridge:.3g})"
    )
    return f"{head}\n{table(rows)}"


def _strategies(e: Explanation) -> str:
    if not e.outlooks:
        return "Strategies: none computes this kind of problem yet"
    return "Strategies, predicted time of the default\n" + table([_strategy_row(outlook) for outlook in e.outlooks])


def _strategy_row(outlook: Outlook) -> tuple[str, str, str]:
    if outlook.plan is None or outlook.seconds is None:
        return outlook.strategy, "-", f"does not apply: {outlook.reason}"
    return outlook.strategy, duration(outlook.seconds), str(outlook.plan.config)


def _operands(plan: Plan) -> str:
    rows = [(p.operand, p.space, quantity(p.nbytes, "B"), p.why) for p in plan.placements]
    return f"Operands of {plan.strategy}\n{table(rows)}"


def _occupancy(e: Explanation) -> str:
    if e.not_compiled is not None:
        return f"Occupancy: not known, {e.not_compiled}"
    return "Occupancy\n" + table([_occupancy_row(kernel) for kernel in e.kernels])


def _occupancy_row(kernel: KernelReport) -> tuple[str, str, str]:
    o = kernel.occupancy
    per_sm = f"{o.warps_per_sm} warps in {o.blocks_per_sm} blocks an SM, limited by {o.limiter}"
    needs = f"{kernel.resources.registers} registers, {kernel.shared_bytes} B shared"
    return kernel.resources.name, f"{o.fraction:.0%}", f"{per_sm} ({needs})"


def _as_json(e: Explanation) -> dict[str, Any]:
    roofline = dataclasses.asdict(e.roofline) | {
        "intensity": e.roofline.intensity,
        "ridge": e.roofline.ridge,
        "seconds": e.roofline.seconds,
        "limit": e.roofline.limit,
    }
    return {
        "problem": str(e.problem),
        "target": {"name": e.target.name, "arch": e.target.arch, "sm_count": e.target.sm_count},
        "roofline": roofline,
        "strategies": [_outlook_json(outlook) for outlook in e.outlooks],
        "placements": [dataclasses.asdict(p) for p in e.chosen.placements] if e.chosen else [],
        "kernels": [
            {"name": k.resources.name, "registers": k.resources.registers, "shared_bytes": k.shared_bytes}
            | dataclasses.asdict(k.occupancy)
            for k in e.kernels
        ],
        "not_compiled": e.not_compiled,
    }


def _outlook_json(outlook: Outlook) -> dict[str, Any]:
    return {
        "strategy": outlook.strategy,
        "reason": outlook.reason,
        "predicted_seconds": outlook.seconds,
        "config": outlook.plan.config.as_dict() if outlook.plan else None,
    }
