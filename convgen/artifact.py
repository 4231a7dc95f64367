"""What `compile` writes: source, cubin, PTX, SASS, C launcher and a manifest that says how to launch them."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
import subprocess
import tempfile
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from convgen import __version__
from convgen.binding import nbytes_of, preparation, required_alignment, symbolic_shape
from convgen.compiler import Binary
from convgen.errors import DeviceError, UsageError
from convgen.files import make_folder, write_whole
from convgen.launcher import launcher_files
from convgen.plan import (
    WORKSPACE_ALIGNMENT,
    Arg,
    CopyToSymbol,
    Extent,
    Launch,
    Memset,
    Plan,
    ScalarArg,
    SizeArg,
    SizeExtent,
    TensorArg,
    TensorMapArg,
    TextureArg,
    WorkspaceArg,
)
from convgen.problem import TensorSpec
from convgen.resources import KernelReport, report
from convgen.toolkit import cuda_homes, wheel_folders

EMIT = ("cu", "cubin", "ptx", "sass", "launcher")

MANIFEST_FORMAT = 2


@dataclass(frozen=True)
class Artifact:
    """The files of one compiled plan, by kind (one of EMIT, or "manifest"), and the manifest as data."""

    directory: Path
    files: Mapping[str, tuple[Path, ...]]
    manifest: Mapping[str, Any]


def write_artifacts(
    plan: Plan, source: str, binary: Binary, directory: Path, emit: Collection[str] = ("cu", "cubin")
) -> Artifact:
    """Write the files named in `emit`, and `manifest.json`, into `directory`, which is made if missing.

    Files are named after the plan. Each is replaced whole: a reader never sees half of one. Raises UsageError for
    an unknown kind, OutputError for a directory that cannot be made or written, DeviceError if `sass` needs a
    disassembler that is missing.
    """
    unknown = [kind for kind in emit if kind not in EMIT]
    if unknown:
        raise UsageError(f"emit={','.join(unknown)}: expected some of {','.join(EMIT)}")
    kinds = {kind: _contents(kind, plan, source, binary) for kind in EMIT if kind in emit}
    contents = {name: data for files in kinds.values() for name, data in files.items()}
    described = manifest(plan, source, binary, {name: _sha256(data) for name, data in contents.items()})
    kinds["manifest"] = {"manifest.json": (json.dumps(described, indent=2) + "\n").encode()}
    make_folder(directory)
    for files in kinds.values():
        for name, data in files.items():
            write_whole(directory / name, data)
    written = {kind: tuple(directory / name for name in files) for kind, files in kinds.items()}
    return Artifact(directory, written, described)


def manifest(plan: Plan, source: str, binary: Binary, files: Mapping[str, str]) -> dict[str, Any]:
    """All that is needed to launch the plan, as JSON data; `files` maps each file's name to its SHA-256.

    Sizes that depend on some that are known at launch only are `{"scale": s, "factors": [{"size": "n", "times": t,
    "by": b}, …]}`, for s times the product of ceil(size * t / b); the same in a grid.
    """
    problem, target = plan.problem, plan.target
    reports = report(plan, binary.kernels)
    steps: list[dict[str, Any]] = []
    kernels: list[dict[str, Any]] = []
    for step in plan.steps:
        if isinstance(step, Launch):
            steps.append({"kind": "launch", "kernel": len(kernels)})
            kernels.append(_kernel(step, reports[len(kernels)]))
        elif isinstance(step, CopyToSymbol):
            steps.append(_copy(step))
        else:
            steps.append(_memset(plan, step))
    return {
        "format": MANIFEST_FORMAT,
        "name": plan.name,
        "problem": str(problem),
        "problem_json": problem.to_json(),
        "strategy": plan.strategy,
        "config": plan.config.as_dict(),
        "target": {"name": target.name, "arch": target.arch, "sm_count": target.sm_count},
        "sizes": {
            name: {
                "runtime": name in problem.runtime_sizes,
                "typical": problem.sizes[name],
                "max": None if problem.largest is None else problem.largest[name],
            }
            for name in problem.sizes
        },
        "tensors": [_tensor(plan, t, "input") for t in plan.inputs]
        + [_tensor(plan, t, "output") for t in plan.outputs],
        "workspace_bytes": _workspace_bytes(plan),
        "workspace": [
            {"name": b.name, "bytes": _extent(b.nbytes), "alignment": WORKSPACE_ALIGNMENT} for b in plan.workspace
        ],
        "prepared_bytes": plan.arranged(problem.sizes, preparation(plan).buffers)[0],  # of no runtime size
        "kernels": kernels,
        "steps": steps,
        "placements": [dataclasses.asdict(placement) for placement in plan.placements],
        "hashes": {
            "compile_key": binary.key,
            "source_sha256": _sha256(source.encode()),
            "cubin_sha256": _sha256(binary.cubin),
        },
        "files": dict(files),
        "versions": {"convgen": __version__, "compiler": binary.compiler},
    }


def _kernel(launch: Launch, found: KernelReport) -> dict[str, Any]:
    resources = found.resources
    return {
        "name": launch.kernel.name,
        "entry": launch.kernel.name,
        "grid": [_extent(size) for size in launch.grid],
        "block": list(launch.block),
        "cluster": list(launch.cluster),
        "early": launch.is_early,
        "dynamic_shared_bytes": launch.shared_bytes,
        "arguments": [
            {"name": parameter.name, "ctype": parameter.ctype, **_argument(arg)}
            for parameter, arg in zip(launch.kernel.params, launch.args, strict=True)
        ],
        "registers": resources.registers,
        "static_shared_bytes": resources.static_shared,
        "constant_bytes": resources.constant,
        "local_bytes": resources.stack,
        "spill_store_bytes": resources.spill_stores,
        "spill_load_bytes": resources.spill_loads,
        "occupancy": dataclasses.asdict(found.occupancy),
        "warnings": list(found.warnings),
    }


def _argument(arg: Arg) -> dict[str, Any]:
    match arg:
        case TensorArg() | WorkspaceArg():
            return _place(arg)
        case SizeArg(size):
            return {"kind": "size", "size": size}
        case ScalarArg(value):
            return {"kind": "scalar", "value": value}
        case TextureArg(tensor, width, height, pitch_bytes):
            image = {"width": width, "height": _extent(height), "pitch_bytes": pitch_bytes}
            return {"kind": "texture", "tensor": tensor, **image}
        case TensorMapArg():
            extents: list[Any] = list(arg.map.extents)
            if arg.outermost is not None:
                extents[-1] = _extent(arg.outermost)
            told = {**dataclasses.asdict(arg.map), "dtype": arg.map.dtype.value, "swizzle": arg.map.swizzle.value}
            return {"kind": "tensor_map", "source": _place(arg.source), **told, "extents": extents}


def _place(place: TensorArg | WorkspaceArg) -> dict[str, Any]:
    if isinstance(place, TensorArg):
        return {"kind": "tensor", "tensor": place.tensor}
    return {"kind": "workspace", "buffer": place.buffer}


def _copy(step: CopyToSymbol) -> dict[str, Any]:
    source = _place(step.source)
    return {"kind": "copy_to_symbol", "symbol": step.symbol, "source": source, "bytes": step.nbytes}


def _memset(plan: Plan, step: Memset) -> dict[str, Any]:
    return {
        "kind": "memset",
        "destination": _place(step.destination),
        "value": step.value,
        "bytes": _extent(nbytes_of(plan, step.destination)),
    }


def _tensor(plan: Plan, tensor: TensorSpec, role: str) -> dict[str, Any]:
    return {
        "name": tensor.name,
        "role": role,
        "dtype": tensor.dtype.value,
        "ctype": tensor.dtype.ctype,
        "shape": list(symbolic_shape(plan.problem, tensor.name)),
        "strides": list(tensor.strides),
        "bytes": _extent(nbytes_of(plan, TensorArg(tensor.name))),
        "alignment": required_alignment(plan, tensor),
    }


def _extent(extent: Extent) -> Any:
    if isinstance(extent, SizeExtent):
        product = {"scale": extent.scale, "factors": [dataclasses.asdict(factor) for factor in extent.factors]}
        return product | ({"plus": extent.plus} if extent.plus else {})
    return extent


def _workspace_bytes(plan: Plan) -> int | None:
    """For the largest sizes; None if there is no bound."""
    largest = plan.problem.largest
    return None if largest is None else plan.workspace_bytes(largest)


def _contents(kind: str, plan: Plan, source: str, binary: Binary) -> dict[str, bytes]:
    match kind:
        case "cu":
            return {f"{plan.name}.cu": source.encode()}
        case "cubin":
            return {f"{plan.name}.cubin": binary.cubin}
        case "ptx":
            return {f"{plan.name}.ptx": binary.ptx.encode()}
        case "sass":
            return {f"{plan.name}.sass": disassemble(binary.cubin).encode()}
        case _:
            return {name: text.encode() for name, text in launcher_files(plan, binary.cubin).items()}


def disassemble(cubin: bytes) -> str:
    """The cubin's SASS, with the source lines it comes from, through nvdisasm. Raises DeviceError without it."""
    tool = find_nvdisasm()
    if tool is None:
        raise DeviceError(
            "SASS needs nvdisasm, which is in no NVIDIA wheel, CUDA_HOME or PATH: pip install nvidia-cuda-nvdisasm"
        )
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        done = subprocess.run([tool, "--print-code", "--print-line-info", file.name], capture_output=True, text=True)
    if done.returncode:
        raise DeviceError(f"{tool} failed: {done.stderr.strip()}")
    return done.stdout


def find_nvdisasm() -> str | None:
    """The disassembler of NVIDIA's wheel, CUDA_HOME, CUDA_PATH or PATH, in this order; None if there is none."""
    folders = [root / folder / "bin" for root in wheel_folders() for folder in ("cu13", "cuda_nvdisasm")]
    folders += [home / "bin" for home in cuda_homes()]
    found = next((folder / "nvdisasm" for folder in folders if (folder / "nvdisasm").is_file()), None)
    return str(found) if found else shutil.which("nvdisasm")


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
