"""Direct convolution: a thread keeps a few results in registers and gathers their inputs from global memory.

Covers every valid Conv of fp32, tf32, fp16 and bf16, so that something always applies. Its simplest config (every
tile 1, filter in global memory) is the textbook kernel: one thread, one output.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from convgen.errors import ConfigError
from convgen.gather import NARROW, Axis, Gather, gather
from convgen.plan import BatchExtent, Extent, Kernel, Launch, Param, Placement, Plan, TextureArg
from convgen.problem import Conv, PadMode
from convgen.space import Config, Space
from convgen.strategies import common, operands, partial_sums, rules
from convgen.strategies.operands import Operand
from convgen.target import Target

MAX_SPLITS = 64
UNROLLED_OPERANDS = 96
MAX_WINDOW = 24
TEXTURE_WIDTH, TEXTURE_HEIGHT, TEXTURE_PITCH = 131072, 65000, 32


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


class Direct:
    """See the module's text."""

    name = "direct"
    summary = "one or several outputs a thread, inputs straight from global memory; covers every Conv"

    def why_not(self, problem: Conv, target: Target) -> str | None:
        return common.not_covered(problem)

    def space(self, problem: Conv, target: Target) -> Space:
        g = gather(problem)
        return Space(
            DirectConfig,
            {
                "along_x": ("channel", "column"),
                "threads_channel": (1, 2, 4, 8, 16, 32, 64, 128),
                "threads_column": (1, 2, 4, 8, 16, 32, 64, 128, 256, 512),
                "tile_b": (1, 2, 4),
                "tile_channel": (1, 2, 4, 8, 16),
                "tile_position": (1, 2, 4, 8),
                "vector": (1, 2, 4, 8),
                "filter": ("global", "constant", "shared"),
                "input": ("global", "texture"),
                "split_q": tuple(s for s in (1, 2, 4, 8, 16, 32) if s == 1 or s <= g.q_size),
                "split_taps": tuple(s for s in (1, 2, 4, 8, 16, 32) if s == 1 or s <= _split_axis_taps(g)),
            },
        )

    def check(self, problem: Conv, config: DirectConfig, target: Target) -> None:
        g = gather(problem)
        c = config
        rules.one_of(c, "along_x", ("channel", "column"))
        rules.one_of(c, "filter", ("global", "constant", "shared"))
        rules.one_of(c, "input", ("global", "texture"))
        rules.at_least_one(c)
        rules.block_fits(_block(c), target)
        if c.tile_channel * c.tile_position * c.vector > 256:
            raise ConfigError(
                "tile_channel*tile_position*vector over 256: the sums and operands would not fit in registers"
            )
        if g.preimages and c.tile_position != 1:
            raise ConfigError(
                f"tile_position={c.tile_position}: the dgrad of pad_mode={problem.pad_mode.value} "
                "takes one position at a time"
            )
        if c.vector > 1:
            self._check_vector(g, c)
        if c.split_q > max(g.q_size, 1) or c.split_taps > _split_axis_taps(g):
            raise ConfigError(f"split_q={c.split_q}, split_taps={c.split_taps}: more parts than terms to share out")
        if c.split_q * c.split_taps > MAX_SPLITS:
            raise ConfigError(
                f"split_q*split_taps={c.split_q * c.split_taps}: at most {MAX_SPLITS} partial results are kept"
            )
        self._check_filter(g, c, target)
        if c.tile_b > 1 and g.batch is None:
            raise ConfigError(f"tile_b={c.tile_b}: the batch is known at run time only, so a thread takes one element")
        if c.input == "texture":
            self._check_texture(problem, g, c)
        rules.grid_fits(problem, _grid_x(g, c), "larger tiles")

    def _check_vector(self, g: Gather, c: DirectConfig) -> None:
        if c.vector not in (2, 4, 8):
            raise ConfigError(f"vector={c.vector}: expected 1, 2, 4 or 8")
        if not _packs_q(g, c.vector):
            raise ConfigError(
                f"vector={c.vector}: summed channels must be neighbours in {g.x.name} and a multiple of it"
            )
        if g.m == 1 and c.tile_channel > 1:
            raise ConfigError("vector over 1 with several groups a thread: each group would need its own vector")

    def _check_filter(self, g: Gather, c: DirectConfig, target: Target) -> None:
        if c.filter == "constant":
            rules.constant_fits(g, target)
            if c.threads_channel > 1 and c.along_x == "channel":
                raise ConfigError("filter=constant with along_x=channel: the lanes of a warp would read different "
                                  "addresses, which constant memory serves one by one")  # fmt: skip
            if c.threads_channel > 1 and c.threads_column % target.warp:
                raise ConfigError(
                    "filter=constant: threads_column must be a multiple of 32 so that a warp reads one address"
                )
        if c.filter == "shared":
            if g.q is None:
                raise ConfigError("filter=shared: the summed extent must be fixed, it is the batch here")
            rules.shared_fits("filter=shared: the block's channels take", _shared_bytes(g, c), target)
            if c.threads_channel > 1 and c.along_x == "channel" and g.q * g.taps % 2 == 0:
                raise ConfigError("filter=shared with along_x=channel: an even number of terms a channel "
                                  "puts neighbouring threads on the same banks")  # fmt: skip

    def _check_texture(self, problem: Conv, g: Gather, c: DirectConfig) -> None:
        if problem.nd != 2 or g.groups != 1 or g.q != 1 or g.terms_vanish or g.batch is None:
            raise ConfigError(
                "input=texture: expected a 2-D problem on single-channel images, a fixed batch and no dgrad"
            )
        if g.x.dtype.ctype == "__nv_bfloat16":
            raise ConfigError("input=texture: there is no bf16 texture format")
        if g.pad_mode is not PadMode.ZEROS:
            raise ConfigError("input=texture: the texture unit supplies the zero border only")
        height, width = g.axes[0].source * g.batch, g.axes[1].source
        if not 0 < width <= TEXTURE_WIDTH or not 0 < height <= TEXTURE_HEIGHT:
            raise ConfigError(f"input=texture: {width} x {height} pixels, a linear texture has at most "
                              f"{TEXTURE_WIDTH} x {TEXTURE_HEIGHT}")  # fmt: skip
        if width * g.x.dtype.itemsize % TEXTURE_PITCH:
            raise ConfigError(
                f"input=texture: rows of {width * g.x.dtype.itemsize} bytes must be a multiple of {TEXTURE_PITCH}"
            )
        if c.vector > 1 or (c.tile_channel > 1 and g.m == 1):
            raise ConfigError("input=texture: a fetch brings one pixel")

    def default(self, problem: Conv, target: Target) -> DirectConfig:
        g = gather(problem)
        channels_contiguous = (g.y_m if g.m > 1 else g.y_group) == 1 and g.channels > 1
        vector = common.largest((8, 4, 2), lambda v: _packs_q(g, v))
        results = max(g.batch_size * g.channels * g.out, 1)
        plenty = target.sm_count * 2048
        extent = g.axes[-2 if len(g.axes) > 1 and not channels_contiguous else -1].out
        tile_position = 1
        if not g.preimages and results >= 8 * plenty:
            tile_position = common.largest((8, 4, 2) if g.channels == 1 else (4, 2), lambda t: extent >= t)
        tile_channel = common.largest((8, 4, 2), lambda t: g.channels >= t and results >= t * tile_position * plenty)
        if g.m == 1:
            tile_channel = min(tile_channel, 4)
            vector = 1 if tile_channel > 1 else vector
        else:
            tile_channel = min(tile_channel, max(16 // vector, 2)) if g.m >= tile_channel else 1
        if channels_contiguous:
            threads_channel = min(common.power_of_two_at_least(-(-g.channels // tile_channel)), 128)
            shape = ("channel", threads_channel, 128 // threads_channel)
        else:
            shape = ("column", 1, 128)
        terms = g.taps * g.q_size
        wanted = plenty * tile_position * tile_channel // results
        split_taps = common.power_of_two_at_most(min(wanted, _split_axis_taps(g), 32, terms // 256))
        most = min(wanted // split_taps, MAX_SPLITS // split_taps, g.q_size // vector, terms // split_taps // 256)
        split_q = common.power_of_two_at_most(most)
        return DirectConfig(*shape, 1, tile_channel, tile_position, vector, "global", "global", split_q, split_taps)

    def cost(self, problem: Conv, config: DirectConfig, target: Target) -> float:
        g = gather(problem)
        c = config
        splits = c.split_q * c.split_taps
        results = g.batch_size * g.channels * g.out
        taps = _tile_axis(g, c).taps
        pixels = (_window(g, c) or taps * c.tile_position) * _tile_g(g, c)
        loads = (pixels + taps * c.tile_channel) / (taps * c.tile_channel * c.tile_position)
        # Measured on an H200: loads bound the kernel; lanes that differ in channels read the filter apart.
        efficiency = min(0.5, 0.16 / loads / (3 if c.along_x == "channel" else 1))
        return common.first_order_cost(
            target,
            flops=problem.flops,
            bytes_moved=problem.bytes + 2 * 4 * splits * results * (splits > 1),
            threads=results // (c.tile_channel * c.tile_position) * splits,
            efficiency=efficiency,
            launches=1 + (splits > 1) + (c.filter == "constant"),
        )

    def lower(self, problem: Conv, config: DirectConfig, target: Target) -> Plan:
        g = gather(problem)
        c = config
        parts = c.split_q * c.split_taps
        main, reduce = self._main(problem, g, c), partial_sums.reduce(problem, g, self.name, c)
        launches = (main, reduce) if parts > 1 else (main,)
        return Plan(
            problem, self.name, c, target,
            template="conv/direct.cu.j2",
            constants=self._constants(problem, g, c, main.kernel) | partial_sums.constants(g, reduce, parts),
            kernels=tuple(launch.kernel for launch in launches),
            steps=() if g.is_empty else (*operands.filter_copy(g, c.filter), *launches),
            workspace=partial_sums.workspace(g, parts),
            alignment=_alignment(g, c),
            placements=_placements(g, c),
            name=main.kernel.name,
        )  # fmt: skip

    def _main(self, problem: Conv, g: Gather, c: DirectConfig) -> Launch:
        parts = c.split_q * c.split_taps
        stored = (partial_sums.STORED,) if parts > 1 else (*operands.epilogue(problem), operands.y(g))
        taken = (_input(g, c), *operands.placed_filter(g, c.filter), *stored, *operands.runtime_batch(g))
        shared = _shared_bytes(g, c) if c.filter == "shared" else 0
        grid = (_grid_x(g, c), parts, 1)
        return operands.launch(common.kernel_name(problem, self.name, c), taken, grid, _block(c), shared)

    def _constants(self, problem: Conv, g: Gather, c: DirectConfig, kernel: Kernel) -> dict[str, Any]:
        tiled = _tile_axis(g, c)
        partial = c.split_q * c.split_taps * common.most_results(problem, g)
        return common.gather_constants(problem, g) | {
            "kernel": kernel.name,
            "params": kernel.params,
            "config": str(c),
            "offset_t": "long long" if g.wide or partial > NARROW else "int",
            "channels_fastest": c.along_x == "channel",
            "threads_channel": c.threads_channel,
            "threads_column": c.threads_column,
            "tile_b": c.tile_b,
            "tile_g": _tile_g(g, c),
            "tile_m": _tile_m(g, c),
            "tile_o": c.tile_position,
            "tile_axis": tiled.name,
            "window": _window(g, c),
            "window_lead": max(0, -tiled.spread * (tiled.taps - 1)),
            "vector": c.vector,
            "filter_home": c.filter,
            "filter_elements": g.w.size,
            "filter_packed": common.dense_pack(c.vector, g.w_q, _other_w_strides(g)),
            "channels_packed": _reads_channel_packs(g, c),
            "texture": c.input == "texture",
            "split_q": c.split_q,
            "split_taps": c.split_taps,
            "split_axis": _split_axis(g),
            "tap_loops": _tap_loops(g, c),
            "unrolled": _unrolled(g, c),
            "preimages": g.preimages,
            "source_border": "kZeros" if g.terms_vanish else "kBorder",
            "store": _store(g, c),
        }


def _input(g: Gather, c: DirectConfig) -> Operand:
    if c.input == "global":
        return operands.x(g)
    height, width = (axis.source for axis in g.axes)
    texture = TextureArg(g.x.name, width, g.batch_size * height, width * g.x.dtype.itemsize)
    return Param("x", "cudaTextureObject_t"), texture


def _block(c: DirectConfig) -> tuple[int, int, int]:
    along, across = c.threads_column, c.threads_channel
    return (across, along, 1) if c.along_x == "channel" else (along, across, 1)


def _tile_g(g: Gather, c: DirectConfig) -> int:
    return c.tile_channel if g.m == 1 else 1


def _tile_m(g: Gather, c: DirectConfig) -> int:
    return 1 if g.m == 1 else c.tile_channel


def _grid_x(g: Gather, c: DirectConfig) -> Extent:
    channel_tiles = -(-g.groups // _tile_g(g, c)) * -(-g.m // _tile_m(g, c))
    channel_blocks = -(-channel_tiles // c.threads_channel)
    tiled = _tile_axis(g, c).out
    tiles = g.out // tiled * -(-tiled // c.tile_position)
    if g.batch is None:
        return BatchExtent(tiles, c.threads_column, channel_blocks)
    return channel_blocks * -(-(-(-g.batch // c.tile_b) * tiles) // c.threads_column)


def _tile_axis(g: Gather, c: DirectConfig) -> Axis:
    before_last = g.axes[-2:-1]
    return before_last[0] if before_last and c.along_x == "column" and before_last[0].out > 1 else g.axes[-1]


def _split_axis(g: Gather) -> str:
    return next((a.name for a in g.axes if a.taps > 1), g.axes[-1].name)


def _split_axis_taps(g: Gather) -> int:
    return next((a.taps for a in g.axes if a.taps > 1), 1)


def _other_w_strides(g: Gather) -> tuple[int, ...]:
    return common.steps((g.groups, g.w_group), (g.m, g.w_m), *((a.taps, a.w_stride) for a in g.axes))


def _packs_q(g: Gather, count: int) -> bool:
    """True if `count` summed channels lie together in x, aligned, within the 16 bytes of a load."""
    fits = g.q is not None and g.q >= count and g.q % count == 0 and count * g.x.dtype.itemsize <= 16
    pixels = ((a.source, a.x_stride) for a in g.axes)
    return fits and common.dense_pack(count, g.x_q, common.steps((g.batch, g.x_batch), (g.groups, g.x_group), *pixels))


def _reads_channel_packs(g: Gather, c: DirectConfig) -> bool:
    """True if the groups of a thread are neighbours in x, so that one load brings a pixel of each."""
    t = _tile_g(g, c)
    strides = common.steps((g.batch, g.x_batch), (g.q, g.x_q), *((a.source, a.x_stride) for a in g.axes))
    return t > 1 and t * g.x.dtype.itemsize <= 16 and g.groups % t == 0 and common.dense_pack(t, g.x_group, strides)


def _store(g: Gather, c: DirectConfig) -> str:
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
    t, tiled = c.tile_position, _tile_axis(g, c)
    others = (g.y_batch, g.y_group, g.y_m, *(a.y_stride for a in g.axes if a is not tiled))
    if t > 1 and t * size <= 16 and tiled.out % t == 0 and common.dense_pack(t, tiled.y_stride, others):
        return "positions"
    return "elements"


def _tap_loops(g: Gather, c: DirectConfig) -> list[Axis]:
    """The tap loops from the outermost in: along the tiled axis neighbouring results share pixels, so it is last."""
    tiled = _tile_axis(g, c)
    return [*(a for a in g.axes if a is not tiled), tiled]


def _window(g: Gather, c: DirectConfig) -> int:
    """Pixels a thread's positions read between them along the tiled axis; 0 if it does not pay to read each once."""
    axis = _tile_axis(g, c)
    window = axis.span(c.tile_position)
    sparse = axis.divisor > 1 or g.preimages or window >= axis.taps * c.tile_position
    split = axis.name == _split_axis(g) and c.split_taps > 1
    return 0 if sparse or split or window > MAX_WINDOW else window


def _unrolled(g: Gather, c: DirectConfig) -> list[str]:
    """Axes whose tap loop is written out: from the innermost, while the operands it loads fit in registers."""
    names: list[str] = []
    taps, window = 1, _window(g, c)
    for axis in reversed(_tap_loops(g, c)):
        taps *= axis.taps
        pixels = window * (taps // _tile_axis(g, c).taps) if window else taps * c.tile_position
        loaded = (pixels * _tile_g(g, c) + taps * c.tile_channel) * c.vector
        too_many = loaded > UNROLLED_OPERANDS and not (window and axis is _tile_axis(g, c))
        if too_many or (axis.name == _split_axis(g) and c.split_taps > 1):
            break
        names.append(axis.name)
    return names


def _shared_bytes(g: Gather, c: DirectConfig) -> int:
    return 4 * c.threads_channel * c.tile_channel * g.q_size * g.taps


def _alignment(g: Gather, c: DirectConfig) -> dict[str, int]:
    alignment = {}
    x_pack = c.vector if c.vector > 1 else _tile_g(g, c) if _reads_channel_packs(g, c) else 1
    if x_pack > 1:
        alignment[g.x.name] = x_pack * g.x.dtype.itemsize
    if c.vector > 1 and c.filter == "global" and common.dense_pack(c.vector, g.w_q, _other_w_strides(g)):
        alignment[g.w.name] = c.vector * g.w.dtype.itemsize
    pack = {"channels": c.tile_channel, "positions": c.tile_position, "elements": 1}[_store(g, c)]
    if pack > 1:
        alignment[g.y.name] = pack * g.y.dtype.itemsize
    return alignment


def _placements(g: Gather, c: DirectConfig) -> tuple[Placement, ...]:
    uniform = c.threads_channel == 1 or (c.along_x == "column" and c.threads_column % 32 == 0)
    homes = {
        "constant": "warp-uniform: every lane reads one address, served beside the FMA",
        "shared": "read by every thread of the block; one copy from L2 a block",
        "global": "read-only, " + ("warp-uniform, " if uniform else "") + "kept by L1 and L2",
    }
    inputs = {
        "texture": "2-D cache lines and a zero border in hardware",
        "global": f"neighbouring threads read {_neighbours(g, c)}; taps overlap in L1",
    }
    return (
        Placement(g.x.name, "texture" if c.input == "texture" else "L1/L2", g.x.nbytes, inputs[c.input]),
        Placement(g.w.name, "L1/L2" if c.filter == "global" else c.filter, g.w.nbytes, homes[c.filter]),
        common.sums_placement(c.tile_channel * c.tile_position),
    )


def _neighbours(g: Gather, c: DirectConfig) -> str:
    if c.along_x == "column" or c.threads_channel == 1:
        return "neighbouring pixels"
    return "neighbouring channels of a pixel" if g.m == 1 else "the same pixel"


STRATEGY = Direct()
