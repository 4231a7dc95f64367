"""Where a plan runs: `cuda` on a GPU, `sim` in the CPU simulator, behind one seam."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from convgen.plan import Plan

__all__ = ["Program"]


class Program(Protocol):
    """A plan that is built and loaded, ready to be run on arrays of its backend."""

    plan: Plan

    def run(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Run on arrays by tensor name; outputs not given are allocated. Returns the outputs by name."""
