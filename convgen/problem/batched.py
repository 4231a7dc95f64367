"""A problem whose only size that may be known at launch is its batch."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self

from convgen.problem import values
from convgen.problem.size import RuntimeSize
from convgen.problem.sizes import Sizes
from convgen.problem.text import refusal

if TYPE_CHECKING:
    from convgen.problem.tensor import TensorSpec


class Batched:
    """What follows from `n` alone; a frozen dataclass inherits it and lists its first input, whose first extent is n.
    See `protocol.Problem`."""

    n: int | RuntimeSize

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        raise NotImplementedError

    @property
    def is_runtime_batch(self) -> bool:
        """Whether the batch is passed at launch."""
        return isinstance(self.n, RuntimeSize)

    @property
    def max_batch(self) -> int | None:
        """The largest batch there can be; None if it has no bound."""
        return self.n.bound if isinstance(self.n, RuntimeSize) else self.n

    @property
    def typical_batch(self) -> int:
        """The batch, or the one to tune for."""
        return self.n.typical if isinstance(self.n, RuntimeSize) else self.n

    def at(self, n: int) -> Self:
        """The same problem with the batch fixed. Raises ProblemError for a batch outside a runtime batch's bound."""
        limit = self.max_batch if self.is_runtime_batch else None
        if values.size("n", n) and limit is not None and n > limit:
            raise refusal("n", n, f"at most {limit}, the bound of the runtime batch")
        problem: Any = self
        fixed: Self = dataclasses.replace(problem, n=n)
        return fixed

    @property
    def runtime_sizes(self) -> tuple[str, ...]:
        return ("n",) if self.is_runtime_batch else ()

    @property
    def sizes(self) -> Sizes:
        return Sizes.of(n=self.typical_batch)

    @property
    def largest(self) -> Sizes | None:
        return None if self.max_batch is None else Sizes.of(n=self.max_batch)

    def with_sizes(self, sizes: Sizes) -> Self:
        return self.at(sizes["n"])

    def sizes_of(self, shape: Callable[[str], tuple[int, ...]]) -> Sizes:
        first = shape(self.inputs[0].name)
        return Sizes.of(n=first[0] if first else 0)
