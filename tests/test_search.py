"""The search: what it asks, in which order, and what it never does."""

from __future__ import annotations

import itertools
import random
import statistics
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from threadpoolctl import threadpool_info
from toy_strategy import PROBLEM, TARGET, Toy, ToyConfig, toy_seconds

from convgen.problem import Conv
from convgen.space import Config
from convgen.strategies import get_strategy
from convgen.tuner.candidates import Candidate, Domain
from convgen.tuner.samplers import Prior
from convgen.tuner.search import TURNS, Proposal, Search, random_baseline


def drive(
    search: Search, seconds: Callable[[Candidate], float | None], trials: int, in_flight: int = 1
) -> list[Proposal]:
    """Ask and tell, `in_flight` candidates under way, each result told in the order asked."""
    done: list[Proposal] = []
    waiting: list[Proposal] = []
    while len(done) < trials:
        waiting += search.ask(min(in_flight, trials - len(done)) - len(waiting))
        if not waiting:
            break
        proposal = waiting.pop(0)
        search.tell(proposal.candidate, seconds(proposal.candidate))
        done.append(proposal)
    return done


def truth(candidate: Candidate) -> float:
    assert isinstance(candidate.config, ToyConfig)
    return toy_seconds(candidate.config)


@pytest.mark.parametrize("in_flight", [1, 7])
def test_every_legal_config_is_asked_once_and_then_none(in_flight: int) -> None:
    toy = Toy()
    search = Search(PROBLEM, TARGET, [toy])
    asked = [p.candidate.config for p in drive(search, truth, 1000, in_flight)]
    assert len(asked) == len(set(asked))
    assert set(asked) == set(toy.legal())
    assert search.ask(3) == []


def test_a_box_too_large_to_list_is_searched_without_duplicates() -> None:
    large = Toy(choices=tuple(range(1, 97)))  # 27648 points; 62 distinct legal numbers of either
    search = Search(PROBLEM, TARGET, [large])
    asked = [p.candidate.config for p in drive(search, truth, 150, 5)]
    assert len(set(asked)) == 150
    assert set(asked) <= set(large.legal())
    assert ToyConfig(16, 2, "far") in asked


def test_the_same_seed_asks_the_same() -> None:
    def asked(seed: int) -> list[Proposal]:
        return drive(Search(PROBLEM, TARGET, [toy], seed=seed), truth, 40, 3)

    toy = Toy()
    assert asked(3) == asked(3)
    assert asked(3) != asked(4)


def test_the_best_default_comes_first_then_seeds_then_the_other_defaults() -> None:
    fast, slow = Toy("fast"), Toy("slow", slowness=2.0)
    good, illegal = ToyConfig(8, 8, "far"), ToyConfig(32, 32, "far")
    stranger = Candidate(Toy("stranger"), good)
    seeds = [Candidate(slow, good), Candidate(fast, illegal), stranger, Candidate(slow, good), Candidate(fast, good)]
    first = Search(PROBLEM, TARGET, [slow, fast], seeds).ask(5)
    plain = ToyConfig(1, 1, "near")
    assert [(p.candidate.strategy.name, p.candidate.config, p.origin) for p in first[:4]] == [
        ("fast", plain, "default"),
        ("slow", good, "seed"),
        ("fast", good, "seed"),
        ("slow", plain, "default"),
    ]
    assert first[4].origin == "prior"


def test_the_prior_opens_with_the_predicted_best_and_differs_from_there() -> None:
    problem, direct = Conv.parse("conv2d n=8 c=64 k=128 in=56x56 filter=3x3 pad=1"), get_strategy("direct")
    domain = Domain(direct, problem, TARGET)
    cheapest = [domain.pool[place] for place in np.argsort(domain.cost, kind="stable")[:12]]
    asked = [p.candidate.config for p in Search(problem, TARGET, [direct], opening=12).ask(12)]

    def differing_fields(configs: Sequence[Config]) -> float:
        pairs = itertools.combinations([list(c.as_dict().values()) for c in configs], 2)
        return statistics.mean(sum(a != b for a, b in zip(*pair, strict=True)) for pair in pairs)

    assert differing_fields(asked) > 1.5 * differing_fields(cheapest)
    costs = [direct.cost(problem, config, TARGET) for config in asked]
    assert min(costs[:2]) < 1.05 * np.exp(domain.cost.min())
    assert max(costs) < np.exp(np.quantile(domain.cost, 0.2))


def test_all_samplers_have_their_turns() -> None:
    toy = Toy(choices=tuple(range(1, 49)))
    origins = Counter(p.origin for p in drive(Search(PROBLEM, TARGET, [toy]), truth, 5 + 3 * len(TURNS)))
    assert origins == {"default": 1, "prior": 4} | {name: 3 * count for name, count in Counter(TURNS).items()}


@pytest.mark.parametrize("turns", [("surrogate",), ("local",), ("tpe",), TURNS])
def test_each_sampler_finds_the_best_of_a_smooth_truth(turns: Sequence[str]) -> None:
    toy = Toy()
    asked = drive(Search(PROBLEM, TARGET, [toy], turns=turns), truth, len(toy.legal()) // 2)
    assert min(truth(p.candidate) for p in asked) == toy_seconds(ToyConfig(16, 2, "far"))


def test_a_slow_strategy_gets_few_trials_and_a_bad_default_is_forgiven() -> None:
    """`late` has the same default as `slow` has, and is by far the best elsewhere."""
    slow, late = Toy("slow"), Toy("late")

    def seconds(candidate: Candidate) -> float:
        return truth(candidate) * 10 if candidate.strategy is slow else truth(candidate)

    asked = drive(Search(PROBLEM, TARGET, [slow, late], turns=("surrogate",)), seconds, 30)
    counts = Counter(p.candidate.strategy.name for p in asked)
    assert 2 <= counts["slow"] <= 6
    assert min(map(seconds, (p.candidate for p in asked))) == toy_seconds(ToyConfig(16, 2, "far"))


def test_failures_repel_and_do_not_end_the_search() -> None:
    """All that is `far` fails: half of all configs, and half of the opening."""
    toy = Toy()

    def seconds(candidate: Candidate) -> float | None:
        assert isinstance(candidate.config, ToyConfig)
        return None if candidate.config.home == "far" else truth(candidate)

    asked = drive(Search(PROBLEM, TARGET, [toy], turns=("surrogate",)), seconds, 12)
    failed = [seconds(p.candidate) is None for p in asked]
    assert sum(failed[:5]) == 2
    assert sum(failed[5:]) <= 1
    assert any(p.candidate.config == ToyConfig(16, 2, "near") for p in asked)


def test_where_everything_fails_everything_is_tried() -> None:
    toy = Toy()
    asked = drive(Search(PROBLEM, TARGET, [toy]), lambda candidate: None, 1000)
    assert len(asked) == len(toy.legal())


def test_what_is_told_unasked_is_not_asked() -> None:
    toy = Toy()
    search = Search(PROBLEM, TARGET, [toy])
    known = [ToyConfig(1, 1, "near"), ToyConfig(4, 4, "near"), ToyConfig(4, 4, "far")]
    for config in known:
        search.tell(Candidate(toy, config), toy_seconds(config))
    search.tell(Candidate(toy, ToyConfig(32, 32, "far")), 1e-9)  # illegal: nothing to be learnt
    search.tell(Candidate(Toy("stranger"), ToyConfig(2, 2, "far")), 1e-9)
    asked = [p.candidate.config for p in drive(search, truth, 1000)]
    assert set(asked) == set(toy.legal()) - set(known)


@pytest.mark.parametrize("n", [1, 2, 4, 6])
def test_the_random_baseline_is_the_mean_over_all_draws(n: int) -> None:
    times = [5.0, 3.0, 8.0, 3.0, 13.0, 4.5]
    expected = statistics.mean(min(drawn) for drawn in itertools.combinations(times, n))
    assert random_baseline(times, n) == pytest.approx(expected, rel=1e-12)


def test_the_random_baseline_of_more_draws_than_times_is_the_least() -> None:
    times = random.Random(0).sample(range(1, 100), 20)
    assert random_baseline(times, 400) == min(times)
    for bad in (([], 3), ([1.0], 0)):
        with pytest.raises(ValueError, match="at least one"):
            random_baseline(*bad)


def test_a_search_leaves_the_cores_to_the_compilers(monkeypatch: pytest.MonkeyPatch) -> None:
    """BLAS threads beside busy compile workers made a search of 10 s take 67 s."""
    seen: list[int] = []

    def blas_threads() -> list[int]:
        return [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]

    def propose(self: Prior, records: object) -> None:
        seen.extend(blas_threads())

    before = blas_threads()
    monkeypatch.setattr(Prior, "propose", propose)
    search = Search(PROBLEM, TARGET, [Toy()])
    search.ask(3)
    assert seen
    assert set(seen) == {1}
    assert blas_threads() == before
