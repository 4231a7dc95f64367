"""Times configs of a problem side by side: the same buffers, in turn, cold caches, each held against float64.

usage: python benchmarks/variants.py FILE [--rounds N]

A line of FILE is `STRATEGY CONFIG PROBLEM`, as in `direct tile_b=1,… conv2d n=1 …`; those of one problem follow each
other. Prints for each the median and its ratio to the problem's first, what errors say of those that cannot run.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from convgen.bench.card import Card
from convgen.bench.contest import hold
from convgen.bench.judge import Judge
from convgen.compiler import Binary, Job, compile_many
from convgen.errors import ConvgenError
from convgen.lowering import lower
from convgen.plan import Plan
from convgen.problem import Conv
from convgen.render import render
from convgen.strategies import get_strategy
from convgen.target import Target


@dataclass(frozen=True)
class Variant:
    strategy: str
    config: str
    problem: Conv

    def plan(self, target: Target) -> Plan:
        strategy = get_strategy(self.strategy)
        config = strategy.space(self.problem, target).config_type.parse(self.config)
        return lower(self.problem, strategy, config, target)


def read(line: str) -> Variant:
    strategy, config, problem = line.split(maxsplit=2)
    return Variant(strategy, config, Conv.parse(problem))


def compare(variants: list[Variant], built: dict[Variant, tuple[Plan, Binary]], rounds: int | None) -> None:
    """Print one problem's table."""
    import cupy

    problem = variants[0].problem
    judge = Judge(problem, cupy)
    card = Card(judge, Target.current().l2_bytes, cupy.cuda.Stream(non_blocking=True))
    kernels: dict[Variant, Any] = {v: card.kernel(str(i), *built[v]) for i, v in enumerate(variants) if v in built}
    with card.stream:
        wrong = {
            v: verdict.reason
            for v, kernel in kernels.items()
            if not (verdict := judge.verdict(kernel.answers(problem.outputs), built[v][0].numerics)).ok
        }
        contest = hold(card, [kernel for v, kernel in kernels.items() if v not in wrong], rounds)
    medians = {name: statistics.median(times) * 1e6 for name, times in contest.times.items()}
    first = next(iter(medians.values()), 0.0)
    print(problem)
    for i, v in enumerate(variants):
        found = f"{medians[str(i)]:9.3f} us {medians[str(i)] / first:6.3f}" if str(i) in medians else "    -"
        print(f"  {found} {v.strategy} {v.config} {wrong.get(v, '') or contest.lost.get(str(i), '')}", flush=True)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("file", type=Path)
    parser.add_argument("--rounds", type=int)
    args = parser.parse_args(argv)
    variants = [read(line) for line in args.file.read_text().splitlines() if line.strip()]
    target = Target.current()
    plans: dict[Variant, Plan] = {}
    for v in variants:
        try:
            plans[v] = v.plan(target)
        except ConvgenError as error:
            print(f"{v}: {error}")
    jobs = [Job(render(plan), target, name=f"{plan.name}.cu") for plan in plans.values()]
    built = {
        v: (plan, binary)
        for (v, plan), binary in zip(plans.items(), compile_many(jobs), strict=True)
        if not isinstance(binary, ConvgenError)
    }
    for _, group in itertools.groupby(variants, key=lambda v: v.problem):
        compare(list(group), built, args.rounds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
