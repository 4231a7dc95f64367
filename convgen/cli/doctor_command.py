"""`convgen doctor`."""

from __future__ import annotations

import argparse
import dataclasses
from typing import Any

from convgen.cli.output import print_json, table
from convgen.doctor import can_compile, diagnose
from convgen.errors import DeviceError


def add(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "doctor",
        parents=[common],
        help="what this machine has and lacks, and what mends it",
        description="Looks for everything convgen can use. Exit status 6 if kernels cannot be compiled here, else 0: "
        "a missing GPU or simulator is told, not a failure.",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print every finding."""
    findings = diagnose()
    if args.json:
        for finding in findings:
            print_json(dataclasses.asdict(finding))
    else:
        print(table([("ok" if f.found else "--", f.name, f.detail) for f in findings], indent=""))
        lacking = [f for f in findings if not f.found]
        if lacking:
            print("\nTo mend:")
            print(table([(f.name, f"to {f.needed_for}", f.mend) for f in lacking]))
    return 0 if can_compile(findings) else DeviceError.exit_code
