"""Which kernels may still run when an early one begins (programmatic dependent launch), and what they use of memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Flight:
    """How the kernels before that may still run use buffers, by index: `Use` of src/launch.h.

    `before` and `behind` its wait, as a kernel's thread has it. A wait is for the one kernel before, whose end is that
    of what it waited for itself. Nothing runs beside a kernel that is not early.
    """

    before: Mapping[int, int] = field(default_factory=dict)
    behind: Mapping[int, int] = field(default_factory=dict)

    def then(self, uses: Mapping[int, int], has_waited: bool) -> Flight:
        """What an early kernel finds which follows that kernel, which used buffers so and waited or not."""
        joined = {index: self.before.get(index, 0) | uses.get(index, 0) for index in {*self.before, *uses}}
        return Flight(joined, self.behind if has_waited else self.before)
