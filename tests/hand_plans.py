"""Plans made by hand, for the tests of what carries plans out."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from convgen.plan import (
    Buffer,
    CopyToSymbol,
    Kernel,
    Launch,
    Memset,
    Param,
    Plan,
    ScalarArg,
    SizeArg,
    TensorArg,
    TensorMapArg,
    TextureArg,
    WorkspaceArg,
    batch_extent,
    extent_plus,
)
from convgen.problem import Conv, DType
from convgen.space import Config
from convgen.target import Target
from convgen.tensor_map import TensorMap

SCALE_SOURCE = (Path(__file__).parent / "cuda_sources" / "scale.cu").read_text(encoding="utf-8")
THREADS = 64
LENGTH = 50


@dataclass(frozen=True)
class HandConfig(Config):
    threads: int = THREADS


def _plan(problem: Conv, target: Target, kernels: tuple[Kernel, ...], steps: tuple[Launch | CopyToSymbol | Memset, ...],
          workspace: tuple[Buffer, ...] = (), alignment: dict[str, int] | None = None) -> Plan:  # fmt: skip
    return Plan(
        problem=problem,
        strategy="by_hand",
        config=HandConfig(),
        target=target,
        template="none",
        constants={},
        kernels=kernels,
        steps=steps,
        workspace=workspace,
        alignment=alignment or {},
    )


def one_launch(problem: Conv, target: Target) -> Plan:
    """A launch that takes every tensor of the problem; there is no source for it."""
    tensors = (*problem.inputs, *problem.outputs)
    params = tuple(Param(t.name, f"const {t.dtype.ctype}*") for t in tensors)
    kernel = Kernel(f"one_launch_{problem.op}", params)
    args = tuple(TensorArg(t.name) for t in tensors)
    return _plan(problem, target, (kernel,), (Launch(kernel, (3, 1, 1), (32, 1, 1), args),))


def every_step(target: Target, n: str = "*<=1000~7") -> Plan:
    """y = x * w with a runtime batch of rows of LENGTH: symbol copy, memset, two launches, two buffers, all scalars."""
    problem = Conv.parse(f"conv1d n={n} c=1 k=1 in={LENGTH} filter=1")
    pointer = (Param("x", "const float*"), Param("product", "float*"), Param("half", "float"))
    multiply = Kernel("multiply", (*pointer, Param("n", "int"), Param("length", "int")))
    finish = Kernel(
        "finish",
        (Param("product", "const float*"), Param("y", "float*"), Param("twice", "double"), Param("n", "int"),
         Param("length", "long long")),
    )  # fmt: skip
    grid = (batch_extent(LENGTH, THREADS), 1, 1)
    steps = (
        CopyToSymbol("factor", TensorArg("w"), 4),
        Memset(WorkspaceArg("marked"), 255),
        Memset(WorkspaceArg("product")),
        Launch(
            multiply, (batch_extent(LENGTH, THREADS, scale=2), 1, 1), (THREADS, 1, 1),
            (TensorArg("x"), WorkspaceArg("product"), ScalarArg(0.5), SizeArg("n"), ScalarArg(LENGTH)),
            shared_bytes=4 * THREADS,
        ),
        Launch(
            finish, grid, (THREADS, 1, 1),
            (WorkspaceArg("product"), TensorArg("y"), ScalarArg(2.0), SizeArg("n"), ScalarArg(LENGTH)),
        ),
    )  # fmt: skip
    buffers = (Buffer("marked", batch_extent(1)), Buffer("product", batch_extent(4 * LENGTH)))
    return _plan(problem, target, (multiply, finish), steps, buffers, {"x": 16})


def in_clusters(target: Target, n: str = "*<=1000~7") -> Plan:
    """`every_step`, its first launch in clusters of two blocks."""
    plan = every_step(target, n)
    multiply = plan.launches[0]
    steps = tuple(dataclasses.replace(step, cluster=(2, 1, 1)) if step is multiply else step for step in plan.steps)
    return dataclasses.replace(plan, steps=steps)


def with_more_blocks(target: Target, n: str = "*<=1000~7") -> Plan:
    """`every_step`, its first launch with three blocks more, whatever the batch."""
    plan = every_step(target, n)
    multiply = plan.launches[0]
    more = dataclasses.replace(multiply, grid=(extent_plus(multiply.grid[0], 3), 1, 1))
    return dataclasses.replace(plan, steps=tuple(more if step is multiply else step for step in plan.steps))


def by_maps(target: Target, n: str = "*<=1000~7") -> Plan:
    """`every_step`, its first launch with tensor maps of x, of the product and of w behind its parameters."""
    plan = every_step(target, n)
    multiply = plan.launches[0]
    sources = (TensorArg("x"), WorkspaceArg("product"), TensorArg("w"))
    maps = tuple(TensorMapArg(source, TensorMap(DType.FP32, (64, 4), (256,), (64, 4))) for source in sources)
    params = tuple(Param(f"map_{index}", "const __grid_constant__ TensorMap") for index in range(len(maps)))
    kernel = Kernel(multiply.kernel.name, (*multiply.kernel.params, *params))
    launch = dataclasses.replace(multiply, kernel=kernel, args=(*multiply.args, *maps))
    steps = tuple(launch if step is multiply else step for step in plan.steps)
    return dataclasses.replace(plan, kernels=(kernel, *plan.kernels[1:]), steps=steps)


def by_texture(target: Target, height: int = 12, width: int = 40) -> Plan:
    """y = x * w of one image, read through a texture."""
    problem = Conv.parse(f"conv2d n=1 c=1 k=1 in={height}x{width} filter=1x1")
    kernel = Kernel(
        "fetch",
        (Param("x", "cudaTextureObject_t"), Param("w", "const float*"), Param("y", "float*"), Param("width", "int"),
         Param("height", "int")),
    )  # fmt: skip
    args = (
        TextureArg("x", width, height, 4 * width),
        TensorArg("w"),
        TensorArg("y"),
        ScalarArg(width),
        ScalarArg(height),
    )
    launch = Launch(kernel, (-(-width // THREADS), height, 1), (THREADS, 1, 1), args)
    return _plan(problem, target, (kernel,), (launch,))
