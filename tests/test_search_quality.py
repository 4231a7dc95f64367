"""How near to the best a search comes on exhaustively timed spaces, replayed. The figures are of one seed a table.

`benchmarks/search_quality.py` prints them for all methods and more seeds.
"""

from __future__ import annotations

import pytest
from replay import Recorded, geomean, random_curve, replay, tables

from convgen.space import Config
from convgen.target import Target

TRIALS = 100


@pytest.fixture(scope="module")
def recorded() -> list[Recorded]:
    return tables()


@pytest.fixture(scope="module")
def curves(recorded: list[Recorded]) -> list[list[float]]:
    return [replay(table, TRIALS) for table in recorded]


def after(curves: list[list[float]], trials: int) -> float:
    return geomean([curve[trials - 1] for curve in curves])


def test_the_tables_are_what_they_say(recorded: list[Recorded]) -> None:
    """At least six spaces of 1,000 or more legal configs, by several strategies, with few fast ones among them."""
    assert len(recorded) >= 6
    assert len({table.name for table in recorded}) >= 3
    target = Target.preset("h200")
    for table in recorded:
        assert len(table.seconds) >= 1000
        space = table.space(table.problem, target)
        legal = set(space.configs(lambda c, t=table: t.inner.check(t.problem, c, target)))  # type: ignore[misc]
        assert legal == set(table.seconds), table.label
    fast = [sum(table.fraction(c) >= 0.95 for c in table.seconds) / len(table.seconds) for table in recorded]
    assert sorted(fast)[len(fast) // 2] < 0.01


def test_with_no_trial_at_all(recorded: list[Recorded]) -> None:
    """The default; where a table leaves that out, the one of the table that the cost model prefers."""
    target = Target.preset("h200")
    assert geomean([t.fraction(t.default(t.problem, target)) for t in recorded]) >= 0.85


def test_after_few_and_after_many_trials(curves: list[list[float]]) -> None:
    assert after(curves, 32) >= 0.95
    assert after(curves, 100) >= 0.98


def test_random_draws_are_far_behind(recorded: list[Recorded], curves: list[list[float]]) -> None:
    drawn = [[random_curve(table, TRIALS, seed) for table in recorded] for seed in range(10)]
    for trials in (8, 32, 100):
        mean = sum(after(some, trials) for some in drawn) / len(drawn)
        assert mean < after(curves, trials) - 0.05


def test_with_a_pipeline_of_sixteen_candidates_under_way(recorded: list[Recorded]) -> None:
    found = [replay(table, TRIALS, in_flight=16) for table in recorded]
    assert after(found, 32) >= 0.95
    assert after(found, 100) >= 0.98


def test_a_good_seed_is_not_lost(recorded: list[Recorded]) -> None:
    for table in recorded:
        best: Config = min(table.seconds, key=lambda c: table.seconds[c] or float("inf"))
        assert replay(table, 3, seeds=[best])[-1] == 1.0


def test_a_cost_model_that_is_wrong_costs_little(recorded: list[Recorded]) -> None:
    """Every strategy's costs in reverse: the prior now asks for what is worst."""
    target = Target.preset("h200")
    for table in recorded[::3]:
        wrong = Recorded(table.inner, table.problem, table.choices, table.seconds, table.label)
        wrong.costs = {c: 1 / table.cost(table.problem, c, target) for c in table.seconds}
        assert replay(wrong, TRIALS)[-1] >= 0.9
