"""`convgen tune PROBLEM | --suite F`."""

from __future__ import annotations

import argparse
import contextlib
import statistics
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from convgen.cli.live import Live
from convgen.cli.options import quantity_at_most, whole, writable_layers
from convgen.cli.output import duration, print_json, table
from convgen.cli.selection import add_problems, read_entries
from convgen.errors import (
    CompileError,
    ConvgenError,
    DeviceError,
    NotApplicableError,
    OutputError,
    UsageError,
    WrongResultError,
)
from convgen.problem import Problem
from convgen.strategies import get_strategy, strategies_of
from convgen.target import Target

if TYPE_CHECKING:
    from convgen.tuner.events import Measured, TuneResult
    from tuning_db import Layers


def add(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "tune",
        parents=[common],
        help="search the fastest kernel on the GPU, and remember it",
        description="A problem whose winner ships, or is of a finished search of these strategies by today's code, is "
        "not searched again. Ctrl-C ends the search and keeps what it found. Exit status 1 if that could not be saved, "
        "3 if no strategy applies to any problem, 4 if this machine was too slow to judge any candidate, 5 if "
        "every candidate of a problem was wrong, 6 without a GPU, 130 when interrupted.",
    )
    add_problems(parser)
    parser.add_argument("--strategy", metavar="NAME,…", help="search only these")
    parser.add_argument("--trials", type=whole(1), metavar="N", help="candidates to compile for a problem")
    parser.add_argument(
        "--time-limit",
        type=quantity_at_most,
        metavar="S",
        help="seconds to search a problem, once its inputs and right answers are prepared; default: 60",
    )
    parser.add_argument("--patience", type=whole(1), metavar="N", help="end after N candidates without a gain")
    parser.add_argument("--db", metavar="PATH|URL", help="default: CONVGEN_TUNING_DB, else a file in the data folder")
    parser.add_argument("--retune", action="store_true", help="search although the winner is known")
    parser.add_argument("--devices", metavar="N,…", help="GPUs to measure on, each its own problem; default: 0")
    parser.add_argument("--jobs", type=whole(1), metavar="N", help="processes that compile; default: one a core")
    parser.add_argument(
        "--backend",
        choices=("cuda", "sim"),
        default="cuda",
        help="sim: verify in the simulator and take the cost model's times, which are filed apart",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Tune every problem asked for."""
    from convgen.tuner.events import Budget
    from convgen.tuner.session import Tuner

    problems = _problems(args)
    limit = 60.0 if args.time_limit is None and args.trials is None and args.patience is None else args.time_limit
    strategies = [get_strategy(name) for name in args.strategy.split(",")] if args.strategy else None
    devices = _devices(args)
    target = _target(args, devices[0])
    layers = writable_layers(args.db)
    with _saved(layers), Live(len(problems)) as live:
        tuner = Tuner(
            target,
            database=layers,
            strategies=strategies,
            budget=Budget(args.trials, limit, args.patience),
            backend=args.backend,
            devices=devices,
            build_workers=args.jobs,
            seed=args.seed,
            progress=live.show,
            retune=args.retune,
        )
        results: list[TuneResult] = []
        failed: list[ConvgenError] = []
        with tuner:
            for result in tuner.tune_many(problems):
                if isinstance(result, DeviceError):
                    raise result
                if isinstance(result, ConvgenError):
                    failed.append(result)
                    live.say(f"not tuned: {result}")
                    continue
                results.append(result)
                _tell(args, result, live)
    if not args.json and len(results) > 1:
        print(_summary(results))
    return _status(results, failed)


@contextlib.contextmanager
def _saved(layers: Layers) -> Iterator[None]:
    """However the search ends, that some of it could not be stored is told last, and is a failure."""
    from tuning_db import DatabaseError

    try:
        yield
    finally:
        try:
            layers.save()
        except DatabaseError as error:
            place = layers.user.path if layers.user is not None else None
            room = f"make room in {place.parent}" if place is not None else "mend the database"
            raise OutputError(f"{error}: {room}, and tune again") from error


def _problems(args: argparse.Namespace) -> list[tuple[Problem, str]]:
    chosen = [(e.problem, e.family) for e in read_entries(args) if strategies_of(e.problem)]
    if not chosen:
        raise NotApplicableError("these problems are described and validated, but no strategy computes them yet")
    return list({str(problem): (problem, family) for problem, family in chosen}.values())


def _devices(args: argparse.Namespace) -> list[int]:
    if args.devices is None:
        return [0]
    if args.backend == "sim":
        raise UsageError(f"--devices {args.devices}: the simulator runs on no GPU: leave it out, or --backend sim")
    for word in args.devices.split(","):
        if not word.strip().isdecimal():
            raise UsageError(f"--devices {word!r}: expected the number of a GPU")
    return [int(word) for word in args.devices.split(",")]


def _target(args: argparse.Namespace, device: int) -> Target | None:
    if args.backend == "sim":
        return None
    try:
        return Target.current(device)
    except DeviceError as error:
        raise DeviceError(
            f"tune times kernels on a GPU: {error}; --backend sim needs none: it verifies, and takes predicted times"
        ) from error


def _tell(args: argparse.Namespace, result: TuneResult, live: Live) -> None:
    if args.json:
        print_json(_as_json(result))
        return
    print(f"{result.problem}\n  {_sentence(result)}")
    if result.best is not None:
        print(f"  {result.best.strategy.name}: {result.best.config}")


def _sentence(result: TuneResult) -> str:
    best = result.best
    counts = Counter(dict(result.statuses))
    failures = ", ".join(f"{count} {status}" for status, count in counts.items() if status not in ("ok", "duplicate"))
    prepared = duration(result.preparation_seconds)
    tried = f"{result.trials} candidates{f' ({failures})' if failures else ''} in {duration(result.seconds)}"
    if result.preparation_seconds:
        tried += f", after {prepared} of preparation"
    if best is None or best.seconds is None:
        if result.outcome == "interrupted" and not result.seconds and result.preparation_seconds:
            return f"interrupted before the search began, in {prepared} of preparation"
        if result.outcome == "interrupted":
            return f"interrupted before any candidate gave a right answer: {tried}"
        if _is_too_slow(result):
            return f"this machine was too slow to judge any candidate: {tried}"
        return f"no candidate gave a right answer: {tried}"
    if result.outcome == "served":
        return f"{duration(best.seconds)}, from the database"
    parts = [duration(best.seconds)]
    if result.default is not None and result.default.seconds is not None:
        parts.append(f"{result.default.seconds / best.seconds:.2f}x as fast as untuned")
    if result.random_baseline is not None:
        ratio = result.random_baseline / best.seconds
        parts.append(f"{ratio:.2f}x as fast as the best of {result.random_draws} random draws")
    if result.ties:
        parts.append(f"tied with {len(result.ties)}")
    if result.outcome == "interrupted":
        parts.append("interrupted")
    return f"{'; '.join(parts)}; {tried}"


def _is_too_slow(result: TuneResult) -> bool:
    """Whether nothing but the lack of time kept every candidate from being right."""
    from convgen.tuner.outcome import TIMEOUTS

    return result.trials > 0 and all(status in TIMEOUTS for status in result.statuses if status != "duplicate")


def _summary(results: list[TuneResult]) -> str:
    searched = [r for r in results if r.outcome != "served"]
    rows = [
        ("problems", str(len(results))),
        ("from the database", str(len(results) - len(searched))),
        ("candidates", str(sum(r.trials for r in searched))),
    ]
    gains = [
        r.default.seconds / r.best.seconds
        for r in searched
        if r.best is not None and r.default is not None and r.best.seconds and r.default.seconds
    ]
    if gains:
        rows.append(("over untuned", f"{statistics.geometric_mean(gains):.2f}x (geomean)"))
    return table(rows, indent="")


def _as_json(result: TuneResult) -> dict[str, Any]:
    def told(measured: Measured | None) -> dict[str, Any] | None:
        if measured is None:
            return None
        return {
            "strategy": measured.strategy.name,
            "config": measured.config.as_dict(),
            "seconds": measured.seconds,
            "origin": measured.origin,
        }

    return {
        "problem": str(result.problem),
        "outcome": result.outcome,
        "best": told(result.best),
        "default": told(result.default),
        "ties": [told(tie) for tie in result.ties],
        "trials": result.trials,
        "statuses": dict(result.statuses),
        "random_draws": result.random_draws,
        "random_baseline": result.random_baseline,
        "seconds": round(result.seconds, 3),
        "preparation_seconds": round(result.preparation_seconds, 3),
    }


def _status(results: list[TuneResult], failed: list[ConvgenError]) -> int:
    without = [result for result in results if result.best is None and result.outcome == "finished"]
    if not all(map(_is_too_slow, without)):
        return WrongResultError.exit_code
    if without:
        return CompileError.exit_code
    if not results and failed:
        return failed[0].exit_code
    return 0
