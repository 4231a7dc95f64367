"""What lowering returns: kernels, the order they run in, and the memory they need.

A plan is data. It says nothing of arrays, streams or compilers, so the same plan is launched on a GPU,
run in the simulator, printed into `manifest.json`, or written out as a C launcher.

A step that depends on the weights alone (a filter transform into a workspace buffer, a copy into constant memory) is
a *prepare* step: with weights declared constant it runs once. Which steps those are follows from what each reads and
writes (`binding.preparation`), so a strategy need not say.
"""

from __future__ import annotations

import dataclasses
import enum
import itertools
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from convgen.errors import UsageError
from convgen.problem import Problem, Sizes, TensorSpec
from convgen.space import Config
from convgen.target import Target
from convgen.tensor_map import Im2colMap, TensorMap


@dataclass(frozen=True, slots=True)
class SizeFactor:
    """ceil(size * times / by) of one of the problem's sizes."""

    size: str
    times: int = 1
    by: int = 1

    def at(self, sizes: Sizes) -> int:
        return -(-sizes[self.size] * self.times // self.by)

    def __str__(self) -> str:
        inner = f"{self.size}*{self.times}" if self.times != 1 else self.size
        return f"ceil({inner}/{self.by})" if self.by != 1 else inner


@dataclass(frozen=True, slots=True)
class SizeExtent:
    """A size that depends on some that are known at launch: scale times the product of the factors, and a constant."""

    factors: tuple[SizeFactor, ...]
    scale: int = 1
    plus: int = 0

    def at(self, sizes: Sizes) -> int:
        return self.scale * math.prod(factor.at(sizes) for factor in self.factors) + self.plus

    def __str__(self) -> str:
        product = "*".join([*([str(self.scale)] if self.scale != 1 else []), *map(str, self.factors)])
        return f"{product}+{self.plus}" if self.plus else product


def batch_extent(times: int, by: int = 1, scale: int = 1) -> SizeExtent:
    """scale * ceil(n * times / by), of a runtime batch n."""
    return SizeExtent((SizeFactor("n", times, by),), scale)


Extent = int | SizeExtent

WORKSPACE_ALIGNMENT = 256
"""Bytes that the address of every workspace buffer is a multiple of."""

MAX_CLUSTER = 8
"""Blocks of a cluster that every GPU with clusters runs; more is not portable."""

CLUSTERS_SINCE = (9, 0)
"""The first compute capability that has clusters."""


def extent_at(extent: Extent, sizes: Sizes) -> int:
    """The extent as a number."""
    return extent.at(sizes) if isinstance(extent, SizeExtent) else extent


def extent_plus(extent: Extent, constant: int) -> Extent:
    """So many more."""
    if isinstance(extent, SizeExtent):
        return dataclasses.replace(extent, plus=extent.plus + constant)
    return extent + constant


# --- what a kernel parameter is bound to -------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TensorArg:
    """Pointer to one of the problem's tensors, by name ("x", "w", "y", "bias", …)."""

    tensor: str


@dataclass(frozen=True, slots=True)
class WorkspaceArg:
    """Pointer into the plan's workspace, by buffer name."""

    buffer: str


@dataclass(frozen=True, slots=True)
class SizeArg:
    """A size known at launch only, by its name, as an int."""

    size: str


@dataclass(frozen=True, slots=True)
class ScalarArg:
    """A number known when the plan is made; passed as the parameter's C type ("int" or "float")."""

    value: int | float


@dataclass(frozen=True, slots=True)
class TextureArg:
    """A 2-D texture over a tensor: point sampling, unnormalised coordinates, zero outside.

    `width` x `height` elements, rows `pitch_bytes` apart; the kernel receives a cudaTextureObject_t.
    """

    tensor: str
    width: int
    height: Extent
    pitch_bytes: int


@dataclass(frozen=True, slots=True)
class TensorMapArg:
    """A tensor or workspace buffer as TMA sees it; the kernel's parameter is a `const __grid_constant__ TensorMap`.

    `outermost`: the extent of the map's last dimension where it is known at launch only. `is_written`: whether the
    kernel stores through the map.
    """

    source: TensorArg | WorkspaceArg
    map: TensorMap | Im2colMap
    outermost: SizeExtent | None = None
    is_written: bool = False

    def at(self, sizes: Sizes) -> TensorMap | Im2colMap:
        """The map for those sizes, none of which is 0. Raises UsageError for what CUDA refuses."""
        if self.outermost is None:
            return self.map
        return dataclasses.replace(self.map, extents=(*self.map.extents[:-1], self.outermost.at(sizes)))


Arg = TensorArg | WorkspaceArg | SizeArg | ScalarArg | TextureArg | TensorMapArg


@dataclass(frozen=True, slots=True)
class Param:
    """One parameter of a kernel: its name and C type, e.g. ("x", "const __half*"), ("n", "int")."""

    name: str
    ctype: str

    @property
    def is_written(self) -> bool:
        """Whether the kernel may write what it points to."""
        return self.ctype.rstrip().endswith("*") and not self.ctype.startswith("const ")


@dataclass(frozen=True, slots=True)
class Kernel:
    """One `extern "C" __global__` entry of the plan's source. The name is what a profiler shows."""

    name: str
    params: tuple[Param, ...]


# --- steps, in the order they run ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Launch:
    """Run a kernel. `args` match the kernel's `params` one to one.

    `cluster`: how many neighbouring blocks along each axis run at the same time, as a thread block cluster. `is_early`:
    it may begin before the step before it has ended, for which its kernel waits before it touches what that may still
    use, and before it ends (`device/grid_dependency.cuh`; compute capability 9.0 and on, like clusters). Raises
    UsageError for a cluster of more than MAX_CLUSTER blocks, and for a grid that is not a multiple of them whatever the
    sizes.
    """

    kernel: Kernel
    grid: tuple[Extent, Extent, Extent]
    block: tuple[int, int, int]
    args: tuple[Arg, ...]
    shared_bytes: int = 0
    cluster: tuple[int, int, int] = (1, 1, 1)
    is_early: bool = False

    def __post_init__(self) -> None:
        if min(self.cluster) < 1 or self.cluster_blocks > MAX_CLUSTER:
            raise UsageError(
                f"{self.kernel.name}: cluster={'x'.join(map(str, self.cluster))}: expected 1 to {MAX_CLUSTER} blocks"
            )
        for axis, extent, blocks in zip("xyz", self.grid, self.cluster, strict=True):
            parts = (extent.scale, extent.plus) if isinstance(extent, SizeExtent) else (extent,)
            if any(part % blocks for part in parts):
                raise UsageError(
                    f"{self.kernel.name}: a grid of {extent} blocks along {axis}: expected a multiple of the cluster's "
                    f"{blocks}"
                )

    @property
    def threads(self) -> int:
        return self.block[0] * self.block[1] * self.block[2]

    @property
    def cluster_blocks(self) -> int:
        """Blocks of a cluster; 1: the launch has none."""
        return math.prod(self.cluster)


@dataclass(frozen=True, slots=True)
class CopyToSymbol:
    """Fill a `__constant__` array by a device-to-device copy on the stream.

    The array belongs to the loaded module, so a runtime loads one module per stream for such a plan.
    """

    symbol: str
    source: TensorArg | WorkspaceArg
    nbytes: int


@dataclass(frozen=True, slots=True)
class Memset:
    """Set every byte of a workspace buffer (WorkspaceArg) or an output (TensorArg) to `value`."""

    destination: TensorArg | WorkspaceArg
    value: int = 0


Step = Launch | CopyToSymbol | Memset


@dataclass(frozen=True, slots=True)
class Buffer:
    """A workspace buffer, alive from the plan's first step to its last, aligned to WORKSPACE_ALIGNMENT."""

    name: str
    nbytes: Extent


@dataclass(frozen=True, slots=True)
class Placement:
    """Where an operand lives while the kernel works on it, and why: what `explain` prints."""

    operand: str
    space: str  # "registers", "constant", "shared", "global", "texture", "L1/L2"
    nbytes: int
    why: str


class Taps(enum.Enum):
    """What the error of a product goes with, of the filter's taps."""

    APART = enum.auto()
    """With the product itself: |w| is that of its tap."""
    LARGEST = enum.auto()
    """Taps share intermediate values: |w| becomes the largest of the filter's taps."""
    ALL = enum.auto()
    """With the whole filter, also taps that meet no pixel: |w| becomes the sum over them all, and |x| the largest that
    `Numerics.reach` leaves for any (`reference.mixed`)."""


@dataclass(frozen=True, slots=True)
class Numerics:
    """What rounding may do to a kernel's results: of its arithmetic, not of its inputs' and outputs' types.

    An error is bounded by `growth * (2 * eps_in + steps * eps_acc) * (|x| * |w|)`, the convolution of absolute values.
    The class of a direct kernel, `Numerics()`: one fp32 FMA a term, in any order.
    """

    steps: int | None = None
    """Roundings of `eps_acc` that a product meets on its way into a result; None: one a term of the longest sum."""
    eps_acc: float = 2.0**-24
    eps_in: float = 0.0
    """Unit roundoff of operands that are rounded once more before they are multiplied."""
    growth: float = 1.0
    """By how much intermediate values of an algorithm that transforms its operands may exceed what they stand for."""
    reach: tuple[int, ...] = ()
    """Along each spatial axis of x (dy in dgrad), how many elements before and behind those that a result depends on
    share its intermediate values: |x| becomes the largest among so many neighbours. Empty: none."""
    taps: Taps = Taps.APART
    exact_on_integers: bool = True
    """Whether sums of small integers come out without an error."""

    @property
    def units(self) -> float:
        """`2 * eps_in + steps * eps_acc` in units of fp32's roundoff, for stated steps."""
        assert self.steps is not None
        return (2 * self.eps_in + self.steps * self.eps_acc) * 2.0**24


@dataclass(frozen=True)
class Plan:
    """A lowered problem, ready to be rendered, built and launched.

    `template` (beneath `templates/`, or the absolute path of one that a strategy outside the package brings) and
    `constants` are what `render` needs; `alignment` gives, per tensor, the byte alignment its
    vector loads rely on (a tensor not listed needs only that of its elements): a runtime stages a copy of
    an array that does not meet it, or whose strides are not `TensorSpec.strides`. Raises UsageError for clusters and
    early launches on a target that has none.
    """

    problem: Problem
    strategy: str
    config: Config
    target: Target
    template: str
    constants: Mapping[str, Any]
    kernels: tuple[Kernel, ...]
    steps: tuple[Step, ...]
    workspace: tuple[Buffer, ...] = ()
    alignment: Mapping[str, int] = field(default_factory=dict)
    placements: tuple[Placement, ...] = ()
    numerics: Numerics = Numerics()
    notes: tuple[str, ...] = ()
    """What there is to know of the algorithm, a sentence each: what `explain` prints."""
    name: str = ""
    """What folders, files and reports call it; unless given, the last kernel's name."""

    def __post_init__(self) -> None:
        if not self.name:
            object.__setattr__(self, "name", self.kernels[-1].name)
        if self.target.compute_capability < CLUSTERS_SINCE:
            if any(launch.cluster_blocks > 1 for launch in self.launches):
                raise UsageError(f"{self.name}: clusters on {self.target}: expected sm_90 or newer")
            if any(launch.is_early for launch in self.launches):
                raise UsageError(f"{self.name}: early launches on {self.target}: expected sm_90 or newer")

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        return self.problem.inputs

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        return self.problem.outputs

    @property
    def launches(self) -> tuple[Launch, ...]:
        return tuple(step for step in self.steps if isinstance(step, Launch))

    def workspace_bytes(self, sizes: Sizes) -> int:
        """Bytes of workspace."""
        return self.arranged(sizes, [buffer.name for buffer in self.workspace])[0]

    def workspace_offsets(self, sizes: Sizes) -> dict[str, int]:
        """Bytes from the start of the workspace to each of its buffers."""
        return self.arranged(sizes, [buffer.name for buffer in self.workspace])[1]

    def arranged(self, sizes: Sizes, names: Collection[str]) -> tuple[int, dict[str, int]]:
        """Those buffers one after the other: the bytes of all, and where each begins."""
        chosen = [buffer for buffer in self.workspace if buffer.name in names]
        ends = list(itertools.accumulate((_padded(buffer, sizes) for buffer in chosen), initial=0))
        return ends[-1], {buffer.name: start for buffer, start in zip(chosen, ends, strict=False)}


def _padded(buffer: Buffer, sizes: Sizes) -> int:
    return -(-extent_at(buffer.nbytes, sizes) // WORKSPACE_ALIGNMENT) * WORKSPACE_ALIGNMENT
