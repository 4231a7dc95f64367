"""What tests of the Hopper strategies share: a plain config, a layer, and the simulator."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from conformance import (
    TARGET,
)

from convgen.lowering import lower
from convgen.problem import Conv, Layout
from convgen.reference import make_inputs
from convgen.reference.rounding import encode
from convgen.render import render
from convgen.runtime.physical import stored_dtype
from convgen.runtime.sim import SimResult, build
from convgen.simulator import Copies, Mode
from convgen.space import Config
from convgen.strategies import Strategy
from convgen.strategies.wgmma_implicit_gemm import STRATEGY
from convgen.strategies.wgmma_tiling import PATCHES, PLANES, RUNS, WgmmaConfig
from convgen.target import Target
from convgen.verify import Case, Settings, verify_cases

FEW = dataclasses.replace(TARGET, sm_count=7)
"""So that every block goes through several tiles."""

EITHER_LAYOUT = tuple(patches for patches in PATCHES if patches not in (PLANES, RUNS))
LAYOUTS = pytest.mark.parametrize("layout", Layout)
BASE = WgmmaConfig("square", 1, 32, 2, 1, 3, 3, 1, 1, 1)
LAYER = "conv2d n=2 c=72 in=17x12 k=40 filter=3x3 pad=1 dtype=fp16 layout=nhwc"


def config(**changes: int | str) -> WgmmaConfig:
    return dataclasses.replace(BASE, **changes)


def require_right(problem: str, config: WgmmaConfig | None, target: Target = FEW, check: str = "sanitize") -> None:
    [result] = verify_cases([Case(Conv.parse(problem), STRATEGY, config)], Settings(target, check=check))
    assert result.status == "ok", result.reason


def run(
    problem: Conv,
    config: Config,
    target: Target,
    mode: Mode = Mode.COUNT,
    copies: Copies = Copies.LATE,
    strategy: Strategy = STRATEGY,
) -> tuple[SimResult, Any]:
    """The run of the kernels on small integers, and their result."""
    plan = lower(problem, strategy, config, target)
    inputs = {
        name: encode(values, problem.tensor(name).dtype)
        for name, values in make_inputs(problem, 0, "small_integers").items()
    }
    [output] = problem.outputs
    result = {output.name: np.zeros(output.shape, stored_dtype(output))}
    ran = build([plan], [render(plan)], mode)[0].run(inputs, result, copies=copies)
    return ran, result[output.name]
