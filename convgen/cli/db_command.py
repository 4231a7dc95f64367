"""`convgen db query|show|stats|study|export|import|merge|forget|upgrade|path`."""

from __future__ import annotations

import argparse
import dataclasses
import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from convgen.cli.options import PROBLEM_HELP, database_errors, output_file, read_problem
from convgen.cli.output import duration, note, print_json, quantity, say, table
from convgen.cli.selection import DTYPES, LAYOUTS
from convgen.errors import UsageError
from convgen.files import is_stdout, write_whole
from convgen.problem import OPS, AttentionLayout, Direction, load_suite

if TYPE_CHECKING:
    from tuning_db import Database, Trial
    from tuning_db.query import Filter, Standing

FIELDS = ("op", "direction", "dtype", "layout", "family", "device", "strategy", "status", "text")
WORDS: dict[str, Sequence[str]] = {
    "op": OPS,
    "direction": tuple(Direction),
    "dtype": DTYPES,
    "layout": (*LAYOUTS, *AttentionLayout),
}
"""Of fields, all that there can be."""
SHOWN = 15
SHIPPED = "shipped"
"""As `--db`: the winners that ship with the package, to be read."""


def add(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "db",
        help="ask, merge and tidy the tuning database",
        description="The user's database unless --db names another; --db shipped reads the winners that ship. "
        "Its views winners, trials and peers can be read with any SQLite tool as well.",
    )
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    filters = _filters()
    place = argparse.ArgumentParser(add_help=False)
    place.add_argument("--db", metavar="PATH|URL", help="default: CONVGEN_TUNING_DB, else a file in the data folder")

    def action(name: str, run: Any, text: str, *parents: argparse.ArgumentParser) -> argparse.ArgumentParser:
        made: argparse.ArgumentParser = actions.add_parser(
            name, parents=[common, place, *parents], help=text, description=text
        )
        made.set_defaults(run=functools.partial(_told, run))
        return made

    query = action("query", _query, "what won where, and by how much", filters)
    query.add_argument("--failures", action="store_true", help="candidates that went wrong, by strategy and cause")
    query.add_argument("--coverage", metavar="SUITE", help="which problems of a suite have a winner")
    show = action("show", _show, "everything known of one problem")
    show.add_argument("problem", nargs="+", metavar="PROBLEM", help=PROBLEM_HELP)
    action("stats", _stats, "how much the database holds")
    study = action("study", _study, "write a problem's trials as an Optuna study, which optuna-dashboard shows")
    study.add_argument("problem", nargs="+", metavar="PROBLEM", help=PROBLEM_HELP)
    study.add_argument("--storage", required=True, metavar="FILE|URL", help="as in trials.db, sqlite:///trials.db")
    export = action("export", _export, "write JSON Lines, in an order that makes two exports comparable", filters)
    export.add_argument("file", type=output_file, metavar="FILE", help="- for stdout")
    export.add_argument("--winners", action="store_true", help="only winners, their untuned defaults, and peers")
    for name, text in (("import", "bring in JSON Lines"), ("merge", "bring in other databases, or JSON Lines")):
        action(name, _merge, text).add_argument("source", nargs="+", metavar="SOURCE", help="- for stdin")
    forget = action("forget", _forget, "delete what the filters select", filters)
    forget.add_argument("--all", action="store_true", help="everything")
    action("upgrade", _upgrade, "bring the database to this version's schema; a copy of the old one is kept")
    action("path", _path, "where the database is")


def _told(run: Callable[[argparse.Namespace], int], args: argparse.Namespace) -> int:
    with database_errors():
        return run(args)


def _filters() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(add_help=False)
    group = parser.add_argument_group("filters")
    examples = {"op": "conv2d", "direction": "fprop", "dtype": "bf16", "layout": "nhwc", "family": "resnet50",
                "device": "h200", "strategy": "direct", "status": "hang", "text": "'c=64 *filter=3x3'"}  # fmt: skip
    for name in FIELDS:
        group.add_argument(f"--{name}", default="", metavar=name.upper(), help=f"as in {examples[name]}")
    return parser


def _read(args: argparse.Namespace) -> Database:
    from tuning_db import open_database
    from tuning_db.shipped import shipped_database

    return shipped_database() if args.db == SHIPPED else open_database(args.db, read_only=True)


def _change(args: argparse.Namespace) -> Database:
    from tuning_db import open_database

    return open_database(args.db, must_exist=True)


def _filter(args: argparse.Namespace) -> Filter:
    from tuning_db.query import Filter
    from tuning_db.records import STATUSES

    for name, known in {**WORDS, "status": STATUSES}.items():
        value = getattr(args, name)
        if value and value not in known:
            raise UsageError(f"--{name} {value!r}: expected one of {', '.join(known)}")
    return Filter(**{name: getattr(args, name) for name in FIELDS})


# --- actions -------------------------------------------------------------------------------------------------


def _query(args: argparse.Namespace) -> int:
    chosen = _filter(args)
    with _read(args) as database:
        if args.failures:
            return _failures(args, database, chosen)
        if args.coverage is not None:
            return _coverage(args, database)
        from tuning_db.query import standings

        found = standings(database, chosen)
        if args.json:
            for standing in found:
                print_json(_standing_json(standing))
        elif found:
            head = ("problem", "device", "strategy", "time", "default", "next strategy", "best peer")
            print(table([head, *map(_standing_row, found)], indent=""))
        else:
            hint = "" if args.db == SHIPPED else f"; --db {SHIPPED} asks those that ship"
            note(f"no winner in {database.name} meets the filters{hint}")
    return 0


def _standing_row(s: Standing) -> tuple[str, ...]:
    peer = f"{_times(s.over_best_peer)} ({s.best_peer})" if s.over_best_peer else "-"
    w = s.winner
    time = duration(w.seconds or 0.0) + (" (tie)" if s.ties else "")
    return w.task.problem, w.task.device, w.strategy, time, _times(s.over_default), _times(s.over_runner_up), peer


def _times(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f}x"


def _standing_json(s: Standing) -> dict[str, Any]:
    from tuning_db.records import to_json

    values = {f.name: getattr(s, f.name) for f in dataclasses.fields(s) if f.name != "winner"}
    return {**to_json(s.winner), **values}


def _failures(args: argparse.Namespace, database: Database, chosen: Filter) -> int:
    from tuning_db.query import failures

    found = failures(database, chosen)
    for (strategy, status), trials in sorted(found.items()):
        if args.json:
            print_json({"strategy": strategy, "status": status, "count": len(trials), "example": trials[0].reason})
        else:
            say(f"{strategy}: {status}: {len(trials)} ({' '.join(trials[0].reason.split())[:100]})")
    if not found:
        note("nothing went wrong")
    return 0


def _coverage(args: argparse.Namespace, database: Database) -> int:
    from tuning_db.query import coverage

    if not args.device:
        raise UsageError("--coverage needs --device, as in --device h200")
    entries = load_suite(args.coverage)
    found = coverage(database, list(dict.fromkeys(str(entry.problem) for entry in entries)), args.device)
    if args.json:
        print_json(dataclasses.asdict(found) | {"fraction": found.fraction})
    else:
        total = len(found.known) + len(found.missing)
        say(f"{len(found.known)} of {total} problems have a winner ({found.fraction:.0%})")
        for problem in found.missing:
            say(f"  missing: {problem}")
    return 0


def _show(args: argparse.Namespace) -> int:
    from tuning_db.query import Filter

    where = Filter(problem=str(read_problem(args.problem))).condition()
    with _read(args) as database:
        trials, peers = database.trials(where), database.peers(where)
    if args.json:
        from tuning_db.records import to_json

        for trial in trials:
            print_json(to_json(trial))
        for peer in peers:
            print_json(to_json(peer))
        return 0
    if not trials and not peers:
        note("nothing is known of this problem")
    right = sorted((t for t in trials if t.status == "ok"), key=lambda t: t.seconds or 0.0)
    rows = [("time", "stage", "origin", "strategy", "config")]
    rows += [(duration(t.seconds or 0.0), _stage(t), t.origin, t.strategy, _config(t)) for t in right[:SHOWN]]
    if right:
        print(table(rows, indent=""))
    if len(right) > SHOWN:
        say(f"and {len(right) - SHOWN} slower ones")
    for trial in (t for t in trials if t.status != "ok"):
        say(f"{trial.status}: {trial.strategy} {_config(trial)}: {' '.join(trial.reason.split())[:100]}")
    for peer in peers:
        say(f"{peer.peer}: {duration(peer.seconds)} ({peer.version})")
    return 0


def _stage(trial: Trial) -> str:
    return f"{trial.stage}{', tied' if trial.tied else ''}"


def _config(trial: Trial) -> str:
    return ",".join(f"{key}={value}" for key, value in trial.config.items())


def _stats(args: argparse.Namespace) -> int:
    from tuning_db.query import stats

    with _read(args) as database:
        found, name = stats(database), database.name
    if args.json:
        print_json({"database": name, **dataclasses.asdict(found)})
        return 0
    size = "" if found.nbytes is None else f", {quantity(found.nbytes, 'B')}"
    statuses = ", ".join(f"{status} {count}" for status, count in found.statuses.items()) or "none"
    say(f"{name} (schema {found.schema_version}{size})")
    devices = ", ".join(found.devices) or "no device"
    say(f"{found.tasks} tasks on {devices}, {found.runs} runs, {found.peers} peers' times")
    say(f"{found.trials} trials: {statuses}")
    return 0


def _study(args: argparse.Namespace) -> int:
    from convgen.tuner.study import export_study
    from tuning_db.engine import location
    from tuning_db.query import Filter

    problem = str(read_problem(args.problem))
    url = args.storage if "://" in args.storage else f"sqlite:///{args.storage}"
    with _read(args) as database:
        trials = database.trials(Filter(problem=problem).condition())
    if not trials:
        raise UsageError(f"{database.name} has no trial of {problem}: tune it first, or name another database by --db")
    place = location(url)
    if database.path is not None and isinstance(place, Path) and place.exists() and place.samefile(database.path):
        raise UsageError(f"--storage {args.storage}: this is the tuning database: choose another file")
    export_study(trials, url, problem)
    _say(args, {"trials": len(trials), "storage": url, "study": problem}, f"{len(trials)} trials in {url}")
    return 0


def _export(args: argparse.Namespace) -> int:
    from tuning_db.lines import lines_of, records

    path = Path("/dev/stdout") if args.file == Path("-") else args.file
    with _read(args) as database:
        lines = lines_of(records(database, _filter(args).condition(), winners_only=args.winners))
    write_whole(path, "".join(lines).encode())
    told = f"{len(lines)} records in {args.file}"
    if is_stdout(path):
        note(told)
    else:
        _say(args, {"records": len(lines), "file": str(args.file)}, told)
    return 0


def _merge(args: argparse.Namespace) -> int:
    from tuning_db import open_database
    from tuning_db.lines import records_in

    found = {source: records_in("/dev/stdin" if source == "-" else source) for source in args.source}
    with open_database(args.db) as database:
        for source, records in found.items():
            database.merge(records)
            _say(args, {"records": len(records), "source": source}, f"{len(records)} records from {source}")
    return 0


def _forget(args: argparse.Namespace) -> int:
    chosen = _filter(args)
    if not args.all and not any(getattr(chosen, name) for name in FIELDS):
        raise UsageError("expected a filter, or --all to delete everything")
    with _change(args) as database:
        count = database.forget(chosen.condition())
    _say(args, {"trials": count}, f"{count} trials forgotten")
    return 0


def _upgrade(args: argparse.Namespace) -> int:
    with _change(args) as database:
        _say(args, {"schema_version": database.version}, f"{database.name} has schema version {database.version}")
    return 0


def _path(args: argparse.Namespace) -> int:
    from tuning_db.engine import location, user_location
    from tuning_db.shipped import WINNERS

    found = user_location() if args.db is None else WINNERS if args.db == SHIPPED else location(args.db)
    if found is None:
        raise UsageError("there is no home folder for the tuning database: set CONVGEN_TUNING_DB to a path")
    _say(args, {"path": str(found)}, str(found))
    return 0


def _say(args: argparse.Namespace, values: dict[str, Any], text: str) -> None:
    if args.json:
        print_json(values)
    else:
        print(text)
