"""scaled_dot_product_attention of CuPy arrays and CUDA tensors, on a real GPU, against float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gpu_arrays import Arrays, CupyArrays, Predicting, TorchArrays, check, inputs_of

import convgen
from convgen.api import functions
from convgen.api.attention import AttentionDispatcher
from convgen.api.choice import Chooser
from convgen.errors import UsageError
from convgen.problem import Attention

pytestmark = pytest.mark.gpu

sdpa = convgen.scaled_dot_product_attention


@pytest.fixture(scope="module")
def shared() -> AttentionDispatcher:
    """One for all tests, so that a kernel is compiled once."""
    return AttentionDispatcher(Chooser(Predicting))


@pytest.fixture(autouse=True)
def dispatcher(monkeypatch: pytest.MonkeyPatch, shared: AttentionDispatcher) -> None:
    monkeypatch.setattr(functions, "ATTENTION", shared)


CAUSAL = "attention batch=2 heads_q=4 heads_kv=2 seq_q=40 head_dim=32 causal=top_left dtype=fp16"
GROUPED = {"is_causal": True, "enable_gqa": True}

CALLS = [
    (CAUSAL, GROUPED),
    (
        "attention batch=2 heads_q=3 seq_q=33 seq_kv=50 head_dim=32 window=20:5 align=top_left softcap=8.0 lse=yes "
        "dtype=bf16 layout=bshd",
        {"window": (20, 5), "softcap": 8.0, "return_lse": True},
    ),
    (
        "attention batch=2 heads_q=2 seq_q=20 seq_kv=35 head_dim=16 head_dim_v=24 scale=0.3 alibi=yes sink=yes lse=yes "
        "align=top_left",
        {"scale": 0.3, "return_lse": True},
    ),
]


@pytest.mark.parametrize(("text", "options"), CALLS)
def test_calls_against_the_oracle(arrays: Arrays, text: str, options: dict[str, Any]) -> None:
    problem = Attention.parse(text)
    o = problem.tensor("o")
    for seed in range(2):  # the first call binds, the second finds it
        inputs = inputs_of(problem, seed)
        given = [arrays.of(spec, inputs[spec.name]) for spec in problem.inputs]
        named = dict(zip(("alibi_slopes", "sink"), given[3:], strict=False))
        result = sdpa(*given[:3], **options, **named)
        y, *lse = result if problem.lse else (result,)
        assert (type(y), tuple(y.shape), y.dtype) == (type(given[0]), o.shape, given[0].dtype)
        assert arrays.strides(y) == o.strides
        check(problem, inputs, dict(zip(("o", "lse"), map(arrays.host, (y, *lse)), strict=False)))


def test_a_bool_mask_of_one_head_and_no_batch(arrays: Arrays) -> None:
    """Which broadcasts over the keys, too: a query sees all or nothing."""
    problem = Attention.parse("attention batch=3 heads_q=1 seq_q=20 seq_kv=35 head_dim=16 mask=pair")
    q, k, v, mask = problem.inputs
    inputs = inputs_of(problem)
    given = [arrays.of(spec, inputs[spec.name])[:, 0] for spec in (q, k, v)]
    seen = arrays.of(mask, inputs["mask"])
    y = sdpa(*given, seen)
    assert tuple(y.shape) == (3, 20, 16)
    check(problem, inputs, {"o": arrays.host(y)[:, None]})
    whole = inputs | {"mask": np.broadcast_to(inputs["mask"][:, :1], mask.shape)}
    check(problem, whole, {"o": arrays.host(sdpa(*given, seen[:, :1]))[:, None]})
    check(problem.at(batch=1), {name: a[:1] if name != "mask" else a for name, a in inputs.items()},
          {"o": arrays.host(sdpa(*(a[0] for a in given), seen))[None, None]})  # fmt: skip


def test_a_bias_that_broadcasts(arrays: Arrays) -> None:
    """(1, H, 1, S) is repeated over the queries; beside it a mask of its own would hide."""
    problem = Attention.parse("attention batch=2 heads_q=4 seq_q=17 seq_kv=40 head_dim=32 bias=head dtype=fp16")
    inputs = inputs_of(problem)
    q, k, v, bias = (arrays.of(spec, inputs[spec.name]) for spec in problem.inputs)
    check(problem, inputs, {"o": arrays.host(sdpa(q, k, v, bias))})
    row = inputs | {"bias": np.broadcast_to(inputs["bias"][:, :1], inputs["bias"].shape)}
    check(problem, row, {"o": arrays.host(sdpa(q, k, v, bias[None, :, :1]))})


def test_views_and_an_output_given(arrays: Arrays) -> None:
    """(B, S, H, D) memory of one projection, a misaligned start, an output over the query."""
    problem = Attention.parse(f"{CAUSAL} layout=bshd")
    inputs = inputs_of(problem)
    q, k, v = (arrays.of(spec, inputs[spec.name]) for spec in problem.inputs)
    expected = arrays.host(sdpa(q, k, v, **GROUPED))
    check(problem, inputs, {"o": expected})
    wide = Attention.parse("attention batch=2 heads_q=8 seq_q=40 head_dim=33 dtype=fp16 layout=bshd").inputs[0]
    packed = arrays.empty(wide)
    views = packed[:, :4, :, 1:], packed[:, 4:6, :, 1:], packed[:, 6:, :, 1:]
    for view, array in zip(views, (q, k, v), strict=True):
        view[...] = array
    check(problem, inputs, {"o": arrays.host(sdpa(*views, **GROUPED))})
    out = arrays.empty(problem.outputs[0])
    assert sdpa(q, k, v, out=out, **GROUPED) is out
    np.testing.assert_array_equal(arrays.host(out), expected)
    assert sdpa(q, k, v, out=q, **GROUPED) is q
    np.testing.assert_array_equal(arrays.host(q), expected)


def test_a_growing_cache_meets_one_kernel(arrays: Arrays, shared: AttentionDispatcher) -> None:
    text = "attention batch=2 heads_q=4 heads_kv=2 seq_q=1 seq_kv={} head_dim=48 causal=bottom_right dtype=fp16"
    whole = Attention.parse(text.format(300))
    inputs = inputs_of(whole)
    q, k, v = (arrays.of(spec, inputs[spec.name]) for spec in whole.inputs)
    for keys in (1, 17, 128, 300):
        problem = Attention.parse(text.format(keys))
        y = sdpa(q, k[:, :, :keys], v[:, :, :keys], align="bottom_right", **GROUPED)
        seen = inputs | {name: inputs[name][:, :, :keys] for name in ("k", "v")}
        check(problem, seen, {"o": arrays.host(y)})
    kernels = [problem for _, problem, *_ in shared._calls._programs if problem.head_dim == whole.head_dim]
    assert len(kernels) == 1


def test_numpy_arrays_go_through_the_gpu() -> None:
    problem = Attention.parse(CALLS[2][0])
    inputs = inputs_of(problem)
    q, k, v, alibi, sink = (inputs[spec.name].astype(np.float32) for spec in problem.inputs)
    y, lse = sdpa(q, k, v, alibi_slopes=alibi, sink=sink, **CALLS[2][1])
    assert isinstance(y, np.ndarray)
    check(problem, inputs, {"o": y, "lse": lse})


# --- streams, graphs, gradients -----------------------------------------------------------------------


def test_the_callers_stream_orders_the_work(cupy: Any) -> None:
    q, k, v = (cupy.zeros((8, 4, 256, 64), np.float16) for _ in range(3))
    sdpa(q, k, v)
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    with stream:
        for _ in range(200):  # work the result must wait for
            v += 1
        y = sdpa(q, k, v)
        y += 1
    stream.synchronize()
    assert (abs(y - 201) < 1).all()


def test_a_graph_replays_with_new_data(cupy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first call is captured, one of decoding, which needs a workspace; others are given memory in between."""
    monkeypatch.setattr(functions, "ATTENTION", AttentionDispatcher(Chooser(Predicting)))
    arrays = CupyArrays(cupy)
    problem = Attention.parse("attention batch=2 heads_q=4 heads_kv=2 seq_q=1 seq_kv=300 head_dim=64 dtype=fp16")
    inputs = inputs_of(problem)
    given = [arrays.of(spec, inputs[spec.name]) for spec in problem.inputs]
    out = arrays.empty(problem.outputs[0])
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    with stream:
        stream.begin_capture()
        sdpa(*given, enable_gqa=True, out=out)
        graph = stream.end_capture()
        others = [cupy.full(size, 7, np.float32) for size in (128, 1024, 8192, 1 << 16, 1 << 18) for _ in range(4)]
        for seed in range(2):
            inputs = inputs_of(problem, seed)
            for array, spec in zip(given, problem.inputs, strict=True):
                arrays.fill(array, inputs[spec.name])
            graph.launch()
            stream.synchronize()
            check(problem, inputs, {"o": arrays.host(out)})
        assert all((other == 7).all() for other in others)


def test_a_graph_of_pytorch(torch: Any) -> None:
    arrays, problem = TorchArrays(torch), Attention.parse(CALLS[1][0])
    inputs = inputs_of(problem)
    given = [arrays.of(spec, inputs[spec.name]) for spec in problem.inputs]
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        y, lse = sdpa(*given, **CALLS[1][1])
    side.synchronize()
    check(problem, inputs, {"o": arrays.host(y), "lse": arrays.host(lse)})
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y, lse = sdpa(*given, **CALLS[1][1])
    for seed in range(1, 3):
        inputs = inputs_of(problem, seed)
        for array, spec in zip(given, problem.inputs, strict=True):
            arrays.fill(array, inputs[spec.name])
        graph.replay()
        torch.cuda.synchronize()
        check(problem, inputs, {"o": arrays.host(y), "lse": arrays.host(lse)})


def test_as_pytorch_has_it(torch: Any) -> None:
    """Views of a projection, as models make them; and no gradient but under no_grad."""
    qkv = torch.randn(2, 40, 3, 4, 32, device="cuda", dtype=torch.float16, requires_grad=True)
    with pytest.raises(UsageError, match="query, key, value requires grad"):
        sdpa(*qkv.permute(2, 0, 3, 1, 4), is_causal=True)
    with torch.no_grad():
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        torch.testing.assert_close(sdpa(q, k, v, is_causal=True), expected, rtol=2e-3, atol=2e-3)
    with pytest.raises(UsageError, match="query: a tensor is on cpu"):
        sdpa(torch.zeros(1, 1, 4, 8), k.detach(), v.detach())
