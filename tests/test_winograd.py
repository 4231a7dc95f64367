"""The Winograd strategy: the conformance suite, both shapes of plan, every dimension of the space, what it refuses."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator

from conformance import GOLDEN_PROBLEM, StrategyConformance

from convgen.errors import ProblemError
from convgen.problem import Accuracy, Conv
from convgen.strategies.winograd import STRATEGY


class TestWinograd(StrategyConformance):
    strategy = STRATEGY
    golden_problem = GOLDEN_PROBLEM.replace("c=8", "c=40")

    def suited(self, problems: Iterable[Conv]) -> Iterator[Conv]:
        """The draws with filters of 3 (or 1) taps, unit steps and accuracy=fast, without which few of them apply."""
        for problem in problems:
            taps = [1 if f == 1 and axis > 0 else 3 for axis, f in enumerate(problem.filter)]
            if problem.nd == 3:
                taps[1] = 1
            ones = (1,) * problem.nd
            try:
                changed = dataclasses.replace(
                    problem,
                    filter=tuple(taps),
                    stride=ones,
                    dilation=ones,
                    output_padding=(0,) * problem.nd,
                    accuracy=Accuracy.FAST,
                )
            except ProblemError:
                continue
            if self.applies(changed):
                yield changed
