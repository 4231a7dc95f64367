"""What a plan needs from whoever launches it, worked out from its steps."""

from __future__ import annotations

from collections.abc import Mapping

from convgen.plan import BatchExtent, CopyToSymbol, Extent, Plan, TensorArg, TextureArg, WorkspaceArg
from convgen.problem import TensorSpec

TEXTURE_ALIGNMENT = 512
"""What the start of a texture's memory is aligned to, in bytes, on every GPU there is."""

TEXTURE_FORMATS: Mapping[str, str] = {
    "fp32": "CU_AD_FORMAT_FLOAT",
    "fp16": "CU_AD_FORMAT_HALF",
    "bf16": "CU_AD_FORMAT_UNSIGNED_INT16",
    "int8": "CU_AD_FORMAT_SIGNED_INT8",
    "uint8": "CU_AD_FORMAT_UNSIGNED_INT8",
}
"""The CUarray_format of a texture's elements, by dtype; integers (and the bits of bf16) are read as they are."""

BATCHED = frozenset({"x", "y", "dx", "dy", "residual"})
"""Tensors whose first extent is the batch."""


def required_alignment(plan: Plan, tensor: TensorSpec) -> int:
    """Bytes that the tensor's address must be a multiple of for this plan's kernels."""
    textured = any(arg.tensor == tensor.name for arg in textures(plan))
    return max(plan.alignment.get(tensor.name, 1), tensor.dtype.itemsize, TEXTURE_ALIGNMENT if textured else 1)


def textures(plan: Plan) -> tuple[TextureArg, ...]:
    """The different textures of the plan, in the order they are first used."""
    found = (arg for launch in plan.launches for arg in launch.args if isinstance(arg, TextureArg))
    return tuple(dict.fromkeys(found))


def symbols(plan: Plan) -> tuple[str, ...]:
    """The `__constant__` arrays the plan fills, in order."""
    return tuple(dict.fromkeys(step.symbol for step in plan.steps if isinstance(step, CopyToSymbol)))


def nbytes_of(plan: Plan, place: TensorArg | WorkspaceArg) -> Extent:
    """Bytes of a tensor or workspace buffer, in terms of the runtime batch if there is one."""
    if isinstance(place, WorkspaceArg):
        return next(buffer.nbytes for buffer in plan.workspace if buffer.name == place.buffer)
    if plan.problem.is_runtime_batch and place.tensor in BATCHED:
        return BatchExtent(plan.problem.at(1).tensor(place.tensor).nbytes)
    return plan.problem.tensor(place.tensor).nbytes


def dynamic_shared(plan: Plan) -> dict[str, int]:
    """The most dynamic shared memory any launch of each kernel asks for, in bytes."""
    most = {kernel.name: 0 for kernel in plan.kernels}
    for launch in plan.launches:
        most[launch.kernel.name] = max(most[launch.kernel.name], launch.shared_bytes)
    return most
