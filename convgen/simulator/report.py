"""What the simulator found: faults, counters and how much was run."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field


class FaultKind(enum.Enum):
    """In the order of `FaultKind` in src/launch.h: causes before what they may lead to."""

    STACK_OVERFLOW = "stack overflow"
    DIVERGENT_BARRIER = "divergent barrier"
    DIVERGENT_WARP = "divergent warp instruction"
    DEADLOCK = "deadlock"
    ENDLESS = "no end"
    OUT_OF_BOUNDS = "out of bounds"
    MISALIGNED = "misaligned"
    READ_ONLY = "write to read-only memory"
    TRAP = "trap"
    CRASH = "crash"
    MBARRIER = "misuse of an mbarrier"
    BARRIER = "misuse of a barrier"
    CLUSTER = "misuse of a cluster"
    REGISTERS = "misuse of setmaxnreg"
    COPY = "illegal copy"
    WGMMA = "illegal wgmma"
    IN_FLIGHT = "use of registers in flight"
    PROXY = "missing proxy fence"
    RACE = "race"
    UNINITIALISED = "uninitialised read"


Triple = tuple[int, int, int]


@dataclass(frozen=True, order=True)
class SourceLine:
    """A line of the emitted source; number 0 if it is not known."""

    number: int
    text: str

    def __str__(self) -> str:
        return f"line {self.number}: {self.text}" if self.number else "unknown line"


@dataclass(frozen=True)
class Fault:
    """The first fault of its kind at its place, and how often it came.

    `place` is the line of the fault, then those of the inlined calls around it, outwards. `detail` says what was
    accessed or waited for.
    """

    kind: FaultKind
    kernel: str
    place: tuple[SourceLine, ...]
    block: Triple
    thread: Triple
    detail: str
    count: int = 1

    @property
    def lines(self) -> tuple[int, ...]:
        return tuple(line.number for line in self.place)

    def __str__(self) -> str:
        times = f" ({self.count} times)" if self.count > 1 else ""
        who = f"thread {self.thread} of block {self.block}"
        head = f"{self.kind.value}: {self.detail}, in {self.kernel} by {who}{times}"
        return "\n    ".join([head, *map(str, self.place)])


@dataclass(frozen=True)
class Site:
    """What the accesses of one place in the source asked of one memory space.

    A transaction is a 32-byte sector (global), a wavefront over 32 banks (shared) or a distinct address
    (constant, texture) of one warp instruction; `ideal` is the least number for the bytes asked. `place` as in Fault.
    The k-th executions by a warp's lanes between two barriers count as one instruction: in a loop that some lanes
    skip now and then (at an image's border) that is an approximation.
    """

    kernel: str
    place: tuple[SourceLine, ...]
    space: str
    is_write: bool
    instructions: int
    accesses: int
    bytes: int
    transactions: int
    ideal: int

    @property
    def lines(self) -> tuple[int, ...]:
        return tuple(line.number for line in self.place)

    @property
    def efficiency(self) -> float:
        """ideal / transactions: 1 if coalesced, free of bank conflicts, or warp-uniform."""
        return self.ideal / self.transactions if self.transactions else 1.0


@dataclass(frozen=True)
class Counters:
    """What the run did. Bytes are those threads asked for, per memory space; `footprint` distinct bytes per buffer."""

    flops: int = 0
    barriers: int = 0
    read_bytes: Mapping[str, int] = field(default_factory=dict)
    written_bytes: Mapping[str, int] = field(default_factory=dict)
    accesses: Mapping[str, int] = field(default_factory=dict)
    sites: tuple[Site, ...] = ()
    footprint: Mapping[str, int] = field(default_factory=dict)

    @property
    def intensity(self) -> float:
        """FLOP per byte read from global memory by threads."""
        read = self.read_bytes.get("global", 0)
        return self.flops / read if read else float("inf")

    def __add__(self, other: Counters) -> Counters:
        return Counters(
            self.flops + other.flops,
            self.barriers + other.barriers,
            _sum(self.read_bytes, other.read_bytes),
            _sum(self.written_bytes, other.written_bytes),
            _sum(self.accesses, other.accesses),
            self.sites + other.sites,
            {**self.footprint, **other.footprint},
        )


@dataclass(frozen=True)
class Report:
    """The outcome of one launch, or of a program's launches together."""

    faults: tuple[Fault, ...] = ()
    counters: Counters = Counters()
    blocks_run: int = 0
    blocks: int = 0

    @property
    def coverage(self) -> float:
        """Fraction of the blocks that were run."""
        return self.blocks_run / self.blocks if self.blocks else 1.0

    def __add__(self, other: Report) -> Report:
        return Report(
            self.faults + other.faults,
            self.counters + other.counters,
            self.blocks_run + other.blocks_run,
            self.blocks + other.blocks,
        )


def _sum(a: Mapping[str, int], b: Mapping[str, int]) -> dict[str, int]:
    return {key: a.get(key, 0) + b.get(key, 0) for key in {**a, **b}}
