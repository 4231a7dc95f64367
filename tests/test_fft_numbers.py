"""The numbers of the fft strategy: transforms against NumPy's, errors against their bound, planted faults."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from conformance import TARGET
from fft_data import hard_data

from convgen.lowering import lower
from convgen.plan import Kernel, Param, Plan
from convgen.problem import Conv
from convgen.reference import bound, make_inputs, model_of, reference
from convgen.render import environment, render
from convgen.runtime.sim import Mode, build
from convgen.simulator import FaultKind, Memory, Unit
from convgen.simulator import build as build_library
from convgen.strategies import fft_radix
from convgen.strategies.fft import STRATEGY, FftConfig
from convgen.strategies.fft_tiling import LENGTHS
from convgen.verify.oracle import Oracle

BUTTERFLIES = Path(__file__).parent / "fft_templates" / "butterflies.cu.j2"
RADICES = (2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 15, 16, 18, 20, 21, 24, 25, 27, 28, 30, 32)
U = 2.0**-24

SQUARE = FftConfig("fused", 16, 20, 8, 32, 1, 1)
PLAIN = "conv2d n=1 c=1 in=30x33 k=1 filter=5x6 pad=2 accuracy=fast"


# --- transforms ------------------------------------------------------------------------------------------


def test_every_butterfly_is_numpy_fft() -> None:
    text = environment().get_template(str(BUTTERFLIES)).render(butterflies=fft_radix.needed(RADICES))
    params = (Param("x", "const float*"), Param("y", "float*"))
    kernels = tuple(Kernel(f"dft{radix}", params) for radix in RADICES)
    library = build_library([Unit(text, kernels)], Mode.COUNT)
    random = np.random.default_rng(1)
    for radix, kernel in zip(RADICES, kernels, strict=True):
        memory = Memory()
        x = memory.allocate("x", 8 * radix, writable=False, initialised=True)
        y = memory.allocate("y", 8 * radix, writable=True, initialised=False)
        x.bytes.view(np.float32)[:] = random.standard_normal(2 * radix)
        report = library.launch(0, kernel, (1, 1, 1), (1, 1, 1), 0, [x, y], memory)
        assert not report.faults
        assert report.counters.flops == fft_radix.flops(radix)
        values = x.bytes.view(np.complex64).astype(np.complex128)
        errors = np.abs(y.bytes.view(np.complex64) - np.fft.fft(values))
        assert errors.max() <= fft_radix.rounding(radix).total * U * np.abs(values).sum()


def test_roots_of_unity_are_rounded_once() -> None:
    pi = np.arccos(np.longdouble(-1))
    for denominator in (*RADICES, 256, 4096 * 7, 65536):
        for numerator in range(0, denominator, max(denominator // 97, 1)):
            angle = 2 * pi * numerator / denominator
            parts = fft_radix.root(numerator, denominator)
            exact = np.cos(angle), -np.sin(angle)
            for part, right in zip(parts, exact, strict=True):
                assert abs(np.float32(part) - right) <= np.spacing(np.float32(abs(right))) / 2 + 1e-18
                assert np.float32(fft_radix.literal(part).rstrip("f")) == np.float32(part)


def test_lengths_split_into_radices() -> None:
    for largest, length in itertools.product((8, 16, 32), LENGTHS):
        if length > 32:
            radices = fft_radix.radices(length, largest)
            assert np.prod(radices) == length
            assert max(radices) <= largest
    assert fft_radix.radices(64, 8) == (8, 8)
    assert fft_radix.radices(2048, 16) == (16, 16, 8)
    assert fft_radix.radices(22, 32) == ()


@pytest.mark.parametrize(
    ("text", "config"),
    [
        ("conv2d n=1 c=1 in=40x40 k=1 filter=9x7 accuracy=fast", FftConfig("fused", 24, 70, 8, 64, 1, 1)),
        ("conv2d n=1 c=1 in=40x40 k=1 filter=9x7 accuracy=fast", FftConfig("fused", 32, 36, 16, 64, 1, 1)),
        ("conv1d n=1 c=1 in=999 k=1 filter=100 accuracy=fast", FftConfig("fused", 1, 480, 8, 64, 1, 1)),
        ("conv1d n=1 c=1 in=4000 k=1 filter=100 accuracy=fast", FftConfig("fused", 1, 2048, 8, 64, 1, 1)),
    ],
)
def test_spectra_are_numpy_fft_of_the_folded_filter(text: str, config: FftConfig) -> None:
    """The first kernel alone. Tap d lies at position -d; what wraps around the folded axis changes its sign."""
    problem = Conv.parse(text)
    plan = lower(problem, STRATEGY, config, TARGET)
    w = make_inputs(problem, 0)["w"].astype(np.float32)
    lengths = (config.tile_h, config.tile_w)[-problem.nd :]
    tile = np.zeros(lengths)
    for tap in np.ndindex(problem.filter):
        sign = -1.0 if tap[0] else 1.0
        tile[tuple(-d % n for d, n in zip(tap, lengths, strict=True))] = sign * w[(0, 0, *tap)]
    half = lengths[0] // 2
    turns = np.exp(1j * np.pi * np.arange(half) / (2 * half)).reshape(-1, *[1] * (problem.nd - 1))
    expected = np.fft.fftn((tile[:half] + 1j * tile[half:]) * turns) / (half * np.prod(lengths[1:]))

    got = _spectrum(plan, w).reshape(plan.constants["passes"][-1].radix, -1)
    lines = [fft_radix.radices(n, config.radix, 2 if problem.nd == 1 else 1) for n in (half, *lengths[1:])]
    # Item i of the last pass holds the points of one row that lie side by side; rows are fastest.
    rows = half if problem.nd > 1 else 1
    error = U * 100 * np.abs(w).sum() / expected.size
    for j, item in np.ndindex(got.shape):
        point = item // rows * got.shape[0] + j
        places = (item % rows, point) if problem.nd > 1 else (point,)
        frequency = tuple(_frequency(place, radices) for place, radices in zip(places, lines, strict=True))
        assert abs(got[j, item] - expected[frequency]) <= error


def _spectrum(plan: Plan, w: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
    launch = plan.launches[0]
    [buffer] = plan.workspace
    memory = Memory()
    source = memory.allocate("w", w.nbytes, writable=False, initialised=True)
    spectra = memory.allocate("spectra", int(str(buffer.nbytes)), writable=True, initialised=False)
    source.bytes.view(np.float32)[:] = w.ravel()
    library = build_library([Unit(render(plan), plan.kernels)], Mode.CHECK)
    report = library.launch(0, launch.kernel, (1, 1, 1), launch.block, launch.shared_bytes, [source, spectra], memory)
    assert not report.faults
    return spectra.bytes.view(np.complex64)


def _frequency(point: int, radices: tuple[int, ...]) -> int:
    """Where a point's frequency comes from: the digits of its place in the opposite order."""
    length, frequency, scale = int(np.prod(radices)), 0, 1
    for radix in radices:
        length //= radix
        digit, point = divmod(point, length)
        frequency, scale = frequency + scale * digit, scale * radix
    return frequency


# --- errors ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "config"),
    [
        ("conv2d n=1 c=1 in=64x64 k=1 filter=27x27 pad=13", FftConfig("fused", 64, 64, 8, 128, 1, 1)),
        ("conv2d n=1 c=1 in=40x40 k=1 filter=27x27 pad=13", FftConfig("fused", 56, 70, 8, 128, 1, 1)),
        ("conv2d n=1 c=1 in=40x40 k=1 filter=27x27 pad=13", FftConfig("fused", 54, 54, 32, 64, 1, 1)),
        ("conv1d n=1 c=1 in=1024 k=1 filter=1024 pad=1023:0", FftConfig("fused", 1, 2048, 16, 64, 1, 1)),
    ],
)
def test_errors_keep_far_below_their_bound_on_data_that_are_hard(text: str, config: FftConfig) -> None:
    """The largest found is 0.13 of the bound, by a filter of one tap: the bound has a margin of seven. It is no worst
    case (see fft_error), so the test asks for a margin of four."""
    problem = Conv.parse(text)
    plan = lower(problem, STRATEGY, config, TARGET)
    [program] = build([plan], [render(plan)], Mode.FAST)
    for name, x, w in hard_data(problem):
        y = np.empty(problem.outputs[0].shape, np.float32)
        program.run({"x": x.astype(np.float32), "w": w.astype(np.float32)}, {"y": y})
        expected = reference(problem, {"x": x, "w": w})
        limit = bound(problem, {"x": x, "w": w}, expected, model_of(problem, plan.numerics))
        rounded = U * np.abs(expected)  # the result's own rounding is no part of the margin
        assert (np.abs(y - expected) <= rounded + 0.25 * limit).all(), name


def test_the_bound_is_that_of_a_naive_count() -> None:
    """steps * u * (largest pixel of the tile) * (sum of the filter), at an edge that few taps reach."""
    problem = Conv.parse("conv2d n=1 c=2 in=9x9 k=3 filter=3x3 pad=1 accuracy=fast")
    plan = lower(problem, STRATEGY, FftConfig("fused", 6, 8, 8, 32, 1, 1), TARGET)
    assert plan.numerics.reach == (3, 5)
    inputs = make_inputs(problem, 0)
    expected = reference(problem, inputs)
    limit = bound(problem, inputs, expected, model_of(problem, plan.numerics))
    assert plan.numerics.steps is not None
    for k, h, w in np.ndindex(expected.shape[1:]):
        near = np.abs(inputs["x"][0, :, max(h - 4, 0) : h + 5, max(w - 6, 0) : w + 7]).max(axis=(1, 2))
        total = plan.numerics.steps * U * (near * np.abs(inputs["w"][k]).sum(axis=(1, 2))).sum()
        assert limit[0, k, h, w] == pytest.approx(total + U * (np.abs(expected[0, k, h, w]) + total), rel=1e-6)


# --- planted faults ----------------------------------------------------------------------------------------


def test_a_missing_barrier_is_found() -> None:
    plan = lower(Conv.parse(PLAIN), STRATEGY, FftConfig("fused", 16, 20, 8, 64, 1, 1), TARGET)
    text = render(plan)
    places = [i for i in range(len(text)) if text.startswith("__syncthreads();", i)]
    assert len(places) >= 4
    inputs = {name: a.astype(np.float32) for name, a in make_inputs(plan.problem, 0).items()}
    for place in places:
        broken = text[:place] + text[place + len("__syncthreads();") :]
        report = build([plan], [broken])[0].run(inputs, {"y": np.empty(plan.outputs[0].shape, np.float32)}).report
        assert FaultKind.RACE in {fault.kind for fault in report.faults}, text[place - 80 : place]


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("return n > kShiftH ? -weight : weight;", "return weight;"),  # no change of sign around the fold
        ("exchanged(sums[m][round][j])", "sums[m][round][j]"),  # forward in place of inverse
        ("kShift - n < 0 ? kShift - n + kLength : kShift - n", "kShift - n"),  # wrapped taps left out
        ("constexpr float kHalfRoot = 0.707106781f", "constexpr float kHalfRoot = 0.7073f"),
        ("v[j % First::kRadix].y : v[j % First::kRadix].x", "v[j % First::kRadix].x : v[j % First::kRadix].y"),
        ("turn_fold(v);\n        const int channel", "const int channel"),  # not turned back
        ("kResultsW = 15", "kResultsW = 16"),  # one result more than nothing wrapped into
    ],
)
def test_wrong_arithmetic_is_found(right: str, wrong: str) -> None:
    problem = Conv.parse(PLAIN)
    plan = lower(problem, STRATEGY, SQUARE, TARGET)
    text = render(plan)
    assert right in text
    oracle = Oracle(problem, make_inputs(problem, 0), "normal")
    for source, is_right in ((text, True), (text.replace(right, wrong), False)):
        y = np.empty(plan.outputs[0].shape, np.float32)
        build([plan], [source])[0].run(oracle.arrays, {"y": y})
        assert oracle.judge({"y": y}, plan.numerics).ok == is_right
