"""Cached-halo convolution: a block keeps the core of its input tile in shared memory, its halo comes from L1 and L2.

The kernel of Kirk and Hwu, "Programming Massively Parallel Processors", convolution ("tiled convolution using caches
for halo cells"): tile and block have the same size, so that loading needs no case for the halo, which neighbouring
blocks have just brought into the caches. One thread one position. Covers fprop and the dgrad of stride 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from convgen.errors import ConfigError
from convgen.gather import Axis, Gather, gather
from convgen.plan import CopyToSymbol, Extent, Kernel, Launch, Param, Placement, Plan, Step, TensorArg
from convgen.problem import Conv
from convgen.space import Config, Space
from convgen.strategies import common
from convgen.strategies.halo import check_constant_filter, unsuitable
from convgen.target import Target

UNROLLED_TERMS = 256
RESULTS_A_THREAD = 32


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


SMALLEST = CacheHaloConfig(1, 1, 1, 1, 1, "global")


@dataclass(frozen=True)
class AxisCore:
    """One axis of the block: `block` results, which read `span` pixels, of which `core` in the middle are shared."""

    axis: Axis
    block: int

    @property
    def blocks(self) -> int:
        return -(-self.axis.out // self.block)

    @property
    def span(self) -> int:
        return self.axis.span(self.block)

    @property
    def core(self) -> int:
        """As many pixels as the results advance by, so that the cores of neighbouring blocks touch."""
        return min(self.block * self.axis.step, self.span)

    @property
    def lead(self) -> int:
        """Pixels of halo ahead of the core."""
        return (self.span - self.core) // 2


def _cores(g: Gather, c: CacheHaloConfig) -> tuple[AxisCore, ...]:
    threads = {"w": c.threads_x, "h": c.threads_y, "d": c.threads_z}
    return tuple(AxisCore(a, threads[a.name]) for a in g.axes)


def _core_elements(g: Gather, c: CacheHaloConfig) -> int:
    return math.prod(core.core for core in _cores(g, c))


def _shared_bytes(g: Gather, c: CacheHaloConfig) -> int:
    return 4 * c.chunk * _core_elements(g, c)


def _grid_x(g: Gather, c: CacheHaloConfig) -> Extent:
    tiles = math.prod(core.blocks for core in _cores(g, c))
    return common.per_batch(g, g.groups * -(-g.m // c.tile_channel) * tiles * g.batch_size)


class CacheHalo:
    """See the module's text."""

    name = "cache_halo"
    summary = "the core of the input tile in shared memory, its halo through L1 and L2; one thread a position"

    def why_not(self, problem: Conv, target: Target) -> str | None:
        reason = unsuitable(problem)
        if reason is not None:
            return reason
        smallest = _shared_bytes(gather(problem), SMALLEST)
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
                "tile_channel": tuple(t for t in (1, 2, 4, 8, 16) if t <= max(g.m, 1)),
                "chunk": tuple(t for t in (1, 2, 4, 8, 16, 32) if t <= g.q_size),
                "filter": ("global", "constant"),
            },
        )

    def check(self, problem: Conv, config: CacheHaloConfig, target: Target) -> None:
        g = gather(problem)
        c = config
        if c.filter not in ("global", "constant"):
            raise ConfigError(f"filter={c.filter}: expected global or constant")
        for field, value in c.as_dict().items():
            if isinstance(value, int) and value < 1:
                raise ConfigError(f"{field}={value}: expected at least 1")
        if (problem.nd < 2 and c.threads_y > 1) or (problem.nd < 3 and c.threads_z > 1):
            raise ConfigError(f"threads_y={c.threads_y}, threads_z={c.threads_z}: the problem has {problem.nd} axes")
        threads = c.threads_x * c.threads_y * c.threads_z
        if threads > target.max_threads_per_block or c.threads_z > 64:
            raise ConfigError(f"{threads} threads: a block has at most {target.max_threads_per_block}, and 64 along z")
        if c.tile_channel > RESULTS_A_THREAD:
            raise ConfigError(f"tile_channel={c.tile_channel}: over {RESULTS_A_THREAD} sums would not fit in registers")
        if c.tile_channel > max(g.m, 1):
            raise ConfigError(
                f"tile_channel={c.tile_channel}: a group has {g.m} result channels, and the tile is one's"
            )
        if c.chunk > g.q_size:
            raise ConfigError(f"chunk={c.chunk}: there are {g.q_size} summed channels")
        if c.filter == "constant":
            check_constant_filter(g, target)
        nbytes = _shared_bytes(g, c)
        if nbytes > target.shared_per_block:
            raise ConfigError(f"the core takes {nbytes} bytes of shared memory, a block has {target.shared_per_block}")
        blocks = common.largest_extent(problem, _grid_x(g, c))
        if blocks > common.MAX_GRID_X:
            raise ConfigError(f"{blocks} blocks: a grid has at most {common.MAX_GRID_X}; use more threads a block")

    def default(self, problem: Conv, target: Target) -> CacheHaloConfig:
        g = gather(problem)
        threads = {1: (256, 1, 1), 2: (32, 8, 1), 3: (32, 4, 2)}[problem.nd]
        tile_channel = next((t for t in (8, 4, 2) if g.m >= t), 1)
        uniform = 0 < g.w.nbytes <= target.constant_bytes
        config = CacheHaloConfig(*threads, tile_channel, min(g.q_size, 4), "constant" if uniform else "global")
        budget = min(target.shared_per_sm // 4 - target.shared_reserved, target.shared_per_block)
        for field in ("chunk", "threads_z", "threads_y", "threads_x"):
            while _shared_bytes(g, config) > budget and getattr(config, field) > 1:
                config = CacheHaloConfig.from_mapping({field: getattr(config, field) // 2}, config)
        return config

    def cost(self, problem: Conv, config: CacheHaloConfig, target: Target) -> float:
        g = gather(problem)
        c = config
        positions = c.threads_x * c.threads_y * c.threads_z * math.prod(core.blocks for core in _cores(g, c))
        channel_tiles = g.groups * -(-g.m // c.tile_channel)
        halo = math.prod(core.span for core in _cores(g, c)) - _core_elements(g, c)
        blocks = positions // (c.threads_x * c.threads_y * c.threads_z)
        # A read and the test for the core come to about eight instructions, shared by the channels of a thread.
        return common.first_order_cost(
            target,
            flops=2 * positions * g.batch_size * channel_tiles * c.tile_channel * g.q_size * g.taps,
            bytes_moved=problem.bytes
            + blocks * channel_tiles * g.batch_size * g.q_size * halo * g.x.dtype.itemsize / 3,
            threads=positions * g.batch_size * channel_tiles,
            efficiency=0.35 * c.tile_channel / (c.tile_channel + 8),
            launches=1 + (c.filter == "constant"),
        )

    def lower(self, problem: Conv, config: CacheHaloConfig, target: Target) -> Plan:
        g = gather(problem)
        c = config
        epilogue_params, epilogue_args = common.epilogue_params(problem), common.epilogue_args(problem)
        in_t = g.x.dtype.ctype
        in_global = c.filter == "global"
        w_param, w_arg = ((Param("w", f"const {in_t}*"),), (TensorArg(g.w.name),)) if in_global else ((), ())
        name = common.kernel_name(problem, self.name)
        y_param, y_arg = Param("y", f"{g.y.dtype.ctype}*"), TensorArg(g.y.name)
        kernel = Kernel(name, (Param("x", f"const {in_t}*"), *w_param, *epilogue_params, y_param))
        steps: list[Step] = []
        if not in_global:
            steps.append(CopyToSymbol("filter_constant", TensorArg(g.w.name), g.w.nbytes))
        block = (c.threads_x, c.threads_y, c.threads_z)
        args = (TensorArg(g.x.name), *w_arg, *epilogue_args, y_arg)
        steps.append(Launch(kernel, (_grid_x(g, c), 1, 1), block, args, _shared_bytes(g, c)))

        constants = common.gather_constants(problem, g) | {
            "kernel": name,
            "params": kernel.params,
            "config": str(c),
            "cores": _cores(g, c),
            "threads": math.prod(block),
            "tile_m": c.tile_channel,
            "chunk": c.chunk,
            "filter_home": c.filter,
            "filter_elements": g.w.size,
            "planes_fastest": g.axes[-1].x_stride != 1 and g.q_size > 1,
            "unrolled": _unrolled(g, c),
        }
        return Plan(
            problem, self.name, c, target,
            template="conv/cache_halo.cu.j2",
            constants=constants,
            kernels=(kernel,),
            steps=() if g.is_empty else tuple(steps),
            placements=_placements(g, c),
        )  # fmt: skip


def _unrolled(g: Gather, c: CacheHaloConfig) -> list[str]:
    """Axes whose tap loop is written out: from the innermost, while the body stays small."""
    names: list[str] = []
    terms = c.tile_channel
    for axis in reversed(g.axes):
        terms *= axis.taps
        if terms > UNROLLED_TERMS:
            break
        names.append(axis.name)
    return names


def _placements(g: Gather, c: CacheHaloConfig) -> tuple[Placement, ...]:
    homes = {
        "constant": "warp-uniform: every lane reads one address, served beside the FMA",
        "global": "read-only, warp-uniform, kept by L1 and L2",
    }
    return (
        Placement(
            f"{g.x.name}, core", "shared", _shared_bytes(g, c), "every pixel of it serves most taps of the block"
        ),
        Placement(
            f"{g.x.name}, halo", "L1/L2", g.x.nbytes, "the core of a neighbouring block, loaded at about the same time"
        ),
        Placement(g.w.name, "constant" if c.filter == "constant" else "L1/L2", g.w.nbytes, homes[c.filter]),
        Placement("sums", "registers", 4 * c.tile_channel, "one fp32 a result, written once"),
    )


STRATEGY = CacheHalo()
