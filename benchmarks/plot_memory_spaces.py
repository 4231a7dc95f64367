"""Draw the memory-space study: bandwidth reached as a fraction of a copy, over the filter's radius.

usage: python benchmarks/plot_memory_spaces.py RESULTS.json OUT.png        (needs matplotlib)
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.pyplot as plt

matplotlib.use("Agg")

COLOURS = {
    "naive": "#999999",
    "constant": "#e69f00",
    "texture": "#009e73",
    "direct": "#56b4e9",
    "cache_halo": "#cc79a7",
    "halo_tiled": "#0072b2",
    "cudnn": "#d55e00",
}


def panel(axes: Any, entries: list[dict[str, Any]]) -> None:
    for variant, colour in COLOURS.items():
        points = sorted((int(e["id"].rsplit("-r", 1)[1]), e["of_copy"]) for e in entries if e["variant"] == variant)
        axes.plot(*zip(*points, strict=True), marker="o", markersize=3, color=colour, label=variant)
    axes.set_yscale("log")
    axes.set_ylim(0.005, 1.5)
    axes.grid(alpha=0.3, which="both")


def main(results: Path, out: Path) -> None:
    data = json.loads(results.read_text())
    sizes = sorted({int(e["id"].split("-")[1]) for e in data["entries"]})
    rows = [(dtype, caches) for dtype in ("fp32", "fp16") for caches in ("cold", "warm")]
    figure, grid = plt.subplots(
        len(rows), len(sizes), figsize=(3.2 * len(sizes), 2.6 * len(rows)), sharex=True, sharey=True
    )
    for (dtype, caches), line in zip(rows, grid, strict=True):
        for size, axes in zip(sizes, line, strict=True):
            chosen = [e for e in data["entries"] if e["dtype"] == dtype and e["caches"] == caches
                      and e["id"].startswith(f"image-{size}-")]  # fmt: skip
            panel(axes, chosen)
            axes.set_title(f"{size} x {size}, {dtype}, {caches} caches", fontsize=9)
    for axes in grid[-1]:
        axes.set_xlabel("filter radius")
    for line in grid:
        line[0].set_ylabel("of copy bandwidth")
    grid[0][0].legend(fontsize=7)
    meta = data["meta"]
    figure.suptitle(
        f"Single-channel image filters on {meta['gpu']}, cuDNN {meta['cudnn']}, {meta['date']}", fontsize=11
    )
    figure.tight_layout()
    figure.savefig(out, dpi=110)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
