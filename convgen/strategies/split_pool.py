"""Pooling of large windows: threads that share one window."""

from __future__ import annotations

import math
from dataclasses import dataclass

from convgen.errors import ConfigError
from convgen.plan import Numerics, Placement, Plan
from convgen.problem import Pool
from convgen.space import Config, Space
from convgen.strategies import descent, operands, pooling, rules
from convgen.strategies.cost_model import Work, kernel_seconds, pieces
from convgen.target import Target

FEWEST_TAPS = 16
"""Of a window, below which there is nothing to share out."""

THREAD, LOAD, FOLD = 90, 10, 1.5
"""Instructions of a thread, of a load with the place of its tap, and of an element."""

LOAD_WAIT = 700
"""Cycles that loads from memory take to come, a round of them together."""


@dataclass(frozen=True)
class SplitPoolConfig(Config):
    """Results (channels-last: packs of channels) of a block, threads of a window, elements a load, loads together."""

    threads_result: int
    threads_window: int
    vector: int
    unroll: int


class SplitPool:
    """Global pooling and other large windows, each folded by several threads of a block."""

    name = "split_pool"
    summary = "average and max pooling over large windows, global ones among them: threads of a block share a window"
    calibrated = False
    solves = Pool
    template = "pool/split_pool.cu.j2"

    def why_not(self, problem: Pool, target: Target) -> str | None:
        if (taps := math.prod(problem.filter)) < FEWEST_TAPS:
            return f"a window of {taps} taps is too small to share out among threads, {FEWEST_TAPS} are the least"
        return pooling.not_covered(problem)

    def space(self, problem: Pool, target: Target) -> Space:
        return Space(
            SplitPoolConfig,
            {
                "threads_result": (1, 2, 4, 8, 16, 32, 64),
                "threads_window": (1, 2, 4, 8, 16, 32, 64, 128, 256),
                "vector": _vectors(problem),
                "unroll": (1, 2, 4, 8),
            },
        )

    def check(self, problem: Pool, config: SplitPoolConfig, target: Target) -> None:
        c = config
        rules.at_least_one(c)
        for field in ("threads_result", "threads_window"):
            value = getattr(c, field)
            if value & (value - 1):
                raise ConfigError(f"{field}={value}: expected a power of two, which the butterflies of a warp need")
        rules.block_fits((c.threads_result * c.threads_window, 1, 1), target)
        if c.threads_result * c.threads_window < target.warp:
            raise ConfigError(f"{c.threads_result * c.threads_window} threads: a block has at least a warp of 32")
        if c.vector not in _vectors(problem):
            raise ConfigError(f"vector={c.vector}: a load is of 1, 2, 4 or 8 neighbours, {pooling.PACK_BYTES} bytes at "
                              "most: of channels, or of taps where a window is all of x's plane; it must divide their "
                              "number")  # fmt: skip
        if c.unroll > 16:
            raise ConfigError(f"unroll={c.unroll}: a thread loads at most 16 packs together")
        rules.grid_fits(
            problem, pooling.blocks(problem, _an_image(problem, c), c.threads_result), "more threads_result"
        )

    def default(self, problem: Pool, target: Target) -> SplitPoolConfig:
        vector = max(_vectors(problem))
        results = 8 if pooling.is_channels_last(problem) else 4
        start = SplitPoolConfig(results, 32, vector, 4)
        settled: SplitPoolConfig = descent.settled(self, problem, target, start)
        return settled

    def cost(self, problem: Pool, config: SplitPoolConfig, target: Target) -> float:
        c, last = config, pooling.is_channels_last(problem)
        item = problem.dtype.itemsize
        packs = -(-math.prod(problem.filter) // (1 if last else c.vector))
        loads = -(-packs // c.threads_window)
        rounds = -(-loads // c.unroll)
        access, taps_apart = c.vector * item, c.vector * item
        if last:
            across = min(c.threads_result, target.warp)
            lanes = (across, access), (target.warp // across, problem.c * item)
        else:
            # Taps of a window follow one another in rows of x.
            row = problem.filter[-1] // (c.vector if _is_whole(problem) else 1)
            along = min(c.threads_window, target.warp)
            near = along if _is_whole(problem) else min(along, row)
            apart = (along // near, problem.spatial[-1] * item)
            lanes = (near, taps_apart), (target.warp // along * apart[0], max(apart[1], taps_apart))
        lines = pieces(access, *lanes)
        sectors = pieces(access, *lanes, size=32) * 32 / (access * target.warp)
        results = problem.typical_batch * _an_image(problem, c)
        overlap = max(math.prod(problem.filter) * math.prod(problem.out) / max(math.prod(problem.spatial), 1), 1.0)
        threads = c.threads_result * c.threads_window
        work = Work(
            blocks=-(-results // c.threads_result),
            threads=threads,
            warps=-(-threads // target.warp),
            registers=28 + c.unroll * c.vector * item / 4 + (c.vector if last else 1),
            shared_bytes=_shared_bytes(problem, c),
            instructions=THREAD + loads * (LOAD + c.vector * (FOLD + (item < 4))),
            wavefronts=loads * lines,
            waits=rounds * LOAD_WAIT + 20 * math.log2(c.threads_window) + 50,
            l2_bytes=problem.inputs[0].nbytes * overlap * max(sectors, 1.0),
            dram_bytes=problem.bytes,
        )
        return kernel_seconds(work, target)

    def lower(self, problem: Pool, config: SplitPoolConfig, target: Target) -> Plan:
        c, last = config, pooling.is_channels_last(problem)
        grid = (pooling.blocks(problem, _an_image(problem, c), c.threads_result), 1, 1)
        block = (c.threads_result * c.threads_window, 1, 1)
        name = pooling.name_of(problem, self.name, c)
        launch = operands.launch(name, pooling.operands_of(problem), grid, block, _shared_bytes(problem, c))
        own = {
            "axes": pooling.axes(problem),
            "threads_result": c.threads_result,
            "threads_window": c.threads_window,
            "vector": c.vector,
            "packed": not last and c.vector > 1,
            "unroll": c.unroll,
        }
        bytes_together = c.vector * problem.dtype.itemsize
        return Plan(
            problem, self.name, c, target,
            template=self.template,
            constants=pooling.constants(problem, c, launch) | own,
            kernels=(launch.kernel,),
            steps=() if pooling.is_empty(problem) else (launch,),
            alignment={} if c.vector == 1 else {"x": bytes_together} | ({"y": bytes_together} if last else {}),
            placements=(Placement("results", "registers", 4 * (c.vector if last else 1), "of a thread, in fp32"),),
            numerics=Numerics(steps=self._steps(problem, c)),
        )  # fmt: skip

    def _steps(self, problem: Pool, c: SplitPoolConfig) -> int:
        taps, last = math.prod(problem.filter), pooling.is_channels_last(problem)
        packs = -(-taps // (1 if last else c.vector))
        chain = -(-packs // c.threads_window) * (1 if last else c.vector)
        in_warp = max(min(32 // (c.threads_result if last else 1), c.threads_window), 1)
        return min(chain, taps) + in_warp.bit_length() + c.threads_window // in_warp


def _is_whole(problem: Pool) -> bool:
    """Windows take whole rows of x, and whole planes, so that their taps are one run in memory."""
    return (
        not pooling.is_channels_last(problem)
        and set(problem.out) == {1}
        and problem.filter == problem.spatial
        and not any((*problem.pad_lo, *problem.pad_hi))
        and set(problem.dilation) == {1}
    )


def _vectors(problem: Pool) -> tuple[int, ...]:
    if pooling.is_channels_last(problem):
        return pooling.vectors(problem.c, problem.dtype.itemsize)
    if not _is_whole(problem):
        return (1,)
    return pooling.vectors(math.prod(problem.filter), problem.dtype.itemsize)


def _an_image(problem: Pool, c: SplitPoolConfig) -> int:
    """Results of a batch element, packs of channels counting once; at least 1."""
    return max(problem.c // (c.vector if pooling.is_channels_last(problem) else 1), 1) * math.prod(problem.out)


def _shared_bytes(problem: Pool, c: SplitPoolConfig) -> int:
    last = pooling.is_channels_last(problem)
    in_warp = max(min(32 // (c.threads_result if last else 1), c.threads_window), 1)
    groups = c.threads_window // in_warp
    return 4 * groups * c.threads_result * (c.vector if last else 1) if groups > 1 else 0


STRATEGY = SplitPool()
