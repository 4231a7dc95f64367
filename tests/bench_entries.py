"""Results made by hand, with numbers that a reader can check."""

from __future__ import annotations

import dataclasses
from typing import Any

from convgen.bench.results import Entry, Results

META: dict[str, Any] = {
    "gpu": "NVIDIA H200", "driver": "580.1", "cuda": "13.0", "cudnn": "9.19.0", "torch": "2.11.0", "convgen": "0.1.0",
    "commit": "abc", "date": "2026-11-30", "protocol": 2, "clocks": None, "suite": "hand", "against": ["cudnn"],
    "attainable": {"bandwidth": 4.21e12, "fp32": 50.2e12, "fp16": 729e12},
}  # fmt: skip


def entry(id: str, ratio: float | None, *, family: str = "resnet50", dtype: str = "fp32", **changes: Any) -> Entry:
    """Ours takes 10 us, a fifth of the floor; the best peer takes `ratio` times as long, None for no peer."""
    made = Entry(
        id=id,
        family=family,
        problem="conv2d n=1 c=64 k=64 in=56x56 filter=3x3 pad=1",
        dtype=dtype,
        direction="fprop",
        layout="nchw",
        accuracy="strict",
        strategy="direct",
        config={"tile": 4},
        origin="tuned",
        ours_us=10.0,
        spread=(9.9, 10.1),
        default_us=20.0,
        floor_us=2.0,
        attained=0.2,
        flops=231_211_008,
        bytes=1_753_088,
        verified=True,
        error={"max_error": 1e-6, "of_bound": 0.1},
        rounds=7,
        repetitions=20,
        caches="cold",
    )
    if ratio is not None:
        made = dataclasses.replace(
            made,
            peers={"cudnn_nchw": 10.0 * ratio, "cudnn_nhwc": 12.0 * ratio},
            best_peer="cudnn_nchw",
            ratio=ratio,
            ratio_low=ratio * 0.98,
            ratio_high=ratio * 1.02,
            confidence=0.9844,
            default_ratio=ratio / 2,
            peer_attained=0.2 / ratio,
        )
    return dataclasses.replace(made, **changes)


def missing(id: str, reason: str = "dtype=int8 has no kernel yet") -> Entry:
    return dataclasses.replace(
        entry(id, None), ours_us=None, spread=None, default_us=None, strategy=None, attained=None, verified=False,
        reason=reason, error=None,
    )  # fmt: skip


def results(*entries: Entry, **meta: Any) -> Results:
    return Results({**META, **meta}, list(entries))
