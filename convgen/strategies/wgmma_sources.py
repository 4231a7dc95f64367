"""Where the product of `wgmma_implicit_gemm` reads x and w: where they lie, or packed in the workspace.

TMA copies boxes whose innermost elements are neighbours and whose other strides are multiples of 16 bytes, and a line
of shared memory holds channels of one group only. What lies otherwise a kernel before the product packs: channels last,
those of each group followed by zeros; and the weights of fp32 problems as two numbers of TF32 each. One kernel packs x
and w where both are to be, each time; of w alone what is made depends on the weights alone. Of channels-first problems
with one tap x is also read as it lies, the positions of a channel as neighbours ("planes" by TMA, "runs" by threads).
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from convgen.gather import Axis, Gather, gather
from convgen.plan import Buffer, Extent, Launch, Param, Placement, TensorArg, WorkspaceArg, extent_plus
from convgen.problem import Accuracy, Conv, DType, Layout
from convgen.space import Config
from convgen.strategies import common, operands
from convgen.strategies import wgmma_tiling as tiling
from convgen.strategies.implicit_gemm_tiling import STEP_BYTES
from convgen.strategies.wgmma_block import LINE_BYTES, wgmma_columns
from convgen.tensor_map import MAX_BOX

ALIGNMENT = 16
"""Bytes that strides of TMA's tensors are multiples of."""
LEAST_COPY = 4
"""Bytes that cp.async copies."""
MAX_PADDING = 4
"""Times the channels of a group: more are not packed."""
THREADS = 256
"""Threads a block of the kernels that pack."""
POSITIONS = 4
"""Of channels-first x that a thread takes, 16 bytes of channels of each: 64 bytes of loads that are all under way."""
OCTET = 8
"""Pieces of 16 bytes that lie in all banks of shared memory between them, and are a line of global memory."""
MAX_TILE_BYTES = 48 * 1024
"""Of channels-first w in a block's shared memory; of an octet with more taps elements are packed one by one."""


@dataclass(frozen=True)
class Sources:
    """The gather that the product computes, and which of "x" and "w" are packed before."""

    g: Gather
    packed: frozenset[str]
    is_split: bool

    def place(self, tensor: str) -> TensorArg | WorkspaceArg:
        return WorkspaceArg(_packed(tensor)) if tensor in self.packed else TensorArg(tensor)


@functools.lru_cache(maxsize=512)
def sources(problem: Conv, patches: str) -> Sources:
    """What the product reads whose pixels come that way."""
    g = gather(problem)
    channels = packed_channels(g)
    first = problem.layout is Layout.CHANNELS_FIRST
    padded = channels != g.q_size
    as_it_lies = patches in (tiling.PLANES, tiling.RUNS) and not_as_it_lies(g, patches) is None
    packs = {"x": (first or padded) and not as_it_lies, "w": padded or (first and g.taps > 1) or is_split(problem)}
    packed = frozenset(tensor for tensor, is_packed in packs.items() if is_packed)
    if not first and not packed:
        return Sources(g, packed, False)
    changed = gather(dataclasses.replace(problem, c=g.groups * channels, layout=Layout.CHANNELS_LAST))
    kept = ["y", "y_batch", "y_group", "y_m"]
    if as_it_lies:
        kept += ["x", "x_batch", "x_group", "x_q"]
        axes: tuple[Axis, ...] = (_plane(g, channels),)
    else:
        pairs = zip(changed.axes, g.axes, strict=True)
        axes = tuple(dataclasses.replace(axis, y_stride=own.y_stride) for axis, own in pairs)
    return Sources(
        dataclasses.replace(changed, axes=axes, **{name: getattr(g, name) for name in kept}), packed, is_split(problem)
    )


def is_split(problem: Conv) -> bool:
    """Whether each number of x and w is multiplied as two of TF32: that of x on its way, those of w are packed."""
    return problem.dtype is DType.FP32 and problem.accuracy is not Accuracy.FAST


def _plane(g: Gather, channels: int) -> Axis:
    """All axes as one, which a filter of one tap does not tell apart."""
    extents = {"out": g.out, "source": g.out, "taps": 1, "step": 1, "offset": 0, "spread": 1, "divisor": 1}
    return Axis("w", **extents, pad_lo=0, pad_hi=0, x_stride=1, w_stride=channels, y_stride=1)


def not_as_it_lies(g: Gather, patches: str) -> str | None:
    """Why x cannot be read channels-first, as planes or runs; None if it can."""
    if g.x.layout is not Layout.CHANNELS_FIRST:
        return "the positions of a channel are neighbours in channels-first layouts only"
    if g.x.dtype.itemsize != 2:
        return f"positions along the rows of an operand: wgmma takes 16-bit types so, not {g.x.dtype.value}"
    if any((a.taps, a.step, a.pad_lo, a.pad_hi) != (1, 1, 0, 0) for a in g.axes):
        return "expected one tap, stride 1 and no padding: others meet shifted positions"
    least, why = (ALIGNMENT, "as TMA's strides are") if patches == tiling.PLANES else (LEAST_COPY, "as cp.async takes")
    if g.out * g.x.dtype.itemsize % least:
        return f"a channel's {g.out} positions are no multiple of {least} bytes, {why}"
    if g.groups > 1 and packed_channels(g) != g.q_size:
        return f"a group's {g.q_size} channels are to be padded, x is not"
    return None


# --- channels ----------------------------------------------------------------------------------------


def packed_channels(g: Gather) -> int:
    """Channels of a group that the product reads: as many as there are, or the fewest more that it can."""
    item = g.x.dtype.itemsize
    if g.groups == 1:
        return _up_to_multiple(g.q_size, ALIGNMENT // item)
    step, line = STEP_BYTES // item, LINE_BYTES // item
    whole = _up_to_multiple(g.q_size, line)
    parts = range(_up_to_multiple(g.q_size, step), line, step)
    return next((q for q in parts if _is_part_of_line(g, q, line)), whole)


def _is_part_of_line(g: Gather, q: int, line: int) -> bool:
    """Whether the product can tell a group of so many channels from others in its line."""
    shared = math.gcd(line // q, g.groups) if line % q == 0 else 1
    return shared == 1 or (g.m == wgmma_columns(g.m, g.x.dtype) and shared * g.m <= MAX_BOX)


def why_not(g: Gather) -> str | None:
    """Why the channels cannot be packed; None if they can, or need not."""
    channels = packed_channels(g)
    if channels > MAX_PADDING * g.q_size:
        of_group = "a group's " if g.groups > 1 else ""
        return (f"{of_group}{g.q_size} channels would be padded to {channels}, as TMA and lines of shared memory take "
                "them; others take them as they are")  # fmt: skip
    return None


def _up_to_multiple(value: int, step: int) -> int:
    return -(-value // step) * step


# --- the kernel that packs ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Packing:
    """How a tensor of `q` channels a group is packed: what the kernel takes for it, and what the template is told."""

    taken: tuple[operands.Operand, ...]
    blocks: Extent
    ctype: str
    itemsize: int
    q: int
    run: int
    """Neighbouring elements that a load takes: positions of channels-first tensors, else channels."""
    positions: int
    """Of an image or, of w, taps."""
    outer_stride: int
    """From one image, or result channel, to the next; like the others in elements of the tensor."""
    q_stride: int
    position_stride: int
    lanes: int = 0
    """Of a warp, those along the positions of channels-last x."""
    shared_bytes: int = 0
    tile: int = 0
    """What a block turns by way of shared memory: of channels-first x positions; of w pieces of 16 bytes of channels,
    all taps of each. 0: nothing."""
    across: int = 0
    """Pieces of channels-first x that a block turns."""


def packings(problem: Conv, found: Sources) -> dict[str, Packing]:
    """How what the product reads is filled, by tensor."""
    makers = {"x": _x_packing, "w": _w_packing}
    return {tensor: make(problem, found.g) for tensor, make in makers.items() if tensor in found.packed}


def launches(problem: Conv, found: Mapping[str, Packing], strategy: str, config: Config) -> tuple[Launch, ...]:
    """The launch of the kernel that packs them all, if there are any."""
    if not found:
        return ()
    parts = found.values()
    of_w = found["w"].blocks if "w" in found else 0
    assert isinstance(of_w, int)  # of x alone they may go with the batch
    blocks = extent_plus(found["x"].blocks, of_w) if "x" in found else of_w
    name = common.kernel_name(problem, strategy, config, "_".join(["pack", *found]))
    taken = tuple(operand for part in parts for operand in part.taken)
    shared = max(part.shared_bytes for part in parts)
    return (operands.launch(name, taken, (blocks, 1, 1), (THREADS, 1, 1), shared),)


def constants(found: Mapping[str, Packing], packing: tuple[Launch, ...]) -> dict[str, Any]:
    """What the template is told."""
    return {"packings": found, "packing": packing[0] if packing else None}


def _x_packing(problem: Conv, product: Gather) -> Packing:
    g = gather(problem)
    positions = math.prod(axis.source for axis in g.axes)
    first = problem.layout is Layout.CHANNELS_FIRST
    piece = ALIGNMENT // g.x.dtype.itemsize
    pieces = product.groups * product.q_size // piece
    plain = Packing(
        (operands.x(g), _stored(product.x.dtype.ctype, "x")),
        blocks=0,
        ctype=g.x.dtype.ctype,
        itemsize=g.x.dtype.itemsize,
        q=g.q_size,
        run=common.power_dividing(positions if first else math.gcd(g.q_size, piece), POSITIONS if first else piece),
        positions=positions,
        outer_stride=g.x_batch,
        q_stride=g.x_q,
        position_stride=1 if first else g.x.shape[1],
    )
    return _turned(plain, g, pieces) if first else _padded(plain, g, pieces)


def _turned(plain: Packing, g: Gather, pieces: int) -> Packing:
    """Of channels-first x: a block has the pieces of a line, and as many positions of them as its threads take."""
    across = min(OCTET, common.power_of_two_at_least(pieces))
    tiles = -(-plain.positions * across // (THREADS * POSITIONS))
    tile = _up_to_multiple(-(-plain.positions // tiles), plain.run)
    of_image = -(-plain.positions // tile) * -(-pieces // across)
    runs = _up_to_multiple(tile // plain.run, THREADS // across)
    pitch = plain.run * across | 1
    return dataclasses.replace(
        plain,
        blocks=common.per_batch(g, g.batch_size * of_image),
        shared_bytes=runs * pitch * ALIGNMENT,
        tile=tile,
        across=across,
    )


def _padded(plain: Packing, g: Gather, pieces: int) -> Packing:
    """Of channels-last x: a thread has 16 bytes of channels of a position."""
    lanes = 16 if plain.itemsize <= 2 else 8
    warps = -(-plain.positions // lanes) * -(-pieces // (32 // lanes))
    return dataclasses.replace(
        plain,
        taken=(*plain.taken, *operands.runtime_batch(g)),
        blocks=common.per_batch(g, g.batch_size * warps, by=THREADS // 32),
        lanes=lanes,
    )


def _w_packing(problem: Conv, product: Gather) -> Packing:
    g = gather(problem)
    first = problem.layout is Layout.CHANNELS_FIRST
    item = g.w.dtype.itemsize
    piece = ALIGNMENT // item
    tile = _w_tile(g.taps) if first else 0
    elements = tile * piece * g.taps or THREADS  # of a block
    blocks = -(-g.channels * g.taps * product.q_size // elements)
    taken = (operands.w(g), _stored(product.w.dtype.ctype, "w"))
    return Packing(
        taken,
        blocks,
        ctype=g.w.dtype.ctype,
        itemsize=item,
        q=g.q_size,
        run=common.power_dividing(g.q_size * g.taps, piece) if tile else 1,
        positions=g.taps,
        outer_stride=g.w_m,
        q_stride=g.w_q,
        position_stride=1 if first else g.q_size,
        shared_bytes=_tile_bytes(tile, g.taps),
        tile=tile,
    )


def _w_tile(taps: int) -> int:
    """About 16 bytes a thread: then all of a small w is under way at once, from all multiprocessors."""
    tile = max(THREADS // taps // OCTET, 1) * OCTET
    return tile if _tile_bytes(tile, taps) <= MAX_TILE_BYTES else 0


def _tile_bytes(tile: int, taps: int) -> int:
    """Of an even number of taps there is room for one more, which moves the next piece to other banks."""
    return tile * ALIGNMENT * (taps | 1)


def _stored(ctype: str, tensor: str) -> operands.Operand:
    return Param(_packed(tensor), f"{ctype}*"), WorkspaceArg(_packed(tensor))


def workspace(found: Sources) -> tuple[Buffer, ...]:
    g = found.g
    sizes = {"w": g.w.nbytes * (2 if found.is_split else 1), "x": common.per_batch(g, g.x.nbytes)}
    return tuple(Buffer(_packed(tensor), nbytes) for tensor, nbytes in sizes.items() if tensor in found.packed)


def alignment(found: Mapping[str, Packing]) -> dict[str, int]:
    """What the loads of x and w rely on, in bytes."""
    return {tensor: packing.run * packing.itemsize for tensor, packing in found.items()}


def placements(found: Sources) -> tuple[Placement, ...]:
    g = found.g
    w_why = "made from w alone" if found.packed == {"w"} else "by the kernel that packs x too, each time"
    packed = ((g.w, w_why), (g.x, "written once, then read as x"))
    return tuple(
        Placement(f"packed {tensor.name}", "global", tensor.nbytes, f"workspace, channels as neighbours: {why}")
        for tensor, why in packed
        if tensor.name in found.packed
    )


def _packed(tensor: str) -> str:
    return f"packed_{tensor}"
