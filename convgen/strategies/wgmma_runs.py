"""How threads bring a channels-first x as it lies, for a filter of one tap: runs of a channel's positions.

A run is as many neighbouring positions as cp.async copies and as divide an image. So none reaches over the end of an
image, and positions are counted over the ends of images: where TMA's planes end with each image, no tile is filled in
part but the last. Runs go where TMA, told to swizzle 128 bytes, would put them.
"""

from __future__ import annotations

from dataclasses import dataclass

from convgen.gather import Gather, gather
from convgen.problem import Conv
from convgen.strategies import common
from convgen.strategies.implicit_gemm_tiling import STEP_BYTES
from convgen.strategies.wgmma_block import ROWS
from convgen.strategies.wgmma_tiling import RUNS, Tiling

MOST_COPY = 16
"""Bytes that cp.async copies."""
COPIERS = 3
"""Warps that copy; the last of their warpgroup calls for w."""
OCTET = 8
"""Lines after which pieces change places alike: channels from one that a lane copies to its next."""
LANES = 32


@dataclass(frozen=True)
class Runs:
    """What the template is told of them; strides in elements."""

    positions: int
    """Of a run."""
    channels: int
    """That x has, of a group or of those that share a line."""
    lines: int
    """Channels that products read of a tile of x."""
    batch_stride: int
    channel_stride: int
    copiers: int


def runs(problem: Conv, t: Tiling) -> Runs | None:
    """None if pixels come otherwise."""
    if t.c.patches != RUNS:
        return None
    return Runs(
        positions=positions(t.g),
        channels=gather(problem).q_size * t.shared_groups,
        lines=lines(t),
        batch_stride=t.g.x_batch,
        channel_stride=t.g.x_q,
        copiers=COPIERS,
    )


def positions(g: Gather) -> int:
    return common.power_dividing(g.out, MOST_COPY // g.x.dtype.itemsize)


def lines(t: Tiling) -> int:
    return t.shared_groups * t.k_steps * STEP_BYTES // t.item


def alignment(t: Tiling) -> dict[str, int]:
    """What the copies rely on, in bytes."""
    return {t.g.x.name: positions(t.g) * t.item} if t.c.patches == RUNS else {}


def copies(t: Tiling) -> int:
    """Instructions of the busiest warp for a tile of x: of each parcel, a run a lane and its like every OCTET lines."""
    parcels = t.c.subtiles * (ROWS // positions(t.g)) * OCTET // LANES
    return -(-parcels // COPIERS) * (lines(t) // OCTET)
