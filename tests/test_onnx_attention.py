"""ONNX's own tests of Attention, at ONNX's own tolerance: the oracle, and every strategy in the simulator."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from onnx_attention import OUT_OF_SCOPE, AttentionCase, attention_cases

from convgen.lowering import lower
from convgen.problem import Attention
from convgen.reference import attention as oracle
from convgen.reference import decode, encode
from convgen.render import render
from convgen.runtime.sim import build
from convgen.strategies import get_strategy
from convgen.target import Target

cases = functools.cache(attention_cases)


def oracle_runner(problem: Attention, inputs: Mapping[str, Any]) -> Any:
    return oracle.reference(problem, {name: np.asarray(array, np.float64) for name, array in inputs.items()})["o"]


def require_close(case: AttentionCase, got: Any) -> None:
    expected = np.asarray(case.output, np.float64)
    assert got.shape == expected.shape
    coarse = {"fp16": 2.0**-9, "bf16": 2.0**-6, "fp32": case.rtol}[case.problem.dtype]
    np.testing.assert_allclose(np.asarray(got, np.float64), expected, rtol=coarse, atol=max(case.atol, coarse / 4))


def test_all_are_covered() -> None:
    assert len(cases()) == 93
    assert all(len(reason.split()) > 3 for reason in OUT_OF_SCOPE.values())


@pytest.mark.parametrize("number", range(93))
def test_the_oracle_agrees(number: int) -> None:
    require_close(cases()[number], cases()[number].run(oracle_runner))


@pytest.mark.parametrize("strategy", ["naive_attention", "flash_attention"])
def test_kernels_agree(strategy: str) -> None:
    """All of them in one build, watched for faults."""
    problems = list(dict.fromkeys(case.problem for case in cases()))
    plans = [lower(problem, get_strategy(strategy), None, Target.preset("h200")) for problem in problems]
    programs = dict(zip(problems, build(plans, [render(plan) for plan in plans]), strict=True))

    def runner(problem: Attention, inputs: Mapping[str, Any]) -> Any:
        stored = {spec.name: _stored(inputs[spec.name], spec.dtype) for spec in problem.inputs}
        o = encode(np.zeros(problem.tensor("o").shape), problem.out_dtype)
        programs[problem].run(stored, {"o": o}).require_clean()
        return decode(o, problem.out_dtype)

    for case in cases():
        require_close(case, case.run(runner))


def _stored(array: Any, dtype: Any) -> Any:
    values = np.asarray(array, np.float64)
    return values.astype(np.uint8) if dtype.is_integer else encode(values, dtype)
