"""Fits the constants of a strategy's cost model to recorded trials; no GPU needed.

usage: python benchmarks/fit_costs.py STRATEGY MODULE RECORDS… [--rounds N] [--hold-out K] [--fix NAME,…] [--every N]

MODULE is the one whose upper-case numbers are the constants, as in `implicit_gemm_cost`. RECORDS is what
`convgen db export` writes. Constants are changed one at a time, by factors, as long as the loss falls: the mean square
of log(predicted / measured), in which a config counts by how near to its problem's best it comes, since the model is
there to find those. Printed, before and after: the loss, the correlation of logarithms over all trials, and by problem
how fast the config that the model prefers is, of those measured, over the fastest (geometric mean, and the worst).
With --hold-out the problems fall into K parts, and each part is judged with constants fitted to the others.
"""

from __future__ import annotations

import argparse
import collections
import gzip
import importlib
import json
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from convgen.problem import Problem, parse_problem
from convgen.space import Config
from convgen.strategies import Strategy, get_strategy
from convgen.target import Target

FACTORS = (0.5, 0.8, 0.93, 1.07, 1.25, 2.0)
FARTHEST = 4.0
"""A constant stays within this factor of where it began: it is to mean what its comment says."""
PRIOR = 0.001
"""What the square of a constant's logarithmic distance from where it began adds to the loss."""
SHARPNESS = 2.0
"""A config twice as slow as its problem's best counts a quarter."""


@dataclass(frozen=True)
class Measured:
    problem: str
    config: Config
    seconds: float
    weight: float


@dataclass(frozen=True)
class Data:
    strategy: Strategy
    target: Target
    problems: Mapping[str, Problem]
    trials: Sequence[Measured]

    def of(self, problems: set[str]) -> Data:
        chosen = [trial for trial in self.trials if trial.problem in problems]
        return Data(self.strategy, self.target, self.problems, chosen)


@dataclass(frozen=True)
class Quality:
    loss: float
    correlation: float
    regrets: Mapping[str, float]

    def __str__(self) -> str:
        worst = min(self.regrets, key=self.regrets.__getitem__)
        mean = statistics.geometric_mean(self.regrets.values())
        return (
            f"loss {self.loss:.4f}, correlation {self.correlation:.3f}, preferred over fastest {mean:.3f}"
            f" (worst {self.regrets[worst]:.3f}: {worst})"
        )


def read(paths: Sequence[Path], strategy: Strategy, target: Target) -> Data:
    found: dict[tuple[str, Config], float] = {}
    problems: dict[str, Problem] = {}
    for record in _records(paths):
        if record["kind"] != "trial" or record["status"] != "ok" or record["strategy"] != strategy.name:
            continue
        text = record["problem"]
        problem = problems.setdefault(text, parse_problem(text))
        config = strategy.space(problem, target).config_type.from_mapping(record["config"])
        found[text, config] = min(record["seconds"], found.get((text, config), math.inf))
    best: dict[str, float] = {}
    for (text, _), seconds in found.items():
        best[text] = min(seconds, best.get(text, math.inf))
    trials = [Measured(text, config, s, (best[text] / s) ** SHARPNESS) for (text, config), s in found.items()]
    return Data(strategy, target, problems, trials)


def _records(paths: Sequence[Path]) -> Iterator[dict[str, Any]]:
    for path in paths:
        with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as lines:
            yield from map(json.loads, lines)


def judged(data: Data) -> Quality:
    logs, total, weights = [], 0.0, 0.0
    preferred: dict[str, tuple[float, float]] = {}
    fastest: dict[str, float] = collections.defaultdict(lambda: math.inf)
    for trial in data.trials:
        predicted = data.strategy.cost(data.problems[trial.problem], trial.config, data.target)
        logs.append((math.log(predicted), math.log(trial.seconds)))
        total += trial.weight * (logs[-1][0] - logs[-1][1]) ** 2
        weights += trial.weight
        preferred[trial.problem] = min(preferred.get(trial.problem, (math.inf, 0.0)), (predicted, trial.seconds))
        fastest[trial.problem] = min(fastest[trial.problem], trial.seconds)
    regrets = {text: fastest[text] / seconds for text, (_, seconds) in preferred.items()}
    return Quality(total / weights, statistics.correlation(*zip(*logs, strict=True)), regrets)


def fitted(data: Data, module: ModuleType, names: Sequence[str], rounds: int) -> None:
    """Leave the constants in `module` that fit `data`."""
    start = constants(module)

    def loss_now() -> float:
        distances = (math.log(getattr(module, name) / start[name]) for name in names)
        return judged(data).loss + PRIOR * sum(distance**2 for distance in distances)

    least = loss_now()
    for _ in range(rounds):
        before = least
        for name in names:
            for factor in FACTORS:
                value = getattr(module, name)
                if not 1 / FARTHEST <= value * factor / start[name] <= FARTHEST:
                    continue
                setattr(module, name, value * factor)
                loss = loss_now()
                if loss < least - 1e-6:
                    least = loss
                else:
                    setattr(module, name, value)
        print(f"  loss {least:.4f}", flush=True)
        if before - least < 1e-4:
            return


def constants(module: ModuleType) -> dict[str, float]:
    return {
        name: value
        for name, value in vars(module).items()
        if name.isupper() and isinstance(value, (int, float)) and not name.endswith("_SECONDS")
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("strategy")
    parser.add_argument("module")
    parser.add_argument("records", nargs="+", type=Path)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--hold-out", type=int, default=0, metavar="K")
    parser.add_argument("--fix", default="")
    parser.add_argument("--every", type=int, default=1, help="take every N-th trial to fit")
    args = parser.parse_args()
    module = importlib.import_module(f"convgen.strategies.{args.module}")
    data = read(args.records, get_strategy(args.strategy), Target.preset("h200"))
    start = constants(module)
    names = [name for name in start if name not in args.fix.split(",")]
    print(f"{len(data.trials)} trials of {len(data.problems)} problems; before: {judged(data)}")
    texts = sorted(data.problems)
    for part in range(args.hold_out):
        held = set(texts[part :: args.hold_out])
        fitted(data.of(set(texts) - held), module, names, args.rounds)
        print(f"held out {part}: {judged(data.of(held))}")
        for name, value in start.items():
            setattr(module, name, value)
    thinned = Data(data.strategy, data.target, data.problems, data.trials[:: args.every])
    fitted(thinned, module, names, args.rounds)
    quality = judged(data)
    print(f"after: {quality}")
    for name in names:
        print(f"{name} = {getattr(module, name):.4g}   (was {start[name]:.4g})")
    for text, regret in sorted(quality.regrets.items(), key=lambda item: item[1])[:12]:
        print(f"  {regret:.3f}  {text}")


if __name__ == "__main__":
    main()
