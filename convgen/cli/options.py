"""Options that several commands share, and the values they stand for."""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from convgen.errors import DeviceError, NotApplicableError, OutputError, UsageError
from convgen.lowering import why_not
from convgen.problem import Problem, parse_problem, problem_from_json
from convgen.problem.text import load_json
from convgen.space import Config
from convgen.strategies import Strategy
from convgen.target import DEFAULT_TARGET, Target

if TYPE_CHECKING:
    from tuning_db import Layers

PROBLEM_HELP = (
    "the problem, unquoted: conv2d n=32 c=64 in=56x56 k=128 filter=3x3 pad=1 dtype=bf16 layout=nhwc; or one JSON object"
)


def common_options() -> argparse.ArgumentParser:
    """What every command takes."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--json", action="store_true", help="print JSON for programs instead of text for people")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    return parser


def add_target(parser: argparse.ArgumentParser) -> None:
    """`--target` and `--arch`, which exclude each other."""
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--target", metavar="NAME", help="a preset (see `convgen list targets`); default: the GPU here")
    group.add_argument("--arch", metavar="sm_XX", help="an architecture, for which its best-known preset stands")


def whole(at_least: int) -> Callable[[str], int]:
    """The `type` of an option that takes an integer of at least `at_least`."""

    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = at_least - 1
        if value < at_least:
            raise argparse.ArgumentTypeError(f"{text!r}: expected an integer of at least {at_least}")
        return value

    return read


def quantity_at_most(text: str) -> float:
    """The `type` of an option that takes an upper limit, as 1e6."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a number of at least 0, as in 1e6")
    return value


def folder(text: str) -> Path:
    """The `type` of an option that takes the name of a folder to write, which is made."""
    if not text:
        raise argparse.ArgumentTypeError("'': expected the name of a folder")
    return output_file(text)


def output_file(text: str) -> Path:
    """The `type` of an option that takes the name of a file to write, in a folder that is there."""
    path = Path(text)
    if not os.path.isdir(path.parent):
        wrong = f"{path.parent} is no folder" if os.path.exists(path.parent) else f"there is no folder {path.parent}"
        raise argparse.ArgumentTypeError(f"{text!r}: {wrong}")
    return path


def read_target(args: argparse.Namespace) -> Target:
    """The target the options name, else the GPU of this machine, else the default preset (told on stderr).

    Raises UsageError.
    """
    if args.target is not None:
        return Target.preset(args.target)
    if args.arch is not None:
        return Target.for_arch(args.arch)
    try:
        return Target.current()
    except DeviceError as error:
        print(f"no GPU here, so the target is {DEFAULT_TARGET} ({error})", file=sys.stderr)
        return Target.preset(DEFAULT_TARGET)


def gpu_target() -> Target | None:
    """The GPU of this machine; None if there is none that can be used."""
    try:
        return Target.current()
    except DeviceError:
        return None


def read_problem(words: Sequence[str]) -> Problem:
    """The problem that the command line's words or JSON describe. Raises ProblemError."""
    text = " ".join(words)
    if text.lstrip().startswith("{"):
        return problem_from_json(load_json(text, "problem"))
    return parse_problem(text)


def read_config(text: str | None, strategy: Strategy, problem: Problem, target: Target) -> Config | None:
    """The legal config that `--config` describes: fields it does not name are the default's. None if it was not given.

    Raises ConfigError, NotApplicableError.
    """
    if text is None:
        return None
    reason = why_not(problem, strategy, target)
    if reason is not None:
        raise NotApplicableError(f"{strategy.name} does not apply: {reason}")
    base: Config = strategy.default(problem, target)
    config = type(base).parse(text, base)
    strategy.check(problem, config, target)
    return config


def read_words(option: str, text: str | None, allowed: Sequence[str]) -> tuple[str, ...]:
    """A comma-separated list, () if it was not given. Raises UsageError for a word that is not allowed."""
    words = () if text is None else tuple(word.strip() for word in text.split(","))
    for word in words:
        if word not in allowed:
            raise UsageError(f"{option} {word!r}: expected one of {', '.join(allowed)}")
    return words


@contextlib.contextmanager
def database_errors() -> Iterator[None]:
    """An error of a tuning database inside is an OutputError of ours if it cannot be stored to, else a UsageError."""
    from tuning_db import DatabaseError, StorageError

    try:
        yield
    except StorageError as error:
        raise OutputError(str(error)) from error
    except DatabaseError as error:
        raise UsageError(str(error)) from error


def known_layers(place: str | None) -> Layers:
    """The tuning database that `--db` names, which must be there, over the winners that ship; without it those that the
    environment names.

    Raises UsageError, OutputError.
    """
    from tuning_db import Layers, Shipped, open_database, open_layers

    with database_errors():
        return open_layers() if place is None else Layers(open_database(place, must_exist=True), None, Shipped())


def writable_layers(place: str | None) -> Layers:
    """The same, but made where it is not there, for what is only worth doing if it can be kept.

    Raises OutputError also if the database that the environment names cannot be written.
    """
    from tuning_db import Layers, Shipped, open_database, open_layers

    with database_errors():
        user = open_database(place)
        user.check_writable()
    return open_layers(user) if place is None else Layers(user, None, Shipped())
