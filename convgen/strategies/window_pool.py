"""Pooling by threads that compute a few neighbouring results each, from rows that they read once."""

from __future__ import annotations

import math
from dataclasses import dataclass

from convgen.errors import ConfigError
from convgen.plan import Numerics, Placement, Plan
from convgen.problem import Pool
from convgen.space import Config, Space
from convgen.strategies import common, descent, operands, pooling, rules, window_pool_cost
from convgen.strategies.pooling import PoolAxis
from convgen.target import Target

MOST_RESULTS = 64
MOST_SPAN = 128
"""Results, and elements of a row, that a thread keeps in registers."""

WRITTEN_OUT = 192
"""Elements of all rows together up to which the loop over them is written out."""


@dataclass(frozen=True)
class WindowPoolConfig(Config):
    """Threads of a block; results of a thread along h and w; elements a load, along channels where they are neighbours
    in memory, else along w."""

    threads: int
    tile_h: int
    tile_w: int
    vector: int


class WindowPool:
    """Every thread folds the rows under its tile of results, which overlapping windows share."""

    name = "window_pool"
    summary = "average and max pooling: a thread computes a tile of results from rows that it reads once"
    calibrated = False
    solves = Pool
    template = "pool/window_pool.cu.j2"

    def why_not(self, problem: Pool, target: Target) -> str | None:
        return pooling.not_covered(problem)

    def space(self, problem: Pool, target: Target) -> Space:
        return Space(
            WindowPoolConfig,
            {
                "threads": (64, 128, 256, 512),
                "tile_h": (1, 2, 4, 8) if problem.nd > 1 else (1,),
                "tile_w": (1, 2, 4, 8, 16),
                "vector": pooling.vectors(
                    problem.c if pooling.is_channels_last(problem) else problem.spatial[-1], problem.dtype.itemsize
                ),
            },
        )

    def check(self, problem: Pool, config: WindowPoolConfig, target: Target) -> None:
        c = config
        rules.at_least_one(c)
        rules.block_fits((c.threads, 1, 1), target)
        if problem.nd == 1 and c.tile_h > 1:
            raise ConfigError(f"tile_h={c.tile_h}: expected 1, there is no h")
        channels_last = pooling.is_channels_last(problem)
        extent = problem.c if channels_last else problem.spatial[-1]
        if c.vector not in pooling.vectors(extent, problem.dtype.itemsize):
            what = "channels" if channels_last else "pixels of a row"
            raise ConfigError(f"vector={c.vector}: a load is of 1, 2, 4 or 8 neighbouring {what}, must divide their "
                              f"number {extent}, and takes {pooling.PACK_BYTES} bytes at most")  # fmt: skip
        if not channels_last and c.tile_w * problem.stride[-1] % c.vector:
            raise ConfigError(f"vector={c.vector}: tiles begin {c.tile_w * problem.stride[-1]} pixels apart, "
                              "which must be whole packs")  # fmt: skip
        lanes = c.vector if channels_last else 1
        w = _axes(problem, c)[-1]
        if (results := c.tile_h * c.tile_w * lanes) > MOST_RESULTS:
            raise ConfigError(f"{results} results a thread would not fit in registers, expected at most {MOST_RESULTS}")
        if _is_windowed(problem, c) and w.span * lanes > MOST_SPAN:
            raise ConfigError(f"tile_w={c.tile_w}: {w.span * lanes} elements of a row would not fit in registers, "
                              f"expected at most {MOST_SPAN}")  # fmt: skip
        blocks = pooling.blocks(problem, threads_an_image(problem, c), c.threads)
        rules.grid_fits(problem, blocks, "more threads")

    def default(self, problem: Pool, target: Target) -> WindowPoolConfig:
        vector = 1
        if pooling.is_channels_last(problem):
            vector = max(pooling.vectors(problem.c, problem.dtype.itemsize))
        start = WindowPoolConfig(128, 1, 1, vector)
        settled: WindowPoolConfig = descent.settled(self, problem, target, start)
        return settled

    def cost(self, problem: Pool, config: WindowPoolConfig, target: Target) -> float:
        axes = _axes(problem, config)
        threads = problem.typical_batch * threads_an_image(problem, config)
        windowed = _is_windowed(problem, config)
        return window_pool_cost.seconds(problem, axes, config.threads, threads, config.vector, windowed, target)

    def lower(self, problem: Pool, config: WindowPoolConfig, target: Target) -> Plan:
        c, axes = config, _axes(problem, config)
        grid = (pooling.blocks(problem, threads_an_image(problem, c), c.threads), 1, 1)
        name = pooling.name_of(problem, self.name, c)
        launch = operands.launch(name, pooling.operands_of(problem), grid, (c.threads, 1, 1))
        w, channels_last = axes[-1], pooling.is_channels_last(problem)
        windowed = _is_windowed(problem, c)
        rows = axes[-2].span if c.tile_h > 1 else axes[-2].taps if problem.nd > 1 else 1
        columns = w.span if windowed else w.taps
        own = {
            "axes": axes,
            "threads": c.threads,
            "tile_h": c.tile_h,
            "tile_w": c.tile_w,
            "vector": c.vector,
            "windowed": windowed,
            "lead": -w.offset % c.vector,
            "store": _store(problem, c),
            "unroll_rows": "#pragma unroll" if rows * columns <= WRITTEN_OUT else "#pragma unroll 1",
            "unroll_columns": "#pragma unroll" if columns <= 16 else "#pragma unroll 8",
        }
        return Plan(
            problem, self.name, c, target,
            template=self.template,
            constants=pooling.constants(problem, c, launch) | own,
            kernels=(launch.kernel,),
            steps=() if pooling.is_empty(problem) else (launch,),
            alignment=_alignment(problem, c),
            placements=(
                Placement("x", "L1/L2", problem.inputs[0].nbytes, "neighbouring tiles overlap in L1"),
                Placement("results", "registers", 4 * c.tile_h * c.tile_w * (c.vector if channels_last else 1),
                          "of a thread's windows, in fp32"),
            ),
            numerics=Numerics(steps=w.taps + math.prod(problem.filter[:-1])),
        )  # fmt: skip


def _axes(problem: Pool, c: WindowPoolConfig) -> tuple[PoolAxis, ...]:
    return pooling.axes(problem, (1, c.tile_h, c.tile_w)[-problem.nd :])


def _is_windowed(problem: Pool, c: WindowPoolConfig) -> bool:
    return c.tile_w > 1 or (c.vector > 1 and not pooling.is_channels_last(problem))


def threads_an_image(problem: Pool, c: WindowPoolConfig) -> int:
    """Threads for one batch element; at least 1."""
    tiles = math.prod(-(-axis.out // axis.tile) for axis in _axes(problem, c))
    return max(problem.c // (c.vector if pooling.is_channels_last(problem) else 1), 1) * tiles


def _store(problem: Pool, c: WindowPoolConfig) -> int:
    """Results that a thread stores together."""
    if pooling.is_channels_last(problem):
        return c.vector
    most = pooling.PACK_BYTES // problem.dtype.itemsize
    return common.largest((8, 4, 2), lambda s: s <= most and c.tile_w % s == 0 and problem.out[-1] % c.tile_w == 0)


def _alignment(problem: Pool, c: WindowPoolConfig) -> dict[str, int]:
    packs = {"x": c.vector, "y": _store(problem, c)}
    return {name: pack * problem.dtype.itemsize for name, pack in packs.items() if pack > 1}


STRATEGY = WindowPool()
