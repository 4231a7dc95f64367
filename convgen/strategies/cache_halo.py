"""Cached-halo convolution: a block keeps the core of its input tile in shared memory, its halo comes from L1 and L2.

The kernel of Kirk and Hwu, "Programming Massively Parallel Processors", convolution ("tiled convolution using caches
for halo cells"): tile and block have the same size, so that loading needs no case for the halo, which neighbouring
blocks have just brought into the caches. One thread one position. Covers fprop and the dgrad of stride 1.
"""

from __future__ import annotations

import math

from convgen.errors import ConfigError
from convgen.gather import Gather, gather
from convgen.plan import Placement, Plan
from convgen.problem import Conv
from convgen.space import Space
from convgen.strategies import cache_halo_cost, common, descent, operands, rules
from convgen.strategies import cache_halo_tiling as tiling
from convgen.strategies.cache_halo_tiling import CacheHaloConfig
from convgen.strategies.halo import unsuitable
from convgen.target import Target

RESULTS_A_THREAD = 32


SMALLEST = CacheHaloConfig(1, 1, 1, 1, 1, "global")


class CacheHalo:
    """See the module's text."""

    solves = Conv
    name = "cache_halo"
    template = "conv/cache_halo.cu.j2"
    summary = "the core of the input tile in shared memory, its halo through L1 and L2; one thread a position"
    calibrated = True

    def why_not(self, problem: Conv, target: Target) -> str | None:
        reason = unsuitable(problem)
        if reason is not None:
            return reason
        smallest = tiling.shared_bytes(gather(problem), SMALLEST)
        if smallest > target.shared_per_block:
            return (f"the core of a single result's pixels takes {smallest} bytes of shared memory, "
                    f"a block has {target.shared_per_block}")  # fmt: skip
        return None

    def space(self, problem: Conv, target: Target) -> Space:
        g = gather(problem)
        powers = (1, 2, 4, 8, 16, 32, 64, 128, 256)
        return Space(
            CacheHaloConfig,
            {
                "threads_x": powers,
                "threads_y": powers[:6] if problem.nd > 1 else (1,),
                "threads_z": powers[:4] if problem.nd > 2 else (1,),
                "tile_channel": common.up_to(g.m, (1, 2, 4, 8, 16)),
                "chunk": common.up_to(g.q_size, (1, 2, 4, 8, 16, 32)),
                "filter": ("global", "constant"),
            },
        )

    def check(self, problem: Conv, config: CacheHaloConfig, target: Target) -> None:
        g = gather(problem)
        c = config
        rules.one_of(c, "filter", ("global", "constant"))
        rules.at_least_one(c)
        if (problem.nd < 2 and c.threads_y > 1) or (problem.nd < 3 and c.threads_z > 1):
            raise ConfigError(f"threads_y={c.threads_y}, threads_z={c.threads_z}: the problem has {problem.nd} axes")
        rules.block_fits(tiling.block(c), target)
        if c.tile_channel > RESULTS_A_THREAD:
            raise ConfigError(f"tile_channel={c.tile_channel}: over {RESULTS_A_THREAD} sums would not fit in registers")
        if c.tile_channel > max(g.m, 1):
            raise ConfigError(
                f"tile_channel={c.tile_channel}: a group has {g.m} result channels, and the tile is one's"
            )
        if c.chunk > g.q_size:
            raise ConfigError(f"chunk={c.chunk}: there are {g.q_size} summed channels")
        if c.filter == "constant":
            rules.constant_fits(g, target)
        rules.shared_fits("the core takes", tiling.shared_bytes(g, c), target)
        rules.grid_fits(problem, tiling.grid_x(g, c), "more threads a block")

    def default(self, problem: Conv, target: Target) -> CacheHaloConfig:
        settled: CacheHaloConfig = descent.settled(self, problem, target, self._start(problem, target))
        return settled

    def _start(self, problem: Conv, target: Target) -> CacheHaloConfig:
        g = gather(problem)
        threads = {1: (256, 1, 1), 2: (32, 8, 1), 3: (32, 4, 2)}[problem.nd]
        tile_channel = common.largest((8, 4, 2), lambda t: g.m >= t)
        uniform = 0 < g.w.nbytes <= target.constant_bytes
        config = CacheHaloConfig(*threads, tile_channel, min(g.q_size, 4), "constant" if uniform else "global")
        budget = min(target.shared_per_sm // 4 - target.shared_reserved, target.shared_per_block)
        for field in ("chunk", "threads_z", "threads_y", "threads_x"):
            while tiling.shared_bytes(g, config) > budget and getattr(config, field) > 1:
                config = CacheHaloConfig.from_mapping({field: getattr(config, field) // 2}, config)
        return config

    def cost(self, problem: Conv, config: CacheHaloConfig, target: Target) -> float:
        return cache_halo_cost.seconds(problem, gather(problem), config, target)

    def lower(self, problem: Conv, config: CacheHaloConfig, target: Target) -> Plan:
        g = gather(problem)
        c = config
        taken = (operands.x(g), *operands.placed_filter(g, c.filter), *operands.epilogue(problem), operands.y(g))
        name, grid = common.kernel_name(problem, self.name, c), (tiling.grid_x(g, c), 1, 1)
        launch = operands.launch(name, taken, grid, tiling.block(c), tiling.shared_bytes(g, c))

        constants = common.gather_constants(problem, g) | {
            "kernel": name,
            "params": launch.kernel.params,
            "config": str(c),
            "cores": tiling.cores(g, c),
            "threads": math.prod(tiling.block(c)),
            "tile_m": c.tile_channel,
            "chunk": c.chunk,
            "filter_home": c.filter,
            "filter_elements": g.w.size,
            "planes_fastest": g.axes[-1].x_stride != 1 and g.q_size > 1,
            "unrolled": tiling.unrolled(g, c),
        }
        return Plan(
            problem, self.name, c, target,
            template=self.template,
            constants=constants,
            kernels=(launch.kernel,),
            steps=() if g.is_empty else (*operands.filter_copy(g, c.filter), launch),
            placements=_placements(g, c),
        )  # fmt: skip


def _placements(g: Gather, c: CacheHaloConfig) -> tuple[Placement, ...]:
    homes = {
        "constant": "warp-uniform: every lane reads one address, served beside the FMA",
        "global": "read-only, warp-uniform, kept by L1 and L2",
    }
    return (
        Placement(
            f"{g.x.name}, core", "shared", tiling.shared_bytes(g, c), "every pixel of it serves most taps of the block"
        ),
        Placement(
            f"{g.x.name}, halo", "L1/L2", g.x.nbytes, "the core of a neighbouring block, loaded at about the same time"
        ),
        Placement(g.w.name, "constant" if c.filter == "constant" else "L1/L2", g.w.nbytes, homes[c.filter]),
        common.sums_placement(c.tile_channel),
    )


STRATEGY = CacheHalo()
