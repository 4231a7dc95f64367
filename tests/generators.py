"""Random valid convolutions: small, and odd in every way a convolution can be.

`random_convs` draws them from a seed, for runs of thousands; `valid_convs` is the same draw as a hypothesis strategy.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator

from hypothesis import strategies as st

from convgen.problem import Activation, Conv, DType, Epilogue, Layout, PadMode

FLOATS = (DType.FP32, DType.TF32, DType.FP16, DType.BF16)
FLOATS_STORED = (DType.FP32, DType.FP16, DType.BF16)


def valid_convs(max_macs: int = 100_000) -> st.SearchStrategy[Conv]:
    """Valid convolutions of at most `max_macs` multiply-adds."""
    return st.randoms(use_true_random=False).map(lambda rng: random_conv(rng, max_macs))


def random_convs(seed: int, count: int, max_macs: int = 100_000) -> Iterator[Conv]:
    """The same `count` convolutions for the same seed."""
    rng = random.Random(seed)
    for _ in range(count):
        yield random_conv(rng, max_macs)


def integer_convs(seed: int, count: int, max_macs: int = 100_000) -> Iterator[Conv]:
    """The same of 8-bit integers; an epilogue is for outputs of floating-point numbers."""
    rng = random.Random(seed)
    for conv in random_convs(seed, count, max_macs):
        output = rng.choice((DType.INT32, DType.INT32, DType.INT32, *FLOATS_STORED))
        epilogue = Epilogue() if output is DType.INT32 else conv.epilogue
        dtype = rng.choice((DType.INT8, DType.UINT8))
        yield dataclasses.replace(conv, dtype=dtype, out_dtype=output, epilogue=epilogue)


def random_conv(rng: random.Random, max_macs: int) -> Conv:
    """Draw until one is small enough; every draw is from a narrower range than the one before."""
    for attempt in range(64):
        conv = _draw(rng, ceiling=max(8 - attempt, 1))
        if conv.macs <= max_macs:
            return conv
    raise ValueError(f"max_macs={max_macs}: no convolution is that small")


def _draw(rng: random.Random, ceiling: int) -> Conv:
    nd = rng.choice((1, 2, 2, 2, 3))
    transposed = _chance(rng, 0.2)
    mode = PadMode.ZEROS if transposed or _chance(rng, 0.6) else rng.choice(list(PadMode)[1:])
    axes = [_transposed_axis(rng, ceiling) if transposed else _axis(rng, ceiling, mode) for _ in range(nd)]
    spatial, taps, stride, dilation, pads, extra = (list(values) for values in zip(*axes, strict=True))
    groups, c, k = _channels(rng, ceiling)
    dtype = rng.choice(FLOATS)
    direction = rng.choice(("fprop", "fprop", "dgrad", "wgrad"))
    return Conv.of(
        f"conv_transpose{nd}d" if transposed else f"conv{nd}d",
        n=0 if _chance(rng, 0.02) else rng.randint(1, min(ceiling, 3)),
        c=c,
        k=k,
        spatial=spatial,
        filter=taps,
        stride=stride,
        pad=pads,
        pad_mode=mode,
        dilation=dilation,
        groups=groups,
        output_padding=extra,
        dtype=dtype,
        out_dtype=rng.choice(FLOATS_STORED) if _chance(rng, 0.1) else None,
        layout=rng.choice(list(Layout)),
        direction=direction,
        epilogue=_epilogue(rng) if direction == "fprop" else "none",
        accumulate=_chance(rng, 0.15),
    )


Axis = tuple[int, int, int, int, tuple[int, int], int]


def _axis(rng: random.Random, ceiling: int, mode: PadMode) -> Axis:
    taps, stride, dilation = _window(rng, ceiling)
    reach = dilation * (taps - 1) + 1
    widest = reach + 2 if _chance(rng, 0.1) else max(reach // 2, 1)
    low, high = (rng.randint(0, min(widest, ceiling)) if _chance(rng, 0.7) else 0 for _ in range(2))
    if _chance(rng, 0.5):
        high = low
    smallest = max(reach - low - high, 0)
    if mode is PadMode.REFLECT:
        smallest = max(smallest, max(low, high) + 1)
    elif mode is not PadMode.ZEROS:
        smallest = max(smallest, low, high)
    size = smallest if _chance(rng, 0.05) else max(smallest, 1) + rng.randint(0, 2 * ceiling)
    return size, taps, stride, dilation, (low, high), 0


def _transposed_axis(rng: random.Random, ceiling: int) -> Axis:
    taps, stride, dilation = _window(rng, ceiling)
    size = rng.randint(1, ceiling + 2)
    extra = rng.randint(0, max(stride, dilation) - 1) if _chance(rng, 0.4) else 0
    spare = (size - 1) * stride + dilation * (taps - 1) + extra
    low = rng.randint(0, min(spare, taps))
    high = low if 2 * low <= spare and _chance(rng, 0.5) else rng.randint(0, min(spare - low, taps))
    return size, taps, stride, dilation, (low, high), extra


def _window(rng: random.Random, ceiling: int) -> tuple[int, int, int]:
    taps = min(rng.choice((1, 2, 3, 3, 3, 4, 5, 7)), ceiling)
    stride = rng.choice((1, 1, 1, 2, 2, 3, taps + 1))
    return taps, stride, rng.choice((1, 1, 1, 2, 3))


def _channels(rng: random.Random, ceiling: int) -> tuple[int, int, int]:
    widest = 2 * ceiling + 1
    kind = rng.choice(("dense", "dense", "dense", "grouped", "depthwise"))
    if kind == "depthwise":
        channels = rng.randint(1, widest)
        return channels, channels, channels * rng.choice((1, 1, 2))
    groups = rng.randint(2, 4) if kind == "grouped" else 1
    c, k = (0 if _chance(rng, 0.02) else groups * rng.randint(1, max(widest // groups, 1)) for _ in range(2))
    return groups, c, k


def _epilogue(rng: random.Random) -> str:
    operands = [name for name in ("scale", "shift", "bias", "residual") if _chance(rng, 0.25)]
    activation = rng.choice(list(Activation)) if _chance(rng, 0.4) else Activation.NONE
    return "+".join([*operands, *([activation] if activation is not Activation.NONE else [])]) or "none"


def _chance(rng: random.Random, probability: float) -> bool:
    return rng.random() < probability
