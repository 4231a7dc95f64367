"""`convgen bench PROBLEM | --suite F`."""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from convgen.bench.contest import LEAST_ROUNDS
from convgen.bench.report import (
    FAMILY_HEAD,
    circumstances,
    families,
    family_row,
    interval,
    losses_first,
    markdown,
    microseconds,
    progress_line,
)
from convgen.bench.results import Entry, Results, load, merge, same_measurement, save
from convgen.cli.options import known_layers, output_file, quantity_at_most, read_words, whole
from convgen.cli.output import note, print_json, table
from convgen.cli.selection import add_problems, read_entries
from convgen.errors import CompileError, DeviceError, NotApplicableError, UsageError, WrongResultError
from convgen.files import write_whole
from convgen.problem import Conv, SuiteEntry
from convgen.strategies import get_strategy
from convgen.target import Target

if TYPE_CHECKING:
    from convgen.bench.ladder import Rung
    from convgen.bench.venue import GpuVenue
    from tuning_db import Layers

AGAINST = ("cudnn", "torch", "none")
SHOWN = 30
"""Problems that the summary lists."""


def add(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "bench",
        parents=[common],
        help="time our kernels against cuDNN, side by side on the GPU",
        description="Ours is the best kernel that the tuning database knows. Every contestant is verified, captured in "
        "a graph of the same number of calls, and timed in turn with the others. Peers need PyTorch; without it they "
        "are left out. Exit status 5 if an answer of ours was wrong, 3 if no strategy applies to any problem, 6 "
        "without a GPU.",
    )
    add_problems(parser)
    parser.add_argument("--strategy", metavar="NAME|all", help="ours is of this one; all: the ladder of one problem")
    parser.add_argument(
        "--against",
        metavar="PEER,…",
        default="cudnn",
        help="cudnn: PyTorch with cudnn.benchmark, in both memory formats, and cuDNN's own frontend where installed; "
        "of other layers each backend that PyTorch has; torch: PyTorch as it comes; none. Default: cudnn",
    )
    parser.add_argument(
        "--rounds", type=whole(LEAST_ROUNDS), metavar="N", help=f"at least {LEAST_ROUNDS}; default: as time allows"
    )
    parser.add_argument("--db", metavar="PATH|URL", help="default: CONVGEN_TUNING_DB, else a file in the data folder")
    parser.add_argument("--shard", metavar="I/N", help="the I-th of N parts, for several processes, as in 1/2")
    parser.add_argument("--time-limit", type=quantity_at_most, metavar="S", help="begin no problem after S seconds")
    files = parser.add_argument_group("files")
    files.add_argument(
        "-o",
        "--output",
        type=output_file,
        metavar="FILE.json",
        help="written after every problem; goes on where it ended",
    )
    files.add_argument("--restart", action="store_true", help="measure again what the file has")
    files.add_argument("--markdown", type=output_file, metavar="FILE", help="the report as a table")
    files.add_argument("--plot", type=output_file, metavar="FILE.png", help="the roofline, and the ratios by family")
    files.add_argument("--merge", nargs="+", type=Path, metavar="FILE.json", help="measure nothing: join these files")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Benchmark every problem asked for, or join what was measured before."""
    if args.merge is not None:
        if args.problem or args.suite is not None:
            raise UsageError("--merge measures nothing: expected no problem and no --suite beside it")
        _finish(args, merge([(str(path), load(path)) for path in args.merge]), save_too=True)
        return 0
    against = read_words("--against", args.against, AGAINST)
    if "none" in against and len(against) > 1:
        raise UsageError(f"--against {args.against}: expected none alone, or peers")
    entries = _part(read_entries(args), args.shard)
    peers = [name for name in against if name != "none"]
    if args.strategy == "all":
        return _ladder(args, entries, peers)
    strategy = None if args.strategy is None else get_strategy(args.strategy)
    target = _target()

    from convgen.bench.choices import decider
    from convgen.bench.session import Bench
    from convgen.bench.venue import GpuVenue

    venue = GpuVenue(target, peers, args.seed)
    if venue.peers_left_out:
        note(venue.peers_left_out)
    keeper = _Keeper(args, _meta(args, target, venue, peers), entries)
    bench = Bench(target, venue, decider(strategy), known_layers(args.db), args.rounds)
    keeper.take(bench.run(keeper.pending))
    results = keeper.results()
    _finish(args, results, save_too=False)
    return _status([entry for entry in results.entries if entry.key in {described_key(e) for e in entries}])


def described_key(entry: SuiteEntry) -> tuple[str, str, str, str]:
    """The key that the entry of a problem will have in the results."""
    problem = entry.problem
    layout = problem.layout_name
    return entry.id or str(problem), problem.dtype.value, problem.direction.value, layout


class _Keeper:
    """What is measured and what is to be, between the command's file and its progress lines."""

    def __init__(self, args: argparse.Namespace, meta: dict[str, Any], entries: Sequence[SuiteEntry]) -> None:
        self._path: Path | None = args.output
        self._limit: float | None = args.time_limit
        self._meta = meta
        self._known: dict[tuple[str, str, str, str], Entry] = {}
        self._clocks: list[Any] = []
        if self._path is not None and self._path.is_file() and not args.restart:
            before = load(self._path)
            differs = same_measurement(before.meta, meta)
            if differs:
                raise UsageError(
                    f"-o {self._path}: measured under other circumstances ({differs}); --restart begins anew"
                )
            self._known = {entry.key: entry for entry in before.entries}
        self.pending = [entry for entry in entries if described_key(entry) not in self._known]
        if len(self.pending) < len(entries):
            note(f"{len(entries) - len(self.pending)} of {len(entries)} problems are in {self._path} already")

    def take(self, measured: Any) -> None:
        """Keep every entry as it comes."""
        began = time.monotonic()
        for number, entry in enumerate(measured, start=1):
            self._known[entry.key] = entry
            self._clocks += [entry.clocks] if entry.clocks else []
            note(f"[{number}/{len(self.pending)}] {progress_line(entry)}")
            if self._path is not None:
                save(self._path, self.results())
            if self._limit is not None and time.monotonic() - began > self._limit and number < len(self.pending):
                note(f"time is up: {len(self.pending) - number} problems are left; the same command goes on with them")
                return

    def results(self) -> Results:
        return Results(self._meta | {"clocks": _extremes(self._clocks)}, list(self._known.values()))


def _extremes(clocks: Sequence[dict[str, Any]]) -> dict[str, list[float]] | None:
    """The least and the largest that was read of everything."""
    readings = [reading for pair in clocks for reading in (pair["before"], pair["after"]) if reading]
    names = dict.fromkeys(name for reading in readings for name in reading)
    found = {name: [reading[name] for reading in readings if name in reading] for name in names}
    return {name: [min(values), max(values)] for name, values in found.items()} or None


def _target() -> Target:
    try:
        return Target.current()
    except DeviceError as error:
        raise DeviceError(f"bench times kernels on a GPU: {error}") from error


def _part(entries: Sequence[SuiteEntry], shard: str | None) -> list[SuiteEntry]:
    """Every N-th problem, beginning with the I-th."""
    if shard is None:
        return list(entries)
    first, slash, parts = shard.partition("/")
    if not (slash and first.isdecimal() and parts.isdecimal() and 1 <= int(first) <= int(parts)):
        raise UsageError(f"--shard {shard!r}: expected I/N with I from 1 to N, as in 1/2")
    return list(entries[int(first) - 1 :: int(parts)])


def _meta(args: argparse.Namespace, target: Target, venue: GpuVenue, peers: Sequence[str]) -> dict[str, Any]:
    return venue.meta | {
        "suite": args.suite,
        "against": list(peers),
        "target": target.name,
        "attainable": dataclasses.asdict(target.attainable),
    }


# --- what is shown --------------------------------------------------------------------------------------


def _finish(args: argparse.Namespace, results: Results, save_too: bool) -> None:
    """Write the files that were asked for, then print."""
    if save_too and args.output is not None:
        save(args.output, results)
    if args.markdown is not None:
        suite = results.meta.get("suite")
        title = f"convgen bench: {suite}" if suite else "convgen bench"
        write_whole(args.markdown, markdown(results, title).encode())
    if args.plot is not None:
        from convgen.bench.plot import draw

        draw(results, args.plot)
    if args.json:
        print_json(results.as_json())
    else:
        print(_summary(results))


def _summary(results: Results) -> str:
    measured = [entry for entry in results.entries if entry.ours_us is not None]
    parts = [circumstances(results.meta)]
    if measured:
        parts += [table([FAMILY_HEAD, *map(family_row, families(measured))], indent=""), _problems(measured)]
    missing = len(results.entries) - len(measured)
    if missing:
        reasons = dict.fromkeys(entry.reason for entry in results.entries if entry.ours_us is None)
        shown = "; ".join(list(reasons)[:3])
        parts.append(f"{missing} of {len(results.entries)} problems not measured: {shown}")
    return "\n\n".join(parts)


def _problems(measured: Sequence[Entry]) -> str:
    ordered = losses_first(measured)
    rows: list[Sequence[str]] = [("problem", "dtype", "direction", "ours µs", "peer µs", "ratio", "")]
    for entry in ordered[:SHOWN]:
        peer = None if entry.best_peer is None else entry.peers[entry.best_peer]
        times = (microseconds(entry.ours_us), microseconds(peer))
        rows.append((entry.id, entry.dtype, entry.direction, *times, interval(entry), entry.best_peer or ""))
    rest = [f"and {len(ordered) - SHOWN} more"] if len(ordered) > SHOWN else []
    return "\n".join([table(rows, indent=""), *rest])


def _status(entries: Sequence[Entry]) -> int:
    if any(entry.error is not None and not entry.verified for entry in entries):
        return WrongResultError.exit_code
    if any(entry.ours_us is not None for entry in entries):
        return 0
    return NotApplicableError.exit_code if all(e.strategy is None for e in entries) else CompileError.exit_code


# --- the ladder -----------------------------------------------------------------------------------------


def _ladder(args: argparse.Namespace, entries: Sequence[SuiteEntry], peers: Sequence[str]) -> int:
    if args.suite is not None or len(entries) != 1:
        raise UsageError("--strategy all: expected one problem, in one dtype, direction and layout")
    if args.markdown is not None or args.plot is not None:
        raise UsageError("--strategy all prints the ladder: --markdown and --plot are for suites")
    problem = entries[0].problem
    if not isinstance(problem, Conv):
        raise NotApplicableError(f"a ladder of {problem.op} is not there yet; expected a convolution")
    target = _target()

    from convgen.bench.ladder import candidates, climb
    from convgen.bench.venue import GpuVenue

    venue = GpuVenue(target, peers, args.seed)
    if venue.peers_left_out:
        note(venue.peers_left_out)
    layers: Layers = known_layers(args.db)
    rungs = climb(problem, target, venue, candidates(problem, target, layers), args.rounds)
    document = {
        "meta": _meta(args, target, venue, peers),
        "problem": str(problem),
        "ladder": [dataclasses.asdict(rung) for rung in rungs],
    }
    if args.output is not None:
        write_whole(args.output, (json.dumps(document, indent=1, allow_nan=False) + "\n").encode())
    if args.json:
        print_json(document)
    else:
        print(_ladder_text(problem, venue.meta, rungs))
    return _ladder_status([rung for rung in rungs if not rung.is_peer])


def _ladder_status(ours: Sequence[Rung]) -> int:
    if any(rung.is_wrong for rung in ours):
        return WrongResultError.exit_code
    return 0 if any(rung.us is not None for rung in ours) else CompileError.exit_code


def _ladder_text(problem: Conv, meta: dict[str, Any], rungs: Sequence[Rung]) -> str:
    rows: list[Sequence[str]] = [("", "µs", "x naive", "of the floor", "")]
    for rung in rungs:
        over = "-" if rung.over_naive is None else f"{rung.over_naive:.2f}"
        reached = "-" if rung.attained is None else f"{rung.attained:.1%}"
        remarks = ("peer" if rung.is_peer else "", rung.reason)
        rows.append((rung.name, microseconds(rung.us), over, reached, ": ".join(filter(None, remarks))))
    return f"{circumstances(meta)}\n\n{problem}\n{table(rows)}"
