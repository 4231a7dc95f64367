"""Batch normalisation by given statistics: one fused elementwise kernel."""

from __future__ import annotations

from dataclasses import dataclass

from convgen.plan import Numerics, Placement, Plan
from convgen.problem import BatchNorm
from convgen.space import Space
from convgen.strategies import descent, normalisation, normalisation_cost, operands
from convgen.strategies.batch_norm_two_pass import PARTS, check_parts, start_parts
from convgen.strategies.normalisation import Tiled
from convgen.target import Target


@dataclass(frozen=True)
class InferenceConfig(Tiled):
    """How a block lies over x, the items a thread loads together, and the parts of a channel."""

    unroll: int
    parts: int


class BatchNormInference:
    """A thread works out the factor of its channels once and streams a part of them through it."""

    name = "batch_norm_inference"
    summary = "normalisation by given statistics, residual and activation in one pass over x"
    calibrated = False
    solves = BatchNorm
    template = "normalisation/batch_norm_inference.cu.j2"

    def why_not(self, problem: BatchNorm, target: Target) -> str | None:
        if problem.is_training:
            return "in training the statistics are those of x, which have to be taken first"
        return normalisation.not_covered(problem)

    def space(self, problem: BatchNorm, target: Target) -> Space:
        return Space(
            InferenceConfig,
            {
                "threads_channel": tuple(t for t in normalisation.THREADS if t <= 64),
                "threads_item": normalisation.THREADS,
                "vector": normalisation.vectors(problem),
                "unroll": (1, 2, 4, 8),
                "parts": (*PARTS, 1024),
            },
        )

    def check(self, problem: BatchNorm, config: InferenceConfig, target: Target) -> None:
        normalisation.check(problem, config, target)
        check_parts(problem, config.vector, config.unroll, config.parts, config.threads_channel)

    def default(self, problem: BatchNorm, target: Target) -> InferenceConfig:
        across, along, vector = normalisation.start(problem)
        parts = start_parts(problem, across, along, vector, target)
        settled: InferenceConfig = descent.settled(
            self, problem, target, InferenceConfig(across, along, vector, 4, parts)
        )
        return settled

    def cost(self, problem: BatchNorm, config: InferenceConfig, target: Target) -> float:
        v = normalisation.view(problem, config.vector)
        return normalisation_cost.normalise_seconds(problem, v, config, config.unroll, config.parts, target)

    def lower(self, problem: BatchNorm, config: InferenceConfig, target: Target) -> Plan:
        c, v = config, normalisation.view(problem, config.vector)
        launch = operands.launch(
            normalisation.name_of(problem, self.name, c),
            normalisation.all_operands(problem),
            (max(v.channel_blocks(c.threads_channel), 1) * c.parts, 1, 1),
            (c.threads_channel * c.threads_item, 1, 1),
        )
        return Plan(
            problem, self.name, c, target,
            template=self.template,
            constants=normalisation.constants(problem, c, launch) | {"parts": c.parts, "unroll": c.unroll},
            kernels=(launch.kernel,),
            steps=() if normalisation.is_empty(problem) else (launch,),
            alignment=normalisation.alignment(problem, c.vector),
            placements=(Placement("factors", "registers", 12 * v.lanes, "of a thread's channels, worked out once"),),
            numerics=Numerics(steps=0),
        )  # fmt: skip


STRATEGY = BatchNormInference()
