"""Raw results of a launch, put into words and lines of the emitted source."""

from __future__ import annotations

import dataclasses
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from convgen.simulator import abi
from convgen.simulator.lines import LineTable
from convgen.simulator.report import Counters, Fault, FaultKind, Report, Site, SourceLine, Triple
from convgen.simulator.rules import APART, RULES, mbarrier_text, signed
from convgen.simulator.units import Unit

MAX_FAULTS_REPORTED = 20
KINDS = tuple(FaultKind)


@dataclass(frozen=True)
class Findings:
    """Names for what a launch of `kernel` refers to by number."""

    lines: Callable[[], LineTable]
    unit: Unit
    kernel: str
    buffers: tuple[str, ...]
    shared_bytes: int
    timeout: float
    cluster: int = 1
    """Blocks of a cluster."""
    mbarriers: Sequence[abi.MbarrierState] = ()

    def report(self, launch: abi.Launch, faults: Sequence[abi.Fault], sites: Sequence[abi.Site], blocks: int) -> Report:
        totals = launch.totals
        counters = Counters(
            totals.flops,
            totals.barriers,
            dict(zip(abi.SPACES, totals.read_bytes, strict=True)),
            dict(zip(abi.SPACES, totals.written_bytes, strict=True)),
            dict(zip(abi.SPACES, totals.accesses, strict=True)),
            self._sites(sites),
        )
        return Report(self._faults(faults), counters, totals.blocks, blocks)

    def _place(self, pc: int, line: int) -> tuple[SourceLine, ...]:
        lines = self.unit.source.splitlines()
        numbers = self.lines().find(pc, self.unit.label) if pc else (line,) if line else ()
        if len(numbers) > 1 and "convgen_sim_" in lines[numbers[0] - 1]:
            numbers = numbers[1:]  # a wrapper's own call: its caller says more
        return tuple(SourceLine(n, lines[n - 1].strip()) for n in numbers) or (SourceLine(0, ""),)

    def _faults(self, raw: Sequence[abi.Fault]) -> tuple[Fault, ...]:
        merged: dict[tuple[FaultKind, tuple[SourceLine, ...]], Fault] = {}
        for fault in raw:
            kind, place = KINDS[fault.kind], self._place(fault.pc, fault.line)
            if fault.rule == APART and place == self._place(fault.address, 0):
                continue  # one instruction of the source, which the compiler has copied onto several paths
            if known := merged.get((kind, place)):
                merged[kind, place] = dataclasses.replace(known, count=known.count + fault.count)
                continue
            block, thread = _triple(fault.block), _triple(fault.thread)
            merged[kind, place] = Fault(kind, self.kernel, place, block, thread, self._detail(kind, fault), fault.count)
        return tuple(sorted(merged.values(), key=lambda fault: KINDS.index(fault.kind)))[:MAX_FAULTS_REPORTED]

    def _detail(self, kind: FaultKind, fault: abi.Fault) -> str:
        text = self._text(kind, fault)
        if kind is not FaultKind.DEADLOCK:
            return text
        states = [
            mbarrier_text(f"{b.offset}{self._of_rank(b.rank)}", b.phase, b.expected, b.pending, b.bytes)
            for b in self.mbarriers
        ]
        who = f"rank {fault.rank} of the cluster: " if self.cluster > 1 else ""
        return "; ".join([who + text, *states])

    def _text(self, kind: FaultKind, fault: abi.Fault) -> str:
        if fault.rule:
            place = f"shared memory offset {fault.offset}{self._of_rank(fault.object)}"
            value = signed(fault.address)
            return RULES[fault.rule].format(place=place, offset=fault.offset, value=value, wanted=fault.wanted)
        if kind is FaultKind.DIVERGENT_BARRIER:
            other = f"waits at line {fault.other_line}" if fault.other_line else "has exited"
            return f"waits while thread {fault.other_thread} (of the block's linear order) {other}"
        if kind is FaultKind.DIVERGENT_WARP:
            return f"lanes of mask {fault.object:#010x} execute it, all 32 must"
        if kind is FaultKind.DEADLOCK:
            return f"waits for lanes of mask {fault.object:#010x} that never come"
        if kind is FaultKind.CRASH:
            return f"{signal.Signals(fault.object).name} at address {fault.address:#x}"
        if kind is FaultKind.ENDLESS:
            return f"a block ran for {self.timeout:g} seconds (CONVGEN_SIM_TIMEOUT) and was stopped"
        if not fault.bytes:
            return "the block was stopped"
        # An atomic reads and writes: of memory that is not initialised, the reading is wrong.
        action = "write" if fault.is_write and kind is not FaultKind.UNINITIALISED else "read"
        text = f"{action} of {fault.bytes} bytes at {self._object(fault)}"
        if kind is FaultKind.RACE:
            other = _actor(fault.other_thread, self._of_rank(fault.other_rank) if fault.space else "")
            if abi.MAX_THREADS <= fault.other_thread < abi.NO_OBJECT:
                text += f", {other}"
            elif fault.is_pending:
                text += f", which an asynchronous copy of {other} may still write:"
                text += " its wait and a barrier must come between"
            else:
                text += f", which {other} accessed with no barrier between"
        if kind is FaultKind.PROXY:
            text += " by an asynchronous unit, of what threads wrote with no fence_proxy_async behind it"
        return text

    def _of_rank(self, rank: int) -> str:
        return f" of rank {rank}" if self.cluster > 1 else ""

    def _object(self, fault: abi.Fault) -> str:
        space = abi.SPACES[fault.space]
        if space == "shared":
            return f"shared memory offset {fault.offset} of {self.shared_bytes}{self._of_rank(fault.object)}"
        if fault.object == abi.NO_OBJECT:
            return f"address {fault.address:#x}, far from any buffer"
        names = self.unit.constants if space == "constant" else self.buffers
        return f"{space} {names[fault.object]} offset {fault.offset}"

    def _sites(self, raw: Sequence[abi.Site]) -> tuple[Site, ...]:
        sums: dict[tuple[tuple[SourceLine, ...], str, bool], list[int]] = {}
        for site in raw:
            key = (self._place(site.pc, 0), abi.SPACES[site.space], bool(site.is_write))
            values = [site.instructions, site.accesses, site.bytes, site.transactions, site.ideal_transactions]
            sums[key] = [a + b for a, b in zip(sums.get(key, [0] * 5), values, strict=True)]
        return tuple(Site(self.kernel, *key, *values) for key, values in sorted(sums.items()))


def _actor(number: int, of_rank: str) -> str:
    if number == abi.NO_OBJECT:
        return "another thread"
    if number == abi.KERNEL_BEFORE:
        return ("which a kernel before may still use: grid_dependency_wait must come between, and in each early kernel "
                "between the two")  # fmt: skip
    if number < abi.MAX_THREADS:
        return f"thread {number}{of_rank}"
    if number < abi.WARPGROUP_AGENTS:
        return "which a copy may still write: a wait for the mbarrier that it completes on must come between"
    if number == abi.OPAQUE_ACTOR:
        return "where an mbarrier lies"
    if number < abi.STORE_AGENTS:
        group = (number - abi.WARPGROUP_AGENTS) // abi.WARP
        return f"which wgmma of warpgroup {group} may still read: its wgmma_wait_group and an arrival must come between"
    return (
        f"which a copy to global memory by warp {number - abi.STORE_AGENTS} may still read: its "
        "cp_async_bulk_wait_group_read must come between"
    )


def _triple(index: abi.Index3) -> Triple:
    return (index.x, index.y, index.z)
