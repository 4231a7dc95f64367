"""Random valid poolings and batch normalisations: small, and odd in every way they can be."""

from __future__ import annotations

import random
from collections.abc import Iterator

from convgen.problem import Activation, BatchNorm, DType, Layout, Pool

FLOATS = (DType.FP32, DType.FP16, DType.BF16)


def random_pools(seed: int, count: int, max_macs: int = 20_000) -> Iterator[Pool]:
    """The same `count` poolings for the same seed."""
    rng = random.Random(seed)
    for _ in range(count):
        yield next(pool for pool in iter(lambda: _pool(rng), None) if pool.macs <= max_macs)


def random_batch_norms(seed: int, count: int, max_values: int = 4_000) -> Iterator[BatchNorm]:
    """The same `count` batch normalisations for the same seed."""
    rng = random.Random(seed)
    for _ in range(count):
        yield next(norm for norm in iter(lambda: _batch_norm(rng), None) if norm.count * norm.c <= max_values)


def _pool(rng: random.Random) -> Pool:
    nd = rng.choice((1, 2, 2, 2, 3))
    axes = [_axis(rng) for _ in range(nd)]
    size, taps, stride, dilation, pads = (list(values) for values in zip(*axes, strict=True))
    mode = rng.choice(("avg", "max"))
    if rng.random() < 0.15:
        taps, stride, dilation, pads = size, size, [1] * nd, [(0, 0)] * nd
    average = mode == "avg"
    return Pool.of(
        f"{mode}_pool{nd}d",
        n=0 if rng.random() < 0.02 else rng.randint(1, 3),
        c=0 if rng.random() < 0.02 else rng.choice((1, 2, 3, 4, 5, 7, 8, 12, 16, 17)),
        spatial=size,
        filter=taps,
        stride=stride,
        pad=pads,
        dilation=dilation,
        ceil_mode=rng.random() < 0.3,
        count_include_pad=not average or rng.random() < 0.5,
        divisor_override=rng.choice((1, 3, 7)) if average and rng.random() < 0.1 else 0,
        dtype=rng.choice(FLOATS),
        layout=rng.choice(list(Layout)),
    )


def _axis(rng: random.Random) -> tuple[int, int, int, int, tuple[int, int]]:
    taps = rng.choice((1, 2, 2, 3, 3, 3, 4, 5, 7))
    stride = rng.choice((1, 1, 2, 2, 3, taps, taps + 1))
    dilation = rng.choice((1, 1, 1, 2, 3))
    reach = dilation * (taps - 1) + 1
    low, high = (rng.randint(0, min(reach - 1, 4)) if rng.random() < 0.6 else 0 for _ in range(2))
    if rng.random() < 0.5:
        high = low
    size = max(reach - low - high, 1) + rng.choice((0, 1, 2, 3, 5, 8, 11, 13))
    return size, taps, stride, dilation, (low, high)


def _batch_norm(rng: random.Random) -> BatchNorm:
    nd = rng.choice((0, 1, 2, 2, 2, 3))
    training = rng.random() < 0.7
    return BatchNorm.of(
        n=rng.randint(2, 5) if training or rng.random() < 0.95 else 0,
        c=0 if rng.random() < 0.02 else rng.choice((1, 2, 3, 4, 5, 7, 8, 12, 16, 33, 64)),
        spatial=[rng.choice((1, 2, 3, 4, 5, 7, 8, 14, 16)) for _ in range(nd)],
        mode="training" if training else "inference",
        eps=rng.choice((1e-5, 1e-5, 1e-3, 0.1)),
        momentum=rng.choice((0.1, 0.1, 0.0, 1.0, 0.37)),
        affine=rng.random() < 0.85,
        running=not training or rng.random() < 0.85,
        residual=rng.random() < 0.3,
        activation=rng.choice(list(Activation)) if rng.random() < 0.5 else Activation.NONE,
        dtype=rng.choice(FLOATS),
        layout=rng.choice(list(Layout)),
    )
