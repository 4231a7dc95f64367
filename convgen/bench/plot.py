"""The roofline with ours and the best peer on it, for each dtype, and the ratios by family. Needs matplotlib."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from convgen.bench.report import families
from convgen.bench.results import Entry, Results
from convgen.errors import UsageError
from convgen.files import write_whole

OURS_COLOUR, PEER_COLOUR, ROOF_COLOUR = "#0072b2", "#d55e00", "#555555"
DTYPE_MARKERS = {"fp32": "o", "tf32": "s", "fp16": "^", "bf16": "v"}


def draw(results: Results, path: Path) -> None:
    """Write a PNG. Raises UsageError if matplotlib is missing or nothing was measured, OutputError if it cannot be
    written."""
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError as error:
        raise UsageError("--plot needs matplotlib: pip install 'convgen[bench]'") from error
    measured = [entry for entry in results.entries if entry.ours_us is not None and entry.flops and entry.bytes]
    if not measured:
        raise UsageError("--plot: nothing was measured, so there is nothing to draw")
    dtypes = _dtypes(measured)
    compared = [entry for entry in measured if entry.ratio is not None]
    panels = len(dtypes) + bool(compared)
    columns = min(panels, 2 if panels <= 4 else 3)
    rows = math.ceil(panels / columns)
    figure, grid = pyplot.subplots(rows, columns, figsize=(6.4 * columns, 4.8 * rows), squeeze=False)
    axes = list(grid.flat)
    for dtype, place in zip(dtypes, axes, strict=False):
        _roofline(place, dtype, [entry for entry in measured if entry.dtype == dtype], results.meta)
    if compared:
        _ratios(axes[len(dtypes)], compared)
    for unused in axes[panels:]:
        unused.set_axis_off()
    meta = results.meta
    parts = (meta.get("gpu"), f"cuDNN {meta['cudnn']}" if meta.get("cudnn") else None, meta.get("date"))
    figure.suptitle("convgen bench: " + ", ".join(str(part) for part in parts if part))
    figure.tight_layout()
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=120, format="png")
    pyplot.close(figure)
    write_whole(path, drawn.getvalue())


def _roofline(axes: Any, dtype: str, entries: Sequence[Entry], meta: Mapping[str, Any]) -> None:
    intensities = [entry.flops / entry.bytes for entry in entries]
    low, high = min(intensities) / 2, max(intensities) * 2
    rates = meta.get("attainable") or {}
    if rates.get("bandwidth") and rates.get(dtype):
        ridge = rates[dtype] / rates["bandwidth"]
        corners = sorted({low, high, *([ridge] if low < ridge < high else [])})
        roof = [min(rates[dtype], x * rates["bandwidth"]) / 1e12 for x in corners]
        axes.plot(corners, roof, color=ROOF_COLOUR, linewidth=1.2, label="attainable")
    for entry, x in zip(entries, intensities, strict=True):
        ours, peer = _teraflops(entry, entry.ours_us), _teraflops(entry, _peer_us(entry))
        if ours is not None and peer is not None:
            axes.plot([x, x], [ours, peer], color=OURS_COLOUR if ours > peer else PEER_COLOUR, linewidth=0.6, alpha=0.6)
    for label, colour, filled, times in (
        ("best peer", PEER_COLOUR, False, [_peer_us(entry) for entry in entries]),
        ("ours", OURS_COLOUR, True, [entry.ours_us for entry in entries]),
    ):
        points = [
            (x, y)
            for entry, x, us in zip(entries, intensities, times, strict=True)
            if (y := _teraflops(entry, us)) is not None
        ]
        if points:
            face = colour if filled else "none"
            axes.scatter(*zip(*points, strict=True), s=22, edgecolors=colour, facecolors=face, label=label, zorder=3)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_title(dtype)
    axes.set_xlabel("FLOP / compulsory byte")
    axes.set_ylabel("TFLOP/s")
    axes.grid(alpha=0.25, which="both", linewidth=0.5)
    axes.legend(fontsize=8, loc="lower right")


def _ratios(axes: Any, entries: Sequence[Entry]) -> None:
    names = [standing.name for standing in families(entries) if standing.name != "all"]
    places = {name: position for position, name in enumerate(reversed(names))}
    for dtype in _dtypes(entries):
        chosen = [entry for entry in entries if entry.dtype == dtype]
        axes.scatter(
            [entry.ratio for entry in chosen],
            [places[entry.family or "-"] for entry in chosen],
            s=18,
            marker=DTYPE_MARKERS.get(dtype, "D"),
            alpha=0.75,
            label=dtype,
            zorder=3,
        )
    axes.axvline(1.0, color=ROOF_COLOUR, linewidth=1.0)
    axes.set_xscale("log")
    axes.set_yticks(range(len(names)), list(reversed(names)), fontsize=8)
    axes.set_title("best peer / ours: right of 1, ours is faster")
    axes.grid(alpha=0.25, which="both", linewidth=0.5)
    axes.legend(fontsize=8)


def _dtypes(entries: Sequence[Entry]) -> list[str]:
    """Those there are, in the markers' order, then the rest."""
    known = list(DTYPE_MARKERS)
    return sorted({e.dtype for e in entries}, key=lambda d: (known.index(d) if d in known else len(known), d))


def _teraflops(entry: Entry, us: float | None) -> float | None:
    return None if us is None else entry.flops / us / 1e6


def _peer_us(entry: Entry) -> float | None:
    return None if entry.best_peer is None else entry.peers[entry.best_peer]
