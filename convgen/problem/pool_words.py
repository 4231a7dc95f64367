"""The words a pooling is described with."""

from __future__ import annotations

import enum

__all__ = ["PoolMode"]


class PoolMode(enum.StrEnum):
    """What becomes of a window: its average or its maximum."""

    AVG = "avg"
    MAX = "max"
