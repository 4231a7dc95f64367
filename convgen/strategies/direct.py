"""Direct convolution: a thread keeps a few results in registers and gathers their inputs from global memory.

Covers every valid Conv of fp32, tf32, fp16 and bf16, so that something always applies. Its simplest config (every
tile 1, filter in global memory) is the textbook kernel: one thread, one output.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from convgen.errors import ConfigError
from convgen.gather import NARROW, Axis, Gather, gather
from convgen.plan import (
    Arg,
    BatchExtent,
    Buffer,
    CopyToSymbol,
    Extent,
    Kernel,
    Launch,
    Param,
    Placement,
    Plan,
    Step,
    TensorArg,
    TextureArg,
    WorkspaceArg,
)
from convgen.problem import Conv, PadMode
from convgen.space import Config, Space
from convgen.strategies import common
from convgen.target import Target

REDUCE_THREADS = 256
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
        for field, allowed in (("along_x", ("channel", "column")), ("filter", ("global", "constant", "shared")),
                               ("input", ("global", "texture"))):  # fmt: skip
            if getattr(c, field) not in allowed:
                raise ConfigError(f"{field}={getattr(c, field)}: expected {' or '.join(allowed)}")
        numbers = ("threads_channel", "threads_column", "tile_b", "tile_channel", "tile_position", "vector",
                   "split_q", "split_taps")  # fmt: skip
        for field in numbers:
            if getattr(c, field) < 1:
                raise ConfigError(f"{field}={getattr(c, field)}: expected at least 1")

        threads = c.threads_channel * c.threads_column
        if threads > target.max_threads_per_block:
            raise ConfigError(
                f"threads_channel*threads_column={threads}: a block has at most {target.max_threads_per_block}"
            )
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
        self._check_filter(problem, g, c, target)
        if c.tile_b > 1 and g.batch is None:
            raise ConfigError(f"tile_b={c.tile_b}: the batch is known at run time only, so a thread takes one element")
        if c.input == "texture":
            self._check_texture(problem, g, c)
        blocks = common.largest_extent(problem, _grid_x(g, c))
        if blocks > common.MAX_GRID_X:
            raise ConfigError(f"{blocks} blocks: a grid has at most {common.MAX_GRID_X}; use larger tiles")

    def _check_vector(self, g: Gather, c: DirectConfig) -> None:
        if c.vector not in (2, 4, 8):
            raise ConfigError(f"vector={c.vector}: expected 1, 2, 4 or 8")
        if not _packs_q(g, c.vector):
            raise ConfigError(
                f"vector={c.vector}: summed channels must be neighbours in {g.x.name} and a multiple of it"
            )
        if g.m == 1 and c.tile_channel > 1:
            raise ConfigError("vector over 1 with several groups a thread: each group would need its own vector")

    def _check_filter(self, problem: Conv, g: Gather, c: DirectConfig, target: Target) -> None:
        if c.filter == "constant":
            if g.w.nbytes > target.constant_bytes:
                raise ConfigError(
                    f"filter=constant: {g.w.name} has {g.w.nbytes} bytes, constant memory {target.constant_bytes}"
                )
            if g.w.size == 0 or g.q is None:
                raise ConfigError(f"filter=constant: the size of {g.w.name} must be fixed and not zero")
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
            nbytes = _shared_bytes(g, c)
            if nbytes > target.shared_per_block:
                raise ConfigError(
                    f"filter=shared: the block's channels need {nbytes} bytes, a block has {target.shared_per_block}"
                )
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
        vector = _largest((8, 4, 2), lambda v: _packs_q(g, v))
        results = max(g.batch_size * g.channels * g.out, 1)
        plenty = target.sm_count * 2048
        extent = g.axes[-2 if len(g.axes) > 1 and not channels_contiguous else -1].out
        tile_position = 1
        if not g.preimages and results >= 8 * plenty:
            tile_position = _largest((8, 4, 2) if g.channels == 1 else (4, 2), lambda t: extent >= t)
        tile_channel = _largest((8, 4, 2), lambda t: g.channels >= t and results >= t * tile_position * plenty)
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
        operands = (pixels + taps * c.tile_channel) / (taps * c.tile_channel * c.tile_position)
        # Measured on an H200: loads bound the kernel; lanes that differ in channels read the filter apart.
        efficiency = min(0.5, 0.16 / operands / (3 if c.along_x == "channel" else 1))
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
        splits = c.split_q * c.split_taps
        in_t = g.x.dtype.ctype
        runtime_params, runtime_args = common.batch_param(g)
        epilogue_params, epilogue_args = common.epilogue_params(problem), common.epilogue_args(problem)

        x_param, x_arg = Param("x", f"const {in_t}*"), _input(g, c)
        if c.input == "texture":
            x_param = Param("x", "cudaTextureObject_t")
        w_params, w_args = (
            ((Param("w", f"const {in_t}*"),), (TensorArg(g.w.name),)) if c.filter != "constant" else ((), ())
        )
        y_param, y_arg = Param("y", f"{g.y.dtype.ctype}*"), TensorArg(g.y.name)

        name, reduce_name = common.kernel_name(problem, self.name), common.kernel_name(problem, self.name, "reduce")
        if splits > 1:
            main = Kernel(name, (x_param, *w_params, Param("partial", "float*"), *runtime_params))
            main_args = (x_arg, *w_args, WorkspaceArg("partial"), *runtime_args)
        else:
            main = Kernel(name, (x_param, *w_params, *epilogue_params, y_param, *runtime_params))
            main_args = (x_arg, *w_args, *epilogue_args, y_arg, *runtime_args)
        reduce = Kernel(reduce_name, (Param("partial", "const float*"), *epilogue_params, y_param, *runtime_params))

        steps: list[Step] = []
        if c.filter == "constant":
            steps.append(CopyToSymbol("filter_constant", TensorArg(g.w.name), g.w.nbytes))
        block = (
            (c.threads_channel, c.threads_column, 1)
            if c.along_x == "channel"
            else (c.threads_column, c.threads_channel, 1)
        )
        shared = _shared_bytes(g, c) if c.filter == "shared" else 0
        steps.append(Launch(main, (_grid_x(g, c), splits, 1), block, main_args, shared))
        if splits > 1:
            reduce_args = (WorkspaceArg("partial"), *epilogue_args, y_arg, *runtime_args)
            grid = (common.per_batch(g, g.y.size, by=REDUCE_THREADS), 1, 1)
            steps.append(Launch(reduce, grid, (REDUCE_THREADS, 1, 1), reduce_args))

        constants = common.gather_constants(problem, g) | {
            "kernel": name,
            "reduce_kernel": reduce_name,
            "params": main.params,
            "reduce_params": reduce.params,
            "config": str(c),
            "offset_t": "long long" if g.wide or splits * g.y.size > NARROW else "int",
            "channels_fastest": c.along_x == "channel",
            "threads_channel": c.threads_channel,
            "threads_column": c.threads_column,
            "tile_b": c.tile_b,
            "tile_g": _tile_g(g, c),
            "tile_m": _tile_m(g, c),
            "tile_o": c.tile_position,
            "tile_axis": _tile_axis(g, c).name,
            "windowed": _window(g, c) > 0,
            "window": _window(g, c),
            "window_lead": max(0, -_tile_axis(g, c).spread * (_tile_axis(g, c).taps - 1)),
            "vector": c.vector,
            "filter_home": c.filter,
            "filter_elements": g.w.size,
            "filter_packed": common.dense_pack(c.vector, g.w_q, _other_w_strides(g)),
            "channels_packed": _reads_channel_packs(g, c),
            "texture": c.input == "texture",
            "parts": splits,
            "split_q": c.split_q,
            "split_taps": c.split_taps,
            "split_axis": _split_axis(g),
            "tap_loops": _tap_loops(g, c),
            "unrolled": _unrolled(g, c),
            "preimages": g.preimages,
            "source_border": "kZeros" if g.terms_vanish else "kBorder",
            "store": _store(g, c),
            "result_elements": "static_cast<offset_t>(batch) * kYBatch" if g.batch is None else g.y.size,
            "channel_stride": g.y.strides[0 if g.y.name == "dw" else 1],
        }
        return Plan(
            problem, self.name, c, target,
            template="conv/direct.cu.j2",
            constants=constants,
            kernels=(main, reduce) if splits > 1 else (main,),
            steps=() if g.is_empty else tuple(steps),
            workspace=(Buffer("partial", common.per_batch(g, 4 * splits * g.y.size)),) if splits > 1 else (),
            alignment=_alignment(g, c),
            placements=_placements(g, c),
        )  # fmt: skip


def _input(g: Gather, c: DirectConfig) -> Arg:
    if c.input == "global":
        return TensorArg(g.x.name)
    height, width = (axis.source for axis in g.axes)
    return TextureArg(g.x.name, width, g.batch_size * height, width * g.x.dtype.itemsize)


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


def _other_x_strides(g: Gather) -> tuple[int, ...]:
    batch = (g.x_batch,) if g.batch_size > 1 else ()
    group = (g.x_group,) if g.groups > 1 else ()
    return (*batch, *group, *(a.x_stride for a in g.axes if a.source > 1))


def _other_w_strides(g: Gather) -> tuple[int, ...]:
    group = (g.w_group,) if g.groups > 1 else ()
    m = (g.w_m,) if g.m > 1 else ()
    return (*group, *m, *(a.w_stride for a in g.axes if a.taps > 1))


def _other_y_strides(g: Gather) -> tuple[int, ...]:
    batch = (g.y_batch,) if g.batch_size > 1 else ()
    return (*batch, *(a.y_stride for a in g.axes if a.out > 1))


def _packs_q(g: Gather, count: int) -> bool:
    """True if `count` summed channels lie together in x, aligned, within the 16 bytes of a load."""
    fits = g.q is not None and g.q >= count and g.q % count == 0 and count * g.x.dtype.itemsize <= 16
    return fits and common.dense_pack(count, g.x_q, _other_x_strides(g))


def _reads_channel_packs(g: Gather, c: DirectConfig) -> bool:
    """True if the groups of a thread are neighbours in x, so that one load brings a pixel of each."""
    t = _tile_g(g, c)
    strides = tuple(s for s in _other_x_strides(g) if s != g.x_group) + ((g.x_q,) if g.q_size > 1 else ())
    return t > 1 and t * g.x.dtype.itemsize <= 16 and g.groups % t == 0 and common.dense_pack(t, g.x_group, strides)


def _store(g: Gather, c: DirectConfig) -> str:
    """What a store writes: "channels" or "positions" that are neighbours in y, else "elements"."""
    if c.split_q * c.split_taps > 1:
        return "elements"
    size = g.y.dtype.itemsize
    step, extent = (g.y_group, g.groups) if g.m == 1 else (g.y_m, g.m)
    t = c.tile_channel
    groups = (g.y_group,) if g.m > 1 and g.groups > 1 else ()
    if t > 1 and t * size <= 16 and extent % t == 0 and common.dense_pack(t, step, (*_other_y_strides(g), *groups)):
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
        operands = (pixels * _tile_g(g, c) + taps * c.tile_channel) * c.vector
        too_many = operands > UNROLLED_OPERANDS and not (window and axis is _tile_axis(g, c))
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
        "constant": "warp-uniform: every lane reads one address, served in one cycle beside the FMA",
        "shared": "read by every thread of the block; one copy from L2 a block",
        "global": "read-only, " + ("warp-uniform, " if uniform else "") + "kept by L1 and L2",
    }
    inputs = {
        "texture": "2-D cache lines and a zero border in hardware",
        "global": "neighbouring threads read neighbouring pixels; taps overlap in L1",
    }
    return (
        Placement(g.x.name, "texture" if c.input == "texture" else "L1/L2", g.x.nbytes, inputs[c.input]),
        Placement(g.w.name, "L1/L2" if c.filter == "global" else c.filter, g.w.nbytes, homes[c.filter]),
        Placement("sums", "registers", 4 * c.tile_channel * c.tile_position, "one fp32 a result, written once"),
    )


def _largest(values: tuple[int, ...], fits: Callable[[int], bool]) -> int:
    """The first of the (descending) values that fits, else 1."""
    return next((v for v in values if fits(v)), 1)


STRATEGY = Direct()
