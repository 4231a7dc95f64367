"""What every strategy of pooling and batch normalisation must do: `conformance.py` for problems that are no Conv.

class TestWindowPool(PoolingConformance):
    strategy = STRATEGY
    golden_problem = "max_pool2d …"
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import pytest
from conformance import GOLDENS, RUNTIME_BATCHES, TARGET
from pooling_generators import random_batch_norms, random_pools

from convgen.errors import ConfigError
from convgen.lowering import lower, why_not
from convgen.plan import TensorArg, WorkspaceArg
from convgen.problem import BatchNorm, Pool, parse_problem
from convgen.reference import definition_of, encode
from convgen.render import render, template_variables
from convgen.runtime.physical import with_strides
from convgen.runtime.sim import Mode, SimResult, build
from convgen.space import Config
from convgen.strategies import Strategy
from convgen.verify import Case, Settings, verify_cases


def legal_config(strategy: Strategy, problem: Any, rng: random.Random, tries: int = 400) -> Config | None:
    """A random config that `check` lets pass, or None if none was met."""
    space = strategy.space(problem, TARGET)
    for _ in range(tries):
        config = space.config_type(*(rng.choice(values) for values in space.choices.values()))
        try:
            strategy.check(problem, config, TARGET)
        except ConfigError:
            continue
        return config
    return None


def require_all_right(cases: list[Case], inputs: Any = "normal") -> None:
    """Run every kernel, watched for faults, and hold its answers against the oracle."""
    assert cases
    results = list(verify_cases(cases, Settings(TARGET, check="sanitize", inputs=inputs)))
    bad = [f"{r.problem} [{r.config}]: {r.status} {r.reason}" for r in results if r.status != "ok"]
    assert not bad, "\n".join(bad)


def require_right(strategy: Strategy, problem: str, changes: dict[str, int | str] | None = None) -> None:
    """The default config, with some of its fields changed, is right."""
    parsed = parse_problem(problem)
    default = strategy.default(parsed, TARGET)
    require_all_right([Case(parsed, strategy, type(default).from_mapping(changes or {}, default))])


def require_refusal(strategy: Strategy, problem: str, changes: dict[str, int | str], rule: str) -> None:
    """`check` refuses the default config with some of its fields changed, and its message has the words `rule`."""
    parsed = parse_problem(problem)
    default = strategy.default(parsed, TARGET)
    with pytest.raises(ConfigError, match=rule):
        strategy.check(parsed, type(default).from_mapping(changes, default), TARGET)


def require_reason(strategy: Strategy, problem: str, reason: str) -> None:
    """`why_not` gives a reason that has the words `reason`."""
    found = why_not(parse_problem(problem), strategy, TARGET)
    assert found is not None
    assert reason in found


def counted(strategy: Strategy, problem: str, changes: dict[str, int | str] | None = None) -> SimResult:
    """A run of the default config, with some of its fields changed, by the simulator's counters."""
    parsed: Any = parse_problem(problem)
    default = strategy.default(parsed, TARGET)
    plan = lower(parsed, strategy, type(default).from_mapping(changes or {}, default), TARGET)
    values = definition_of(parsed).make_inputs(parsed, 1)
    stored = {t.name: with_strides(t, encode(values[t.name], t.dtype), np) for t in parsed.inputs}
    outputs = {t.name: encode(np.zeros(t.shape), t.dtype) for t in parsed.outputs}
    [program] = build([plan], [render(plan)], Mode.COUNT)
    result = program.run(stored, outputs)
    result.require_clean()
    return result


class PoolingConformance:
    """Inherit and set `strategy` and `golden_problem`."""

    strategy: ClassVar[Strategy]
    golden_problem: ClassVar[str]

    def drawn(self, count: int, seed: int) -> Iterator[Pool | BatchNorm]:
        """Random problems that the strategy applies to."""
        draw: Any = random_pools if self.strategy.solves is Pool else random_batch_norms
        return (p for p in draw(seed, count) if why_not(p, self.strategy, TARGET) is None)

    def cases(self, count: int, seed: int) -> list[Case]:
        return [Case(problem, self.strategy) for problem in self.drawn(count, seed)]

    def test_it_applies_or_says_why_not(self) -> None:
        draw: Any = random_pools if self.strategy.solves is Pool else random_batch_norms
        applied = 0
        for problem in draw(1, 100):
            reason = why_not(problem, self.strategy, TARGET)
            if reason is not None:
                assert len(reason.split()) > 3, reason
                continue
            applied += 1
            config = self.strategy.default(problem, TARGET)
            self.strategy.check(problem, config, TARGET)
            assert 0 < self.strategy.cost(problem, config, TARGET) < 3600
            space = self.strategy.space(problem, TARGET)
            assert type(config) is space.config_type
            for name, value in config.as_dict().items():
                assert {type(v) for v in space.choices[name]} == {type(value)}
            assert type(config).parse(str(config)) == config
        assert applied

    def test_the_template_uses_what_the_strategy_supplies(self) -> None:
        plan = lower(parse_problem(self.golden_problem), self.strategy, None, TARGET)
        assert template_variables(plan.template) == set(plan.constants)
        assert plan.template == self.strategy.template

    def test_the_plan_hangs_together(self) -> None:
        rng = random.Random(3)
        for problem in self.drawn(60, seed=3):
            plan = lower(problem, self.strategy, legal_config(self.strategy, problem, rng), TARGET)
            tensors = {t.name for t in (*plan.inputs, *plan.outputs)}
            buffers = {b.name for b in plan.workspace}
            for launch in plan.launches:
                assert launch.kernel in plan.kernels
                assert len(launch.args) == len(launch.kernel.params)
                assert launch.threads <= TARGET.max_threads_per_block
                assert launch.shared_bytes <= TARGET.shared_per_block
                for arg in launch.args:
                    assert not isinstance(arg, TensorArg) or arg.tensor in tensors
                    assert not isinstance(arg, WorkspaceArg) or arg.buffer in buffers
            assert set(plan.alignment) <= tensors
            assert plan.launches or plan.outputs[0].size == 0

    def test_the_text_is_deterministic_and_golden(self, request: pytest.FixtureRequest) -> None:
        problem = parse_problem(self.golden_problem)
        text = render(lower(problem, self.strategy, None, TARGET))
        assert text == render(lower(problem, self.strategy, None, TARGET))
        golden = GOLDENS / f"{self.strategy.name}.cu"
        if request.config.getoption("--update-goldens"):
            golden.write_text(text)
        assert text == golden.read_text(), f"the text of {self.strategy.name} changed; --update-goldens accepts it"

    def test_random_problems_and_configs_are_right(self, request: pytest.FixtureRequest) -> None:
        """Two kernels a problem, the default and a random legal config, watched for faults."""
        rng = random.Random(4)
        cases = []
        for problem in self.drawn(request.config.getoption("--draws"), seed=4):
            configs = {self.strategy.default(problem, TARGET), legal_config(self.strategy, problem, rng)}
            cases += [Case(problem, self.strategy, config) for config in configs if config is not None]
        require_all_right(cases)

    def test_a_runtime_batch_is_right_beyond_the_typical_one(self) -> None:
        """A plan without a bound is made for a batch of 1 and run with 3: nothing may rely on there being one image."""
        drawn = [dataclasses.replace(p, n=n) for p in self.drawn(40, seed=6) for n in RUNTIME_BATCHES]
        applicable = [p for p in drawn if why_not(p, self.strategy, TARGET) is None]
        require_all_right([Case(problem, self.strategy) for problem in applicable])

    def test_nan_and_infinity_go_where_the_definition_sends_them(self) -> None:
        require_all_right(self.cases(30, seed=5), inputs="specials")

    def test_all_positive_numbers_are_within_the_bound(self) -> None:
        require_all_right(self.cases(20, seed=7), inputs="positive")
