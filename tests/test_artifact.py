"""The files `compile` writes. The C launcher is built here and run on a driver that needs no GPU."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hand_plans
import numpy as np
import pytest

from convgen.artifact import EMIT, write_artifacts
from convgen.cache import DiskCache
from convgen.compiler import Binary, compile_cuda, header_directory
from convgen.errors import DeviceError, OutputError, UsageError
from convgen.launcher import launcher_files
from convgen.lowering import lower, why_not
from convgen.plan import Plan
from convgen.problem import Conv, TensorSpec, parse_problem
from convgen.reference import encode, reference
from convgen.strategies import strategies_of
from convgen.target import Target

pytest.importorskip("cuda.bindings.nvrtc")

H200 = Target.preset("h200")
HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def scale(tmp_path_factory: pytest.TempPathFactory) -> Binary:
    return compile_cuda(hand_plans.SCALE_SOURCE, H200, cache=DiskCache(tmp_path_factory.mktemp("cache")))


# --- files and manifest ------------------------------------------------------------------------------------


def test_every_kind_is_written_and_hashed(scale: Binary, tmp_path: Path) -> None:
    plan = hand_plans.every_step(H200)
    artifact = write_artifacts(plan, hand_plans.SCALE_SOURCE, scale, tmp_path / "new", EMIT)
    names = {kind: [path.name for path in paths] for kind, paths in artifact.files.items()}
    assert names == {
        "cu": ["finish.cu"],
        "cubin": ["finish.cubin"],
        "ptx": ["finish.ptx"],
        "sass": ["finish.sass"],
        "launcher": ["finish.h", "finish_cubin.h", "finish_example.c"],
        "manifest": ["manifest.json"],
    }
    folder = artifact.directory
    assert (folder / "finish.cu").read_text() == hand_plans.SCALE_SOURCE
    assert (folder / "finish.cubin").read_bytes() == scale.cubin
    assert ".entry multiply" in (folder / "finish.ptx").read_text()
    sass = (folder / "finish.sass").read_text()
    assert "FMUL" in sass or "FFMA" in sass
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest == json.loads(json.dumps(artifact.manifest))
    for name, digest in manifest["files"].items():
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest
    assert set(manifest["files"]) == {p.name for p in folder.iterdir()} - {"manifest.json"}


def test_the_manifest_says_everything_to_launch(scale: Binary, tmp_path: Path) -> None:
    manifest = write_artifacts(hand_plans.every_step(H200), hand_plans.SCALE_SOURCE, scale, tmp_path).manifest
    assert manifest["problem"] == "conv1d n=*<=1000~7 c=1 k=1 in=50 filter=1"
    assert Conv.from_json(manifest["problem_json"]) == Conv.parse(manifest["problem"])
    assert (manifest["strategy"], manifest["config"]) == ("by_hand", {"threads": 64})
    assert manifest["sizes"] == {"n": {"runtime": True, "typical": 7, "max": 1000}}
    assert manifest["workspace_bytes"] == 1024 + 200_192  # 1000 bytes and 200000, each rounded up to 256
    assert manifest["workspace"][1] == {
        "name": "product",
        "bytes": {"factors": [{"size": "n", "times": 200, "by": 1}], "scale": 1},
        "alignment": 256,
    }
    assert manifest["steps"] == [
        {"kind": "copy_to_symbol", "symbol": "factor", "source": {"kind": "tensor", "tensor": "w"}, "bytes": 4},
        {
            "kind": "memset",
            "destination": {"kind": "workspace", "buffer": "marked"},
            "value": 255,
            "bytes": {"factors": [{"size": "n", "times": 1, "by": 1}], "scale": 1},
        },
        {
            "kind": "memset",
            "destination": {"kind": "workspace", "buffer": "product"},
            "value": 0,
            "bytes": {"factors": [{"size": "n", "times": 200, "by": 1}], "scale": 1},
        },
        {"kind": "launch", "kernel": 0},
        {"kind": "launch", "kernel": 1},
    ]
    multiply, finish = manifest["kernels"]
    assert (multiply["entry"], multiply["block"], multiply["cluster"]) == ("multiply", [64, 1, 1], [1, 1, 1])
    assert multiply["grid"] == [{"factors": [{"size": "n", "times": 50, "by": 64}], "scale": 2}, 1, 1]
    assert (multiply["dynamic_shared_bytes"], finish["dynamic_shared_bytes"]) == (256, 0)
    assert multiply["arguments"] == [
        {"name": "x", "ctype": "const float*", "kind": "tensor", "tensor": "x"},
        {"name": "product", "ctype": "float*", "kind": "workspace", "buffer": "product"},
        {"name": "half", "ctype": "float", "kind": "scalar", "value": 0.5},
        {"name": "n", "ctype": "int", "kind": "size", "size": "n"},
        {"name": "length", "ctype": "int", "kind": "scalar", "value": 50},
    ]
    assert multiply["constant_bytes"] == 4
    assert multiply["registers"] == scale.kernel("multiply").registers
    x, w, y = manifest["tensors"]
    assert x == {
        "name": "x",
        "role": "input",
        "dtype": "fp32",
        "ctype": "float",
        "shape": ["n", 1, 50],
        "strides": [50, 50, 1],
        "bytes": {"factors": [{"size": "n", "times": 1, "by": 1}], "scale": 200},
        "alignment": 16,
    }
    assert (w["shape"], w["bytes"], y["role"], y["alignment"]) == ([1, 1, 1], 4, "output", 4)
    assert manifest["hashes"]["compile_key"] == scale.key


def test_a_texture_asks_for_its_alignment(scale: Binary, tmp_path: Path) -> None:
    manifest = write_artifacts(hand_plans.by_texture(H200), hand_plans.SCALE_SOURCE, scale, tmp_path).manifest
    assert manifest["tensors"][0]["alignment"] == 512
    assert manifest["kernels"][0]["arguments"][0] == {
        "name": "x",
        "ctype": "cudaTextureObject_t",
        "kind": "texture",
        "tensor": "x",
        "width": 40,
        "height": 12,
        "pitch_bytes": 160,
    }


def test_an_unknown_kind_and_an_unwritable_folder_are_refused(scale: Binary, tmp_path: Path) -> None:
    plan = hand_plans.every_step(H200)
    with pytest.raises(UsageError, match=r"emit=exe: expected some of cu,cubin,ptx,sass,launcher"):
        write_artifacts(plan, "", scale, tmp_path, ["cu", "exe"])
    (tmp_path / "file").write_text("")
    for place in ("file", "file/folder", "missing/folder"):
        with pytest.raises(OutputError, match=rf"{place} cannot be made \(.*\): choose another folder"):
            write_artifacts(plan, "", scale, tmp_path / place)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_missing_disassembler_is_named(scale: Binary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("convgen.artifact.find_nvdisasm", lambda: None)
    with pytest.raises(DeviceError, match="nvidia-cuda-nvdisasm"):
        write_artifacts(hand_plans.every_step(H200), "", scale, tmp_path, ["sass"])
    assert list(tmp_path.iterdir()) == []


# --- the launcher ------------------------------------------------------------------------------------------------

Runner = Callable[..., subprocess.CompletedProcess[str]]


def _compilers() -> list[list[str]]:
    found = [[path, "-std=c99", "-Wall", "-Wextra", "-Werror"] for c in ("gcc", "clang") if (path := shutil.which(c))]
    nvcc = shutil.which("nvcc")
    return [*found, *([[nvcc, "-Werror", "all-warnings"]] if nvcc else [])]


@pytest.fixture(scope="session")
def fake_driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler, headers = shutil.which("gcc") or shutil.which("clang"), header_directory()
    if compiler is None or headers is None:
        pytest.skip("needs a C compiler and cuda.h")
    folder = tmp_path_factory.mktemp("driver")
    source = HERE / "fake_libcuda.c"
    subprocess.run([compiler, "-shared", "-fPIC", source, f"-I{headers}", "-o", folder / "libcuda.so"], check=True)
    (folder / "libcuda.so.1").symlink_to("libcuda.so")
    return folder


@pytest.fixture
def build_example(fake_driver: Path, tmp_path: Path) -> Callable[[Plan, bytes], Runner]:
    """Build a plan's example; the result runs it on the fake driver."""

    def build(plan: Plan, cubin: bytes) -> Runner:
        for name, text in launcher_files(plan, cubin).items():
            (tmp_path / name).write_text(text)
        source = tmp_path / f"{plan.name}_example.c"
        link = [f"-I{header_directory()}", f"-L{fake_driver}", "-lcuda", "-lm", "-o", str(tmp_path / "example")]
        subprocess.run([*_compilers()[0], str(source), *link], check=True, cwd=tmp_path)

        def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
            settings = {**os.environ, "LD_LIBRARY_PATH": str(fake_driver), **environment}
            return subprocess.run([tmp_path / "example", *arguments], env=settings, capture_output=True, text=True)

        return run

    return build


@pytest.mark.parametrize("command", _compilers(), ids=lambda command: Path(command[0]).name)
def test_the_launcher_compiles_without_warnings(command: list[str], scale: Binary, tmp_path: Path) -> None:
    headers = header_directory()
    for plan in (hand_plans.every_step(H200), hand_plans.by_texture(H200), hand_plans.in_clusters(H200)):
        for name, text in launcher_files(plan, scale.cubin).items():
            (tmp_path / name).write_text(text)
        source = tmp_path / f"{plan.name}_example.c"
        subprocess.run([*command, "-c", str(source), f"-I{headers}", "-o", str(tmp_path / "out.o")], check=True)


@pytest.mark.parametrize("command", _compilers(), ids=lambda command: Path(command[0]).name)
@pytest.mark.parametrize(
    "text",
    [
        "conv2d n=*<=8 c=64 in=20x20 k=64 filter=3x3 pad=1 dtype=fp16 layout=nhwc",
        "conv2d n=*<=8 c=3 in=20x20 k=16 filter=3x3 pad=1 dtype=fp16 layout=nhwc",
        "attention batch=*<=4 heads_q=8 seq_q=*<=128 seq_kv=*<=256~64 head_dim=64 dtype=fp16",
    ],
)
def test_launchers_of_sizes_known_at_the_launch_compile_without_warnings(
    command: list[str], text: str, tmp_path: Path
) -> None:
    problem = parse_problem(text)
    plans = [lower(problem, s, None, H200) for s in strategies_of(problem) if why_not(problem, s, H200) is None]
    assert len(plans) > 1
    for plan in plans:
        for name, content in launcher_files(plan, b"\x7fELF").items():
            (tmp_path / name).write_text(content)
    (tmp_path / "all.c").write_text("".join(f'#include "{plan.name}.h"\n' for plan in plans))
    subprocess.run([*command, "-c", "all.c", f"-I{header_directory()}", "-o", "out.o"], check=True, cwd=tmp_path)


CALLER = """
#include "{name}.h"
#define PROGRAM(part) {name}##part

int main(void)
{{
    static PROGRAM() program;
    CUresult status = PROGRAM(_load)(&program);
    if (!status) status = PROGRAM(_run)(&program, {pointers}, PROGRAM(_workspace_bytes)() ? 4096 : 0, NULL);
    return status ? (int)status : (int)PROGRAM(_unload)(&program);
}}
"""
"""A caller as the README shows it; the driver looks at no address."""


@pytest.mark.parametrize(
    "text",
    [
        "attention heads_q=8 seq_q=128 head_dim=64 causal=bottom_right mask=key lse=yes dtype=bf16",
        "attention heads_q=8 heads_kv=2 seq_q=1 seq_kv=8192 head_dim=64 dtype=fp16",
        "max_pool2d n=2 c=8 in=32x32 filter=3x3 stride=2 pad=1",
        "avg_pool3d c=8 in=8 filter=8 layout=nhwc",
        "batch_norm n=2 c=8 in=32x32 mode=training",
    ],
)
def test_launchers_of_other_problems_are_called_alike(text: str, fake_driver: Path, tmp_path: Path) -> None:
    problem = parse_problem(text)
    plan = next(lower(problem, s, None, H200) for s in strategies_of(problem) if why_not(problem, s, H200) is None)
    for name, content in launcher_files(plan, b"\x7fELF").items():
        (tmp_path / name).write_text(content)
    pointers = ", ".join(f"(CUdeviceptr){512 * (i + 1)}" for i in range(len(plan.inputs) + len(plan.outputs)))
    (tmp_path / "caller.c").write_text(CALLER.format(name=plan.name, pointers=pointers))
    link = [f"-I{header_directory()}", f"-L{fake_driver}", "-lcuda", "-o", "caller"]
    subprocess.run([*_compilers()[0], "caller.c", *link], check=True, cwd=tmp_path)
    log = tmp_path / "log"
    settings = {**os.environ, "LD_LIBRARY_PATH": str(fake_driver), "FAKE_CUDA_LOG": str(log)}
    subprocess.run([tmp_path / "caller"], check=True, env=settings)
    launched = [line.split()[1:4] for line in log.read_text().splitlines() if line.startswith("launch")]
    assert [[name, int(x)] for name, x, _ in launched] == [[step.kernel.name, step.grid[0]] for step in plan.launches]


def test_the_embedded_cubin_is_the_cubin(scale: Binary) -> None:
    text = launcher_files(hand_plans.every_step(H200), scale.cubin)["finish_cubin.h"]
    numbers = text.partition("{")[2].partition("}")[0].split(",")
    assert bytes(int(number) for number in numbers if number.strip()) == scale.cubin


def test_every_step_runs_in_order(scale: Binary, build_example: Callable[..., Runner], tmp_path: Path) -> None:
    run = build_example(hand_plans.every_step(H200), scale.cubin)
    log = tmp_path / "log"
    done = run("11", FAKE_CUDA_LOG=str(log))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == "finish: 64 results checked, 0 wrong\n"
    assert log.read_text().splitlines() == [
        "attribute multiply 1 256",
        "symbol factor",
        "copy 4",
        "memset 255 11",
        "memset 0 2200",
        "launch multiply 18 1 1 64 1 1 256",  # 2 * ceil(11 * 50 / 64)
        "launch finish 9 1 1 64 1 1 0",
        "unload",
        "live allocations 0",
    ]


def test_a_launch_in_clusters(scale: Binary, build_example: Callable[..., Runner], tmp_path: Path) -> None:
    plan = hand_plans.in_clusters(H200)
    log = tmp_path / "log"
    done = build_example(plan, scale.cubin)("11", FAKE_CUDA_LOG=str(log))
    assert done.stdout == "finish: 64 results checked, 0 wrong\n"
    launches = [line for line in log.read_text().splitlines() if line.startswith(("launch", "cluster"))]
    assert launches == ["cluster 2 1 1", "launch multiply 18 1 1 64 1 1 256", "launch finish 9 1 1 64 1 1 0"]
    multiply, finish = write_artifacts(plan, hand_plans.SCALE_SOURCE, scale, tmp_path).manifest["kernels"]
    assert (multiply["cluster"], finish["cluster"]) == ([2, 1, 1], [1, 1, 1])


def test_a_grid_with_a_constant_part(scale: Binary, build_example: Callable[..., Runner], tmp_path: Path) -> None:
    plan = hand_plans.with_more_blocks(H200)
    for batch, blocks in (("11", 18 + 3), ("0", 3)):
        log = tmp_path / f"log {batch}"
        build_example(plan, scale.cubin)(batch, FAKE_CUDA_LOG=str(log))
        launched = [line for line in log.read_text().splitlines() if line.startswith("launch multiply")]
        assert launched == [f"launch multiply {blocks} 1 1 64 1 1 256"]
    multiply, _ = write_artifacts(plan, hand_plans.SCALE_SOURCE, scale, tmp_path).manifest["kernels"]
    assert multiply["grid"] == [{"factors": [{"size": "n", "times": 50, "by": 64}], "scale": 2, "plus": 3}, 1, 1]
    assert str(plan.launches[0].grid[0]) == "2*ceil(n*50/64)+3"


def test_an_empty_batch_launches_nothing(scale: Binary, build_example: Callable[..., Runner], tmp_path: Path) -> None:
    run = build_example(hand_plans.every_step(H200), scale.cubin)
    done = run("0", FAKE_CUDA_LOG=str(tmp_path / "log"))
    assert (done.returncode, done.stdout) == (0, "finish: 0 results checked, 0 wrong\n")
    assert "launch" not in (tmp_path / "log").read_text()


def test_a_texture_is_made_and_destroyed(scale: Binary, build_example: Callable[..., Runner], tmp_path: Path) -> None:
    done = build_example(hand_plans.by_texture(H200), scale.cubin)(FAKE_CUDA_LOG=str(tmp_path / "log"))
    assert done.stdout == "fetch: 64 results checked, 0 wrong\n"
    log = (tmp_path / "log").read_text().splitlines()
    assert log[:2] == ["texture 32 40 12 160 border 1 flags 0 view 0", "launch fetch 1 12 1 64 1 1 0"]
    assert "destroy" in log


def test_a_cuda_error_ends_the_example(build_example: Callable[..., Runner]) -> None:
    done = build_example(hand_plans.every_step(H200), b"not a cubin")()
    assert done.returncode == 2
    assert "AN_ERROR" in done.stderr


PROBLEMS = [
    "conv1d n=3 c=4 k=6 in=11 filter=3 stride=2 pad=2 dtype=fp16",
    "conv2d n=2 c=4 k=6 in=7x9 filter=3x2 stride=2x1 pad=1:2x0:1 dilation=1x2 groups=2",
    "conv2d n=2 c=4 k=6 in=7x9 filter=3x2 pad=1 dtype=bf16 layout=nhwc epilogue=scale+shift+bias+residual+relu",
    "conv2d n=2 c=3 k=3 in=5 filter=3 pad=2 groups=3 pad_mode=reflect epilogue=bias+gelu",
    "conv2d n=1 c=2 k=2 in=6x5 filter=5 pad=2 pad_mode=circular epilogue=silu accumulate=yes",
    "conv3d n=1 c=2 k=3 in=4x5x3 filter=2x3x1 pad=1x1x0 pad_mode=replicate epilogue=hardswish",
    "conv2d n=1 c=5 k=4 in=6 filter=3 dtype=int8",
    "conv2d n=1 c=5 k=4 in=6 filter=3 dtype=uint8 epilogue=relu6",
    "conv2d n=2 c=4 k=6 in=7x9 filter=3 stride=2 pad=1 groups=2 direction=dgrad",
    "conv2d n=1 c=2 k=3 in=6x5 filter=3 pad=2 pad_mode=reflect direction=dgrad dtype=fp16 layout=nhwc",
    "conv2d n=2 c=4 k=6 in=7x9 filter=3 stride=2 pad=1 dilation=2 groups=2 direction=wgrad",
    "conv1d n=2 c=4 k=6 in=9 filter=4 pad=3 pad_mode=circular direction=wgrad accumulate=yes",
    "conv_transpose2d n=2 c=4 k=6 in=4x5 filter=3 stride=2 pad=1 output_padding=1 groups=2",
    "conv_transpose2d n=1 c=4 k=6 in=4x5 filter=3x2 stride=2 dilation=2 epilogue=bias+leaky_relu slope=0.2",
    "conv_transpose1d n=2 c=4 k=6 in=7 filter=3 stride=3 direction=dgrad",
    "conv_transpose3d n=1 c=2 k=3 in=3x2x4 filter=2 stride=2 direction=wgrad dtype=bf16",
]


def _pattern(which: int, spec: TensorSpec) -> Any:
    """The example's deterministic inputs, written anew with NumPy: numbers by logical index."""
    place = sum(
        np.arange(extent, dtype=np.uint64).reshape([-1 if d == axis else 1 for d in range(len(spec.shape))])
        * np.uint64(spec.strides[axis])
        for axis, extent in enumerate(spec.shape)
    )
    with np.errstate(over="ignore"):
        mixed = (place + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(which * 0x2545F491 % 2**32)
    number = ((mixed >> np.uint64(40)) % np.uint64(17)).astype(np.int64) - 8
    if spec.dtype.value == "uint8":
        return number + 8
    return number if spec.dtype.is_integer else number / 8


def _in_memory_order(values: Any, spec: TensorSpec) -> bytes:
    order = np.argsort([-stride for stride in spec.strides], kind="stable")
    return bytes(np.ascontiguousarray(encode(values, spec.dtype).transpose(order)).tobytes())


@pytest.mark.parametrize("text", PROBLEMS)
def test_the_example_knows_right_from_wrong(text: str, build_example: Callable[..., Runner], tmp_path: Path) -> None:
    problem = Conv.parse(text)
    plan = hand_plans.one_launch(problem, H200)
    tensors = (*plan.inputs, *plan.outputs)
    values = {spec.name: _pattern(which, spec) for which, spec in enumerate(tensors)}
    right = reference(problem, {name: np.asarray(v, dtype=np.float64) for name, v in values.items()})
    output = plan.outputs[0]
    run = build_example(plan, b"\x7fELF")
    where = {"FAKE_CUDA_RESULT": str(tmp_path / "result"), "FAKE_CUDA_RESULT_ALLOCATION": str(len(tensors) - 1)}

    (tmp_path / "result").write_bytes(_in_memory_order(right, output))
    done = run(**where)
    checked = min(64, output.size)
    assert done.stdout == f"{plan.name}: {checked} results checked, 0 wrong\n", done.stderr
    assert done.returncode == 0

    wrong = right.copy()
    wrong.flat[-1] += max(1.0, abs(wrong.flat[-1]) * 0.05)
    (tmp_path / "result").write_bytes(_in_memory_order(wrong, output))
    done = run(**where)
    assert done.returncode == 1
    assert f"{checked} results checked, 1 wrong" in done.stdout
