"""What is fused behind the accumulator of a forward convolution."""

from __future__ import annotations

import enum
import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from convgen.problem import values
from convgen.problem.text import refusal, shorten

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

__all__ = ["DEFAULT_SLOPE", "Activation", "Epilogue", "fold_batch_norm"]

DEFAULT_SLOPE = 0.01
"""Slope of leaky_relu for negative values, as in PyTorch."""


class Activation(enum.StrEnum):
    """The function applied last. `gelu` is the exact one, x * (1 + erf(x / sqrt(2))) / 2; `hardswish` is
    x * clamp(x + 3, 0, 6) / 6; `silu` is x * sigmoid(x)."""

    NONE = "none"
    RELU = "relu"
    RELU6 = "relu6"
    GELU = "gelu"
    SILU = "silu"
    HARDSWISH = "hardswish"
    LEAKY_RELU = "leaky_relu"


@dataclass(frozen=True, slots=True)
class Epilogue:
    """activation(accumulator * scale + shift + bias + residual), each part optional, the order fixed.

    `scale`, `shift` (fp32) and `bias` are vectors of K, `residual` has the shape and type of y. `slope` belongs to
    leaky_relu and is DEFAULT_SLOPE for any other activation. Prints as `scale+shift+bias+residual+relu`, or `none`.
    """

    scale: bool = False
    shift: bool = False
    bias: bool = False
    residual: bool = False
    activation: Activation = Activation.NONE
    slope: float = DEFAULT_SLOPE

    def __post_init__(self) -> None:
        for name in _OPERANDS:
            value = getattr(self, name)
            if not isinstance(value, bool):
                raise refusal(name, value, "true or false")
        if not isinstance(self.activation, Activation):
            raise refusal("activation", self.activation, "an Activation")
        values.number("slope", self.slope)
        if self.activation is not Activation.LEAKY_RELU and self.slope != DEFAULT_SLOPE:
            raise refusal("slope", self.slope, "no slope, because only leaky_relu has one")

    def __str__(self) -> str:
        parts: list[str] = list(self.operands)
        if self.activation is not Activation.NONE:
            parts.append(self.activation)
        return "+".join(parts) or "none"

    @property
    def operands(self) -> tuple[str, ...]:
        """Names of the extra inputs, in the order they are applied."""
        return tuple(name for name in _OPERANDS if getattr(self, name))

    @property
    def is_identity(self) -> bool:
        """Whether the accumulator is only converted."""
        return not self.operands and self.activation is Activation.NONE

    @classmethod
    def parse(cls, text: object, slope: object = DEFAULT_SLOPE) -> Epilogue:
        """Parse `none` or parts joined by +, in the order they are applied. Raises ProblemError."""
        expected = f"none, or some of {'+'.join(_OPERANDS)}+ACTIVATION in this order, ACTIVATION one of "
        expected += ", ".join(a for a in Activation if a is not Activation.NONE)
        if not isinstance(text, str):
            raise refusal("epilogue", text, expected)
        names = [] if text == "none" else text.split("+")
        ranks = [_RANK.get(name, -1) for name in names]
        if -1 in ranks or any(first >= second for first, second in itertools.pairwise(ranks)):
            raise refusal("epilogue", text, expected)
        parts: dict[str, Any] = {name: True for name in names if name in _OPERANDS}
        activation = next((Activation(name) for name in names if name not in _OPERANDS), Activation.NONE)
        return cls(**parts, activation=activation, slope=values.number("slope", slope))


_OPERANDS = ("scale", "shift", "bias", "residual")
_RANK = {name: rank for rank, name in enumerate(_OPERANDS)} | {
    activation.value: len(_OPERANDS) for activation in Activation if activation is not Activation.NONE
}


def fold_batch_norm(
    gamma: ArrayLike, beta: ArrayLike, mean: ArrayLike, var: ArrayLike, eps: float = 1e-5
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Fold inference-time batch normalisation into the epilogue's `scale` and `shift`.

    gamma * (a - mean) / sqrt(var + eps) + beta = a * scale + shift (Ioffe and Szegedy 2015, algorithm 2).
    The arguments are vectors of K; computed in float64, returned as float32.
    Raises ProblemError where they are not, or where var + eps is not positive.
    """
    import numpy as np

    named = {"gamma": gamma, "beta": beta, "mean": mean, "var": var, "eps": eps}
    try:
        arrays = {name: np.asarray(value, dtype=np.float64) for name, value in named.items()}
    except (TypeError, ValueError) as error:
        raise refusal("batch_norm", ", ".join(named), f"numbers ({shorten(str(error))})") from error
    for name, array in arrays.items():
        if isinstance(named[name], np.ma.MaskedArray):
            raise refusal(name, "a masked array", f"one without a mask: {name}.filled(value)")
        expected = () if name == "eps" else arrays["gamma"].shape[:1] or (1,)
        if array.shape != expected:
            raise refusal(name, array.shape, f"the shape {expected}: vectors of K, and one eps")
    spread = arrays["var"] + arrays["eps"]
    if not np.all(spread > 0):
        raise refusal("var", spread.min(), "var + eps above 0 for every channel")
    scale = arrays["gamma"] / np.sqrt(spread)
    return scale.astype(np.float32), (arrays["beta"] - arrays["mean"] * scale).astype(np.float32)
