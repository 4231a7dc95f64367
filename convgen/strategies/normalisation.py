"""What the strategies of batch normalisation share: how a channel lies in memory, constants, operands, rules.

A channel is a run of items, each one load: where channels are neighbours in memory an item is a pack of channels at one
position, else a pack of neighbouring positions of one channel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from convgen.errors import ConfigError
from convgen.plan import Launch, Param, SizeArg, TensorArg
from convgen.problem import BatchNorm, Layout
from convgen.space import Config, Value
from convgen.strategies import common, rules
from convgen.strategies.naming import kernel_name
from convgen.strategies.operands import Operand
from convgen.target import Target

NARROW = (1 << 31) - 1
PACK_BYTES = 16
ALIASED = ("y", "mean", "var", "running_mean", "running_var")
"""Parameters that may share memory: y with the residual, running statistics with what they are updated from."""


@dataclass(frozen=True)
class Tiled(Config):
    """The part of a config that says how a block lies over channels and items, and the elements of a load."""

    threads_channel: int
    threads_item: int
    vector: int


@dataclass(frozen=True, slots=True)
class View:
    """x as channels of items, for loads of `vector` elements."""

    rows: bool
    """Channels are neighbours in memory."""
    channels: int
    positions: int
    vector: int
    itemsize: int

    @property
    def lanes(self) -> int:
        """Channels of a thread."""
        return self.vector if self.rows else 1

    @property
    def item_values(self) -> int:
        """Values of one channel in an item."""
        return 1 if self.rows else self.vector

    @property
    def image_items(self) -> int:
        """Items of a channel in a batch element."""
        return self.positions // self.item_values

    def channel_blocks(self, threads_channel: int) -> int:
        return -(-self.channels // (threads_channel * self.lanes))


def view(problem: BatchNorm, vector: int) -> View:
    rows = problem.c > 1 and (problem.layout is Layout.CHANNELS_LAST or problem.positions == 1)
    return View(rows, problem.c, problem.positions, vector, problem.dtype.itemsize)


def not_covered(problem: BatchNorm) -> str | None:
    """Why the kernels cannot take the problem's extents; None if they can."""
    largest = max((problem.max_batch or 1) * max(problem.positions, 1), problem.c)
    if largest > NARROW:
        return f"a channel has {largest} values; kernels count them in 32 bits"
    return None


def is_empty(problem: BatchNorm) -> bool:
    """Whether there is nothing to compute, whatever the batch."""
    return problem.c == 0 or problem.positions == 0 or problem.n == 0


def max_items(problem: BatchNorm, v: View) -> int | None:
    """Items of a channel at the largest batch; None if that has no bound."""
    return None if problem.max_batch is None else problem.max_batch * v.image_items


# --- dimensions of the search ---------------------------------------------------------------------------

THREADS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


def vectors(problem: BatchNorm) -> tuple[Value, ...]:
    """Elements a load: those that fill whole packs."""
    extent = view(problem, 1).channels if view(problem, 1).rows else problem.positions
    most = PACK_BYTES // problem.dtype.itemsize
    return tuple(v for v in (1, 2, 4, 8) if v <= most and extent % v == 0)


def largest_vector(problem: BatchNorm) -> int:
    return int(max(vectors(problem)))


def check(problem: BatchNorm, c: Any, target: Target) -> None:
    """The rules that all configs keep. Raises ConfigError."""
    rules.at_least_one(c)
    if c.vector not in vectors(problem):
        what = "channels" if view(problem, 1).rows else "positions"
        raise ConfigError(f"vector={c.vector}: a load is of 1, 2, 4 or 8 neighbouring {what}, must divide their "
                          f"number, and takes {PACK_BYTES} bytes at most")  # fmt: skip
    for field in ("threads_channel", "threads_item"):
        value = getattr(c, field)
        if value & (value - 1):
            raise ConfigError(f"{field}={value}: expected a power of two, which the butterflies of a warp need")
    rules.block_fits((c.threads_channel * c.threads_item, 1, 1), target)
    if c.threads_channel * c.threads_item < target.warp:
        raise ConfigError(f"{c.threads_channel * c.threads_item} threads: a block has at least a warp of {target.warp}")


def blocks_fit(blocks: int) -> None:
    if blocks > rules.MAX_GRID_X:
        raise ConfigError(f"{blocks} blocks: a grid has at most {rules.MAX_GRID_X}; use more threads_channel")


def start(problem: BatchNorm) -> tuple[int, int, int]:
    """threads_channel, threads_item and vector of a plain block of 256 threads."""
    v = view(problem, largest_vector(problem))
    if not v.rows:
        return 1, 256, v.vector
    across = min(common.power_of_two_at_least(-(-v.channels // v.vector)), 8)
    return across, 256 // across, v.vector


def sums_bytes(v: View, threads_channel: int, threads_item: int) -> int:
    """Shared memory of block_sum."""
    step = threads_channel if v.rows else 1
    groups = threads_item // max(min(32 // step, threads_item), 1)
    return 4 * groups * threads_channel * v.lanes if groups > 1 else 0


def block_roundings(v: View, c: Tiled) -> int:
    """Additions of block_sum that a value goes through."""
    step = c.threads_channel if v.rows else 1
    in_warp = max(min(32 // step, c.threads_item), 1)
    return in_warp.bit_length() - 1 + c.threads_item // in_warp


# --- plans ------------------------------------------------------------------------------------------


def name_of(problem: BatchNorm, strategy: str, config: Config, part: str = "") -> str:
    return kernel_name(problem, problem.mode.value, strategy, config, part)


def tensor_operand(problem: BatchNorm, name: str) -> Operand:
    spec = problem.tensor(name)
    const = "" if spec in problem.outputs else "const "
    return Param(name, f"{const}{spec.dtype.ctype}*"), TensorArg(name)


def tensor_operands(problem: BatchNorm, names: Sequence[str]) -> tuple[Operand, ...]:
    return tuple(tensor_operand(problem, name) for name in names)


def batch_operand(problem: BatchNorm) -> tuple[Operand, ...]:
    """The batch, if it is known at launch only."""
    return ((Param("batch", "int"), SizeArg("n")),) if problem.is_runtime_batch else ()


def all_operands(problem: BatchNorm) -> tuple[Operand, ...]:
    """Everything the problem reads and writes, and the batch."""
    names = [spec.name for spec in (*problem.inputs, *problem.outputs)]
    return (*tensor_operands(problem, names), *batch_operand(problem))


def constants(problem: BatchNorm, c: Tiled, launch: Launch) -> dict[str, Any]:
    """The template constants that every kernel uses."""
    v = view(problem, c.vector)
    largest = None if problem.max_batch is None else problem.max_batch * problem.c * problem.positions
    return {
        "problem": str(problem),
        "config": str(c),
        "kernel": launch.kernel.name,
        "params": launch.kernel.params,
        "type_headers": common.type_headers(problem.dtype.ctype),
        "in_t": problem.dtype.ctype,
        "out_t": problem.dtype.ctype,
        "offset_t": "int" if largest is not None and largest <= NARROW else "long long",
        "activation": common.activation_name(problem.activation),
        "slope": repr(problem.slope),
        "residual": problem.residual,
        "affine": problem.affine,
        "eps": repr(problem.eps),
        "rows": v.rows,
        "batch": problem.n if isinstance(problem.n, int) else None,
        "channels": max(problem.c, 1),
        "positions": max(problem.positions, c.vector if not v.rows else 1),
        "vector": c.vector,
        "threads_channel": c.threads_channel,
        "threads_item": c.threads_item,
    }


def training_constants(problem: BatchNorm) -> dict[str, Any]:
    return {
        "running": problem.running,
        "keep": repr(1.0 - problem.momentum),
        "momentum": repr(problem.momentum),
        "aliased": ALIASED,
    }


def alignment(problem: BatchNorm, vector: int) -> dict[str, int]:
    if vector == 1:
        return {}
    names = ("x", "y", "residual") if problem.residual else ("x", "y")
    return dict.fromkeys(names, vector * problem.dtype.itemsize)


def typical_items(problem: BatchNorm, v: View) -> int:
    return problem.typical_batch * v.image_items
