"""A plan with its sizes fixed: the numbers that a run needs, worked out once."""

from __future__ import annotations

from dataclasses import dataclass

from convgen.binding import nbytes_of, required_alignment, textures
from convgen.plan import Launch, Memset, Plan, WorkspaceArg, extent_at
from convgen.problem import Sizes, TensorSpec
from convgen.runtime.arrays import ACCEPTED_DTYPES
from convgen.runtime.module import address_key


@dataclass(frozen=True, slots=True)
class Tensor:
    """What an array must be for the kernels to work on it where it lies."""

    name: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    byte_strides: tuple[int, ...]
    dtype: str
    dtypes: tuple[str, ...]
    alignment: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Sized:
    """`steps` has the grid of every launch, and the bytes of every copy and memset."""

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    steps: tuple[tuple[int, ...], ...]
    heights: tuple[int, ...]
    workspace_bytes: int
    offsets: tuple[tuple[str, int], ...]
    """Bytes from the start of the workspace to each buffer, by the key of its address."""

    def does_nothing(self, index: int) -> bool:
        """Whether a step has nothing to do, which CUDA refuses to launch."""
        return 0 in self.steps[index]


def sized(plan: Plan, sizes: Sizes, without: tuple[str, ...] = ()) -> Sized:
    """The plan for those sizes; the workspace buffers `without` are somewhere else."""
    problem = plan.problem.with_sizes(sizes)
    steps: list[tuple[int, ...]] = []
    for step in plan.steps:
        if isinstance(step, Launch):
            steps.append(tuple(extent_at(extent, sizes) for extent in step.grid))
        elif isinstance(step, Memset):
            steps.append((extent_at(nbytes_of(plan, step.destination), sizes),))
        else:
            steps.append((step.nbytes,))
    workspace_bytes, offsets = plan.arranged(sizes, [b.name for b in plan.workspace if b.name not in without])
    return Sized(
        inputs=tuple(_tensor(plan, spec) for spec in problem.inputs),
        outputs=tuple(_tensor(plan, spec) for spec in problem.outputs),
        steps=tuple(steps),
        heights=tuple(extent_at(texture.height, sizes) for texture in textures(plan)),
        workspace_bytes=workspace_bytes,
        offsets=tuple((address_key(WorkspaceArg(name)), at) for name, at in offsets.items()),
    )


def _tensor(plan: Plan, spec: TensorSpec) -> Tensor:
    return Tensor(
        name=spec.name,
        shape=spec.shape,
        strides=spec.strides,
        byte_strides=tuple(stride * spec.dtype.itemsize for stride in spec.strides),
        dtype=spec.dtype.value,
        dtypes=ACCEPTED_DTYPES[spec.dtype.value],
        alignment=required_alignment(plan, spec),
        nbytes=spec.nbytes,
    )
