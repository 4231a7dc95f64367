"""The command line: `convgen COMMAND …`.

Results go to stdout, all else to stderr. Exit status: 0 well; 1 an unexpected error; 2 bad usage or problem;
3 no strategy applies; 4 compile failed; 5 wrong result; 6 no device; 130 interrupted.
"""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Sequence

from convgen import __version__
from convgen.cli import compile_command, doctor_command, explain_command, list_command, verify_command
from convgen.cli.options import common_options
from convgen.errors import ConvgenError

__all__ = ["main"]

INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command (`sys.argv` unless given) and return its exit status.

    Raises SystemExit for bad usage and after --help, as argparse does.
    """
    args = _parse(build_parser(), arguments)
    try:
        status: int = args.run(args)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader has gone; what Python flushes when it exits must not complain of that again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except Exception as error:
        return _report(error, args.debug)
    return status


def build_parser() -> argparse.ArgumentParser:
    """The parser of every command."""
    parser = argparse.ArgumentParser(
        prog="convgen",
        description="Generate, verify and compile CUDA kernels for convolutions.",
        epilog="exit status: 0 well; 2 bad usage or problem; 3 no strategy applies; 4 compile failed; "
        "5 wrong result; 6 no device",
    )
    parser.add_argument("--version", action="version", version=f"convgen {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for command in (compile_command, verify_command, explain_command, list_command, doctor_command):
        command.add(commands, common_options())
    return parser


def _parse(parser: argparse.ArgumentParser, arguments: Sequence[str] | None) -> argparse.Namespace:
    """argparse ends a list of words at the first option; the words of a problem may go on after it."""
    args, rest = parser.parse_known_args(arguments)
    if rest and not (hasattr(args, "problem") and all("=" in word and not word.startswith("-") for word in rest)):
        parser.error(f"unrecognised arguments: {' '.join(rest)}")
    if rest:
        args.problem += rest
    return args


def _report(error: Exception, debug: bool) -> int:
    if debug:
        traceback.print_exception(error)
    elif isinstance(error, ConvgenError):
        print(f"convgen: {error}", file=sys.stderr)
    else:
        name = type(error).__name__
        print(f"convgen: unexpected {name}: {error} (a bug; --debug shows where)", file=sys.stderr)
    return error.exit_code if isinstance(error, ConvgenError) else 1
