"""Convolutions and attention of arrays: one call, the best kernel known."""

from __future__ import annotations

from convgen.api.functions import (
    conv1d,
    conv2d,
    conv3d,
    conv_transpose1d,
    conv_transpose2d,
    conv_transpose3d,
    decisions,
    prepare,
    scaled_dot_product_attention,
)
from convgen.api.prepared import PreparedWeight
from convgen.api.settings import tuning

__all__ = [
    "PreparedWeight",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
    "decisions",
    "prepare",
    "scaled_dot_product_attention",
    "tuning",
]
