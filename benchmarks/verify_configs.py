"""Verifies random legal configs of a strategy on a GPU: faults of timing show on the card only.

usage: python benchmarks/verify_configs.py STRATEGY COUNT PROBLEM…

Of every problem COUNT configs are drawn from its space; prints each that is not right, then the counts.
"""

from __future__ import annotations

import argparse
import collections
import random

from convgen.errors import ConfigError
from convgen.problem import parse_problem
from convgen.strategies import get_strategy
from convgen.target import Target
from convgen.verify import Case, Settings, verify_cases

MOST_DRAWS = 20_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("strategy")
    parser.add_argument("count", type=int)
    parser.add_argument("problems", nargs="+")
    arguments = parser.parse_args()
    strategy, target, rng = get_strategy(arguments.strategy), Target.current(), random.Random(1)
    for text in arguments.problems:
        problem = parse_problem(text)
        space = strategy.space(problem, target)
        configs: dict[str, Case] = {}
        for _ in range(MOST_DRAWS):
            config = space.config_type(*(rng.choice(values) for values in space.choices.values()))
            try:
                strategy.check(problem, config, target)
            except ConfigError:
                continue
            configs[str(config)] = Case(problem, strategy, config)
            if len(configs) == arguments.count:
                break
        results = list(verify_cases(list(configs.values()), Settings(target, "cuda", jobs=16)))
        for config, result in zip(configs, results, strict=True):
            if result.status != "ok":
                print(f"{text}\n  {config}\n  {result.status}: {result.reason[:300]}")
        print(text, dict(collections.Counter(result.status for result in results)), flush=True)


if __name__ == "__main__":
    main()
