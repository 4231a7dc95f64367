"""The search behind one ask and tell: which strategy and which config to measure next.

    search = Search(problem, target, strategies, seeds=neighbours, seed=0)
    for proposal in search.ask(16):
        search.tell(proposal.candidate, seconds)

It opens with what is thought good before anything is known: the strategies' defaults, seeds, and the cost model's
best, spread out. Then samplers take turns: a Gaussian process mostly, Optuna's TPE, a greedy local search, and a few
uniform draws, which also tell what a blind search would have found. Strategies compete for every trial.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from threadpoolctl import ThreadpoolController

from convgen.problem import Problem
from convgen.space import Config
from convgen.strategies import Strategy
from convgen.target import Target
from convgen.tuner.candidates import Candidate, Domain
from convgen.tuner.records import Record
from convgen.tuner.samplers import LEAST_KNOWN, Local, Prior, Sampler, Surrogate, Uniform, is_known
from convgen.tuner.tpe import Tpe

OPENING = 5
"""Trials of the opening for one strategy; each further one adds LEAST_KNOWN."""

TURNS = ("surrogate", "surrogate", "local", "surrogate", "surrogate", "tpe", "surrogate", "surrogate", "random")
"""Whose turn it is after the opening, over and over."""


@dataclass(frozen=True)
class Proposal:
    """A candidate and who proposed it: default, seed, prior, surrogate, tpe, local or random."""

    candidate: Candidate
    origin: str


class Search:
    """Proposes candidates of several strategies for one problem; deterministic for a seed and what it is told.

    `seeds` are candidates known to be good for similar problems; those that are not legal here are passed over.
    `opening` and `turns` change the portfolio.
    """

    def __init__(
        self,
        problem: Problem,
        target: Target,
        strategies: Sequence[Strategy],
        seeds: Sequence[Candidate] = (),
        seed: int = 0,
        *,
        opening: int = OPENING,
        turns: Sequence[str] = TURNS,
    ) -> None:
        self._records = [Record(Domain(strategy, problem, target, seed)) for strategy in strategies]
        self._prior = Prior()
        self._uniform = Uniform(seed)
        samplers: list[Sampler] = [self._prior, Surrogate(), Local(), Tpe(seed), self._uniform]
        self._samplers = {sampler.origin: sampler for sampler in samplers}
        self._turns = tuple(turns)
        self._turn = 0
        self._opening = opening + LEAST_KNOWN * (len(strategies) - 1) if opening else 0
        self._given = self._starts(problem, target, seeds)

    def ask(self, count: int) -> list[Proposal]:
        """Up to `count` legal candidates, none asked or told before; fewer only when there are no others."""
        proposals: list[Proposal] = []
        # The cores compile meanwhile. On small matrices, BLAS threads that wait for a core slow the search tenfold.
        with _thread_pools().limit(limits=1, user_api="blas"):
            while len(proposals) < count:
                proposal = self._next()
                if proposal is None:
                    break
                proposals.append(proposal)
        return proposals

    def tell(self, candidate: Candidate, seconds: float | None) -> None:
        """The time of a candidate, None if it failed in any way; also of one that was not asked for."""
        record = next((r for r in self._records if r.domain.strategy == candidate.strategy), None)
        if record is not None and record.domain.legal(candidate.config):
            record.tell(candidate.config, seconds)

    def _starts(self, problem: Problem, target: Target, seeds: Sequence[Candidate]) -> list[tuple[str, Record, Config]]:
        """The default that would run untuned, seeds, the other defaults; what is asked first stands last."""
        defaults = [(r, r.domain.strategy.default(problem, target)) for r in self._records]
        legal = [(r, config) for r, config in defaults if r.domain.legal(config)]
        legal.sort(key=lambda start: (not start[0].domain.strategy.calibrated, start[0].domain.predicted(start[1])))
        by_strategy = {r.domain.strategy: r for r in self._records}
        good = [
            (by_strategy[c.strategy], c.config)
            for c in seeds
            if c.strategy in by_strategy and by_strategy[c.strategy].domain.legal(c.config)
        ]
        starts = [
            *(("default", *start) for start in legal[:1]),
            *(("seed", *start) for start in good),
            *(("default", *start) for start in legal[1:]),
        ]
        return starts[::-1]

    def _next(self) -> Proposal | None:
        while self._given:
            origin, record, config = self._given.pop()
            if record.ask(config):
                return Proposal(Candidate(record.domain.strategy, config), origin)
        if self._is_opening():
            proposal = self._ask(self._prior)
            if proposal is not None:
                return proposal
        for _ in self._turns:
            sampler = self._samplers[self._turns[self._turn % len(self._turns)]]
            self._turn += 1
            proposal = self._ask(sampler)
            if proposal is not None:
                return proposal
        return self._ask(self._prior) or self._ask(self._uniform)

    def _is_opening(self) -> bool:
        tried = sum(len(record.tried) for record in self._records)
        succeeded = any(record.best < math.inf for record in self._records)
        known = all(map(is_known, self._records))
        return self._opening > 0 and (tried < self._opening or not (succeeded and known))

    def _ask(self, sampler: Sampler) -> Proposal | None:
        chosen = sampler.propose(self._records)
        if chosen is None:
            return None
        record, config = chosen
        if not record.ask(config):
            return None
        return Proposal(Candidate(record.domain.strategy, config), sampler.origin)


@functools.cache
def _thread_pools() -> ThreadpoolController:
    """Of the libraries loaded, numpy's BLAS among them."""
    return ThreadpoolController()


def random_baseline(random_draw_times: Sequence[float], n: int) -> float:
    """The expected least of `n` of these times, drawn without replacement: what blind search would have found.

    Exact: the i-th smallest of m is the least of n in C(m - i, n - 1) of C(m, n) cases. With n of m or more it is the
    least there is, which more draws would lower. Raises ValueError without times or draws.
    """
    if not random_draw_times or n < 1:
        raise ValueError(f"{len(random_draw_times)} times and {n} draws: expected at least one of each")
    ordered = sorted(random_draw_times)
    m, n = len(ordered), min(n, len(ordered))
    ways = math.comb(m, n)
    return sum(seconds * (math.comb(m - i, n - 1) / ways) for i, seconds in enumerate(ordered, start=1))
