"""Convolution by fast Fourier transforms: overlapping tiles, each transformed, multiplied and transformed back at once.

The work no longer depends on the filter's size, only on how much of a tile its reach makes useless. Covers fprop and
dgrad in one and two dimensions; a dilated filter is one with zeros between its taps, a strided result is computed and
left out. The filters' spectra are a step of its own that depends on the weights alone.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

from convgen.errors import ConfigError
from convgen.gather import Gather, gather
from convgen.plan import Buffer, Launch, Param, Placement, Plan, WorkspaceArg
from convgen.problem import Conv, Direction
from convgen.space import Space
from convgen.strategies import common, descent, fft_cost, fft_error, fft_radix, operands, rules
from convgen.strategies import fft_tiling as tiling
from convgen.strategies.fft_tiling import FftConfig, Tiling
from convgen.strategies.operands import Operand
from convgen.target import Target

RADICES = (8, 16, 32)
REGISTERS = 255
MAX_SPECTRA_BYTES = 1 << 36


class Fft:
    """See the module's text."""

    solves = Conv
    name = "fft"
    template = "conv/fft.cu.j2"
    summary = "overlapping tiles transformed, multiplied by the filter's spectrum and transformed back in one kernel"
    calibrated = True

    def why_not(self, problem: Conv, target: Target) -> str | None:
        reason = common.not_covered(problem)
        if reason is not None:
            return reason
        if problem.direction is Direction.WGRAD:
            return ("in wgrad the output gradient plays the filter: as long as the image, and no tile holds both; "
                    "direct covers it")  # fmt: skip
        if problem.nd == 3:
            return "a tile of a volume that is worth transforming does not fit in shared memory; direct covers it"
        g = gather(problem)
        if g.preimages:
            return (f"dgrad of pad_mode={problem.pad_mode.value}: several padded positions read one pixel, which is no "
                    "convolution at the edges; direct covers it")  # fmt: skip
        if g.is_empty or not g.has_terms:
            return "there is nothing to multiply; direct writes what is left"
        start = _start(problem, target)
        if start is None:
            reach = " x ".join(str(a.reach) for a in g.axes)
            return f"no tile that the filter's reach of {reach} pixels leaves a result of fits in shared memory"
        return fft_error.beyond_strict(problem, g, fft_error.numerics(tiling.tiling(g, start)))

    def space(self, problem: Conv, target: Target) -> Space:
        g = gather(problem)
        *outer, inner = [tiling.lengths_worth(axis, tiling.zeros(g)) for axis in g.axes]
        return Space(
            FftConfig,
            {
                "product": ("fused", "batched") if _has_channels(g) else ("fused",),
                "tile_h": outer[0] if outer else (1,),
                "tile_w": inner,
                "radix": RADICES,
                "threads": (32, 64, 96, 128, 192, 256, 384, 512, 768, 1024),
                "tiles": (1, 2, 4, 8, 16),
                "tile_channel": common.up_to(g.m, (1, 2, 4, 8)),
            },
        )

    def check(self, problem: Conv, config: FftConfig, target: Target) -> None:
        g = gather(problem)
        c = config
        rules.one_of(c, "product", ("fused", "batched"))
        rules.at_least_one(c)
        if problem.nd == 1 and c.tile_h != 1:
            raise ConfigError(f"tile_h={c.tile_h}: the problem has one axis, along which tile_w goes")
        if c.radix not in RADICES:
            raise ConfigError(f"radix={c.radix}: expected one of {', '.join(map(str, RADICES))}")
        if c.threads % target.warp:
            raise ConfigError(f"threads={c.threads}: expected whole warps of {target.warp}")
        rules.block_fits((c.threads, 1, 1), target)
        if c.tile_channel > g.m:
            raise ConfigError(f"tile_channel={c.tile_channel}: a group has {g.m} result channels")
        names = ("tile_h", "tile_w")[-problem.nd :]
        for name, axis, folded in zip(names, g.axes, (True, False), strict=False):
            length = getattr(c, name)
            if length > tiling.LENGTHS[-1]:
                raise ConfigError(f"{name}={length}: at most {tiling.LENGTHS[-1]}")
            if (folded and length % 2) or not fft_radix.is_smooth(length):
                even = "even, " if folded else ""
                raise ConfigError(f"{name}={length}: expected {even}a product of 2, 3, 5 and 7, what transforms are of")
            if length < axis.reach and tiling.Line(axis, length, folded, (), tiling.zeros(g)).results < 1:
                raise ConfigError(f"{name}={length}: the filter reaches over {axis.reach}, so there is no result")
        t = tiling.tiling(g, c)
        if not all(line.radices for line in t.lines):
            raise ConfigError(f"tile {c.tile_h} x {c.tile_w}: too few points to be transformed in passes")
        if t.registers > min(target.registers_per_sm // c.threads, REGISTERS):
            raise ConfigError(f"radix={c.radix}, threads={c.threads}, tile_channel={c.tile_channel}: a thread would "
                              f"keep about {t.registers} registers")  # fmt: skip
        rules.shared_fits("the tiles take", t.shared_bytes, target)
        if c.is_batched and t.product_registers > REGISTERS:
            raise ConfigError(f"tile_channel={c.tile_channel}: a thread of the product would keep about "
                              f"{t.product_registers} registers")  # fmt: skip
        grids = (t.transforms(g.q_size), t.product_blocks, t.transforms(g.m)) if c.is_batched else (t.blocks,)
        for blocks in grids:
            rules.grid_fits(problem, blocks, "larger tiles")
        if c.is_batched:
            nbytes = common.largest_extent(problem, t.spectra_bytes(g.q_size + g.m))
            if nbytes > MAX_SPECTRA_BYTES:
                raise ConfigError(f"product=batched: the spectra of all tiles take {nbytes} bytes; use fused")
        if 8 * t.points * t.spectra > MAX_SPECTRA_BYTES:
            raise ConfigError(f"the filters' spectra take {8 * t.points * t.spectra} bytes; use smaller tiles")
        reason = fft_error.beyond_strict(problem, g, fft_error.numerics(t))
        if reason is not None:
            raise ConfigError(f"tile {c.tile_h} x {c.tile_w}: {reason}")

    def default(self, problem: Conv, target: Target) -> FftConfig:
        start = _start(problem, target)
        ends = [descent.settled(self, problem, target, start)]
        if start is not None and _has_channels(gather(problem)):
            batched = dataclasses.replace(start, product="batched", tile_channel=min(gather(problem).m, 4))
            try:
                self.check(problem, batched, target)
            except ConfigError:
                pass
            else:
                ends.append(descent.settled(self, problem, target, batched))
        best: FftConfig = min(ends, key=lambda end: self.cost(problem, end, target))
        return best

    def cost(self, problem: Conv, config: FftConfig, target: Target) -> float:
        return fft_cost.seconds(problem, tiling.tiling(gather(problem), config), target)

    def lower(self, problem: Conv, config: FftConfig, target: Target) -> Plan:
        g = gather(problem)
        c = config
        t = tiling.tiling(g, c)
        stored = Param("spectra", "float*"), WorkspaceArg("spectra")
        name = common.kernel_name(problem, self.name, c, "spectra")
        spectra = operands.launch(name, (operands.w(g), stored), (t.spectra, 1, 1), (c.threads, 1, 1), 8 * t.plane)

        rest = _batched(problem, t) if c.is_batched else (_fused(problem, t),)
        main = rest[-1]
        numerics = fft_error.numerics(t)
        first = t.passes[0]
        constants: dict[str, Any] = common.gather_constants(problem, g) | {
            "kernel": main.kernel.name,
            "params": main.kernel.params,
            "spectrum_kernel": spectra.kernel.name,
            "spectrum_params": spectra.kernel.params,
            "forward_kernel": rest[0].kernel.name,
            "forward_params": rest[0].kernel.params,
            "product_kernel": rest[-2].kernel.name if c.is_batched else "",
            "product_params": rest[-2].kernel.params if c.is_batched else (),
            "product_threads": tiling.PRODUCT_THREADS,
            "product_tiles": tiling.PRODUCT_TILES,
            "product_warps_m": t.product_warps_m,
            "product": c.product,
            "config": str(c),
            "threads": c.threads,
            "tiles": c.tiles,
            "tile_m": c.tile_channel,
            "lines": t.lines,
            "passes": t.passes,
            "pitch": t.pitch,
            "plane": t.plane,
            "gap": t.gap,
            "rounds": t.rounds,
            "roots": sum(len(p.turns) for p in t.passes),
            "fold_rotations": [fft_radix.rotation(j, -j, 4 * first.radix) for j in range(1, first.radix)],
            "butterflies": fft_radix.needed(tuple(p.radix for p in t.passes)),
            "scale": fft_radix.literal(1 / t.points),
            "resident": fft_cost.resident(t, target),
            "steps": numerics.steps,
        }
        return Plan(
            problem, self.name, c, target,
            template=self.template,
            constants=constants,
            kernels=(spectra.kernel, *(launch.kernel for launch in rest)),
            steps=(spectra, *rest),
            workspace=(Buffer("spectra", 8 * t.points * t.spectra), *_between(t)),
            placements=_placements(t),
            numerics=numerics,
        )  # fmt: skip


def _has_channels(g: Gather) -> bool:
    """Whether there are sums over channels for which transformed tiles are worth storing."""
    return g.q_size > 1 and g.m > 1


# --- kernels -----------------------------------------------------------------------------------------------

_FILTERS: Operand = (Param("spectra", "const float*"), WorkspaceArg("spectra"))


def _fused(problem: Conv, t: Tiling) -> Launch:
    """Transform, product and inverse in one."""
    g, c = t.g, t.c
    taken = (operands.x(g), operands.w(g), _FILTERS, *operands.epilogue(problem), operands.y(g))
    name = common.kernel_name(problem, "fft", c)
    taken += operands.runtime_batch(g)
    return operands.launch(name, taken, (t.blocks, 1, 1), (c.threads, 1, 1), t.shared_bytes)


def _batched(problem: Conv, t: Tiling) -> tuple[Launch, ...]:
    """Transform, products and inverse, each in a kernel of its own."""
    g, c = t.g, t.c
    threads, batch = (c.threads, 1, 1), operands.runtime_batch(g)

    def named(part: str) -> str:
        return common.kernel_name(problem, "fft", c, part)

    def buffer(name: str, ctype: str) -> Operand:
        return Param(name, ctype), WorkspaceArg(name)

    forward = operands.launch(
        named("forward"), (operands.x(g), buffer("transformed", "float*"), *batch),
        (t.transforms(g.q_size), 1, 1), threads, t.shared_bytes,
    )  # fmt: skip
    product = operands.launch(
        named("product"), (buffer("transformed", "const float*"), _FILTERS, buffer("products", "float*"), *batch),
        (t.product_blocks, 1, 1), (tiling.PRODUCT_THREADS, 1, 1),
    )  # fmt: skip
    last = (operands.x(g), operands.w(g), buffer("products", "const float*"), *operands.epilogue(problem))
    inverse = operands.launch(
        named("inverse"), (*last, operands.y(g), *batch), (t.transforms(g.m), 1, 1), threads, t.shared_bytes
    )
    return forward, product, inverse


def _between(t: Tiling) -> tuple[Buffer, ...]:
    """The buffers between the kernels of a batched product."""
    if not t.c.is_batched:
        return ()
    return Buffer("transformed", t.spectra_bytes(t.g.q_size)), Buffer("products", t.spectra_bytes(t.g.m))


# --- the default ---------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=512)
def _start(problem: Conv, target: Target) -> FftConfig | None:
    """A legal config but for its accuracy: the tile that makes a result with the least work, of those that leave room
    for two blocks a multiprocessor if any does; None if there is no tile."""
    g = gather(problem)
    choices = [tiling.lengths_worth(axis, tiling.zeros(g)) for axis in g.axes]
    heights = choices[0] if problem.nd == 2 else (1,)
    best: tuple[tuple[bool, float], FftConfig] | None = None
    for height in heights:
        for width in choices[-1]:
            points = height * width // 2
            if points < 4 or points > tiling.most_points(target):
                continue
            threads = min(max(common.power_of_two_at_least(points) // 16, 32), 1024)
            config = FftConfig("fused", height, width, 16 if points > 8192 else 8, threads, 1, 1)
            t = tiling.tiling(g, config)
            if not all(line.radices for line in t.lines) or t.shared_bytes > target.shared_per_block:
                continue
            crowded = 2 * (t.shared_bytes + target.shared_reserved) > target.shared_per_sm
            ranked = (crowded, t.image_tiles * float(t.transform_flops + 100 * threads)), config
            best = ranked if best is None or ranked[0] < best[0] else best
    return best[1] if best else None


def _placements(t: Tiling) -> tuple[Placement, ...]:
    g = t.g
    pixels = " x ".join(str(line.length) for line in t.lines)
    return (
        Placement(g.x.name, "registers", g.x.nbytes, f"read once a tile of {pixels}, into its first transforms"),
        Placement("tile", "shared", t.shared_bytes, "complex, folded to half as many points; transformed in place"),
        Placement("spectra", "L1/L2", 8 * t.points * t.spectra, "of every filter, read once a tile that it multiplies"),
        Placement("roots of unity", "L1/L2", 8 * sum(len(p.turns) * p.step for p in t.passes), "a table of the source"),
        Placement("sums", "registers", 8 * t.rounds * t.passes[-1].radix * t.c.tile_channel,
                  "over the channels, of a thread's part of the last pass; the inverse begins with them"),
    )  # fmt: skip


STRATEGY = Fft()
