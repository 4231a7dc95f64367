"""Options that several commands share, and the values they stand for."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from convgen.errors import DeviceError, NotApplicableError, UsageError
from convgen.problem import Attention, Conv, Problem, parse_problem, problem_from_json
from convgen.problem.text import load_json
from convgen.space import Config
from convgen.strategies import Strategy
from convgen.target import DEFAULT_TARGET, Target

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


def read_target(args: argparse.Namespace) -> Target:
    """The target the options name, else the GPU of this machine, else the default preset (told on stderr).

    Raises UsageError.
    """
    if args.target is not None:
        return Target.preset(args.target)
    if args.arch is not None:
        return Target.for_arch(args.arch)
    gpu = gpu_target()
    if gpu is not None:
        return gpu
    print(f"no GPU here: the target is {DEFAULT_TARGET}", file=sys.stderr)
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


def require_conv(problem: Problem) -> Conv:
    """The problem itself if kernels for its kind exist. Raises NotApplicableError."""
    if isinstance(problem, Attention):
        raise NotApplicableError("attention is described and validated, but no strategy computes it yet")
    return problem


def read_config(text: str | None, strategy: Strategy, problem: Conv, target: Target) -> Config | None:
    """The config that `--config` describes: fields it does not name are the default's. None if it was not given.

    Raises ConfigError, NotApplicableError.
    """
    if text is None:
        return None
    reason = strategy.why_not(problem, target)
    if reason is not None:
        raise NotApplicableError(f"{strategy.name} does not apply: {reason}")
    base: Config = strategy.default(problem, target)
    return type(base).parse(text, base)


def read_words(option: str, text: str | None, allowed: Sequence[str]) -> tuple[str, ...]:
    """A comma-separated list. Raises UsageError for a word that is not allowed."""
    words = tuple(word.strip() for word in text.split(",")) if text else ()
    for word in words:
        if word not in allowed:
            raise UsageError(f"{option} {word!r}: expected one of {', '.join(allowed)}")
    return words
