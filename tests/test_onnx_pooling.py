"""ONNX's own tests of pooling and batch normalisation, at ONNX's own tolerance."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from onnx import NodeProto, TensorProto, helper
from onnx.reference import ReferenceEvaluator
from onnx_adapter import onnx_tests, operator_of
from onnx_pooling import OPS, OTHER_OPERATORS, OUT_OF_SCOPE, OnnxCase, cases, pool_of

from convgen.problem import BatchNorm, Pool
from convgen.reference import batch_norm, pool


def oracle(problem: Pool | BatchNorm, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
    if isinstance(problem, Pool):
        return pool.reference(problem, inputs)
    return batch_norm.reference(problem, inputs)


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
def test_onnx_case(case: OnnxCase) -> None:
    for got, expected in zip(case.run(oracle), case.outputs, strict=True):
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
