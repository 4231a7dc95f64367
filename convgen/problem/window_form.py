"""What the forms of problems with a sliding window share: layouts and padding as they are read, extents as printed."""

from __future__ import annotations

from typing import Any

from convgen.problem.dtype import Layout
from convgen.problem.text import refusal


def layout_of(value: object) -> Layout:
    """A Layout from its name in any case, or the member itself. `nhwc` stands for channels-last in 1 and 3 dimensions
    too, as published lists have it. Raises ProblemError."""
    names = {name: layout for layout in Layout for name in (layout.value, *(layout.text(nd) for nd in (1, 2, 3)))}
    if isinstance(value, str) and value.lower() in names:
        return names[value.lower()]
    raise refusal("layout", value, f"one of {', '.join(names)}")


def same_padding(
    extents: tuple[int, ...], taps: tuple[int, ...], strides: tuple[int, ...], dilations: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Padding before and after for an output of ceil(in / stride), the odd element at the end."""
    totals = [
        max((-(-size // s) - 1) * s + d * (f - 1) + 1 - size, 0)
        for size, f, s, d in zip(extents, taps, strides, dilations, strict=True)
    ]
    return tuple(total // 2 for total in totals), tuple(total - total // 2 for total in totals)


def merge_padding(values: dict[str, Any], nd: int) -> None:
    """Replace `pad_lo` and `pad_hi` of a JSON object by `pad`. Raises ProblemError."""
    if "pad_lo" in values or "pad_hi" in values:
        if "pad" in values:
            raise refusal("pad", values["pad"], "either pad, or pad_lo and pad_hi")
        low, high = (_per_dimension(key, values.pop(key, 0), nd) for key in ("pad_lo", "pad_hi"))
        values["pad"] = list(zip(low, high, strict=True))


def _per_dimension(key: str, value: Any, nd: int) -> list[Any]:
    if not isinstance(value, (int, list, tuple)):
        raise refusal(key, value, "an integer, or a list of one for each dimension")
    parts = list(value) if isinstance(value, (list, tuple)) else [value] * nd
    if len(parts) != nd:
        raise refusal(key, value, f"{nd} integers, one for each spatial dimension")
    return parts


def joined(extents: tuple[int, ...]) -> str:
    """Every extent: `56x56`."""
    return "x".join(map(str, extents))


def merged(extents: tuple[int, ...]) -> str:
    """One number where all extents are equal, else every one."""
    return str(extents[0]) if len(set(extents)) == 1 else joined(extents)


def padding(pad_lo: tuple[int, ...], pad_hi: tuple[int, ...]) -> str:
    """Padding as it is printed: `1`, `1x0`, `0:1x0:1`."""
    spans = [str(low) if low == high else f"{low}:{high}" for low, high in zip(pad_lo, pad_hi, strict=True)]
    return spans[0] if len(set(spans)) == 1 else "x".join(spans)
