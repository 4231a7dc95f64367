"""Attention as it is written down: logits of every pair in the workspace, softmax of each row, product with v.

For any head_dim and type, with fp32 arithmetic: what is right everywhere, and what flash_attention is measured against.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from convgen.errors import ConfigError
from convgen.plan import Buffer, Launch, Numerics, Param, Placement, Plan, WorkspaceArg
from convgen.problem import Attention
from convgen.space import Config, Space
from convgen.strategies import attention_common as common
from convgen.strategies import operands
from convgen.strategies.cost_model import LAUNCH_SECONDS
from convgen.target import Target

MAX_LOGIT_BYTES = 16 << 30
MAX_GRID = (1 << 31) - 1
SKEW = 4


@dataclass(frozen=True)
class NaiveAttentionConfig(Config):
    """Tiles of the two products, and threads that share a row of the softmax."""

    block: int
    """Rows and columns of a tile; a thread has 4 x 4 of its results."""
    depth: int
    """Of a tile: elements of a row of q, or keys."""
    softmax_threads: int

    @property
    def threads(self) -> int:
        return (self.block // 4) ** 2

    @property
    def shared_bytes(self) -> int:
        return 4 * 2 * self.depth * (self.block + SKEW)


class NaiveAttention:
    """See the module's text."""

    name = "naive_attention"
    summary = "all scores in the workspace, a softmax over them, then their product with v"
    calibrated = False
    solves = Attention
    template = "attention/naive_attention.cu.j2"

    def why_not(self, problem: Attention, target: Target) -> str | None:
        reason = common.not_covered(problem)
        if reason is not None:
            return reason
        nbytes = common.largest_extent(problem, {"batch": 1, "seq_q": 1, "seq_kv": 1}, 4 * problem.heads_q)
        if nbytes > MAX_LOGIT_BYTES:
            return f"the scores of all pairs would take {nbytes} bytes of workspace; flash_attention needs none"
        return None

    def space(self, problem: Attention, target: Target) -> Space:
        return Space(
            NaiveAttentionConfig,
            {"block": (16, 32, 64), "depth": (8, 16, 32), "softmax_threads": (32, 64, 128, 256)},
        )

    def check(self, problem: Attention, config: NaiveAttentionConfig, target: Target) -> None:
        if config.block not in (16, 32, 64):
            raise ConfigError(f"block={config.block}: expected 16, 32 or 64, whose threads fill warps")
        if config.depth < 1 or config.depth > 64:
            raise ConfigError(f"depth={config.depth}: expected 1 to 64, what is staged at a time")
        if config.softmax_threads not in (32, 64, 128, 256, 512, 1024):
            raise ConfigError(f"softmax_threads={config.softmax_threads}: expected a power of two from 32 to 1024")
        tiles = {"batch": 1, "seq_q": config.block, "seq_kv": config.block}
        for blocks in (
            common.largest_extent(problem, tiles, problem.heads_q),
            common.largest_extent(problem, {"batch": 1, "seq_q": 1}, problem.heads_q),
            common.largest_extent(problem, {"batch": 1, "seq_q": config.block}, self._products(problem, config)),
        ):
            if blocks > MAX_GRID:
                raise ConfigError(f"{blocks} blocks: a grid has at most {MAX_GRID}; use larger tiles")

    def default(self, problem: Attention, target: Target) -> NaiveAttentionConfig:
        _, queries, keys = problem.typical_sizes
        block = 64 if min(queries, keys, problem.head_dim_v) > 32 else 32 if queries > 16 else 16
        return NaiveAttentionConfig(block, 16, 128 if keys > 64 else 32)

    def cost(self, problem: Attention, config: NaiveAttentionConfig, target: Target) -> float:
        """Products at half the rate of fp32, beside four trips of the logits to memory; three launches."""
        batch, queries, keys = problem.typical_sizes
        block = config.block
        rows, columns = (-(-size // block) * block for size in (queries, keys))
        widths = problem.head_dim + -(-problem.head_dim_v // block) * block
        flops = 2.0 * batch * problem.heads_q * rows * columns * widths
        logits = 4.0 * 4 * batch * problem.heads_q * queries * keys
        seconds = 2 * flops / target.attainable.fp32 + (logits + problem.bytes) / target.attainable.bandwidth
        return seconds + 3 * LAUNCH_SECONDS

    def lower(self, problem: Attention, config: NaiveAttentionConfig, target: Target) -> Plan:
        logits, softmax, product = self._launches(problem, config)
        heads = problem.heads_q
        pairs, rows = {"batch": 1, "seq_q": 1, "seq_kv": 1}, {"batch": 1, "seq_q": 1}
        return Plan(
            problem, self.name, config, target,
            template=self.template,
            constants=self._constants(problem, config, (logits, softmax, product)),
            kernels=(logits.kernel, softmax.kernel, product.kernel),
            steps=(logits, softmax, product),
            workspace=(
                Buffer("logits", common.extent(problem, pairs, 4 * heads)),
                Buffer("inverse", common.extent(problem, rows, 4 * heads)),
            ),
            placements=(
                Placement("logits", "global", common.largest_extent(problem, pairs, 4 * heads),
                          "workspace: written, read and written by the softmax, read by the product"),
                Placement("tiles", "shared", config.shared_bytes, "fp32, of both operands of a product"),
                Placement("sums", "registers", 4 * 16, "one fp32 a result, 4 x 4 a thread"),
            ),
            numerics=Numerics(),
            name=common.kernel_name(problem, self.name, config),
        )  # fmt: skip

    def _launches(self, problem: Attention, config: NaiveAttentionConfig) -> tuple[Launch, Launch, Launch]:
        written = Param("logits", "float*"), WorkspaceArg("logits")
        read = Param("logits", "const float*"), WorkspaceArg("logits")
        inverse = Param("inverse", "float*"), WorkspaceArg("inverse")
        shares = Param("inverse", "const float*"), WorkspaceArg("inverse")
        q, k, v, o = (common.tensor(problem, name) for name in ("q", "k", "v", "o"))
        sink = (common.tensor(problem, "sink"),) if problem.sink else ()
        lse = (common.tensor(problem, "lse"),) if problem.lse else ()
        sizes, heads, block = common.sizes(problem), problem.heads_q, config.block
        tiles = {"batch": 1, "seq_q": block, "seq_kv": block}

        def name(part: str) -> str:
            return common.kernel_name(problem, self.name, config, part)

        return (
            operands.launch(
                name("logits"), (q, k, *common.options(problem), written, *sizes),
                (common.extent(problem, tiles, heads), 1, 1), (config.threads, 1, 1), config.shared_bytes,
            ),
            operands.launch(
                name("softmax"), (*sink, written, inverse, *lse, *sizes),
                (common.extent(problem, {"batch": 1, "seq_q": 1}, heads), 1, 1), (config.softmax_threads, 1, 1),
                4 * (config.softmax_threads // 32),
            ),
            operands.launch(
                name("product"), (read, shares, v, o, *sizes),
                (common.extent(problem, {"batch": 1, "seq_q": block}, self._products(problem, config)), 1, 1),
                (config.threads, 1, 1), config.shared_bytes,
            ),
        )  # fmt: skip

    def _products(self, problem: Attention, config: NaiveAttentionConfig) -> int:
        """Tiles of o in a row of tiles, of all heads."""
        return problem.heads_q * -(-problem.head_dim_v // config.block)

    def _constants(
        self, problem: Attention, config: NaiveAttentionConfig, launches: tuple[Launch, Launch, Launch]
    ) -> dict[str, Any]:
        named = {
            f"{part}_{what}": value
            for part, launch in zip(("logits", "softmax", "product"), launches, strict=True)
            for what, value in (("kernel", launch.kernel.name), ("params", launch.kernel.params))
        }
        pairs = common.largest_extent(problem, {"batch": 1, "seq_q": 1, "seq_kv": 1}, problem.heads_q)
        return common.constants(problem, config, results=pairs) | named | {
            "block": config.block,
            "depth": config.depth,
            "threads": config.threads,
            "softmax_threads": config.softmax_threads,
        }  # fmt: skip


STRATEGY = NaiveAttention()
