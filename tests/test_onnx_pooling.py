"""ONNX's own tests of pooling and batch normalisation, at ONNX's own tolerance."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from onnx import NodeProto, TensorProto, helper
from onnx.reference import ReferenceEvaluator
from onnx_adapter import onnx_tests, operator_of
from onnx_pooling import OPS, OTHER_OPERATORS, OUT_OF_SCOPE, OnnxCase, Runner, cases, pool_of

from convgen.lowering import lower, why_not
from convgen.problem import BatchNorm, Pool
from convgen.reference import definition_of
from convgen.render import render
from convgen.runtime import sim
from convgen.strategies import Strategy, strategies_of
from convgen.target import Target

TARGET = Target.preset("h200")


def oracle(problem: Pool | BatchNorm, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
    return definition_of(problem).reference(problem, inputs)


def simulated(strategy: Strategy) -> Runner:
    """Runs the strategy's default kernel in the simulator, watched for faults."""

    def run(problem: Pool | BatchNorm, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        if (reason := why_not(problem, strategy, TARGET)) is not None:
            pytest.skip(reason)
        plan = lower(problem, strategy, None, TARGET)
        [program] = sim.build([plan], [render(plan)])
        outputs = {t.name: np.zeros(t.shape, np.float32) for t in problem.outputs}
        given = {name: np.asarray(value, np.float32) for name, value in inputs.items()}
        program.run(given, outputs).require_clean()
        return outputs

    return run


def runners(case: OnnxCase) -> dict[str, Runner]:
    """The oracle, and every strategy for problems of the case's type."""
    return {"oracle": oracle} | {s.name: simulated(s) for s in strategies_of(case.problem())}


RUNS = [
    pytest.param(case, runner, id=f"{case.name}-{name}") for case in cases() for name, runner in runners(case).items()
]


@pytest.mark.parametrize(("case", "runner"), RUNS)
def test_onnx_case(case: OnnxCase, runner: Runner) -> None:
    for got, expected in zip(case.run(runner), case.outputs, strict=True):
        assert got.shape == expected.shape
        np.testing.assert_allclose(got, expected, rtol=case.rtol, atol=case.atol)


def test_every_pooling_of_onnx_is_run_or_has_a_reason() -> None:
    operators = {operator_of(test) or "" for test in onnx_tests()}
    assert {o for o in operators if "Pool" in o or o == "BatchNormalization"} <= {*OPS, *OTHER_OPERATORS}
    assert set(OPS) <= operators
    assert set(OUT_OF_SCOPE) <= {test.name for test in onnx_tests()}


def node(op: str, **attributes: Any) -> NodeProto:
    return helper.make_node(op, ["x"], ["y"], **attributes)


NODES = {
    "asymmetric pads": node("AveragePool", kernel_shape=[3, 2], strides=[2, 1], pads=[0, 1, 2, 0]),
    "asymmetric pads, counted": node("AveragePool", kernel_shape=[3, 2], pads=[2, 1, 1, 0], count_include_pad=1),
    "same upper": node("MaxPool", kernel_shape=[3, 2], strides=[2, 1], auto_pad="SAME_UPPER"),
    "same lower": node("AveragePool", kernel_shape=[3, 2], strides=[2, 1], auto_pad="SAME_LOWER"),
    "ceil, dilations": node("MaxPool", kernel_shape=[2, 2], strides=[2, 3], dilations=[3, 2], ceil_mode=1),
}


@pytest.mark.parametrize("node", NODES.values(), ids=NODES)
def test_attributes_mean_what_onnx_says(node: NodeProto) -> None:
    x = np.random.default_rng(1).standard_normal((2, 3, 8, 7)).astype(np.float32)
    declared = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("x", "y")]
    model = helper.make_model(helper.make_graph([node], "one", declared[:1], declared[1:]))
    (expected,) = ReferenceEvaluator(model).run(None, {"x": x})
    assert isinstance(expected, np.ndarray)
    got = oracle(pool_of(node, x.shape), {"x": x})["y"]
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)
