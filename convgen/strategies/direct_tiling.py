"""The sizes of a direct kernel: what follows from a problem and a config of `direct`."""

from __future__ import annotations

from dataclasses import dataclass

from convgen.gather import Axis, Gather
from convgen.plan import Extent, batch_extent
from convgen.space import Config
from convgen.strategies import common

UNROLLED_OPERANDS = 96
MAX_WINDOW = 24


@dataclass(frozen=True)
class DirectConfig(Config):
    """What of the sum is parallel, what a thread keeps, and where the operands live."""

    along_x: str
    """"channel" or "column": what neighbouring threads differ in."""
    threads_channel: int
    threads_column: int
    tile_b: int
    """Batch elements a thread works through, one after the other."""
    tile_channel: int
    """Result channels a thread keeps (groups, where each has one channel)."""
    tile_position: int
    """Neighbouring positions a thread keeps: of the last axis if neighbouring threads differ in channels, else of the
    axis before it, so that threads stay neighbours in memory."""
    vector: int
    """Elements of the summed channel a load brings."""
    filter: str
    """"global", "constant" or "shared"."""
    input: str
    """"global" or "texture"."""
    split_q: int
    split_taps: int
    """Parts of the sum that run in parallel, added in a fixed order by a second kernel."""


def block(c: DirectConfig) -> tuple[int, int, int]:
    along, across = c.threads_column, c.threads_channel
    return (across, along, 1) if c.along_x == "channel" else (along, across, 1)


def tile_g(g: Gather, c: DirectConfig) -> int:
    return c.tile_channel if g.m == 1 else 1


def tile_m(g: Gather, c: DirectConfig) -> int:
    return 1 if g.m == 1 else c.tile_channel


def grid_x(g: Gather, c: DirectConfig) -> Extent:
    channel_tiles = -(-g.groups // tile_g(g, c)) * -(-g.m // tile_m(g, c))
    channel_blocks = -(-channel_tiles // c.threads_channel)
    tiled = tile_axis(g, c).out
    tiles = g.out // tiled * -(-tiled // c.tile_position)
    if g.batch is None:
        return batch_extent(tiles, c.threads_column, channel_blocks)
    return channel_blocks * -(-(-(-g.batch // c.tile_b) * tiles) // c.threads_column)


def tile_axis(g: Gather, c: DirectConfig) -> Axis:
    before_last = g.axes[-2:-1]
    return before_last[0] if before_last and c.along_x == "column" and before_last[0].out > 1 else g.axes[-1]


def split_axis(g: Gather) -> str:
    return next((a.name for a in g.axes if a.taps > 1), g.axes[-1].name)


def split_axis_taps(g: Gather) -> int:
    return next((a.taps for a in g.axes if a.taps > 1), 1)


def other_w_strides(g: Gather) -> tuple[int, ...]:
    return common.steps((g.groups, g.w_group), (g.m, g.w_m), *((a.taps, a.w_stride) for a in g.axes))


def packs_q(g: Gather, count: int) -> bool:
    """True if `count` summed channels lie together in x, aligned, within the 16 bytes of a load."""
    fits = g.q is not None and g.q >= count and g.q % count == 0 and count * g.x.dtype.itemsize <= 16
    pixels = ((a.source, a.x_stride) for a in g.axes)
    return fits and common.dense_pack(count, g.x_q, common.steps((g.batch, g.x_batch), (g.groups, g.x_group), *pixels))


def reads_channel_packs(g: Gather, c: DirectConfig) -> bool:
    """True if the groups of a thread are neighbours in x, so that one load brings a pixel of each."""
    t = tile_g(g, c)
    strides = common.steps((g.batch, g.x_batch), (g.q, g.x_q), *((a.source, a.x_stride) for a in g.axes))
    return t > 1 and t * g.x.dtype.itemsize <= 16 and g.groups % t == 0 and common.dense_pack(t, g.x_group, strides)


def store(g: Gather, c: DirectConfig) -> str:
    """What a store writes: "channels" or "positions" that are neighbours in y, else "elements"."""
    if c.split_q * c.split_taps > 1:
        return "elements"
    size = g.y.dtype.itemsize
    step, extent = (g.y_group, g.groups) if g.m == 1 else (g.y_m, g.m)
    t = c.tile_channel
    groups = (g.groups if g.m > 1 else 1, g.y_group)
    others = common.steps((g.batch, g.y_batch), groups, *((a.out, a.y_stride) for a in g.axes))
    if t > 1 and t * size <= 16 and extent % t == 0 and common.dense_pack(t, step, others):
        return "channels"
    t, tiled = c.tile_position, tile_axis(g, c)
    others = (g.y_batch, g.y_group, g.y_m, *(a.y_stride for a in g.axes if a is not tiled))
    if t > 1 and t * size <= 16 and tiled.out % t == 0 and common.dense_pack(t, tiled.y_stride, others):
        return "positions"
    return "elements"


def tap_loops(g: Gather, c: DirectConfig) -> list[Axis]:
    """The tap loops from the outermost in: along the tiled axis neighbouring results share pixels, so it is last."""
    tiled = tile_axis(g, c)
    return [*(a for a in g.axes if a is not tiled), tiled]


def window(g: Gather, c: DirectConfig) -> int:
    """Pixels a thread's positions read between them along the tiled axis; 0 if it does not pay to read each once."""
    axis = tile_axis(g, c)
    read = axis.span(c.tile_position)
    sparse = axis.divisor > 1 or g.preimages or read >= axis.taps * c.tile_position
    split = axis.name == split_axis(g) and c.split_taps > 1
    return 0 if sparse or split or read > MAX_WINDOW else read


def unrolled(g: Gather, c: DirectConfig) -> list[str]:
    """Axes whose tap loop is written out: from the innermost, while the operands it loads fit in registers."""
    names: list[str] = []
    taps, read = 1, window(g, c)
    for axis in reversed(tap_loops(g, c)):
        taps *= axis.taps
        pixels = read * (taps // tile_axis(g, c).taps) if read else taps * c.tile_position
        loaded = (pixels * tile_g(g, c) + taps * c.tile_channel) * c.vector
        too_many = loaded > UNROLLED_OPERANDS and not (read and axis is tile_axis(g, c))
        if too_many or (axis.name == split_axis(g) and c.split_taps > 1):
            break
        names.append(axis.name)
    return names


def shared_bytes(g: Gather, c: DirectConfig) -> int:
    return 4 * c.threads_channel * c.tile_channel * g.q_size * g.taps
