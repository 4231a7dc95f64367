"""Time many configs of one strategy on one problem, each verified first, and print the fastest.

usage: python benchmarks/sweep.py PROBLEM STRATEGY [--config k=v,…]… [--random N] [--seed S] [--rounds R] [--top T]

Caches are cold. Configs are compiled on all cores before any is timed; the finalists are timed again, interleaved.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import random
import statistics
from typing import Any

import cupy

from convgen import measure
from convgen.compiler import Binary, compile_cuda
from convgen.errors import CompileError, ConfigError
from convgen.lowering import lower
from convgen.plan import Plan
from convgen.problem import Conv, DType, TensorSpec
from convgen.reference import bound, compare, encode, make_inputs, reference, strict_model
from convgen.render import render
from convgen.runtime import cuda
from convgen.space import Config
from convgen.strategies import Strategy, get_strategy
from convgen.target import Target


def draw(strategy: Strategy, problem: Conv, target: Target, count: int, seed: int) -> list[Config]:
    space, rng, found = strategy.space(problem, target), random.Random(seed), dict[Config, None]()
    for _ in range(200 * count):
        config = space.config_type(*(rng.choice(values) for values in space.choices.values()))
        try:
            strategy.check(problem, config, target)
        except ConfigError:
            continue
        found[config] = None
        if len(found) == count:
            break
    return list(found)


def compiled(plan: Plan) -> Binary | None:
    try:
        return compile_cuda(render(plan), plan.target)
    except CompileError:
        return None


class Bench:
    """One problem's arrays, its answer, and a stream."""

    def __init__(self, problem: Conv, target: Target) -> None:
        self.problem = problem
        sets = measure.buffer_sets(problem.bytes, target.l2_bytes)
        values = make_inputs(problem, 0, xp=cupy)
        self.expected = reference(problem, values, xp=cupy)
        self.bound = bound(problem, values, self.expected, strict_model(problem), xp=cupy)
        stored = {t.name: encode(values[t.name], t.dtype, xp=cupy) for t in problem.inputs}
        self.inputs = [{name: _laid_out(problem, name, a) for name, a in stored.items()} for _ in range(sets)]
        self.outputs = [{t.name: _empty(t) for t in problem.outputs} for _ in range(sets)]
        self.stream = cupy.cuda.Stream(non_blocking=True)
        cupy.cuda.runtime.deviceSynchronize()

    def verify(self, program: Any) -> bool:
        name = self.problem.outputs[0].name
        got = program.run(self.inputs[0])[name]
        return bool(compare(self.problem.outputs[0], got, self.expected, self.bound, xp=cupy).ok)

    def replay(self, program: Any) -> measure.Replay:
        pairs = list(zip(self.inputs, self.outputs, strict=True))
        return measure.capture(self.stream, [lambda i=i, o=o: program.run(i, o, stream=self.stream) for i, o in pairs])


def _empty(spec: TensorSpec) -> Any:
    dtype = {DType.FP32: cupy.float32, DType.FP16: cupy.float16, DType.BF16: cupy.uint16}[spec.dtype]
    flat = cupy.empty(spec.size, dtype)
    return cupy.lib.stride_tricks.as_strided(flat, spec.shape, tuple(s * flat.itemsize for s in spec.strides))


def _laid_out(problem: Conv, name: str, array: Any) -> Any:
    dense = _empty(problem.tensor(name))
    dense[...] = array
    return dense


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("problem")
    parser.add_argument("strategy")
    parser.add_argument("--config", action="append", default=[])
    parser.add_argument("--random", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--top", type=int, default=8)
    args = parser.parse_args()
    target = Target.current()
    problem, strategy = Conv.parse(args.problem), get_strategy(args.strategy)
    default = strategy.default(problem, target)
    configs = [default, *(type(default).parse(text, default) for text in args.config)]
    configs = list(dict.fromkeys(configs + draw(strategy, problem, target, args.random, args.seed)))
    plans = [lower(problem, strategy, config, target) for config in configs]
    with concurrent.futures.ThreadPoolExecutor() as pool:
        binaries = list(pool.map(compiled, plans))

    bench = Bench(problem, target)
    times: dict[Config, float] = {}
    programs: dict[Config, Any] = {}
    for plan, binary in zip(plans, binaries, strict=True):
        if binary is None:
            print("does not compile:", plan.config)
            continue
        program = cuda.load(plan, binary)
        if not bench.verify(program):
            print("WRONG:", plan.config)
            continue
        replay = bench.replay(program)
        times[plan.config] = statistics.median(measure.interleave(bench.stream, {"it": replay}, args.rounds)["it"])
        programs[plan.config] = program
    best = dict.fromkeys([default, *sorted(times, key=times.__getitem__)[: args.top]])
    replays = {str(c): bench.replay(programs[c]) for c in best if c in programs}
    finals = measure.interleave(bench.stream, replays, 4 * args.rounds)
    print(f"{problem}: {len(times)} of {len(configs)} configs timed, {problem.bytes / 1e6:.1f} MB compulsory")
    for text, seconds in sorted(finals.items(), key=lambda item: statistics.median(item[1])):
        t = statistics.median(seconds)
        mark = " (default)" if text == str(default) else ""
        print(
            f"{t * 1e6:10.2f} us {problem.bytes / t / 1e9:7.0f} GB/s {problem.flops / t / 1e12:6.2f} TFLOP/s"
            f"  {text}{mark}"
        )


if __name__ == "__main__":
    main()
