"""The parser of every command."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from convgen import __version__
from convgen.cli import (
    accuracy_command,
    bench_command,
    compile_command,
    db_command,
    doctor_command,
    explain_command,
    list_command,
    tune_command,
    verify_command,
)
from convgen.cli.options import common_options


def parse(words: Sequence[str]) -> argparse.Namespace:
    """The options of a command, and its function as `run`. Raises SystemExit as argparse does."""
    parser = build_parser()
    # argparse ends a list of words at the first option; the words of a problem may go on after it.
    args, rest = parser.parse_known_args(words)
    if rest and not (hasattr(args, "problem") and all("=" in word and not word.startswith("-") for word in rest)):
        parser.error(f"unrecognised arguments: {' '.join(rest)}")
    if rest:
        args.problem += rest
    return args


def build_parser() -> argparse.ArgumentParser:
    """The parser of every command."""
    parser = argparse.ArgumentParser(
        prog="convgen",
        description="Generate, verify, tune, benchmark and compile CUDA kernels for convolutions.",
        epilog="exit status: 0 well; 1 an unexpected error, or output that cannot be written; "
        "2 bad usage or problem; 3 no strategy applies; 4 compile failed; 5 wrong result; "
        "6 no device or library; 130 interrupted; 143 terminated",
    )
    parser.add_argument("--version", action="version", version=f"convgen {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for command in (
        compile_command,
        verify_command,
        explain_command,
        accuracy_command,
        tune_command,
        bench_command,
        db_command,
        list_command,
        doctor_command,
    ):
        command.add(commands, common_options())
    return parser
