"""Plans run on the CPU: NumPy arrays in, answers and reports out."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from convgen.errors import CompileError, SimulatorFault, UsageError
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
    TextureArg,
    WorkspaceArg,
    batch_extent,
)
from convgen.problem import Conv, Layout, TensorSpec
from convgen.problem.dtype import DType
from convgen.runtime.physical import check_array, flat, to_logical, to_physical, unflat
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
GRID = (batch_extent(WIDTH, 32), 1, 1)
FILL = CopyToSymbol("weight", TensorArg("w"), 4)


def plan(*steps: Any, accumulate: bool = False, batch: str = "*") -> Plan:
    problem = Conv.parse(f"conv1d n={batch} c=1 in={WIDTH} k=1 filter=1 {'accumulate=yes' if accumulate else ''}")
    workspace = (Buffer("rows", batch_extent(4 * WIDTH)),)
    target = Target.preset("h200")
    return Plan(problem, "test", Config(), target, "test.cu.j2", {}, KERNELS, steps, workspace)


def two_launches(clear: bool = True) -> Plan:
    copy = Launch(COPY, GRID, (32, 1, 1), (TensorArg("x"), WorkspaceArg("rows"), SizeArg("n"), ScalarArg(WIDTH)))
    args = (WorkspaceArg("rows"), TensorArg("y"), SizeArg("n"), ScalarArg(WIDTH), ScalarArg(2.0))
    scale = Launch(SCALE, GRID, (32, 1, 1), args)
    return plan(*[Memset(WorkspaceArg("rows"))] * clear, copy, FILL, scale)


def adding(stray: int = 0) -> Launch:
    args = (TensorArg("x"), TensorArg("w"), TensorArg("y"), SizeArg("n"), ScalarArg(WIDTH), ScalarArg(stray))
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
    texture = TextureArg("x", WIDTH, batch_extent(1), WIDTH * 4)
    launch = Launch(TEXTURE, GRID, (32, 1, 1), (texture, TensorArg("y"), SizeArg("n"), ScalarArg(WIDTH)))
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
    texture = TextureArg("x", WIDTH, batch_extent(1), WIDTH * 4)
    launch = Launch(TEXTURE, GRID, (32, 1, 1), (texture, TensorArg("y"), SizeArg("n"), ScalarArg(WIDTH)))
    programs = build([two_launches(), plan(FILL, launch)], [SOURCE, SOURCE], Mode.CHECK)
    assert programs[0].library is programs[1].library
    for program, times in zip(programs, (2, 1), strict=True):
        _, y, arrays = run(program)
        np.testing.assert_allclose(y, times * arrays["w"] * arrays["x"], rtol=1e-6)


def test_a_compile_error_names_the_plan() -> None:
    broken = two_launches()
    with pytest.raises(CompileError, match=rf"{broken.name}\.cu:\d+.*wight"):
        build([broken], [SOURCE.replace("weight[0] * rows", "wight[0] * rows")])


def test_an_empty_batch_runs_nothing() -> None:
    (program,) = build([two_launches()], [SOURCE], Mode.CHECK)
    result, y, _ = run(program, n=0)
    assert y.size == 0
    assert result.report.blocks == 0


def test_arrays_of_the_wrong_shape_are_refused() -> None:
    (program,) = build([two_launches()], [SOURCE], Mode.FAST)
    x, w = np.zeros((2, 1, WIDTH + 1), np.float32), np.zeros((1, 1, 1), np.float32)
    with pytest.raises(UsageError, match=r"x has shape \(2, 1, 101\), expected \(2, 1, 100\)"):
        program.run({"x": x, "w": w}, {"y": np.zeros((2, 1, WIDTH), np.float32)})
    with pytest.raises(UsageError, match=r"x has shape \(\), expected \(0, 1, 100\)"):
        program.run({"x": np.zeros((), np.float32), "w": w}, {"y": np.zeros((2, 1, WIDTH), np.float32)})


def test_a_fixed_stays_fixed() -> None:
    (program,) = build([plan(adding(), accumulate=True, batch="4")], [SOURCE], Mode.FAST)
    with pytest.raises(UsageError, match=r"x has shape \(3, 1, 100\), expected \(4, 1, 100\)"):
        run(program, n=3)


ZEROS = {"x": np.zeros((2, 1, WIDTH), np.float32), "w": np.zeros((1, 1, 1), np.float32)}
OUT = np.zeros((2, 1, WIDTH), np.float32)
READ_ONLY = np.broadcast_to(np.float32(0), OUT.shape)
ONE_ELEMENT = np.lib.stride_tricks.as_strided(OUT.copy(), OUT.shape, (0, 0, 0))


@pytest.mark.parametrize(
    ("inputs", "outputs", "message"),
    [
        ({"x": ZEROS["x"].astype(np.int32)}, {}, "x is int32, expected float32"),
        ({"x": ZEROS["x"].astype(">f4")}, {}, "x is >f4, expected float32 in this machine's byte order"),
        ({"w": ZEROS["w"].astype(np.float64)}, {}, "w is float64, expected float32"),
        ({"x": np.ma.masked_array(ZEROS["x"])}, {}, "x is a masked array"),
        ({"x": None}, {}, r"x is a builtins\.NoneType, not a NumPy array"),
        ({"w": [[[1.0]]]}, {}, r"w is a builtins\.list, not a NumPy array"),
        ({"z": OUT}, {}, "inputs: unknown z; the problem has w, x"),
        ({}, {"dx": OUT}, "outputs: unknown dx; the problem has y"),
        ({}, {"y": OUT.astype(np.uint32)}, "y is uint32, expected float32"),
        ({}, {"y": None}, r"y is a builtins\.NoneType, not a NumPy array"),
        ({}, {"y": READ_ONLY}, "y is read-only, so it cannot be written"),
        ({}, {"y": ONE_ELEMENT}, "y has stride 0: several of its elements share memory"),
    ],
)
def test_arrays_that_would_be_misread_are_refused(inputs: Any, outputs: Any, message: str) -> None:
    (program,) = build([two_launches()], [SOURCE], Mode.FAST)
    with pytest.raises(UsageError, match=message):
        program.run(ZEROS | inputs, {"y": OUT.copy()} | outputs)


def test_missing_arrays_are_named() -> None:
    (program,) = build([two_launches()], [SOURCE], Mode.FAST)
    with pytest.raises(UsageError, match="inputs: w, x missing; the problem has w, x"):
        program.run({}, {"y": OUT.copy()})
    with pytest.raises(UsageError, match="outputs: y missing; the problem has y"):
        program.run(ZEROS, {})
    with pytest.raises(UsageError, match="inputs: a list, expected a mapping of w, x to arrays"):
        program.run([ZEROS["x"], ZEROS["w"]], {"y": OUT.copy()})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("dtype", "name", "refused"),
    [
        (DType.FP32, "float32", ""),
        (DType.TF32, "float32", ""),
        (DType.FP16, "float16", ""),
        (DType.BF16, "uint16", ""),
        (DType.BF16, "float16", "x is float16, expected bfloat16 or uint16"),
        (DType.BF16, ">u2", "x is >u2, expected bfloat16 or uint16 in this machine's byte order"),
        (DType.FP16, "uint16", "x is uint16, expected float16"),
        (DType.INT8, "int8", ""),
        (DType.INT8, "uint8", "x is uint8, expected int8"),
    ],
)
def test_array_types_of_a_problem_type(dtype: DType, name: str, refused: str) -> None:
    spec = TensorSpec("x", (2, 3, 4, 5), dtype, Layout.CHANNELS_LAST)
    with pytest.raises(UsageError, match=refused) if refused else contextlib.nullcontext():
        check_array(spec, np.zeros(spec.shape, name))


def test_bfloat16_arrays_pass() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    spec = TensorSpec("x", (2, 3, 4, 5), DType.BF16, Layout.CHANNELS_LAST)
    check_array(spec, np.zeros(spec.shape, ml_dtypes.bfloat16))


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
