"""How long a kernel takes, from what it asks of a GPU: the part of a cost model that all strategies share.

The slowest resource sets the time: the multiprocessors' issue slots, their L1, the L2, device memory, or the chain of
instructions of one thread where too few run beside it. What they do not overlap is counted by the root of the sum of
their squares. Constants are measured on an H200 (tests/tables) and scale with the target's rates.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from convgen.target import Target

LAUNCH_SECONDS = 2e-6
CONSTANT_COPY_SECONDS = 3e-6
"""Filling constant memory before the launch, and the wait for it."""

WAVEFRONT_CYCLES = 0.5
"""Of a multiprocessor's L1, for each line of 128 bytes that a warp's access touches."""

L2_BYTES_PER_CYCLE = 32
"""To each multiprocessor, where all of them read."""

ISSUE_CYCLES = 2.5
"""From an instruction of a warp to its next, with the multiprocessor to itself."""

SPILL = 1.8
"""Instructions added where registers are too few, for each share of those there are that is missing."""

BLOCK_CYCLES = 300
"""To start a block and to end it."""

LINE, SECTOR = 128, 32
FEWEST_REGISTERS, REGISTER_STEP = 16, 8


@dataclass(frozen=True, slots=True)
class Work:
    """What one launch asks of a GPU. `instructions`, `wavefronts` and `waits` are those of one warp."""

    blocks: float
    threads: int
    """Of a block."""
    warps: float
    """Of a block, with at least one thread that has work."""
    registers: float
    """That a thread could use."""
    shared_bytes: int
    """Of a block."""
    instructions: float
    wavefronts: float
    """Lines of L1 or of shared memory, one after the other."""
    waits: float
    """Cycles spent on loads that nothing else of the thread hides."""
    l2_bytes: float
    dram_bytes: float
    least_blocks: int = 1
    """Blocks that are to fit a multiprocessor: what the compiler budgets registers for."""


def kernel_seconds(work: Work, target: Target) -> float:
    """Predicted seconds of a launch, its overhead included."""
    resident = resident_blocks(work, target)
    per_sm = work.blocks / target.sm_count
    busiest = math.ceil(per_sm)
    # Many blocks even out, since an idle multiprocessor takes the next; few leave some with one more than others.
    taken = busiest if busiest <= 2 * resident else per_sm + 0.5
    rounds = math.ceil(busiest / resident) if busiest <= 4 * resident else busiest / resident + 0.5

    missing = max(work.registers / _most_registers(work, target) - 1, 0.0)
    instructions = work.instructions * (1 + SPILL * missing)
    warps_a_cycle = target.peak.fp32 / (2 * target.warp * target.sm_count * target.clock_hz)
    issue = taken * work.warps * instructions / warps_a_cycle
    l1 = taken * work.warps * work.wavefronts * WAVEFRONT_CYCLES
    chain = rounds * (instructions * ISSUE_CYCLES + work.waits + BLOCK_CYCLES)
    l2 = work.l2_bytes / (L2_BYTES_PER_CYCLE * target.sm_count)
    dram = work.dram_bytes / target.attainable.bandwidth * target.clock_hz
    return math.hypot(issue, l1, chain, l2, dram) / target.clock_hz + LAUNCH_SECONDS


def resident_blocks(work: Work, target: Target) -> int:
    """Blocks that a multiprocessor holds at a time; at least one."""
    warps = -(-work.threads // target.warp)
    registers = max(math.ceil(work.registers / REGISTER_STEP) * REGISTER_STEP, FEWEST_REGISTERS)
    registers = min(registers, _most_registers(work, target))
    limits = [
        target.max_blocks_per_sm,
        target.max_threads_per_sm // (warps * target.warp),
        target.registers_per_sm // (registers * warps * target.warp),
    ]
    if work.shared_bytes:
        limits.append(target.shared_per_sm // (work.shared_bytes + target.shared_reserved))
    return max(min(limits), 1)


def _most_registers(work: Work, target: Target) -> int:
    """Registers that the compiler lets a thread use."""
    return min(target.registers_per_sm // (work.threads * work.least_blocks), target.max_registers_per_thread)


def pieces(access: int, *lanes: tuple[float, float], size: int = LINE) -> float:
    """Pieces of `size` bytes that a warp's access of `access` bytes a lane touches; less than one counts as one.

    `lanes` are (lanes, bytes from one to the next) along each direction the lanes of a warp go; 0 bytes is the same
    address.
    """
    covered, apart = float(access), 1.0
    for distance, count in sorted((abs(distance), count) for count, distance in lanes if count > 1 and distance):
        if apart == 1 and distance < max(covered, size):
            covered += distance * (count - 1)
        else:
            apart *= count
    return apart * max(covered / size, 1.0)
