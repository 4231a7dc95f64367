"""ONNX's own backend tests of Conv, ConvTranspose and ConvInteger, as problems."""

from __future__ import annotations

import functools
import pathlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.test.case.test_case import TestCase
from onnx.backend.test.loader import load_model_tests

from convgen.problem import Conv

Runner = Callable[[Conv, Mapping[str, Any]], Any]
"""Computes a problem's output (logical order) from its inputs by name."""

OPS = ("Conv", "ConvTranspose", "ConvInteger")

OUT_OF_SCOPE = {
    "QLinearConv": "its scales and zero points are operands that a Conv does not have",
    "DeformConv": "it reads at positions that are data",
    "CausalConvWithState": "a state is its second input and output",
}
"""Single-node operators that convolve and are not covered, each with the reason."""


@dataclass(frozen=True)
class OnnxCase:
    """One backend test: a node, its input arrays in the node's order, and the output that ONNX expects."""

    name: str
    node: onnx.NodeProto
    inputs: tuple[Any, ...]
    output: Any
    rtol: float
    atol: float

    def operands(self) -> dict[str, Any]:
        """What the problem takes, by name."""
        if self.node.op_type == "ConvInteger":
            return integer_operands(*self.inputs)
        return dict(zip(("x", "w", "bias"), self.inputs, strict=False))

    def problem(self) -> Conv:
        operands = self.operands()
        return problem_of(self.node, [array.shape for array in operands.values()], str(operands["x"].dtype))

    def run(self, runner: Runner) -> Any:
        """The output that `runner` computes."""
        return runner(self.problem(), self.operands())


@functools.cache
def onnx_tests() -> tuple[TestCase, ...]:
    """ONNX's single-node tests and those made from PyTorch's modules and operators. Takes some seconds."""
    kinds = ("node", "pytorch-converted", "pytorch-operator")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # from making the data of other operators
        return tuple(test for kind in kinds for test in load_model_tests(kind=kind))


def operator_of(test: TestCase) -> str | None:
    """The operator of a test of one node; None for a test of a graph."""
    nodes = model_of(test).graph.node
    return nodes[0].op_type if len(nodes) == 1 else None


def conv_cases() -> list[OnnxCase]:
    """Every data set of every test whose model is a single node of `OPS`."""
    return [case for test in onnx_tests() if operator_of(test) in OPS for case in _cases(test)]


def integer_operands(x: Any, w: Any, x_zero: Any = 0, w_zero: Any = 0) -> dict[str, Any]:
    """A ConvInteger's operands, less their zero points (of w one for all output channels, or one each).

    A Conv has no zero points, but what padding adds is the zero point, which becomes the zero that a Conv pads with: so
    the two are the same where the differences fit in 8 bits, x's signed or not, w's signed. Raises ValueError if not.
    """
    x = x.astype(np.int32) - np.int32(x_zero)
    w = w.astype(np.int32) - np.asarray(w_zero, np.int32).reshape(-1, *[1] * (w.ndim - 1))
    signed, unsigned = np.iinfo(np.int8), np.iinfo(np.uint8)
    kind = np.int8 if signed.min <= x.min() and x.max() <= signed.max else np.uint8
    if kind is np.uint8 and not (unsigned.min <= x.min() and x.max() <= unsigned.max):
        raise ValueError(f"x less its zero point is {x.min()} … {x.max()}: expected 8 bits")
    if not (signed.min <= w.min() and w.max() <= signed.max):
        raise ValueError(f"w less its zero points is {w.min()} … {w.max()}: expected 8 bits, signed")
    return {"x": x.astype(kind), "w": w.astype(np.int8)}


def problem_of(node: onnx.NodeProto, shapes: list[tuple[int, ...]], dtype: str = "float32") -> Conv:
    """The channels-first problem of a node of `OPS` with inputs X (of NumPy's `dtype`), W and perhaps B of `shapes`."""
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    x, w, *bias = shapes
    nd, groups = len(x) - 2, attributes.get("group", 1)
    transposed = node.op_type == "ConvTranspose"
    window = _Window(
        size=x[2:],
        stride=attributes.get("strides", [1] * nd),
        reach=[d * (f - 1) + 1 for d, f in zip(attributes.get("dilations", [1] * nd), w[2:], strict=True)],
        extra=attributes.get("output_padding", [0] * nd),
    )
    padding = (_transposed_padding if transposed else _padding)(window, attributes)
    return Conv.of(
        f"conv_transpose{nd}d" if transposed else f"conv{nd}d",
        n=x[0],
        c=x[1],
        k=w[1] * groups if transposed else w[0],
        spatial=x[2:],
        filter=w[2:],
        stride=window.stride,
        pad=[(low, high) for low, high, _ in padding],
        dilation=attributes.get("dilations", 1),
        groups=groups,
        output_padding=[extra for _, _, extra in padding],
        dtype={"float32": "fp32"}.get(dtype, dtype),
        epilogue="bias" if bias else "none",
    )


@dataclass(frozen=True)
class _Window:
    size: Sequence[int]
    stride: Sequence[int]
    reach: Sequence[int]
    extra: Sequence[int]


def _padding(window: _Window, attributes: Mapping[str, Any]) -> list[tuple[int, int, int]]:
    auto = attributes.get("auto_pad", b"NOTSET")
    if not auto.startswith(b"SAME"):
        return _explicit(window, attributes)
    rows = zip(window.size, window.stride, window.reach, strict=True)
    totals = [max((-(-size // stride) - 1) * stride + reach - size, 0) for size, stride, reach in rows]
    return [(*_split(total, auto), extra) for total, extra in zip(totals, window.extra, strict=True)]


def _transposed_padding(window: _Window, attributes: Mapping[str, Any]) -> list[tuple[int, int, int]]:
    auto = attributes.get("auto_pad", b"NOTSET")
    wanted = attributes.get("output_shape")
    if wanted is None and auto.startswith(b"SAME"):
        wanted = [size * stride for size, stride in zip(window.size, window.stride, strict=True)]
    if wanted is None:
        return _explicit(window, attributes)
    padding = []
    for size, stride, reach, extra, out in zip(
        window.size, window.stride, window.reach, window.extra, wanted[-len(window.size) :], strict=True
    ):
        total = (size - 1) * stride + reach + extra - out
        padding.append((*_split(max(total, 0), auto), extra + max(-total, 0)))
    return padding


def _explicit(window: _Window, attributes: Mapping[str, Any]) -> list[tuple[int, int, int]]:
    nd = len(window.size)
    pads = attributes.get("pads", [0] * 2 * nd)
    return list(zip(pads[:nd], pads[nd:], window.extra, strict=True))


def _split(total: int, auto: bytes) -> tuple[int, int]:
    # An odd pixel goes to the end for SAME_UPPER, else to the start.
    small = total // 2
    return (small, total - small) if auto == b"SAME_UPPER" else (total - small, small)


def _cases(test: TestCase) -> Iterator[OnnxCase]:
    model = model_of(test)
    weights = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    fed = [value.name for value in model.graph.input if value.name not in weights]
    for number, (inputs, outputs) in enumerate(data_sets(test)):
        arrays = weights | dict(zip(fed, inputs, strict=True))
        node = model.graph.node[0]
        yield OnnxCase(
            f"{test.kind}:{test.name}:{number}",
            node,
            tuple(arrays[name] for name in node.input if name),
            outputs[0],
            test.rtol,
            test.atol,
        )


def model_of(test: TestCase) -> onnx.ModelProto:
    """The test's model."""
    return test.model or onnx.load(pathlib.Path(str(test.model_dir)) / "model.onnx")


def data_sets(test: TestCase) -> list[tuple[list[Any], list[Any]]]:
    """The test's data sets: the arrays of the model's inputs, and those of its outputs."""
    if test.data_sets is not None:
        return [([_array(a) for a in inputs], [_array(a) for a in outputs]) for inputs, outputs in test.data_sets]
    folders = sorted(pathlib.Path(str(test.model_dir)).glob("test_data_set_*"))
    return [(_files(folder, "input"), _files(folder, "output")) for folder in folders]


def _files(folder: pathlib.Path, role: str) -> list[Any]:
    count = len(list(folder.glob(f"{role}_*.pb")))
    return [_array(onnx.load_tensor(folder / f"{role}_{number}.pb")) for number in range(count)]


def _array(value: Any) -> Any:
    return np.asarray(value) if isinstance(value, np.ndarray | np.generic) else numpy_helper.to_array(value)
