"""ONNX's own tests of Attention, at ONNX's own tolerance: the oracle, and every strategy in the simulator."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from onnx_attention import OUT_OF_SCOPE, AttentionCase, attention_cases

from convgen.problem import Attention
from convgen.reference import attention as oracle

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
