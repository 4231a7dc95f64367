"""ONNX's own backend tests of Attention (opsets 23 to 25), as problems.

A cache that a node is given as past_key and past_value is put before the new keys here, as the operator does. Lengths
of an external cache (nonpad_kv_seqlen) become, with the window that they shift, a boolean mask.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx_adapter import data_sets, model_of, onnx_tests, operator_of

from convgen.problem import Attention

Runner = Callable[[Attention, Mapping[str, Any]], Any]
"""Computes o (B, H, S, D) from a problem and its inputs by name."""

DTYPES = {
    onnx.TensorProto.FLOAT: "fp32",
    onnx.TensorProto.FLOAT16: "fp16",
    onnx.TensorProto.BFLOAT16: "bf16",
}

OUT_OF_SCOPE = {
    "qk_matmul_output": "the scores as an output of their own: a fused kernel never has them, and the four stages that "
    "can be asked for are four more problems (Y of such a node is covered)",
    "present_key": "the concatenated cache as an output: it is a copy of two inputs, made by who owns the cache",
    "softmax_precision": "a type to round the softmax to: it is fp32 here, which is as exact or more",
    "FlexAttention": "its scores are modified by a graph that is data",
    "LinearAttention": "it has no softmax",
}
"""What of attention's operators is not covered, each with the reason."""


@dataclass(frozen=True)
class AttentionCase:
    """One backend test of a single Attention node: its problem, inputs by name, and the Y that ONNX expects."""

    name: str
    problem: Attention
    inputs: Mapping[str, Any]
    output: Any
    rtol: float
    atol: float

    def run(self, runner: Runner) -> Any:
        """The output that `runner` computes, in the shape of Y."""
        o = runner(self.problem, self.inputs)
        return o if self.output.ndim == 4 else o.transpose(0, 2, 1, 3).reshape(self.output.shape)


def attention_cases() -> list[AttentionCase]:
    """Every data set of every test whose model is a single Attention."""
    tests = [test for test in onnx_tests() if operator_of(test) == "Attention"]
    return [_case(test, number, *arrays) for test in tests for number, arrays in enumerate(data_sets(test))]


def _case(test: Any, number: int, fed: list[Any], expected: list[Any]) -> AttentionCase:
    model = model_of(test)
    node = model.graph.node[0]
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    by_name = dict(zip((value.name for value in model.graph.input), fed, strict=True))
    roles = ("q", "k", "v", "mask", "past_k", "past_v", "lengths")
    given = {role: by_name[name] for role, name in zip(roles, node.input, strict=False) if name}
    dtype = DTYPES[model.graph.input[0].type.tensor_type.elem_type]
    problem, inputs = problem_of(given, attributes, dtype)
    return AttentionCase(f"{test.name}:{number}", problem, inputs, expected[0], test.rtol, test.atol)


def problem_of(given: Mapping[str, Any], attributes: Mapping[str, Any], dtype: str) -> tuple[Attention, dict[str, Any]]:
    """The problem of a node, and its inputs."""
    heads = {"q": "q_num_heads", "k": "kv_num_heads", "v": "kv_num_heads"}
    inputs = {name: _four(given[name], attributes.get(heads[name])) for name in heads}
    past = 0
    for name in ("k", "v"):
        if f"past_{name}" in given:
            past = given[f"past_{name}"].shape[2]
            inputs[name] = np.concatenate([given[f"past_{name}"], inputs[name]], axis=2)
    (batch, heads_q, seq_q, head_dim), (_, heads_kv, seq_kv, _) = inputs["q"].shape, inputs["k"].shape
    window = [
        None if size < 0 else size for size in (attributes.get(f"{side}_window_size", -1) for side in ("left", "right"))
    ]
    if attributes.get("is_causal"):
        window[1] = 0
    lengths = given.get("lengths")
    options: dict[str, Any] = {}
    seen = None
    if lengths is not None:
        seen = _seen(window, lengths - seq_q, lengths, seq_q, seq_kv)
    elif window != [None, None] and past not in (0, seq_kv - seq_q):
        seen = _seen(window, np.full(batch, past), np.full(batch, seq_kv), seq_q, seq_kv)
    elif window != [None, None]:
        options = {"window": window, "align": "bottom_right" if past == seq_kv - seq_q else "top_left"}
    mask = given.get("mask")
    if mask is not None:
        padding = seq_kv - mask.shape[-1]
        if mask.shape[-1] == 1 and seq_kv != 1:
            padding = 0
        hide = False if mask.dtype == bool else -np.inf
        mask = np.pad(mask, [(0, 0)] * (mask.ndim - 1) + [(0, padding)], constant_values=hide)
        if mask.dtype == bool and seen is not None:
            mask = mask & seen
            seen = None
        name = "mask" if mask.dtype == bool else "bias"
        options[name], inputs[name] = _placed(mask, (batch, heads_q, seq_q, seq_kv))
    if seen is not None:
        options["mask"], inputs["mask"] = _placed(seen, (batch, heads_q, seq_q, seq_kv))
    problem = Attention.of(
        batch=batch, heads_q=heads_q, heads_kv=heads_kv, seq_q=seq_q, seq_kv=seq_kv, head_dim=head_dim,
        head_dim_v=inputs["v"].shape[3], softcap=attributes.get("softcap", 0.0), scale=attributes.get("scale"),
        dtype=dtype, **options,
    )  # fmt: skip
    return problem, inputs


def _four(array: Any, heads: int | None) -> Any:
    """(B, S, H * D) as (B, H, S, D)."""
    if array.ndim == 4:
        return array
    return array.reshape(*array.shape[:2], heads, -1).transpose(0, 2, 1, 3)


def _seen(window: list[int | None], offset: Any, lengths: Any, seq_q: int, seq_kv: int) -> Any:
    """The window of each batch element as a mask (B, 1, S_q, S_kv), and the keys that it has."""
    at = np.arange(seq_q)[:, None] + offset[:, None, None, None]
    key = np.arange(seq_kv)
    seen = key < lengths[:, None, None, None]
    left, right = window
    if left is not None:
        seen = seen & (key >= at - left)
    if right is not None:
        seen = seen & (key <= at + right)
    return np.broadcast_to(seen, (lengths.size, 1, seq_q, seq_kv))


def _placed(mask: Any, shape: tuple[int, int, int, int]) -> tuple[str, Any]:
    """The kind of a mask that broadcasts to (B, H, S_q, S_kv), and the mask in that kind's shape."""
    mask = mask.reshape((1,) * (4 - mask.ndim) + mask.shape)
    batch, _heads, queries, keys = shape
    if mask.shape[1] != 1:
        return (
            ("full", np.broadcast_to(mask, shape))
            if mask.shape[0] != 1
            else ("head", np.broadcast_to(mask[0], shape[1:]))
        )
    if mask.shape[0] == 1:
        return "pair", np.broadcast_to(mask[0, 0], (queries, keys))
    return "batch", np.broadcast_to(mask[:, 0], (batch, queries, keys))
