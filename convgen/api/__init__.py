"""Convolutions, attention, pooling and batch normalisation of arrays: one call, the best kernel known."""

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
from convgen.api.layers import (
    avg_pool1d,
    avg_pool2d,
    avg_pool3d,
    batch_norm,
    max_pool1d,
    max_pool2d,
    max_pool3d,
)
from convgen.api.prepared import PreparedWeight
from convgen.api.settings import tuning

__all__ = [
    "PreparedWeight",
    "avg_pool1d",
    "avg_pool2d",
    "avg_pool3d",
    "batch_norm",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
    "decisions",
    "max_pool1d",
    "max_pool2d",
    "max_pool3d",
    "prepare",
    "scaled_dot_product_attention",
    "tuning",
]
