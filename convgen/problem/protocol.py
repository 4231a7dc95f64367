"""What every problem offers to those who lower, run, verify and tune it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Protocol, Self

from convgen.problem.dtype import Accuracy, AttentionLayout, Direction, DType, Layout
from convgen.problem.sizes import Sizes
from convgen.problem.tensor import TensorSpec

__all__ = ["Problem"]


class Problem(Protocol):
    """An immutable, hashable description of what to compute, not of how.

    Shapes, work and traffic of a problem with sizes that are known at launch only are those of its typical `sizes`;
    `with_sizes` fixes them.
    """

    kind: ClassVar[str]
    """What its type describes, in the plural: `convolutions`."""

    @property
    def op(self) -> str:
        """The op's name in the text form."""

    @property
    def direction(self) -> Direction: ...
    @property
    def dtype(self) -> DType: ...
    @property
    def out_dtype(self) -> DType: ...
    @property
    def layout(self) -> Layout | AttentionLayout: ...

    @property
    def layout_name(self) -> str:
        """The layout as the text form prints it: `nhwc`, `bshd`."""

    @property
    def accuracy(self) -> Accuracy: ...

    @property
    def accumulate(self) -> bool:
        """Whether the outputs are added to what they hold."""

    @property
    def inputs(self) -> tuple[TensorSpec, ...]: ...
    @property
    def outputs(self) -> tuple[TensorSpec, ...]: ...

    def tensor(self, name: str) -> TensorSpec:
        """The input or output of that name. Raises KeyError."""

    @property
    def macs(self) -> int: ...
    @property
    def flops(self) -> int: ...

    @property
    def bytes(self) -> int:
        """Compulsory traffic: every input read once and every output written once."""

    @property
    def sizes(self) -> Sizes:
        """Of those that may be passed at launch, the fixed or the typical values."""

    @property
    def runtime_sizes(self) -> tuple[str, ...]:
        """Those that are passed at launch."""

    @property
    def largest(self) -> Sizes | None:
        """The largest they can be; None if one has no bound."""

    def with_sizes(self, sizes: Sizes) -> Self:
        """The same problem with those sizes fixed. Raises ProblemError for one outside its bound."""

    def sizes_of(self, shape: Callable[[str], tuple[int, ...]]) -> Sizes:
        """The sizes of arrays, read from their shapes in logical order; `shape` gives that of an input by its name."""

    def to_json(self) -> dict[str, Any]: ...
