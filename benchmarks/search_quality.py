"""How near to the best config a search comes, replayed on exhaustively measured spaces; no GPU needed.

usage: python benchmarks/search_quality.py [--seeds N] [--in-flight N] [--only NAME,…] [--methods NAME,…]

Prints, for every table and method, the best config found over the best there is after some numbers of trials (the mean
over seeds), and the geometric mean over tables. The first trial is what is used with no search at all: the default, or
where a table leaves that out, the one of the table that the cost model prefers. The cost models' constants were fitted
to these tables; fitted to all but the one they are judged on, the portfolio finds 0.89 with no search, 0.999 after 32.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from replay import Recorded, geomean, random_curve, replay, tables

TRIALS = (1, 8, 16, 32, 64, 100)

METHODS: dict[str, dict[str, Any]] = {
    "random": {},
    "prior": {"opening": 0, "turns": ("prior",)},
    "local": {"turns": ("local",)},
    "tpe": {"turns": ("tpe",)},
    "surrogate": {"turns": ("surrogate",)},
    "portfolio": {},
}


def curve(method: str, table: Recorded, trials: int, seed: int, in_flight: int) -> list[float]:
    if method == "random":
        return random_curve(table, trials, seed)
    return replay(table, trials, seed, in_flight=in_flight, **METHODS[method])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--in-flight", type=int, default=1, help="candidates asked for before the first is told")
    parser.add_argument("--only", default="", help="tables whose name contains one of these")
    parser.add_argument("--methods", default=",".join(METHODS))
    args = parser.parse_args()
    chosen = [t for t in tables() if any(part in t.label for part in args.only.split(","))]
    print(f"{'table':18s} {'method':10s} " + " ".join(f"{n:>6d}" for n in TRIALS))
    for method in args.methods.split(","):
        means = []
        started = time.perf_counter()
        for table in chosen:
            curves = [curve(method, table, max(TRIALS), seed, args.in_flight) for seed in range(args.seeds)]
            means.append([sum(c[n - 1] for c in curves) / len(curves) for n in TRIALS])
            print(f"{table.label:18s} {method:10s} " + " ".join(f"{value:6.3f}" for value in means[-1]))
        total = [geomean(column) for column in zip(*means, strict=True)]
        took = (time.perf_counter() - started) / (len(chosen) * args.seeds)
        print(f"{'geomean':18s} {method:10s} " + " ".join(f"{v:6.3f}" for v in total) + f"   {took:.2f} s a search\n")


if __name__ == "__main__":
    main()
