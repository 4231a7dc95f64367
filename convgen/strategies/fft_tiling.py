"""The sizes of a transformed convolution: what follows from a problem and a config of `fft`.

A tile of real pixels is a polynomial. Along the first axis it is folded: z[n] = x[n] + i x[n + N/2] is the remainder of
x(X) modulo X^(N/2) - i, and since x is real it determines x modulo X^N + 1. So half as many complex points carry a
product of real tiles, with nothing to unpack (Crandall and Fagin, "Discrete weighted transforms and large-integer
arithmetic", 1994: the right-angle convolution). Wrapping around changes the sign there, and only results that nothing
wraps into are kept.
"""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import dataclass

from convgen.gather import Axis, Gather
from convgen.plan import Extent, batch_extent
from convgen.problem import PadMode
from convgen.space import Config
from convgen.strategies import common, fft_radix
from convgen.target import Target

LENGTHS = tuple(n for n in range(4, 257, 2) if fft_radix.is_smooth(n)) + tuple(
    sorted(factor << power for factor in (3, 4, 5, 7) for power in range(4, 15) if 256 < factor << power <= 1 << 16)
)
"""Extents of a tile that are worth trying."""

PRODUCT_THREADS, PRODUCT_TILES = 256, 4
"""Threads of a block of a batched product, and tiles that each works on."""

BANKS = 16
"""Complex numbers that shared memory reads at a time."""


@dataclass(frozen=True)
class FftConfig(Config):
    """The tile that is transformed and how a block's threads share it."""

    product: str
    """"fused": in the kernel that transforms; "batched": in one of its own, a matrix product at every frequency."""
    tile_h: int
    """Pixels of a tile along the axis before the last; 1 if there is none."""
    tile_w: int
    """Pixels of a tile along the last axis."""
    radix: int
    """Points of the largest transform that a thread makes in registers."""
    threads: int
    tiles: int
    """Tiles that a block transforms side by side."""
    tile_channel: int
    """Result channels that a block makes of one transformed tile; batched, those of a thread of the product."""

    @property
    def is_batched(self) -> bool:
        return self.product == "batched"


@dataclass(frozen=True)
class Line:
    """A tile along one axis: `length` pixels, transformed as `points` complex values."""

    axis: Axis
    length: int
    folded: bool
    radices: tuple[int, ...]
    zeros: bool
    """Whether what lies outside x is zero."""

    @functools.cached_property
    def points(self) -> int:
        return self.length // 2 if self.folded else self.length

    @property
    def lead(self) -> int:
        """Pixels by which the first result's first tap lies ahead of x."""
        return self.axis.offset - min(0, (self.axis.taps - 1) * self.axis.spread)

    @property
    def span(self) -> int:
        """Pixels of x with the zeros that a divisor puts between them."""
        return (self.axis.source - 1) * self.axis.divisor + 1

    @functools.cached_property
    def whole(self) -> bool:
        """One tile holds x and enough zeros that results wrap into these alone."""
        reach, out = self.axis.reach, (self.axis.out - 1) * self.axis.step + 1
        return self.zeros and self.length >= max(self.span, out, self.span + self.lead, out + reach - 1 - self.lead)

    @functools.cached_property
    def results(self) -> int:
        """Results of a tile; 0 if the filter does not fit in."""
        if self.whole:
            return self.axis.out
        return max((self.length - self.axis.reach) // self.axis.step + 1, 0)

    @functools.cached_property
    def tiles(self) -> int:
        return -(-self.axis.out // max(self.results, 1))

    @property
    def shift(self) -> int:
        """Position of the filter's first tap; the others lie before it, and wrap around."""
        return self.lead if self.whole else 0

    @property
    def first(self) -> int:
        """Pixel at position 0 of the first tile."""
        return 0 if self.whole else -self.lead


@dataclass(frozen=True)
class Pass:
    """One pass over all of a tile's transforms along one axis: each is split into `radix` of length / radix points."""

    name: str
    axis: str
    radix: int
    length: int
    points: int
    lanes: int
    """Transforms side by side, which neighbouring threads take; 1 if their points are what neighbours take."""
    lane_stride: int
    stride: int
    """Distances in shared memory; 0: points one after the other, with gaps."""
    folded: bool
    """Whether it is the first of the folded axis, whose roots of unity are those of a quarter of a turn more."""
    twiddles: int
    """Where its table begins."""

    @functools.cached_property
    def step(self) -> int:
        return self.length // self.radix

    @functools.cached_property
    def items(self) -> int:
        """Transforms of `radix` points in a tile."""
        return self.points // self.radix * self.lanes

    @functools.cached_property
    def turns(self) -> range:
        """The values of a transform that are multiplied by roots of unity; none where these are all 1."""
        return range(0 if self.folded else 1, self.radix) if self.step > 1 else range(0)

    @property
    def table(self) -> list[tuple[str, str]]:
        """exp(-2 pi i n (k - fold/4) / length), row k of `turns`, column n < step."""
        places = itertools.product(self.turns, range(self.step))
        parts = (fft_radix.root(n * (4 * k - self.folded) % (4 * self.length), 4 * self.length) for k, n in places)
        return [(fft_radix.literal(c), fft_radix.literal(s)) for c, s in parts]

    @functools.cached_property
    def flops(self) -> int:
        """Of a tile's, folding included."""
        multiplied = len(self.turns) + (self.radix - 1 if self.folded else 0)
        return self.items * (fft_radix.flops(self.radix) + fft_radix.MULTIPLY_FLOPS * multiplied)

    @functools.cached_property
    def rounding(self) -> fft_radix.Rounding:
        return fft_radix.rounding(self.radix) + fft_radix.TWIDDLE.times((self.step > 1) + self.folded)


class Tiling:
    """What a config makes of a problem in gather form, all sizes."""

    def __init__(self, g: Gather, c: FftConfig) -> None:
        self.g, self.c = g, c
        lengths = (c.tile_h, c.tile_w)[-len(g.axes) :]
        self.lines = tuple(
            _line(axis, length, folded=i == 0, largest=c.radix, fewest=2 if len(g.axes) == 1 else 1, zeros=zeros(g))
            for i, (axis, length) in enumerate(zip(g.axes, lengths, strict=True))
        )

    @functools.cached_property
    def passes(self) -> tuple[Pass, ...]:
        """Those of the forward transform, in order."""
        found: list[Pass] = []
        twiddles = 0
        for index, line in enumerate(self.lines):
            length = line.points
            other = self.lines[1 - index].points if len(self.lines) > 1 else 1
            strides = (0, 0) if len(self.lines) == 1 else (1, self.pitch) if index == 0 else (self.pitch, 1)
            for number, radix in enumerate(line.radices):
                name, folded = f"{line.axis.name.upper()}{number}", index == 0 and number == 0
                step = Pass(name, line.axis.name, radix, length, line.points, other, *strides, folded, twiddles)
                twiddles += len(step.turns) * step.step
                found.append(step)
                length //= radix
        return tuple(found)

    @functools.cached_property
    def pitch(self) -> int:
        """Points from a row of a tile to the next: an odd number, so that a column of them meets all banks."""
        return self.lines[-1].points | 1

    @functools.cached_property
    def points(self) -> int:
        return math.prod(line.points for line in self.lines)

    @property
    def gap(self) -> int:
        """In one dimension, points after which one is left unused, so that strides of them meet all banks."""
        return _gap(self.lines[0].points, self.lines[0].radices)

    @functools.cached_property
    def plane(self) -> int:
        """Points of shared memory from a tile to the next."""
        if len(self.lines) == 1:
            return self.points + (self.points - 1) // self.gap
        return self.lines[0].points * self.pitch

    @property
    def shared_bytes(self) -> int:
        return 8 * self.plane * self.c.tiles

    @property
    def rounds(self) -> int:
        """Transforms of the last pass that a thread makes: what it keeps in registers until the product is made."""
        return -(-self.passes[-1].items * self.c.tiles // self.c.threads)

    @functools.cached_property
    def registers(self) -> int:
        """About what a thread needs: a transform, the sums of the last pass, addresses."""
        kept = 0 if self.c.is_batched else 2 * self.rounds * self.passes[-1].radix * self.c.tile_channel
        return kept + 2 * max(p.radix for p in self.passes) + 32

    @property
    def product_registers(self) -> int:
        """About what a thread of a batched product needs."""
        return 2 * (PRODUCT_TILES + 1) * (self.c.tile_channel + 1) + 40

    @property
    def product_warps_m(self) -> int:
        """Warps of a block of the product that take different channels of the same tiles."""
        return common.power_of_two_at_most(min(-(-self.g.m // self.c.tile_channel), PRODUCT_THREADS // 64))

    @property
    def channel_blocks(self) -> int:
        return -(-self.g.m // self.c.tile_channel)

    @functools.cached_property
    def image_tiles(self) -> int:
        return math.prod(line.tiles for line in self.lines)

    @functools.cached_property
    def blocks(self) -> Extent:
        units = self.g.groups * self.channel_blocks * self.image_tiles
        return common.per_batch(self.g, units * self.g.batch_size, by=self.c.tiles)

    def transforms(self, channels: int) -> Extent:
        """Blocks of a kernel that transforms so many channels of every group."""
        units = self.g.groups * channels * self.image_tiles
        return common.per_batch(self.g, units * self.g.batch_size, by=self.c.tiles)

    @property
    def product_blocks(self) -> Extent:
        inner = -(-self.g.m // (self.c.tile_channel * self.product_warps_m)) * -(-self.points // 32) * self.g.groups
        tiles = PRODUCT_TILES * (PRODUCT_THREADS // 32 // self.product_warps_m)
        if self.g.batch is None:
            return batch_extent(self.image_tiles, tiles, inner)
        return inner * -(-self.g.batch * self.image_tiles // tiles)

    def spectra_bytes(self, channels: int) -> Extent:
        """Bytes of the spectra of so many channels of every group, of all tiles."""
        units = self.g.groups * channels * self.image_tiles
        return common.per_batch(self.g, 8 * self.points * units * self.g.batch_size)

    @property
    def spectra(self) -> int:
        """Transformed filters."""
        return self.g.groups * self.g.m * self.g.q_size

    @functools.cached_property
    def transform_flops(self) -> int:
        """Of one tile, one way."""
        return sum(p.flops for p in self.passes)

    @functools.cached_property
    def flops(self) -> int:
        """Of a tile in the fused kernel: its channels transformed, products with the filters, the inverse."""
        products = 8 * self.points * self.g.q_size * self.c.tile_channel
        return (self.g.q_size + self.c.tile_channel) * self.transform_flops + products

    @property
    def reach(self) -> tuple[int, ...]:
        """Along each axis, pixels beside those a result depends on that share its tile."""
        circular = self.g.pad_mode is PadMode.CIRCULAR and not self.g.terms_vanish
        # A result in the padding lies further from pixels than they from one another: no less than the tile is long.
        return tuple(
            line.axis.source
            if circular
            else line.length
            if line.whole
            else -(-(line.length - line.axis.reach) // line.axis.divisor)
            for line in self.lines
        )

    @functools.cached_property
    def rounding(self) -> fft_radix.Rounding:
        """What a product meets: two transforms, the product with its sum over channels, the inverse."""
        one_way = sum((p.rounding for p in self.passes), fft_radix.Rounding())
        product = fft_radix.PRODUCT + fft_radix.OPERATION.times(2 * self.g.q_size + 1)
        return one_way.times(3) + product


@functools.lru_cache(maxsize=4096)
def _line(axis: Axis, length: int, *, folded: bool, largest: int, fewest: int, zeros: bool) -> Line:
    points = length // 2 if folded else length
    return Line(axis, length, folded, fft_radix.radices(points, largest, fewest), zeros)


@functools.lru_cache(maxsize=1024)
def _gap(points: int, radices: tuple[int, ...]) -> int:
    """The distance of gaps with which the first warps of all passes wait least for banks."""

    def turns(gap: int) -> int:
        count, length = 0, points
        for radix in radices:
            step = length // radix
            for first, j in itertools.product(range(0, min(points // radix, 4 * BANKS), BANKS), range(2)):
                items = range(first, min(first + BANKS, points // radix))
                places = (item // step * length + item % step + j * step for item in items)
                banks = [(place + place // gap) % BANKS for place in places]
                count += max(map(banks.count, banks))
            length = step
        return count

    return min((BANKS, 2 * BANKS, BANKS // 2, 4 * BANKS, BANKS // 4), key=turns)


@functools.lru_cache(maxsize=4096)
def tiling(g: Gather, c: FftConfig) -> Tiling:
    return Tiling(g, c)


def zeros(g: Gather) -> bool:
    """Whether what lies outside x is zero."""
    return g.terms_vanish or g.pad_mode is PadMode.ZEROS


def lengths_worth(axis: Axis, outside_is_zero: bool) -> tuple[int, ...]:
    """Extents of a tile along an axis: from the least that holds a result to the least that holds all."""
    found: list[int] = []
    for length in LENGTHS:
        line = Line(axis, length, False, (), outside_is_zero)
        if line.results < 1:
            continue
        found.append(length)
        if line.tiles == 1:
            break
    return tuple(found)


def most_points(target: Target) -> int:
    """Points of the largest tile that fits in a block's shared memory, gaps left out."""
    return target.shared_per_block // 8
