"""A block of warpgroups on Hopper: what wgmma, TMA and registers admit, and the rules that configs of such blocks keep.

One warpgroup calls for tiles, the others multiply: each 64 results of a number of channels by one instruction.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable, Iterable
from typing import Any, Protocol

from convgen.errors import ConfigError
from convgen.gather import Gather, gather
from convgen.problem import Conv, Direction, DType, PadMode
from convgen.space import Config
from convgen.strategies import common, descent
from convgen.strategies.base import Strategy
from convgen.strategies.cost_model import LAUNCH_SECONDS
from convgen.target import Target
from convgen.tensor_map import MAX_BOX

LINE_BYTES = 128
"""Of a line of shared memory, the longest swizzle."""
ROWS = 64
"""Results along the positions that one wgmma makes."""
WARPGROUP = 128
SHARED_ALIGNMENT = 128
REGISTERS = {1: (255, 255), 2: (40, 232), 3: (32, 160), 4: (24, 112)}
"""Of a thread that loads and of one that multiplies, by the number of warpgroups that multiply."""
COPYING_REGISTERS = {1: (255, 255), 2: (56, 224), 3: (56, 152), 4: (56, 104)}
"""Likewise where those that load copy x themselves, for which they compute addresses."""
LAUNCHED_REGISTERS = {1: 255, 2: 168, 3: 128, 4: 96}
"""Of a thread when the kernel starts: what the operands of one instruction are limited by."""
INSTRUCTION_REGISTERS = 26
"""That a wgmma needs beside its sums."""
MAX_MBARRIERS = 64
"""That the simulator keeps an eye on."""
MAX_COUNT = 1 << 30
"""Positions and tiles that kernels count to."""
EPS_TF32 = 2.0**-10
"""Of an operand in fp32: it is copied as it is, and wgmma leaves out the last 13 of its bits, so it is cut."""


CLUSTERS_AT_A_TIME = (132, 66, 39, 30, 22, 17, 15, 15)
"""Clusters of 1 to 8 blocks, each of which takes a multiprocessor, that run at a time on the 132 of an H200, by
cuOccupancyMaxActiveClusters: those of a cluster lie together, and there are not as many in each part of the chip."""
MOST_STARTS = 3
"""From which a default is settled: one alone leads down into one valley."""


class BlockConfig(Config):
    """How a block's warpgroups go about their tiles."""

    tiles: int
    """Times 64 results: those of a warpgroup."""
    block_n: int
    """Result channels of a block's tile."""
    consumers: int
    """Warpgroups that multiply."""
    sharing: int
    """Of them, those that work on one tile."""
    x_stages: int
    w_stages: int
    """Tiles of either operand in shared memory. As many w_stages as there are tiles of w: they stay."""
    slabs: int
    """Of a warpgroup, for 64 positions' results each on their way from shared memory to y."""

    @property
    def threads(self) -> int:
        return WARPGROUP * (self.consumers + 1)

    @property
    def slots(self) -> int:
        """Tiles that a block works on at a time."""
        return self.consumers // self.sharing

    @property
    def copies(self) -> bool:
        """Whether threads copy x."""
        return False

    @property
    def registers(self) -> tuple[int, int]:
        """Of a thread that loads and of one that multiplies."""
        return (COPYING_REGISTERS if self.copies else REGISTERS)[self.consumers]

    @property
    def subtiles(self) -> int:
        """Times 64 positions: those of a block's tile."""
        return self.sharing * self.tiles

    @property
    def block_m(self) -> int:
        """Positions of a block's tile."""
        return ROWS * self.subtiles


class BlockTiling(Protocol):
    """What the rules ask of a strategy's sizes."""

    @property
    def g(self) -> Gather: ...
    @property
    def c(self) -> BlockConfig: ...
    @property
    def w_tiles(self) -> int: ...
    @property
    def resident(self) -> bool: ...
    @property
    def mbarriers(self) -> int: ...
    @property
    def mapped(self) -> bool: ...
    @property
    def stores(self) -> int:
        """Slabs that a warpgroup fills with a tile's results."""
        ...

    @property
    def channel_tiles(self) -> int: ...


def wgmma_columns(channels: int, dtype: DType) -> int:
    """The fewest columns of a wgmma that hold so many channels: of integers, past 24, multiples of 16."""
    step = 16 if dtype.is_integer and channels > 24 else 8
    return -(-channels // step) * step


def why_not(problem: Conv, target: Target, types: tuple[DType, ...]) -> str | None:
    """Why no kernel on wgmma computes the problem, whatever its channels; None if one may."""
    if target.compute_capability != (9, 0) or not target.arch.endswith("a"):
        return f"wgmma and TMA are those of sm_90a, the target is {target.arch}"
    if problem.dtype not in types:
        names = ", ".join(dtype.value for dtype in types)
        return f"dtype={problem.dtype.value} has no kernel on wgmma yet; {names} have"
    reason = common.not_covered(problem, integers=True, fp8=DType.FP8 in types)
    if reason is not None:
        return reason
    if problem.direction is not Direction.FPROP or problem.transposed:
        return f"{problem.op} {problem.direction.value} has no kernel on wgmma yet; implicit_gemm covers it"
    g = gather(problem)
    if g.is_empty or not g.has_terms or g.x.size == 0:
        return "there is nothing to multiply; direct writes what is left"
    if g.pad_mode is not PadMode.ZEROS:
        return f"pad_mode={g.pad_mode.value}: TMA fills what lies outside x with zeros"
    return None


def widths(g: Gather, usual: Iterable[int]) -> tuple[int, ...]:
    """Channels of a tile that are worth trying: those of the usual that are fewer than all, and all."""
    whole = wgmma_columns(g.m, g.x.dtype)
    fewer = [n for n in usual if n < whole]
    return tuple(sorted({*fewer, *([whole] if whole <= MAX_BOX else [])}))


class Settled(Strategy, Hashable, Protocol):
    """A strategy whose settled configs are kept."""


def settled(
    strategy: Settled, problem: Conv, target: Target, starts: Iterable[Any], plain: Callable[[Conv, Target], Any]
) -> Any:
    """The config preferred of those that the walks downhill from the best starts end at; `plain` gives one to start
    from if none of them is legal."""
    costs = {start: descent.cost_if_legal(strategy, problem, target, start) for start in starts}
    legal = [start for start, cost in costs.items() if cost < math.inf]
    chosen = sorted(legal, key=costs.__getitem__)[:MOST_STARTS] or [plain(problem, target)]
    ends = [descent.settled(strategy, problem, target, start) for start in chosen]
    return min(ends, key=lambda config: strategy.cost(problem, config, target))


def packing_seconds(g: Gather, packed: Collection[str], target: Target) -> float:
    """Predicted for the kernel that packs operands; `g` is what the product reads.

    Besides that, the originals are read and this is written.
    """
    nbytes = sum(tensor.nbytes for name, tensor in (("x", g.x), ("w", g.w)) if name in packed)
    return LAUNCH_SECONDS + 2 * nbytes / target.attainable.bandwidth if packed else 0.0


def clusters_at_a_time(blocks: int, target: Target) -> int:
    return max(CLUSTERS_AT_A_TIME[blocks - 1] * target.sm_count // CLUSTERS_AT_A_TIME[0], 1)


def blocks(tiles: int, channel_tiles: int, resident: bool, target: Target) -> int:
    """Blocks that are launched, of which each goes through tiles that are that many apart: where its tiles of w stay,
    tiles of the same channels."""
    if not resident:
        return min(tiles, target.sm_count)
    return min(tiles, max(target.sm_count // channel_tiles, 1) * channel_tiles)


def check_warpgroups(c: BlockConfig) -> None:
    if c.consumers not in REGISTERS:
        raise ConfigError(f"consumers={c.consumers}: expected 1 to {max(REGISTERS)}, "
                          "which with the one that loads make up a block")  # fmt: skip
    if c.consumers % c.sharing:
        raise ConfigError(f"sharing={c.sharing}: expected a divisor of consumers={c.consumers}")


def check_columns(c: BlockConfig, dtype: DType) -> None:
    if c.block_n > MAX_BOX or c.block_n != wgmma_columns(c.block_n, dtype):
        multiples = "8, 16, 24 or a multiple of 16" if dtype.is_integer else "a multiple of 8"
        raise ConfigError(f"block_n={c.block_n}: expected {multiples} up to {MAX_BOX}, as wgmma makes")


def check_stages(t: BlockTiling) -> None:
    c = t.c
    if c.w_stages > t.w_tiles:
        raise ConfigError(f"w_stages={c.w_stages}: there are {t.w_tiles} tiles of w, which then stay")
    if c.w_stages == 1 and not t.resident:
        raise ConfigError(f"w_stages=1: expected at least 2 of the {t.w_tiles} tiles of w, one is filled while "
                          "another is multiplied")  # fmt: skip
    if t.mbarriers > MAX_MBARRIERS:
        raise ConfigError(f"{t.mbarriers} mbarriers of {c.x_stages} x_stages and {c.w_stages} w_stages: expected "
                          f"at most {MAX_MBARRIERS}")  # fmt: skip
    most = t.stores if t.mapped else 1
    if c.slabs > most:
        raise ConfigError(f"slabs={c.slabs}: expected at most {most}, a slab for each part of a tile whose results "
                          "TMA writes")  # fmt: skip


def check_instruction(c: BlockConfig) -> None:
    launched = LAUNCHED_REGISTERS[c.consumers]
    if c.block_n // 2 + INSTRUCTION_REGISTERS > launched:
        most = launched - INSTRUCTION_REGISTERS
        raise ConfigError(f"block_n={c.block_n}: one wgmma names {c.block_n // 2} sums, and of the {launched} "
                          f"registers that threads start with at most {most}")  # fmt: skip


def check_counts(t: BlockTiling, positions: int) -> None:
    if positions * t.channel_tiles > MAX_COUNT * ROWS or positions > MAX_COUNT:
        raise ConfigError(
            f"{positions} positions in {t.channel_tiles} tiles of channels: kernels count up to {MAX_COUNT}"
        )
