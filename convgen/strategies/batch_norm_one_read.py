"""Training's batch normalisation by blocks that hold whole channels: one read of x, one write of y."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from convgen.errors import ConfigError
from convgen.plan import Numerics, Placement, Plan
from convgen.problem import BatchNorm
from convgen.space import Space
from convgen.strategies import descent, normalisation, normalisation_cost, operands, rules
from convgen.strategies.normalisation import Tiled, View
from convgen.target import Target

HOMES = ("registers", "shared")

HELD_BYTES = 256
"""The most that a thread holds in registers: a quarter of all it may have."""

MOST_ITEMS = 64
"""Items that a thread's loops are written out for."""


@dataclass(frozen=True)
class OneReadConfig(Tiled):
    """How a block lies over x, and where it holds its items."""

    home: str


class BatchNormOneRead:
    """A block reads all values of its channels once and keeps them until they are normalised."""

    name = "batch_norm_one_read"
    summary = (
        "training statistics and normalisation in one read: a block holds its channels in registers or shared memory"
    )
    calibrated = False
    solves = BatchNorm
    template = "normalisation/batch_norm_one_read.cu.j2"

    def why_not(self, problem: BatchNorm, target: Target) -> str | None:
        if not problem.is_training:
            return "in inference the statistics are given and nothing need be kept"
        if (reason := normalisation.not_covered(problem)) is not None:
            return reason
        v = normalisation.view(problem, normalisation.largest_vector(problem))
        items = normalisation.max_items(problem, v)
        if items is None:
            return "the batch has no bound, so that a channel may be larger than a block can hold"
        if not normalisation.is_empty(problem) and self._smallest(problem, target) is None:
            held = items * v.vector * v.itemsize
            return f"a block's channels have {held} bytes, more than its registers or its shared memory hold"
        return None

    def space(self, problem: BatchNorm, target: Target) -> Space:
        return Space(
            OneReadConfig,
            {
                "threads_channel": tuple(t for t in normalisation.THREADS if t <= 32),
                "threads_item": normalisation.THREADS,
                "vector": normalisation.vectors(problem),
                "home": HOMES,
            },
        )

    def check(self, problem: BatchNorm, config: OneReadConfig, target: Target) -> None:
        c = config
        normalisation.check(problem, c, target)
        rules.one_of(c, "home", HOMES)
        v = normalisation.view(problem, c.vector)
        normalisation.blocks_fit(v.channel_blocks(c.threads_channel))
        items = _items(problem, v, c)
        if items > MOST_ITEMS:
            raise ConfigError(f"{items} items a thread: its loops are written out for at most {MOST_ITEMS}; "
                              "use more threads_item")  # fmt: skip
        held = items * c.vector * v.itemsize
        if c.home == "registers" and held > HELD_BYTES:
            raise ConfigError(f"home=registers: {held} bytes a thread, which may hold {HELD_BYTES}")
        if (
            c.home == "registers"
            and (threads := c.threads_channel * c.threads_item) * held > target.registers_per_sm * 2
        ):
            raise ConfigError(f"home=registers: {threads} threads of {held} bytes, more than half of all registers")
        rules.shared_fits("the block's items and sums take", _shared_bytes(v, c, items), target)

    def default(self, problem: BatchNorm, target: Target) -> OneReadConfig:
        settled: OneReadConfig = descent.settled(self, problem, target, self._smallest(problem, target))
        return settled

    def _smallest(self, problem: BatchNorm, target: Target) -> Any:
        """A config that holds as much as a block can, first with as few threads as will do; None if there is none."""
        across, _, vector = normalisation.start(problem)
        for threads_channel in dict.fromkeys((across, 4, 2, 1)):
            for threads in (128, 256, 512, 1024):
                for home in HOMES:
                    config = OneReadConfig(threads_channel, threads // threads_channel, vector, home)
                    try:
                        self.check(problem, config, target)
                    except ConfigError:
                        continue
                    return config
        return None

    def cost(self, problem: BatchNorm, config: OneReadConfig, target: Target) -> float:
        v = normalisation.view(problem, config.vector)
        items = _items(problem, v, config)
        shared = _shared_bytes(v, config, items)
        return normalisation_cost.one_read_seconds(problem, v, config, items, shared, target)

    def lower(self, problem: BatchNorm, config: OneReadConfig, target: Target) -> Plan:
        c, v = config, normalisation.view(problem, config.vector)
        items = _items(problem, v, c)
        launch = operands.launch(
            normalisation.name_of(problem, self.name, c),
            normalisation.all_operands(problem),
            (max(v.channel_blocks(c.threads_channel), 1), 1, 1),
            (c.threads_channel * c.threads_item, 1, 1),
            _shared_bytes(v, c, items),
        )
        own = {
            "items": items,
            "home": c.home,
            "sums_bytes": _sums_bytes(v, c),
        }
        return Plan(
            problem, self.name, c, target,
            template=self.template,
            constants=normalisation.constants(problem, c, launch) | normalisation.training_constants(problem) | own,
            kernels=(launch.kernel,),
            steps=() if normalisation.is_empty(problem) else (launch,),
            alignment=normalisation.alignment(problem, c.vector),
            placements=_placements(problem, v, c, items),
            numerics=Numerics(steps=items * v.item_values + 2 * normalisation.block_roundings(v, c) + 8),
        )  # fmt: skip


def _items(problem: BatchNorm, v: View, c: OneReadConfig) -> int:
    return max(-(-(normalisation.max_items(problem, v) or 0) // c.threads_item), 1)


def _sums_bytes(v: View, c: OneReadConfig) -> int:
    sums = normalisation.sums_bytes(v, c.threads_channel, c.threads_item)
    return -(-sums // normalisation.PACK_BYTES) * normalisation.PACK_BYTES


def _shared_bytes(v: View, c: OneReadConfig, items: int) -> int:
    held = items * c.vector * v.itemsize * c.threads_channel * c.threads_item
    return _sums_bytes(v, c) + (held if c.home == "shared" else 0)


def _placements(problem: BatchNorm, v: View, c: OneReadConfig, items: int) -> tuple[Placement, ...]:
    held = items * c.vector * v.itemsize
    size = held if c.home == "registers" else held * c.threads_channel * c.threads_item
    return (
        Placement("x", c.home, size, "read from memory once, used three times"),
        Placement("sums", "registers", 8 * v.lanes, "of a thread; then butterflies of a warp, then shared memory"),
    )


STRATEGY = BatchNormOneRead()
