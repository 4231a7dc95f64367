"""Random valid attentions: small, and odd in every way that a mask can express."""

from __future__ import annotations

import random
from collections.abc import Iterator

from convgen.problem import Attention

FLOATS = ("fp32", "fp16", "bf16", "fp16", "bf16", "tf32")
PAIRS = ("key", "pair", "batch", "head", "full")
TAILS = (1, 9, 17, 63, 65, 127, 129, 192, 1025)
"""Lengths that are no multiple of any tile's, or just are."""


def random_attentions(seed: int, count: int, max_macs: int = 60_000) -> Iterator[Attention]:
    """The same `count` attentions for the same seed."""
    rng = random.Random(seed)
    made = 0
    while made < count:
        attention = random_attention(rng)
        if attention.typical_sizes[0] * attention.heads_q * attention.seq_q * attention.seq_kv * 16 <= max_macs:
            made += 1
            yield attention


def random_attention(rng: random.Random) -> Attention:
    heads_kv, group = rng.choice((1, 1, 2, 3)), rng.choice((1, 1, 2, 3, 7))
    seq_q = rng.choice((1, 1, 2, 5, 16, 17, 33, rng.randint(1, 70)))
    seq_kv = 0 if _chance(rng, 0.02) else rng.choice((seq_q, seq_q, 1, 9, 17, 65, rng.randint(1, 150)))
    head_dim = rng.choice((8, 16, 24, 40, 64, 72, rng.randint(1, 80)))
    window = [rng.choice((None, None, None, 0, 1, 7, 20)) for _ in range(2)]
    causal = rng.choice((None, "top_left", "bottom_right"))
    align = rng.choice(("top_left", "bottom_right")) if causal is None and window != [None, None] else None
    return Attention.of(
        batch=rng.choice((1, 1, 2, 3)),
        heads_q=heads_kv * group,
        heads_kv=heads_kv,
        seq_q=seq_q,
        seq_kv=seq_kv,
        head_dim=head_dim,
        head_dim_v=rng.choice((8, 24, 64, rng.randint(1, 80))) if _chance(rng, 0.3) else None,
        window=window,
        causal=causal,
        align=align,
        softcap=rng.choice((0, 0, 0, 2, 15.5)),
        scale=rng.choice((0.5, -0.25, 0.0)) if _chance(rng, 0.1) else None,
        dtype=rng.choice(FLOATS),
        out_dtype=rng.choice(("fp32", "fp16", "bf16")) if _chance(rng, 0.1) else None,
        layout=rng.choice(("bhsd", "bshd")),
        mask=rng.choice(PAIRS) if _chance(rng, 0.25) else "none",
        bias=rng.choice(PAIRS) if _chance(rng, 0.25) else "none",
        alibi=_chance(rng, 0.15),
        sink=_chance(rng, 0.15),
        lse=_chance(rng, 0.5),
    )


def _chance(rng: random.Random, probability: float) -> bool:
    return rng.random() < probability
