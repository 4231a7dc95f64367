"""The values of a problem's sizes that may be known only at launch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

__all__ = ["Sizes"]


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes by name, in a fixed order: `n` of a convolution; `batch`, `seq_q` and `seq_kv` of an attention."""

    items: tuple[tuple[str, int], ...]

    @classmethod
    def of(cls, **values: int) -> Self:
        """Build from the values by name."""
        return cls(tuple(values.items()))

    def __getitem__(self, name: str) -> int:
        for key, value in self.items:
            if key == name:
                return value
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return (name for name, _ in self.items)

    def as_dict(self) -> dict[str, int]:
        return dict(self.items)

    def __str__(self) -> str:
        return " ".join(f"{name}={value}" for name, value in self.items)
