"""The measuring process: what it is asked, and how it answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from convgen.errors import ConvgenError, DeviceError
from convgen.problem import Problem
from convgen.processes import Announce, Serve
from convgen.target import Target
from convgen.tuner.builder import Backend, Build
from convgen.tuner.measurer import Finals, Info, Measurer, Verdict
from convgen.tuner.measurer_cuda import CudaMeasurer
from convgen.tuner.measurer_sim import SimMeasurer


@dataclass(frozen=True)
class Start:
    """Answered by Info, or by Refusal."""

    problem: Problem
    seed: int


@dataclass(frozen=True)
class Measure:
    """Answered by Verdict, or by Refusal."""

    build: Build
    incumbent: float | None


@dataclass(frozen=True)
class Compare:
    """Answered by Finals."""

    builds: Sequence[Build]
    rounds: int


@dataclass(frozen=True)
class Ask:
    """Answered by Info."""


@dataclass(frozen=True)
class Refusal:
    """The device, or this problem on it, cannot be measured."""

    reason: str


def measuring_server(target: Target, backend: Backend, device: int) -> Serve:
    """Answers the messages above, one problem at a time, beginning with a Start."""
    measurer: Measurer | None = None

    def serve(message: Any, announce: Announce) -> Info | Refusal | Verdict | Finals:
        nonlocal measurer
        match message:
            case Start(problem, seed):
                try:
                    if measurer is None:
                        measurer = SimMeasurer(target) if backend == "sim" else CudaMeasurer(target, device)
                    measurer.start(problem, seed)
                except (ConvgenError, MemoryError) as error:
                    return Refusal(f"{problem} cannot be measured: {str(error) or type(error).__name__}")
                return measurer.info()
            case Measure(build, incumbent) if measurer is not None:
                try:
                    return measurer.measure(build, incumbent, announce)
                except DeviceError as error:
                    return Refusal(str(error))
            case Compare(builds, rounds) if measurer is not None:
                return measurer.finals(builds, rounds, announce)
            case Ask() if measurer is not None:
                return measurer.info()
        raise TypeError(f"{type(message).__name__} out of turn")

    return serve
