"""Plans with thread block clusters: what no GPU accepts is refused, the simulator and a GPU give the same bits."""

from __future__ import annotations

import dataclasses
from typing import Any

import hand_plans
import numpy as np
import numpy.typing as npt
import pytest
from device_cases import unit

from convgen.cli import compile_command
from convgen.compiler import compile_cuda
from convgen.errors import UsageError
from convgen.plan import (
    Arg,
    Kernel,
    Launch,
    Param,
    Plan,
    ScalarArg,
    SizeExtent,
    TensorArg,
    TensorMapArg,
    batch_extent,
    extent_plus,
)
from convgen.problem import Conv, DType
from convgen.resources import KernelResources, report
from convgen.runtime.sim import Mode, build
from convgen.simulator import Copies
from convgen.target import Target
from convgen.tensor_map import TensorMap

H200 = Target.preset("h200")
MULTICASTS = unit(
    "multicasts.cu",
    (
        *("shared", "shared_address", "mbarrier", "fence", "tensor_map"),
        *("cluster", "cluster_mbarrier", "cluster_multicast", "cluster_multicast_im2col"),
    ),
)
CLUSTERS = unit(
    "clusters.cu", ("shared", "shared_address", "mbarrier", "fence", "vector", "cluster", "cluster_mbarrier")
)
STEPS, CLUSTER = 3, 2
ROWS, BOX_BYTES = 16, 2048


def plan(problem: Conv, target: Target, launch: Launch) -> Plan:
    return Plan(problem, "by_hand", hand_plans.HandConfig(), target, "none", {}, (launch.kernel,), (launch,))


def multicast(target: Target) -> Plan:
    """Every image of x, a box of 16 pixels, goes to both blocks of its cluster: y has twice the channels."""
    problem = Conv.parse("conv2d n=12 c=64 k=128 in=4x4 filter=1x1 dtype=bf16 layout=nhwc")
    boxes = TensorMap(DType.BF16, (64, 12 * ROWS), (128,), (64, ROWS))
    numbers = {"bytes": BOX_BYTES, "rows": ROWS, "steps": STEPS}
    params = (Param("map", "const __grid_constant__ TensorMap"), Param("y", "unsigned short*"))
    kernel = Kernel("multicast", (*params, *(Param(name, "int") for name in numbers)))
    args: tuple[Arg, ...] = (TensorMapArg(TensorArg("x"), boxes), TensorArg("y"), *map(ScalarArg, numbers.values()))
    shared = 2 * 8 * BOX_BYTES + 32
    return plan(problem, target, Launch(kernel, (4, 1, 1), (64, 1, 1), args, shared, (CLUSTER, 1, 1)))


def exchange(name: str, target: Target) -> Plan:
    """A kernel of clusters.cu on eight blocks of 64 numbers, in clusters of two."""
    problem = Conv.parse("conv1d n=1 c=1 k=1 in=512 filter=1")
    kernel = Kernel(name, (Param("x", "const int*"), Param("y", "int*"), Param("steps", "int")))
    args = (TensorArg("x"), TensorArg("y"), ScalarArg(7))
    return plan(problem, target, Launch(kernel, (8, 1, 1), (64, 1, 1), args, 1024, (CLUSTER, 1, 1)))


def images() -> npt.NDArray[np.uint16]:
    """x, whose memory is channels-last."""
    pixels = np.random.default_rng(1).integers(0, 1 << 16, (12, 4, 4, 64)).astype(np.uint16)
    return pixels.transpose(0, 3, 1, 2)


def bits_of(y: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """The bytes of an output that is channels-last."""
    return np.ascontiguousarray(y.transpose(0, 2, 3, 1)).view(np.uint8).ravel()


def multicast_bits() -> npt.NDArray[np.uint8]:
    """What both blocks of each cluster write: a box of each at every step."""
    boxes = bits_of(images()).reshape(12 // (STEPS * CLUSTER), -1)
    return np.repeat(boxes, CLUSTER, axis=0).ravel()


@pytest.mark.parametrize("copies", Copies)
@pytest.mark.parametrize("mode", Mode)
def test_a_plan_that_multicasts_runs_in_the_simulator(mode: Mode, copies: Copies) -> None:
    [program] = build([multicast(H200)], [MULTICASTS.source], mode)
    y = np.zeros((12, 4, 4, 128), np.uint16).transpose(0, 3, 1, 2)
    inputs = {"x": images(), "w": np.zeros((128, 64, 1, 1), np.uint16)}
    program.run(inputs, {"y": y}, copies=copies).require_clean()
    np.testing.assert_array_equal(bits_of(y), multicast_bits())


@pytest.mark.gpu
def test_a_gpu_multicasts_the_same_bits(cupy: Any) -> None:
    from convgen.runtime.cuda import load

    target = Target.current()
    program = load(multicast(target), compile_cuda(MULTICASTS.source, target))
    x = cupy.asarray(images().transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
    for _ in range(20):  # blocks come in any order
        y = program.run({"x": x, "w": cupy.zeros((128, 64, 1, 1), cupy.uint16)})["y"]
        np.testing.assert_array_equal(bits_of(cupy.asnumpy(y)), multicast_bits())


@pytest.mark.gpu
@pytest.mark.parametrize(
    "name",
    ["ranks", "pull", "pull_packs", "push", "adds", "ring", "one_releases", "read_and_written", "tells_its_own_block"],
)
def test_a_gpu_exchanges_the_same_bits(name: str, cupy: Any) -> None:
    from convgen.runtime.cuda import load

    target = Target.current()
    x = np.random.default_rng(1).integers(-1000, 1000, (1, 1, 512)).astype(np.int32).view(np.float32)
    w, expected = np.zeros((1, 1, 1), np.float32), np.zeros((1, 1, 512), np.float32)
    [simulated] = build([exchange(name, H200)], [CLUSTERS.source], Mode.FAST)
    simulated.run({"x": x, "w": w}, {"y": expected}).require_clean()
    rows = slice(1, None, 2) if name == "ring" else slice(None)  # of which the first block of two writes none
    program = load(exchange(name, target), compile_cuda(CLUSTERS.source, target))
    for _ in range(20):
        y = cupy.asnumpy(program.run({"x": cupy.asarray(x), "w": cupy.asarray(w)})["y"])
        got, wanted = (bits.view(np.int32).reshape(8, 64)[rows] for bits in (y, expected))
        np.testing.assert_array_equal(got, wanted)


REFUSED = [
    ((4, 4, 1), (4, 4, 1), "copy: cluster=4x4x1: expected 1 to 8 blocks"),
    ((4, 1, 1), (0, 1, 1), "copy: cluster=0x1x1: expected 1 to 8 blocks"),
    ((4, 3, 1), (2, 2, 1), "copy: a grid of 3 blocks along y: expected a multiple of the cluster's 2"),
    (
        (batch_extent(4, 3), 1, 1),
        (2, 1, 1),
        r"copy: a grid of ceil\(n\*4/3\) blocks along x: expected a multiple of the cluster's 2",
    ),
    (
        (extent_plus(batch_extent(4, scale=2), 3), 1, 1),
        (2, 1, 1),
        r"copy: a grid of 2\*n\*4\+3 blocks along x: expected a multiple of the cluster's 2",
    ),
]


@pytest.mark.parametrize(("grid", "cluster", "message"), REFUSED)
def test_launches_that_no_gpu_accepts_are_refused(
    grid: tuple[int | SizeExtent, int, int], cluster: tuple[int, int, int], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        Launch(Kernel("copy", ()), grid, (32, 1, 1), (), cluster=cluster)


def test_a_grid_of_runtime_size_is_a_multiple_by_its_scale() -> None:
    launch = Launch(Kernel("copy", ()), (batch_extent(4, 3, scale=6), 1, 1), (32, 1, 1), (), cluster=(3, 1, 1))
    assert launch.cluster_blocks == 3
    assert dataclasses.replace(launch, grid=(extent_plus(launch.grid[0], 9), 1, 1)).cluster_blocks == 3


def test_targets_without_clusters_are_refused() -> None:
    with pytest.raises(UsageError, match=r"multicast: clusters on a100 \(sm_80, 108 SMs\): expected sm_90 or newer"):
        multicast(Target.preset("a100"))
    [launch] = multicast(H200).launches
    alone = dataclasses.replace(multicast(H200), steps=(dataclasses.replace(launch, cluster=(1, 1, 1)),))
    dataclasses.replace(alone, target=Target.preset("a100"))


def test_early_launches_are_for_targets_that_have_them() -> None:
    plan = multicast(H200)
    [launch] = plan.launches
    early = dataclasses.replace(launch, is_early=True)
    assert dataclasses.replace(plan, steps=(early,)).launches[0].is_early
    alone = dataclasses.replace(early, cluster=(1, 1, 1))
    with pytest.raises(UsageError, match=r"early launches on a100 \(sm_80, 108 SMs\): expected sm_90 or newer"):
        dataclasses.replace(plan, steps=(alone,), target=Target.preset("a100"))


def test_reports_tell_of_clusters() -> None:
    resources = KernelResources("multicast", 32, 0, 0, 0, 0, 0)
    [kernel] = report(multicast(H200), (resources,))
    assert (kernel.grid, kernel.cluster) == ((4, 1, 1), (2, 1, 1))
    row = ("launch", "4x1x1 blocks of 64x1x1 threads, clusters of 2x1x1 blocks")
    assert row in compile_command._kernel_rows(kernel)
