"""The implicit GEMM strategy."""

from __future__ import annotations

from conformance import StrategyConformance

from convgen.strategies.implicit_gemm import STRATEGY


class TestImplicitGemm(StrategyConformance):
    strategy = STRATEGY
