"""Tensor maps in a plan: bound in the simulator, described for CUDA and in the C launcher."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hand_plans import HandConfig

from convgen.binding import preparation, required_alignment
from convgen.errors import UsageError
from convgen.launcher import launcher_files
from convgen.plan import (
    Buffer,
    Kernel,
    Launch,
    Memset,
    Param,
    Plan,
    SizeExtent,
    TensorArg,
    TensorMapArg,
    WorkspaceArg,
    batch_extent,
)
from convgen.problem import Conv, DType, Sizes
from convgen.render import template_root
from convgen.runtime.module import Arguments
from convgen.runtime.sim import Mode, build
from convgen.simulator import Copies
from convgen.target import Target
from convgen.tensor_map import Im2colMap, Swizzle, TensorMap

HEADERS = ("shared", "shared_address", "mbarrier", "fence", "tensor_map", "cp_async_bulk", "cp_async_bulk_tensor")
KERNEL = """
extern "C" __global__ void copy_images(const __grid_constant__ TensorMap x, const __grid_constant__ TensorMap y) {
    CONVGEN_SHARED(smem);
    unsigned long long* const full = reinterpret_cast<unsigned long long*>(smem + 2048);
    const int at[4] = {0, 0, 0, static_cast<int>(blockIdx.x)};
    if (threadIdx.x) return;
    mbarrier_init(full, 1);
    fence_mbarrier_init();
    mbarrier_arrive_expect_tx(full, 2048);
    cp_async_bulk_tensor_load(smem, &x, at, full);
    mbarrier_wait_parity(full, 0);
    cp_async_bulk_tensor_store(&y, at, smem);
    cp_async_bulk_commit_group();
    cp_async_bulk_wait_group<0>();
}
"""
BATCH = batch_extent(1)
CONV = Conv.parse("conv2d n=*<=64~4 c=64 k=64 in=4x4 filter=1x1 dtype=bf16 layout=nhwc")


def image(name: str, is_written: bool = False, batch: SizeExtent | None = BATCH) -> TensorMapArg:
    mapped = TensorMap(DType.BF16, (64, 4, 4, 1), (128, 512, 2048), (64, 4, 4, 1), swizzle=Swizzle.B128)
    return TensorMapArg(TensorArg(name), mapped, batch, is_written)


def plan() -> Plan:
    """Copies x to y, an image a block."""
    params = tuple(Param(name, "const __grid_constant__ TensorMap") for name in "xy")
    kernel = Kernel("copy_images", params)
    step = Launch(kernel, (batch_extent(1), 1, 1), (32, 1, 1), (image("x"), image("y", is_written=True)), 2048 + 16)
    target = Target.preset("h200")
    return Plan(CONV, "by_hand", HandConfig(), target, "none", {}, (kernel,), (step,))


def source() -> str:
    return "".join((template_root() / "device" / f"{name}.cuh").read_text() for name in HEADERS) + KERNEL


@pytest.mark.parametrize("copies", Copies)
@pytest.mark.parametrize("mode", Mode)
def test_a_plan_with_maps_runs_in_the_simulator(mode: Mode, copies: Copies) -> None:
    [program] = build([plan()], [source()], mode)
    shape = (3, 64, 4, 4)
    x = np.random.default_rng(1).integers(0, 1 << 16, shape).astype(np.uint16)
    y = np.zeros(shape, np.uint16)
    result = program.run({"x": x, "w": np.zeros((64, 64, 1, 1), np.uint16)}, {"y": y}, copies=copies)
    np.testing.assert_array_equal(y, x)
    result.require_clean()


def test_the_map_of_a_runtime_batch() -> None:
    expected = TensorMap(DType.BF16, (64, 4, 4, 9), (128, 512, 2048), (64, 4, 4, 1), swizzle=Swizzle.B128)
    assert image("x").at(Sizes.of(n=9)) == expected
    assert expected.box_bytes == 2048
    assert "const cuuint64_t x_map_extents[] = {64, 4, 4, " in launcher_files(plan(), b"cubin")["copy_images.h"]
    with pytest.raises(UsageError, match="each from 1 to 2"):
        image("x").at(Sizes.of(n=0))


def test_what_tma_copies_is_aligned() -> None:
    tensors = {tensor.name: required_alignment(plan(), tensor) for tensor in (*plan().inputs, *plan().outputs)}
    assert tensors == {"x": 16, "w": 2, "y": 16}


def test_arguments_have_room_for_maps_by_value() -> None:
    arguments = Arguments(plan(), first=("x", "y"))
    assert arguments.maps == (2, 18)
    assert len(arguments.values) >= 34


def test_a_buffer_filled_through_a_map_is_prepared_with_the_weights() -> None:
    """A launch that reads w and stores through a map of a buffer is a prepare step; one that reads x is none."""
    filled = dataclasses.replace(image("w", True, None), source=WorkspaceArg("packed"))
    weights = image("w", batch=None)
    [launch] = plan().launches
    pack = dataclasses.replace(launch, grid=(1, 1, 1), args=(weights, filled))
    packed = dataclasses.replace(plan(), steps=(pack, launch), workspace=(Buffer("packed", 2048),))
    assert preparation(packed).steps == {0}
    assert preparation(packed).buffers == ("packed",)
    cleared = dataclasses.replace(packed, steps=(launch, Memset(WorkspaceArg("packed")), pack))
    assert preparation(cleared).steps == {1, 2}


def test_the_launcher_encodes_maps() -> None:
    header = launcher_files(plan(), b"cubin")["copy_images.h"]
    assert "cuTensorMapEncodeTiled(&x_map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4," in header
    assert "const cuuint64_t x_map_strides[] = {128, 512, 2048};" in header
    assert "const cuuint32_t y_map_box[] = {64, 4, 4, 1};" in header
    assert "CU_TENSOR_MAP_SWIZZLE_128B" in header
    assert "void *arguments[] = {&x_map, &y_map, NULL};" in header


def test_the_driver_is_told_the_same() -> None:
    pytest.importorskip("cuda.bindings")
    from convgen.runtime.tensor_map import arguments

    mapped = image("x").at(Sizes.of(n=9))
    assert isinstance(mapped, TensorMap)
    kind, rank, address, extents, strides, box, steps, _, swizzle, _, _ = arguments(mapped, 4096)
    assert (kind.name, rank, address) == ("CU_TENSOR_MAP_DATA_TYPE_BFLOAT16", 4, 4096)
    assert [list(map(int, numbers)) for numbers in (extents, strides, box, steps)] == [
        [64, 4, 4, 9],
        [128, 512, 2048],
        [64, 4, 4, 1],
        [1, 1, 1, 1],
    ]
    assert swizzle.name == "CU_TENSOR_MAP_SWIZZLE_128B"


def test_the_driver_is_told_of_pixels() -> None:
    pytest.importorskip("cuda.bindings")
    from convgen.runtime.tensor_map import im2col_arguments

    mapped = Im2colMap(DType.FP16, (64, 9, 8, 2), (128, 1152, 9216), (-1, -2), (0, 1), 32, 100, (2, 3))
    told = im2col_arguments(mapped, 4096)
    assert told[5:9] == ([-1, -2], [0, 1], 32, 100)
    assert list(map(int, told[9])) == [1, 2, 3, 1]
