"""A strategy, a decider and a dispatcher for the fake GPU, whose kernels only multiply."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import hand_plans
import numpy as np
import pytest
from fake_gpu import Fake, FakeTensor, installed, tensor

from convgen.api import dispatch, functions
from convgen.api.decision import Chosen
from convgen.compiler import Binary
from convgen.errors import ConfigError
from convgen.plan import Buffer, Plan
from convgen.problem import Conv
from convgen.space import Config, Space
from convgen.target import Target

H200 = Target.preset("h200")
LENGTH = hand_plans.LENGTH


@dataclass(frozen=True)
class ByHandConfig(Config):
    workspace: int = 0
    """Bytes beside those of the plan."""


@dataclass
class ByHand:
    """y = x * w, by the plan of `hand_plans.every_step`."""

    solves = Conv
    template = "none"
    calibrated = True
    name: str = "by_hand"
    summary: str = ""
    lowered: list[ByHandConfig] = field(default_factory=list)

    def why_not(self, problem: Conv, target: Target) -> str | None:
        return None

    def space(self, problem: Conv, target: Target) -> Space:
        return Space(ByHandConfig, {"workspace": (0, 1024)})

    def check(self, problem: Conv, config: Any, target: Target) -> None:
        if config.workspace < 0:
            raise ConfigError(f"workspace={config.workspace}: expected at least 0")

    def default(self, problem: Conv, target: Target) -> ByHandConfig:
        return ByHandConfig()

    def cost(self, problem: Conv, config: Any, target: Target) -> float:
        return 1.0

    def lower(self, problem: Conv, config: Any, target: Target) -> Plan:
        self.lowered.append(config)
        plan = hand_plans.every_step(target, n=str(problem.n))
        buffers = (*plan.workspace, Buffer("more", config.workspace))
        return replace(plan, problem=problem, strategy=self.name, config=config, workspace=buffers)


BY_HAND = ByHand()


@dataclass
class FakeDecider:
    """Answers what it is told to; tuning puts `winner` first."""

    ranking: list[Any]
    winner: Any = None
    asked: int = 0
    tuned: list[tuple[str, int, float | None, int | None]] = field(default_factory=list)
    trouble: Exception | None = None

    def ranked(self, problem: Conv, target: Target) -> Iterator[Any]:
        self.asked += 1
        if self.trouble is not None:
            raise self.trouble
        yield from self.ranking

    def tune(self, problem: Conv, target: Target, device: int, *, time_limit: float | None, trials: int | None) -> None:
        self.tuned.append((str(problem), device, time_limit, trials))
        if self.trouble is not None:
            raise self.trouble
        self.ranking.insert(0, self.winner)


def by_hand(workspace: int = 0, origin: str = "predicted") -> Chosen:
    return Chosen(BY_HAND, ByHandConfig(workspace), origin)


@dataclass
class Rig:
    """The fake GPU behind the package's functions."""

    fake: Fake
    decider: FakeDecider
    compiled: list[ByHandConfig] = field(default_factory=list)
    compile_hook: Callable[[], None] = lambda: None

    @property
    def calls(self) -> list[tuple[Any, ...]]:
        return self.fake.driver.calls


@contextlib.contextmanager
def rig() -> Iterator[Rig]:
    with installed() as fake, pytest.MonkeyPatch.context() as patch:
        fake.driver.current = 100
        made = Rig(fake, FakeDecider([by_hand()]))

        def compile_cuda(plan: Plan, target: Target, name: str) -> Binary:
            made.compile_hook()
            made.compiled.append(plan.config)  # type: ignore[arg-type]
            return Binary("sm_90a", b"\x7fELF", "", "", (), "key", "NVRTC", 0.0)

        patch.setattr(dispatch, "render", lambda plan: plan)
        patch.setattr(dispatch, "compile_cuda", compile_cuda)
        patch.setattr(dispatch, "target_of", lambda device: H200)
        patch.setattr(functions, "DISPATCHER", dispatch.Dispatcher(lambda: made.decider))
        yield made


def x_of(n: int = 4, seed: int = 0, offset: int = 0) -> FakeTensor:
    return tensor(np.random.default_rng(seed).standard_normal((n, 1, LENGTH), dtype=np.float32), offset)


def w_of(factor: float) -> FakeTensor:
    return tensor(np.full((1, 1, 1), factor, np.float32))
