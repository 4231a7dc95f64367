"""What a plan needs from whoever launches it, worked out from its steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from convgen.plan import (
    BatchArg,
    BatchExtent,
    CopyToSymbol,
    Extent,
    Launch,
    Memset,
    Plan,
    Step,
    TensorArg,
    TextureArg,
    WorkspaceArg,
)
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

WEIGHTS = "w"
"""The tensor that may be declared constant."""


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


# --- what depends on the weights alone ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Preparation:
    """The part of a plan that need not be repeated while the weights stay the same."""

    steps: frozenset[int]
    """Indices of the prepare steps."""
    buffers: tuple[str, ...]
    """The workspace buffers they fill: to be kept as long as the weights are."""
    constants: bool
    """Whether they fill the plan's `__constant__` arrays."""
    weights_used_later: bool
    """Whether any other step reads the weights themselves."""


def preparation(plan: Plan) -> Preparation:
    """The plan's prepare steps, found by following its data.

    A step is one if all that it touches is the weights, or a buffer or symbol that only such steps write, and write
    before any other step uses it. Neither its work nor the buffer's size may depend on a runtime batch.
    """
    fixed = {WorkspaceArg(b.name) for b in plan.workspace if not isinstance(b.nbytes, BatchExtent)}
    constant = True  # of all symbols or of none, since which kernel reads which is not to be seen
    while True:
        chosen = [_is_fixed(step, fixed, constant) for step in plan.steps]
        spoiled, constant_spoiled = _spoiled(plan.steps, chosen)
        if not spoiled & fixed and not (constant and constant_spoiled):
            break
        fixed -= spoiled
        constant = constant and not constant_spoiled
    filled = {
        place for step, is_chosen in zip(plan.steps, chosen, strict=True) if is_chosen for place in _written(step)
    }
    rest = [step for step, is_chosen in zip(plan.steps, chosen, strict=True) if not is_chosen]
    return Preparation(
        steps=frozenset(index for index, is_chosen in enumerate(chosen) if is_chosen),
        buffers=tuple(buffer.name for buffer in plan.workspace if WorkspaceArg(buffer.name) in filled),
        constants=constant and bool(symbols(plan)),
        weights_used_later=any(_reads_weights(step) for step in rest),
    )


def _is_fixed(step: Step, fixed: set[WorkspaceArg], constant: bool) -> bool:
    match step:
        case CopyToSymbol(source=source):
            return constant and (source in fixed or source == TensorArg(WEIGHTS))
        case Memset(destination=destination):
            return destination in fixed
        case Launch(args=args, grid=grid):
            if not constant or any(isinstance(extent, BatchExtent) for extent in grid):
                return False
            return bool(_written(step)) and all(_is_fixed_argument(arg, fixed) for arg in args)


def _is_fixed_argument(arg: object, fixed: set[WorkspaceArg]) -> bool:
    match arg:
        case TensorArg(tensor=tensor) | TextureArg(tensor=tensor):
            return tensor == WEIGHTS
        case WorkspaceArg():
            return arg in fixed
        case BatchArg():
            return False
    return True


def _spoiled(steps: tuple[Step, ...], chosen: list[bool]) -> tuple[set[WorkspaceArg], bool]:
    """Buffers that another step writes, or a chosen one after another step used them; and whether symbols are."""
    spoiled: set[WorkspaceArg] = set()
    used: set[WorkspaceArg] = set()
    launched = constant_spoiled = False
    for step, is_chosen in zip(steps, chosen, strict=True):
        if isinstance(step, CopyToSymbol):
            constant_spoiled |= not is_chosen or launched
        if is_chosen:
            spoiled |= _written(step) & used
        else:
            spoiled |= _written(step)
            used |= _touched(step)
        launched |= isinstance(step, Launch) and not is_chosen
    return spoiled, constant_spoiled


def _written(step: Step) -> set[WorkspaceArg]:
    match step:
        case Memset(destination=destination):
            return {destination} if isinstance(destination, WorkspaceArg) else set()
        case Launch(kernel=kernel, args=args):
            pairs = zip(kernel.params, args, strict=True)
            return {arg for param, arg in pairs if isinstance(arg, WorkspaceArg) and param.is_written}
    return set()


def _touched(step: Step) -> set[WorkspaceArg]:
    places = step.args if isinstance(step, Launch) else (step.source,) if isinstance(step, CopyToSymbol) else ()
    return _written(step) | {place for place in places if isinstance(place, WorkspaceArg)}


def _reads_weights(step: Step) -> bool:
    if isinstance(step, CopyToSymbol):
        return step.source == TensorArg(WEIGHTS)
    return isinstance(step, Launch) and any(
        isinstance(arg, TensorArg | TextureArg) and arg.tensor == WEIGHTS for arg in step.args
    )
