"""The oracle against the definition written as loops, against its own adjoint identities, and against PyTorch."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any

import numpy as np
import pytest
from brute_force import brute_force, products
from generators import valid_convs
from hypothesis import given, settings
from hypothesis import strategies as st

from convgen.errors import WrongResultError
from convgen.plan import Taps
from convgen.problem import Activation, Conv, Direction, DType, Epilogue, PadMode
from convgen.reference import (
    ErrorModel,
    bound,
    compare,
    encode,
    make_inputs,
    reduction_length,
    reference,
    reference_sampled,
    sample_indices,
    strict_model,
)
from convgen.reference import arrays as reference_arrays
from convgen.reference.rounding import round_to

DIRECTIONS = ("fprop", "dgrad", "wgrad")

SHAPES = {
    "plain 1-D": "conv1d n=2 c=3 k=4 in=7 filter=3",
    "plain 2-D": "conv2d n=2 c=3 k=4 in=5x6 filter=3x2 pad=1",
    "plain 3-D": "conv3d n=1 c=2 k=3 in=4x3x5 filter=2x3x2 pad=1x0x1",
    "stride past the end": "conv2d n=1 c=2 k=2 in=8x7 filter=3 stride=3x2",
    "stride over the filter": "conv2d n=2 c=2 k=3 in=9x8 filter=2x1 stride=4x3",
    "dilation": "conv2d n=1 c=2 k=2 in=9x8 filter=3 dilation=2x3",
    "stride and dilation": "conv2d n=1 c=2 k=2 in=11x10 filter=3 stride=2x3 dilation=3x2 pad=2",
    "asymmetric padding": "conv2d n=1 c=2 k=2 in=5x6 filter=3 pad=0:2x1:0",
    "padding over the filter": "conv2d n=1 c=1 k=2 in=3x4 filter=2 pad=3x4:2",
    "groups": "conv2d n=2 c=4 k=6 in=4x5 filter=3 pad=1 groups=2",
    "depthwise": "conv2d n=2 c=4 k=4 in=5x4 filter=3 pad=1 groups=4",
    "depthwise, two a channel": "conv1d n=2 c=3 k=6 in=9 filter=4 stride=2 groups=3",
    "replicate": "conv2d n=1 c=2 k=2 in=4x5 filter=3 pad=3:1x2 pad_mode=replicate",
    "replicate, one pixel": "conv1d n=1 c=1 k=2 in=1 filter=3 pad=2:3 pad_mode=replicate",
    "reflect": "conv2d n=1 c=2 k=2 in=4x5 filter=3x5 pad=3:2x4 stride=2 pad_mode=reflect",
    "circular": "conv2d n=1 c=2 k=2 in=4x3 filter=3 pad=4:2x3 dilation=2 pad_mode=circular",
    "circular 3-D": "conv3d n=1 c=1 k=2 in=2x3x2 filter=2 pad=2:1x0:2x1 pad_mode=circular",
    "transposed 1-D": "conv_transpose1d n=2 c=3 k=2 in=5 filter=4 stride=2 pad=1",
    "transposed 2-D": "conv_transpose2d n=2 c=4 k=6 in=3x4 filter=3x2 stride=3x2 pad=1:0x0:1 groups=2",
    "transposed, longer": "conv_transpose2d n=2 c=2 k=3 in=3x4 filter=3x2 stride=3x2 pad=1 output_padding=2x1",
    "transposed, dilated": "conv_transpose2d n=1 c=2 k=2 in=3 filter=2x3 stride=2 dilation=3x2 output_padding=2x1",
    "transposed 3-D": "conv_transpose3d n=1 c=2 k=2 in=2x3x2 filter=2x1x3 stride=1x2x2 output_padding=0x1x0",
    "transposed, one tap": "conv_transpose1d n=1 c=2 k=2 in=4 filter=1 stride=3 output_padding=2",
}


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("text", SHAPES.values(), ids=SHAPES)
def test_every_feature_follows_the_definition(text: str, direction: str) -> None:
    problem = Conv.parse(f"{text} direction={direction}")
    inputs = make_inputs(problem, seed=1)
    expected = brute_force(problem, inputs)
    np.testing.assert_allclose(reference(problem, inputs), expected, rtol=1e-12, atol=1e-12)
    everywhere = np.arange(expected.size)
    got = reference_sampled(problem, inputs, everywhere)
    np.testing.assert_allclose(got, expected.ravel(), rtol=1e-12, atol=1e-12)


@settings(max_examples=150, deadline=None)
@given(valid_convs(max_macs=3000), st.integers(0, 2**32 - 1))
def test_random_problems_follow_the_definition(drawn: Conv, seed: int) -> None:
    problem = dataclasses.replace(drawn, epilogue=Epilogue(), accumulate=False)
    inputs = make_inputs(problem, seed)
    expected = brute_force(problem, inputs)
    np.testing.assert_allclose(reference(problem, inputs), expected, rtol=1e-12, atol=1e-12)
    indices = sample_indices(problem.outputs[0], 40, seed)
    got = reference_sampled(problem, inputs, indices)
    np.testing.assert_allclose(got, expected.ravel()[indices], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("text", SHAPES.values(), ids=SHAPES)
def test_directions_are_adjoints(text: str) -> None:
    forward, dgrad, wgrad = (Conv.parse(f"{text} direction={direction}") for direction in DIRECTIONS)
    x, w = make_inputs(forward, seed=2).values()
    dy = np.random.default_rng(3).standard_normal(forward.outputs[0].shape)
    products_of_dy = np.vdot(dy, reference(forward, {"x": x, "w": w}))
    assert np.vdot(reference(dgrad, {"dy": dy, "w": w}), x) == pytest.approx(products_of_dy, rel=1e-11)
    assert np.vdot(reference(wgrad, {"dy": dy, "x": x}), w) == pytest.approx(products_of_dy, rel=1e-11)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_batches_in_pieces_give_the_same(direction: str, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = Conv.parse(f"conv2d n=5 c=4 k=6 in=6x5 filter=3 pad=1 stride=2 groups=2 direction={direction}")
    inputs = make_inputs(problem, seed=4)
    whole = reference(problem, inputs)
    sampled = reference_sampled(problem, inputs, np.arange(whole.size))
    monkeypatch.setattr(reference_arrays, "BYTES_AT_ONCE", 1)
    np.testing.assert_allclose(reference(problem, inputs), whole, rtol=1e-13, atol=1e-13)
    np.testing.assert_array_equal(reference_sampled(problem, inputs, np.arange(whole.size)), sampled)


def test_samples_hold_the_corners_and_edges() -> None:
    problem = Conv.parse("conv2d n=3 c=1 k=7 in=40x50 filter=3 pad=1")
    shape = problem.outputs[0].shape
    indices = sample_indices(problem.outputs[0], 400, seed=17)
    assert len(indices) <= 400
    assert len(np.unique(indices)) == len(indices)
    points = {tuple(map(int, point)) for point in zip(*np.unravel_index(indices, shape), strict=True)}
    assert {(n, k, h, w) for n in (0, 2) for k in (0, 6) for h in (0, 39) for w in (0, 49)} <= points
    inner = [p for p in points if 0 < p[2] < 39 and 0 < p[3] < 49]
    assert 100 < len(inner) < len(points)
    np.testing.assert_array_equal(sample_indices(VECTOR.outputs[0], 6, seed=0), np.arange(6))


@pytest.mark.parametrize(
    ("text", "shape"),
    {
        "conv2d n=0 c=3 k=4 in=5 filter=3": (0, 4, 3, 3),
        "conv2d n=2 c=0 k=4 in=5 filter=3": (2, 4, 3, 3),
        "conv2d n=2 c=3 k=0 in=5 filter=3": (2, 0, 3, 3),
        "conv2d n=2 c=32 k=3 in=0x5 filter=2 pad=1": (2, 3, 1, 6),
        "conv_transpose2d n=2 c=0 k=4 in=5 filter=3": (2, 4, 7, 7),
        "conv_transpose1d n=2 c=3 k=4 in=0 filter=5 stride=2": (2, 4, 3),
    }.items(),
)
def test_sums_over_nothing_are_zero(text: str, shape: tuple[int, ...]) -> None:
    for direction in DIRECTIONS:
        problem = Conv.parse(f"{text} direction={direction}")
        got = reference(problem, make_inputs(problem, seed=0))
        assert got.shape == problem.outputs[0].shape
        assert not got.any()
        sampled = reference_sampled(problem, make_inputs(problem, seed=0), np.arange(got.size))
        assert sampled.shape == (got.size,)
        assert not sampled.any()
    biased = Conv.parse(f"{text} epilogue=bias")
    inputs = make_inputs(biased, seed=0)
    expected = np.broadcast_to(inputs["bias"].reshape(-1, *[1] * biased.nd), shape)
    np.testing.assert_array_equal(reference(biased, inputs), expected)


# --- epilogue ----------------------------------------------------------------------------------------


def scalar_activation(epilogue: Epilogue, v: float) -> float:
    match epilogue.activation:
        case Activation.RELU:
            return v if v > 0 else 0.0
        case Activation.RELU6:
            return min(max(v, 0.0), 6.0)
        case Activation.LEAKY_RELU:
            return v if v > 0 else epilogue.slope * v
        case Activation.GELU:
            return v * (1 + math.erf(v / math.sqrt(2))) / 2
        case Activation.SILU:
            return v / (1 + math.exp(-v))
        case Activation.HARDSWISH:
            return v * min(max(v + 3, 0.0), 6.0) / 6
    return v


@pytest.mark.parametrize("activation", list(Activation))
def test_epilogue_order(activation: Activation) -> None:
    slope = "slope=0.3" if activation is Activation.LEAKY_RELU else ""
    name = "" if activation is Activation.NONE else f"+{activation}"
    text = f"conv2d n=2 c=2 k=3 in=4x3 filter=2 epilogue=scale+shift+bias+residual{name} {slope} accumulate=yes"
    problem = Conv.parse(text)
    inputs = make_inputs(problem, seed=5)
    inputs["scale"] *= 3
    total = brute_force(problem, inputs)
    expected = np.empty_like(total)
    for n, k, *o in np.ndindex(total.shape):
        at = (n, k, *o)
        value = total[at] * inputs["scale"][k] + inputs["shift"][k] + inputs["bias"][k] + inputs["residual"][at]
        expected[at] = inputs["y"][at] + scalar_activation(problem.epilogue, value)
    np.testing.assert_allclose(reference(problem, inputs), expected, rtol=1e-12, atol=1e-12)
    indices = np.array([0, 5, 7, total.size - 1])
    np.testing.assert_allclose(reference_sampled(problem, inputs, indices), expected.ravel()[indices], rtol=1e-12)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_accumulate_adds_the_previous_output(direction: str) -> None:
    problem = Conv.parse(f"conv1d n=2 c=2 k=3 in=5 filter=2 direction={direction} accumulate=yes")
    inputs = make_inputs(problem, seed=6)
    previous = inputs[problem.outputs[0].name]
    np.testing.assert_allclose(reference(problem, inputs), brute_force(problem, inputs) + previous, rtol=1e-13)


def test_nan_and_infinity_go_where_the_definition_sends_them() -> None:
    problem = Conv.parse("conv1d n=1 c=1 k=1 in=6 filter=2 epilogue=relu")
    x = np.array([1.0, np.nan, 1.0, -np.inf, 1.0, np.inf]).reshape(1, 1, 6)
    got = reference(problem, {"x": x, "w": np.ones((1, 1, 2))})
    np.testing.assert_array_equal(got.ravel(), [np.nan, np.nan, 0.0, 0.0, np.inf])
    everywhere = reference_sampled(problem, {"x": x, "w": np.ones((1, 1, 2))}, np.arange(5))
    np.testing.assert_array_equal(everywhere, got.ravel())


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("text", SHAPES.values(), ids=SHAPES)
def test_an_infinite_operand_reaches_the_same_samples(text: str, direction: str) -> None:
    problem = Conv.parse(f"{text} direction={direction}")
    inputs = make_inputs(problem, seed=19)
    for array in inputs.values():
        array.flat[array.size // 2] = np.inf
    whole = reference(problem, inputs)
    assert not np.isfinite(whole).all()
    sampled = reference_sampled(problem, inputs, np.arange(whole.size))
    np.testing.assert_allclose(sampled, whole.ravel(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("activation", list(Activation))
def test_bounds_are_finite_beside_nan_and_infinity(activation: Activation) -> None:
    parts = "scale+bias" if activation is Activation.NONE else f"scale+bias+{activation}"
    problem = Conv.parse(f"conv2d n=2 c=2 k=3 in=9 filter=2 dtype=bf16 accumulate=yes epilogue={parts}")
    inputs = make_inputs(problem, seed=18, kind="specials")
    expected = reference(problem, inputs)
    assert 0 < np.isfinite(expected).sum() < expected.size
    limit = bound(problem, inputs, expected, strict_model(problem))
    assert np.isfinite(limit).all()
    outcome = compare(problem.outputs[0], encode(expected, problem.out_dtype), expected, limit)
    assert outcome.ok, outcome.report()
    assert not compare(problem.outputs[0], encode(np.nan_to_num(expected), problem.out_dtype), expected, limit).ok


# --- PyTorch, where there is one ---------------------------------------------------------------------


@pytest.mark.parametrize("text", SHAPES.values(), ids=SHAPES)
def test_agrees_with_pytorch(text: str) -> None:
    torch = pytest.importorskip("torch")
    forward, dgrad, wgrad = (Conv.parse(f"{text} direction={direction}") for direction in DIRECTIONS)
    x, w = (torch.tensor(array, requires_grad=True) for array in make_inputs(forward, seed=7).values())
    y = torch_forward(torch, forward, x, w)
    np.testing.assert_allclose(
        reference(forward, {"x": x.detach().numpy(), "w": w.detach().numpy()}),
        y.detach().numpy(),
        rtol=1e-11,
        atol=1e-11,
    )
    dy = torch.randn(y.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(8))
    dx, dw = torch.autograd.grad(y, (x, w), dy)
    got_dx = reference(dgrad, {"dy": dy.numpy(), "w": w.detach().numpy()})
    got_dw = reference(wgrad, {"dy": dy.numpy(), "x": x.detach().numpy()})
    np.testing.assert_allclose(got_dx, dx.numpy(), rtol=1e-11, atol=1e-11)
    np.testing.assert_allclose(got_dw, dw.numpy(), rtol=1e-11, atol=1e-11)


def torch_forward(torch: Any, problem: Conv, x: Any, w: Any) -> Any:
    functional = torch.nn.functional
    common = {"stride": problem.stride, "dilation": problem.dilation, "groups": problem.groups}
    pads = [p for low, high in zip(problem.pad_lo[::-1], problem.pad_hi[::-1], strict=True) for p in (low, high)]
    if problem.transposed:
        full = getattr(functional, f"conv_transpose{problem.nd}d")(
            x, w, output_padding=problem.output_padding, **common
        )
        return functional.pad(full, [-p for p in pads])
    mode = "constant" if problem.pad_mode is PadMode.ZEROS else str(problem.pad_mode)
    return getattr(functional, f"conv{problem.nd}d")(functional.pad(x, pads, mode=mode), w, **common)


# --- bounds ------------------------------------------------------------------------------------------


def fp32_chain(problem: Conv, inputs: dict[str, Any]) -> Any:
    """The accumulator as a naive fp32 kernel has it: one rounding for each fused multiply-add."""
    total = np.zeros(problem.outputs[0].shape, dtype=np.float32)
    for x, w, y in products(problem):
        total[y] = np.float32(np.float64(inputs["x"][x]) * np.float64(inputs["w"][w]) + np.float64(total[y]))
    return total.astype(np.float64)


@pytest.mark.parametrize("kind", ["normal", "positive"])
@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
def test_an_fp32_chain_is_within_the_strict_bound(dtype: str, kind: Any) -> None:
    problem = Conv.parse(f"conv2d n=1 c=16 k=2 in=6x5 filter=3 pad=1 dtype={dtype} epilogue=scale+bias")
    inputs = make_inputs(problem, seed=11, kind=kind)
    total = fp32_chain(problem, inputs).astype(np.float32)
    for name, apply in (("scale", np.multiply), ("bias", np.add)):
        total = apply(total, inputs[name].reshape(-1, 1, 1).astype(np.float32))
    got = encode(total, problem.out_dtype)
    expected = reference(problem, inputs)
    outcome = compare(problem.outputs[0], got, expected, bound(problem, inputs, expected, strict_model(problem)))
    assert outcome.ok, outcome.report()
    assert 0 < outcome.max_ratio <= 1


def test_the_bound_is_the_formula() -> None:
    problem = Conv.parse("conv1d n=1 c=1 k=1 in=4 filter=2")
    inputs = {"x": np.array([1.0, -2.0, 3.0, -4.0]).reshape(1, 1, 4), "w": np.array([5.0, 7.0]).reshape(1, 1, 2)}
    expected = reference(problem, inputs)
    np.testing.assert_array_equal(expected.ravel(), [-9.0, 11.0, -13.0])
    got = bound(problem, inputs, expected, ErrorModel(eps_out=0.25, eps_in=0.0, steps=0, eps_acc=0.0))
    np.testing.assert_allclose(got.ravel(), [2.25, 2.75, 3.25])
    got = bound(problem, inputs, expected, ErrorModel(eps_out=0.0, eps_in=0.125, steps=3, eps_acc=0.5))
    np.testing.assert_allclose(got.ravel(), 1.75 * np.array([19.0, 31.0, 43.0]))
    some = np.array([0, 2])
    chosen = bound(problem, inputs, expected.ravel()[some], ErrorModel(0.25, 0.0, 0, 0.0), indices=some)
    np.testing.assert_allclose(chosen, [2.25, 3.25])


def test_the_bound_goes_through_the_epilogue() -> None:
    plain = Conv.parse("conv1d n=1 c=1 k=2 in=4 filter=2")
    inputs = make_inputs(plain, seed=12)
    model = ErrorModel(eps_out=0.0, eps_in=0.25, steps=0, eps_acc=0.0)
    unscaled = bound(plain, inputs, reference(plain, inputs), model)
    for epilogue, gain in (("scale", 1.0), ("scale+gelu", 1.13), ("scale+hardswish", 1.5), ("scale+relu", 1.0)):
        problem = dataclasses.replace(plain, epilogue=Epilogue.parse(epilogue))
        scaled = inputs | {"scale": np.array([-10.0, 0.5])}
        got = bound(problem, scaled, reference(problem, scaled), model)
        expected = unscaled * np.array([10.0, 0.5]).reshape(2, 1) * gain
        np.testing.assert_allclose(got, expected, rtol=1e-5)


@pytest.mark.parametrize("activation", [a for a in Activation if a is not Activation.NONE])
def test_no_activation_is_steeper_than_its_gain(activation: Activation) -> None:
    slope = "slope=-2.5" if activation is Activation.LEAKY_RELU else ""
    problem = Conv.parse(f"conv1d n=1 c=1 k=1 in=4001 filter=1 epilogue={activation} {slope}")
    inputs = {"x": np.linspace(-8, 8, 4001).reshape(1, 1, -1), "w": np.ones((1, 1, 1))}
    push = 1e-4
    expected = reference(problem, inputs)
    allowed = bound(problem, inputs, expected, ErrorModel(eps_out=0.0, eps_in=push / 2, steps=0, eps_acc=0.0))
    for factor in (1 + push, 1 - push):
        moved = reference(problem, inputs | {"x": inputs["x"] * factor})
        assert (np.abs(moved - expected) <= allowed * (1 + 1e-9)).all()
    assert (np.abs(moved - expected) > allowed * 0.95).any()


def test_reduction_length_counts_the_longest_sum() -> None:
    for text in SHAPES.values():
        for direction in DIRECTIONS:
            problem = Conv.parse(f"{text} direction={direction}")
            ones = {spec.name: np.ones(spec.shape) for spec in problem.inputs}
            longest = brute_force(problem, ones).max()
            if problem.direction is Direction.DGRAD:
                assert reduction_length(problem) == longest, text
            else:
                assert reduction_length(problem) >= longest, text
    assert reduction_length(Conv.parse("conv2d n=4 c=6 k=8 in=9 filter=3 groups=2")) == 27
    assert reduction_length(Conv.parse("conv2d n=4 c=6 k=8 in=9 filter=3 groups=2 direction=wgrad")) == 4 * 49


# --- comparison --------------------------------------------------------------------------------------

VECTOR = Conv.parse("conv1d n=1 c=1 k=2 in=3 filter=1")


def outcome_of(got: Any, expected: Any, limit: float = 0.1, dtype: str = "fp32") -> Any:
    problem = Conv.parse(f"conv1d n=1 c=1 k=2 in=3 filter=1 dtype={dtype}")
    shaped_got, shaped = (np.array(values, dtype=float).reshape(1, 2, 3) for values in (got, expected))
    return compare(problem.outputs[0], shaped_got, shaped, np.full((1, 2, 3), limit))


def test_compare_accepts_what_is_within_the_bound() -> None:
    outcome = outcome_of([1, 2, 3, 4, 5.05, 6], [1, 2, 3, 4, 5, 6])
    assert outcome.ok
    assert outcome.count == 6
    assert outcome.max_error == pytest.approx(0.05)
    assert outcome.max_ratio == pytest.approx(0.5)
    assert outcome.worst.index == (0, 1, 1)
    assert "6 elements right" in outcome.report()


def test_compare_names_what_is_wrong() -> None:
    outcome = outcome_of([1, 2.2, 3, 4, 5, 9], [1, 2, 3, 4, 5, 6])
    assert not outcome.ok
    assert (outcome.count_wrong, outcome.finite_mismatch) == (2, 0)
    assert [element.index for element in outcome.wrong] == [(0, 0, 1), (0, 1, 2)]
    assert outcome.worst.index == (0, 1, 2)
    assert outcome.max_ratio == pytest.approx(30)
    assert "[0, 1, 2]: got 9, expected 6 within 0.1" in outcome.report()


def test_compare_at_samples_gives_the_index_in_the_output() -> None:
    outcome = compare(
        VECTOR.outputs[0], np.array([1.0, 9.0]), np.array([1.0, 2.0]), np.full(2, 0.1), indices=np.array([0, 4])
    )
    assert outcome.worst is not None
    assert outcome.worst.index == (0, 1, 1)


@pytest.mark.parametrize(
    ("got", "expected", "right"),
    [
        (np.nan, np.nan, True),
        (np.inf, np.inf, True),
        (-np.inf, np.inf, False),
        (np.nan, np.inf, False),
        (np.nan, 1.0, False),
        (np.inf, 1.0, False),
        (1.0, np.nan, False),
        (1.0, np.inf, False),
    ],
)
def test_compare_on_nan_and_infinity(got: float, expected: float, right: bool) -> None:
    outcome = outcome_of([got] + [0] * 5, [expected] + [0] * 5)
    assert outcome.ok is right
    assert outcome.finite_mismatch == (0 if right else 1)
    assert outcome.max_error == 0
    assert (outcome.max_ratio == np.inf) is not right


@pytest.mark.parametrize(
    ("got", "expected", "right"),
    [
        (np.inf, 65520.0, True),
        (np.inf, 65519.95, True),
        (np.inf, 65519.8, False),
        (-np.inf, -7e4, True),
        (np.inf, -7e4, False),
        (65504.0, 7e4, False),
    ],
)
def test_compare_lets_fp16_overflow(got: float, expected: float, right: bool) -> None:
    assert outcome_of([got] + [0] * 5, [expected] + [0] * 5, dtype="fp16").ok is right


def test_compare_does_not_judge_by_an_infinite_bound() -> None:
    limit = np.full((1, 2, 3), np.inf)
    numbers = np.ones((1, 2, 3))
    nothing = compare(VECTOR.outputs[0], numbers, numbers, limit)
    assert not nothing.ok
    assert (nothing.count, nothing.count_wrong) == (0, 0)
    assert "nothing to judge by" in nothing.report()
    limit[0, 0, 1:] = 0.1
    some = compare(VECTOR.outputs[0], numbers, numbers, limit)
    assert some.ok
    assert some.count == 2
    limit[0, 0, 1] = np.nan
    assert compare(VECTOR.outputs[0], numbers, numbers, limit).count_wrong == 1


def test_compare_of_nothing_and_of_other_shapes() -> None:
    nothing = np.zeros((0, 2, 3))
    empty = compare(Conv.parse("conv1d n=0 c=1 k=2 in=3 filter=1").outputs[0], nothing, nothing, nothing)
    assert empty.ok
    assert empty.worst is None
    with pytest.raises(WrongResultError, match=r"\(1, 3, 2\): expected \(1, 2, 3\)"):
        compare(VECTOR.outputs[0], np.zeros((1, 3, 2)), np.zeros((1, 2, 3)), np.zeros((1, 2, 3)))


def test_intermediate_values_that_mix_widen_the_bound_to_the_neighbourhood() -> None:
    problem = Conv.parse("conv2d c=2 k=1 in=9x7 filter=3x3 pad=1")
    inputs = make_inputs(problem, 3)
    expected = reference(problem, inputs)
    # The padding is written out: there, too, a tap meets what pixels within reach left.
    padded = Conv.parse("conv2d c=2 k=1 in=11x9 filter=3x3")
    near = {**inputs, "x": np.empty((1, 2, 11, 9))}
    for c, y, x in itertools.product(range(2), range(-1, 10), range(-1, 8)):
        window = inputs["x"][0, c, max(y - 3, 0) : y + 4, max(x - 1, 0) : x + 2]
        near["x"][0, c, y + 1, x + 1] = np.abs(window).max()
    plain = ErrorModel(eps_out=0.0, eps_in=0.0, steps=1, eps_acc=0.25)
    mixed = dataclasses.replace(plain, growth=3.0, reach=(3, 1))
    np.testing.assert_allclose(
        bound(problem, inputs, expected, mixed), 3 * bound(padded, near, expected, plain), rtol=1e-12
    )


def test_taps_that_mix_count_as_the_largest() -> None:
    problem = Conv.parse("conv2d c=2 k=3 in=9x7 filter=3x3 pad=1")
    inputs = make_inputs(problem, 3)
    expected = reference(problem, inputs)
    alike = {**inputs, "w": np.repeat(np.abs(inputs["w"]).max(axis=(2, 3)), 9).reshape(inputs["w"].shape)}
    plain = ErrorModel(eps_out=0.0, eps_in=0.0, steps=1, eps_acc=0.25)
    mixed = dataclasses.replace(plain, taps=Taps.LARGEST)
    np.testing.assert_allclose(
        bound(problem, inputs, expected, mixed), bound(problem, alike, expected, plain), rtol=1e-12
    )


def test_an_infinity_may_spoil_what_shares_its_intermediate_values() -> None:
    problem = Conv.parse("conv1d c=1 k=1 in=12 filter=3 pad=1")
    inputs = make_inputs(problem, 3)
    inputs["x"][0, 0, 6] = np.inf
    expected = reference(problem, inputs)
    model = ErrorModel(eps_out=0.0, eps_in=0.0, steps=1, eps_acc=2.0**-24, reach=(3,))
    limit = bound(problem, inputs, expected, model)
    assert [bool(np.isinf(value)) for value in limit[0, 0]] == [2 <= o <= 10 for o in range(12)]
    spoiled = np.where(np.isinf(limit), np.nan, expected)
    assert compare(problem.outputs[0], spoiled.astype(np.float32), expected, limit + np.abs(expected) * 1e-6).ok
    got = expected.astype(np.float32)
    got[0, 0, 6] = 1.0  # where the infinity is read, something not finite has to come
    assert not compare(problem.outputs[0], got, expected, limit + np.abs(expected) * 1e-6).ok
    got = np.where(np.arange(12) == 1, np.nan, expected).astype(np.float32)  # out of reach
    assert not compare(problem.outputs[0], got, expected, limit + np.abs(expected) * 1e-6).ok


def test_tensors_are_rounded_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(1).standard_normal((5, 7, 3)) * 1e3
    monkeypatch.setattr(reference_arrays, "BYTES_AT_ONCE", 1000)  # about 20 elements
    assert np.array_equal(round_to(values, DType.FP16), values.astype(np.float16).astype(np.float64))
    assert np.array_equal(encode(values[:, ::2], DType.FP16), values[:, ::2].astype(np.float16))
    assert round_to(values[:0], DType.FP16).shape == (0, 7, 3)
