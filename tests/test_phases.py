"""Strided dgrad as dense products: the phases against every pair of a result and a tap."""

from __future__ import annotations

import itertools

import pytest

from convgen.gather import Axis, gather
from convgen.problem import Conv
from convgen.strategies.phases import most_terms, phases, spread, tap_step


def axis_of(size: int, taps: int, stride: int, dilation: int, low: int, high: int) -> Axis | None:
    if size + low + high < dilation * (taps - 1) + 1:
        return None
    text = f"conv1d c=1 k=1 in={size} filter={taps} stride={stride} dilation={dilation} pad={low}:{high}"
    return gather(Conv.parse(f"{text} direction=dgrad")).axes[0]


AXES = [
    axis
    for parameters in itertools.product((1, 2, 7, 12), (1, 2, 3, 5), (1, 2, 3, 4), (1, 2, 3), (0, 2), (0, 1))
    if (axis := axis_of(*parameters)) is not None
]


def met_in_gather(axis: Axis) -> set[tuple[int, int, int]]:
    """(result, tap, pixel) of every term that exists, from the definition of a gather."""
    found = set()
    for o, f in itertools.product(range(axis.out), range(axis.taps)):
        index, rest = divmod(o * axis.step - axis.offset + f * axis.spread, axis.divisor)
        if rest == 0 and 0 <= index < axis.source:
            found.add((o, f, index))
    return found


def test_phases_meet_each_term_once() -> None:
    assert len(AXES) > 200
    for axis in AXES:
        found: list[tuple[int, int, int]] = []
        results: list[int] = []
        for phase in phases(axis):
            results += [phase.first_out + axis.divisor * i for i in range(phase.out)]
            for i, j in itertools.product(range(phase.out), range(phase.taps)):
                index = phase.start + i + j * spread(axis)
                if 0 <= index < axis.source:
                    o, f = phase.first_out + axis.divisor * i, phase.first_tap + tap_step(axis) * j
                    found.append((o, f, index))
        assert sorted(results) == list(range(axis.out))
        assert len(found) == len(set(found))
        assert set(found) == met_in_gather(axis)


def test_the_most_terms_of_a_result_are_counted() -> None:
    for axis in AXES:
        met = [o for o, _, _ in met_in_gather(axis)]
        assert most_terms(axis) == max((met.count(o) for o in set(met)), default=0)


@pytest.mark.parametrize(
    ("taps", "stride", "expected"), [(3, 2, [2, 1]), (4, 2, [2, 2]), (2, 3, [1, 1, 0]), (7, 4, [2, 2, 2, 1])]
)
def test_phases_with_most_taps_come_first(taps: int, stride: int, expected: list[int]) -> None:
    axis = axis_of(12, taps, stride, 1, 0, 0)
    assert axis is not None
    assert [phase.taps for phase in phases(axis)] == expected
