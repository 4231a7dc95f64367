"""Training's batch normalisation of channels of any size: statistics of parts, then normalisation."""

from __future__ import annotations

from dataclasses import dataclass

from convgen.errors import ConfigError
from convgen.plan import Buffer, Numerics, Param, Placement, Plan, WorkspaceArg
from convgen.problem import BatchNorm
from convgen.space import Space
from convgen.strategies import common, descent, normalisation, normalisation_cost, operands
from convgen.strategies.normalisation import Tiled
from convgen.target import Target

PARTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
MOST_PARTS = 1024


@dataclass(frozen=True)
class TwoPassConfig(Tiled):
    """How a block lies over x, the items a thread loads together, and the parts of a channel."""

    unroll: int
    parts: int


class BatchNormTwoPass:
    """One kernel sums up parts of the channels, a second combines them and normalises."""

    name = "batch_norm_two_pass"
    summary = "training statistics in one pass over x, by parts; normalisation in a second, from L2 where x fits"
    calibrated = False
    solves = BatchNorm
    template = "normalisation/batch_norm_two_pass.cu.j2"

    def why_not(self, problem: BatchNorm, target: Target) -> str | None:
        if not problem.is_training:
            return "in inference the statistics are given and one pass is enough"
        return normalisation.not_covered(problem)

    def space(self, problem: BatchNorm, target: Target) -> Space:
        return Space(
            TwoPassConfig,
            {
                "threads_channel": tuple(t for t in normalisation.THREADS if t <= 32),
                "threads_item": normalisation.THREADS,
                "vector": normalisation.vectors(problem),
                "unroll": (1, 2, 4, 8),
                "parts": PARTS,
            },
        )

    def check(self, problem: BatchNorm, config: TwoPassConfig, target: Target) -> None:
        normalisation.check(problem, config, target)
        check_parts(problem, config.vector, config.unroll, config.parts, config.threads_channel)

    def default(self, problem: BatchNorm, target: Target) -> TwoPassConfig:
        across, along, vector = normalisation.start(problem)
        parts = start_parts(problem, across, along, vector, target)
        settled: TwoPassConfig = descent.settled(self, problem, target, TwoPassConfig(across, along, vector, 4, parts))
        return settled

    def cost(self, problem: BatchNorm, config: TwoPassConfig, target: Target) -> float:
        c, v = config, normalisation.view(problem, config.vector)
        first = normalisation_cost.statistics_seconds(problem, v, c, c.unroll, c.parts, target)
        return first + normalisation_cost.normalise_seconds(problem, v, c, c.unroll, c.parts, target)

    def lower(self, problem: BatchNorm, config: TwoPassConfig, target: Target) -> Plan:
        c, v = config, normalisation.view(problem, config.vector)
        grid = (max(v.channel_blocks(c.threads_channel), 1) * c.parts, 1, 1)
        block = (c.threads_channel * c.threads_item, 1, 1)
        shared = normalisation.sums_bytes(v, c.threads_channel, c.threads_item)
        batch = normalisation.batch_operand(problem)
        x = normalisation.tensor_operand(problem, "x")
        written = Param("partial", "float*"), WorkspaceArg("partial")
        read = Param("partial", "const float*"), WorkspaceArg("partial")
        first = operands.launch(
            normalisation.name_of(problem, self.name, c, "statistics"), (x, written, *batch), grid, block, shared
        )
        taken = (read, *normalisation.all_operands(problem))
        last = operands.launch(normalisation.name_of(problem, self.name, c), taken, grid, block, shared)
        own = {
            "statistics_kernel": first.kernel.name,
            "statistics_params": first.kernel.params,
            "parts": c.parts,
            "unroll": c.unroll,
        }
        return Plan(
            problem, self.name, c, target,
            template=self.template,
            constants=normalisation.constants(problem, c, last) | normalisation.training_constants(problem) | own,
            kernels=(first.kernel, last.kernel),
            steps=() if normalisation.is_empty(problem) else (first, last),
            workspace=(Buffer("partial", 8 * c.parts * max(problem.c, 1)),),
            alignment=normalisation.alignment(problem, c.vector),
            placements=(
                Placement("x", "global", problem.inputs[0].nbytes, "read twice, the second time from L2 where it fits"),
                Placement("partial sums", "global", 8 * c.parts * problem.c, "every block combines them in one order"),
            ),
            numerics=self._numerics(problem, c),
        )  # fmt: skip

    def _numerics(self, problem: BatchNorm, c: TwoPassConfig) -> Numerics:
        v = normalisation.view(problem, c.vector)
        items = normalisation.max_items(problem, v)
        if items is None:
            return Numerics()
        part = -(-items // c.parts)
        rounds = -(-part // (c.threads_item * c.unroll))
        combined = 2 * normalisation.block_roundings(v, c) + -(-c.parts // c.threads_item)
        return Numerics(steps=c.unroll * v.item_values + 4 * rounds + 2 * combined + 8)


def check_parts(problem: BatchNorm, vector: int, unroll: int, parts: int, threads_channel: int) -> None:
    """The rules of a channel that is split into parts. Raises ConfigError."""
    if unroll > 16:
        raise ConfigError(f"unroll={unroll}: a thread loads at most 16 items together, which it holds in registers")
    if parts > MOST_PARTS:
        raise ConfigError(f"parts={parts}: expected at most {MOST_PARTS}, since each block reads them all")
    v = normalisation.view(problem, vector)
    items = normalisation.max_items(problem, v)
    if items is not None and parts > max(items, 1):
        raise ConfigError(f"parts={parts}: more parts than the {items} items of a channel")
    normalisation.blocks_fit(v.channel_blocks(threads_channel) * parts)


def start_parts(problem: BatchNorm, across: int, along: int, vector: int, target: Target) -> int:
    """Parts that give each multiprocessor a few blocks, as far as they have work."""
    v = normalisation.view(problem, vector)
    wanted = 4 * target.sm_count // max(v.channel_blocks(across), 1)
    most = normalisation.max_items(problem, v)
    items = problem.typical_batch * v.image_items if most is None else min(problem.typical_batch * v.image_items, most)
    return common.power_of_two_at_most(min(wanted, items // along, PARTS[-1]))


STRATEGY = BatchNormTwoPass()
