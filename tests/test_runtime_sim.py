"""Plans run on the CPU: NumPy arrays in, answers and reports out."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from convgen.errors import CompileError, SimulatorFault, UsageError
from convgen.plan import (
    BatchArg,
    BatchExtent,
    Buffer,
    CopyToSymbol,
    Kernel,
    Launch,
    Memset,
    Param,
    Plan,
    ScalarArg,
    TensorArg,
    TextureArg,
    WorkspaceArg,
)
from convgen.problem import Conv, Layout, TensorSpec
from convgen.problem.dtype import DType
from convgen.runtime.physical import flat, to_logical, to_physical, unflat
from convgen.runtime.sampling import BlockSample
from convgen.runtime.sim import Mode, SimProgram, SimResult, build
from convgen.simulator import FaultKind
from convgen.space import Config
from convgen.target import Target

# A 1x1 convolution of one channel: y[n, i] = w * x[n, i], in ways that use every kind of step and argument.
SOURCE = """
extern "C" __constant__ float weight[1];

extern "C" __global__ void copy_rows(const float* x, float* rows, int n, int width) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n * width) rows[i] += x[i];
}

extern "C" __global__ void scale(const float* rows, float* y, int n, int width, float times) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n * width) y[i] = weight[0] * rows[i] * times;
}

extern "C" __global__ void from_texture(cudaTextureObject_t x, float* y, int n, int width) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n * width) y[i] = weight[0] * tex2D<float>(x, i % width + 0.5f, i / width + 0.5f);
}

extern "C" __global__ void add(const float* x, const float* w, float* y, int n, int width, int stray) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n * width) y[i + stray] = w[0] * x[i] + y[i];
}
"""
WIDTH = 100


def kernel(name: str, *params: tuple[str, str]) -> Kernel:
    return Kernel(name, tuple(Param(n, t) for n, t in params))


N, X, W, Y = ("n", "int"), ("x", "const float*"), ("w", "const float*"), ("y", "float*")
COPY = kernel("copy_rows", X, ("rows", "float*"), N, ("width", "int"))
SCALE = kernel("scale", ("rows", "const float*"), Y, N, ("width", "int"), ("times", "float"))
TEXTURE = kernel("from_texture", ("x", "cudaTextureObject_t"), Y, N, ("width", "int"))
ADD = kernel("add", X, W, Y, N, ("width", "int"), ("stray", "int"))
KERNELS = (COPY, SCALE, TEXTURE, ADD)
GRID = (BatchExtent(WIDTH, 32), 1, 1)
FILL = CopyToSymbol("weight", TensorArg("w"), 4)


def plan(*steps: Any, accumulate: bool = False, batch: str = "*") -> Plan:
    problem = Conv.parse(f"conv1d n={batch} c=1 in={WIDTH} k=1 filter=1 {'accumulate=yes' if accumulate else ''}")
    workspace = (Buffer("rows", BatchExtent(4 * WIDTH)),)
    target = Target.preset("h200")
    return Plan(problem, "test", Config(), target, "test.cu.j2", {}, KERNELS, steps, workspace)


def two_launches(clear: bool = True) -> Plan:
    copy = Launch(COPY, GRID, (32, 1, 1), (TensorArg("x"), WorkspaceArg("rows"), BatchArg(), ScalarArg(WIDTH)))
    args = (WorkspaceArg("rows"), TensorArg("y"), BatchArg(), ScalarArg(WIDTH), ScalarArg(2.0))
    scale = Launch(SCALE, GRID, (32, 1, 1), args)
    return plan(*[Memset(WorkspaceArg("rows"))] * clear, copy, FILL, scale)


def adding(stray: int = 0) -> Launch:
    args = (TensorArg("x"), TensorArg("w"), TensorArg("y"), BatchArg(), ScalarArg(WIDTH), ScalarArg(stray))
    return Launch(ADD, GRID, (32, 1, 1), args)


def run(program: SimProgram, n: int = 3, **options: Any) -> tuple[SimResult, npt.NDArray[Any], dict[str, Any]]:
    rng = np.random.default_rng(0)
    arrays = {"x": rng.standard_normal((n, 1, WIDTH)), "w": rng.standard_normal((1, 1, 1))}
    arrays = {k: v.astype(np.float32) for k, v in arrays.items()}
    y = np.ones((n, 1, WIDTH), np.float32)
    result = program.run(arrays, {"y": y}, **options)
    return result, y, arrays


@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize("n", [1, 3, 7])
def test_steps_run_in_order(mode: Mode, n: int) -> None:
    (program,) = build([two_launches()], [SOURCE], mode)
    result, y, arrays = run(program, n)
    result.require_clean()
    np.testing.assert_allclose(y, 2 * arrays["w"] * arrays["x"], rtol=1e-6)
    assert result.written["y"].all()
    assert result.report.coverage == 1.0


@pytest.mark.parametrize("mode", Mode)
def test_textures(mode: Mode) -> None:
    texture = TextureArg("x", WIDTH, BatchExtent(1), WIDTH * 4)
    launch = Launch(TEXTURE, GRID, (32, 1, 1), (texture, TensorArg("y"), BatchArg(), ScalarArg(WIDTH)))
    (program,) = build([plan(FILL, launch)], [SOURCE], mode)
    result, y, arrays = run(program)
    result.require_clean()
    np.testing.assert_array_equal(y, arrays["w"] * arrays["x"])
    if mode is Mode.COUNT:
        site = next(s for s in result.report.counters.sites if s.space == "texture")
        assert "tex2D" in site.place[0].text
        assert site.bytes == x_bytes(arrays)


def x_bytes(arrays: dict[str, Any]) -> int:
    return int(arrays["x"].nbytes)


def test_workspace_is_not_zero_by_itself() -> None:
    (program,) = build([two_launches(clear=False)], [SOURCE], Mode.CHECK)
    result, _, _ = run(program)
    assert {f.kind for f in result.report.faults} == {FaultKind.UNINITIALISED}
    with pytest.raises(
        SimulatorFault, match=r"uninitialised read: read of 4 bytes at global rows offset 0, in copy_rows"
    ):
        result.require_clean()


def test_outputs_are_not_zero_by_themselves() -> None:
    (program,) = build([plan(adding())], [SOURCE], Mode.FAST)
    _, y, _ = run(program)
    assert np.isnan(y).all()


@pytest.mark.parametrize("mode", Mode)
def test_accumulation_reads_what_was_there(mode: Mode) -> None:
    (program,) = build([plan(adding(), accumulate=True)], [SOURCE], mode)
    result, y, arrays = run(program)
    result.require_clean()
    np.testing.assert_allclose(y, 1 + arrays["w"] * arrays["x"], rtol=1e-6)


@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("mode", Mode)
def test_sampled_blocks(mode: Mode, accumulate: bool) -> None:
    sampled = two_launches() if not accumulate else plan(adding(), accumulate=True)
    (program,) = build([sampled], [SOURCE], mode)
    result, y, arrays = run(program, n=20, blocks=BlockSample(limit=10))
    result.require_clean()
    written = result.written["y"]
    assert written.sum() == result_blocks(result) * 32
    assert written.ravel()[:32].all()
    assert written.ravel()[-16:].all()
    expected = 1 + arrays["w"] * arrays["x"] if accumulate else 2 * arrays["w"] * arrays["x"]
    np.testing.assert_allclose(y[written], expected[written], rtol=1e-6)
    untouched = y[~written]
    assert (untouched == 1).all() if accumulate else np.isnan(untouched).all()


def result_blocks(result: SimResult) -> float:
    """Blocks of the last launch that were run, the last one counting for its 16 of 32 threads that write."""
    whole = 63 if result.report.blocks == 126 else 0
    return result.report.blocks_run - whole - 0.5


def test_writes_beyond_an_output_are_found_in_fast_mode_too() -> None:
    (program,) = build([plan(adding(stray=WIDTH), accumulate=True)], [SOURCE], Mode.FAST)
    result, _, _ = run(program)
    (fault,) = result.report.faults
    assert fault.kind is FaultKind.OUT_OF_BOUNDS
    assert "beyond the ends of y" in fault.detail


def test_a_copy_larger_than_its_symbol_is_refused() -> None:
    (program,) = build([plan(CopyToSymbol("weight", TensorArg("x"), 8))], [SOURCE], Mode.FAST)
    with pytest.raises(SimulatorFault, match=r"8 bytes from x .* to weight \(4\)"):
        run(program)


def test_several_plans_share_a_library() -> None:
    texture = TextureArg("x", WIDTH, BatchExtent(1), WIDTH * 4)
    launch = Launch(TEXTURE, GRID, (32, 1, 1), (texture, TensorArg("y"), BatchArg(), ScalarArg(WIDTH)))
    programs = build([two_launches(), plan(FILL, launch)], [SOURCE, SOURCE], Mode.CHECK)
    assert programs[0].library is programs[1].library
    for program, times in zip(programs, (2, 1), strict=True):
        _, y, arrays = run(program)
        np.testing.assert_allclose(y, times * arrays["w"] * arrays["x"], rtol=1e-6)


def test_a_compile_error_names_the_plan() -> None:
    with pytest.raises(CompileError, match=r"scale\.cu:\d+.*wight"):
        build([two_launches()], [SOURCE.replace("weight[0] * rows", "wight[0] * rows")])


def test_an_empty_batch_runs_nothing() -> None:
    (program,) = build([two_launches()], [SOURCE], Mode.CHECK)
    result, y, _ = run(program, n=0)
    assert y.size == 0
    assert result.report.blocks == 0


def test_arrays_of_the_wrong_shape_are_refused() -> None:
    (program,) = build([two_launches()], [SOURCE], Mode.FAST)
    x, w = np.zeros((2, 1, WIDTH + 1), np.float32), np.zeros((1, 1, 1), np.float32)
    with pytest.raises(UsageError, match=r"x: float32 \(2, 1, 101\), expected \(2, 1, 100\)"):
        program.run({"x": x, "w": w}, {"y": np.zeros((2, 1, WIDTH), np.float32)})


@pytest.mark.parametrize("grid", [(100, 1, 1), (7, 9, 5), (1, 1, 1000), (2, 1, 40)])
def test_samples_hold_the_corners(grid: tuple[int, int, int]) -> None:
    chosen = BlockSample(limit=24).pick(grid)
    assert chosen is not None
    assert chosen == sorted(set(chosen))
    assert 8 <= len(chosen) <= 24
    corners = [(x, y, z) for x in (0, grid[0] - 1) for y in (0, grid[1] - 1) for z in (0, grid[2] - 1)]
    assert {(z * grid[1] + y) * grid[0] + x for x, y, z in corners} <= set(chosen)
    assert max(chosen) < grid[0] * grid[1] * grid[2]


def test_small_grids_are_run_whole() -> None:
    assert BlockSample(limit=24).pick((4, 3, 2)) is None


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("dtype", [DType.FP32, DType.FP16, DType.BF16, DType.INT8])
def test_physical_arrays(layout: Layout, dtype: DType) -> None:
    spec = TensorSpec("x", (2, 3, 4, 5), dtype, layout)
    logical = np.arange(120, dtype=np.float64).reshape(spec.shape)
    physical = to_physical(spec, logical)
    assert tuple(s // physical.itemsize for s in physical.strides) == spec.strides
    np.testing.assert_array_equal(to_logical(spec, physical), logical)
    elements = flat(spec, physical)
    assert np.shares_memory(elements, physical)
    position = sum(i * s for i, s in zip((1, 2, 3, 4), spec.strides, strict=True))
    assert elements[position] == physical[1, 2, 3, 4]
    np.testing.assert_array_equal(unflat(spec, elements), physical)


def test_physical_arrays_of_another_shape_are_refused() -> None:
    spec = TensorSpec("x", (2, 3, 4, 5), DType.FP32, Layout.CHANNELS_LAST)
    with pytest.raises(UsageError, match="expected"):
        to_physical(dataclasses.replace(spec, shape=(2, 3, 4, 6)), np.zeros(spec.shape))
