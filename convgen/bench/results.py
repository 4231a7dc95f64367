"""What was measured, as `bench --json` prints it and `benchmarks/results/` keeps it.

    {"meta": {gpu, driver, cuda, cudnn, torch, convgen, commit, date, protocol, clocks, …}, "entries": [Entry, …]}

A file is written whole after every problem, beside its place and moved there, so that a run which is killed keeps what
it has.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from convgen.errors import UsageError
from convgen.files import write_whole

IDENTITY = ("gpu", "driver", "cuda", "cudnn", "torch", "convgen", "protocol")
"""What must be equal for two files to be one measurement."""

Key = tuple[str, str, str, str]


@dataclass(frozen=True)
class Entry:
    """One problem in one dtype, direction and layout. Times in microseconds of one call, medians; None: not known.

    ours     the best known kernel, everything that depends on inputs or weights included
    default  what convgen answers without a database
    frozen   ours with what depends on the weights alone done once; `prepare_us` is what that saves
    peers    by name; those that cannot compute the problem are in `peer_reasons`
    """

    id: str
    family: str
    problem: str
    dtype: str
    direction: str
    layout: str
    accuracy: str
    strategy: str | None = None
    config: Mapping[str, Any] | None = None
    origin: str | None = None
    """How the strategy and config were chosen, as in `tuner.decide.Decision`."""
    ours_us: float | None = None
    spread: tuple[float, float] | None = None
    """Quartiles of ours."""
    prepare_us: float | None = None
    """None: nothing depends on the weights alone."""
    frozen_us: float | None = None
    default_us: float | None = None
    default_strategy: str | None = None
    default_config: Mapping[str, Any] | None = None
    peers: Mapping[str, float] = field(default_factory=dict)
    peer_spreads: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    peer_reasons: Mapping[str, str] = field(default_factory=dict)
    """Why a peer has no time."""
    best_peer: str | None = None
    ratio: float | None = None
    """Best peer over ours, the median of the rounds' ratios: above 1 ours is faster."""
    ratio_low: float | None = None
    ratio_high: float | None = None
    confidence: float | None = None
    """Of the interval from `ratio_low` to `ratio_high`."""
    default_ratio: float | None = None
    frozen_ratio: float | None = None
    floor_us: float | None = None
    """The larger of flops and compulsory bytes at the rates that the GPU can attain."""
    attained: float | None = None
    """Fraction of the floor that ours reaches; a floor below 2 us counts as 2."""
    peer_attained: float | None = None
    flops: int = 0
    bytes: int = 0
    verified: bool = False
    """Whether ours, untuned and frozen included, gave the right answer."""
    reason: str = ""
    """Why ours has no time."""
    error: Mapping[str, float | None] | None = None
    """Of ours: `max_error`, the largest |got - reference|, and `of_bound`, the largest |got - reference| / bound (None:
    infinite)."""
    peer_errors: Mapping[str, Mapping[str, float | None]] = field(default_factory=dict)
    out_of_bound: Sequence[str] = ()
    """Peers whose answer is farther from the reference than a right one may be: timed all the same."""
    rounds: int = 0
    repetitions: int = 0
    """Calls in one timed graph."""
    caches: str = ""
    """ "cold" if the rotating buffers exceed the L2, else "warm": the problem is too small for that."""
    clocks: Mapping[str, Any] | None = None
    """Observed before and after."""

    @property
    def key(self) -> Key:
        return self.id, self.dtype, self.direction, self.layout

    @classmethod
    def from_json(cls, values: Any) -> Entry:
        """What `asdict` made of one; unknown keys are passed over. Raises UsageError."""
        if not isinstance(values, dict):
            raise UsageError(f"entry {str(values)[:60]!r}: expected an object")
        known = {f.name for f in fields(cls)}
        try:
            return cls(**{key: value for key, value in values.items() if key in known})
        except TypeError as error:
            raise UsageError(f"entry {str(values.get('id', ''))[:60]!r}: {error}") from error


@dataclass(frozen=True)
class Results:
    """A run, or several merged."""

    meta: Mapping[str, Any]
    entries: Sequence[Entry]

    def as_json(self) -> dict[str, Any]:
        return {"meta": dict(self.meta), "entries": [asdict(entry) for entry in self.entries]}


def load(path: Path) -> Results:
    """Raises UsageError for what is no results file."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"results {path}: cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise UsageError(f"results {path}: expected JSON ({error})") from error
    meta, entries = (data.get("meta"), data.get("entries")) if isinstance(data, dict) else (None, None)
    if not isinstance(meta, dict) or not isinstance(entries, list):
        raise UsageError(f"results {path}: expected an object with meta and entries, as `convgen bench -o` writes it")
    return Results(meta, [Entry.from_json(values) for values in entries])


def save(path: Path, results: Results) -> None:
    """One line an entry, so that a difference between two runs can be read. All or nothing. Raises OutputError."""
    lines = ",\n".join(json.dumps(asdict(entry), allow_nan=False) for entry in results.entries)
    meta = json.dumps(dict(results.meta), allow_nan=False)
    write_whole(path, f'{{"meta": {meta},\n"entries": [\n{lines}\n]}}\n'.encode())


def same_measurement(a: Mapping[str, Any], b: Mapping[str, Any]) -> str:
    """Which of the two runs' circumstances differ, in words; "" if they are one measurement."""
    return ", ".join(f"{key} {a.get(key)} and {b.get(key)}" for key in IDENTITY if a.get(key) != b.get(key))


def merge(parts: Iterable[tuple[str, Results]]) -> Results:
    """Shards, by name, as one run: of entries with the same key the last stays, in the place of the first.

    Raises UsageError if they were measured under different circumstances.
    """
    named = list(parts)
    first_name, first = named[0]
    entries: dict[Key, Entry] = {}
    for name, part in named:
        differs = same_measurement(first.meta, part.meta)
        if differs:
            raise UsageError(f"{first_name} and {name} are not one measurement: {differs}")
        entries.update({entry.key: entry for entry in part.entries})
    return Results(_joined([part.meta for _, part in named]), list(entries.values()))


def _joined(metas: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What all agree on stays; dates become their range's end, clocks a list of what was seen."""
    merged = {key: value for key, value in metas[0].items() if all(meta.get(key) == value for meta in metas)}
    dates = [meta["date"] for meta in metas if meta.get("date")]
    return merged | {"date": max(dates, default=None), "clocks": [meta.get("clocks") for meta in metas]}
