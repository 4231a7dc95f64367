"""What the strategies for attention share: names, extents, operands, and the constants of templates/attention."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from convgen.plan import Arg, Extent, Param, SizeArg, SizeExtent, SizeFactor, TensorArg
from convgen.problem import Align, Attention, Direction, DType, RuntimeSize, Varlen
from convgen.space import Config
from convgen.strategies.operands import Operand

DTYPES = (DType.FP32, DType.TF32, DType.FP16, DType.BF16)

MAX_LENGTH = 1 << 29
"""Of a sequence: kernels keep a query's and a key's number, and a window beside it, in 32 bits."""

_HEADERS = {"float": "device/fp32.cuh", "__half": "device/fp16.cuh", "__nv_bfloat16": "device/bf16.cuh"}
_SIZES = ("batch", "seq_q", "seq_kv")


def not_covered(problem: Attention) -> str | None:
    """Why no kernel computes the problem; None if one can."""
    if problem.direction is not Direction.FPROP:
        return "the gradients of attention have no kernel yet"
    if problem.varlen is not Varlen.NONE or problem.paged:
        what = f"varlen={problem.varlen.value}" if problem.varlen is not Varlen.NONE else f"paged={problem.paged}"
        return f"{what} has no kernel yet; a mask of kind key hides the keys that a padded sequence lacks"
    for role, dtype in (("dtype", problem.dtype), ("out_dtype", problem.out_dtype)):
        if dtype not in DTYPES:
            return f"{role}={dtype.value} has no kernel yet; attention computes {', '.join(d.value for d in DTYPES)}"
    longest = max(largest_size(problem, name) for name in _SIZES)
    if max(longest, problem.heads_q) > MAX_LENGTH:
        return f"a size of {longest} is beyond the {MAX_LENGTH} that kernels count to"
    return None


def kernel_name(problem: Attention, strategy: str, config: Config, part: str = "") -> str:
    """A name a profiler can show; a digest tells apart what it leaves out."""
    batch, queries, keys = (
        "any" if isinstance(size, RuntimeSize) else size for size in (problem.batch, problem.seq_q, problem.seq_kv)
    )
    name = f"attention_{problem.direction.value}_{strategy}{'_' + part if part else ''}"
    name += f"_b{batch}h{problem.heads_q}"
    if problem.heads_kv != problem.heads_q:
        name += f"kv{problem.heads_kv}"
    name += f"q{queries}k{keys}d{problem.head_dim}"
    if problem.head_dim_v != problem.head_dim:
        name += f"v{problem.head_dim_v}"
    if problem.is_causal:
        name += "_causal"
    digest = hashlib.sha256(f"{problem} {strategy} {config}".encode()).hexdigest()[:8]
    return f"{name}_{problem.dtype.value}_{problem.layout.value}_{digest}"


def extent(problem: Attention, by: Mapping[str, int], scale: int = 1) -> Extent:
    """`scale` times the product over some sizes of ceil(size / by)."""
    factors = []
    for name, part in by.items():
        size = getattr(problem, name)
        if isinstance(size, RuntimeSize):
            factors.append(SizeFactor(name, 1, part))
        else:
            scale *= -(-size // part)
    return SizeExtent(tuple(factors), scale) if factors else scale


def largest_size(problem: Attention, name: str) -> int:
    """The largest that a size can be; the typical value if it has no bound."""
    size = getattr(problem, name)
    return size.bound or size.typical if isinstance(size, RuntimeSize) else int(size)


def largest_extent(problem: Attention, by: Mapping[str, int], scale: int = 1) -> int:
    """The extent for the largest sizes the problem admits; the typical one of a size without a bound."""
    for name, part in by.items():
        scale *= -(-largest_size(problem, name) // part)
    return scale


def tensor(problem: Attention, name: str) -> Operand:
    """A pointer to one of the problem's tensors, by its name."""
    constant = "const " if any(spec.name == name for spec in problem.inputs) else ""
    return Param(name, f"{constant}{problem.tensor(name).dtype.ctype}*"), TensorArg(name)


def sizes(problem: Attention) -> tuple[Operand, ...]:
    """Those sizes that are known at run time only."""
    runtime = [name for name in _SIZES if isinstance(getattr(problem, name), RuntimeSize)]
    found: list[tuple[Param, Arg]] = [(Param(name, "int"), SizeArg(name)) for name in runtime]
    return tuple(found)


def options(problem: Attention) -> tuple[Operand, ...]:
    """What logits depend on beside q and k."""
    names = [spec.name for spec in problem.inputs if spec.name in ("mask", "bias", "alibi")]
    return tuple(tensor(problem, name) for name in names)


def constants(problem: Attention, config: Config, *, results: int) -> dict[str, Any]:
    """The constants that all templates of attention use. `results`: elements of the largest array they index."""
    ctypes = {"float": None, problem.dtype.ctype: None, problem.out_dtype.ctype: None}
    sizes_of = {
        name: None if isinstance(getattr(problem, name), RuntimeSize) else getattr(problem, name) for name in _SIZES
    }
    tensors = max(spec.size for spec in (*problem.inputs, *problem.outputs))
    unbounded = any(isinstance(s, RuntimeSize) and s.bound is None for s in map(problem.__getattribute__, _SIZES))
    left, right = problem.window
    return sizes_of | {
        "problem": str(problem),
        "config": str(config),
        "type_headers": [_HEADERS[ctype] for ctype in ctypes],
        "in_t": problem.dtype.ctype,
        "out_t": problem.out_dtype.ctype,
        "offset_t": "long long" if unbounded or max(tensors, results) >= 1 << 31 else "int",
        "heads_q": problem.heads_q,
        "heads_kv": problem.heads_kv,
        "head_dim": problem.head_dim,
        "head_dim_v": problem.head_dim_v,
        "layout": problem.layout.value,
        "bottom_right": problem.align is Align.BOTTOM_RIGHT,
        "window_left": None if left is None else min(left, MAX_LENGTH),
        "window_right": None if right is None else min(right, MAX_LENGTH),
        "scale": number(problem.scale),
        "softcap": number(problem.softcap) if problem.softcap else None,
        "mask": problem.mask.value,
        "bias": problem.bias.value,
        "alibi": problem.alibi,
        "option_params": [param for param, _ in options(problem)],
        "sink": problem.sink,
        "lse": problem.lse,
    }


def number(value: float) -> str:
    """A number as a float literal of CUDA C++, to the nearest fp32 whatever its text."""
    return f"{value!r}f" if "." in repr(value) or "e" in repr(value) else f"{value!r}.0f"
