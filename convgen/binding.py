"""What a plan needs from whoever launches it, worked out from its steps."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from convgen.plan import (
    Arg,
    CopyToSymbol,
    Extent,
    Launch,
    Memset,
    Plan,
    SizeArg,
    SizeExtent,
    SizeFactor,
    Step,
    TensorArg,
    TensorMapArg,
    TextureArg,
    WorkspaceArg,
)
from convgen.problem import Problem, Sizes, TensorSpec
from convgen.tensor_map import Swizzle

TEXTURE_ALIGNMENT = 512
"""What the start of a texture's memory is aligned to, in bytes, on every GPU there is."""

TENSOR_MAP_ALIGNMENT = 16
"""What the start of a tensor that TMA copies is aligned to, in bytes."""

TEXTURE_FORMATS: Mapping[str, str] = {
    "fp32": "CU_AD_FORMAT_FLOAT",
    "fp16": "CU_AD_FORMAT_HALF",
    "bf16": "CU_AD_FORMAT_UNSIGNED_INT16",
    "int8": "CU_AD_FORMAT_SIGNED_INT8",
    "uint8": "CU_AD_FORMAT_UNSIGNED_INT8",
}
"""The CUarray_format of a texture's elements, by dtype; integers (and the bits of bf16) are read as they are."""

TENSOR_MAP_TYPES: Mapping[str, str] = {
    "fp32": "FLOAT32",
    "tf32": "FLOAT32",
    "fp16": "FLOAT16",
    "bf16": "BFLOAT16",
    "int8": "UINT8",
    "uint8": "UINT8",
    "fp8": "UINT8",
    "int32": "INT32",
}
"""The CU_TENSOR_MAP_DATA_TYPE_… by dtype. TF32 is copied as it is: tensor cores ignore the bits that it has not."""

TENSOR_MAP_SWIZZLES: Mapping[Swizzle, str] = {
    Swizzle.NONE: "NONE",
    Swizzle.B32: "32B",
    Swizzle.B64: "64B",
    Swizzle.B128: "128B",
}
"""The CU_TENSOR_MAP_SWIZZLE_… by swizzle."""

WEIGHTS = "w"
"""The tensor that may be declared constant."""


def required_alignment(plan: Plan, tensor: TensorSpec) -> int:
    """Bytes that the tensor's address must be a multiple of for this plan's kernels."""
    textured = any(arg.tensor == tensor.name for arg in textures(plan))
    mapped = any(arg.source == TensorArg(tensor.name) for arg in tensor_maps(plan))
    return max(
        plan.alignment.get(tensor.name, 1),
        tensor.dtype.itemsize,
        TEXTURE_ALIGNMENT if textured else 1,
        TENSOR_MAP_ALIGNMENT if mapped else 1,
    )


def textures(plan: Plan) -> tuple[TextureArg, ...]:
    """The different textures of the plan, in the order they are first used."""
    found = (arg for launch in plan.launches for arg in launch.args if isinstance(arg, TextureArg))
    return tuple(dict.fromkeys(found))


def tensor_maps(plan: Plan) -> tuple[TensorMapArg, ...]:
    """The different tensor maps of the plan, in the order they are first used."""
    found = (arg for launch in plan.launches for arg in launch.args if isinstance(arg, TensorMapArg))
    return tuple(dict.fromkeys(found))


def symbols(plan: Plan) -> tuple[str, ...]:
    """The `__constant__` arrays the plan fills, in order."""
    return tuple(dict.fromkeys(step.symbol for step in plan.steps if isinstance(step, CopyToSymbol)))


def nbytes_of(plan: Plan, place: TensorArg | WorkspaceArg) -> Extent:
    """Bytes of a tensor or workspace buffer, in terms of the sizes that are known at launch only."""
    if isinstance(place, WorkspaceArg):
        return next(buffer.nbytes for buffer in plan.workspace if buffer.name == place.buffer)
    shape = symbolic_shape(plan.problem, place.tensor)
    fixed = math.prod(extent for extent in shape if isinstance(extent, int))
    factors = tuple(SizeFactor(extent) for extent in shape if isinstance(extent, str))
    nbytes = fixed * plan.problem.tensor(place.tensor).dtype.itemsize
    return SizeExtent(factors, nbytes) if factors else nbytes


def symbolic_shape(problem: Problem, name: str) -> tuple[int | str, ...]:
    """A tensor's logical shape, with the name of a size where the extent is one that is known at launch only."""
    known = {size: problem.sizes[size] for size in problem.sizes}
    shape: list[int | str] = list(problem.with_sizes(problem.sizes).tensor(name).shape)
    for size in problem.runtime_sizes:
        other = 1 if known[size] > 1 else 2
        if problem.largest is not None and problem.largest[size] < other:
            continue  # it can only be 1
        changed = problem.with_sizes(Sizes.of(**{**known, size: other})).tensor(name).shape
        for axis, extent in enumerate(changed):
            if extent != problem.with_sizes(problem.sizes).tensor(name).shape[axis]:
                shape[axis] = size
    return tuple(shape)


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
    fixed = {WorkspaceArg(b.name) for b in plan.workspace if not isinstance(b.nbytes, SizeExtent)}
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
            if not constant or any(isinstance(extent, SizeExtent) for extent in grid):
                return False
            return bool(_written(step)) and all(_is_fixed_argument(arg, fixed) for arg in args)


def _is_fixed_argument(arg: object, fixed: set[WorkspaceArg]) -> bool:
    match arg:
        case TensorArg(tensor=tensor) | TextureArg(tensor=tensor):
            return tensor == WEIGHTS
        case WorkspaceArg():
            return arg in fixed
        case TensorMapArg(source=source):
            return _is_fixed_argument(source, fixed)
        case SizeArg():
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
            plain = {arg for param, arg in pairs if isinstance(arg, WorkspaceArg) and param.is_written}
            mapped = {arg.source for arg in args if isinstance(arg, TensorMapArg) and arg.is_written}
            return plain | {source for source in mapped if isinstance(source, WorkspaceArg)}
    return set()


def _touched(step: Step) -> set[WorkspaceArg]:
    places = (
        _places(step.args) if isinstance(step, Launch) else (step.source,) if isinstance(step, CopyToSymbol) else ()
    )
    return _written(step) | {place for place in places if isinstance(place, WorkspaceArg)}


def _places(args: tuple[Arg, ...]) -> tuple[Arg, ...]:
    """The arguments, a tensor map as what it is of."""
    return tuple(arg.source if isinstance(arg, TensorMapArg) else arg for arg in args)


def _reads_weights(step: Step) -> bool:
    if isinstance(step, CopyToSymbol):
        return step.source == TensorArg(WEIGHTS)
    return isinstance(step, Launch) and any(
        isinstance(arg, TensorArg | TextureArg) and arg.tensor == WEIGHTS for arg in _places(step.args)
    )
