"""Which problems of a suite a command works on."""

from __future__ import annotations

import random
from collections.abc import Sequence

from convgen.errors import UsageError
from convgen.problem import SuiteEntry


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
