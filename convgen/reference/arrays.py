"""What the oracle knows of arrays: NumPy and CuPy are the same to it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy

Array: TypeAlias = Any
"""A numpy.ndarray or a cupy.ndarray."""

Module: TypeAlias = Any
"""The module an array belongs to: numpy or cupy. Named `xp` throughout."""

BYTES_AT_ONCE = 2**30
"""Temporary memory that one step of the oracle aims at."""

quiet = numpy.errstate(over="ignore", under="ignore", invalid="ignore", divide="ignore")
"""Decorator: NaN and infinities are values here, not worth a warning."""


def pieces(count: int, bytes_each: int) -> Iterator[slice]:
    """Split `count` items into runs whose temporaries stay under BYTES_AT_ONCE, at least one item a run."""
    step = max(1, BYTES_AT_ONCE // max(bytes_each, 1))
    for start in range(0, count, step):
        yield slice(start, min(start + step, count))
