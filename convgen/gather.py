"""Every direction of a convolution as one gather-and-reduce.

    y[b, g, m, o] = sum over q, f of  x[b, g, q, (o*step - offset + f*spread) / divisor] * w[g, m, q, f]

fprop, dgrad and wgrad, plain or transposed, differ only in which tensor plays which role and in the numbers of
each axis, so a kernel written for this form serves them all:

    role        fprop           dgrad            wgrad
    x           x               dy               x
    w           w               w                dy
    y           y               dx               dw
    b           image n         image n          channel c of the group
    m           channel k       channel c        channel k
    q           channel c       channel k        image n
    o           output pixel    input pixel      filter tap
    f           filter tap      filter tap       output pixel
    step        stride          1                dilation
    offset      pad_lo          -pad_lo          pad_lo
    spread      dilation        -dilation        stride
    divisor     1               stride           1

A transposed convolution is the dgrad of the convolution with input and output exchanged (and its dgrad is that
convolution's fprop). In dgrad a term whose index is not a multiple of the divisor, or outside x, does not
exist; elsewhere an index outside x reads the border: a zero, or the pixel the border mode names. The dgrad of a
border mode sums over every padded position that reads pixel o (its preimages).
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

from convgen.problem import Conv, Direction, PadMode, RuntimeSize, TensorSpec

NARROW = (1 << 31) - (1 << 16)
"""The most elements indexed with 32 bits; the last block of threads may count a little past the last element."""

AXIS_NAMES = {1: ("w",), 2: ("h", "w"), 3: ("d", "h", "w")}


@dataclass(frozen=True, slots=True)
class Axis:
    """One spatial axis of the gather; strides in elements."""

    name: str
    out: int
    source: int
    taps: int
    step: int
    offset: int
    spread: int
    divisor: int
    pad_lo: int
    pad_hi: int
    x_stride: int
    w_stride: int
    y_stride: int

    @property
    def reach(self) -> int:
        """Pixels from the first to the last that one output reads, both included."""
        return (self.taps - 1) * abs(self.spread) + 1

    def span(self, tile: int) -> int:
        """Pixels that `tile` neighbouring outputs read between them."""
        return (tile - 1) * self.step + self.reach


@dataclass(frozen=True, slots=True)
class Gather:
    """The gather form of a problem. `batch` or `q` is None where it is the runtime batch."""

    x: TensorSpec
    w: TensorSpec
    y: TensorSpec
    batch: int | None
    groups: int
    m: int
    q: int | None
    axes: tuple[Axis, ...]
    x_batch: int
    x_group: int
    x_q: int
    w_group: int
    w_m: int
    w_q: int
    y_batch: int
    y_group: int
    y_m: int
    pad_mode: PadMode
    terms_vanish: bool
    """True in dgrad: a term outside x does not exist (elsewhere it is a zero times the weight)."""
    typical_batch: int
    wide: bool
    """True if a tensor has more than NARROW elements, so that kernels index with 64 bits."""

    @property
    def preimages(self) -> bool:
        """True for the dgrad of a border mode other than zeros: several padded positions read one pixel."""
        return self.terms_vanish and self.pad_mode is not PadMode.ZEROS

    @property
    def channels(self) -> int:
        return self.groups * self.m

    @property
    def out(self) -> int:
        """Output positions of one batch element."""
        return math.prod(axis.out for axis in self.axes)

    @property
    def taps(self) -> int:
        return math.prod(axis.taps for axis in self.axes)

    @property
    def batch_size(self) -> int:
        """Batch elements; the typical batch where it is given at run time."""
        return self.typical_batch if self.batch is None else self.batch

    @property
    def q_size(self) -> int:
        return self.typical_batch if self.q is None else self.q

    @property
    def is_empty(self) -> bool:
        """True if there is nothing to write."""
        return self.batch == 0 or self.channels == 0 or self.out == 0

    @property
    def has_terms(self) -> bool:
        """False if every sum is empty, so that the result is the epilogue of zero."""
        return self.q != 0 and self.taps > 0


@functools.lru_cache(maxsize=128)
def gather(problem: Conv) -> Gather:
    """The gather form of `problem`."""
    concrete = problem.at(problem.typical_batch)
    if not problem.transposed:
        image, feature = concrete.tensor(_name("x", problem)), concrete.tensor(_name("y", problem))
        direction = problem.direction
    else:
        image, feature = concrete.tensor(_name("y", problem)), concrete.tensor(_name("x", problem))
        direction = {
            Direction.FPROP: Direction.DGRAD,
            Direction.DGRAD: Direction.FPROP,
            Direction.WGRAD: Direction.WGRAD,
        }[problem.direction]
    weight = concrete.tensor(_name("w", problem))
    return _gather(problem, image, feature, weight, direction)


def _name(role: str, problem: Conv) -> str:
    """The tensor that plays x, w or y of the forward pass in this direction: itself, or its gradient."""
    gradients = {Direction.FPROP: "", Direction.DGRAD: "xy", Direction.WGRAD: "wy"}[problem.direction]
    return f"d{role}" if role in gradients else role


def _gather(p: Conv, image: TensorSpec, feature: TensorSpec, weight: TensorSpec, direction: Direction) -> Gather:
    c_group, k_group = image.shape[1] // p.groups, feature.shape[1] // p.groups
    i_n, i_c, *i_axes = image.strides
    f_n, f_k, *f_axes = feature.strides
    w_k, w_c, *w_axes = weight.strides
    batch = None if isinstance(p.n, RuntimeSize) else p.n

    axes = []
    for d, name in enumerate(AXIS_NAMES[p.nd]):
        extent, pixels, taps = image.shape[2 + d], feature.shape[2 + d], p.filter[d]
        stride, dilation, pad_lo, pad_hi = p.stride[d], p.dilation[d], p.pad_lo[d], p.pad_hi[d]
        match direction:
            case Direction.FPROP:
                numbers = (pixels, extent, taps, stride, pad_lo, dilation, 1)
                strides = (i_axes[d], w_axes[d], f_axes[d])
            case Direction.DGRAD:
                numbers = (extent, pixels, taps, 1, -pad_lo, -dilation, stride)
                strides = (f_axes[d], w_axes[d], i_axes[d])
            case Direction.WGRAD:
                numbers = (taps, extent, pixels, dilation, pad_lo, stride, 1)
                strides = (i_axes[d], f_axes[d], w_axes[d])
        axes.append(Axis(name, *numbers, pad_lo, pad_hi, *strides))

    roles: tuple[TensorSpec, TensorSpec, TensorSpec, int | None, int, int, int | None]
    match direction:
        case Direction.FPROP:
            roles = (image, weight, feature, batch, p.groups, k_group, c_group)
            outer = (i_n, c_group * i_c, i_c, k_group * w_k, w_k, w_c, f_n, k_group * f_k, f_k)
        case Direction.DGRAD:
            roles = (feature, weight, image, batch, p.groups, c_group, k_group)
            outer = (f_n, k_group * f_k, f_k, k_group * w_k, w_c, w_k, i_n, c_group * i_c, i_c)
        case Direction.WGRAD:
            roles = (image, feature, weight, c_group, p.groups, k_group, batch)
            outer = (i_c, c_group * i_c, i_n, k_group * f_k, f_k, f_n, w_c, k_group * w_k, w_k)
    x, w, y, b, groups, m, q = roles
    return Gather(
        x, w, y, b, groups, m, q, tuple(axes), *outer,
        pad_mode=p.pad_mode,
        terms_vanish=direction is Direction.DGRAD,
        typical_batch=p.typical_batch,
        wide=_is_wide(p),
    )  # fmt: skip


def _is_wide(p: Conv) -> bool:
    if p.is_runtime_batch and p.max_batch is None:
        return True
    largest = p.at(p.max_batch) if p.max_batch is not None else p
    return max(t.size for t in (*largest.inputs, *largest.outputs)) > NARROW
