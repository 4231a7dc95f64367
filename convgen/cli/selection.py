"""Which problems a command works on: one, or those chosen of a suite."""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence

from convgen.cli.options import PROBLEM_HELP, quantity_at_most, read_problem, read_words, whole
from convgen.errors import UsageError
from convgen.problem import Direction, DType, Layout, SuiteEntry, expand_entry, load_suite

LAYOUTS = tuple(name for layout in Layout for name in (layout.value, *(layout.text(nd) for nd in (1, 2, 3))))
DTYPES = tuple(dtype.value for dtype in DType if dtype is not DType.INT32)
DIRECTIONS = (Direction.FPROP.value, Direction.DGRAD.value, Direction.WGRAD.value)


def add_problems(parser: argparse.ArgumentParser) -> None:
    """The options that `read_entries` reads."""
    parser.add_argument("problem", nargs="*", metavar="PROBLEM", help=PROBLEM_HELP)
    parser.add_argument("--suite", metavar="F", help="a suite's file, or the name of one that ships")
    parser.add_argument("--seed", type=whole(0), default=0, metavar="N")
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


def read_entries(args: argparse.Namespace) -> list[SuiteEntry]:
    """The problem, or those of the suite that were asked for. Raises UsageError, ProblemError."""
    if bool(args.problem) == (args.suite is not None):
        raise UsageError("expected either a problem or --suite")
    return select(_expanded(args), max_macs=args.max_macs, where=args.where, sample=args.sample, seed=args.seed)


def _expanded(args: argparse.Namespace) -> Sequence[SuiteEntry]:
    dtypes = read_words("--dtypes", args.dtypes, DTYPES)
    passes = read_words("--directions", args.directions, DIRECTIONS)
    layouts = read_words("--layouts", args.layouts, LAYOUTS)
    if args.suite is not None:
        return load_suite(args.suite, dtypes=dtypes, passes=passes, layouts=layouts)
    lists = {"dtypes": list(dtypes), "passes": list(passes), "layouts": list(layouts)}
    return expand_entry(read_problem(args.problem).to_json() | {key: value for key, value in lists.items() if value})


def select(
    entries: Sequence[SuiteEntry], *, max_macs: float | None, where: Sequence[str], sample: int | None, seed: int
) -> list[SuiteEntry]:
    """The entries of at most `max_macs` multiply-adds that meet every `key=value` of `where`; of these about evenly
    from each family and direction, `sample` at most. Raises UsageError if none is left."""
    conditions = [_condition(text) for text in where]
    chosen = [
        entry
        for entry in entries
        if (max_macs is None or entry.problem.macs <= max_macs) and all(_meets(entry, *c) for c in conditions)
    ]
    if not chosen:
        raise UsageError("no problem is selected: loosen --max-macs or --where")
    return chosen if sample is None else stratified(chosen, sample, seed)


def stratified(entries: Sequence[SuiteEntry], count: int, seed: int) -> list[SuiteEntry]:
    """`count` entries, one from each (family, direction) in turn, in their original order."""
    rng = random.Random(seed)
    strata: dict[tuple[str, str], list[int]] = {}
    for position, entry in enumerate(entries):
        strata.setdefault((entry.family, entry.problem.direction), []).append(position)
    queues = list(strata.values())
    rng.shuffle(queues)
    for queue in queues:
        rng.shuffle(queue)
    rounds = [[queue[turn] for queue in queues if turn < len(queue)] for turn in range(max(map(len, queues)))]
    picked = [position for turn in rounds for position in turn][:count]
    return [entries[position] for position in sorted(picked)]


def _condition(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise UsageError(f"--where {text!r}: expected key=value, as in family=resnet50 or tags=strided")
    return key, value


def _meets(entry: SuiteEntry, key: str, value: str) -> bool:
    if key in ("id", "family"):
        return bool(getattr(entry, key) == value)
    if key in ("direction", "dtype", "layout", "op"):
        return bool(getattr(entry.problem, key) == value)
    found = entry.extras.get(key)
    return value in map(str, found) if isinstance(found, list) else str(found) == value
