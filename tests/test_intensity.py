"""The counters of emitted kernels equal the closed forms of the teaching texts.

A single-channel image, a square filter of radius r = 2, blocks of O x O results, no padding: every block is interior.
FLOP per byte read: 2 / 8 from global memory alone, 2 / 4 with the filter in constant memory, and tiled
2 O^2 (2r+1)^2 / (4 (O+2r)^2), which tends to (2r+1)^2 / 2 and not to (2r+1)^2. A pixel of the tile is used
O^2 (2r+1)^2 / (O+2r)^2 times.
"""

from __future__ import annotations

import numpy as np
import pytest

from convgen.lowering import lower
from convgen.plan import Plan
from convgen.problem import Conv
from convgen.render import render
from convgen.runtime import sim
from convgen.simulator import Counters
from convgen.strategies import get_strategy
from convgen.strategies.halo_tiling import HaloTiledConfig
from convgen.target import Target

TARGET = Target.preset("h200")
SIDE, RADIUS = 128, 2
TAPS = (2 * RADIUS + 1) ** 2
TEXTBOOK = (
    "along_x=column,threads_channel=1,threads_column=128,tile_b=1,tile_channel=1,tile_position=1,vector=1,"
    "filter={filter},input=global,split_q=1,split_taps=1"
)
TILED = (
    "threads_x={o},threads_y={o},threads_channel=1,tile_w=1,tile_h=1,tile_d=1,tile_channel=1,chunk=1,vector=1,"
    "filter=constant,min_blocks=1"
)


def count(strategy: str, config: str) -> Counters:
    problem = Conv.of("conv2d", n=1, c=1, k=1, spatial=SIDE + 2 * RADIUS, filter=2 * RADIUS + 1)
    found = get_strategy(strategy)
    default = found.default(problem, TARGET)
    counters = counted(lower(problem, found, type(default).parse(config, default), TARGET))
    assert counters.flops == 2 * SIDE**2 * TAPS
    return counters


def counted(plan: Plan) -> Counters:
    [program] = sim.build([plan], [render(plan)], sim.Mode.COUNT)
    rng = np.random.default_rng(0)
    inputs = {t.name: rng.standard_normal(t.shape).astype(np.float32) for t in plan.problem.inputs}
    result = program.run(inputs, {"y": np.zeros(plan.problem.outputs[0].shape, np.float32)})
    result.require_clean()
    return result.report.counters


@pytest.mark.parametrize(("filter_home", "intensity"), [("global", 0.25), ("constant", 0.5)])
def test_textbook_kernel(filter_home: str, intensity: float) -> None:
    assert count("direct", TEXTBOOK.format(filter=filter_home)).intensity == pytest.approx(intensity, rel=1e-12)


def test_a_whole_image_in_one_block() -> None:
    """README's example: each of 2 blocks reads 3 channels of 32 x 32; each of its 256 threads 8 biases, 4 times."""
    problem = Conv.parse("conv2d n=2 c=3 in=32x32 k=8 filter=3x3 pad=1 epilogue=bias+relu")
    config = HaloTiledConfig.parse(
        "threads_x=32,threads_y=8,threads_channel=1,tile_w=1,tile_h=4,tile_d=1,tile_channel=8,"
        "chunk=3,vector=4,filter=constant,min_blocks=1"
    )
    counters = counted(lower(problem, get_strategy("halo_tiled"), config, TARGET))
    assert counters.flops == 2 * 2 * 8 * 32**2 * 3 * 9
    assert counters.read_bytes["global"] == 2 * 4 * (3 * 32**2 + 256 * 8 * 4)
    assert (counters.barriers, counters.intensity) == (2, pytest.approx(108 / 11))


@pytest.mark.parametrize(("o", "intensity", "reuse"), [(16, 8.0, 16.0), (32, 9.8765, 19.753)])
def test_halo_tile(o: int, intensity: float, reuse: float) -> None:
    counters = count("halo_tiled", TILED.format(o=o))
    assert counters.intensity == pytest.approx(intensity, rel=1e-4)
    assert counters.read_bytes["shared"] / counters.read_bytes["global"] == pytest.approx(reuse, rel=1e-4)
    assert counters.barriers == (SIDE // o) ** 2
    assert RADIUS < intensity < TAPS / 2


@pytest.mark.parametrize("strategy", ["direct", "halo_tiled", "cache_halo"])
def test_the_constant_filter_is_read_without_replays(strategy: str) -> None:
    counters = count(strategy, "filter=constant")
    sites = [s for s in counters.sites if s.space == "constant"]
    assert sites
    assert all(s.transactions == s.ideal for s in sites)
