"""ONNX's own backend tests of pooling and batch normalisation, as problems."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.test.case.test_case import TestCase
from onnx_adapter import data_sets, model_of, onnx_tests, operator_of

from convgen.problem import BatchNorm, Pool

Runner = Callable[[Pool | BatchNorm, Mapping[str, Any]], Mapping[str, Any]]
"""Computes a problem's outputs by name (logical order) from its inputs by name."""

POOLS = ("AveragePool", "MaxPool", "GlobalAveragePool", "GlobalMaxPool")
OPS = (*POOLS, "BatchNormalization")

OUT_OF_SCOPE = {
    "test_maxpool_with_argmax_2d_precomputed_pads": "the positions of the maxima are its second output",
    "test_maxpool_with_argmax_2d_precomputed_strides": "the positions of the maxima are its second output",
}
"""Tests of these operators that are not covered, each with the reason."""

OTHER_OPERATORS = {
    "LpPool": "it takes the root of a sum of powers",
    "MaxUnpool": "it undoes a pooling from the positions of its maxima",
    "MaxRoiPool": "its windows are data",
}
"""Operators that pool and are not covered, each with the reason."""


@dataclass(frozen=True)
class OnnxCase:
    """One backend test: a node, its input arrays in the node's order, and the outputs that ONNX expects."""

    name: str
    node: onnx.NodeProto
    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]
    rtol: float
    atol: float

    def problem(self) -> Pool | BatchNorm:
        x = self.inputs[0]
        return (pool_of if self.node.op_type in POOLS else batch_norm_of)(self.node, x.shape, str(x.dtype))

    def run(self, runner: Runner) -> tuple[Any, ...]:
        """What `runner` makes of the inputs, in the order of the node's outputs."""
        problem = self.problem()
        given = dict(zip(("x", "scale", "bias", "mean", "var"), self.inputs, strict=False))
        got = runner(problem, given)
        if isinstance(problem, Pool) or not problem.is_training:
            return (got["y"],)
        # ONNX's running variance is of the biased variance, PyTorch's and ours of the unbiased one.
        old = (1 - problem.momentum) * given["var"]
        return got["y"], got["running_mean"], old + (got["running_var"] - old) * (problem.count - 1) / problem.count


def cases() -> list[OnnxCase]:
    """Every data set of every test whose model is a single node of OPS, but those out of scope."""
    covered = [t for t in onnx_tests() if operator_of(t) in OPS and t.name not in OUT_OF_SCOPE]
    return [case for test in covered for case in _cases(test)]


def pool_of(node: onnx.NodeProto, shape: Sequence[int], dtype: str = "float32") -> Pool:
    """The channels-first problem of a pooling node with an input X of that shape."""
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    size, nd = shape[2:], len(shape) - 2
    mode = "avg" if "Average" in node.op_type else "max"
    given: dict[str, Any] = {"filter": size}
    if not node.op_type.startswith("Global"):
        stride, dilation = (attributes.get(key, [1] * nd) for key in ("strides", "dilations"))
        reach = [d * (f - 1) + 1 for d, f in zip(dilation, attributes["kernel_shape"], strict=True)]
        given = {
            "filter": attributes["kernel_shape"],
            "stride": stride,
            "dilation": dilation,
            "pad": _padding(attributes, size, stride, reach),
            "ceil_mode": bool(attributes.get("ceil_mode", 0)),
        }
        if mode == "avg":
            given["count_include_pad"] = bool(attributes.get("count_include_pad", 0))
    names = {"float32": "fp32", "uint8": "uint8"}
    return Pool.of(f"{mode}_pool{nd}d", n=shape[0], c=shape[1], spatial=size, dtype=names[dtype], **given)


def batch_norm_of(node: onnx.NodeProto, shape: Sequence[int], dtype: str = "float32") -> BatchNorm:
    """The problem of a BatchNormalization node. ONNX's momentum is the weight of the old statistics."""
    assert dtype == "float32"
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    return BatchNorm.of(
        n=shape[0],
        c=shape[1],
        spatial=shape[2:],
        mode="training" if attributes.get("training_mode", 0) else "inference",
        eps=attributes.get("epsilon", 1e-5),
        momentum=1.0 - attributes.get("momentum", 0.9),
    )


def _padding(
    attributes: Mapping[str, Any], size: Sequence[int], stride: Sequence[int], reach: Sequence[int]
) -> list[tuple[int, int]]:
    auto = attributes.get("auto_pad", b"NOTSET")
    if auto.startswith(b"SAME"):
        totals = [max((-(-n // s) - 1) * s + r - n, 0) for n, s, r in zip(size, stride, reach, strict=True)]
        odd_first = auto == b"SAME_LOWER"
        return [(t - t // 2, t // 2) if odd_first else (t // 2, t - t // 2) for t in totals]
    pads = attributes.get("pads", [0] * 2 * len(size))
    return list(zip(pads[: len(size)], pads[len(size) :], strict=True))


def _cases(test: TestCase) -> Iterator[OnnxCase]:
    model = model_of(test)
    weights = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    fed = [value.name for value in model.graph.input if value.name not in weights]
    for number, (inputs, outputs) in enumerate(data_sets(test)):
        arrays = weights | dict(zip(fed, inputs, strict=True))
        node = model.graph.node[0]
        given = tuple(np.asarray(arrays[name]) for name in node.input)
        yield OnnxCase(f"{test.kind}:{test.name}:{number}", node, given, tuple(outputs), test.rtol, test.atol)
