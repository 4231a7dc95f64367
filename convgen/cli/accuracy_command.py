"""`convgen accuracy`."""

from __future__ import annotations

import argparse
import dataclasses
from typing import Any

from convgen.accuracy import KINDS, Row, rows
from convgen.cli.options import whole
from convgen.cli.output import print_json, table


def add(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "accuracy",
        parents=[common],
        help="bounds and measured errors of Winograd's transforms beside the direct kernel's",
        description="Of 3x3 convolutions, relative to the sum of |x| |w|; in brackets the share of the bound.",
    )
    parser.add_argument("--channels", type=whole(1), default=256, metavar="C", help="summed channels (default: 256)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print one line for each algorithm."""
    found = rows(args.channels)
    if args.json:
        for row in found:
            print_json({"channels": args.channels} | dataclasses.asdict(row))
        return 0
    heads = ("algorithm", "points", "dtype", "mult/result", "growth", "bound", *KINDS)
    print(f"3x3, {args.channels} channels; errors relative to the sum of |x| |w|, in brackets their share of the bound")
    print(table([heads, *map(_cells, found)]))
    return 0


def _cells(row: Row) -> tuple[str, ...]:
    measured = (f"{row.errors[kind]:.1e} ({row.shares[kind]:.2%})" for kind in KINDS)
    figures = f"{row.multiplications:.4g}", f"{row.growth:.4g}", f"{row.bound:.1e}"
    return (row.variant, row.points, row.dtype, *figures, *measured)
