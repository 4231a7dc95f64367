"""Which blocks of a large launch to run, when running all takes too long."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class BlockSample:
    """At most about `limit` blocks of a launch: the grid's corners, blocks on its faces, and blocks anywhere."""

    limit: int = 64
    seed: int = 0

    def pick(self, grid: tuple[int, int, int]) -> list[int] | None:
        """Linear indices (x fastest), sorted; None if the grid has no more than `limit` blocks."""
        total = grid[0] * grid[1] * grid[2]
        if total <= self.limit:
            return None
        corners = itertools.product(*({0, extent - 1} for extent in grid))
        chosen = {_linear(corner, grid) for corner in corners}
        rng = np.random.default_rng(self.seed)
        axes = [axis for axis in range(3) if grid[axis] > 1]
        for draw in range(2 * self.limit):  # a small grid repeats itself: do not insist on the number
            if len(chosen) >= self.limit:
                break
            block = [int(rng.integers(extent)) for extent in grid]
            if draw % 2:
                axis = axes[int(rng.integers(len(axes)))]
                block[axis] = 0 if rng.integers(2) else grid[axis] - 1
            chosen.add(_linear((block[0], block[1], block[2]), grid))
        return sorted(chosen)


def _linear(block: tuple[int, ...], grid: tuple[int, int, int]) -> int:
    return (block[2] * grid[1] + block[1]) * grid[0] + block[0]
