"""The closed vocabularies of attention's options."""

from __future__ import annotations

import enum

__all__ = ["Align", "Bias", "Mask", "Varlen"]


class Align(enum.StrEnum):
    """Which key lies on the diagonal of query i: key i, or the key that puts the last query at the last key."""

    TOP_LEFT = "top_left"
    BOTTOM_RIGHT = "bottom_right"


class Mask(enum.StrEnum):
    """Shape of the boolean mask (true: attend): none, (B, S_kv), (S_q, S_kv), (B, S_q, S_kv), (H_q, S_q, S_kv) or
    (B, H_q, S_q, S_kv)."""

    NONE = "none"
    KEY = "key"
    PAIR = "pair"
    BATCH = "batch"
    HEAD = "head"
    FULL = "full"


class Bias(enum.StrEnum):
    """Shape of what is added to the scores after scale and softcap: none, (B, S_kv), (S_q, S_kv), (B, S_q, S_kv),
    (H_q, S_q, S_kv) or (B, H_q, S_q, S_kv)."""

    NONE = "none"
    KEY = "key"
    PAIR = "pair"
    BATCH = "batch"
    HEAD = "head"
    FULL = "full"


class Varlen(enum.StrEnum):
    """Sequences of different lengths: none; `padded` arrays with a length for each sequence; or `packed` one after
    the other, delimited by cumulative lengths."""

    NONE = "none"
    PADDED = "padded"
    PACKED = "packed"
