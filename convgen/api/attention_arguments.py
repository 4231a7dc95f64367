"""The arguments of an attention call, in PyTorch's words, to a problem; what is wrong is said in the same words."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from convgen.api.arguments import DTYPES, Described, boolean
from convgen.errors import ProblemError, UsageError
from convgen.problem import Align, Attention, AttentionLayout, DType, RuntimeSize, TensorSpec
from convgen.problem.values import size

FEW_QUERIES = 16
"""Up to which a call is a step of decoding: its kernel takes any number of keys, so that a growing cache meets one."""

_PAIRS = {"key": (0, 3), "pair": (2, 3), "batch": (0, 2, 3), "head": (1, 2, 3), "full": (0, 1, 2, 3)}
"""Kinds of masks and biases, and the axes of (B, H, S_q, S_kv) that each has, smallest first."""

_KEYS = {"heads_kv": "heads of key", "head_dim": "query.shape[-1]", "macs": "multiply-adds"}


class Options(NamedTuple):
    """A call's arguments that are no arrays, as given."""

    dropout_p: Any
    is_causal: Any
    scale: Any
    enable_gqa: Any
    window: Any
    align: Any
    softcap: Any
    return_lse: Any
    accuracy: Any
    workspace_limit: Any


@dataclass(frozen=True, slots=True)
class Request:
    """A call understood. `rank` is that of query; `shape` and `lse_shape` are the outputs' as the caller sees them."""

    problem: Attention
    rank: int
    mask: str | None
    """What attn_mask is: "mask", "bias", or None."""
    mask_shape: tuple[int, ...]
    """Of attn_mask in the problem."""
    mask_axes: tuple[int, ...]
    shape: tuple[int, ...]
    lse_shape: tuple[int, ...]
    return_lse: bool
    workspace_limit: int | None


def request(arrays: Mapping[str, Described], options: Options) -> Request:
    """The problem of a call with these arrays by name: query, key, value, and attn_mask, alibi_slopes, sink. Options
    are plain.

    Raises UsageError for arrays that do not fit each other, ProblemError for another argument.
    """
    _check_options(options)
    query, key = arrays["query"], arrays["key"]
    rank = len(query.shape)
    q, k, v = (_four(name, arrays[name], rank) for name in ("query", "key", "value"))
    batch, heads_q, queries, width = q.shape
    heads_kv, keys = k.shape[1:3]
    for name, shape, expected in (
        ("key", k.shape, (batch, heads_kv, keys, width)),
        ("value", v.shape, (batch, heads_kv, keys, v.shape[3])),
    ):
        if shape != expected:
            raise UsageError(f"{name} has shape {arrays[name].shape}: query {query.shape} and key {key.shape} take "
                             f"{_shown(expected, rank)}")  # fmt: skip
    if heads_kv != heads_q and not options.enable_gqa:
        raise UsageError(f"query has {heads_q} heads, key {heads_kv}: expected as many, or enable_gqa=True")
    dtype = _dtype(arrays)
    mask, kind, axes = _mask(arrays.get("attn_mask"), dtype, (batch, heads_q, queries, keys))
    left, right = _window(options)
    has_diagonal = (left, right) != (None, None) or "alibi_slopes" in arrays
    try:
        problem = Attention.of(
            batch=batch,
            heads_q=heads_q,
            heads_kv=heads_kv,
            seq_q=queries,
            seq_kv=RuntimeSize(hint=_usual(keys)) if 0 < queries <= FEW_QUERIES and keys else keys,
            head_dim=width,
            head_dim_v=v.shape[3],
            window=(left, right),
            align=options.align if has_diagonal else None,
            softcap=options.softcap,
            scale=options.scale,
            dtype=DTYPES[dtype],
            layout=_layout((q, k, v)),
            mask=kind if mask == "mask" else "none",
            bias=kind if mask == "bias" else "none",
            alibi="alibi_slopes" in arrays,
            sink="sink" in arrays,
            lse=options.return_lse,
            accuracy=options.accuracy,
        )
    except ProblemError as error:
        raise ProblemError(_KEYS.get(error.key, error.key), error.value, error.expected) from error
    for name in ("alibi_slopes", "sink"):
        if name in arrays and (arrays[name].shape, arrays[name].dtype) != ((heads_q,), "float32"):
            raise UsageError(f"{name} is {arrays[name].dtype} {arrays[name].shape}, expected float32 ({heads_q},)")
    extents = (batch, heads_q, queries, keys)
    limit = options.workspace_limit
    shape = _shown((batch, heads_q, queries, v.shape[3]), rank)
    if "out" in arrays:
        _check_out(arrays["out"], shape, dtype)
    return Request(
        problem=problem,
        rank=rank,
        mask=mask,
        mask_shape=tuple(extents[axis] for axis in axes),
        mask_axes=axes,
        shape=shape,
        lse_shape=shape[:-1],
        return_lse=options.return_lse,
        workspace_limit=None if limit is None else size("workspace_limit", limit),
    )


def _check_out(out: Described, shape: tuple[int, ...], dtype: str) -> None:
    if (out.shape, out.dtype) != (shape, dtype):
        raise UsageError(f"out is {out.dtype} {out.shape}, expected {dtype} {shape}")
    out.check_apart("out")


def _check_options(options: Options) -> None:
    if options.dropout_p != 0:
        raise UsageError(f"dropout_p={options.dropout_p!r}: expected 0, because there is no dropout yet")
    if options.align not in list(Align):
        raise UsageError(f"align={options.align!r}: expected {' or '.join(Align)}")
    for name in ("is_causal", "enable_gqa", "return_lse"):
        boolean(name, getattr(options, name))


def _four(name: str, array: Described, rank: int) -> Described:
    """The array as (B, H, S, D): a query of two dimensions is one head, of three a batch of them."""
    if len(array.shape) != rank or not 2 <= rank <= 4:
        raise UsageError(
            f"{name} has shape {array.shape}: expected (batch, heads, sequence, width), or without heads, or without "
            f"both{'' if name == 'query' else ', as query has'}"
        )
    added = (1,) * (4 - rank)
    if rank == 3:
        (batch, *shape), (step, *strides) = array.shape, array.strides
        return Described((batch, 1, *shape), (step, 0, *strides), array.dtype)
    return Described((*added, *array.shape), (*(0 for _ in added), *array.strides), array.dtype)


def _shown(shape: tuple[int, ...], rank: int) -> tuple[int, ...]:
    """A shape (B, H, …) as the caller has it."""
    return {4: shape, 3: (shape[0], *shape[2:]), 2: shape[2:]}[rank]


def _dtype(arrays: Mapping[str, Described]) -> str:
    dtype = arrays["query"].dtype
    if dtype not in DTYPES:
        raise UsageError(f"query is {dtype}, expected {', '.join(DTYPES)}")
    for name in ("key", "value"):
        if arrays[name].dtype != dtype:
            raise UsageError(f"{name} is {arrays[name].dtype}, expected {dtype} as query is")
    return dtype


def _mask(
    mask: Described | None, dtype: str, extents: tuple[int, int, int, int]
) -> tuple[str | None, str, tuple[int, ...]]:
    """What attn_mask is, its kind, and the axes of (B, H, S_q, S_kv) that the kind has."""
    if mask is None:
        return None, "none", ()
    if mask.dtype not in ("bool", dtype):
        raise UsageError(f"attn_mask is {mask.dtype}, expected bool (True: attend) or {dtype} as query is (added)")
    shape = (1,) * (4 - len(mask.shape)) + mask.shape
    if len(shape) != 4 or any(size not in (1, extent) for size, extent in zip(shape, extents, strict=True)):
        raise UsageError(f"attn_mask has shape {mask.shape}, which does not broadcast to {extents}")
    needed = {axis for axis, size in enumerate(shape) if size != 1}
    kind = next(kind for kind, axes in _PAIRS.items() if needed <= set(axes))
    return "mask" if mask.dtype == "bool" else "bias", kind, _PAIRS[kind]


def _window(options: Options) -> tuple[int | None, int | None]:
    window = options.window
    if window is None:
        left = right = None
    elif isinstance(window, tuple) and len(window) == 2:
        left, right = (None if side is None else size("window", side) for side in window)
    else:
        raise UsageError(f"window={window!r}: expected (left, right), keys seen before and after, None for all")
    return left, 0 if options.is_causal else right


def _layout(arrays: tuple[Described, ...]) -> AttentionLayout:
    """The layout in which most of these arrays lie as they are; (B, H, S, D) if both serve alike."""

    def dense(layout: AttentionLayout) -> int:
        found = 0
        for array in arrays:
            wanted = TensorSpec("", array.shape, DType.FP32, layout).strides
            steps = zip(array.shape, array.strides, wanted, strict=True)
            found += math.prod(array.shape) * all(extent <= 1 or step == want for extent, step, want in steps)
        return found

    return max(AttentionLayout.BHSD, AttentionLayout.BSHD, key=dense)


def _usual(keys: int) -> int:
    """What to choose a kernel for that takes any number of keys: 512, 2048, 8192, …"""
    usual = 512
    while usual < keys:
        usual *= 4
    return usual
