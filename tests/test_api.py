"""The embedding API on NumPy arrays, run in the simulator, against the float64 oracle and PyTorch."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import convgen
from convgen.api import dispatch, functions, host
from convgen.api.decision import Decision, predicted
from convgen.errors import ProblemError, UsageError
from convgen.problem import Conv
from convgen.reference import bound, compare, decode, encode, reference, strict_model
from convgen.target import Target


class Predicting:
    """A decider that has no database."""

    def ranked(self, problem: Conv, target: Target) -> tuple[Decision, ...]:
        return predicted(problem, target)

    def tune(self, problem: Conv, target: Target, device: int, **limits: Any) -> None:
        raise AssertionError("the simulator is not tuned for")


@pytest.fixture(autouse=True)
def simulated(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(functions, "DISPATCHER", dispatch.Dispatcher(Predicting))
    monkeypatch.setattr(dispatch, "has_gpu", lambda: False)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="no GPU")
        yield


def _random(*shape: int, seed: int = 0, dtype: Any = np.float32) -> Any:
    return np.random.default_rng(seed + sum(shape)).standard_normal(shape).astype(dtype)


def _check(problem: str, y: Any, **tensors: Any) -> None:
    """Compare with the oracle of the problem, whose tensors are named as in it."""
    conv = Conv.parse(problem)
    [spec] = conv.outputs
    assert y.shape == spec.shape
    numbers = {name: decode(encode(array, conv.tensor(name).dtype), conv.tensor(name).dtype)
               for name, array in tensors.items()}  # fmt: skip
    expected = reference(conv, numbers)
    got = y.view(np.uint16) if y.dtype == ml_dtypes.bfloat16 else y
    outcome = compare(conv.outputs[0], got, expected, bound(conv, numbers, expected, strict_model(conv)))
    assert outcome.ok, outcome.report()


# --- the operations, against the oracle ---------------------------------------------------------------


def test_conv1d() -> None:
    x, w, b = _random(2, 4, 17), _random(6, 2, 3), _random(6)
    y = convgen.conv1d(x, w, b, 2, 1, 2, 2)
    _check("conv1d n=2 c=4 k=6 in=17 filter=3 stride=2 pad=1 dilation=2 groups=2 epilogue=bias", y, x=x, w=w, bias=b)


def test_conv2d() -> None:
    x, w, b = _random(2, 3, 9, 8), _random(4, 3, 3, 2), _random(4)
    y = convgen.conv2d(x, w, b, (2, 1), (1, 0))
    _check("conv2d n=2 c=3 k=4 in=9x8 filter=3x2 stride=2x1 pad=1x0 epilogue=bias", y, x=x, w=w, bias=b)


def test_conv3d() -> None:
    x, w = _random(1, 2, 5, 4, 6), _random(3, 2, 3, 1, 2)
    _check("conv3d n=1 c=2 k=3 in=5x4x6 filter=3x1x2 pad=1x0x1", convgen.conv3d(x, w, padding=[1, 0, 1]), x=x, w=w)


@pytest.mark.parametrize("nd", [1, 2, 3])
def test_transposed_with_output_padding(nd: int) -> None:
    x, w, b = _random(2, 4, *(5, 4, 3)[:nd]), _random(4, 3, *(3,) * nd), _random(6)
    y = getattr(convgen, f"conv_transpose{nd}d")(x, w, b, 2, 1, 1, 2)
    extents = "x".join(map(str, (5, 4, 3)[:nd]))
    text = f"conv_transpose{nd}d n=2 c=4 k=6 in={extents} filter=3 stride=2 pad=1 output_padding=1 groups=2"
    _check(f"{text} epilogue=bias", y, x=x, w=w, bias=b)


def test_transposed_dilation_is_the_eighth_argument() -> None:
    x, w = _random(1, 2, 6), _random(2, 3, 3)
    y = convgen.conv_transpose1d(x, w, None, 1, 0, 0, 1, 2)
    _check("conv_transpose1d n=1 c=2 k=3 in=6 filter=3 dilation=2", y, x=x, w=w)


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_half_types_come_back_as_they_went(dtype: str) -> None:
    kind = {"fp16": np.float16, "bf16": ml_dtypes.bfloat16}[dtype]
    x, w = _random(1, 4, 6, 6, dtype=kind), _random(3, 4, 3, 3, dtype=kind)
    y = convgen.conv2d(x, w)
    assert y.dtype == kind
    _check(f"conv2d n=1 c=4 k=3 in=6 filter=3 dtype={dtype}", y, x=x.astype(float), w=w.astype(float))


def test_everything_that_is_fused() -> None:
    x, w, r = _random(2, 3, 6, 5), _random(4, 3, 3, 3), _random(2, 4, 6, 5)
    scale, shift, b = _random(4, seed=1), _random(4, seed=2), _random(4, seed=3)
    y = convgen.conv2d(x, w, b, padding=1, scale=scale, shift=shift, residual=r, activation=("leaky_relu", 0.25))
    text = "conv2d n=2 c=3 k=4 in=6x5 filter=3 pad=1 epilogue=scale+shift+bias+residual+leaky_relu slope=0.25"
    _check(text, y, x=x, w=w, scale=scale, shift=shift, bias=b, residual=r)


@pytest.mark.parametrize("activation", ["relu", "relu6", "gelu", "silu", "hardswish", "leaky_relu"])
def test_activations(activation: str) -> None:
    x, w = 4 * _random(1, 2, 9), _random(2, 2, 3)
    y = convgen.conv1d(x, w, activation=activation)
    _check(f"conv1d n=1 c=2 k=2 in=9 filter=3 epilogue={activation}", y, x=x, w=w)


# --- padding in words ---------------------------------------------------------------------------------


def test_same_with_an_even_filter_pads_more_behind() -> None:
    x, w = _random(1, 2, 7, 7), _random(3, 2, 4, 2)
    y = convgen.conv2d(x, w, padding="same", dilation=(1, 3))
    assert y.shape == (1, 3, 7, 7)
    _check("conv2d n=1 c=2 k=3 in=7 filter=4x2 dilation=1x3 pad=1:2x1:2", y, x=x, w=w)


def test_same_with_a_stride_has_the_extents_over_the_stride() -> None:
    x, w = _random(1, 2, 8), _random(3, 2, 3)
    _check(
        "conv1d n=1 c=2 k=3 in=8 filter=3 stride=2 pad=0:1", convgen.conv1d(x, w, stride=2, padding="same"), x=x, w=w
    )


def test_valid_is_no_padding() -> None:
    x, w = _random(1, 2, 8), _random(3, 2, 3)
    np.testing.assert_array_equal(convgen.conv1d(x, w, padding="valid"), convgen.conv1d(x, w))


def test_pairs_pad_before_and_after() -> None:
    x, w = _random(1, 2, 5, 5), _random(3, 2, 3, 3)
    y = convgen.conv2d(x, w, padding=((2, 0), (0, 1)))
    _check("conv2d n=1 c=2 k=3 in=5 filter=3 pad=2:0x0:1", y, x=x, w=w)


# --- arrays -------------------------------------------------------------------------------------------


def test_an_input_without_a_batch() -> None:
    x, w, b, r = _random(3, 6, 6), _random(4, 3, 3, 3), _random(4), _random(4, 4, 4)
    y = convgen.conv2d(x, w, b, residual=r)
    np.testing.assert_array_equal(y, convgen.conv2d(x[None], w, b, residual=r[None])[0])
    out = np.empty((4, 4, 4), np.float32)
    assert convgen.conv2d(x, w, b, residual=r, out=out) is out
    np.testing.assert_array_equal(out, y)


def test_channels_last_goes_in_and_comes_out() -> None:
    x, w = _random(2, 6, 5, 3).transpose(0, 3, 1, 2), _random(4, 3, 3, 3)
    y = convgen.conv2d(x, w)
    assert y.transpose(0, 2, 3, 1).flags.c_contiguous
    _check("conv2d n=2 c=3 k=4 in=6x5 filter=3 layout=nhwc", y, x=x, w=w)


def test_strided_views_are_read_right() -> None:
    wide, w = _random(4, 6, 20), _random(2, 3, 3)
    x = wide[::2, 1::2, ::-1]
    _check("conv1d n=2 c=3 k=2 in=20 filter=3", convgen.conv1d(x, w), x=x, w=w)


def test_strided_weights_are_read_right() -> None:
    """A slice, a reversal, a repetition and channels last beside an input of channels first."""
    x, whole = _random(2, 4, 7, 6), _random(10, 8, 3, 5)
    text = "conv2d n=2 c=4 k=5 in=7x6 filter=3"
    last = np.ascontiguousarray(whole[:5, :4, :, :3].transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
    for w in (
        whole[::2, 1::2, :, 1:4],
        whole[5:, :4, ::-1, ::2],
        np.broadcast_to(whole[:1, :4, :, :3], (5, 4, 3, 3)),
        last,
    ):
        assert not w.flags.c_contiguous
        _check(text, convgen.conv2d(x, w), x=x, w=w)


def test_a_strided_out_is_written_and_nothing_beside_it() -> None:
    x, w = _random(2, 2, 8), _random(3, 2, 3)
    whole = np.full((2, 6, 6), 5, np.float32)
    result = convgen.conv1d(x, w, out=whole[:, ::2])
    assert np.shares_memory(result, whole)
    np.testing.assert_array_equal(whole[:, ::2], convgen.conv1d(x, w))
    np.testing.assert_array_equal(whole[:, 1::2], np.full((2, 3, 6), 5))


def test_an_empty_batch() -> None:
    assert convgen.conv2d(_random(0, 3, 6, 6), _random(4, 3, 3, 3)).shape == (0, 4, 4, 4)


def test_no_channels_sum_to_nothing() -> None:
    y = convgen.conv1d(np.zeros((2, 0, 5), np.float32), np.zeros((3, 0, 3), np.float32), np.float32([1, 2, 3]))
    np.testing.assert_array_equal(y, np.broadcast_to(np.float32([1, 2, 3])[:, None], (2, 3, 3)))


def test_a_prepared_weight_is_a_weight() -> None:
    x, w = _random(2, 3, 7, 7), _random(4, 3, 3, 3)
    prepared = convgen.prepare(w, x.shape, padding=1)
    np.testing.assert_array_equal(convgen.conv2d(x, prepared, padding=1), convgen.conv2d(x, w, padding=1))
    assert (prepared.shape, prepared.nbytes) == (w.shape, 0)


def test_the_simulator_is_told_of_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "_told", False)
    x, w = _random(1, 1, 4), _random(1, 1, 2)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        convgen.conv1d(x, w)
        convgen.conv1d(x, w)
    [only] = told
    assert "no GPU: NumPy arrays are computed by the simulator" in str(only.message)
    assert only.filename == __file__


# --- against PyTorch's own ----------------------------------------------------------------------------

CALLS = [
    ("conv1d", (2, 4, 19), (6, 4, 3), {"stride": 2, "padding": 1}),
    ("conv1d", (4, 19), (6, 2, 3), {"groups": 2, "padding": "same"}),
    ("conv2d", (2, 4, 9, 11), (6, 4, 3, 4), {"padding": "same", "dilation": (2, 1)}),
    ("conv2d", (1, 6, 9, 11), (6, 1, 3, 3), {"groups": 6, "padding": (1, 2), "stride": (2, 3)}),
    ("conv2d", (3, 7, 7), (5, 3, 3, 3), {"padding": "valid"}),
    ("conv3d", (1, 2, 5, 6, 7), (3, 2, 3, 2, 1), {"padding": 1, "stride": (1, 2, 1)}),
    ("conv_transpose1d", (2, 4, 7), (4, 3, 4), {"stride": 3, "padding": 1, "output_padding": 2}),
    ("conv_transpose2d", (2, 4, 5, 6), (4, 2, 3, 3), {"stride": 2, "output_padding": (1, 0), "groups": 2}),
    ("conv_transpose2d", (4, 5, 6), (4, 3, 3, 2), {"stride": (1, 2), "dilation": 2}),
    ("conv_transpose3d", (1, 2, 3, 4, 3), (2, 3, 2, 3, 2), {"stride": 2}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "shape", "filters", "options"), CALLS)
def test_as_pytorch_has_it(
    name: str, shape: tuple[int, ...], filters: tuple[int, ...], options: dict[str, Any]
) -> None:
    torch = pytest.importorskip("torch")
    x, w = _random(*shape), _random(*filters)
    k = filters[1] * options.get("groups", 1) if "transpose" in name else filters[0]
    b = _random(k)
    expected = getattr(torch.nn.functional, name)(*map(torch.from_numpy, (x, w, b)), **options)
    y = getattr(convgen, name)(x, w, b, **options)
    assert y.shape == tuple(expected.shape)
    np.testing.assert_allclose(y, expected.numpy(), rtol=1e-5, atol=1e-5)


# --- what is refused ----------------------------------------------------------------------------------

X, W = np.zeros((2, 4, 8, 8), np.float32), np.zeros((6, 4, 3, 3), np.float32)


@pytest.mark.parametrize(
    ("arrays", "options", "message"),
    [
        ((X, W[0]), {}, r"weight has shape \(4, 3, 3\): conv2d takes 4 dimensions"),
        ((X[0, 0], W), {}, r"input has shape \(8, 8\): conv2d takes 4 dimensions, or 3 without a batch"),
        ((X, W[:, :2]), {}, r"input has 4 channels, weight of shape \(6, 2, 3, 3\) takes 2"),
        ((X, W), {"groups": 2}, r"input has 4 channels, weight of shape .* takes 8 \(4 in each of 2 groups\)"),
        ((X.astype(np.float64), W), {}, "input is float64, expected float32, float16, bfloat16"),
        ((X.astype(np.uint16), W), {}, "input is uint16, expected .*viewed as bfloat16"),
        ((X.astype(np.uint8), W), {}, "input is uint8, expected .*viewed as float8_e4m3fn"),
        ((X, W.astype(np.float16)), {}, "weight is float16, expected float32 as input is"),
        ((X, W), {"out_dtype": "int8"}, "out_dtype='int8': expected None, as input, or one of float32, .*e4m3fn"),
        ((X, W), {"out_dtype": np.float64}, "out_dtype='float64': expected None"),
        ((X, W), {"out_dtype": float}, "out_dtype=<class 'float'>: expected None"),
        ((X.astype(">f4"), W), {}, r"input is >f4, in another byte order than .*: pass input.astype\('float32'\)$"),
        ((X, W, np.zeros(5, np.float32)), {}, r"bias has shape \(5,\), expected \(6,\)"),
        ((X, W), {"scale": np.zeros(6, np.float16)}, "scale is float16, expected float32"),
        ((X, W), {"residual": np.zeros((2, 6, 8, 8), np.float32)}, r"residual has shape .*expected \(2, 6, 6, 6\)"),
        ((X, W), {"out": np.zeros((2, 6, 6), np.float32)}, r"out has shape \(2, 6, 6\), expected \(2, 6, 6, 6\)"),
        ((X, W), {"out": np.broadcast_to(np.float32(0), (2, 6, 6, 6))}, "out has stride 0"),
        ((X, W), {"activation": "swish"}, "activation='swish': expected None, one of relu, .*or .'leaky_relu', slope."),
        ((X, W), {"activation": ("relu", 0.1)}, "activation=.'relu', 0.1.: expected"),
        ((X, W), {"layout": "nhwc"}, "layout=nhwc: input has the strides of nchw"),
        ((X, np.zeros((6, 4, 0, 3), np.float32)), {}, "weight has a filter of 0x3"),
        ((X, W, 3), {}, "bias is a builtins.int, expected a NumPy or CuPy array, a CUDA tensor, or .*numpy.asarray"),
        ((X, W.tolist()), {}, "weight is a builtins.list, expected a NumPy or CuPy array"),
        ((convgen.prepare(W), W), {}, "input is <PreparedWeight .*, which stands for the weight of a conv"),
    ],
)  # fmt: skip
def test_arrays_that_do_not_fit(arrays: tuple[Any, ...], options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        convgen.conv2d(*arrays, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stride": 0}, "stride=0: expected an integer of at least 1"),
        ({"stride": (1, 2, 3)}, "stride=1x2x3: expected 2 integers"),
        ({"stride": 1.5}, "stride=1.5: expected an integer"),
        ({"padding": -1}, "padding=-1: expected an integer of at least 0"),
        ({"padding": "full"}, "padding='full': expected integers.*'same' or 'valid'"),
        ({"dilation": 4}, r"input.shape\[2:\]=8x8: expected at least 9x9"),
        ({"groups": 0}, "groups=0: expected an integer of at least 1"),
        ({"groups": True}, "groups=True"),
        ({"accuracy": "exact"}, "accuracy=exact: expected one of strict, fast"),
        ({"layout": "nhwcx"}, "layout=nhwcx: expected one of channels_first"),
        ({"workspace_limit": -1}, "workspace_limit=-1: expected an integer of at least 0"),
    ],
)
def test_other_arguments_that_mean_nothing(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ProblemError, match=message):
        convgen.conv2d(X, W, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"padding": "same"}, "padding='same': expected integers, one or one for each spatial dimension$"),
        ({"output_padding": 1}, "output_padding=1: expected less than the larger of stride=1 and dilation=1"),
        ({"padding": 6}, "padding=.*: expected less padding"),
        ({"groups": 4}, "groups=4: expected a divisor of"),
    ],
)
def test_transposed_arguments_that_mean_nothing(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ProblemError, match=message):
        convgen.conv_transpose2d(np.zeros((2, 6, 8, 8), np.float32), W, **options)


def test_integers_of_other_libraries_are_integers() -> None:
    y = convgen.conv2d(X, W, stride=np.int64(2), padding=[np.int32(1), 1], groups=np.int16(1))
    assert y.shape == (2, 6, 4, 4)


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ({"groups": 1}, {"groups": 1.0}),
        ({"stride": 1}, {"stride": True}),
        ({"stride": np.int8(1)}, {"stride": np.True_}),
        ({"padding": 1}, {"padding": True}),
        ({"padding": (1, 1)}, {"padding": (1.0, 1)}),
        ({"padding": ((1, 0), 1)}, {"padding": ((True, 0), 1)}),
        ({"dilation": 1}, {"dilation": Fraction(1)}),
        ({"workspace_limit": 10**6}, {"workspace_limit": 1e6}),
        ({"activation": ("leaky_relu", 1)}, {"activation": ("leaky_relu", True)}),
    ],
)
def test_what_is_refused_stays_refused_when_its_equal_was_computed(
    right: dict[str, Any], wrong: dict[str, Any]
) -> None:
    convgen.conv2d(X, W, **right)
    with pytest.raises(ProblemError, match=next(iter(wrong)) if "activation" not in wrong else "slope"):
        convgen.conv2d(X, W, **wrong)


@pytest.mark.parametrize("value", ["False", "no", 0, 1, 1.0, None])
def test_booleans_are_true_or_false(value: Any) -> None:
    with pytest.raises(UsageError, match=f"transposed={value!r}: expected True or False"):
        convgen.prepare(W, transposed=value)
    assert convgen.prepare(W, X, bias=np.False_, transposed=np.False_).shape == W.shape


def test_masks_are_not_ignored() -> None:
    masked = np.ma.masked_equal(X, 0)
    for arrays in ((masked, W), (X, np.ma.masked_array(W)), (X, W, np.ma.zeros(6))):
        with pytest.raises(UsageError, match=r"is a masked array, and masks are not heeded: expected \w+.filled"):
            convgen.conv2d(*arrays)
    with pytest.raises(UsageError, match="weight is a masked array"):
        convgen.prepare(np.ma.masked_array(W))


def test_a_weight_that_is_none() -> None:
    with pytest.raises(UsageError, match=r"weight has shape \(3, 3\): expected 3, 4 or 5 dimensions"):
        convgen.prepare(np.zeros((3, 3), np.float32))
    with pytest.raises(UsageError, match=r"input has 5 channels, weight .* takes 4"):
        convgen.prepare(W, (2, 5, 8, 8))


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        (W.astype(np.float64), "weight is float64, expected float32, float16, bfloat16"),
        (convgen.prepare(W), "weight is <PreparedWeight .*, prepared already: pass it to the convolutions as it is"),
        ([[[1.0]]], "weight is a builtins.list, expected a NumPy or CuPy array"),
        (1.0, "weight is a builtins.float, expected a NumPy or CuPy array"),
    ],
)
def test_what_cannot_be_prepared(weight: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        convgen.prepare(weight)


def test_an_out_that_is_read_only() -> None:
    out = np.empty((2, 6, 6, 6), np.float32)
    assert convgen.conv2d(X, W, out=out) is out  # the next call has the same signature but for this
    out.flags.writeable = False
    with pytest.raises(
        UsageError, match=r"out is a read-only NumPy array, expected one that can be written: out\.copy"
    ):
        convgen.conv2d(X, W, out=out)
    X.flags.writeable = False
    np.testing.assert_array_equal(convgen.conv2d(X, W), out)
    X.flags.writeable = True


def test_nothing_is_tuned_without_a_gpu_and_that_is_said_once() -> None:
    with warnings.catch_warnings(record=True) as caught, convgen.tuning("on_miss"):
        warnings.simplefilter("always")
        convgen.conv2d(X, W)
        convgen.conv2d(X[:1], W)
    told = [str(w.message) for w in caught if "on_miss" in str(w.message)]
    assert told == ["tuning('on_miss') measures nothing without a GPU: what is known is used, as by 'cached'"]
    assert {w.filename for w in caught} == {__file__}


def test_names_of_the_package_are_looked_up_once() -> None:
    assert convgen.conv2d is functions.conv2d
    assert vars(convgen)["conv2d"] is functions.conv2d
