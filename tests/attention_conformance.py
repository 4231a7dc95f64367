"""What every strategy for attention must do: a test class a strategy inherits this and names itself.

Problems come from `attention_generators` and the public suites, answers from the float64 oracle, kernels run in the
simulator. A golden file pins the text a strategy emits; pytest --update-goldens accepts a change.
"""

from __future__ import annotations

import functools
import itertools
import random
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from attention_brute_force import brute_force
from attention_generators import TAILS, random_attentions

from convgen.errors import ConfigError
from convgen.lowering import lower
from convgen.plan import Launch, TensorArg, WorkspaceArg
from convgen.problem import Attention, load_suite
from convgen.reference import encode
from convgen.reference.attention import make_inputs
from convgen.render import render, template_variables
from convgen.runtime.sim import build
from convgen.space import Config
from convgen.strategies import Strategy
from convgen.target import Target
from convgen.verify import Case, Settings, verify_cases

GOLDENS = Path(__file__).parent / "goldens"
GOLDEN_PROBLEM = (
    "attention batch=2 heads_q=4 heads_kv=2 seq_q=100 seq_kv=120 head_dim=72 causal=bottom_right dtype=fp16 lse=yes"
)
TARGET = Target.preset("h200")

SEMANTICS = (
    "",
    "causal=top_left",
    "causal=bottom_right",
    "window=7:0",
    "window=20:3 align=top_left",
    "window=*:5",
    "softcap=2.5 causal=bottom_right",
    "softcap=1e38",
    "mask=key",
    "mask=pair",
    "mask=batch causal=top_left",
    "mask=head",
    "mask=full lse=yes",
    "bias=key",
    "bias=pair",
    "bias=batch softcap=4",
    "bias=head causal=bottom_right",
    "bias=full mask=key lse=yes",
    "alibi=yes causal=bottom_right",
    "sink=yes lse=yes",
    "sink=yes window=3:0",
    "lse=yes causal=bottom_right",
    "scale=0.0",
    "scale=-0.5 causal=bottom_right",
    "out_dtype=fp32 layout=bshd",
)
"""Everything that a mask can express, each alone and some together."""


@functools.cache
def public_problems() -> tuple[Attention, ...]:
    """Every public problem and every one that is benched."""
    entries = [e for suite in ("attention_shapes_public", "attention_bench") for e in load_suite(suite)]
    return tuple(e.problem for e in entries if isinstance(e.problem, Attention))


def legal_config(strategy: Strategy, problem: Attention, rng: random.Random, tries: int = 400) -> Config | None:
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


def require_right(cases: list[Case], inputs: str = "normal") -> None:
    """Run kernels, watched for faults, and hold their answers against the oracle."""
    settings = Settings(TARGET, check="sanitize", inputs=inputs)  # type: ignore[arg-type]
    results = list(verify_cases(cases, settings))
    bad = [f"{r.problem} [{r.config}]: {r.status} {r.reason}" for r in results if r.status != "ok"]
    assert len(results) == len(cases)
    assert not bad, "\n".join(bad)


class AttentionConformance:
    """Inherit and set `strategy`."""

    strategy: ClassVar[Strategy]

    def case(self, text: str, config: Config | None = None) -> Case:
        return Case(Attention.parse(f"attention {text}"), self.strategy, config)

    def applies(self, problem: Attention) -> bool:
        return self.strategy.why_not(problem, TARGET) is None

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
        for problem in filter(self.applies, random_attentions(1, 40)):
            config = self.strategy.default(problem, TARGET)
            space = self.strategy.space(problem, TARGET)
            assert type(config) is space.config_type
            for name, value in config.as_dict().items():
                assert {type(v) for v in space.choices[name]} == {type(value)}
            assert type(config).parse(str(config)) == config

    def test_the_template_uses_what_the_strategy_supplies(self) -> None:
        plan = lower(Attention.parse(GOLDEN_PROBLEM), self.strategy, None, TARGET)
        assert template_variables(plan.template) == set(plan.constants)

    def test_the_plan_hangs_together(self) -> None:
        rng = random.Random(3)
        for problem in filter(self.applies, random_attentions(3, 60)):
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
            assert all(isinstance(step, Launch) for step in plan.steps)

    def test_the_text_is_deterministic_and_golden(self, request: pytest.FixtureRequest) -> None:
        plan = lower(Attention.parse(GOLDEN_PROBLEM), self.strategy, None, TARGET)
        text = render(plan)
        assert text == render(lower(Attention.parse(GOLDEN_PROBLEM), self.strategy, None, TARGET))
        golden = GOLDENS / f"{self.strategy.name}.cu"
        if request.config.getoption("--update-goldens"):
            golden.parent.mkdir(exist_ok=True)
            golden.write_text(text)
        assert text == golden.read_text(), f"the text of {self.strategy.name} changed; --update-goldens accepts it"

    @pytest.mark.parametrize(
        ("words", "reason"),
        [
            ("dtype=fp8", "fp8"),
            ("varlen=padded", "varlen=padded"),
            ("paged=16", "paged=16"),
            ("direction=bprop", "gradients"),
        ],
    )
    def test_what_has_no_kernel_is_refused(self, words: str, reason: str) -> None:
        problem = Attention.parse(f"attention heads_q=1 seq_q=8 head_dim=16 {words}")
        assert reason in (self.strategy.why_not(problem, TARGET) or "")

    @pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
    def test_every_semantic_is_right(self, dtype: str) -> None:
        """Two batches, three heads a key head, queries and keys that fill no tile; 7 queries see no key where both
        ends are aligned."""
        shape = f"batch=2 heads_q=3 heads_kv=1 seq_q=40 seq_kv=33 head_dim=24 dtype={dtype}"
        require_right([self.case(f"{shape} {words}") for words in SEMANTICS])

    @pytest.mark.parametrize("kind", ["positive", "peaked", "small_integers", "specials"])
    def test_every_kind_of_numbers_is_right(self, kind: str) -> None:
        shape = "batch=1 heads_q=2 seq_q=33 seq_kv=70 head_dim=32 lse=yes"
        texts = [
            f"{shape} dtype={dtype} {words}"
            for dtype in ("fp32", "fp16", "bf16")
            for words in ("", "causal=bottom_right", "bias=pair softcap=20", "sink=yes")
        ]
        require_right([self.case(text) for text in texts], kind)

    @pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
    def test_scores_of_any_size_are_right(self, dtype: str) -> None:
        """Of whole numbers and far apart: the largest score of a row has all the weight, or its equals a share each."""
        for words, factor in (
            ("seq_q=35 scale=1e9", 1),
            ("seq_q=35 scale=1e36", 1),
            ("seq_q=35 scale=-1e9", 1),
            ("seq_q=35 scale=1.0", 2**14),
            ("seq_q=3 scale=1e9 causal=bottom_right sink=yes", 1),
            ("seq_q=3 scale=1.0", 2**14),
        ):
            shape = "attention heads_q=2 seq_kv=200 head_dim=8 lse=yes out_dtype=fp32"
            problem = Attention.parse(f"{shape} dtype={dtype} {words}")
            inputs = make_inputs(problem, 5, "small_integers")
            inputs |= {name: factor * inputs[name] for name in ("q", "k")}
            plan = lower(problem, self.strategy, None, TARGET)
            got = {spec.name: np.empty(spec.shape, np.float32) for spec in problem.outputs}
            given = {spec.name: encode(inputs[spec.name], spec.dtype) for spec in problem.inputs}
            build([plan], [render(plan)])[0].run(given, got).require_clean()
            for name, expected in brute_force(problem, inputs).items():
                np.testing.assert_allclose(got[name], expected, rtol=1e-5, atol=1e-5, err_msg=f"{name} {problem}")

    @pytest.mark.parametrize(("number", "causal"), list(enumerate(["", "causal=top_left", "causal=bottom_right"])))
    def test_tails_are_right(self, number: int, causal: str) -> None:
        """Every length of queries and of keys, in each type once."""
        lengths = [(s, s) for s in TAILS if s <= 192]
        lengths += [(17, 1025), (1025, 9), (1, 1025), (65, 127), (129, 63)]
        dtypes = itertools.islice(itertools.cycle(("fp16", "fp32", "bf16")), number, None)
        texts = [f"heads_q=1 seq_q={q} seq_kv={k} head_dim=8 {causal}" for q, k in lengths]
        require_right([self.case(f"{text} dtype={dtype}") for text, dtype in zip(texts, dtypes, strict=False)])

    def test_widths_are_right(self) -> None:
        """Of no power of two, odd, and v's unlike k's."""
        widths = [
            (8, 8),
            (24, 24),
            (40, 40),
            (80, 80),
            (88, 88),
            (96, 96),
            (112, 112),
            (160, 160),
            (192, 128),
            (256, 256),
        ]
        widths += [(1, 1), (7, 5), (20, 12), (33, 66), (16, 128), (128, 16), (72, 9)]
        dtypes = itertools.cycle(("fp16", "bf16", "fp32"))
        texts = [f"heads_q=1 seq_q=18 seq_kv=35 head_dim={k} head_dim_v={v}" for k, v in widths]
        require_right([self.case(f"{text} dtype={dtype}") for text, dtype in zip(texts, dtypes, strict=False)])

    def test_random_problems_and_configs_are_right(self, request: pytest.FixtureRequest) -> None:
        """Two kernels a problem, the default and a random legal config, watched for faults."""
        rng = random.Random(4)
        cases = []
        for problem in filter(self.applies, random_attentions(4, request.config.getoption("--draws"))):
            configs = {self.strategy.default(problem, TARGET), legal_config(self.strategy, problem, rng)}
            cases += [Case(problem, self.strategy, config) for config in configs if config is not None]
        require_right(cases)

    def test_sizes_known_at_run_time_are_right(self) -> None:
        """Made for a batch of 1 and for typical lengths, and run with others."""
        shape = "heads_q=4 heads_kv=2 head_dim=16 lse=yes"
        texts = [
            f"batch=* {shape} seq_q=9 seq_kv=20 causal=bottom_right dtype=fp16",
            f"batch=2 {shape} seq_q=1 seq_kv=*<=300~77 causal=bottom_right dtype=bf16",
            f"batch=*<=5 {shape} seq_q=*~21 seq_kv=*~40 window=9:2 mask=key bias=full dtype=fp32",
            f"batch=1 {shape} seq_q=*<=64 seq_kv=50 mask=pair bias=head dtype=fp16 layout=bshd",
        ]
        require_right([self.case(text) for text in texts])

    def test_without_rows_keys_or_batch(self) -> None:
        texts = [
            "seq_q=0 seq_kv=9",
            "seq_q=9 seq_kv=0 lse=yes",
            "batch=0 seq_q=4 seq_kv=4",
            "seq_q=5 seq_kv=0 sink=yes",
        ]
        require_right([self.case(f"heads_q=2 head_dim=16 dtype=fp16 {text}") for text in texts])
