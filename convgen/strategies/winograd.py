"""Winograd's minimal filtering, nested in 2-D: fewer multiplications for a few more additions.

Tiles of m x m results of a 3x3 filter take (m + 2)^2 products a channel instead of 9 m^2. Either one kernel transforms,
multiplies and inverts a block of tiles in shared memory, or three kernels do so for a chunk of all tiles, of which the
second is one batched matrix product. The filter's transform depends on w alone. Axes with a single tap are left as
they are, so that 3x1 and 1x3 filters are transformed along one axis.
"""

from __future__ import annotations

import dataclasses

from convgen.errors import ConfigError
from convgen.gather import Gather, gather
from convgen.plan import Launch, Plan, Step
from convgen.problem import Conv, Direction
from convgen.space import Space
from convgen.strategies import common, descent, rules, winograd_cost, winograd_plan
from convgen.strategies.winograd_numerics import MMA_TERMS, numerics, require_admitted
from convgen.strategies.winograd_tiling import MOST_AXES, TAPS, Tiling, WinogradConfig
from convgen.target import Target

LARGEST_TILE = 6
MAX_CHUNKS = 1024
MAX_INDEX = (1 << 31) - 1

POINTS = ("0:1:-1", "0:1:-1:2", "0:1:-1:1/2", "0:1:-1:1/2:-2", "0:1:-1:2:-2")
"""Of F(2, 3), F(3, 3) and F(4, 3). Reciprocals with opposite signs grow errors less than {0, 1, -1, 2, -2}."""

PRODUCTS = ("fp32", "3xtf32", "tf32")
TENSOR_CORES_SINCE = (8, 0)
"""The first compute capability whose tensor cores multiply TF32."""

SEPARATE = WinogradConfig("separate", "0:1:-1:1/2:-2", "fp32", 128, 128, 8, 8, 8, 1, 1024)
FUSED = WinogradConfig("fused", "0:1:-1", "fp32", 64, 32, 8, 8, 8, 1, 1024)
SMALL = WinogradConfig("fused", "0:1:-1", "fp32", 16, 32, 4, 4, 4, 1, 1024)
STARTS = (
    SEPARATE,
    dataclasses.replace(SEPARATE, points="0:1:-1"),
    dataclasses.replace(SEPARATE, points="0:1:-1", product="3xtf32"),
    dataclasses.replace(SEPARATE, points="0:1:-1", workspace_mib=4096),
    FUSED,
    SMALL,
)
"""Where walks to the default begin: at the first legal config of either shape."""


class Winograd:
    """See the module's text."""

    solves = Conv
    name = "winograd"
    template = "conv/winograd.cu.j2"
    summary = "Winograd's transforms of 3-tap filters around one matrix product a component, fused or in three kernels"
    calibrated = True

    def why_not(self, problem: Conv, target: Target) -> str | None:
        reason = common.not_covered(problem)
        if reason is not None:
            return reason
        if problem.direction is Direction.WGRAD:
            return "in wgrad the output gradient plays the filter, whose taps are as many as the output has pixels"
        g = gather(problem)
        reason = _unsuitable_axes(g)
        if reason is not None:
            return reason
        if g.preimages:
            return (f"in the dgrad of pad_mode={problem.pad_mode.value} several padded positions read one pixel; "
                    "direct covers it")  # fmt: skip
        if g.is_empty or not g.has_terms:
            return "there is nothing to multiply; direct writes what is left"
        try:
            self._starts(problem, target)
        except ConfigError as error:
            return str(error)
        return None

    def space(self, problem: Conv, target: Target) -> Space:
        products = PRODUCTS if target.compute_capability >= TENSOR_CORES_SINCE else PRODUCTS[:1]
        return Space(
            WinogradConfig,
            {
                "kernels": ("separate", "fused"),
                "points": tuple(p for p in POINTS if any(_is_admitted(problem, p, q) for q in products)),
                "product": tuple(
                    product for product in products if any(_is_admitted(problem, p, product) for p in POINTS)
                ),
                "block_m": (16, 32, 64, 128),
                "block_n": (32, 64, 128),
                "block_k": (4, 8, 16),
                "thread_m": (1, 2, 4, 8, 16),
                "thread_n": (2, 4, 8, 16),
                "share": (1, 2, 3, 4, 5, 6),
                "workspace_mib": (16, 64, 256, 1024, 4096),
            },
        )

    def check(self, problem: Conv, config: WinogradConfig, target: Target) -> None:
        c = config
        rules.one_of(c, "kernels", ("separate", "fused"))
        rules.one_of(c, "product", PRODUCTS)
        rules.at_least_one(c)
        t = _tiling(problem, c)
        if t.transform.m < 2 or t.transform.m > LARGEST_TILE:
            raise ConfigError(f"points={c.points}: tiles of {t.transform.m} results; expected 2 to {LARGEST_TILE}: one "
                              "saves nothing, the errors of more leave no digits")  # fmt: skip
        for field in ("block_m", "block_n", "block_k", "thread_m", "thread_n"):
            value = getattr(c, field)
            if value & (value - 1):
                raise ConfigError(f"{field}={value}: expected a power of two, so that tiles are shared out evenly")
        if c.block_k < 4 or c.block_m < 4:
            raise ConfigError(f"block_m={c.block_m}, block_k={c.block_k}: expected at least 4, what an access brings")
        self._check_threads(t, target)
        rules.shared_fits("stages take", t.shared_bytes, target)
        require_admitted(t)
        self._check_sizes(t)

    def _check_threads(self, t: Tiling, target: Target) -> None:
        c = t.c
        if c.tensor_cores:
            self._check_tensor_cores(c, target)
        threads_n = c.block_n // c.thread_n
        warp_n = 4 if c.tensor_cores else min(threads_n, 8)
        if threads_n < 4 or c.block_m % (target.warp // warp_n * c.thread_m):
            raise ConfigError(f"block {c.block_m} x {c.block_n} of threads' {c.thread_m} x {c.thread_n}: a warp is "
                              "4 x 8 or 8 x 4 threads, so that its shared loads have no bank conflict")  # fmt: skip
        if c.share > 1 and not c.fused:
            raise ConfigError(f"share={c.share}: a block of kernels=separate has one component")
        if t.components % c.share:
            raise ConfigError(f"share={c.share}: expected a divisor of the {t.components} components")
        rules.block_fits((t.threads, 1, 1), target)
        limit = min(target.max_registers_per_thread, target.registers_per_sm // t.threads)
        if t.registers > limit:
            raise ConfigError(f"thread_m={c.thread_m}, thread_n={c.thread_n}, share={c.share}, block_k={c.block_k}: "
                              f"sums, operands and elements under way take about {t.registers} registers, a thread has "
                              f"{limit}")  # fmt: skip

    def _check_tensor_cores(self, c: WinogradConfig, target: Target) -> None:
        if target.compute_capability < TENSOR_CORES_SINCE:
            raise ConfigError(f"product={c.product}: expected fp32, the tensor cores of {target.arch} have no TF32")
        if c.block_k % MMA_TERMS or c.thread_m % 2 or c.thread_n % 2:
            raise ConfigError(f"block_k={c.block_k}, thread_m={c.thread_m}, thread_n={c.thread_n}: tensor cores take "
                              f"{MMA_TERMS} summed channels, and 2 x 2 results of a thread, at a time")  # fmt: skip

    def _check_sizes(self, t: Tiling) -> None:
        g, c = t.g, t.c
        if g.groups * max(t.padded_q, t.padded_m) * c.block_n > MAX_INDEX:
            raise ConfigError(f"block_n={c.block_n}: over {MAX_INDEX} elements of a component in a block of tiles")
        rules.grid_fits(t.problem, t.blocks(winograd_plan.product_blocks(t)), "larger tiles")
        if common.largest_extent(t.problem, t.blocks(c.block_n)) > MAX_INDEX:
            raise ConfigError(f"points={c.points}: more than {MAX_INDEX} tiles; use more points")
        if c.fused:
            return
        cap = c.workspace_mib << 20
        least = t.block_bytes * (t.most_blocks if t.chunk is None else 1)
        if least > cap:
            what = "the whole of a runtime batch" if t.chunk is None else "one block of tiles"
            raise ConfigError(f"workspace_mib={c.workspace_mib}: {what} takes {least} bytes transformed")
        if len(t.chunk_starts) > MAX_CHUNKS:
            raise ConfigError(f"workspace_mib={c.workspace_mib}: {len(t.chunk_starts)} chunks, and launching more than "
                              f"{MAX_CHUNKS} would take longer than the work")  # fmt: skip

    def default(self, problem: Conv, target: Target) -> WinogradConfig:
        ends = [descent.settled(self, problem, target, start) for start in self._starts(problem, target)]
        best: WinogradConfig = min(ends, key=lambda config: self.cost(problem, config, target))
        return best

    def _starts(self, problem: Conv, target: Target) -> list[WinogradConfig]:
        """The first legal config of either shape. Raises ConfigError, for the smallest, if there is none."""
        found: dict[str, WinogradConfig] = {}
        for config in STARTS:
            if config.kernels not in found and self._is_legal(problem, config, target):
                found[config.kernels] = config
        if not found:
            self.check(problem, SMALL, target)
        return list(found.values())

    def _is_legal(self, problem: Conv, config: WinogradConfig, target: Target) -> bool:
        try:
            self.check(problem, config, target)
        except ConfigError:
            return False
        return True

    def cost(self, problem: Conv, config: WinogradConfig, target: Target) -> float:
        return winograd_cost.seconds(_tiling(problem, config), target)

    def lower(self, problem: Conv, config: WinogradConfig, target: Target) -> Plan:
        t = _tiling(problem, config)
        launches = winograd_plan.launches(t)
        steps: tuple[Step, ...] = (launches["filter"][0], *launches["product"])
        if not config.fused:
            chunks = zip(launches["input"], launches["product"], launches["inverse"], strict=True)
            steps = (launches["filter"][0], *(launch for chunk in chunks for launch in chunk))
        return Plan(
            problem, self.name, config, target,
            template=self.template,
            constants=winograd_plan.constants(t, target, launches),
            kernels=tuple(dict.fromkeys(step.kernel for step in steps if isinstance(step, Launch))),
            steps=steps,
            workspace=winograd_plan.workspace(t),
            alignment={t.g.y.name: t.y_pack * t.g.y.dtype.itemsize} if t.y_pack > 1 else {},
            placements=winograd_plan.placements(t),
            numerics=numerics(t),
            notes=winograd_plan.notes(t),
            name=common.kernel_name(problem, self.name, config),
        )  # fmt: skip


def _is_admitted(problem: Conv, points: str, product: str) -> bool:
    try:
        require_admitted(_tiling(problem, dataclasses.replace(SEPARATE, points=points, product=product)))
    except ConfigError:
        return False
    return True


def _tiling(problem: Conv, config: WinogradConfig) -> Tiling:
    return Tiling(problem, gather(problem), config)


def _unsuitable_axes(g: Gather) -> str | None:
    transformed = [a for a in g.axes if a.taps == TAPS]
    if not transformed or any(a.taps not in (1, TAPS) for a in g.axes):
        taps = "x".join(str(a.taps) for a in g.axes)
        return f"filter={taps}: transforms are made for axes of {TAPS} taps, beside which others have 1"
    if len(transformed) > MOST_AXES:
        return f"along {len(transformed)} axes a tile of one channel has no room in a thread's registers"
    if any(a.divisor > 1 for a in g.axes):
        return "dgrad with a stride: neighbouring results read different taps, so one tile does not serve them alike"
    if any(a.step > 1 for a in transformed):
        return "a stride above 1: neighbouring results share no products, and sharing them is what Winograd saves by"
    if any(abs(a.spread) > 1 for a in transformed):
        return "a dilation above 1: neighbouring results read different pixels, so one tile does not serve them alike"
    return None


STRATEGY = Winograd()
