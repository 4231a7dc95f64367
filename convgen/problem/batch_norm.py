"""Batch normalisation as a problem: what to compute, nothing of how."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Self

from convgen.problem import batch_norm_form, batch_norm_rules, values
from convgen.problem.batch_norm_words import BatchNormMode
from convgen.problem.batched import Batched
from convgen.problem.dtype import Accuracy, Direction, DType, Layout
from convgen.problem.epilogue import DEFAULT_SLOPE, Activation
from convgen.problem.size import RuntimeSize
from convgen.problem.tensor import TensorSpec
from convgen.problem.window_form import layout_of

__all__ = ["BatchNorm"]

DEFAULT_EPS, DEFAULT_MOMENTUM = 1e-5, 0.1
"""As in PyTorch."""


@dataclass(frozen=True)
class BatchNorm(Batched):
    """y = activation((x - m) / sqrt(v + eps) * scale + bias + residual), channel by channel (Ioffe and Szegedy 2015).

    x is (N, C, spatial…) with 0 to 3 spatial dimensions. In inference m and v are the inputs `mean` and `var`. In
    training they are the mean and the biased variance (the sum of squares divided by the count of a channel's values,
    N * spatial) of x itself, and there are four more outputs, as in PyTorch: `save_mean` = m, `save_inv_std` =
    1 / sqrt(v + eps), and the running statistics

        running_mean = (1 - momentum) * mean + momentum * m
        running_var  = (1 - momentum) * var  + momentum * v * count / (count - 1)

    the latter from the unbiased variance, so that training needs two values a channel. Without `running` (in training
    alone) there are neither these two outputs nor the inputs mean and var; without `affine` neither scale nor bias, as
    if they were 1 and 0. All of these are fp32 vectors of C whatever `dtype`, which is that of x, residual and y.

    `n` may be a RuntimeSize: `inputs`, `outputs`, `macs` and `bytes` then stand for `typical_batch`; `at(n)` fixes it.
    Build one with `BatchNorm.of`, `BatchNorm.parse` or `BatchNorm.from_json`. Raises ProblemError for what means
    nothing.
    """

    kind: ClassVar[str] = "batch normalisations"

    n: int | RuntimeSize
    c: int
    spatial: tuple[int, ...]
    mode: BatchNormMode
    eps: float
    momentum: float
    affine: bool
    running: bool
    residual: bool
    activation: Activation
    slope: float
    dtype: DType
    layout: Layout
    direction: Direction

    def __post_init__(self) -> None:
        batch_norm_rules.check(self)

    @classmethod
    def of(
        cls,
        *,
        c: int,
        spatial: int | Sequence[int] = (),
        n: int | str | RuntimeSize = 1,
        mode: str = BatchNormMode.INFERENCE,
        eps: float = DEFAULT_EPS,
        momentum: float = DEFAULT_MOMENTUM,
        affine: bool = True,
        running: bool = True,
        residual: bool = False,
        activation: str = Activation.NONE,
        slope: float = DEFAULT_SLOPE,
        dtype: str = DType.FP32,
        layout: str = Layout.CHANNELS_FIRST,
        direction: str = Direction.FPROP,
    ) -> Self:
        """Build from the values of the text form: `BatchNorm.of(n=32, c=64, spatial=(56, 56), mode="training")`.

        A scalar `spatial` is one dimension. `momentum` matters in training alone. Raises ProblemError.
        """
        extents = spatial if isinstance(spatial, (tuple, list)) else (spatial,)
        return cls(
            n=values.runtime_size("n", n),
            c=c,
            spatial=values.dims("in", spatial, len(extents), at_least=0) if extents else (),
            mode=values.word("mode", mode, BatchNormMode),
            eps=values.number("eps", eps),
            momentum=values.number("momentum", momentum),
            affine=values.flag("affine", affine),
            running=values.flag("running", running),
            residual=values.flag("residual", residual),
            activation=values.word("activation", activation, Activation),
            slope=values.number("slope", slope),
            dtype=values.word("dtype", dtype, DType, batch_norm_rules.DTYPES),
            layout=layout_of(layout),
            direction=values.direction(direction, batch_norm_rules.DIRECTIONS),
        )

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse `batch_norm n=32 c=64 in=56x56 mode=training …`. Raises ProblemError."""
        return cls.of(**batch_norm_form.from_text(text))

    @classmethod
    def from_json(cls, entry: Any) -> Self:
        """Build from a decoded JSON object with the keys of the text form. Raises ProblemError."""
        return cls.of(**batch_norm_form.from_json(entry))

    def to_json(self) -> dict[str, Any]:
        """The JSON form, which `from_json` reads back equal."""
        return batch_norm_form.to_json(self)

    def __str__(self) -> str:
        return batch_norm_form.to_text(self)

    # --- shape ---------------------------------------------------------------------------------------

    @property
    def nd(self) -> int:
        """Spatial dimensions: 0 to 3."""
        return len(self.spatial)

    @property
    def op(self) -> str:
        """The op's name in the text form."""
        return "batch_norm"

    @property
    def is_training(self) -> bool:
        return self.mode is BatchNormMode.TRAINING

    @property
    def positions(self) -> int:
        """Values of a channel in one batch element."""
        return math.prod(self.spatial)

    @property
    def count(self) -> int:
        """Values of a channel, over which the mean is taken."""
        return self.typical_batch * self.positions

    # --- work ----------------------------------------------------------------------------------------

    @property
    def layout_name(self) -> str:
        """See `protocol.Problem`; likewise what follows. Without spatial dimensions there is nothing to order."""
        return self.layout.text(self.nd) if self.nd else self.layout.value

    @property
    def out_dtype(self) -> DType:
        return self.dtype

    @property
    def accuracy(self) -> Accuracy:
        return Accuracy.STRICT

    @property
    def accumulate(self) -> bool:
        return False

    @property
    def macs(self) -> int:
        """Multiply-adds: one a value to normalise; in training one more to the mean and one to the variance."""
        return self.count * self.c * (3 if self.is_training else 1)

    @property
    def flops(self) -> int:
        """Two for each multiply-add; the activation is not counted."""
        return 2 * self.macs

    @property
    def bytes(self) -> int:
        """Compulsory traffic: every input read once and every output written once."""
        return sum(tensor.nbytes for tensor in (*self.inputs, *self.outputs))

    # --- tensors -------------------------------------------------------------------------------------

    @cached_property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """x, then as far as there are: scale, bias, mean, var, residual."""
        names = ("scale", "bias") * self.affine + ("mean", "var") * self.running
        vectors = (self._vector(name) for name in names)
        return self._tensor("x"), *vectors, *([self._tensor("residual")] if self.residual else [])

    @cached_property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """y; in training also save_mean, save_inv_std, and with `running` running_mean and running_var."""
        names = ("save_mean", "save_inv_std", *("running_mean", "running_var") * self.running) * self.is_training
        return self._tensor("y"), *(self._vector(name) for name in names)

    def tensor(self, name: str) -> TensorSpec:
        """The input or output of that name. Raises KeyError."""
        return {spec.name: spec for spec in (*self.inputs, *self.outputs)}[name]

    def _tensor(self, name: str) -> TensorSpec:
        return TensorSpec(name, (self.typical_batch, self.c, *self.spatial), self.dtype, self.layout)

    def _vector(self, name: str) -> TensorSpec:
        return TensorSpec(name, (self.c,), DType.FP32, self.layout)
