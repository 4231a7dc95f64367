"""The unrolled matrix of a convolution, by windows over a padded array: what im2col has to build."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from convgen.problem import Conv, Layout, PadMode

_NUMPY_MODE: dict[PadMode, Any] = {
    PadMode.ZEROS: "constant",
    PadMode.REPLICATE: "edge",
    PadMode.REFLECT: "reflect",
    PadMode.CIRCULAR: "wrap",
}


def im2col_reference(problem: Conv, x: Any, patches: Literal["rows", "columns"]) -> Any:
    """Unroll `x` (N, C, spatial…) for the fprop of a plain convolution: one patch for each output pixel.

    Returns (groups, patches, terms) with the patches as rows, (groups, terms, patches) with the patches as columns.
    Patches are ordered (n, output pixel…); the terms of a patch, which are those of a filter as it lies in memory, are
    ordered channels-first (c, taps…), channels-last (taps…, c), c counting within the group.
    """
    n, nd, groups = x.shape[0], problem.nd, problem.groups
    widths = [(0, 0), (0, 0), *zip(problem.pad_lo, problem.pad_hi, strict=True)]
    padded = np.pad(x, widths, mode=_NUMPY_MODE[problem.pad_mode]) if any(map(any, widths)) else x
    reach = [d * (f - 1) + 1 for d, f in zip(problem.dilation, problem.filter, strict=True)]
    windows = sliding_window_view(padded, reach, axis=tuple(range(2, 2 + nd)))
    pixels = tuple(slice(None, None, s) for s in problem.stride)
    taps = tuple(slice(None, None, d) for d in problem.dilation)
    windows = windows[(slice(None), slice(None), *pixels, *taps)]
    grouped = windows.reshape(n, groups, problem.c // groups, *problem.out, *problem.filter)
    out, filter_axes = tuple(range(3, 3 + nd)), tuple(range(3 + nd, 3 + 2 * nd))
    terms = (2, *filter_axes) if problem.layout is Layout.CHANNELS_FIRST else (*filter_axes, 2)
    count = n * int(np.prod(problem.out)), problem.c // groups * int(np.prod(problem.filter))
    rows = grouped.transpose(1, 0, *out, *terms).reshape(groups, *count)
    return rows if patches == "rows" else rows.transpose(0, 2, 1)
