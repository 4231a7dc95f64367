"""Times every valid config of a narrowed search space, as a table that searches are replayed against.

usage: python benchmarks/exhaustive.py OUT_DIR [--spaces FILE] [--only NAME,…] [--shard I/N] [--jobs N]

A strategy's whole space has millions of points. A table keeps some values of each field (drawn once, the default's
among them) so that about 1,300 configs are valid, and holds all of these: built, checked against float64, timed with
cold caches. The fastest are timed again, interleaved, so that the best is not a lucky draw.
"""

from __future__ import annotations

import argparse
import datetime
import gzip
import itertools
import json
import math
import multiprocessing
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from convgen import measure
from convgen.compiler import Binary, compile_cuda
from convgen.errors import ConfigError, ConvgenError
from convgen.lowering import lower
from convgen.plan import Plan
from convgen.problem import Conv
from convgen.render import render
from convgen.space import Config, Space, Value
from convgen.strategies import Strategy, get_strategy
from convgen.target import Target

WANTED = 1300
FINALISTS = 48


@dataclass(frozen=True)
class Subject:
    name: str
    strategy: str
    problem: str


SUBJECTS = (
    Subject(
        "direct-depthwise",
        "direct",
        "conv2d n=32 c=144 k=144 groups=144 in=56x56 filter=3x3 stride=2 pad=1 dtype=fp16 layout=nhwc",
    ),
    Subject("halo-image", "halo_tiled", "conv2d n=1 c=1 k=1 in=2048x2048 filter=5x5 pad=2"),
    Subject("im2col-layer", "im2col", "conv2d n=8 c=64 k=128 in=56x56 filter=3x3 pad=1"),
    Subject("cache-layer", "cache_halo", "conv2d n=4 c=32 k=32 in=56x56 filter=5x5 pad=2"),
    Subject("direct-rgb", "direct", "conv2d n=1 c=3 k=3 groups=3 in=1080x1920 filter=3x3 pad=1"),
    Subject("halo-depthwise", "halo_tiled", "conv2d n=16 c=192 k=192 groups=192 in=28x28 filter=7x7 pad=3 dtype=fp16"),
    Subject("im2col-pointwise", "im2col", "conv2d n=16 c=256 k=64 in=28x28 filter=1x1 dtype=fp16 layout=nhwc"),
    Subject("direct-stem", "direct", "conv2d n=8 c=3 k=32 in=112x112 filter=3x3 stride=2 pad=1 dtype=bf16 layout=nhwc"),
    Subject("halo-layer", "halo_tiled", "conv2d n=4 c=32 k=64 in=56x56 filter=3x3 pad=1"),
    Subject("im2col-wgrad", "im2col", "conv2d n=8 c=32 k=64 in=28x28 filter=3x3 pad=1 direction=wgrad"),
    Subject("direct-signal", "direct", "conv1d n=4 c=32 k=32 in=21087 filter=2"),
    Subject("direct-dgrad", "direct", "conv2d n=8 c=16 k=16 in=56x56 filter=3x3 stride=2 pad=1 direction=dgrad"),
    # The cost models were fitted without these two, which were recorded afterwards.
    Subject("cache-image", "cache_halo", "conv2d n=1 c=1 k=1 in=1024x1024 filter=7x7 pad=3 dtype=fp16"),
    Subject(
        "direct-volume",
        "direct",
        "conv3d n=2 c=64 k=64 groups=64 in=16x28x28 filter=3 pad=1 dtype=fp16 layout=nhwc",
    ),
)


def is_valid(strategy: Strategy, problem: Conv, config: Config, target: Target) -> bool:
    try:
        strategy.check(problem, config, target)
    except ConfigError:
        return False
    return True


def narrow(strategy: Strategy, problem: Conv, target: Target, seed: int) -> Space:
    """Drop values until about WANTED configs are valid; never the default's, and never the last but one of a field."""
    rng = random.Random(seed)
    default = strategy.default(problem, target).as_dict()
    full = strategy.space(problem, target)
    choices: dict[str, tuple[Value, ...]] = {name: tuple(values) for name, values in full.choices.items()}
    while (valid := count(strategy, problem, target, choices, rng)) > WANTED * 1.08:
        loose = [name for name, values in choices.items() if len(values) > 2]
        if not loose or valid < WANTED * 1.6:
            loose = [name for name, values in choices.items() if len(values) > (2 if loose else 1)]
        name = rng.choice([n for n in loose for _ in range(len(choices[n]))])
        kept = [value for value in choices[name] if value != default[name]]
        kept.remove(rng.choice(kept))
        smaller = {**choices, name: tuple(v for v in choices[name] if v in kept or v == default[name])}
        if count(strategy, problem, target, smaller, rng) >= 1000:
            choices = smaller
    return Space(full.config_type, choices)


def count(
    strategy: Strategy, problem: Conv, target: Target, choices: dict[str, tuple[Value, ...]], rng: random.Random
) -> float:
    """Valid configs of a box: exact for a small one, else estimated from a sample."""
    kind = strategy.space(problem, target).config_type
    box = math.prod(map(len, choices.values()))
    if box <= 6000:
        return sum(is_valid(strategy, problem, kind(*v), target) for v in itertools.product(*choices.values()))
    drawn = [kind(*(rng.choice(values) for values in choices.values())) for _ in range(1500)]
    return box * sum(is_valid(strategy, problem, c, target) for c in drawn) / len(drawn)


Built = tuple[int, Plan | None, Binary | None, str]


def build(job: tuple[int, str, str, Config]) -> Built:
    position, strategy, problem, config = job
    target = Target.preset("h200")
    try:
        plan = lower(Conv.parse(problem), get_strategy(strategy), config, target)
        return position, plan, compile_cuda(render(plan), target, name=f"{plan.name}.cu"), ""
    except ConvgenError as error:
        return position, None, None, str(error)


class Card:
    """Arrays, oracle and stream of one problem."""

    def __init__(self, problem: Conv, target: Target) -> None:
        import cupy

        from convgen.reference import bound, encode, make_inputs, reference, strict_model

        self.problem, self.cupy = problem, cupy
        values = make_inputs(problem, 0, "normal", cupy)
        self.expected = reference(problem, values, cupy)
        self.limit = bound(problem, values, self.expected, strict_model(problem), cupy)
        sets = min(measure.buffer_sets(problem.bytes, target.l2_bytes), 256)
        stored = {t.name: encode(values[t.name], t.dtype, cupy) for t in problem.inputs}
        self.inputs = [{t.name: self._dense(t, stored[t.name]) for t in problem.inputs} for _ in range(sets)]
        [out] = problem.outputs
        self.outputs = [self._dense(out, cupy.empty(out.shape, _dtype(out, cupy))) for _ in range(sets)]
        self.stream = cupy.cuda.Stream(non_blocking=True)
        cupy.cuda.Device().synchronize()

    def _dense(self, spec: Any, values: Any) -> Any:
        order = spec.layout.order(len(spec.shape))
        inverse = sorted(range(len(order)), key=lambda axis: order[axis])
        return self.cupy.array(values.transpose(order), order="C", copy=True).transpose(inverse)

    def check(self, program: Any) -> str:
        from convgen.reference import compare

        self.outputs[0][...] = self.cupy.nan if self.outputs[0].dtype.kind == "f" else 0xFFFF
        self.cupy.cuda.Device().synchronize()
        self._run(program, 0)
        self.stream.synchronize()
        outcome = compare(self.problem.outputs[0], self.outputs[0], self.expected, self.limit, self.cupy)
        return "" if outcome.ok else outcome.report()

    def _run(self, program: Any, i: int) -> None:
        program.run(self.inputs[i], {self.problem.outputs[0].name: self.outputs[i]}, stream=self.stream)

    def replay(self, program: Any) -> measure.Replay:
        begin, end = self.cupy.cuda.Event(), self.cupy.cuda.Event()
        begin.record(self.stream)
        self._run(program, 0)
        end.record(self.stream)
        end.synchronize()
        once = self.cupy.cuda.get_elapsed_time(begin, end) * 1e-3
        repeats = max(2, min(len(self.inputs), math.ceil(250e-6 / max(once, 2e-6))))
        return measure.capture(self.stream, [lambda i=i: self._run(program, i) for i in range(repeats)])

    def time(self, replays: dict[str, measure.Replay], rounds: int) -> dict[str, float]:
        times = measure.interleave(self.stream, replays, rounds)
        return {name: sorted(seconds)[len(seconds) // 2] * 1e6 for name, seconds in times.items()}


def _dtype(spec: Any, cupy: Any) -> Any:
    return {"bf16": cupy.uint16, "fp16": cupy.float16}.get(spec.dtype.value, cupy.float32)


def spaces(subjects: Sequence[tuple[int, Subject]], file: Path | None) -> dict[str, Space]:
    """The narrowed space of each subject, drawn once and kept in `file`: drawing takes a while, on no GPU."""
    known = json.loads(file.read_text()) if file is not None and file.is_file() else {}
    found = {}
    for seed, subject in subjects:
        problem, strategy, target = Conv.parse(subject.problem), get_strategy(subject.strategy), Target.preset("h200")
        if subject.name not in known:
            narrowed = narrow(strategy, problem, target, seed)
            known[subject.name] = {name: list(values) for name, values in narrowed.choices.items()}
        choices = {name: tuple(values) for name, values in known[subject.name].items()}
        found[subject.name] = Space(strategy.space(problem, target).config_type, choices)
    if file is not None:
        file.write_text(json.dumps(known))
    return found


def record(subject: Subject, space: Space, pool: Any, limit: int | None) -> dict[str, Any]:
    from convgen.runtime.cuda import load

    problem, strategy, target = Conv.parse(subject.problem), get_strategy(subject.strategy), Target.preset("h200")
    configs = list(space.configs(lambda c: strategy.check(problem, c, target)))[:limit]
    card = Card(problem, target)
    us: list[float | None] = [None] * len(configs)
    faults: dict[str, int] = {}
    kept: dict[str, tuple[Plan, Binary]] = {}
    jobs = [(i, subject.strategy, subject.problem, c) for i, c in enumerate(configs)]
    started = time.perf_counter()
    results: Iterator[Built] = pool.imap_unordered(build, jobs, chunksize=4)
    for position, plan, binary, reason in results:
        if plan is None or binary is None:
            faults[reason[:80]] = faults.get(reason[:80], 0) + 1
            continue
        try:
            with load(plan, binary) as program:
                wrong = card.check(program)
                if wrong:
                    faults["wrong: " + wrong[:80]] = faults.get("wrong: " + wrong[:80], 0) + 1
                    continue
                replay = card.replay(program)
                us[position] = card.time({"": replay}, 3)[""]
                del replay
            kept[str(position)] = (plan, binary)
        except ConvgenError as error:
            faults[str(error)[:80]] = faults.get(str(error)[:80], 0) + 1
    timed = time.perf_counter() - started
    best = sorted((t, i) for i, t in enumerate(us) if t is not None)[:FINALISTS]
    programs = {str(i): load(*kept[str(i)]) for _, i in best}
    again = card.time({name: card.replay(program) for name, program in programs.items()}, 15)
    for name, value in again.items():
        us[int(name)] = value
    good = sorted(t for t in us if t is not None)
    default = (
        us[configs.index(strategy.default(problem, target))] if strategy.default(problem, target) in configs else None
    )
    ranked = sorted(range(len(configs)), key=lambda i: strategy.cost(problem, configs[i], target))
    first = good[0] / min(us[i] or math.inf for i in ranked[:32])
    print(
        f"{subject.name:18s} {len(configs)} configs, {len(good)} right in {timed:.0f} s; best {good[0]:.2f} us, "
        f"default {default or math.nan:.2f}, median {good[len(good) // 2]:.2f}; "
        f"best of 32 by cost {first:.2f} of the best; faults {faults}",
        flush=True,
    )
    choices = {name: list(values) for name, values in space.choices.items()}
    return {
        "name": subject.name, "problem": str(problem), "strategy": subject.strategy, "target": "h200",
        "choices": choices,
        "configs": [[choices[n].index(v) for n, v in c.as_dict().items()] for c in configs],
        "us": [None if t is None else round(t, 3) for t in us],
        "meta": {"gpu": card.cupy.cuda.runtime.getDeviceProperties(0)["name"].decode(),
                 "driver": card.cupy.cuda.runtime.driverGetVersion(), "date": datetime.date.today().isoformat(),
                 "protocol": measure.PROTOCOL, "faults": faults},
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--shard", default="0/1")
    parser.add_argument("--jobs", type=int, default=16)
    parser.add_argument("--spaces", type=Path, help="file that keeps the narrowed spaces")
    parser.add_argument("--limit", type=int, help="configs of a table, to try the script out")
    args = parser.parse_args()
    index, shards = map(int, args.shard.split("/"))
    only = set(filter(None, args.only.split(",")))
    chosen = [(i, s) for i, s in enumerate(SUBJECTS) if i % shards == index and (not only or s.name in only)]
    narrowed = spaces(chosen, args.spaces)
    args.out.mkdir(parents=True, exist_ok=True)
    if args.limit == 0:
        return
    with multiprocessing.get_context("spawn").Pool(args.jobs) as pool:
        for _, subject in chosen:
            table = record(subject, narrowed[subject.name], pool, args.limit)
            with gzip.open(args.out / f"{subject.name}.json.gz", "wt", encoding="utf-8") as file:
                json.dump(table, file, separators=(",", ":"))


if __name__ == "__main__":
    main()
