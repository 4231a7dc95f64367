"""The memory-space study: one image filter, the same arithmetic, five homes for its operands.

usage: python benchmarks/memory_spaces.py OUT.json [--sizes 1024,8192] [--radii 1,2] [--rounds N]

For single-channel images and square filters it times, cold and warm: the textbook kernel (everything through L1 and
L2), the filter in constant memory, the image through the texture unit, the halo tile in shared memory, and the tile
in shared memory with its halo through the caches; beside them PyTorch's cuDNN with cudnn.benchmark on. Every answer
is checked against float64 first. Reported: microseconds, GB/s of compulsory traffic (image read once, written
once), and the fraction of a device-to-device copy of the same size timed in the same rounds.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import statistics
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cupy
import torch

import convgen
from convgen import measure
from convgen.compiler import compile_cuda
from convgen.lowering import lower
from convgen.problem import Conv
from convgen.reference import bound, compare, reference, strict_model
from convgen.render import render
from convgen.runtime import cuda
from convgen.strategies import get_strategy
from convgen.target import Target

TEXTBOOK = ("along_x=column,threads_channel=1,threads_column=256,tile_b=1,tile_channel=1,tile_position=1,vector=1,"
            "filter=global,input=global,split_q=1,split_taps=1")  # fmt: skip


@dataclass(frozen=True)
class Variant:
    """One contestant of ours: a strategy and the config that makes the point; None is the strategy's default."""

    name: str
    strategy: str
    config: str | None


VARIANTS = (
    Variant("naive", "direct", TEXTBOOK),
    Variant("constant", "direct", TEXTBOOK.replace("filter=global", "filter=constant")),
    Variant("texture", "direct", TEXTBOOK.replace("global,input=global", "constant,input=texture")),
    Variant("direct", "direct", None),
    Variant("cache_halo", "cache_halo", None),
    Variant("halo_tiled", "halo_tiled", None),
)


def build(problem: Conv, variant: Variant, target: Target) -> Any:
    strategy = get_strategy(variant.strategy)
    default = strategy.default(problem, target)
    config = default if variant.config is None else type(default).parse(variant.config, default)
    plan = lower(problem, strategy, config, target)
    return cuda.load(plan, compile_cuda(render(plan), target)), str(config)


def verify(problem: Conv, program: Any) -> float:
    """Largest error over its bound on a random image; raises if it is over 1."""
    x = cupy.random.default_rng(1).standard_normal(problem.tensor("x").shape)
    w = cupy.random.default_rng(2).standard_normal(problem.tensor("w").shape)
    dtype = {"fp32": cupy.float32, "fp16": cupy.float16}[problem.dtype.value]
    x, w = x.astype(dtype), w.astype(dtype)
    got = program.run({"x": x, "w": w})["y"]
    inputs = {"x": x.astype(cupy.float64), "w": w.astype(cupy.float64)}
    expected = reference(problem, inputs, xp=cupy)
    outcome = compare(problem.outputs[0], got.astype(cupy.float64), expected,
                      bound(problem, inputs, expected, strict_model(problem), xp=cupy), xp=cupy)  # fmt: skip
    if not outcome.ok:
        raise SystemExit(f"{problem}: {outcome}")
    return float(outcome.max_ratio)


def study(size: int, radius: int, dtype: str, target: Target, rounds: int) -> list[dict[str, Any]]:
    taps = 2 * radius + 1
    problem = Conv.of("conv2d", n=1, c=1, k=1, spatial=size, filter=taps, pad=radius, dtype=dtype)
    torch_dtype = {"fp32": torch.float32, "fp16": torch.float16}[dtype]
    sets = measure.buffer_sets(problem.bytes, target.l2_bytes)
    xs = [torch.randn(1, 1, size, size, device="cuda", dtype=torch_dtype) for _ in range(sets)]
    ys = [torch.empty_like(x) for x in xs]
    w = torch.randn(1, 1, taps, taps, device="cuda", dtype=torch_dtype)
    stream = cupy.cuda.Stream(non_blocking=True)
    side = torch.cuda.ExternalStream(stream.ptr)
    torch.cuda.synchronize()

    entries = []
    programs = {v.name: build(problem, v, target) for v in VARIANTS}
    checked = {name: verify(problem, program) for name, (program, _) in programs.items()}
    for caches, chosen in (("cold", range(sets)), ("warm", [0] * sets)):
        replays: dict[str, measure.Replay] = {}
        graphs = []
        for name, (program, _) in programs.items():
            work = [lambda i=i, p=program: p.run({"x": xs[i], "w": w}, {"y": ys[i]}, stream=stream) for i in chosen]
            replays[name] = measure.capture(stream, work)
        with torch.cuda.stream(side):
            for name, peer in (("cudnn", lambda i: torch.nn.functional.conv2d(xs[i], w, padding=radius)),
                               ("copy", lambda i: ys[i].copy_(xs[i]))):  # fmt: skip
                for i in chosen[:2]:
                    peer(i)
                side.synchronize()
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, stream=side):
                    for i in chosen:
                        peer(i)
                graphs.append(graph)
                replays[name] = measure.Replay(graph.replay, sets)
            times = measure.interleave(stream, replays, rounds)
        copy = statistics.median(times["copy"])
        for name, seconds in times.items():
            timing = measure.Timing.of(seconds)
            ratios = [c / t for c, t in zip(times["cudnn"], seconds, strict=True)]
            entries.append({
                "id": f"image-{size}-r{radius}", "family": "image_filter",
                "problem": str(problem), "dtype": dtype,
                "caches": caches, "variant": name, "config": programs[name][1] if name in programs else None,
                "us": round(timing.median * 1e6, 3),
                "spread_us": [round(timing.low * 1e6, 3), round(timing.high * 1e6, 3)],
                "gb_per_s": round(problem.bytes / timing.median / 1e9, 1),
                "of_copy": round(copy / timing.median, 4),
                "times_cudnn": round(statistics.median(ratios), 3),
                "error_over_bound": checked.get(name),
            })  # fmt: skip
    return entries


def meta(rounds: int) -> dict[str, Any]:
    def smi(field: str) -> str:
        device = cupy.cuda.Device().pci_bus_id
        return subprocess.run(["nvidia-smi", "-i", device, f"--query-gpu={field}", "--format=csv,noheader"],
                              capture_output=True, text=True, check=True).stdout.strip()  # fmt: skip

    return {
        "gpu": smi("name"), "driver": smi("driver_version"), "clocks": smi("clocks.sm,clocks.mem"),
        "cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version(), "torch": torch.__version__,
        "convgen": convgen.__version__, "date": datetime.date.today().isoformat(),
        "protocol": measure.PROTOCOL, "rounds": rounds,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--sizes", default="1024,2048,4096,8192")
    parser.add_argument("--radii", default="1,2,3,4,5")
    parser.add_argument("--dtypes", default="fp32,fp16")
    parser.add_argument("--rounds", type=int, default=15)
    args = parser.parse_args()
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = False
    target = Target.current()
    entries: list[dict[str, Any]] = []
    for dtype in args.dtypes.split(","):
        for size in map(int, args.sizes.split(",")):
            for radius in map(int, args.radii.split(",")):
                new = study(size, radius, dtype, target, args.rounds)
                entries += new
                for caches in ("cold", "warm"):
                    row = "  ".join(f"{e['variant']} {e['us']:9.2f}" for e in new if e["caches"] == caches)
                    print(f"{dtype} {size:5d} r{radius} {caches}  {row}", flush=True)
                args.out.write_text(json.dumps({"meta": meta(args.rounds), "entries": entries}, indent=1) + "\n")
    ratios = [e["times_cudnn"] for e in entries if e["variant"] == "halo_tiled"]
    geomean = math.exp(statistics.fmean(map(math.log, ratios)))
    print(f"halo_tiled over cuDNN: geomean {geomean:.2f}x, least {min(ratios):.2f}x")


if __name__ == "__main__":
    main()
