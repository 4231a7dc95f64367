"""ONNX's own tests of convolution, at ONNX's own tolerance."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from conv_strategies import CONV_STRATEGIES
from onnx import NodeProto, TensorProto, helper
from onnx.reference import ReferenceEvaluator
from onnx_adapter import (
    OPS,
    OUT_OF_SCOPE,
    OnnxCase,
    Runner,
    conv_cases,
    integer_operands,
    onnx_tests,
    operator_of,
    problem_of,
)

from convgen.lowering import lower
from convgen.problem import Conv
from convgen.reference import encode, reference
from convgen.render import render
from convgen.runtime import sim
from convgen.runtime.physical import stored_dtype
from convgen.strategies import Strategy
from convgen.target import Target

TARGET = Target.preset("h200")


def simulated(strategy: Strategy) -> Runner:
    """Runs the strategy's default kernel in the simulator, watched for faults."""

    def run(problem: Conv, inputs: Mapping[str, Any]) -> Any:
        if (reason := strategy.why_not(problem, TARGET)) is not None:
            pytest.skip(reason)
        plan = lower(problem, strategy, None, TARGET)
        [program] = sim.build([plan], [render(plan)])
        [spec] = problem.outputs
        output = np.zeros(spec.shape, stored_dtype(spec))
        given = {name: encode(value, problem.tensor(name).dtype) for name, value in inputs.items()}
        program.run(given, {spec.name: output}).require_clean()
        return output

    return run


RUNNERS: dict[str, Runner] = {"oracle": reference} | {s.name: simulated(s) for s in CONV_STRATEGIES}


@pytest.mark.parametrize("runner", RUNNERS.values(), ids=RUNNERS)
@pytest.mark.parametrize("case", conv_cases(), ids=lambda case: case.name)
def test_onnx_case(case: OnnxCase, runner: Runner) -> None:
    got = case.run(runner)
    assert got.shape == case.output.shape
    if case.output.dtype == np.int32:
        np.testing.assert_array_equal(got, case.output)
    np.testing.assert_allclose(got, case.output, rtol=case.rtol, atol=case.atol)


def test_every_convolution_of_onnx_is_run_or_has_a_reason() -> None:
    operators = {operator_of(test) or "" for test in onnx_tests()}
    assert {operator for operator in operators if "Conv" in operator} == {*OPS, *OUT_OF_SCOPE}


def conv(op: str = "Conv", **attributes: Any) -> NodeProto:
    return helper.make_node(op, ["x", "w"], ["y"], **attributes)


NODES = {
    "same upper, odd padding": (conv(auto_pad="SAME_UPPER", strides=[2, 1]), (1, 2, 6, 5), (3, 2, 3, 2)),
    "same lower, odd padding": (conv(auto_pad="SAME_LOWER", strides=[2, 1]), (1, 2, 6, 5), (3, 2, 3, 2)),
    "valid": (conv(auto_pad="VALID"), (1, 2, 6, 5), (3, 2, 3, 2)),
    "pads, dilations, group": (
        conv(pads=[0, 1, 2, 0], dilations=[2, 1], group=2),
        (2, 4, 6, 5),
        (6, 2, 3, 2),
    ),
    "transposed, same upper": (
        conv("ConvTranspose", auto_pad="SAME_UPPER", strides=[2, 2]),
        (1, 2, 3, 4),
        (2, 3, 3, 3),
    ),
    "transposed, same lower": (
        conv("ConvTranspose", auto_pad="SAME_LOWER", strides=[2, 2]),
        (1, 2, 3, 4),
        (2, 3, 3, 3),
    ),
}


@pytest.mark.parametrize(("node", "x_shape", "w_shape"), NODES.values(), ids=NODES)
def test_attributes_mean_what_onnx_says(node: NodeProto, x_shape: tuple[int, ...], w_shape: tuple[int, ...]) -> None:
    random = np.random.default_rng(1)
    x, w = (random.standard_normal(shape).astype(np.float32) for shape in (x_shape, w_shape))
    declared = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("x", "w", "y")]
    model = helper.make_model(helper.make_graph([node], "one", declared[:2], declared[2:]))
    (expected,) = ReferenceEvaluator(model).run(None, {"x": x, "w": w})
    assert isinstance(expected, np.ndarray)
    got = reference(problem_of(node, [x_shape, w_shape]), {"x": x, "w": w})
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("zero", "dtype"), [(128, "int8"), (0, "uint8")])
def test_zero_points_are_taken_off_before_padding(zero: int, dtype: str) -> None:
    random = np.random.default_rng(2)
    x = random.integers(0, 256, (2, 8, 6, 5), np.uint8)
    w = random.integers(-60, 60, (8, 4, 3, 2), np.int8)
    given = {"x": x, "w": w, "x_zero": np.uint8(zero), "w_zero": random.integers(-60, 60, 8, np.int8)}
    node = helper.make_node("ConvInteger", list(given), ["y"], pads=[0, 1, 2, 0], strides=[1, 2], group=2)
    kinds = (TensorProto.UINT8, TensorProto.INT8, TensorProto.UINT8, TensorProto.INT8, TensorProto.INT32)
    declared = [helper.make_tensor_value_info(n, kind, None) for n, kind in zip([*given, "y"], kinds, strict=True)]
    model = helper.make_model(helper.make_graph([node], "one", declared[:4], declared[4:]))
    (expected,) = ReferenceEvaluator(model).run(None, given)
    operands = integer_operands(*given.values())
    assert str(operands["x"].dtype) == dtype
    problem = problem_of(node, [x.shape, w.shape], dtype)
    for runner in (reference, RUNNERS["direct"], RUNNERS["implicit_gemm"]):
        np.testing.assert_array_equal(runner(problem, operands), expected)


def test_differences_from_zero_points_that_need_nine_bits_are_refused() -> None:
    w = np.zeros((1, 1, 1, 1), np.int8)
    with pytest.raises(ValueError, match="x less its zero point is -100 … 155"):
        integer_operands(np.array([[[[0, 255]]]], np.uint8), w, 100)
    with pytest.raises(ValueError, match="w less its zero points is 200 … 200"):
        integer_operands(np.zeros((1, 1, 1, 1), np.uint8), np.full((1, 1, 1, 1), 200, np.uint8))


@pytest.mark.parametrize(("auto_pad", "pad"), [("NOTSET", "1:0x1"), ("SAME_LOWER", "1:0x1"), ("SAME_UPPER", "0:1x1")])
def test_a_smaller_output_shape_is_padding(auto_pad: str, pad: str) -> None:
    # total = stride * (input - 1) + reach - output, the odd pixel at the start unless SAME_UPPER (ONNX, ConvTranspose).
    node = conv("ConvTranspose", output_shape=[6, 4], strides=[2, 1], auto_pad=auto_pad)
    problem = problem_of(node, [(1, 2, 3, 4), (2, 3, 3, 3)])
    assert problem == Conv.parse(f"conv_transpose2d n=1 c=2 k=3 in=3x4 filter=3 stride=2x1 pad={pad}")
    assert problem.out == (6, 4)
