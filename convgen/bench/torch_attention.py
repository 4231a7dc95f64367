"""An attention as PyTorch's scaled_dot_product_attention, on each of its fused backends.

The functions take the module `torch` and tensors on any device, so that they are tested on the CPU against the oracle.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from convgen.problem import Align, Attention, Bias, Direction, Mask, Varlen

Tensors = Mapping[str, Any]

BACKENDS = {"flash": "FLASH_ATTENTION", "cudnn": "CUDNN_ATTENTION", "efficient": "EFFICIENT_ATTENTION"}
"""What a peer's name says, and what PyTorch calls it; `flash` is FlashAttention-2."""


def why_not(problem: Attention) -> str | None:
    """Why PyTorch's function cannot compute the problem; None if it can. A backend may still refuse it."""
    left, right = problem.window if _hides(problem) else (None, None)
    reasons = {
        "it has no window": left is not None or right not in (None, 0),
        "it has no softcap": problem.softcap > 0,
        "it takes no ALiBi slopes": problem.alibi,
        "it has no sink": problem.sink,
        "its sequences are as long as the tensors": problem.varlen is not Varlen.NONE or problem.paged > 0,
        "it tells no logarithm of sums": problem.lse,
        "its causal mask begins at the top left": right == 0
        and problem.align is Align.BOTTOM_RIGHT
        and problem.seq_q != problem.seq_kv,
        "it takes either a mask or causality": right == 0 and (problem.mask, problem.bias) != (Mask.NONE, Bias.NONE),
        "it takes a mask or a bias": problem.mask is not Mask.NONE and problem.bias is not Bias.NONE,
        "gradients are another call": problem.direction is not Direction.FPROP,
    }
    found = [reason for reason, holds in reasons.items() if holds]
    return f"scaled_dot_product_attention does not do it: {', '.join(found)}" if found else None


def _hides(problem: Attention) -> bool:
    """Whether the window hides anything: the last query of a causal cache sees all of it."""
    _, queries, keys = problem.typical_sizes
    return problem.visible_pairs < queries * keys


def call_of(problem: Attention, torch: Any) -> Callable[[Tensors], Any]:
    """What computes the output from the problem's inputs by name, q, k and v as (B, H, S, D)."""
    attend = torch.nn.functional.scaled_dot_product_attention
    options = {
        "is_causal": problem.is_causal and _hides(problem),
        "scale": problem.scale,
        "enable_gqa": problem.heads_q != problem.heads_kv,
    }

    def call(tensors: Tensors) -> Any:
        hidden = None
        if problem.mask is not Mask.NONE:
            hidden = _as_scores(tensors["mask"], problem.mask).bool()
        elif problem.bias is not Bias.NONE:
            hidden = _as_scores(tensors["bias"], problem.bias)
        return attend(tensors["q"], tensors["k"], tensors["v"], attn_mask=hidden, **options)

    return call


def _as_scores(tensor: Any, extent: Mask | Bias) -> Any:
    """A mask or bias of fewer dimensions as one that broadcasts over (batch, heads, queries, keys)."""
    match extent.value:
        case "key":
            return tensor[:, None, None, :]
        case "batch":
            return tensor[:, None]
        case "head":
            return tensor[None]
    return tensor
