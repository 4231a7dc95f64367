"""The parts of the search: domains, the Gaussian process, the Optuna study that is written out."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import optuna
import pytest
from conv_strategies import CONV_STRATEGIES
from toy_strategy import PROBLEM, TARGET, Toy, ToyConfig

from convgen.errors import UsageError
from convgen.problem import Conv
from convgen.space import Value
from convgen.tuner import surrogate
from convgen.tuner.candidates import Domain
from convgen.tuner.study import export_study
from convgen.tuner.surrogate import GaussianProcess, log_expected_improvement

# --- domains -----------------------------------------------------------------------------------------


def test_a_small_box_is_listed_whole() -> None:
    toy = Toy()
    assert set(Domain(toy, PROBLEM, TARGET).pool) == set(toy.legal())


def test_neighbours_are_all_legal_configs_that_differ_once() -> None:
    toy, start = Toy(), ToyConfig(8, 8, "near")
    found = list(Domain(toy, PROBLEM, TARGET).neighbours(start))
    differ = [c for c in toy.legal() if len(set(vars(c).items()) - set(vars(start).items())) == 1]
    assert Counter(found) == Counter(differ)


def test_exchanges_keep_the_product() -> None:
    found = set(Domain(Toy(), PROBLEM, TARGET).exchanges(ToyConfig(8, 1, "near")))
    assert found == {ToyConfig(4, 2, "near")}  # 16 x 0.5 is not there
    found = set(Domain(Toy(), PROBLEM, TARGET).exchanges(ToyConfig(8, 8, "far")))
    assert found == {ToyConfig(4, 16, "far"), ToyConfig(16, 4, "far")}


@pytest.mark.parametrize("toy", [Toy(), Toy(choices=tuple(range(1, 97)))], ids=["listed", "sampled"])
def test_draws_are_uniform_over_what_is_left(toy: Toy) -> None:
    domain, rng = Domain(toy, PROBLEM, TARGET), random.Random(0)
    seen = toy.legal()[::2]
    left = set(toy.legal()) - set(seen)
    drawn = Counter(domain.draw(rng, seen) for _ in range(600))
    assert set(drawn) <= left
    # Of the half with the smaller `high`, as many as there are of it.
    low = sorted(left, key=lambda c: (c.high, c.wide, c.home))[: len(left) // 2]
    assert sum(drawn[c] for c in low) == pytest.approx(300, abs=60)
    assert domain.draw(rng, toy.legal()) is None


def test_a_large_space_is_explored_legally_deterministically_and_downhill() -> None:
    problem = Conv.parse("conv2d n=8 c=64 k=128 in=56x56 filter=3x3 pad=1")
    for strategy in CONV_STRATEGIES:
        domain = Domain(strategy, problem, TARGET)
        assert len(domain.pool) == len(set(domain.pool)) > 100
        for config in domain.pool[::17]:
            strategy.check(problem, config, TARGET)
        best = domain.pool[int(np.argmin(domain.cost))]
        assert strategy.cost(problem, best, TARGET) <= strategy.cost(problem, strategy.default(problem, TARGET), TARGET)
        assert Domain(strategy, problem, TARGET).pool == domain.pool
        assert np.exp(domain.cost[5]) == pytest.approx(strategy.cost(problem, domain.pool[5], TARGET))


def test_features_are_logs_and_one_column_a_word() -> None:
    toy = Toy()
    domain = Domain(toy, PROBLEM, TARGET)
    raw = np.array([[math.log2(c.wide), math.log2(c.high), *(c.home == w for w in ("near", "far", "never"))]
                    for c in domain.pool])  # fmt: skip
    spread = raw.std(axis=0)
    expected = (raw - raw.mean(axis=0)) / np.where(spread > 0, spread, 1)
    np.testing.assert_allclose(domain.features, expected, atol=1e-12)


# --- the Gaussian process ----------------------------------------------------------------------------


def matern(a: np.ndarray, b: np.ndarray, lengths: np.ndarray) -> float:
    r = math.sqrt(5 * float((((a - b) / lengths) ** 2).sum()))
    return (1 + r + r**2 / 3) * math.exp(-r)


def test_the_process_predicts_as_the_textbook_does() -> None:
    """Against Rasmussen and Williams, equations 2.25 and 2.26, written out with a plain inverse."""
    rng = np.random.default_rng(0)
    points, at, values = rng.normal(size=(9, 3)), rng.normal(size=(4, 3)), rng.normal(size=9)
    process = GaussianProcess(3)
    lengths, signal, noise = np.array([0.7, 1.5, 3.0]), 1.3, 0.05
    process.scales = np.log(np.array([*lengths, signal, noise]))
    total = noise + surrogate.JITTER

    def kernel(rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
        return signal * np.array([[matern(a, b, lengths) for b in columns] for a in rows])

    inverse = np.linalg.inv(kernel(points, points) + total * np.eye(9))
    mean, deviation = process.predict(points, values, np.empty((0, 3)), at)
    np.testing.assert_allclose(mean, kernel(at, points) @ inverse @ values, rtol=1e-9)
    variance = signal - np.diag(kernel(at, points) @ inverse @ kernel(points, at))
    np.testing.assert_allclose(deviation**2, variance, rtol=1e-7)

    # One that is pending and turns out as predicted leaves the mean and sharpens the rest.
    pending = at[:1]
    again, sharper = process.predict(points, values, pending, at)
    np.testing.assert_allclose(again, mean, rtol=1e-9)
    told = np.concatenate([points, pending])
    _, expected = process.predict(told, np.append(values, mean[0]), np.empty((0, 3)), at)
    np.testing.assert_allclose(sharper, expected, rtol=1e-7)
    assert (sharper < deviation).all()


def test_the_fit_follows_the_gradient_of_the_likelihood() -> None:
    rng = np.random.default_rng(1)
    points, values = rng.normal(size=(12, 2)), rng.normal(size=12)
    process = GaussianProcess(2)
    process.scales = np.log(np.array([0.8, 2.0, 1.1, 0.1]))

    def likelihood(scales: np.ndarray) -> float:
        lengths, signal, noise = np.exp(scales[:2]), math.exp(scales[2]), math.exp(scales[3])
        k = signal * np.array([[matern(a, b, lengths) for b in points] for a in points])
        k += (noise + surrogate.JITTER) * np.eye(12)
        return float(-0.5 * values @ np.linalg.solve(k, values) - 0.5 * np.linalg.slogdet(k)[1])

    step = 1e-5
    numeric = [
        (likelihood(process.scales + step * unit) - likelihood(process.scales - step * unit)) / (2 * step)
        for unit in np.eye(4)
    ]
    apart = [np.subtract.outer(column, column) ** 2 for column in points.T]
    np.testing.assert_allclose(process._gradient(apart, values), numeric, rtol=1e-5, atol=1e-8)


def test_the_fit_tells_a_field_that_matters_from_one_that_does_not() -> None:
    rng = np.random.default_rng(2)
    points = rng.normal(size=(40, 2))
    process = GaussianProcess(2)
    for n in (20, 25, 30, 35, 40):
        process.fit(points[:n], np.sin(2 * points[:n, 0]))
    lengths = np.exp(process.scales[:2])
    assert lengths[0] < 1.5 < 3 < lengths[1]


@pytest.mark.parametrize(("mean", "deviation"), [(-1.0, 0.5), (0.2, 0.4), (3.0, 1.0), (9.0, 1.5)])
def test_expected_improvement_is_the_integral(mean: float, deviation: float) -> None:
    y = np.linspace(mean - 40 * deviation, 0.0, 4_000_001)
    density = np.exp(-0.5 * ((y - mean) / deviation) ** 2) / (deviation * math.sqrt(2 * math.pi))
    integral = float(np.trapezoid(-y * density, y)) if hasattr(np, "trapezoid") else float(np.trapz(-y * density, y))
    found = log_expected_improvement(np.array([mean]), np.array([deviation]), 0.0)
    assert found[0] == pytest.approx(math.log(integral), abs=1e-4)


def test_expected_improvement_stays_finite_and_in_order_however_small() -> None:
    means = np.linspace(0.0, 100.0, 500)
    found = log_expected_improvement(means, np.ones(500), 0.0)
    assert np.isfinite(found).all()
    assert (np.diff(found) < 0).all()


# --- the written study -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Written:
    strategy: str
    config: dict[str, Value] = field(default_factory=dict)
    status: str = "ok"
    reason: str = ""
    seconds: float | None = None
    origin: str = "prior"


def test_a_written_study_opens_with_optuna(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'trials.db'}"
    trials = [
        Written("direct", {"tile": 4, "home": "shared"}, seconds=3e-6, origin="default"),
        Written("direct", {"tile": 2, "home": "global"}, "wrong_result", "y[3] is off"),
        Written("im2col", {"block": 64, "pad": True}, seconds=2.5e-6),
    ]
    export_study(trials, url, "conv2d on h200")
    study = optuna.load_study(study_name="conv2d on h200", storage=url)
    states = optuna.trial.TrialState
    assert [t.state for t in study.trials] == [states.COMPLETE, states.FAIL, states.COMPLETE]
    assert study.best_value == pytest.approx(2.5)
    assert study.best_trial.params == {"strategy": "im2col", "im2col.block": 64, "im2col.pad": True}
    assert study.user_attrs == {"unit": "microseconds"}
    failed = study.trials[1]
    assert failed.user_attrs == {
        "strategy": "direct", "status": "wrong_result", "reason": "y[3] is off", "origin": "prior"
    }  # fmt: skip
    tile = failed.distributions["direct.tile"]
    assert isinstance(tile, optuna.distributions.CategoricalDistribution)
    assert tile.choices == (2, 4)


def test_a_study_is_not_written_over_another_nor_to_nowhere(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'trials.db'}"
    trial = Written("direct", {"tile": 4}, seconds=1e-6)
    export_study([trial], url, "one")
    with pytest.raises(UsageError, match="choose another"):
        export_study([trial], url, "one")
    with pytest.raises(UsageError, match="expected a URL"):
        export_study([trial], "nowhere", "two")


def test_optuna_logs_nothing_and_keeps_its_level(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    optuna.logging.set_verbosity(optuna.logging.DEBUG)
    try:
        export_study([Written("direct", {"tile": 4}, seconds=1e-6)], f"sqlite:///{tmp_path / 'trials.db'}", "quiet")
        assert optuna.logging.get_verbosity() == optuna.logging.DEBUG
    finally:
        optuna.logging.set_verbosity(optuna.logging.INFO)
    assert "study" not in capfd.readouterr().err


def test_products_of_choices_are_counted() -> None:
    toy = Toy(choices=(1, 2))
    assert Domain(toy, PROBLEM, TARGET).size == len(list(itertools.product((1, 2), (1, 2), ("near", "far", "never"))))
