"""Direct convolution: a thread keeps a few results in registers and gathers their inputs from global memory.

Covers every valid Conv of fp32, tf32, fp16, bf16 and 8-bit integers, so that something always applies. Its simplest
config (every tile 1, filter in global memory) is the textbook kernel: one thread, one output.
"""

from __future__ import annotations

from typing import Any

from convgen.errors import ConfigError
from convgen.gather import NARROW, Gather, gather
from convgen.plan import Kernel, Launch, Numerics, Param, Placement, Plan, TextureArg
from convgen.problem import Conv, PadMode
from convgen.space import Space
from convgen.strategies import common, descent, direct_cost, operands, partial_sums, rules
from convgen.strategies import direct_tiling as tiling
from convgen.strategies.direct_tiling import DirectConfig
from convgen.strategies.operands import Operand
from convgen.target import Target

MAX_SPLITS = 64
TEXTURE_WIDTH, TEXTURE_HEIGHT, TEXTURE_PITCH = 131072, 65000, 32


class Direct:
    """See the module's text."""

    solves = Conv
    name = "direct"
    template = "conv/direct.cu.j2"
    summary = "one or several outputs a thread, inputs straight from global memory; covers every Conv"
    calibrated = True

    def why_not(self, problem: Conv, target: Target) -> str | None:
        return common.not_covered(problem, integers=True)

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
                "split_taps": tuple(s for s in (1, 2, 4, 8, 16, 32) if s == 1 or s <= tiling.split_axis_taps(g)),
            },
        )

    def check(self, problem: Conv, config: DirectConfig, target: Target) -> None:
        g = gather(problem)
        c = config
        rules.one_of(c, "along_x", ("channel", "column"))
        rules.one_of(c, "filter", ("global", "constant", "shared"))
        rules.one_of(c, "input", ("global", "texture"))
        rules.at_least_one(c)
        rules.block_fits(tiling.block(c), target)
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
        if c.split_q > max(g.q_size, 1) or c.split_taps > tiling.split_axis_taps(g):
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
        rules.grid_fits(problem, tiling.grid_x(g, c), "larger tiles")

    def _check_vector(self, g: Gather, c: DirectConfig) -> None:
        if c.vector not in (2, 4, 8):
            raise ConfigError(f"vector={c.vector}: expected 1, 2, 4 or 8")
        if not tiling.packs_q(g, c.vector):
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
            rules.shared_fits("filter=shared: the block's channels take", tiling.shared_bytes(g, c), target)
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
        if g.x.dtype.is_integer:
            raise ConfigError("input=texture: a fetch brings a float, which is no integer to sum")
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
        settled: DirectConfig = descent.settled(self, problem, target, self._start(problem, target))
        return settled

    def _start(self, problem: Conv, target: Target) -> DirectConfig:
        g = gather(problem)
        channels_contiguous = (g.y_m if g.m > 1 else g.y_group) == 1 and g.channels > 1
        vector = common.largest((8, 4, 2), lambda v: tiling.packs_q(g, v))
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
        split_taps = common.power_of_two_at_most(min(wanted, tiling.split_axis_taps(g), 32, terms // 256))
        most = min(wanted // split_taps, MAX_SPLITS // split_taps, g.q_size // vector, terms // split_taps // 256)
        split_q = common.power_of_two_at_most(most)
        return DirectConfig(*shape, 1, tile_channel, tile_position, vector, "global", "global", split_q, split_taps)

    def cost(self, problem: Conv, config: DirectConfig, target: Target) -> float:
        return direct_cost.seconds(problem, gather(problem), config, target)

    def lower(self, problem: Conv, config: DirectConfig, target: Target) -> Plan:
        g = gather(problem)
        c = config
        parts = c.split_q * c.split_taps
        main, reduce = self._main(problem, g, c), partial_sums.reduce(problem, g, self.name, c)
        launches = (main, reduce) if parts > 1 else (main,)
        return Plan(
            problem, self.name, c, target,
            template=self.template,
            constants=self._constants(problem, g, c, main.kernel) | partial_sums.constants(g, reduce, parts),
            kernels=tuple(launch.kernel for launch in launches),
            steps=() if g.is_empty else (*operands.filter_copy(g, c.filter), *launches),
            workspace=partial_sums.workspace(g, parts),
            alignment=_alignment(g, c),
            placements=_placements(g, c),
            numerics=common.EXACT if problem.dtype.is_integer else Numerics(),
            name=main.kernel.name,
        )  # fmt: skip

    def _main(self, problem: Conv, g: Gather, c: DirectConfig) -> Launch:
        parts = c.split_q * c.split_taps
        stored = (partial_sums.stored(g),) if parts > 1 else (*operands.epilogue(problem), operands.y(g))
        taken = (_input(g, c), *operands.placed_filter(g, c.filter), *stored, *operands.runtime_batch(g))
        shared = tiling.shared_bytes(g, c) if c.filter == "shared" else 0
        grid = (tiling.grid_x(g, c), parts, 1)
        return operands.launch(common.kernel_name(problem, self.name, c), taken, grid, tiling.block(c), shared)

    def _constants(self, problem: Conv, g: Gather, c: DirectConfig, kernel: Kernel) -> dict[str, Any]:
        tiled = tiling.tile_axis(g, c)
        partial = c.split_q * c.split_taps * common.most_results(problem, g)
        return common.gather_constants(problem, g) | {
            "kernel": kernel.name,
            "params": kernel.params,
            "config": str(c),
            "w_t": common.filter_type(g),
            "offset_t": "long long" if g.wide or partial > NARROW else "int",
            "channels_fastest": c.along_x == "channel",
            "threads_channel": c.threads_channel,
            "threads_column": c.threads_column,
            "tile_b": c.tile_b,
            "tile_g": tiling.tile_g(g, c),
            "tile_m": tiling.tile_m(g, c),
            "tile_o": c.tile_position,
            "tile_axis": tiled.name,
            "window": tiling.window(g, c),
            "window_lead": max(0, -tiled.spread * (tiled.taps - 1)),
            "vector": c.vector,
            "filter_home": c.filter,
            "filter_elements": g.w.size,
            "filter_packed": common.dense_pack(c.vector, g.w_q, tiling.other_w_strides(g)),
            "channels_packed": tiling.reads_channel_packs(g, c),
            "texture": c.input == "texture",
            "split_q": c.split_q,
            "split_taps": c.split_taps,
            "split_axis": tiling.split_axis(g),
            "tap_loops": tiling.tap_loops(g, c),
            "unrolled": tiling.unrolled(g, c),
            "preimages": g.preimages,
            "source_border": "kZeros" if g.terms_vanish else "kBorder",
            "store": tiling.store(g, c),
        }


def _input(g: Gather, c: DirectConfig) -> Operand:
    if c.input == "global":
        return operands.x(g)
    height, width = (axis.source for axis in g.axes)
    texture = TextureArg(g.x.name, width, g.batch_size * height, width * g.x.dtype.itemsize)
    return Param("x", "cudaTextureObject_t"), texture


def _alignment(g: Gather, c: DirectConfig) -> dict[str, int]:
    alignment = {}
    x_pack = c.vector if c.vector > 1 else tiling.tile_g(g, c) if tiling.reads_channel_packs(g, c) else 1
    if x_pack > 1:
        alignment[g.x.name] = x_pack * g.x.dtype.itemsize
    if c.vector > 1 and c.filter == "global" and common.dense_pack(c.vector, g.w_q, tiling.other_w_strides(g)):
        alignment[g.w.name] = c.vector * g.w.dtype.itemsize
    pack = {"channels": c.tile_channel, "positions": c.tile_position, "elements": 1}[tiling.store(g, c)]
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
        common.sums_placement(c.tile_channel * c.tile_position, "int32" if g.x.dtype.is_integer else "fp32"),
    )


def _neighbours(g: Gather, c: DirectConfig) -> str:
    if c.along_x == "column" or c.threads_channel == 1:
        return "neighbouring pixels"
    return "neighbouring channels of a pixel" if g.m == 1 else "the same pixel"


STRATEGY = Direct()
