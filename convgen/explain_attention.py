"""What an attention needs of memory, with its scores there and without: the two lines of `convgen explain`."""

from __future__ import annotations

from dataclasses import dataclass

from convgen.problem import Attention
from convgen.strategies import flash_cost
from convgen.strategies.flash_attention import STRATEGY
from convgen.target import Target

TRIPS = 4
"""Of every score to memory and back where it is materialised: written, read for the softmax, written as a weight, read
for the product with v. Dao et al., "FlashAttention: Fast and Memory-Efficient Exact Attention", 2022."""


@dataclass(frozen=True)
class MemoryNeed:
    """Bytes; scores in the operands' type. `fused` figures are None where flash_attention does not apply."""

    queries: int
    keys: int
    dtype: str
    scores_of_a_head: int
    fused_scores: int | None
    traffic: int
    """With the scores in memory."""
    fused_traffic: int | None
    """Without: every operand once."""
    fused_l2: int | None
    """From the L2: keys and values once for every tile of rows that sees them."""

    def lines(self) -> tuple[str, str]:
        """Memory and traffic, each in a line."""
        scores = f"{self.scores_of_a_head:,} bytes for the {self.queries} x {self.keys} scores of a head"
        memory = f"memory   {scores} in {self.dtype}"
        traffic = f"traffic  {self.traffic:,} bytes with scores in memory, {TRIPS} trips of each"
        if self.fused_scores is None:
            return memory, traffic
        return (
            f"{memory}; {self.fused_scores} in flash_attention",
            f"{traffic}; {self.fused_traffic:,} in flash_attention, and {self.fused_l2:,} from the L2",
        )


def memory_need(problem: Attention, target: Target) -> MemoryNeed:
    """Of the problem at its typical sizes; flash_attention with its default."""
    batch, queries, keys = problem.typical_sizes
    scores = queries * keys * problem.dtype.itemsize
    applies = STRATEGY.why_not(problem, target) is None
    return MemoryNeed(
        queries=queries,
        keys=keys,
        dtype=problem.dtype.value,
        scores_of_a_head=scores,
        fused_scores=0 if applies else None,
        traffic=problem.bytes + TRIPS * batch * problem.heads_q * scores,
        fused_traffic=problem.bytes if applies else None,
        fused_l2=round(flash_cost.l2_bytes(problem, STRATEGY.default(problem, target))) if applies else None,
    )
