"""The sizes of `wgmma_swapped`: what follows from a problem and a config.

The results of one wgmma are 64 channels, its rows, by any multiple of eight positions up to 256, its columns.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

from convgen.strategies import wgmma_block
from convgen.strategies.wgmma_block import ROWS
from convgen.strategies.wgmma_patches import SQUARE, Patches, PatchesConfig
from convgen.strategies.wgmma_results import Results
from convgen.target import Target

PATCHES = ("box", "line", "rows", "im2col")
FEW_GROUPS, MANY_GROUPS = 4, 8
"""Times eight positions: those of a slab at least and at most, where their number divides the tile's."""


@dataclass(frozen=True)
class SwappedConfig(PatchesConfig):
    """How the product is tiled, and how its operands come."""

    patches: str
    """How pixels come: "box" and "line", the halo of 8 results along the last axis and any number along the one before,
    or of results in a line; "rows", that of results in a row over the ends of rows and images; "im2col", for every tap
    those it meets."""
    tiles: int
    """Times 64 channels: those of a warpgroup."""
    block_n: int
    """Positions of a block's tile."""
    consumers: int
    """Warpgroups that multiply."""
    sharing: int
    """Of them, those that work on one tile, each on its channels; the others take turns (ping-pong)."""
    x_stages: int
    w_stages: int
    """Tiles of either operand in shared memory. As many w_stages as there are tiles of w: they stay."""
    slabs: int
    """Of a warpgroup, for results on their way from shared memory to y."""
    split_k: int
    cluster: int
    x_multicast: int = 1
    w_multicast: int = 1
    """Blocks of a cluster that share a tile of x or of w: those of neighbouring channels, those of neighbouring
    positions. Each loads a part of it, for all of them."""

    @property
    def sharers(self) -> int:
        """Blocks of a cluster of which each shares its tiles with others."""
        return self.x_multicast * self.w_multicast


def least(patches: str) -> SwappedConfig:
    """The smallest config whose pixels come that way, for what does not go with its sizes."""
    return SwappedConfig(patches, 1, 8, 1, 1, 2, 2, 1, 1, 1)


@dataclass(frozen=True)
class SwappedTiling(Patches):
    """A gather and a config of `wgmma_swapped`."""

    c: SwappedConfig

    @property
    def x_multicast(self) -> int:
        return self.c.x_multicast

    @property
    def w_multicast(self) -> int:
        return self.c.w_multicast

    # --- the tile ------------------------------------------------------------------------------------

    @property
    def positions(self) -> int:
        return self.c.block_n

    @property
    def square(self) -> tuple[int, ...]:
        return self._box_of(self.positions)

    @property
    def boxes(self) -> int:
        return 1

    @property
    def w_rows(self) -> int:
        return self.c.block_m

    @property
    def tiles_of_group(self) -> int:
        """Tiles of channels of a group, or of those that share a line."""
        return -(-self.shared_groups * self.g.m // self.c.block_m)

    @property
    def channel_tiles(self) -> int:
        return self.g.groups // self.shared_groups * self.tiles_of_group

    def tiles(self, batch: int) -> int:
        positions = super().tiles(batch) // self.channel_tiles
        return -(-positions // self.w_multicast) * self.w_multicast * self.channel_tiles

    def blocks(self, batch: int, target: Target) -> int:
        if self.c.sharers == 1:
            return super().blocks(batch, target)
        step = self.channel_tiles * self.w_multicast if self.resident else self.c.sharers
        most = wgmma_block.clusters_at_a_time(self.c.sharers, target) * self.c.sharers
        return min(self.tiles(batch), max(most // step, 1) * step)

    def _box_of(self, positions: int) -> tuple[int, ...]:
        if self.c.patches == "box":
            return (positions // SQUARE, SQUARE)
        return (1,) * (len(self.inner) - 1) + (positions,)

    # --- results -------------------------------------------------------------------------------------

    @property
    def slab_positions(self) -> int:
        """A part of the tile's, in groups of eight."""
        groups = self.positions // SQUARE
        divisors = [n for n in range(1, groups + 1) if groups % n == 0]
        most = max(n for n in divisors if n <= MANY_GROUPS)
        return SQUARE * (most if most >= FEW_GROUPS else min((n for n in divisors if n > MANY_GROUPS), default=groups))

    @property
    def stores(self) -> int:
        return self.c.tiles * self.positions // self.slab_positions

    @functools.cached_property
    def results(self) -> Results:
        match self.c.patches:
            case "im2col":
                row = self.g.out
            case "rows":
                row = math.gcd(self.pitch[-1], self.inner[-1].out)
            case _:
                row = self.inner[-1].out
        return Results(
            self.g,
            ROWS,
            self._box_of(self.slab_positions) if self.is_box else (),
            row,
            in_order=self.c.patches == "im2col",
            whole=self.g.groups == 1 or self.shared_groups * self.g.m % self.c.block_m == 0,
            straight=self.c.cluster > 1,
            rows=self.slab_positions,
        )

    @property
    def cluster_gap(self) -> int:
        return 4

    # --- registers -----------------------------------------------------------------------------------

    @property
    def sums(self) -> int:
        return self.c.tiles * self.positions // 2
