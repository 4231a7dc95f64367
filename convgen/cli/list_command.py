"""`convgen list strategies | targets | suites`."""

from __future__ import annotations

import argparse
from typing import Any

from convgen.cli.output import print_json, quantity, table
from convgen.problem import load_suite, shipped_suites
from convgen.strategies import all_strategies
from convgen.target import presets


def add(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser("list", parents=[common], help="what convgen knows: strategies, targets or suites")
    parser.add_argument("what", choices=("strategies", "targets", "suites"))
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print one line for each."""
    entries = {"strategies": _strategies, "targets": _targets, "suites": _suites}[args.what]()
    if args.json:
        for entry, _ in entries:
            print_json(entry)
    else:
        print(table([row for _, row in entries], indent=""))
    return 0


_Entries = list[tuple[dict[str, Any], tuple[str, ...]]]


def _strategies() -> _Entries:
    return [({"name": s.name, "summary": s.summary}, (s.name, s.summary)) for s in all_strategies()]


def _targets() -> _Entries:
    entries: _Entries = []
    for target in presets().values():
        fields = {
            "name": target.name,
            "arch": target.arch,
            "sm_count": target.sm_count,
            "bandwidth": target.peak.bandwidth,
            "fp32_flops": target.peak.fp32,
            "measured": target.measured,
        }
        row = (
            target.name,
            target.arch,
            f"{target.sm_count} SMs",
            quantity(target.peak.bandwidth, "B/s"),
            f"{quantity(target.peak.fp32, 'FLOP/s')} fp32",
        )
        entries.append((fields, row))
    return entries


def _suites() -> _Entries:
    entries: _Entries = []
    for name in shipped_suites():
        suite = load_suite(name)
        ids = len({entry.id for entry in suite})
        fields = {"name": name, "entries": ids, "problems": len(suite)}
        entries.append((fields, (name, f"{ids} entries", f"{len(suite)} problems")))
    return entries
