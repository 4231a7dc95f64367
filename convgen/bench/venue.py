"""The GPU of this process as a venue. See `session.Venue`."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from convgen.bench import frontend
from convgen.bench.card import Answering, Card, Kernel
from convgen.bench.contest import sentence
from convgen.bench.judge import Judge, Verdict, admitted
from convgen.bench.machine import provenance
from convgen.bench.peers import Refused, TorchPeers
from convgen.bench.settling import FROZEN, Lineup
from convgen.compiler import Binary, Job, compile_cuda, compile_many
from convgen.errors import CompileError, ConvgenError, DeviceError
from convgen.lowering import lower
from convgen.plan import Numerics, Plan
from convgen.problem import Conv, Problem
from convgen.render import render
from convgen.runtime.nvml import Nvml
from convgen.target import Target
from convgen.toolkit import INSTALL
from convgen.tuner.decide import Decision
from convgen.verify.oracle import fixed


class GpuVenue:
    """CuPy's current device, one stream, and the peers that are installed."""

    def __init__(self, target: Target, against: Collection[str], seed: int = 0) -> None:
        """Raises DeviceError without CuPy or a usable GPU. Peers that are not there are told of by `peers_left_out`."""
        try:
            import cupy

            self._cupy = cupy
            self._stream = cupy.cuda.Stream(non_blocking=True)
        except ImportError as error:
            raise DeviceError(f"CuPy is not installed: {INSTALL}") from error
        except Exception as error:  # CuPy has a different error for each thing that can be missing
            raise DeviceError(f"no usable GPU: {error}") from error
        self.target = target
        self._seed = seed
        self._built: dict[tuple[str, str, str], tuple[Plan, Binary | CompileError]] = {}
        self._peers: TorchPeers | None = None
        self.peers_left_out = ""
        """Why there are no peers though they were asked for."""
        if against:
            try:
                self._peers = TorchPeers(self._stream, against)
            except ImportError:
                self.peers_left_out = "PyTorch is not installed, so the peers are left out"
            except RuntimeError as error:
                self.peers_left_out = f"{error}, so the peers are left out"
        self._nvml = Nvml(cupy.cuda.runtime.deviceGetPCIBusId(cupy.cuda.Device().id))
        versions = {} if self._peers is None else self._peers.versions
        self.meta = provenance(self._nvml, versions) | ({} if self._peers is None else self._peers.settings)
        self.driver = self._nvml.driver or ""
        self.peer_version = f"cuDNN {versions.get('cudnn')} (PyTorch {versions.get('torch')})" if versions else ""

    def clocks(self) -> Mapping[str, float] | None:
        """SM and memory clock, temperature, power; None if they cannot be read."""
        return self._nvml.reading()

    def is_alive(self) -> bool:
        """Whether the device still answers."""
        try:
            self._cupy.cuda.Device().synchronize()
        except Exception:
            return False
        return True

    def prebuild(self, wanted: Sequence[tuple[Problem, Decision]]) -> None:
        """Compile ahead, on all cores, in place of what was compiled ahead before."""
        self._built.clear()
        plans = [(_key(problem, d), lower(problem, d.strategy, d.config, self.target)) for problem, d in wanted]
        binaries = compile_many([Job(render(plan), self.target, name=f"{plan.name}.cu") for _, plan in plans])
        self._built.update({key: (plan, binary) for (key, plan), binary in zip(plans, binaries, strict=True)})

    @contextlib.contextmanager
    def open(self, problem: Problem, ours: Mapping[str, Decision]) -> Iterator[tuple[Card, Lineup]]:
        """See `session.Venue`. Memory that is short is tried again with fewer buffers."""
        judge = Judge(problem.with_sizes(fixed(problem).sizes), self._cupy, self._seed)
        with contextlib.ExitStack() as stack:
            for l2_bytes in (self.target.l2_bytes, 0):
                self._release()
                try:
                    card, lineup = stack.enter_context(self._filled(problem, judge, ours, l2_bytes))
                    break
                except Exception as error:
                    if not _is_out_of_memory(error) or not l2_bytes:
                        raise
            yield card, lineup

    @contextlib.contextmanager
    def _filled(
        self, problem: Problem, judge: Judge, ours: Mapping[str, Decision], l2_bytes: int
    ) -> Iterator[tuple[Card, Lineup]]:
        kernels: dict[str, Kernel] = {}
        try:
            card = Card(judge, l2_bytes, self._stream)
            yield card, self._lineup(problem, judge, card, ours, kernels)
        finally:
            for kernel in kernels.values():
                with contextlib.suppress(ConvgenError):
                    kernel.close()

    def _lineup(
        self, problem: Problem, judge: Judge, card: Card, ours: Mapping[str, Decision], kernels: dict[str, Kernel]
    ) -> Lineup:
        peers: dict[str, Any] = {}
        verdicts: dict[str, Verdict] = {}
        refused: dict[str, str] = {}

        def judged(name: str, contestant: Answering, numerics: Numerics) -> bool:
            try:
                verdicts[name] = judge.verdict(contestant.answers(judge.problem.outputs), numerics)
            except Exception as error:  # another library's: it may raise anything
                if _is_out_of_memory(error) and card.sets > 2:
                    raise
                refused[name] = sentence(error)
            return name in verdicts

        for name, decision in ours.items():
            try:
                plan, binary = self._build(problem, decision)
                kernel = card.kernel(name, plan, binary, frozen=name == FROZEN)
            except ConvgenError as error:
                refused[name] = sentence(error)
                continue
            if kernel is not None and judged(name, kernel, plan.numerics):
                kernels[name] = kernel
        for peer in self._asked(judge.problem, card):
            if isinstance(peer, Refused):
                refused[peer.name] = peer.reason
            elif judged(peer.name, peer, admitted(judge.problem)):
                peers[peer.name] = peer
        caches = "cold" if card.is_cold(self.target.l2_bytes) else "warm"
        return Lineup(dict(kernels), peers, verdicts, refused, caches)

    def _asked(self, problem: Problem, card: Card) -> Iterator[Any]:
        if self._peers is None:
            return
        sets = card.inputs()
        yield from self._peers.contestants(problem, sets)
        if "cudnn" in self._peers.against and isinstance(problem, Conv):
            swept = frontend.contestant(problem, self._peers, sets)
            if swept is not None:
                yield swept

    def _build(self, problem: Problem, decision: Decision) -> tuple[Plan, Binary]:
        key = _key(problem, decision)
        if key not in self._built:
            plan = lower(problem, decision.strategy, decision.config, self.target)
            self._built[key] = plan, compile_cuda(render(plan), self.target, name=f"{plan.name}.cu")
        plan, binary = self._built[key]
        if isinstance(binary, CompileError):
            raise binary
        return plan, binary

    def _release(self) -> None:
        """Give the last problem's memory back to the device, from one library's pool to be had by the other."""
        if self._peers is not None:
            self._peers.release()
        self._cupy.get_default_memory_pool().free_all_blocks()


def _key(problem: Problem, decision: Decision) -> tuple[str, str, str]:
    return str(problem), decision.strategy.name, str(decision.config)


def _is_out_of_memory(error: BaseException) -> bool:
    """CuPy's and PyTorch's errors for it have one name, and different bases."""
    return isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
