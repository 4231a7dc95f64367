"""A product on wgmma of a filter and the patches of x: its lines of shared memory, its panels, rings and tiles.

A line of shared memory holds 128 bytes of the channels of a pixel. A wgmma takes lines as rows or columns of an
operand, eight neighbours and then every group of eight the same distance on; so the lines of a filter's tap are those
of the first one moved by a constant.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

from convgen.gather import Axis, Gather
from convgen.plan import Buffer, Launch, Param, Placement, WorkspaceArg
from convgen.problem import Conv
from convgen.strategies import common, operands, partial_sums, wgmma_block
from convgen.strategies.implicit_gemm_tiling import STEP_BYTES
from convgen.strategies.operands import Operand
from convgen.strategies.wgmma_block import LINE_BYTES, SHARED_ALIGNMENT, BlockConfig
from convgen.strategies.wgmma_results import Results
from convgen.target import Target
from convgen.tensor_map import Swizzle

SQUARE = 8
OTHER_REGISTERS = 44
"""That a consumer needs beside its sums."""


class PatchesConfig(BlockConfig):
    """How the product is tiled, and how its operands come."""

    patches: str
    """How pixels come. "rows": those of results in a row over the ends of rows and images; "im2col" and "runs": for
    every tap those it meets; others: the halo of a box of results."""
    split_k: int
    """Parts of the sums of tiles that leave multiprocessors idle: those after the last one that all have as many of.
    They run in parallel and are added in a fixed order by a second kernel."""
    cluster: int
    """Blocks of a cluster that have a part of each tile's sums, and add them through their shared memory."""

    @property
    def parts(self) -> int:
        """Of a tile's sums, if they are split."""
        return max(self.split_k, self.cluster)


@dataclass(frozen=True)
class Patches:
    """A gather (fprop, x and w channels-last but for planes and runs) and a config: what both strategies share."""

    g: Gather
    c: PatchesConfig

    @property
    def positions(self) -> int:
        """Of a block's tile."""
        raise NotImplementedError

    @property
    def square(self) -> tuple[int, ...]:
        """The results of a box along each inner axis."""
        raise NotImplementedError

    @property
    def w_rows(self) -> int:
        """Lines of a tile of w: channels of a block's tile."""
        raise NotImplementedError

    @property
    def results(self) -> Results:
        """Those of a slab."""
        raise NotImplementedError

    @property
    def channel_tiles(self) -> int:
        """Of all groups."""
        raise NotImplementedError

    @property
    def x_multicast(self) -> int:
        """Blocks of a cluster that a tile of x goes to: those of neighbouring tiles of channels. Each loads a part."""
        return 1

    @property
    def w_multicast(self) -> int:
        """The same of w: blocks of neighbouring positions."""
        return 1

    # --- axes and channels ---------------------------------------------------------------------------

    @property
    def inner(self) -> tuple[Axis, ...]:
        """The axes whose taps lie in one halo: the last two."""
        return self.g.axes[-2:]

    @property
    def depth(self) -> tuple[Axis, ...]:
        """The axes before them, whose taps are loaded apart."""
        return self.g.axes[:-2]

    @property
    def is_halo(self) -> bool:
        """Whether the inner taps are shifts within one tile of x."""
        return self.c.patches not in ("im2col", "runs")

    @property
    def is_box(self) -> bool:
        return self.c.patches not in ("im2col", "rows", "runs")

    @property
    def has_eights(self) -> bool:
        """Whether boxes have eight results along the last axis, and others along the one before."""
        return self.c.patches in ("square", "box")

    @property
    def item(self) -> int:
        return self.g.x.dtype.itemsize

    @property
    def q(self) -> int:
        return self.g.q_size

    @property
    def line(self) -> int:
        """Elements of a line of x."""
        return LINE_BYTES // self.item

    @functools.cached_property
    def shared_groups(self) -> int:
        """Groups whose channels lie in one line of x."""
        if self.g.groups == 1 or self.q == 0 or self.line % self.q:
            return 1
        return math.gcd(self.line // self.q, self.g.groups)

    @property
    def w_line(self) -> int:
        """Elements of a line of w: a group's part of the line."""
        return self.q if self.shared_groups > 1 else self.line

    @property
    def w_swizzle(self) -> Swizzle:
        return Swizzle(self.w_line * self.item)

    @property
    def chunks(self) -> int:
        """Lines that the channels of a group fill."""
        return -(-self.q // self.line)

    @property
    def k_steps(self) -> int:
        """wgmma of a tap and a line, for each group of it."""
        return -(-min(self.q * self.item, LINE_BYTES) // STEP_BYTES)

    # --- panels ------------------------------------------------------------------------------------------

    @property
    def taps(self) -> int:
        """Taps of a panel: those that one tile of x serves."""
        return math.prod(axis.taps for axis in self.inner) if self.is_halo else 1

    @property
    def panels(self) -> int:
        """Tiles of x of a tile of results: one a line of channels and tap that is loaded apart."""
        return self.chunks * self.g.taps // self.taps

    @property
    def panels_of_part(self) -> int:
        return -(-self.panels // self.c.parts)

    @property
    def w_tiles(self) -> int:
        """Tiles of w of a tile of results."""
        return self.panels * self.taps

    @property
    def resident(self) -> bool:
        """Whether the tiles of w stay in shared memory."""
        return self.c.w_stages == self.w_tiles

    @property
    def mma_steps(self) -> int:
        """Roundings that a product meets: those of the wgmma behind it."""
        return self.w_tiles * self.k_steps

    # --- positions -----------------------------------------------------------------------------------

    @property
    def box(self) -> tuple[int, ...]:
        """The pixels of a box's halo along each inner axis."""
        return tuple(axis.span(extent) for axis, extent in zip(self.inner, self.square, strict=True))

    @property
    def loaded_box(self) -> tuple[int, ...]:
        """Those of them that one load brings: some of its rows where several blocks load a part each."""
        rows, *rest = self.box
        return (-(-rows // self.x_multicast), *rest)

    @property
    def pitch(self) -> tuple[int, ...]:
        """Positions in a row along each inner axis, from a line to the next: zeros at an end serve both sides."""
        return tuple(max(a.out, a.source + max(a.pad_lo, a.pad_hi)) for a in self.inner)

    @property
    def span(self) -> int:
        """Lines from a position to that of its last tap."""
        *rows, last = self.inner
        reach = (last.taps - 1) * last.spread
        return reach + sum((a.taps - 1) * a.spread for a in rows) * self.pitch[-1]

    @property
    def most_rows(self) -> int:
        """Rows of x that a block's positions meet."""
        return (self.pitch[-1] - 1 + self.positions - 1 + self.span) // self.pitch[-1] + 1

    @property
    def planes(self) -> int:
        """Two-dimensional results of one batch element."""
        return math.prod(axis.out for axis in self.depth)

    @property
    def units(self) -> int:
        """What a batch element is counted in: boxes, else positions."""
        match self.c.patches:
            case "im2col" | "runs":
                return self.g.out
            case "rows":
                return self.planes * math.prod(self.pitch)
        return self.planes * math.prod(-(-a.out // s) for a, s in zip(self.inner, self.square, strict=True))

    @property
    def boxes(self) -> int:
        """Of a block's tile, if they are that."""
        raise NotImplementedError

    @property
    def units_of_block(self) -> int:
        return self.boxes if self.is_box else self.positions

    @property
    def group_lines(self) -> int:
        """Lines from eight of an operand's positions to the next eight."""
        return self.box[-1] if self.has_eights else SQUARE

    @property
    def row_lines(self) -> int:
        """Lines from a row of pixels to the next."""
        return self.pitch[-1] if self.c.patches == "rows" else self.box[-1]

    # --- shared memory -------------------------------------------------------------------------------

    @property
    def x_lines(self) -> int:
        if self.c.patches == "rows":
            return self.most_rows * self.pitch[-1]
        return self.boxes * self.x_multicast * math.prod(self.loaded_box) if self.is_box else self.positions

    @property
    def x_bytes(self) -> int:
        return self.x_lines * LINE_BYTES

    @property
    def w_bytes(self) -> int:
        whole = self.w_rows * self.w_line * self.item
        return -(-whole // SHARED_ALIGNMENT) * SHARED_ALIGNMENT

    @property
    def stores(self) -> int:
        """Slabs that a warpgroup fills with a tile's results."""
        raise NotImplementedError

    @property
    def mapped(self) -> bool:
        return self.results.mapped

    @property
    def w_at(self) -> int:
        return self.c.x_stages * self.x_bytes

    @property
    def staging_at(self) -> int:
        return self.w_at + self.c.w_stages * self.w_bytes

    @property
    def barriers_at(self) -> int:
        return self.staging_at + self.c.consumers * self.c.slabs * self.results.slab_bytes

    @property
    def ordered(self) -> bool:
        """Whether warpgroups that take turns wait for each other's products.

        A wait for an mbarrier's phase takes the one before the last for it, so nobody may come to a stage while an
        earlier filling of it is on its way. None is where all stages before were waited for by those who went before,
        or where the earlier filling was one's own: where the rings come around with one's own tiles.
        """
        slots = self.c.slots
        own_x = self.c.x_stages % (slots * self.panels) == 0
        own = own_x and (self.resident or self.c.w_stages % (slots * self.w_tiles) == 0)
        return slots > 1 and not (own and self.c.split_k == 1)

    @property
    def mbarriers(self) -> int:
        """Two a stage, full and empty; tiles that stay are never empty."""
        turns = self.c.slots if self.ordered else 0
        return 2 * self.c.x_stages + self.c.w_stages * (1 if self.resident else 2) + turns

    @property
    def shared_bytes(self) -> int:
        return self.barriers_at + 8 * self.mbarriers

    # --- registers -----------------------------------------------------------------------------------

    @property
    def sums(self) -> int:
        """Of a thread."""
        raise NotImplementedError

    @property
    def registers(self) -> int:
        """About what a consumer needs."""
        return self.sums + OTHER_REGISTERS

    # --- work ----------------------------------------------------------------------------------------

    def tiles(self, batch: int) -> int:
        """Of results."""
        return -(-batch * self.units // self.units_of_block) * self.channel_tiles

    def split_tiles(self, batch: int, target: Target) -> int:
        """Of them, those whose sums are split."""
        return self.tiles(batch) % target.sm_count if self.c.split_k > 1 else 0

    def blocks(self, batch: int, target: Target) -> int:
        """Blocks that are launched."""
        if self.c.cluster > 1:
            return self.tiles(batch) * self.c.cluster
        tiles = self.tiles(batch) + (self.c.split_k - 1) * self.split_tiles(batch, target)
        return wgmma_block.blocks(tiles, self.channel_tiles, self.resident, target)

    @property
    def cluster_gap(self) -> int:
        """Sums between those of one position and the next where a cluster adds them, for the sake of the banks."""
        raise NotImplementedError

    @property
    def cluster_bytes(self) -> int:
        """Of a block's part of the sums where a cluster adds them."""
        return 4 * self.positions * (self.w_rows + self.cluster_gap)

    @property
    def part_bytes(self) -> int:
        """Of a part of a tile's sums."""
        return 4 * self.positions * self.w_rows


# --- what the product's kernels take ------------------------------------------------------------------


def reduce(problem: Conv, t: Patches, strategy: str, target: Target, results: tuple[Operand, ...]) -> Launch:
    """The launch that adds the parts of split tiles, two results a thread, and applies the epilogue."""
    parts = Param("partial", f"const {partial_sums.sum_type(t.g)}*"), WorkspaceArg("partial")
    pairs = t.positions * t.w_rows // 2
    grid = (-(-pairs // partial_sums.THREADS), max(t.split_tiles(t.g.batch_size, target), 1), 1)
    name = common.kernel_name(problem, strategy, t.c, "reduce")
    return operands.launch(name, (parts, *results), grid, (partial_sums.THREADS, 1, 1), is_early=True)


def workspace(t: Patches, target: Target) -> tuple[Buffer, ...]:
    """Of the parts of split tiles."""
    nbytes = t.c.split_k * t.split_tiles(t.g.batch_size, target) * t.part_bytes
    return (Buffer("partial", nbytes),) if nbytes else ()


_GATHER_CONSTANTS = (
    *("problem", "direction", "x_name", "w_name", "y_name", "type_headers", "in_t", "out_t", "batch", "groups", "m"),
    *("q", "axes", "y_batch", "y_m", "epilogue", "epilogue_params", "activation", "slope", "accumulate", "value_t"),
)


def constants(problem: Conv, t: Patches, target: Target, product: Launch, reducing: Launch) -> dict[str, Any]:
    """What templates of the product are told, those of either strategy."""
    g, c = t.g, t.c
    gathered = common.gather_constants(problem, g)
    known = {name: gathered[name] for name in _GATHER_CONSTANTS} | t.results.constants
    return known | {
        "config": str(c),
        "kernel": product.kernel.name,
        "params": product.kernel.params,
        "offset_t": "long long" if g.wide else "int",
        "reduce_kernel": reducing.kernel.name,
        "reduce_params": reducing.kernel.params,
        "parts": c.parts,
        "cluster": c.cluster > 1,
        "cluster_gap": t.cluster_gap,
        "x_multicast": t.x_multicast,
        "w_multicast": t.w_multicast,
        "is_early": product.is_early,
        "multiprocessors": target.sm_count,
        "wgmma_extents": [c.block_n],
        "patches": c.patches,
        "tiles": c.tiles,
        "block_n": c.block_n,
        "consumers": c.consumers,
        "sharing": c.sharing,
        "x_stages": c.x_stages,
        "w_stages": c.w_stages,
        "threads": c.threads,
        "subtiles": c.subtiles,
        "shared_groups": t.shared_groups,
        "line": t.line,
        "step": STEP_BYTES // t.item,
        "k_steps": t.k_steps,
        "taps": t.taps,
        "panels": t.panels,
        "panels_of_part": t.panels_of_part,
        "chunks": t.chunks,
        "resident": t.resident,
        "ordered": t.ordered,
        "units": t.units,
        "square": t.square,
        "pitch": t.pitch,
        "span": t.span,
        "group_lines": t.group_lines,
        "row_lines": t.row_lines,
        "x_bytes": t.x_bytes,
        "w_bytes": t.w_bytes,
        "w_rows": t.w_rows,
        "w_line_bytes": t.w_line * t.item,
        "w_at": t.w_at,
        "staging_at": t.staging_at,
        "barriers_at": t.barriers_at,
        "slabs": c.slabs,
        "reads_y": problem.accumulate or "residual" in problem.epilogue.operands,
        "registers": c.registers,
    }


def placements(t: Patches, kind: str, sum_registers: int) -> tuple[Placement, ...]:
    """Of the product; `kind` is that of its sums."""
    g, c = t.g, t.c
    x_why = "the halo of a tile of results, once for all its taps" if t.is_halo else "the pixels that a tap meets"
    w_why = "all of a block's channels, loaded once" if t.resident else "a tap at a time, for the channels of a tile"
    return (
        Placement(g.x.name, "shared", c.x_stages * t.x_bytes, f"{c.x_stages} stages: {x_why}"),
        Placement(g.w.name, "shared", c.w_stages * t.w_bytes, f"{c.w_stages} tiles: {w_why}"),
        Placement("sums", "registers", 4 * sum_registers, f"{kind}, in a warpgroup's wgmma fragments"),
    )
