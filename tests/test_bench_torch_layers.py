"""The peers' pooling, batch normalisation and attention compute what the problem says, on PyTorch's CPU."""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from convgen.bench import peers, torch_attention, torch_layers
from convgen.bench.judge import Judge, admitted
from convgen.bench.peers import Refused, TorchContestant, TorchPeers, forms
from convgen.bench.torch_calls import DTYPES
from convgen.problem import Attention, BatchNorm, DType, Layout, Pool, Problem, TensorSpec, parse_problem

torch = pytest.importorskip("torch")

POOLS = (
    "max_pool2d n=2 c=4 in=13x12 filter=3 stride=2 pad=1",
    "max_pool2d n=2 c=4 in=13x12 filter=3x2 stride=1 pad=1 dilation=2x1 ceil_mode=yes layout=nhwc dtype=bf16",
    "max_pool1d n=2 c=4 in=21 filter=3 stride=2 pad=1 layout=nlc",
    "max_pool3d n=1 c=4 in=5x6x7 filter=2 ceil_mode=yes layout=ndhwc",
    "avg_pool2d n=2 c=4 in=13x12 filter=3 stride=2 pad=1 ceil_mode=yes",
    "avg_pool2d n=2 c=4 in=13x12 filter=3x2 pad=1x0 count_include_pad=no layout=nhwc",
    "avg_pool2d n=2 c=4 in=7x7 filter=7 divisor_override=3",
    "avg_pool1d n=2 c=4 in=21 filter=4 stride=3 pad=2",
    "avg_pool3d n=1 c=4 in=5x6x7 filter=2x3x2 layout=ndhwc",
)
NORMS = (
    "batch_norm n=4 c=6 in=7x5 mode=training",
    "batch_norm n=4 c=6 in=7x5 mode=training momentum=0.3 eps=0.01 residual=yes activation=relu layout=nhwc",
    "batch_norm n=4 c=6 in=7x5 mode=training running=no activation=relu dtype=bf16",
    "batch_norm n=4 c=6 in=21 mode=training layout=nlc",
    "batch_norm n=9 c=6 mode=training",
    "batch_norm n=2 c=6 in=3x4x5 layout=ndhwc activation=leaky_relu slope=0.2",
    "batch_norm n=4 c=6 in=7x5 dtype=bf16",
)
ATTENTIONS = (
    "attention batch=2 heads_q=4 heads_kv=2 seq_q=1 seq_kv=19 head_dim=16 causal=bottom_right",
    "attention batch=2 heads_q=4 heads_kv=2 seq_q=9 seq_kv=12 head_dim=16",
    "attention batch=2 heads_q=2 seq_q=9 head_dim=16 causal=top_left scale=0.3 layout=bshd",
    "attention batch=2 heads_q=2 seq_q=9 seq_kv=12 head_dim=16 head_dim_v=8 mask=batch",
    "attention batch=2 heads_q=2 seq_q=9 seq_kv=12 head_dim=16 bias=head",
    "attention batch=2 heads_q=2 seq_q=9 seq_kv=12 head_dim=16 bias=key dtype=bf16",
)  # fmt: skip


@pytest.fixture
def no_cudnn() -> Any:
    """PyTorch with its decomposition of cuDNN's normalisation in place of the operator, which the CPU has not."""
    from torch._decomp.decompositions import cudnn_batch_norm

    aten = types.SimpleNamespace(cudnn_batch_norm=cudnn_batch_norm)
    return types.SimpleNamespace(ops=types.SimpleNamespace(aten=aten), nn=torch.nn)


def tensor(spec: TensorSpec, values: Any) -> Any:
    dtype = torch.uint8 if spec.dtype is DType.UINT8 else getattr(torch, DTYPES[spec.dtype])
    made = torch.empty_strided(spec.shape, spec.strides, dtype=dtype)
    bits = torch.from_numpy(np.ascontiguousarray(values).reshape(spec.shape))
    return made.copy_(bits.view(dtype))


def judged(problem: Problem, of: Any, call: Any) -> None:
    """Hold what PyTorch computes for `of`, the same problem perhaps in another form, against the oracle."""
    judge = Judge(problem, np)
    results = call({spec.name: tensor(spec, judge.arrays[spec.name]) for spec in of.inputs})
    results = results if isinstance(results, tuple) else (results,)
    got = {}
    for spec, result in zip(problem.outputs, results, strict=True):
        bits = result.view(torch.uint16) if result.dtype == torch.bfloat16 else result
        got[spec.name] = bits.numpy().reshape(spec.shape)
    verdict = judge.verdict(got, admitted(problem))
    assert verdict.ok, verdict.reason


@pytest.mark.parametrize("text", POOLS)
def test_pooling(text: str) -> None:
    problem = Pool.parse(text)
    for _, form in forms(problem):
        assert torch_layers.why_not(form, "aten") is None
        judged(problem, form, torch_layers.call_of(form, "aten", torch))


@pytest.mark.parametrize("backend", ["aten", "torch"])
@pytest.mark.parametrize("text", NORMS)
def test_batch_norm(text: str, backend: str) -> None:
    problem = BatchNorm.parse(text)
    for _, form in forms(problem):
        judged(problem, form, torch_layers.call_of(form, backend, torch))


@pytest.mark.parametrize("text", NORMS)
def test_cudnns_batch_norm(text: str, no_cudnn: Any) -> None:
    problem = BatchNorm.parse(text)
    for _, form in forms(problem):
        judged(problem, form, torch_layers.call_of(form, "cudnn", no_cudnn))


@pytest.mark.parametrize("text", ATTENTIONS)
def test_attention(text: str) -> None:
    problem = Attention.parse(text)
    assert torch_attention.why_not(problem) is None
    judged(problem, problem, torch_attention.call_of(problem, torch))


def test_what_torch_returns_first_is_its_batch_norm() -> None:
    problem = BatchNorm.parse(NORMS[0])
    given = {spec.name: tensor(spec, Judge(problem, np).arrays[spec.name]) for spec in problem.inputs}
    running = given["mean"].clone(), given["var"].clone()
    expected = torch.nn.functional.batch_norm(given["x"], *running, given["scale"], given["bias"], True)
    assert torch.equal(torch_layers.call_of(problem, "torch", torch)(given)[0], expected)
    assert torch.equal(given["mean"], running[0])
    assert torch.equal(given["var"], running[1])


class OnCpu(TorchPeers):
    """The peers with NumPy for CuPy, and no stream."""

    def __init__(self, against: Sequence[str]) -> None:
        self.torch, self.cupy, self.against = torch, np, tuple(against)
        self.stream = types.SimpleNamespace(synchronize=lambda: None)
        self._tensors = {}

    def active(self, benchmark: bool, tf32: bool) -> Any:
        return torch.no_grad()


@pytest.fixture
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> Callable[..., OnCpu]:
    monkeypatch.setattr(peers, "DEVICE", "cpu")
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    return OnCpu


@pytest.mark.parametrize("text", [*POOLS, *NORMS])
def test_contestants_answer_in_every_format_from_our_buffers(on_cpu: Callable[..., OnCpu], text: str) -> None:
    problem = parse_problem(text)
    judge = Judge(problem, np)
    before = {name: values.copy() for name, values in judge.arrays.items()}
    answered = []
    for peer in on_cpu(["cudnn", "torch"]).contestants(problem, [judge.arrays]):
        if peer.name.startswith("cudnn"):
            continue
        assert isinstance(peer, TorchContestant)
        verdict = judge.verdict(peer.answers(problem.outputs), admitted(problem))
        assert verdict.ok, f"{peer.name}: {verdict.reason}"
        answered.append(peer.name.split("_", 1))
    assert {form for _, form in answered} == {name for name, _ in forms(problem)}
    assert {backend for backend, _ in answered} == ({"aten"} if isinstance(problem, Pool) else {"aten", "torch"})
    # Training writes running statistics, but the buffers are other contestants' inputs as well.
    for name, values in judge.arrays.items():
        np.testing.assert_array_equal(values, before[name])


def test_a_peer_that_cannot_do_it_says_why(on_cpu: Callable[..., OnCpu]) -> None:
    problem = Pool.parse("max_pool2d c=4 in=8x8 filter=3 pad=1:0x0:1")
    refused = list(on_cpu(["cudnn"]).contestants(problem, [Judge(problem, np).arrays]))
    assert [peer.name for peer in refused] == ["aten_nchw", "aten_nhwc"]
    assert all(isinstance(peer, Refused) and "both sides alike" in peer.reason for peer in refused)


@pytest.mark.parametrize(
    ("text", "backend", "words"),
    [
        ("max_pool2d c=4 in=8x8 filter=3 pad=1:0x0:1", "aten", "both sides alike"),
        ("max_pool2d c=4 in=8x8 filter=3 pad=2", "aten", "half a window"),
        ("avg_pool2d c=4 in=8x8 filter=2 dilation=2", "aten", "no dilation"),
        ("avg_pool1d c=4 in=8 filter=2 divisor_override=3", "aten", "divisor_override"),
        ("max_pool2d c=4 in=8x8 filter=3 dtype=int8", "aten", "int8"),
        ("batch_norm n=4 c=4 in=8 mode=training affine=no", "cudnn", "scale and bias"),
    ],
)
def test_what_pytorch_cannot_do_has_a_reason(text: str, backend: str, words: str) -> None:
    problem: Any = parse_problem(text)
    assert words in (torch_layers.why_not(problem, backend) or "")


def test_what_it_can_do_in_another_form_is_left_to_that() -> None:
    problem = Pool.parse("avg_pool1d c=4 in=8 filter=2 divisor_override=3")
    reasons = {name: torch_layers.why_not(form, "aten") for name, form in forms(problem)}
    assert reasons["1d_nhwc"] is None


def test_forms_and_backends() -> None:
    image, rows = BatchNorm.parse("batch_norm n=4 c=6 in=7"), BatchNorm.parse("batch_norm n=4 c=6 mode=training")
    assert [(name, form.spatial, form.layout) for name, form in forms(image)] == [
        ("nchw", (7,), Layout.CHANNELS_FIRST),
        ("1d_nhwc", (1, 7), Layout.CHANNELS_LAST),
    ]
    assert forms(rows) == [("nchw", rows)]
    assert torch_layers.backends(image, "cudnn") == ("cudnn", "aten")
    assert torch_layers.backends(image, "torch") == ("torch",)
    pool = Pool.parse(POOLS[0])
    assert torch_layers.backends(pool, "cudnn") == torch_layers.backends(pool, "torch") == ("aten",)
