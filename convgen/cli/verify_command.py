"""`convgen verify PROBLEM | --suite F`."""

from __future__ import annotations

import argparse
import os
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, get_args

from convgen.cli.options import (
    PROBLEM_HELP,
    add_target,
    gpu_target,
    quantity_at_most,
    read_config,
    read_problem,
    read_target,
    read_words,
    whole,
)
from convgen.cli.output import Progress, duration, print_json, table
from convgen.cli.selection import select
from convgen.errors import NotApplicableError, UsageError
from convgen.problem import Conv, Direction, DType, Layout, SuiteEntry, expand_entry, load_suite
from convgen.reference import InputKind
from convgen.strategies import Strategy, all_strategies, get_strategy
from convgen.target import Target
from convgen.verify import Backend, Case, Check, Settings, Status, VerifyResult, verify_cases

LAYOUTS = tuple(name for layout in Layout for name in (layout.value, *(layout.text(nd) for nd in (1, 2, 3))))
DTYPES = tuple(dtype.value for dtype in DType if dtype is not DType.INT32)
DIRECTIONS = (Direction.FPROP.value, Direction.DGRAD.value, Direction.WGRAD.value)


def add(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "verify",
        parents=[common],
        help="run kernels and hold the answers against float64",
        description="Exit status 5 if any answer is wrong, else 4 if any kernel failed to build or run, "
        "else 3 if no strategy applied to anything.",
    )
    parser.add_argument("problem", nargs="*", metavar="PROBLEM", help=PROBLEM_HELP)
    parser.add_argument("--suite", metavar="F", help="a suite's file, or the name of one that ships")
    parser.add_argument("--strategy", metavar="NAME|all", default="all", help="default: all")
    parser.add_argument("--config", metavar="K=V,…", help="fields of the config; needs one problem and one strategy")
    add_target(parser)
    parser.add_argument("--backend", choices=get_args(Backend), help="default: cuda if the target is the GPU here")
    parser.add_argument("--check", choices=get_args(Check), default="auto", help="does the simulator look for faults")
    parser.add_argument("--inputs", choices=get_args(InputKind), default="normal", help="what the tensors hold")
    parser.add_argument("--seed", type=whole(0), default=0, metavar="N")
    parser.add_argument("--jobs", type=whole(1), default=_cores(), metavar="N", help="processes; default: one a core")
    selection = parser.add_argument_group("which problems of a suite")
    selection.add_argument("--max-macs", type=quantity_at_most, metavar="N", help="those of at most N multiply-adds")
    selection.add_argument("--where", action="append", default=[], metavar="KEY=VALUE", help="as in family=resnet50")
    selection.add_argument(
        "--sample", type=whole(1), metavar="K", help="K of them, spread over families and directions"
    )
    expansion = parser.add_argument_group("in place of what the problem or the suite says")
    expansion.add_argument("--directions", metavar="NAME,…", help=f"some of {','.join(DIRECTIONS)}")
    expansion.add_argument("--dtypes", metavar="NAME,…", help="as in fp32,fp16,bf16")
    expansion.add_argument("--layouts", metavar="NAME,…", help="as in nchw,nhwc")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Verify every strategy on every problem asked for."""
    if bool(args.problem) == (args.suite is not None):
        raise UsageError("expected either a problem or --suite")
    entries = select(_entries(args), max_macs=args.max_macs, where=args.where, sample=args.sample, seed=args.seed)
    target = read_target(args)
    strategies = all_strategies() if args.strategy == "all" else (get_strategy(args.strategy),)
    settings = Settings(target, _backend(args, target), args.seed, args.inputs, args.check, args.jobs)
    results: list[VerifyResult] = []
    progress = Progress(len(entries) * len(strategies), "verified")
    for entry, result in _results(args, entries, strategies, settings):
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


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def _entries(args: argparse.Namespace) -> Sequence[SuiteEntry]:
    dtypes = read_words("--dtypes", args.dtypes, DTYPES)
    passes = read_words("--directions", args.directions, DIRECTIONS)
    layouts = read_words("--layouts", args.layouts, LAYOUTS)
    if args.suite is not None:
        return load_suite(args.suite, dtypes=dtypes, passes=passes, layouts=layouts)
    lists = {"dtypes": list(dtypes), "passes": list(passes), "layouts": list(layouts)}
    return expand_entry(read_problem(args.problem).to_json() | {key: value for key, value in lists.items() if value})


def _backend(args: argparse.Namespace, target: Target) -> Backend:
    if args.backend is not None:
        chosen: Backend = args.backend
        return chosen
    gpu = gpu_target()
    return "cuda" if gpu is not None and gpu.compute_capability == target.compute_capability else "sim"


def _results(
    args: argparse.Namespace, entries: Sequence[SuiteEntry], strategies: Sequence[Strategy], settings: Settings
) -> Iterator[tuple[SuiteEntry, VerifyResult]]:
    pairs = [(entry, strategy) for entry in entries for strategy in strategies]
    if args.config is not None and len(pairs) != 1:
        raise UsageError(f"--config: expected one problem and one --strategy, got {len(pairs)} combinations")
    cases, of_cases = [], []
    for entry, strategy in pairs:
        if isinstance(entry.problem, Conv):
            config = read_config(args.config, strategy, entry.problem, settings.target)
            cases.append(Case(entry.problem, strategy, config))
            of_cases.append(entry)
        else:
            reason = "it computes convolutions"
            yield entry, VerifyResult(entry.problem, strategy.name, settings.backend, "not_applicable", reason)
    yield from zip(of_cases, verify_cases(cases, settings), strict=True)


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
