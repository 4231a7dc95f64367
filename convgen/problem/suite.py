"""Suites: lists of problems, each with what is known about it.

A suite file is a JSON list of entries. An entry is a problem's JSON form, in which `dtypes`, `passes` and `layouts`
may list several values instead of `dtype`, `direction` and `layout`; it expands into their product. Its other keys
are carried along.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from convgen.errors import ProblemError, UsageError
from convgen.problem.forms import Problem, is_attention, is_convolution, keys_of, problem_from_json
from convgen.problem.text import load_json, refusal, shorten

__all__ = ["SuiteEntry", "expand_entry", "load_suite", "shipped_suites"]

_FOLDER = Path(__file__).parents[1] / "suites"
_LISTS = {"dtypes": "dtype", "passes": "direction", "layouts": "layout"}


@dataclass(frozen=True)
class SuiteEntry:
    """One problem of a suite. `id` and `family` are the entry's ("" if it has none), shared by all that it expands
    into; `extras` holds its keys that do not describe the problem, among them `source`, `tags`, `out`, `macs`."""

    id: str
    family: str
    problem: Problem
    extras: Mapping[str, Any] = field(hash=False)


def shipped_suites() -> tuple[str, ...]:
    """Names of the suites that ship with the package, sorted."""
    return tuple(sorted(file.stem for file in _FOLDER.glob("*.json")))


def load_suite(
    name: str | Path,
    *,
    dtypes: Sequence[str] = (),
    passes: Sequence[str] = (),
    layouts: Sequence[str] = (),
) -> tuple[SuiteEntry, ...]:
    """Load a suite: a file's path, or the name of one that ships, with or without `.json`.

    Given `dtypes` replace those of every problem; `passes` and `layouts` those of every convolution, since other
    problems have words of their own for these. Raises UsageError if there is no such suite or it cannot be read,
    ProblemError that names the entry for one that means nothing.
    """
    given = {"dtypes": list(dtypes), "passes": list(passes), "layouts": list(layouts)}
    replaced = {key: value for key, value in given.items() if value}
    replaced_elsewhere = {key: value for key, value in replaced.items() if key == "dtypes"}
    source = shorten(str(name))
    entries = load_json(_read(name), source)
    if not isinstance(entries, list):
        raise refusal(source, entries, "a list of problems")
    expanded: list[SuiteEntry] = []
    for position, entry in enumerate(entries):
        if not isinstance(entry, dict):
            raise refusal(f"entry {position}", entry, "an object")
        try:
            expanded += expand_entry(entry | (replaced if is_convolution(entry) else replaced_elsewhere))
        except ProblemError as error:
            place = f"{source}, entry {shorten(entry.get('id', position))}: {error.key}"
            raise ProblemError(place, error.value, error.expected) from None
    return tuple(expanded)


def expand_entry(entry: Mapping[str, Any]) -> tuple[SuiteEntry, ...]:
    """The problems of one decoded entry: the product of its dtypes, passes and layouts. Raises ProblemError."""
    known = keys_of(entry)
    described = {key: value for key, value in entry.items() if key in known}
    extras = {key: value for key, value in entry.items() if key not in known and key not in _LISTS}
    notes = extras.get("notes")
    if is_attention(entry) and isinstance(notes, str) and "no 1/sqrt(d) scale" in notes:
        # Published lists state this one departure in prose only.
        described.setdefault("scale", 1.0)
    id, family = (_label(key, extras.get(key, "")) for key in ("id", "family"))
    choices = [_choices(entry, plural, singular) for plural, singular in _LISTS.items()]
    return tuple(
        SuiteEntry(id, family, problem_from_json(described | dict(itertools.chain(*combination))), extras)
        for combination in itertools.product(*choices)
    )


def _choices(entry: Mapping[str, Any], plural: str, singular: str) -> list[list[tuple[str, Any]]]:
    if plural not in entry:
        return [[]]
    values = entry[plural]
    if not isinstance(values, list) or not values:
        raise refusal(plural, values, "a list with at least one value")
    return [[(singular, value)] for value in values]


def _label(key: str, value: object) -> str:
    if not isinstance(value, str):
        raise refusal(key, value, "a text")
    return value


def _read(name: str | Path) -> str:
    path, source = Path(name), shorten(str(name)) or "''"
    stem = str(name).removesuffix(".json")
    try:
        if path.is_file():
            return path.read_text(encoding="utf-8")
        if stem in shipped_suites():
            return (_FOLDER / f"{stem}.json").read_text(encoding="utf-8")
        if str(name) and path.exists():
            raise UsageError(f"suite {source}: it is {_kind(path)}; expected a JSON file, or the name of a suite")
    except UnicodeDecodeError:
        raise UsageError(f"suite {source}: expected UTF-8 text") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"suite {source}: cannot be read ({reason})") from error
    ships = ", ".join(shipped_suites())
    raise UsageError(f"suite {source}: no such file, and none of that name ships; these do: {ships}")


def _kind(path: Path) -> str:
    kinds = {"a folder": path.is_dir(), "a named pipe": path.is_fifo(), "a socket": path.is_socket()}
    return next((kind for kind, is_it in kinds.items() if is_it), "a device")
