"""What the strategies of pooling share: axes, divisors, constants, operands, rules."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from convgen.gather import NARROW
from convgen.plan import Extent, Launch, Param, SizeArg, TensorArg, batch_extent
from convgen.problem import DType, Layout, Pool
from convgen.space import Config
from convgen.strategies import common
from convgen.strategies.naming import kernel_name
from convgen.strategies.operands import Operand

PACK_BYTES = 16
DTYPES = (DType.FP32, DType.FP16, DType.BF16)


@dataclass(frozen=True, slots=True)
class PoolAxis:
    """One spatial axis: a window's positions are o * step - offset + f * spread."""

    name: str
    out: int
    source: int
    taps: int
    step: int
    offset: int
    spread: int
    pad_hi: int
    x_stride: int
    y_stride: int
    count_include_pad: bool
    tile: int = 1
    """Results of a thread."""

    @property
    def ragged(self) -> bool:
        """The last tile has results that there are not."""
        return self.out % self.tile > 0

    @property
    def span(self) -> int:
        """Positions from a tile's first to its last, both included."""
        return (self.tile - 1) * self.step + (self.taps - 1) * self.spread + 1

    @property
    def last(self) -> int:
        """The last position of any window of any tile."""
        return (-(-self.out // self.tile) - 1) * self.tile * self.step - self.offset + self.span - 1

    @property
    def checked(self) -> bool:
        """Some position lies outside x."""
        return self.offset > 0 or self.last >= self.source

    @property
    def counted_from(self) -> int:
        """The first position that an average counts."""
        return -self.offset if self.count_include_pad else 0

    @property
    def counted_to(self) -> int:
        """The end of those it counts."""
        return self.source + (self.pad_hi if self.count_include_pad else 0)

    @property
    def all_counted(self) -> bool:
        """Every position of every window counts."""
        last = (self.out - 1) * self.step - self.offset + (self.taps - 1) * self.spread
        return -self.offset >= self.counted_from and last < self.counted_to


def axes(problem: Pool, tiles: tuple[int, ...] = ()) -> tuple[PoolAxis, ...]:
    """Outermost first; `tiles` are the results of a thread along each, 1 unless given."""
    x, y = problem.inputs[0].strides[2:], problem.outputs[0].strides[2:]
    tiles = tiles or (1,) * problem.nd
    return tuple(
        PoolAxis(
            name="dhw"[axis - problem.nd],
            out=problem.out[axis],
            source=problem.spatial[axis],
            taps=problem.filter[axis],
            step=problem.stride[axis],
            offset=problem.pad_lo[axis],
            spread=problem.dilation[axis],
            pad_hi=problem.pad_hi[axis],
            x_stride=x[axis],
            y_stride=y[axis],
            count_include_pad=problem.count_include_pad,
            tile=tiles[axis],
        )
        for axis in range(problem.nd)
    )


def divisor(problem: Pool) -> int | None:
    """What every sum is divided by; None if windows have divisors of their own."""
    if problem.divisor_override:
        return problem.divisor_override
    return math.prod(problem.filter) if all(axis.all_counted for axis in axes(problem)) else None


def is_channels_last(problem: Pool) -> bool:
    """Whether channels are neighbours in memory."""
    return problem.layout is Layout.CHANNELS_LAST and problem.c > 1


def not_covered(problem: Pool) -> str | None:
    """Why the kernels cannot take the problem's type or extents; None if they can."""
    if problem.dtype not in DTYPES:
        return f"dtype={problem.dtype.value} has no kernel yet; pooling computes {', '.join(DTYPES)}"
    reach = max(axis.offset + abs(axis.last) + axis.spread for axis in axes(problem))
    largest = max(reach, *problem.spatial, problem.c, problem.max_batch or 1)
    if largest > NARROW:
        return f"an index along one axis reaches {largest}; kernels keep coordinates in 32 bits, up to {NARROW}"
    return None


def is_empty(problem: Pool) -> bool:
    """Whether there is nothing to compute."""
    return problem.n == 0 or problem.c == 0


def is_wide(problem: Pool) -> bool:
    """Whether a tensor has more elements than 32 bits count."""
    if problem.max_batch is None:
        return True
    fixed = problem.at(problem.max_batch) if problem.is_runtime_batch else problem
    return max(t.size for t in (*fixed.inputs, *fixed.outputs)) > NARROW // 2


def vectors(extent: int, itemsize: int) -> tuple[int, ...]:
    """Elements of packs that `extent` divides into."""
    return tuple(v for v in (1, 2, 4, 8) if v * itemsize <= PACK_BYTES and extent % v == 0)


def blocks(problem: Pool, threads_an_image: int, threads: int) -> Extent:
    """Blocks for so many threads a batch element."""
    if problem.is_runtime_batch:
        return batch_extent(threads_an_image, by=threads)
    return -(-problem.typical_batch * threads_an_image // threads)


def operands_of(problem: Pool) -> tuple[Operand, ...]:
    """x, y, and the batch if it is known at launch only."""
    ctype = problem.dtype.ctype
    batch = ((Param("batch", "int"), SizeArg("n")),) if problem.is_runtime_batch else ()
    return (Param("x", f"const {ctype}*"), TensorArg("x")), (Param("y", f"{ctype}*"), TensorArg("y")), *batch


def name_of(problem: Pool, strategy: str, config: Config) -> str:
    return kernel_name(problem, f"{problem.op}_f{'x'.join(map(str, problem.filter))}", strategy, config)


def constants(problem: Pool, config: Config, launch: Launch) -> dict[str, Any]:
    """The template constants that every kernel uses."""
    x, y = problem.inputs[0].strides, problem.outputs[0].strides
    return {
        "problem": str(problem),
        "config": str(config),
        "kernel": launch.kernel.name,
        "params": launch.kernel.params,
        "type_headers": common.type_headers(problem.dtype.ctype),
        "in_t": problem.dtype.ctype,
        "out_t": problem.dtype.ctype,
        "offset_t": "long long" if is_wide(problem) else "int",
        "activation": "kNone",
        "is_max": problem.is_max,
        "channels_last": is_channels_last(problem),
        "batch": problem.n if isinstance(problem.n, int) else None,
        "channels": max(problem.c, 1),
        "divisor": divisor(problem),
        "x_batch": x[0],
        "x_channel": x[1],
        "y_batch": y[0],
        "y_channel": y[1],
    }
