"""Float8 arrays, and results of another type than the input's: in the simulator, then on a real GPU."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from gpu_arrays import Predicting

import convgen
from convgen.api import dispatch, functions
from convgen.errors import NotApplicableError, UsageError
from convgen.lowering import lower
from convgen.plan import Numerics
from convgen.problem import Conv
from convgen.reference import bound, compare, decode, encode, model_of, reference
from convgen.runtime.cuda import CudaProgram
from convgen.strategies import get_strategy
from convgen.target import Target

FLOAT8 = np.dtype(ml_dtypes.float8_e4m3fn)
X8, W8 = np.zeros((2, 16, 8, 8), FLOAT8), np.zeros((16, 16, 3, 3), FLOAT8)


@pytest.fixture(autouse=True)
def dispatcher(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[None]:
    """Without the mark "gpu", NumPy's arrays are computed in the simulator."""
    monkeypatch.setattr(functions, "DISPATCHER", dispatch.Dispatcher(Predicting))
    if not request.node.get_closest_marker("gpu"):
        monkeypatch.setattr(dispatch, "has_gpu", lambda: False)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="no GPU")
        yield


def _random(*shape: int, seed: int = 0, dtype: Any = np.float32) -> Any:
    return np.random.default_rng(seed + sum(shape)).standard_normal(shape).astype(dtype)


def _integers(*shape: int) -> Any:
    return np.random.default_rng(sum(shape)).integers(-2, 3, shape).astype(FLOAT8)


def _check(problem: str, y: Any, *, exact: bool = False, **tensors: Any) -> None:
    """Against float64 on the values that the arrays stand for, within the bound that the kernel states, which tensor
    cores that add with 13 bits make wide; `exact`: they are small integers, so the output's rounding is all there is.
    """
    conv = Conv.parse(problem)
    plan = lower(conv, get_strategy("wgmma_implicit_gemm"), None, Target.preset("h200"))
    numerics = Numerics() if exact else plan.numerics
    numbers = {name: decode(encode(array.astype(float), conv.tensor(name).dtype), conv.tensor(name).dtype)
               for name, array in tensors.items()}  # fmt: skip
    expected = reference(conv, numbers)
    outcome = compare(conv.outputs[0], y.astype(float), expected,
                      bound(conv, numbers, expected, model_of(conv, numerics)))  # fmt: skip
    assert outcome.ok, outcome.report()


# --- in the simulator ---------------------------------------------------------------------------------


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize(
    ("out_dtype", "word", "kind"),
    [
        (None, "fp8", FLOAT8),
        ("float8_e4m3fn", "fp8", FLOAT8),
        ("float32", "fp32", np.float32),
        (np.dtype("float16"), "fp16", np.float16),
        (ml_dtypes.bfloat16, "bf16", ml_dtypes.bfloat16),
    ],
)
def test_float8(out_dtype: Any, word: str, kind: Any, channels_last: bool) -> None:
    x, w = _integers(2, 32, 6, 5), _integers(16, 32, 3, 3)
    if channels_last:
        x = np.ascontiguousarray(x.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
    y = convgen.conv2d(x, w, padding=1, out_dtype=out_dtype)
    assert y.dtype == kind
    assert y.transpose(0, 2, 3, 1).flags.c_contiguous == channels_last
    layout = "nhwc" if channels_last else "nchw"
    text = f"conv2d n=2 c=32 k=16 in=6x5 filter=3 pad=1 dtype=fp8 out_dtype={word} layout={layout}"
    _check(text, y, exact=True, x=x, w=w)


def test_float8_in_one_and_three_dimensions() -> None:
    x, w = _random(1, 32, 9, dtype=FLOAT8), _random(8, 32, 3, dtype=FLOAT8)
    y = convgen.conv1d(x, w, stride=2, out_dtype="float32")
    _check("conv1d n=1 c=32 k=8 in=9 filter=3 stride=2 dtype=fp8 out_dtype=fp32", y, x=x, w=w)
    x, w = _integers(1, 16, 3, 4, 5), _integers(8, 16, 2, 1, 3)
    y = convgen.conv3d(x, w, out_dtype="float32")
    _check("conv3d n=1 c=16 k=8 in=3x4x5 filter=2x1x3 dtype=fp8 out_dtype=fp32", y, exact=True, x=x, w=w)


def test_what_is_fused_with_float8() -> None:
    """Scale, shift and bias are float32, the residual is of the output's type; without a batch, from a slice."""
    x, w = _random(64, 9, dtype=FLOAT8)[::2], _random(8, 32, 3, dtype=FLOAT8)
    scale, shift, b = _random(8, seed=1), _random(8, seed=2), _random(8, seed=3)
    r = _random(8, 9, dtype=ml_dtypes.bfloat16)
    fused = {"scale": scale, "shift": shift, "activation": "relu", "out_dtype": "bfloat16"}
    y = convgen.conv1d(x, convgen.prepare(w), b, padding=1, residual=r, **fused)
    text = "conv1d n=1 c=32 k=8 in=9 filter=3 pad=1 dtype=fp8 out_dtype=bf16 epilogue=scale+shift+bias+residual+relu"
    _check(text, y[None], x=x[None], w=w, scale=scale, shift=shift, bias=b, residual=r[None])
    out = np.zeros_like(y)
    assert convgen.conv1d(x, w, b, padding=1, residual=r, out=out, **fused) is out
    np.testing.assert_array_equal(out.view(np.uint16), y.view(np.uint16))


def test_results_of_float8_saturate_unless_they_are_scaled() -> None:
    x, w = np.full((1, 32, 8), 4, FLOAT8), np.full((8, 32, 1), 8, FLOAT8)
    assert set(convgen.conv1d(x, w).astype(float).ravel()) == {448}
    scaled = convgen.conv1d(x, w, scale=np.full(8, 2**-4, np.float32))
    assert (scaled.dtype, set(scaled.astype(float).ravel())) == (FLOAT8, {64})


def test_results_of_another_type_are_rounded_to_that_alone() -> None:
    """2049 is no number of float16."""
    x, w = np.array([[[2048], [1]]], np.float16), np.ones((1, 2, 1), np.float16)
    for out_dtype, expected in (("float32", 2049), (None, 2048), (np.float32, 2049)):
        y = convgen.conv1d(x, w, out_dtype=out_dtype)
        assert (y.dtype, y.item()) == (out_dtype or np.float16, expected)
    weight = convgen.prepare(w, x.shape, out_dtype="float32")
    assert convgen.conv1d(x, weight, out_dtype="float32").item() == 2049


# --- what is refused ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arrays", "options", "message"),
    [
        ((X8.view(ml_dtypes.float8_e5m2), W8), {}, "input is float8_e5m2, expected .*bfloat16, float8_e4m3fn$"),
        ((X8, W8.astype(np.float16)), {}, "weight is float16, expected float8_e4m3fn as input is"),
        ((X8.astype(np.float32), W8), {}, "weight is float8_e4m3fn, expected float32 as input is"),
        ((X8, W8, np.zeros(16, FLOAT8)), {}, "bias is float8_e4m3fn, expected float32$"),
        ((X8, W8), {"out": np.zeros((2, 16, 6, 6), np.float32)},
         "out is float32, expected float8_e4m3fn, or out_dtype='float32'"),
        ((X8, W8), {"residual": np.zeros((2, 16, 6, 6), FLOAT8), "out_dtype": "float16"},
         "residual is float8_e4m3fn, expected float16, or out_dtype='float8_e4m3fn'"),
    ],
)  # fmt: skip
def test_float8_arrays_that_do_not_fit(arrays: tuple[Any, ...], options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        convgen.conv2d(*arrays, **options)


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda: convgen.conv2d(X8[:, :3], W8[:, :3]), "3 channels would be padded to 16"),
        (lambda: convgen.conv_transpose2d(X8, W8.transpose(1, 0, 2, 3)), "conv_transpose2d fprop has no kernel"),
    ],
)
def test_what_no_kernel_computes_of_float8(call: Any, reason: str) -> None:
    with pytest.raises(NotApplicableError, match=f"dtype=fp8.*{reason}.*; take dtype=fp16 or bf16: they hold every"):
        call()


def test_float8_is_for_convolutions() -> None:
    for call in (lambda: convgen.max_pool2d(X8, 2), lambda: convgen.scaled_dot_product_attention(X8, X8, X8)):
        with pytest.raises(UsageError, match=r"is float8_e4m3fn, expected float32, float16, bfloat16$"):
            call()


# --- on the card --------------------------------------------------------------------------------------


@pytest.fixture
def hopper() -> None:
    if Target.current().compute_capability != (9, 0):
        pytest.skip("float8 is computed on Hopper alone")


@pytest.fixture
def long_ways(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What went through `CudaProgram.run`, which a warm call is not to need."""
    taken: list[str] = []
    run = CudaProgram.run

    def counted(self: CudaProgram, *arguments: Any, **options: Any) -> Any:
        taken.append(str(self.plan.problem))
        return run(self, *arguments, **options)

    monkeypatch.setattr(CudaProgram, "run", counted)
    return taken


def _values(tensor: Any) -> Any:
    return tensor.float().cpu().numpy()


@pytest.mark.gpu
@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("out_dtype", [None, "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_float8_tensors(torch: Any, long_ways: list[str], out_dtype: str | None, layout: str) -> None:
    form = torch.channels_last if layout == "nhwc" else torch.contiguous_format
    wanted = torch.float8_e4m3fn if out_dtype is None else getattr(torch, out_dtype)
    word = {None: "fp8", "float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}[out_dtype]
    text = f"conv2d n=2 c=64 k=48 in=14x13 filter=3 pad=1 dtype=fp8 out_dtype={word} layout={layout}"

    def on_gpu(values: Any) -> Any:
        return torch.from_numpy(values.astype(np.float32)).cuda().to(memory_format=form).to(torch.float8_e4m3fn)

    for exact in (False, False, True):  # the first binds, the others are warm and read new data
        draw = _integers if exact else _random
        x, w = on_gpu(draw(2, 64, 14, 13)), on_gpu(draw(48, 64, 3, 3))
        for weight in (w, convgen.prepare(w)):
            y = convgen.conv2d(x, weight, padding=1, out_dtype=None if out_dtype is None else wanted)
            assert y.dtype == wanted
            assert y.is_contiguous(memory_format=form)
            _check(text, _values(y), exact=exact, x=_values(x), w=_values(w))
    assert long_ways == []


@pytest.mark.gpu
@pytest.mark.usefixtures("hopper")
def test_what_is_fused_with_float8_tensors(torch: Any) -> None:
    """A slice without a batch, a weight of another layout, and an output given: all that is copied first."""
    generator = torch.Generator("cuda").manual_seed(0)

    def random(*shape: int, dtype: Any = torch.float32) -> Any:
        return torch.randn(shape, device="cuda", generator=generator).to(dtype)

    x = random(12, 10, 64, dtype=torch.float8_e4m3fn).permute(2, 0, 1)[::2]
    w = random(16, 32, 3, 3, dtype=torch.float8_e4m3fn)
    scale, shift, bias = random(16), random(16), random(16)
    r, out = random(16, 12, 10, dtype=torch.bfloat16), torch.zeros(16, 12, 10, device="cuda", dtype=torch.bfloat16)
    fused = {"scale": scale, "shift": shift, "residual": r, "activation": "relu", "out_dtype": torch.bfloat16}
    text = "conv2d n=1 c=32 k=16 in=12x10 filter=3 pad=1 dtype=fp8 out_dtype=bf16 layout=nhwc"
    text += " epilogue=scale+shift+bias+residual+relu"
    host = {"w": w, "scale": scale, "shift": shift, "bias": bias, "x": x[None], "residual": r[None]}
    for given in (None, out):
        y = convgen.conv2d(x, w, bias, padding=1, out=given, **fused)
        assert given is None or y is given
        _check(text, _values(y[None]), **{name: _values(tensor) for name, tensor in host.items()})


@pytest.mark.gpu
@pytest.mark.usefixtures("hopper")
def test_float8_tensors_that_are_refused(torch: Any) -> None:
    x = torch.ones(1, 32, 8, 8, device="cuda").to(torch.float8_e4m3fn)
    w = torch.ones(16, 32, 3, 3, device="cuda").to(torch.float8_e4m3fn)
    with pytest.raises(UsageError, match="weight is float16, expected float8_e4m3fn as input is"):
        convgen.conv2d(x, w.to(torch.float16))
    with pytest.raises(UsageError, match="input is float8_e5m2, expected"):
        convgen.conv2d(x.float().to(torch.float8_e5m2), w)
    with pytest.raises(UsageError, match=r"^weight requires grad.*backward pass"):
        convgen.conv2d(x, w.requires_grad_())


@pytest.mark.gpu
@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("out_dtype", [None, "float32", "bfloat16"])
def test_float8_of_ml_dtypes(cupy: Any, out_dtype: str | None) -> None:
    """CuPy arrays, dense and not, and NumPy's, which go through the GPU."""
    x, w = (_random(*shape).astype(FLOAT8) for shape in ((2, 32, 9, 8), (16, 32, 3, 3)))
    word = {None: "fp8", "float32": "fp32", "bfloat16": "bf16"}[out_dtype]
    on_gpu, weight = (cupy.asarray(array.view(np.uint8)).view(array.dtype) for array in (x, w))
    text = f"conv2d n=2 c=32 k=16 in=9x8 filter=3 dtype=fp8 out_dtype={word}"
    for host, given in ((x, on_gpu), (x[:, ::-1], on_gpu[:, ::-1])):
        expected = {"x": host.astype(float), "w": w.astype(float)}
        y = convgen.conv2d(given, weight, out_dtype=out_dtype)
        assert isinstance(y, cupy.ndarray)
        bits = y.view(f"u{y.itemsize}").get()
        for result in (bits.view(y.dtype), convgen.conv2d(host, w, out_dtype=out_dtype)):
            assert result.dtype == (out_dtype or "float8_e4m3fn")
            _check(text, result.astype(float), **expected)
