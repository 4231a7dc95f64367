"""Rules that configs of several strategies keep. Each raises ConfigError that names the value and the limit."""

from __future__ import annotations

import math

from convgen.errors import ConfigError
from convgen.gather import Gather
from convgen.plan import Extent
from convgen.problem import Accuracy, Conv, DType, Problem
from convgen.space import Config
from convgen.strategies import common
from convgen.target import Target

MAX_GRID_X = (1 << 31) - 1
MAX_BLOCK_Z = 64


def sums_are_strict(problem: Conv, rate: float, length: int) -> None:
    """Tensor cores that err by `rate` of |x| * |w| are admitted by the problem's accuracy, of sums of that length."""
    if problem.accuracy is not Accuracy.FAST and not problem.dtype.is_integer and rate > length * DType.FP32.eps:
        raise ConfigError(
            f"accuracy=strict: tensor cores may err by {rate:.2e} of |x| * |w|, the direct kernel's sum of "
            f"{length} terms by {length * DType.FP32.eps:.2e}; accuracy=fast admits it"
        )


def one_of(config: Config, field: str, allowed: tuple[str, ...]) -> None:
    """The field is one of these words."""
    value = getattr(config, field)
    if value not in allowed:
        raise ConfigError(f"{field}={value}: expected {', '.join(allowed[:-1])} or {allowed[-1]}")


def at_least_one(config: Config, but: str = "") -> None:
    """No number of the config is below 1; the field `but` may be 0."""
    for field, value in config.as_dict().items():
        least = 0 if field == but else 1
        if isinstance(value, int) and value < least:
            raise ConfigError(f"{field}={value}: expected at least {least}")


def block_fits(block: tuple[int, int, int], target: Target) -> None:
    """A block of that shape can be launched."""
    threads = math.prod(block)
    if threads > target.max_threads_per_block:
        raise ConfigError(f"{threads} threads: a block has at most {target.max_threads_per_block}")
    if block[2] > MAX_BLOCK_Z:
        raise ConfigError(f"{block[2]} threads along z: a block has at most {MAX_BLOCK_Z} threads along z")


def grid_fits(problem: Problem, blocks: Extent, remedy: str) -> None:
    """That many blocks can be launched, at the largest batch."""
    most = common.largest_extent(problem, blocks)
    if most > MAX_GRID_X:
        raise ConfigError(f"{most} blocks: a grid has at most {MAX_GRID_X}; use {remedy}")


def shared_fits(what: str, nbytes: int, target: Target) -> None:
    """`what` ("the core takes") fits in a block's shared memory."""
    if nbytes > target.shared_per_block:
        raise ConfigError(f"{what} {nbytes} bytes of shared memory, a block has {target.shared_per_block}")


def constant_fits(g: Gather, target: Target) -> None:
    """The filter fits in constant memory."""
    if g.w.nbytes > target.constant_bytes:
        raise ConfigError(
            f"filter=constant: {g.w.name} has {g.w.nbytes} bytes, constant memory {target.constant_bytes}"
        )
    if g.w.size == 0 or g.q is None:
        raise ConfigError(f"filter=constant: the size of {g.w.name} must be fixed and not zero")
