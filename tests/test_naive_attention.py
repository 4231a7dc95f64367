"""naive_attention, by the conformance suite and in what is its own."""

from __future__ import annotations

from attention_conformance import TARGET, AttentionConformance, require_right

from convgen.lowering import lower
from convgen.plan import extent_at
from convgen.problem import Attention
from convgen.strategies import naive_attention


class TestNaiveAttention(AttentionConformance):
    strategy = naive_attention.STRATEGY

    def test_any_width_is_right(self) -> None:
        """Also what is too wide for a fused kernel."""
        require_right([self.case("heads_q=1 seq_q=5 seq_kv=6 head_dim=600 head_dim_v=300 dtype=bf16")])

    def test_its_workspace_holds_every_score(self) -> None:
        problem = Attention.parse("attention heads_q=2 seq_q=8192 head_dim=64 dtype=fp16")
        plan = lower(problem, self.strategy, None, TARGET)
        nbytes = {buffer.name: extent_at(buffer.nbytes, problem.sizes) for buffer in plan.workspace}
        assert nbytes["logits"] == 2 * 8192 * 8192 * 4

    def test_more_scores_than_fit_are_refused(self) -> None:
        reason = self.strategy.why_not(Attention.parse("attention heads_q=64 seq_q=16384 head_dim=64"), TARGET)
        assert reason is not None
        assert str(64 * 16384 * 16384 * 4) in reason
