"""A gather with a divisor as dense gathers: one for the results of each residue, over the taps that reach it.

In the dgrad of a strided convolution a result o meets only the taps f for which o*step - offset + f*spread is a
multiple of the divisor. Of a phase, the results o = first_out + divisor*o' with one residue, these are the taps
f = first_tap + tap_step*f', and the index is start + o' + f'*spread' with spread' = spread*tap_step/divisor: a dense
gather. (Dumoulin, Visin: A guide to convolution arithmetic for deep learning, 2016, chapter 4.)
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

from convgen.gather import Axis


@dataclass(frozen=True, slots=True)
class Phase:
    """Results of one residue along an axis; without taps if none reaches them."""

    out: int
    first_out: int
    taps: int
    first_tap: int
    start: int


def tap_step(axis: Axis) -> int:
    """From a tap of a phase to its next."""
    return axis.divisor // math.gcd(axis.divisor, axis.spread)


def spread(axis: Axis) -> int:
    """Pixels of x from a tap of a phase to its next."""
    return axis.spread * tap_step(axis) // axis.divisor


@functools.lru_cache(maxsize=512)
def phases(axis: Axis) -> tuple[Phase, ...]:
    """The phases that have results, those with most taps first; one alone for a divisor of 1.

    `axis.step` is 1 wherever there is a divisor.
    """
    if axis.divisor == 1:
        return (Phase(axis.out, 0, axis.taps, 0, -axis.offset),)
    found = []
    for first_out in range(min(axis.divisor, axis.out)):
        out = -(-(axis.out - first_out) // axis.divisor)
        reaching = [f for f in range(axis.taps) if (first_out - axis.offset + f * axis.spread) % axis.divisor == 0]
        first = reaching[0] if reaching else 0
        start = (first_out - axis.offset + first * axis.spread) // axis.divisor if reaching else 0
        found.append(Phase(out, first_out, len(reaching), first, start))
    return tuple(sorted(found, key=lambda phase: -phase.taps))


def most_terms(axis: Axis) -> int:
    """The most taps along the axis that one result meets inside x."""
    most = 0
    for phase in phases(axis):
        step = axis.step if axis.divisor == 1 else 1
        apart = spread(axis)
        # Where the window of taps begins or ends at an edge of x, and at the first and the last result.
        reach = (phase.taps - 1) * apart
        edges = (
            -phase.start,
            -phase.start - reach,
            axis.source - 1 - phase.start,
            axis.source - 1 - phase.start - reach,
        )
        for at in (0, phase.out - 1, *(edge // step for edge in edges), *(-(-edge // step) for edge in edges)):
            if 0 <= at < phase.out:
                begin = phase.start + at * step
                met = sum(0 <= begin + f * apart < axis.source for f in range(phase.taps))
                most = max(most, met)
    return most
