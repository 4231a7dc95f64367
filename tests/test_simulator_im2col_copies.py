"""TMA's im2col mode on the simulator: the rows of a convolution's matrix, as NumPy gathers them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from device_cases import library, unit
from test_simulator import compiler as compiler  # a fixture

from convgen.compiler import compile_cuda
from convgen.errors import UsageError
from convgen.problem import DType
from convgen.simulator import Argument, BoundTensorMap, FaultKind, Memory, Mode
from convgen.tensor_map import Im2colMap, TensorMap

FILE = "im2col_copies.cu"
HEADERS = ("shared", "shared_address", "mbarrier", "fence", "tensor_map", "cp_async_bulk_tensor_im2col")

# images, channels; then along each axis, outermost first: extent, filter, stride, dilation, padding before and behind
CASES = [
    (2, 32, [(11, 3, 1, 1, 1, 1)]),
    (2, 40, [(9, 3, 2, 1, 1, 0)]),
    (2, 16, [(7, 3, 1, 1, 1, 1), (9, 3, 1, 1, 1, 1)]),
    (3, 16, [(8, 3, 2, 1, 1, 1), (7, 2, 3, 2, 0, 2)]),
    (2, 8, [(4, 3, 1, 1, 1, 1), (5, 2, 2, 1, 0, 1), (6, 3, 1, 2, 2, 2)]),
]


@pytest.mark.parametrize("mode", [Mode.FAST, Mode.CHECK])
@pytest.mark.parametrize(("n", "c", "axes"), CASES)
def test_rows_of_the_matrix(n: int, c: int, axes: list[tuple[int, ...]], mode: Mode, compiler: str) -> None:
    x = np.random.default_rng(1).integers(1, 1 << 16, (n, *(axis[0] for axis in axes), c)).astype(np.uint16)
    padded = np.pad(x, [(0, 0), *((before, behind) for *_, before, behind in axes), (0, 0)])
    out = [(e + lo + hi - (f - 1) * dil - 1) // st + 1 for e, f, st, dil, lo, hi in axes]
    inner = axes[::-1]
    pixels, channels = 24, min(c, 32)
    mapped = Im2colMap(
        DType.BF16,
        x.shape[::-1],
        x.strides[-2::-1],
        tuple(-lo for *_, lo, _ in inner),
        tuple(hi - (f - 1) * dil for _, f, _, dil, _, hi in inner),
        channels,
        pixels,
        tuple(st for _, _, st, *_ in inner),
    )
    built = library(FILE, HEADERS, mode, compiler)
    kernel = next(k for k in built.units[0].kernels if k.name == f"load_{x.ndim}")
    positions = list(itertools.product(range(n), *map(range, out)))
    for first, taps in itertools.product((0, 5, len(positions) - 10), itertools.product(*(range(a[1]) for a in axes))):
        memory = Memory()
        block = memory.allocate("x", x.nbytes, writable=False, initialised=True, granule=2)
        block.bytes.view(np.uint16)[:] = x.ravel()
        y = memory.allocate("y", mapped.box_bytes, writable=True, initialised=False, granule=1)
        start = positions[first]
        place = [p * st - lo for p, (_, _, st, _, lo, _) in zip(start[1:], axes, strict=True)]
        shifts = [tap * dil for tap, (_, _, _, dil, *_) in zip(taps, axes, strict=True)]
        channel = c - channels
        numbers: list[Argument] = [mapped.box_bytes, channel, *place[::-1], start[0], *shifts[::-1]]
        arguments: list[Argument] = [BoundTensorMap(block, mapped), y, *numbers]
        report = built.launch(0, kernel, (1, 1, 1), (64, 1, 1), 32776, arguments, memory)
        assert report.faults == ()
        expected = np.zeros((pixels, channels), np.uint16)
        for row, position in enumerate(positions[first : first + pixels]):
            at = [p * a[2] + t * a[3] for p, t, a in zip(position[1:], taps, axes, strict=True)]
            expected[row] = padded[(position[0], *at)][channel:]
        np.testing.assert_array_equal(y.bytes.view(np.uint16).reshape(expected.shape), expected)


def test_a_map_of_boxes_is_refused(compiler: str) -> None:
    memory = Memory()
    block = memory.allocate("x", 8192, writable=False, initialised=True)
    y = memory.allocate("y", 4096, writable=True, initialised=False, granule=1)
    boxes = TensorMap(DType.BF16, (16, 16, 16), (32, 512), (16, 16, 1))
    built = library(FILE, HEADERS, Mode.CHECK, compiler)
    kernel = next(k for k in built.units[0].kernels if k.name == "load_3")
    arguments: list[Argument] = [BoundTensorMap(block, boxes), y, 512, 0, 0, 0, 0]
    report = built.launch(0, kernel, (1, 1, 1), (64, 1, 1), 32776, arguments, memory)
    [fault] = report.faults
    assert fault.kind is FaultKind.COPY
    assert fault.detail.startswith("the tensor map is one of boxes and the copy of im2col's pixels")


def test_corners_have_a_range() -> None:
    with pytest.raises(UsageError, match="each from -16 to 15"):
        Im2colMap(DType.BF16, (16, 9, 9, 9, 2), (32, 288, 2592, 23328), (-17, 0, 0), (0, 0, 0), 16, 64)


def test_the_wrappers_compile() -> None:
    binary = compile_cuda(unit(FILE, HEADERS).source, "sm_90a")
    for rank in (3, 4, 5):
        assert f"cp.async.bulk.tensor.{rank}d.shared::cluster.global.im2col.mbarrier" in binary.ptx
