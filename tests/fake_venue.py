"""A benchmark's venue without a GPU: NumPy in place of CuPy, a clock that work moves on, kernels that the oracle stands
in for, and, where it is installed, PyTorch on the CPU in place of cuDNN."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import types
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import pytest
from fake_clock import FakeStream, fake_cupy

from convgen.bench import card, peers, venue
from convgen.bench.venue import GpuVenue
from convgen.binding import preparation
from convgen.plan import Plan
from convgen.reference import decode, encode, reference
from convgen.target import Target

TARGET = dataclasses.replace(Target.preset("h200"), l2_bytes=1 << 16)
"""A GPU whose L2 is so small that a few sets of buffers pass it."""

PREPARED_SECONDS = 3e-6
"""What a stand-in kernel spares when its weights are prepared."""


class Gpu(FakeStream):
    ptr = 7


class Program:
    """Computes by the oracle, in as much of the stream's time as its strategy takes."""

    def __init__(self, plan: Plan, of: StandIn) -> None:
        self.plan = plan
        self.preparation = preparation(plan)
        self._of = of

    def run(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any], *, stream: Any, prepared: Any = None) -> None:
        key = (self.plan.strategy, str(self.plan.config))
        seconds = self._of.seconds.get(key, self._of.seconds.get(self.plan.strategy, 20e-6))
        self._of.gpu.work(self.plan.strategy, seconds - (PREPARED_SECONDS if prepared is not None else 0.0))()
        if self._of.gpu._captured is not None:
            return
        problem = self.plan.problem
        stored = dict(inputs) if prepared is None else {**inputs, "w": prepared}
        values = {spec.name: decode(stored[spec.name], spec.dtype) for spec in problem.inputs}
        [spec] = problem.outputs
        if problem.accumulate:
            values[spec.name] = decode(outputs[spec.name], spec.dtype)
        outputs[spec.name][...] = encode(reference(problem, values), spec.dtype)
        if {self.plan.strategy, str(self.plan.config)} & self._of.wrong:
            outputs[spec.name].ravel()[0] += 100

    def prepare(self, weights: Any, *, stream: Any) -> Any:
        return weights

    def close(self) -> None:
        self._of.closed += 1


class StandIn:
    """`seconds` of one call by strategy, by (strategy, config) or by peer; `wrong` strategies or configs miss an
    element."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.gpu = Gpu()
        self.seconds: dict[Any, float] = {}
        self.wrong: set[str] = set()
        self.closed = 0
        self.compiled: list[int] = []
        self._patch = monkeypatch
        xp = fake_cupy()
        xp.__getattr__ = lambda name: getattr(np, name)  # type: ignore[method-assign]
        pool = types.SimpleNamespace(free_all_blocks=lambda: None)
        device = types.SimpleNamespace(id=0, synchronize=self.gpu.synchronize)
        xp.get_default_memory_pool = lambda: pool  # type: ignore[attr-defined]
        xp.cuda.Device = lambda: device
        xp.cuda.Stream = lambda non_blocking: self.gpu
        xp.cuda.using_allocator = lambda allocate: contextlib.nullcontext()
        xp.cuda.runtime = types.SimpleNamespace(
            runtimeGetVersion=lambda: 13000,
            getDeviceProperties=lambda number: {"name": b"NVIDIA Stand-in"},
            deviceGetPCIBusId=lambda number: "0000:00:00.0",
            graphLaunch=lambda graph, stream: graph.launch(self.gpu),
        )
        monkeypatch.setitem(sys.modules, "cupy", xp)
        monkeypatch.setattr(venue, "Nvml", lambda bus_id: types.SimpleNamespace(driver="1.2", reading=self._clocks))
        monkeypatch.setattr(venue, "compile_many", self._compile_many)
        monkeypatch.setattr(card, "load", lambda plan, binary: Program(plan, self))

    def venue(self, against: Collection[str] = ()) -> GpuVenue:
        return GpuVenue(TARGET, against)

    def use_torch(self) -> None:
        """PyTorch on the CPU; what it is asked takes as long as `seconds` says of the memory format."""
        torch = pytest.importorskip("torch")
        gpu, original = self.gpu, peers.call_of

        class Graph:
            def capture_begin(self, capture_error_mode: str) -> None:
                gpu.begin_capture()

            def capture_end(self) -> None:
                self._graph = gpu.end_capture()

            def raw_cuda_graph_exec(self) -> Any:
                return self._graph

        def timed(form: Any, module: Any, like: Any) -> Any:
            call = original(form, module, like)
            seconds = self.seconds.get(form.layout.text(form.nd), 30e-6)

            def work(tensors: Any) -> Any:
                gpu.work("peer", seconds)()
                return call(tensors)

            return work

        self._patch.setattr(torch.backends.cudnn, "version", lambda: 91900)
        self._patch.setattr(peers, "DEVICE", "cpu")
        self._patch.setattr(peers, "call_of", timed)
        for name, value in (
            ("is_available", lambda: True),
            ("ExternalStream", lambda pointer: pointer),
            ("stream", lambda stream: contextlib.nullcontext()),
            ("synchronize", lambda: None),
            ("empty_cache", lambda: None),
            ("CUDAGraph", Graph),
        ):
            self._patch.setattr(torch.cuda, name, value)

    def _compile_many(self, jobs: Any) -> list[Any]:
        self.compiled.append(len(jobs))
        return [object() for _ in jobs]

    def _clocks(self) -> dict[str, float]:
        return {"sm_mhz": 1980.0, "celsius": 40.0}
