"""The cost models: the parts they share against counting by hand, and what they predict against the clock."""

from __future__ import annotations

import dataclasses
import itertools
import math
from pathlib import Path

import numpy as np
import pytest
from conv_strategies import CONV_STRATEGIES
from replay import TABLES, geomean, read_table

from convgen.errors import ConfigError
from convgen.problem import Conv
from convgen.space import Config
from convgen.strategies import Strategy
from convgen.strategies.cost_model import LAUNCH_SECONDS, Work, kernel_seconds, pieces, resident_blocks
from convgen.strategies.descent import settled
from convgen.target import Target

TARGET = Target.preset("h200")

NOTHING = Work(
    blocks=1, threads=32, warps=1, registers=32, shared_bytes=0,
    instructions=0, wavefronts=0, waits=0, l2_bytes=0, dram_bytes=0,
)  # fmt: skip


@pytest.mark.parametrize(
    ("access", "lanes"),
    [
        (4, [(32, 4)]),
        (16, [(32, 16)]),
        (4, [(32, 128)]),
        (4, [(32, 0)]),
        (4, [(8, 4), (4, 4096)]),
        (2, [(16, 2), (2, 0)]),
        (4, [(4, 512), (8, 4)]),
        (8, [(32, 64)]),
    ],
)
def test_lines_of_an_access_are_those_its_bytes_lie_in(access: int, lanes: list[tuple[int, int]]) -> None:
    counts, steps = zip(*lanes, strict=True)
    touched = set()
    for lane in itertools.product(*map(range, counts)):
        first = sum(i * step for i, step in zip(lane, steps, strict=True))
        touched |= {byte // 128 for byte in range(first, first + access)}
    assert math.ceil(pieces(access, *lanes)) == len(touched)


def test_a_kernel_of_one_resource_takes_what_that_resource_does() -> None:
    # 4.21 TB/s, measured by a long copy; 128 FMA lanes, so four warps' instructions, a cycle.
    copied = kernel_seconds(dataclasses.replace(NOTHING, dram_bytes=4.21e9), TARGET) - LAUNCH_SECONDS
    assert copied == pytest.approx(1e-3, rel=0.01)
    many = dataclasses.replace(NOTHING, blocks=132 * 1000, threads=256, warps=8, instructions=1000)
    cycles = (kernel_seconds(many, TARGET) - LAUNCH_SECONDS) * TARGET.clock_hz
    assert cycles == pytest.approx(1000 * 8 * 1000 / 4, rel=0.1)


def test_a_last_wave_counts_in_full() -> None:
    def seconds(blocks: int) -> float:
        work = dataclasses.replace(NOTHING, threads=1024, warps=32, instructions=10_000, blocks=blocks)
        return kernel_seconds(work, TARGET) - LAUNCH_SECONDS

    assert seconds(1) == pytest.approx(seconds(132), rel=1e-9)
    assert seconds(133) == pytest.approx(2 * seconds(132), rel=0.2)


@pytest.mark.parametrize(
    ("changes", "blocks"),
    [
        ({"threads": 256}, 8),  # 2048 threads
        ({"threads": 32}, 32),  # 32 blocks
        ({"threads": 256, "registers": 128}, 2),  # 65536 registers
        ({"threads": 256, "shared_bytes": 56 * 1024}, 4),  # 228 KB, of each block one reserved
        ({"threads": 1024, "registers": 200}, 1),  # spills rather than not start
    ],
)
def test_resident_blocks(changes: dict[str, int], blocks: int) -> None:
    assert resident_blocks(dataclasses.replace(NOTHING, **changes), TARGET) == blocks  # type: ignore[arg-type]


def test_too_few_registers_cost_instructions() -> None:
    work = dataclasses.replace(NOTHING, threads=1024, warps=32, instructions=10_000, blocks=1320)
    fits, spills = (kernel_seconds(dataclasses.replace(work, registers=r), TARGET) for r in (64, 160))
    assert spills > 2 * fits


@pytest.mark.parametrize("path", sorted(TABLES.glob("*.json.gz")), ids=lambda p: p.name.split(".")[0])
def test_predictions_rank_measured_kernels(path: Path) -> None:
    """Within a factor of two at the fast end, and the fast ones mostly in their order."""
    table = read_table(path)
    measured = np.array([seconds or math.nan for seconds in table.seconds.values()])
    predicted = np.array([table.cost(table.problem, config, TARGET) for config in table.seconds])
    fast = measured < 3 * np.nanmin(measured)
    assert 0.5 < np.median(predicted[fast] / measured[fast]) < 2
    ranks = [np.argsort(np.argsort(values[fast])) for values in (measured, predicted)]
    assert np.corrcoef(ranks)[0, 1] > 0.45


def test_the_predicted_best_of_a_table_is_good() -> None:
    found = []
    for table in map(read_table, sorted(TABLES.glob("*.json.gz"))):
        ranked = sorted(table.seconds, key=lambda c, t=table: t.cost(t.problem, c, TARGET))  # type: ignore[misc]
        found.append([max(map(table.fraction, ranked[:n])) for n in (1, 8, 32)])
    one, eight, many = (geomean(column) for column in zip(*found, strict=True))
    assert one > 0.85
    assert eight > 0.93
    assert many > 0.97


def test_defaults_are_where_a_walk_downhill_ends() -> None:
    def legal(strategy: Strategy, config: Config) -> bool:
        try:
            strategy.check(problem, config, TARGET)
        except ConfigError:
            return False
        return True

    for text in (
        "conv2d n=8 c=64 k=128 in=56x56 filter=3x3 pad=1",
        "conv2d n=32 c=144 k=144 groups=144 in=56x56 filter=3x3 stride=2 pad=1 dtype=fp16 layout=nhwc",
        "conv1d n=4 c=32 k=32 in=4096 filter=5 direction=wgrad",
        "conv3d n=1 c=3 k=8 in=8x28x28 filter=3x3x3 pad=1 dtype=bf16",
    ):
        problem = Conv.parse(text)
        for strategy in CONV_STRATEGIES:
            if strategy.why_not(problem, TARGET) is not None:
                continue
            default = strategy.default(problem, TARGET)
            cost = strategy.cost(problem, default, TARGET)
            space = strategy.space(problem, TARGET)
            plain = next(space.configs(lambda c, s=strategy, p=problem: s.check(p, c, TARGET)))  # type: ignore[misc]
            reached = settled(strategy, problem, TARGET, plain)
            strategy.check(problem, reached, TARGET)
            assert strategy.cost(problem, reached, TARGET) <= strategy.cost(problem, plain, TARGET)
            near = (other for field in space.choices for other in space.neighbours(default, field))
            assert all(cost < 1.1 * strategy.cost(problem, other, TARGET) for other in near if legal(strategy, other))
