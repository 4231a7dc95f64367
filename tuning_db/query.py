"""Questions to a tuning database: what won where, by how much, what failed and why, what is covered."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import ColumnElement, and_, func, select, true

from tuning_db import schema
from tuning_db.aside import size_of
from tuning_db.checks import plain
from tuning_db.database import Database
from tuning_db.layers import Layers
from tuning_db.opening import open_database
from tuning_db.records import Trial


@dataclass(frozen=True, slots=True)
class Filter:
    """What to look at; a field left empty lets everything pass. `text` is a part of the problem's text, in which `*`
    stands for anything."""

    op: str = ""
    direction: str = ""
    dtype: str = ""
    layout: str = ""
    family: str = ""
    device: str = ""
    problem: str = ""
    text: str = ""
    strategy: str = ""
    status: str = ""

    def condition(self) -> ColumnElement[bool]:
        """On `schema.task` and, of strategy and status, `schema.trial`, for the methods of Database."""
        k, t = schema.task.c, schema.trial.c
        names = ("op", "direction", "dtype", "layout", "family", "device", "problem")
        wanted = [k[name] == value for name in names if (value := getattr(self, name))]
        wanted += [t[name] == value for name in ("strategy", "status") if (value := getattr(self, name))]
        if self.text:
            escaped = self.text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_").replace("*", "%")
            wanted.append(k.problem.like(f"%{escaped}%", escape="\\"))
        return and_(true(), *wanted)


@dataclass(frozen=True, slots=True)
class Standing:
    """A task's winner, and how many times as fast it is as what it is held against (None: not known)."""

    winner: Trial
    over_default: float | None
    """What runs untuned, measured in the same run."""
    over_runner_up: float | None
    """The fastest of another strategy in the same run."""
    over_best_peer: float | None
    best_peer: str
    ties: int
    """Finalists of the run that cannot be told from it."""


def standings(database: Database, chosen: Filter | None = None) -> list[Standing]:
    """One row a task, by problem."""
    chosen = chosen or Filter()
    where = chosen.condition()
    # Those it is held against may be of any strategy.
    rivals_too = dataclasses.replace(chosen, strategy="", status="").condition()
    trials: dict[tuple[tuple[str, str, str, int], str], list[Trial]] = {}
    for trial in database.trials(rivals_too):
        if trial.status == "ok":
            trials.setdefault((trial.task.identity, trial.run), []).append(trial)
    peers: dict[tuple[str, str, str, int], tuple[float, str]] = {}
    for peer in database.peers(where):
        peers[peer.task.identity] = min(peers.get(peer.task.identity, (math.inf, "")), (peer.seconds, peer.peer))
    found = []
    for winner in database.best_trials(where):
        assert winner.seconds is not None
        rivals = trials.get((winner.task.identity, winner.run), [])
        defaults = [t.seconds for t in rivals if t.origin == "default" and t.seconds]
        others = [t.seconds for t in rivals if t.strategy != winner.strategy and t.seconds]
        peer_seconds, peer_name = peers.get(winner.task.identity, (None, ""))
        found.append(
            Standing(
                winner,
                min(defaults) / winner.seconds if defaults else None,
                min(others) / winner.seconds if others else None,
                peer_seconds / winner.seconds if peer_seconds else None,
                peer_name,
                sum(t.tied for t in rivals),
            )
        )
    return found


def failures(database: Database, chosen: Filter | None = None) -> dict[tuple[str, str], list[Trial]]:
    """Trials that did not go well, by (strategy, status)."""
    t = schema.trial.c
    found: dict[tuple[str, str], list[Trial]] = {}
    for trial in database.trials(and_((chosen or Filter()).condition(), t.status != "ok")):
        found.setdefault((trial.strategy, trial.status), []).append(trial)
    return found


@dataclass(frozen=True, slots=True)
class Coverage:
    """Which of some problems have a winner on a device."""

    known: tuple[str, ...]
    missing: tuple[str, ...]

    @property
    def fraction(self) -> float:
        return len(self.known) / max(len(self.known) + len(self.missing), 1)


def coverage(database: Database, problems: Sequence[str], device: str) -> Coverage:
    """Of canonical problem texts, those with a winner on the device and those without."""
    known = {trial.task.problem for trial in database.best_trials(Filter(device=device).condition())}
    return Coverage(tuple(p for p in problems if p in known), tuple(p for p in problems if p not in known))


@dataclass(frozen=True, slots=True)
class Stats:
    """How much a database holds."""

    tasks: int
    runs: int
    trials: int
    peers: int
    statuses: dict[str, int]
    devices: tuple[str, ...]
    schema_version: int
    nbytes: int | None
    """Of the file, if it is one, with its log."""


def stats(database: Database) -> Stats:
    """Counts of everything."""
    with database.reading() as connection:
        tables = (schema.task, schema.run, schema.trial, schema.peer)
        tasks, runs, trials, peers = (
            int(connection.execute(select(func.count()).select_from(table)).scalar_one()) for table in tables
        )
        status = schema.trial.c.status
        statuses = {
            plain(name): count for name, count in connection.execute(select(status, func.count()).group_by(status))
        }
        devices = {plain(name) for name in connection.execute(select(schema.task.c.device).distinct()).scalars()}
    path = database.path
    nbytes = None if path is None else size_of(path) + size_of(f"{path}-wal")
    return Stats(
        tasks, runs, trials, peers, dict(sorted(statuses.items())), tuple(sorted(devices)), database.version, nbytes
    )


def layer_stats(layers: Layers) -> dict[str, list[tuple[str, Stats]]]:
    """Of every layer there is ("user", "shared", "shipped"): its parts' names, with how much each holds.

    Raises DatabaseError.
    """
    found: dict[str, list[tuple[str, Stats]]] = {}
    for layer, source in layers.databases():
        if isinstance(source, Database):
            found.setdefault(layer, []).append((source.name, stats(source)))
        else:
            with open_database(":memory:") as copy:
                copy.merge(source.records())
                held = dataclasses.replace(stats(copy), nbytes=sum(file.stat().st_size for file in source.files()))
            found.setdefault(layer, []).append((str(source.folder), held))
    return found
