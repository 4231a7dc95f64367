"""Halo-tiled convolution: a block keeps its input tile, halo included, in shared memory and computes from there.

The textbook kernel (Kirk and Hwu, "Programming Massively Parallel Processors", convolution) with three changes: all
loading threads compute afterwards, a thread keeps several neighbouring results and reads each row of pixels into
registers once, and the tile is loaded with vector loads. Covers fprop and the dgrad of stride 1, plain or transposed.
"""

from __future__ import annotations

import functools
import math
from typing import Any

from convgen.errors import ConfigError
from convgen.gather import Gather, gather
from convgen.plan import Kernel, Placement, Plan
from convgen.problem import Conv
from convgen.space import Space
from convgen.strategies import common, descent, halo_tiled_cost, operands, rules
from convgen.strategies.halo import unsuitable
from convgen.strategies.halo_tiling import HaloTiledConfig, Tiling
from convgen.target import Target

RESULTS_A_THREAD = 128
SMALLEST = HaloTiledConfig(1, 1, 1, 1, 1, 1, 1, 1, 1, "shared", 1)


class HaloTiled:
    """See the module's text."""

    solves = Conv
    name = "halo_tiled"
    template = "conv/halo_tiled.cu.j2"
    summary = "the input tile and its halo in shared memory, a register block of results a thread"
    calibrated = True

    def why_not(self, problem: Conv, target: Target) -> str | None:
        reason = unsuitable(problem)
        if reason is not None:
            return reason
        smallest = Tiling(gather(problem), SMALLEST).shared_bytes
        if smallest > target.shared_per_block:
            return (f"the pixels and the filter of a single result take {smallest} bytes of shared memory, "
                    f"a block has {target.shared_per_block}")  # fmt: skip
        return None

    def space(self, problem: Conv, target: Target) -> Space:
        g = gather(problem)
        powers = (1, 2, 4, 8, 16, 32, 64, 128)
        return Space(
            HaloTiledConfig,
            {
                "threads_x": powers,
                "threads_y": powers[:6] if problem.nd > 1 else (1,),
                "threads_channel": common.up_to(g.channels, powers[:5]),
                "tile_w": (1, 2, 4, 8),
                "tile_h": (1, 2, 4, 8, 16) if problem.nd > 1 else (1,),
                "tile_d": (1, 2, 4) if problem.nd > 2 else (1,),
                "tile_channel": common.up_to(g.m, (1, 2, 4, 8, 16)),
                "chunk": common.up_to(g.q_size, (1, 2, 4, 8, 16, 32)),
                "vector": (1, 2, 4, 8),
                "filter": ("constant", "shared"),
                "min_blocks": (1, 2, 3, 4, 5, 6, 8),
            },
        )

    def check(self, problem: Conv, config: HaloTiledConfig, target: Target) -> None:
        g = gather(problem)
        c = config
        rules.one_of(c, "filter", ("constant", "shared"))
        rules.at_least_one(c)
        if problem.nd < 2 and (c.threads_y > 1 or c.tile_h > 1):
            raise ConfigError("threads_y and tile_h must be 1: the problem has one axis")
        if problem.nd < 3 and c.tile_d > 1:
            raise ConfigError(f"tile_d={c.tile_d}: the problem has {problem.nd} axes, so no depth")
        if c.tile_channel * c.tile_d * c.tile_h * c.tile_w > RESULTS_A_THREAD:
            raise ConfigError(f"over {RESULTS_A_THREAD} results a thread: the sums would not fit in registers")
        if g.m == 1 and c.tile_channel > 1:
            raise ConfigError(f"tile_channel={c.tile_channel}: a group has one result channel, and another group would "
                              "share none of the thread's pixels")  # fmt: skip
        if c.chunk > g.q_size:
            raise ConfigError(f"chunk={c.chunk}: there are {g.q_size} summed channels")

        t = _tiling(problem, c)
        rules.block_fits(t.threads_of_block, target)
        self._check_vector(t)
        room = target.registers_per_sm // (t.threads * c.min_blocks)
        if c.min_blocks > 1 and t.registers > room:
            raise ConfigError(
                f"min_blocks={c.min_blocks}: leaves a thread {room} registers, it needs about {t.registers}"
            )
        if t.threads * c.min_blocks > target.max_threads_per_sm or c.min_blocks > target.max_blocks_per_sm:
            raise ConfigError(f"min_blocks={c.min_blocks} of {t.threads} threads: a multiprocessor holds at most "
                              f"{target.max_threads_per_sm} threads in {target.max_blocks_per_sm} blocks")  # fmt: skip
        if c.filter == "constant":
            rules.constant_fits(g, target)
            if c.threads_channel > 1 and c.threads_x * c.threads_y % target.warp:
                raise ConfigError("filter=constant: threads_x*threads_y must be a multiple of 32, "
                                  "so that a warp reads one address")  # fmt: skip
        rules.shared_fits("tile and filter take", t.shared_bytes, target)
        rules.grid_fits(problem, t.grid_x, "larger tiles")

    def _check_vector(self, t: Tiling) -> None:
        g, c, v = t.g, t.c, t.c.vector
        if v == 1:
            return
        if v not in (2, 4, 8) or v * g.x.dtype.itemsize > 16:
            raise ConfigError(f"vector={v}: a load brings 2, 4 or 8 elements and at most 16 bytes")
        last = g.axes[-1]
        batch, group, q = (g.batch, g.x_batch), (g.groups, g.x_group), (g.q, g.x_q)
        pixels = tuple((a.source, a.x_stride) for a in g.axes)
        if not t.planes_fastest:
            if not common.dense_pack(v, last.x_stride, common.steps(batch, group, q, *pixels[:-1])):
                raise ConfigError(
                    f"vector={v}: rows of {g.x.name} must be a multiple of it, or only the first is aligned"
                )
            if c.threads_x * c.tile_w * last.step % v:
                raise ConfigError(
                    f"vector={v}: tiles are {c.threads_x * c.tile_w * last.step} pixels apart, not a multiple"
                )
            return
        if g.q_size > 1:
            if c.chunk % v or g.q_size % v or not common.dense_pack(v, g.x_q, common.steps(batch, group, *pixels)):
                raise ConfigError(
                    f"vector={v}: summed channels must be neighbours in {g.x.name}, chunk a multiple of it"
                )
        elif t.block_g % v or g.groups % v or not common.dense_pack(v, g.x_group, common.steps(batch, *pixels)):
            raise ConfigError(f"vector={v}: groups must be neighbours in {g.x.name}, the block's a multiple of it")

    def default(self, problem: Conv, target: Target) -> HaloTiledConfig:
        settled: HaloTiledConfig = descent.settled(self, problem, target, self._start(problem, target))
        return settled

    def _start(self, problem: Conv, target: Target) -> HaloTiledConfig:
        g = gather(problem)
        w, h = g.axes[-1], g.axes[-2] if problem.nd > 1 else None
        channels = g.m if g.m > 1 else g.groups
        tile_w = common.largest((4, 2), lambda t: w.out >= t)
        tile_channel = common.largest((8, 4, 2), lambda t: g.m >= t)
        # Few rows of results where many would leave multiprocessors idle or more weights than registers.
        most = 8 if g.m == 1 and g.taps < 64 else 4 if g.m == 1 else 2
        spare = g.batch_size * g.channels * g.out // (tile_w * tile_channel * target.sm_count * 512)
        tile_h = common.largest((8, 4, 2), lambda t: h is not None and h.out >= 2 * t and t <= min(most, spare))
        tile_d = common.largest(
            (4, 2), lambda t: problem.nd > 2 and g.axes[0].out >= t and tile_channel * tile_h * t <= 16
        )

        threads_x = _power_of_two_between(-(-w.out // tile_w), 1, 32 if h else 128)
        threads_y = _power_of_two_between(-(-h.out // tile_h), 1, 256 // threads_x) if h else 1
        spare_threads = min(256 // (threads_x * threads_y), rules.MAX_BLOCK_Z)
        threads_channel = _power_of_two_between(-(-channels // tile_channel), 1, spare_threads)
        config = HaloTiledConfig(threads_x, threads_y, threads_channel, tile_w, tile_h, tile_d, tile_channel,
                                 min(g.q_size, 8), 1, "shared", 1)  # fmt: skip
        return self._shrunk(g, config, target)

    def _shrunk(self, g: Gather, config: HaloTiledConfig, target: Target) -> HaloTiledConfig:
        """`config` with tiles halved until four blocks fit a multiprocessor, or one where that takes single results."""
        fields = ("chunk", "threads_channel", "tile_d", "threads_y", "tile_h", "tile_channel", "threads_x", "tile_w")
        for budget in (target.shared_per_sm // 4 - target.shared_reserved, target.shared_per_block):
            shrunk = config
            for field in fields:
                while Tiling(g, shrunk).shared_bytes > budget and getattr(shrunk, field) > 1:
                    shrunk = HaloTiledConfig.from_mapping({field: getattr(shrunk, field) // 2}, shrunk)
            if Tiling(g, shrunk).shared_bytes <= budget:
                return shrunk
        return SMALLEST

    def cost(self, problem: Conv, config: HaloTiledConfig, target: Target) -> float:
        return halo_tiled_cost.seconds(problem, _tiling(problem, config), target)

    def lower(self, problem: Conv, config: HaloTiledConfig, target: Target) -> Plan:
        g = gather(problem)
        c = config
        t = Tiling(g, c)
        taken = (operands.x(g), *operands.placed_filter(g, c.filter), *operands.epilogue(problem), operands.y(g))
        name, grid = common.kernel_name(problem, self.name, c), (t.grid_x, 1, 1)
        launch = operands.launch(name, taken, grid, t.threads_of_block, t.shared_bytes)
        return Plan(
            problem, self.name, c, target,
            template=self.template,
            constants=self._constants(problem, t, launch.kernel),
            kernels=(launch.kernel,),
            steps=() if g.is_empty else (*operands.filter_copy(g, c.filter), launch),
            alignment=_alignment(t),
            placements=_placements(t),
        )  # fmt: skip

    def _constants(self, problem: Conv, t: Tiling, kernel: Kernel) -> dict[str, Any]:
        c = t.c
        store, store_count = t.store
        return common.gather_constants(problem, t.g) | {
            "kernel": kernel.name,
            "params": kernel.params,
            "config": str(c),
            "tiles": t.tiles,
            "threads_x": c.threads_x,
            "threads_y": c.threads_y,
            "threads_channel": c.threads_channel,
            "tile_m": c.tile_channel,
            "chunk": c.chunk,
            "vector": c.vector,
            "min_blocks": c.min_blocks,
            "filter_home": c.filter,
            "filter_elements": t.g.w.size,
            "filter_pitch": t.filter_pitch,
            "filter_read": t.filter_read,
            "filter_chunk": t.filter_chunk,
            "block_g": t.block_g,
            "block_m": t.block_m,
            "planes": t.planes,
            "plane": t.plane,
            "planes_fastest": t.planes_fastest,
            "lead": t.lead,
            "skip": t.skip,
            "read": t.read,
            "columns": t.columns,
            "pitch": t.pitch,
            "segment": t.segment,
            "unrolled": t.unrolled,
            "line": t.line,
            "lines": t.lines,
            "across": t.across,
            "down": t.down,
            "in_flight": t.in_flight,
            "reuse": _reuse(t),
            "store": store,
            "store_count": store_count,
        }


@functools.lru_cache(maxsize=64)
def _tiling(problem: Conv, config: HaloTiledConfig) -> Tiling:
    """Remembered, since what passes `check` is asked for its `cost` next."""
    return Tiling(gather(problem), config)


def _reuse(t: Tiling) -> str:
    """FLOP a block does for each byte of its input tile."""
    flops = 2 * t.block_m * math.prod(tile.block * tile.axis.taps for tile in t.tiles)
    return f"{flops / (t.g.x.dtype.itemsize * math.prod(tile.span for tile in t.tiles)):.4g}"


def _alignment(t: Tiling) -> dict[str, int]:
    alignment = {}
    if t.c.vector > 1:
        alignment[t.g.x.name] = t.c.vector * t.g.x.dtype.itemsize
    if t.store[1] > 1:
        alignment[t.g.y.name] = t.store[1] * t.g.y.dtype.itemsize
    return alignment


def _placements(t: Tiling) -> tuple[Placement, ...]:
    g, c = t.g, t.c
    homes = {
        "constant": (g.w.nbytes, "warp-uniform: every lane reads one address, served beside the FMA"),
        "shared": (4 * t.filter_chunk, "read by every thread of the block; the lanes of a channel read one address"),
    }
    nbytes, why = homes[c.filter]
    uses = t.block_m * math.prod(tile.block * tile.axis.taps / tile.span for tile in t.tiles)
    tile = f"each pixel is loaded once a block and used {uses:.4g} times: {_reuse(t)} FLOP a byte"
    return (
        Placement(g.x.name, "shared", 4 * t.planes * t.plane, tile),
        Placement(g.w.name, c.filter, nbytes, why),
        Placement("row of pixels", "registers", 4 * t.reads_w, "read once, used by every tap and row of results"),
        common.sums_placement(t.results),
    )


def _power_of_two_between(value: int, low: int, high: int) -> int:
    """The least power of two that is no less than `value`, between `low` and the greatest one up to `high`."""
    return max(low, min(common.power_of_two_at_least(value), common.power_of_two_at_most(high)))


STRATEGY = HaloTiled()
