"""The peers' calls compute what the problem says: held against the float64 oracle, on PyTorch's CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from convgen.bench import torch_calls
from convgen.bench.judge import Judge, admitted
from convgen.problem import Conv, TensorSpec

torch = pytest.importorskip("torch")

PLAIN = (
    "conv2d n=2 c=4 k=6 in=9x8 filter=3x3 pad=1",
    "conv2d n=2 c=4 k=6 in=9x8 filter=3x2 stride=2x1 pad=0:1x1:0 layout=nhwc",
    "conv2d n=1 c=6 k=6 groups=3 in=11x9 filter=3 dilation=2 pad=2 layout=nhwc",
    "conv2d n=2 c=3 k=3 groups=3 in=8x8 filter=3 pad=1x1",
    "conv2d n=1 c=2 k=3 in=7x6 filter=3 pad=2:1x1:2 pad_mode=reflect",
    "conv2d n=1 c=2 k=3 in=7x6 filter=3 pad=2 pad_mode=replicate layout=nhwc",
    "conv1d n=2 c=4 k=5 in=21 filter=5 stride=2 pad=2",
    "conv1d n=2 c=4 k=4 groups=4 in=21 filter=4 pad=3:0 layout=nlc",
    "conv1d n=2 c=4 k=5 in=21 filter=3 pad=1 pad_mode=reflect",
    "conv3d n=1 c=2 k=3 in=5x6x7 filter=3x1x3 stride=1x2x2 pad=1x0x1 layout=ndhwc",
    "conv3d n=1 c=2 k=3 in=5x6x7 filter=2 pad=0:1x1:0x1:1",
    "conv_transpose2d n=2 c=4 k=6 in=5x6 filter=3 stride=2 pad=1 output_padding=1",
    "conv_transpose2d n=1 c=4 k=6 groups=2 in=5x6 filter=4x3 stride=2 pad=0:1x1:0 layout=nhwc",
    "conv_transpose1d n=1 c=4 k=3 in=9 filter=8 stride=4 pad=2",
)
FUSED = (
    "scale+shift+bias+residual+relu", "bias", "bias+residual+silu", "scale", "shift+gelu", "residual+relu6",
    "bias+hardswish", "leaky_relu",
)  # fmt: skip


def problems() -> list[str]:
    every = [f"{text} direction={d}" for text in PLAIN for d in ("fprop", "dgrad", "wgrad")]
    circular = [
        f"conv2d n=1 c=2 k=3 in=7x6 filter=3 pad=2:1x1:2 pad_mode=circular direction={d}" for d in ("fprop", "wgrad")
    ]
    fused = [f"conv2d n=2 c=4 k=6 in=9x8 filter=3 pad=1 epilogue={epilogue}" for epilogue in FUSED]
    return every + circular + fused + ["conv2d n=2 c=4 k=6 in=9x8 filter=3 pad=1 epilogue=bias+relu accumulate=yes"]


def tensor(spec: TensorSpec, values: Any | None = None) -> Any:
    made = torch.empty_strided(spec.shape, spec.strides, dtype=getattr(torch, torch_calls.DTYPES[spec.dtype]))
    return made if values is None else made.copy_(torch.from_numpy(np.ascontiguousarray(values)).view(made.dtype))


def answers(problem: Conv, judge: Judge, of: Conv) -> Any:
    """What PyTorch computes for `of`, the same problem perhaps in another form."""
    inputs = {spec.name: tensor(spec, judge.arrays[spec.name].reshape(spec.shape)) for spec in of.inputs}
    if problem.accumulate:
        inputs["old"] = tensor(of.outputs[0], judge.arrays["y"])
    result = torch_calls.call_of(of, torch, tensor)(inputs).reshape(problem.outputs[0].shape)
    return {problem.outputs[0].name: in_numpy(result)}


def in_numpy(result: Any) -> Any:
    return result.view(torch.uint16).numpy() if result.dtype == torch.bfloat16 else result.numpy()


@pytest.mark.parametrize("text", problems())
def test_the_call_gives_the_oracles_answer(text: str) -> None:
    problem = Conv.parse(text)
    judge = Judge(problem, np)
    verdict = judge.verdict(answers(problem, judge, problem), admitted(problem))
    assert verdict.ok, verdict.reason


@pytest.mark.parametrize("text", [text for text in PLAIN if text.startswith("conv1d") or "transpose1d" in text])
@pytest.mark.parametrize("direction", ["fprop", "dgrad", "wgrad"])
def test_a_1d_problem_is_a_2d_one_of_height_1(text: str, direction: str) -> None:
    problem = Conv.parse(f"{text} direction={direction}")
    judge = Judge(problem, np)
    verdict = judge.verdict(answers(problem, judge, torch_calls.unsqueezed(problem)), admitted(problem))
    assert verdict.ok, verdict.reason


def test_bf16_travels_as_its_bits() -> None:
    problem = Conv.parse("conv2d n=2 c=4 k=6 in=9x8 filter=3 pad=1 dtype=bf16 layout=nhwc")
    judge = Judge(problem, np)
    verdict = judge.verdict(answers(problem, judge, problem), admitted(problem))
    assert verdict.ok, verdict.reason


def test_what_pytorch_cannot_express_has_a_reason() -> None:
    assert "int8" in (torch_calls.why_not(Conv.parse("conv2d c=4 k=4 in=8 filter=3 dtype=int8")) or "")
    assert "fp8" in (torch_calls.why_not(Conv.parse("conv2d c=4 k=4 in=8 filter=3 dtype=fp8")) or "")
    circular = "conv2d c=4 k=4 in=8 filter=3 pad=1 pad_mode=circular direction=dgrad"
    assert "circular" in (torch_calls.why_not(Conv.parse(circular)) or "")
    assert torch_calls.why_not(Conv.parse("conv2d c=4 k=4 in=8 filter=3 dtype=tf32")) is None
