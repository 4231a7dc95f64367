"""Which algorithm is fastest at which filter size, measured: direct, Winograd, FFT and the rest over 3 to 63.

usage: python benchmarks/crossover.py OUT.json [--plot OUT.png] [--sizes 3,5,…] [--tuned]

Each problem is timed with every strategy that applies (its untuned default, or with --tuned what the tuning database
knows), interleaved, verified, with cold caches, beside the times that the cost models predict. `accuracy=fast`, so that
Winograd's larger tiles and short FFTs take part. Needs a GPU; the plot needs matplotlib.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

from convgen.bench.choices import best_of
from convgen.bench.ladder import climb
from convgen.bench.venue import GpuVenue
from convgen.lowering import applicable
from convgen.problem import Conv
from convgen.target import Target
from tuning_db import open_layers

SIZES = (3, 5, 7, 9, 11, 13, 15, 19, 23, 27, 31, 39, 47, 55, 63)

CASES = {
    "image": "conv2d n=1 c=1 k=1 in=2048x2048 filter={r}x{r} pad={p} accuracy=fast",
    "depthwise": "conv2d n=16 c=128 k=128 groups=128 in=64x64 filter={r}x{r} pad={p} accuracy=fast",
    "layer": "conv2d n=4 c=32 k=32 in=64x64 filter={r}x{r} pad={p} accuracy=fast",
    "signal": "conv1d n=16 c=64 k=64 groups=64 in=16384 filter={r} pad={p} accuracy=fast",
}


def measured(problem: Conv, target: Target, venue: GpuVenue, tuned: bool) -> dict[str, Any]:
    """Microseconds of each strategy, what was predicted, and why the others have no time."""
    layers = open_layers() if tuned else None
    chosen = {s.name: best_of(s, problem, target, layers) for s in applicable(problem, target)}
    rungs = climb(problem, target, venue, chosen)
    return {
        "problem": str(problem),
        "us": {rung.name: rung.us for rung in rungs if rung.us is not None},
        "predicted_us": {
            name: round(d.strategy.cost(problem, d.config, target) * 1e6, 2) for name, d in chosen.items()
        },
        "reasons": {rung.name: rung.reason for rung in rungs if rung.reason},
    }


def table(case: str, rows: dict[int, dict[str, Any]]) -> str:
    names = sorted({name for row in rows.values() for name in row["us"]})
    lines = [f"{case:10s}" + "".join(f"{name:>16s}" for name in names)]
    for size, row in rows.items():
        cells = [row["us"].get(name) for name in names]
        best = min((us for us in cells if us is not None), default=math.nan)
        marks = ["" if us is None else f"{us:.1f}{'*' if us == best else ' '}" for us in cells]
        lines.append(f"{size:<10d}" + "".join(f"{mark:>16s}" for mark in marks))
    return "\n".join(lines)


def draw(found: dict[str, dict[int, dict[str, Any]]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(found), figsize=(5 * len(found), 4), squeeze=False)
    names = sorted({name for rows in found.values() for row in rows.values() for name in row["us"]})
    for place, (case, rows) in zip(axes.flat, found.items(), strict=True):
        for number, name in enumerate(names):
            points = [(size, row["us"][name]) for size, row in rows.items() if name in row["us"]]
            sizes, times = zip(*points, strict=True) if points else ((), ())
            place.loglog(sizes, times, marker="o", markersize=3, label=name, color=f"C{number}")
        place.set_xticks(list(rows), labels=list(map(str, rows)))
        place.minorticks_off()
        place.set_title(case)
        place.set_xlabel("filter extent")
        place.set_ylabel("µs")
    axes[0][0].legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)))
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--tuned", action="store_true")
    args = parser.parse_args()
    target = Target.current()
    venue = GpuVenue(target, ())
    found: dict[str, dict[int, dict[str, Any]]] = {}
    for case in args.cases.split(","):
        rows = found[case] = {}
        for size in map(int, args.sizes.split(",")):
            problem = Conv.parse(CASES[case].format(r=size, p=size // 2))
            rows[size] = measured(problem, target, venue, args.tuned)
        print(table(case, rows), flush=True)
        args.out.write_text(json.dumps({"meta": venue.meta, "cases": found}, indent=1))
    if args.plot is not None:
        draw(found, args.plot)


if __name__ == "__main__":
    main()
