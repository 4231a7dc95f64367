"""What every strategy must do, whatever it is: a test class per strategy inherits this and names itself.

    class TestDirect(StrategyConformance):
        strategy = STRATEGY

The problems come from the public suites and from `generators`; the answers from the float64 oracle, through the
simulator. A golden file pins the text a strategy emits for one problem, so that a change of it is seen in review:
run pytest with --update-goldens to accept it.
"""

from __future__ import annotations

import dataclasses
import functools
import random
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from generators import integer_convs, random_convs

from convgen.errors import ConfigError
from convgen.lowering import lower
from convgen.plan import Launch, TensorArg, WorkspaceArg
from convgen.problem import Conv, Direction, DType, RuntimeSize, load_suite
from convgen.render import render, template_variables
from convgen.runtime.sim import build
from convgen.space import Config
from convgen.strategies import Strategy
from convgen.target import Target
from convgen.verify import Case, Settings, VerifyResult, verify_cases

GOLDENS = Path(__file__).parent / "goldens"
GOLDEN_PROBLEM = "conv2d n=2 c=8 in=13x11 k=12 filter=3x3 pad=1 epilogue=bias+relu"
DIRECTIONS = (Direction.FPROP, Direction.DGRAD, Direction.WGRAD)
RUNTIME_BATCHES = (RuntimeSize(), RuntimeSize(bound=3))
TARGET = Target.preset("h200")
SANITIZE = Settings(TARGET, check="sanitize")


@functools.cache
def public_problems() -> tuple[Conv, ...]:
    """Every third public problem, in every direction."""
    entries = load_suite("conv_shapes_public", passes=tuple(d.value for d in DIRECTIONS))
    return tuple(e.problem for e in entries[::3] if isinstance(e.problem, Conv))


@functools.cache
def drawn_problems(count: int, seed: int, max_macs: int = 20_000) -> tuple[Conv, ...]:
    return tuple(random_convs(seed, count, max_macs))


def legal_config(
    strategy: Strategy, problem: Conv, rng: random.Random, tries: int = 400, target: Target = TARGET
) -> Config | None:
    """A random config that `check` lets pass, or None if none was met."""
    space = strategy.space(problem, target)
    for _ in range(tries):
        config = space.config_type(*(rng.choice(values) for values in space.choices.values()))
        try:
            strategy.check(problem, config, target)
        except ConfigError:
            continue
        return config
    return None


def require_all_right(cases: Iterable[Case], settings: Settings = SANITIZE) -> list[VerifyResult]:
    """Run the kernels and hold each answer against the oracle."""
    results = list(verify_cases(list(cases), settings))
    bad = [f"{r.problem} [{r.config}]: {r.status} {r.reason}" for r in results if r.status != "ok"]
    assert not bad, "\n".join(bad)
    return results


def require_right(strategy: Strategy, problem: str, config: Config | None) -> None:
    """Run one kernel, watched for faults, and hold its answer against the oracle."""
    [result] = verify_cases([Case(Conv.parse(problem), strategy, config)], Settings(TARGET, check="sanitize"))
    assert result.status == "ok", result.reason


def require_golden(name: str, text: str, request: pytest.FixtureRequest) -> None:
    """The emitted text is that of the golden file of that name."""
    golden = GOLDENS / f"{name}.cu"
    if request.config.getoption("--update-goldens"):
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(text)
    assert text == golden.read_text(), f"the text of {name} changed; --update-goldens accepts it"


def require_terms_to_vanish(strategy: Strategy, config: Config) -> None:
    """In dgrad an infinite weight reaches only the pixels whose gradient it is; 0 * inf at the edge would be NaN."""
    problem = Conv.parse("conv2d n=1 c=1 in=12x20 k=1 filter=3x3 pad=1 direction=dgrad")
    plan = lower(problem, strategy, config, TARGET)
    dy, w = np.ones((1, 1, 12, 20), np.float32), np.ones((1, 1, 3, 3), np.float32)
    w[0, 0, 0, 0] = np.inf
    dx = np.empty((1, 1, 12, 20), np.float32)
    build([plan], [render(plan)])[0].run({"dy": dy, "w": w}, {"dx": dx}).require_clean()
    expected = np.full((12, 20), np.inf)
    expected[-1, :] = expected[:, -1] = 6
    expected[-1, 0] = expected[0, -1] = expected[-1, -1] = 4
    np.testing.assert_array_equal(dx[0, 0], expected)


def require_refusal(strategy: Strategy, problem: str, config: Config, rule: str) -> None:
    """`check` refuses the config, and its message has the words `rule`."""
    with pytest.raises(ConfigError, match=rule):
        strategy.check(Conv.parse(problem), config, TARGET)


def require_reason(strategy: Strategy, problem: str, reason: str) -> None:
    """`why_not` gives a reason that has the words `reason`."""
    found = strategy.why_not(Conv.parse(problem), TARGET)
    assert found is not None
    assert reason in found


class StrategyConformance:
    """Inherit and set `strategy`."""

    strategy: ClassVar[Strategy]
    golden_problem: ClassVar[str] = GOLDEN_PROBLEM
    refused_dtypes: ClassVar[tuple[DType, ...]] = (DType.INT8, DType.UINT8, DType.FP8)

    def applies(self, problem: Conv) -> bool:
        return self.strategy.why_not(problem, TARGET) is None

    def suited(self, problems: Iterable[Conv]) -> Iterator[Conv]:
        """Those that the strategy applies to; one that takes few of all problems may change them to suit it."""
        return filter(self.applies, problems)

    def test_it_says_why_not_or_has_a_legal_default(self) -> None:
        for problem in public_problems():
            reason = self.strategy.why_not(problem, TARGET)
            if reason is not None:
                assert len(reason.split()) > 3, reason
                continue
            config = self.strategy.default(problem, TARGET)
            self.strategy.check(problem, config, TARGET)
            assert 0 < self.strategy.cost(problem, config, TARGET) < 3600

    def test_the_default_is_in_the_space_as_far_as_types_go(self) -> None:
        for problem in self.suited(drawn_problems(40, seed=1)):
            config = self.strategy.default(problem, TARGET)
            space = self.strategy.space(problem, TARGET)
            assert type(config) is space.config_type
            for name, value in config.as_dict().items():
                assert {type(v) for v in space.choices[name]} == {type(value)}

    def test_configs_print_and_parse_back(self) -> None:
        rng = random.Random(2)
        for problem in self.suited(drawn_problems(20, seed=2)):
            config = legal_config(self.strategy, problem, rng)
            if config is not None:
                assert type(config).parse(str(config)) == config
                assert type(config).from_mapping(config.as_dict()) == config

    def test_the_template_uses_what_the_strategy_supplies(self) -> None:
        plan = lower(Conv.parse(self.golden_problem), self.strategy, None, TARGET)
        assert template_variables(plan.template) == set(plan.constants)

    def test_the_plan_hangs_together(self) -> None:
        rng = random.Random(3)
        for problem in self.suited(drawn_problems(60, seed=3)):
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
            assert any(isinstance(step, Launch) for step in plan.steps) or plan.outputs[0].size == 0

    def test_the_text_is_deterministic_and_golden(self, request: pytest.FixtureRequest) -> None:
        plan = lower(Conv.parse(self.golden_problem), self.strategy, None, TARGET)
        text = render(plan)
        assert text == render(lower(Conv.parse(self.golden_problem), self.strategy, None, TARGET))
        require_golden(self.strategy.name, text, request)

    def test_types_without_a_kernel_are_refused(self) -> None:
        problem = Conv.parse(self.golden_problem.replace("epilogue=bias+relu", ""))
        for dtype in self.refused_dtypes:
            reason = self.strategy.why_not(
                dataclasses.replace(problem, dtype=dtype, out_dtype=dtype.default_output), TARGET
            )
            assert reason is not None
            assert dtype.value in reason

    def test_random_problems_and_configs_are_right(self, request: pytest.FixtureRequest) -> None:
        """Two kernels a problem, the default and a random legal config, watched for faults."""
        rng = random.Random(4)
        cases = []
        for problem in self.suited(random_convs(4, request.config.getoption("--draws"), 20_000)):
            configs = {self.strategy.default(problem, TARGET), legal_config(self.strategy, problem, rng)}
            cases += [Case(problem, self.strategy, config) for config in configs if config is not None]
        require_all_right(cases)

    def test_a_runtime_batch_is_right_beyond_the_typical_one(self) -> None:
        """A plan without a bound is made for a batch of 1 and run with 3: nothing may rely on there being one image."""
        drawn = [dataclasses.replace(problem, n=n) for problem in drawn_problems(40, seed=6) for n in RUNTIME_BATCHES]
        cases = [Case(problem, self.strategy) for problem in self.suited(drawn)]
        assert cases
        require_all_right(cases)

    def test_nan_and_infinity_go_where_the_definition_sends_them(self) -> None:
        problems = list(self.suited(drawn_problems(24, seed=5)))
        settings = Settings(TARGET, check="sanitize", inputs="specials")
        require_all_right([Case(problem, self.strategy) for problem in problems], settings)


class IntegerConformance(StrategyConformance):
    """Of a strategy that sums 8-bit integers in int32 too."""

    refused_dtypes = (DType.FP8,)

    def test_sums_of_integers_are_exact(self, request: pytest.FixtureRequest) -> None:
        rng = random.Random(8)
        cases = []
        for problem in self.suited(integer_convs(8, request.config.getoption("--draws"), 20_000)):
            configs = {self.strategy.default(problem, TARGET), legal_config(self.strategy, problem, rng)}
            cases += [Case(problem, self.strategy, config) for config in configs if config is not None]
        results = require_all_right(cases)
        exact = [r.bound for r in results if r.problem.out_dtype is DType.INT32]
        assert {bound for bound in exact if bound is not None} == {0.0}

    @pytest.mark.parametrize(
        ("text", "reason"),
        [
            ("out_dtype=int8", "out_dtype=int8 has no kernel yet; sums of integers are stored as int32, fp32"),
            ("epilogue=bias+relu", "epilogue=bias+relu is computed in fp32, which does not hold every int32"),
        ],
    )
    def test_integers_are_stored_as_int32_or_as_floats(self, text: str, reason: str) -> None:
        problem = "conv2d n=1 c=8 in=5 k=8 filter=3 dtype=int8"
        require_reason(self.strategy, f"{problem} {text}", reason)
