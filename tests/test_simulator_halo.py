"""A whole Hopper kernel on the simulator, all of its means together: right, and wrong where one of them is left out."""

from __future__ import annotations

from typing import Any

import hand_plans
import numpy as np
import numpy.typing as npt
import pytest
from device_cases import unit
from test_simulator import Kernel, Param

from convgen import plan
from convgen.compiler import compile_cuda
from convgen.plan import Launch, Plan, ScalarArg, TensorArg, TensorMapArg
from convgen.problem import Conv, DType
from convgen.simulator import Argument, BoundTensorMap, Copies, FaultKind, Memory, Mode, Report, Unit, build
from convgen.target import Target
from convgen.tensor_map import Swizzle, TensorMap

HEADERS = (
    *("shared", "shared_address", "mbarrier", "fence", "tensor_map", "cp_async_bulk", "cp_async_bulk_tensor"),
    *("cluster", "cluster_multicast"),
    *("wgmma_descriptor", "wgmma_group", "wgmma", "named_barrier", "setmaxnreg", "elect"),
)
CASE = unit("halo_3x3.cu.j2", HEADERS, (("wgmma_type", "bf16"), ("wgmma_extents", (64,))))
KERNEL = Kernel(
    "halo_3x3",
    (
        *(Param(name, "const __grid_constant__ TensorMap") for name in "xwy"),
        *(Param(name, "int") for name in ("tiles_x", "tiles_y", "tiles")),
    ),
)
N, HEIGHT, WIDTH, C = 2, 13, 10, 64
SHARED = 9 * 64 * 128 + 2 * 13 * 1024 + 64 * 128 + 5 * 8


def bf16(values: npt.NDArray[np.int64]) -> npt.NDArray[np.uint16]:
    return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def channels_last(tensor: npt.NDArray[Any], box: tuple[int, ...]) -> TensorMap:
    return TensorMap(DType.BF16, tensor.shape[::-1], tensor.strides[-2::-1], box, swizzle=Swizzle.B128)


def operands() -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """x and w, channels last, and y: whole numbers that bf16 holds."""
    rng = np.random.default_rng(1)
    x, w = (
        rng.integers(0, 2, (N, HEIGHT, WIDTH, C)),
        rng.integers(-1, 2, (C, 3, 3, C)) * (rng.random((C, 3, 3, C)) < 0.1),
    )
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    y = np.asarray(sum(padded[:, r : r + HEIGHT, s : s + WIDTH] @ w[:, r, s].T for r in range(3) for s in range(3)))
    assert abs(y).max() < 256
    return x, w, y


def run(
    source: str, mode: Mode, copies: Copies, blocks: int = 3, cluster: int = 1
) -> tuple[Report, npt.NDArray[Any], npt.NDArray[Any]]:
    """Report, y and the y expected."""
    x, w, expected = operands()
    memory = Memory()
    maps: list[Argument] = []
    for name, values, box in (
        ("x", bf16(x), (C, 10, 10, 1)),
        ("w", bf16(w).reshape(C, 9, C), (C, 1, C)),
        ("y", np.zeros(x.shape, np.uint16), (C, 8, 8, 1)),
    ):
        block = memory.allocate(name, values.nbytes, writable=name == "y", initialised=name != "y", granule=2)
        if name != "y":
            block.bytes.view(np.uint16)[:] = values.ravel()
        maps.append(BoundTensorMap(block, channels_last(values, box)))
    across, down = -(-WIDTH // 8), -(-HEIGHT // 8)
    built = build([Unit(source, (KERNEL,), "halo.cu")], mode)
    arguments = [*maps, across, down, across * down * N]
    report = built.launch(
        0, KERNEL, (blocks, 1, 1), (256, 1, 1), SHARED, arguments, memory, cluster=(cluster, 1, 1), copies=copies
    )
    got = (block.bytes.view(np.uint16).astype(np.uint32) << 16).view(np.float32).reshape(x.shape)
    return report, got, expected


@pytest.mark.parametrize("copies", Copies)
@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize(("blocks", "cluster"), [(3, 1), (4, 2), (4, 4)])
def test_the_convolution_is_right(blocks: int, cluster: int, mode: Mode, copies: Copies) -> None:
    report, got, expected = run(CASE.source, mode, copies, blocks, cluster)
    assert report.faults == (), "\n".join(map(str, report.faults))
    np.testing.assert_array_equal(got, expected)


BROKEN = [
    ("cluster_sync();", "__syncthreads();", FaultKind.MBARRIER),
    ("(1 << cluster_size()) - 1);", "1 << cluster_rank());", FaultKind.DEADLOCK),
    ("mbarrier_wait_parity(full + stage, step / kStages & 1);", "", FaultKind.RACE),
    ("mbarrier_wait_parity(weights, 0);", "", FaultKind.RACE),
    ("mbarrier_wait_parity(empty + stage, (step / kStages & 1) ^ 1);", "", FaultKind.RACE),
    ("        fence_proxy_async();\n        bar_sync", "        bar_sync", FaultKind.PROXY),
    ("            cp_async_bulk_wait_group_read<0>();\n", "", FaultKind.RACE),
    ("        wgmma_wait_group<0>(d);\n        if", "        if", FaultKind.IN_FLIGHT),
    ("expect_tx(full + stage, 100 * 128)", "expect_tx(full + stage, 100 * 64)", FaultKind.DEADLOCK),
    ("mbarrier_init(empty + stage, 1)", "mbarrier_init(empty + stage, 2)", FaultKind.DEADLOCK),
    ("setmaxnreg_dec<40>();", "setmaxnreg_inc<40>();", FaultKind.REGISTERS),
]


@pytest.mark.parametrize("copies", Copies)
@pytest.mark.parametrize(("right", "wrong", "kind"), BROKEN, ids=[broken[0].strip()[:40] for broken in BROKEN])
def test_what_is_left_out_is_missed(right: str, wrong: str, kind: FaultKind, copies: Copies) -> None:
    assert CASE.source.count(right) == 1
    report, _, _ = run(CASE.source.replace(right, wrong), Mode.CHECK, copies, blocks=2, cluster=2)
    assert kind in {fault.kind for fault in report.faults}, "\n".join(map(str, report.faults))


def test_the_kernel_compiles() -> None:
    [kernel] = compile_cuda(CASE.source, "sm_90a").kernels
    assert kernel.spill_stores == 0


@pytest.mark.gpu
@pytest.mark.parametrize(("blocks", "cluster"), [(3, 1), (4, 2), (4, 4)])
def test_a_gpu_gives_the_same_bits(blocks: int, cluster: int, cupy: Any) -> None:
    from convgen.runtime.cuda import load

    target = Target.current()
    x, w, expected = operands()
    problem = Conv.parse(f"conv2d n={N} c={C} k={C} in={HEIGHT}x{WIDTH} filter=3x3 pad=1 dtype=bf16 layout=nhwc")
    boxes = (("x", bf16(x), (C, 10, 10, 1)), ("w", bf16(w).reshape(C, 9, C), (C, 1, C)), ("y", bf16(x), (C, 8, 8, 1)))
    maps = [TensorMapArg(TensorArg(n), channels_last(v, box), is_written=n == "y") for n, v, box in boxes]
    across, down = -(-WIDTH // 8), -(-HEIGHT // 8)
    numbers = (ScalarArg(across), ScalarArg(down), ScalarArg(across * down * N))
    kernel = plan.Kernel(KERNEL.name, tuple(plan.Param(p.name, p.ctype) for p in KERNEL.params))
    launch = Launch(kernel, (blocks, 1, 1), (256, 1, 1), (*maps, *numbers), SHARED, (cluster, 1, 1))
    halo = Plan(problem, "by_hand", hand_plans.HandConfig(), target, "none", {}, (kernel,), (launch,))
    program = load(halo, compile_cuda(CASE.source, target))
    arrays = {name: cupy.asarray(bf16(values)).transpose(0, 3, 1, 2) for name, values in (("x", x), ("w", w))}
    y = cupy.asnumpy(program.run(arrays)["y"]).transpose(0, 2, 3, 1)
    np.testing.assert_array_equal(y, bf16(expected))
