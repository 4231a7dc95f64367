"""The words a batch normalisation is described with."""

from __future__ import annotations

import enum

__all__ = ["BatchNormMode"]


class BatchNormMode(enum.StrEnum):
    """Whose mean and variance normalise x: the batch's own (training) or the running ones (inference)."""

    TRAINING = "training"
    INFERENCE = "inference"
