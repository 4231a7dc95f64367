"""The sizes of a cached-halo kernel: what follows from a problem and a config of `cache_halo`."""

from __future__ import annotations

import math
from dataclasses import dataclass

from convgen.gather import Gather
from convgen.plan import Extent
from convgen.space import Config
from convgen.strategies import common
from convgen.strategies.halo import AxisBlock

UNROLLED_TERMS = 256


@dataclass(frozen=True)
class CacheHaloConfig(Config):
    """The block's threads, one a position, and what they work on at a time."""

    threads_x: int
    """Threads along the last axis."""
    threads_y: int
    """Threads along the axis before it."""
    threads_z: int
    """Threads along depth."""
    tile_channel: int
    """Result channels a thread keeps."""
    chunk: int
    """Summed channels in shared memory at a time."""
    filter: str
    """"global" or "constant"."""


@dataclass(frozen=True)
class AxisCore(AxisBlock):
    """The same with the pixels that are shared: `core` of them, in the middle of those that the block reads."""

    @property
    def core(self) -> int:
        """As many pixels as the results advance by, so that the cores of neighbouring blocks touch."""
        return min(self.block * self.axis.step, self.span)

    @property
    def lead(self) -> int:
        """Pixels of halo ahead of the core."""
        return (self.span - self.core) // 2


def cores(g: Gather, c: CacheHaloConfig) -> tuple[AxisCore, ...]:
    threads = {"w": c.threads_x, "h": c.threads_y, "d": c.threads_z}
    return tuple(AxisCore(a, threads[a.name]) for a in g.axes)


def block(c: CacheHaloConfig) -> tuple[int, int, int]:
    return c.threads_x, c.threads_y, c.threads_z


def core_elements(g: Gather, c: CacheHaloConfig) -> int:
    return math.prod(core.core for core in cores(g, c))


def shared_bytes(g: Gather, c: CacheHaloConfig) -> int:
    return 4 * c.chunk * core_elements(g, c)


def grid_x(g: Gather, c: CacheHaloConfig) -> Extent:
    tiles = math.prod(core.blocks for core in cores(g, c))
    return common.per_batch(g, g.groups * -(-g.m // c.tile_channel) * tiles * g.batch_size)


def unrolled(g: Gather, c: CacheHaloConfig) -> list[str]:
    """Axes whose tap loop is written out: from the innermost, while the body stays small."""
    names: list[str] = []
    terms = c.tile_channel
    for axis in reversed(g.axes):
        terms *= axis.taps
        if terms > UNROLLED_TERMS:
            break
        names.append(axis.name)
    return names
