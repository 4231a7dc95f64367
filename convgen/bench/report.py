"""Results for people: a table by family, then every problem, losses first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from convgen.bench.results import Entry, Results
from convgen.ratios import geomean


@dataclass(frozen=True, slots=True)
class Standing:
    """Several entries taken together. Ratios and fractions are geometric means, None where nothing is known."""

    name: str
    problems: int
    ratio: float | None
    """Best peer over ours: above 1 ours is faster."""
    default_ratio: float | None
    """Best peer over our untuned default."""
    attained: float | None
    """Fraction of the floor that ours reaches, of the problems that have a ratio (of all, if no peer took part)."""
    peer_attained: float | None
    wins: int
    ties: int
    """Those whose interval encloses 1."""
    losses: int

    @classmethod
    def of(cls, name: str, entries: Sequence[Entry]) -> Standing:
        """Of entries that may lack anything."""
        compared = [entry for entry in entries if entry.ratio is not None]
        results = [outcome(entry) for entry in compared]
        return cls(
            name,
            len(entries),
            geomean(entry.ratio for entry in compared),
            geomean(entry.default_ratio for entry in compared),
            geomean(entry.attained for entry in compared or entries),
            geomean(entry.peer_attained for entry in compared),
            results.count("win"),
            results.count("tie"),
            results.count("loss"),
        )


def outcome(entry: Entry) -> str:
    """ "win", "tie" or "loss" by the ratio's interval; "" if there is no ratio."""
    if entry.ratio is None or entry.ratio_low is None or entry.ratio_high is None:
        return ""
    if entry.ratio_low <= 1.0 <= entry.ratio_high:
        return "tie"
    return "win" if entry.ratio > 1.0 else "loss"


def families(entries: Sequence[Entry]) -> list[Standing]:
    """One for each family, the least ratio first, then all together."""
    named: dict[str, list[Entry]] = {}
    for entry in entries:
        named.setdefault(entry.family or "-", []).append(entry)
    standings = [Standing.of(name, members) for name, members in named.items()]
    standings.sort(key=lambda s: (s.ratio is None, s.ratio or 0.0, s.name))
    return [*standings, Standing.of("all", entries)]


def losses_first(entries: Sequence[Entry]) -> list[Entry]:
    """The least ratio first; those without one last, in their order."""
    return sorted(entries, key=lambda entry: (entry.ratio is None, entry.ratio or 0.0))


FAMILY_HEAD = ("family", "problems", "ratio", "untuned", "attained", "peer attained", "win/tie/loss")


def family_row(standing: Standing) -> tuple[str, ...]:
    """As FAMILY_HEAD names them."""
    return (
        standing.name,
        str(standing.problems),
        _times(standing.ratio),
        _times(standing.default_ratio),
        _fraction(standing.attained),
        _fraction(standing.peer_attained),
        f"{standing.wins}/{standing.ties}/{standing.losses}",
    )


PROBLEM_HEAD = (
    "problem", "dtype", "direction", "layout", "strategy", "ours µs", "untuned µs", "frozen µs", "best peer", "peer µs",
    "ratio", "attained", "peer attained",
)  # fmt: skip


def problem_row(entry: Entry) -> tuple[str, ...]:
    """As PROBLEM_HEAD names them."""
    peer = None if entry.best_peer is None else entry.peers[entry.best_peer]
    flagged = " (out of bound)" if entry.best_peer in entry.out_of_bound else ""
    return (
        entry.id,
        entry.dtype,
        entry.direction,
        entry.layout,
        entry.strategy or "-",
        microseconds(entry.ours_us),
        microseconds(entry.default_us),
        microseconds(entry.frozen_us),
        (entry.best_peer or "-") + flagged,
        microseconds(peer),
        interval(entry),
        _fraction(entry.attained),
        _fraction(entry.peer_attained),
    )


def interval(entry: Entry) -> str:
    """ "1.24 [1.22, 1.26]"."""
    if entry.ratio is None:
        return "-"
    return f"{entry.ratio:.2f} [{entry.ratio_low:.2f}, {entry.ratio_high:.2f}]"


def progress_line(entry: Entry) -> str:
    """One problem as it is measured."""
    name = f"{entry.id} {entry.dtype} {entry.direction} {entry.layout}"
    if entry.ours_us is None:
        return f"{name}: {entry.reason or 'not measured'}"
    parts = [f"{name}: ours {microseconds(entry.ours_us)} µs"]
    if entry.best_peer is not None:
        parts.append(f"{entry.best_peer} {microseconds(entry.peers[entry.best_peer])} µs, {interval(entry)}x")
    return ", ".join(parts)


def markdown(results: Results, title: str = "convgen bench") -> str:
    """The whole report: circumstances, families, every problem, what was not measured."""
    measured = [entry for entry in results.entries if entry.ours_us is not None]
    missing = [entry for entry in results.entries if entry.ours_us is None]
    parts = [f"# {title}", circumstances(results.meta), _EXPLAINED]
    if measured:
        parts += ["## By family", _table(FAMILY_HEAD, [family_row(s) for s in families(measured)])]
        parts += ["## By problem, losses first", _table(PROBLEM_HEAD, [problem_row(e) for e in losses_first(measured)])]
    flagged = [f"{entry.id} {entry.dtype}: {', '.join(entry.out_of_bound)}" for entry in measured if entry.out_of_bound]
    if flagged:
        parts += ["## Peers whose answer is outside the error bound", "\n".join(f"- {line}" for line in flagged)]
    if missing:
        rows = [(e.id, e.dtype, e.direction, e.layout, e.reason) for e in missing]
        parts += ["## Not measured", _table(("problem", "dtype", "direction", "layout", "reason"), rows)]
    return "\n\n".join(parts) + "\n"


_EXPLAINED = (
    "Medians of one call; every contestant is captured in a graph with the same number of calls on rotating buffers, "
    "and replayed in turn. ratio: best peer over ours (above 1 ours is faster), the median of the rounds' ratios with "
    "its distribution-free interval. attained: the floor (the larger of FLOP and compulsory bytes at the rates that "
    "the GPU attains, at least 2 µs) over the time. By family, all are geometric means over the problems that have a "
    "peer (attained: over every problem where none has). untuned: what convgen answers with no database. frozen: "
    "weights declared constant."
)


def circumstances(meta: Mapping[str, object]) -> str:
    """Where and with what it was measured, in one line."""
    labels = {"gpu": "", "driver": "driver ", "cuda": "CUDA ", "cudnn": "cuDNN ", "torch": "PyTorch ",
              "convgen": "convgen ", "commit": "commit ", "date": "", "protocol": "protocol "}  # fmt: skip
    return ", ".join(f"{label}{meta[key]}" for key, label in labels.items() if meta.get(key))


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def microseconds(value: float | None) -> str:
    """Four significant digits at most, two decimals."""
    if value is None:
        return "-"
    return f"{value:.2f}" if value < 1000 else f"{value:.0f}"


def _times(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _fraction(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
