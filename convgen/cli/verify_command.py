"""`convgen verify PROBLEM | --suite F`."""

from __future__ import annotations

import argparse
import os
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, get_args

from convgen.cli.options import (
    add_target,
    gpu_target,
    read_config,
    read_target,
    whole,
)
from convgen.cli.output import Progress, duration, print_json, table
from convgen.cli.selection import add_problems, read_entries
from convgen.errors import NotApplicableError, UsageError
from convgen.problem import SuiteEntry
from convgen.reference import InputKind
from convgen.strategies import Strategy, get_strategy, strategies_of
from convgen.target import Target
from convgen.verify import Backend, Case, Check, Settings, Status, VerifyResult, verify_cases


def add(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "verify",
        parents=[common],
        help="run kernels and hold the answers against float64",
        description="Exit status 5 if any answer is wrong, else 4 if any kernel failed to build or run or cannot be "
        "judged, else 3 if no strategy applied to anything.",
    )
    add_problems(parser)
    parser.add_argument("--strategy", metavar="NAME|all", default="all", help="default: all")
    parser.add_argument("--config", metavar="K=V,…", help="fields of the config; needs one problem and one strategy")
    add_target(parser)
    parser.add_argument("--backend", choices=get_args(Backend), help="default: cuda if the target is the GPU here")
    parser.add_argument("--check", choices=get_args(Check), default="auto", help="does the simulator look for faults")
    parser.add_argument("--inputs", choices=get_args(InputKind), default="normal", help="what the tensors hold")
    parser.add_argument("--jobs", type=whole(1), default=_cores(), metavar="N", help="processes; default: one a core")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Verify every strategy on every problem asked for."""
    entries = read_entries(args)
    target = read_target(args)
    pairs = [(entry, strategy) for entry in entries for strategy in _asked(args, entry)]
    if not pairs:
        raise NotApplicableError("these problems are described and validated, but no strategy computes them yet")
    settings = Settings(target, _backend(args, target), args.seed, args.inputs, args.check, args.jobs)
    results: list[VerifyResult] = []
    progress = Progress(len(pairs), "verified")
    for entry, result in _results(args, pairs, settings):
        results.append(result)
        progress.advance()
        if args.json:
            print_json({"id": entry.id, "dtype": entry.problem.dtype.value, **result.as_json()})
        elif not args.suite or result.status in ("wrong", "failed"):
            subject = f"{entry.id} {result.problem}: ".lstrip() if len(entries) > 1 else ""
            print(f"{subject}{result.strategy} {result.sentence()}")
    if not args.json and args.suite:
        print(_summary(results))
    return _exit_code(results)


def _asked(args: argparse.Namespace, entry: SuiteEntry) -> Sequence[Strategy]:
    return strategies_of(entry.problem) if args.strategy == "all" else (get_strategy(args.strategy),)


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def _backend(args: argparse.Namespace, target: Target) -> Backend:
    if args.backend is not None:
        chosen: Backend = args.backend
        return chosen
    gpu = gpu_target()
    return "cuda" if gpu is not None and gpu.compute_capability == target.compute_capability else "sim"


def _results(
    args: argparse.Namespace, pairs: Sequence[tuple[SuiteEntry, Strategy]], settings: Settings
) -> Iterator[tuple[SuiteEntry, VerifyResult]]:
    if args.config is not None and len(pairs) != 1:
        raise UsageError(f"--config: expected one problem and one --strategy, got {len(pairs)} combinations")
    cases = [Case(entry.problem, s, read_config(args.config, s, entry.problem, settings.target)) for entry, s in pairs]
    yield from zip([entry for entry, _ in pairs], verify_cases(cases, settings), strict=True)


def _summary(results: Sequence[VerifyResult]) -> str:
    counts: dict[str, Counter[Status]] = defaultdict(Counter)
    seconds: dict[str, float] = defaultdict(float)
    for result in results:
        counts[result.strategy][result.status] += 1
        seconds[result.strategy] += result.seconds
    statuses = get_args(Status)
    rows = [("strategy", *(status.replace("_", " ") for status in statuses), "time")]
    for name, found in counts.items():
        rows.append((name, *(str(found[status]) for status in statuses), duration(seconds[name])))
    total = Counter(result.status for result in results)
    rows.append(("all", *(str(total[status]) for status in statuses), duration(sum(seconds.values()))))
    return table(rows, indent="")


def _exit_code(results: Sequence[VerifyResult]) -> int:
    codes = {result.status: result.exit_code for result in results}
    for status in ("wrong", "failed", "ok"):
        if status in codes:
            return codes[status]
    return NotApplicableError.exit_code
