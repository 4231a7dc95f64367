"""`convgen compile PROBLEM`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from convgen.artifact import EMIT, Artifact, write_artifacts
from convgen.cli.options import (
    PROBLEM_HELP,
    add_target,
    folder,
    gpu_target,
    read_config,
    read_problem,
    read_target,
    read_words,
)
from convgen.cli.output import duration, note, print_json, printable, quantity, table
from convgen.compiler import Binary, compile_cuda
from convgen.errors import DeviceError
from convgen.lowering import lower
from convgen.plan import Plan
from convgen.problem import Problem
from convgen.render import render
from convgen.resources import KernelReport, report
from convgen.space import Config
from convgen.strategies import Strategy, get_strategy
from convgen.target import Target
from convgen.verify import Backend, Settings, VerifyResult, verify_plan


def add(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "compile",
        parents=[common],
        help="write a kernel's source, binary and manifest",
        description="Writes the files, then verifies the kernel. Exit status 4 if it does not compile, 5 if its answer "
        "is wrong. Where it cannot be verified, as for want of memory or of a compiler for the simulator, the files "
        "stand, stderr says why, and the exit status is 0.",
    )
    parser.add_argument("problem", nargs="+", metavar="PROBLEM", help=PROBLEM_HELP)
    parser.add_argument("--strategy", metavar="NAME", help="default: the best known, tuned or predicted")
    parser.add_argument("--config", metavar="K=V,…", help="fields of the config; the others keep their default")
    add_target(parser)
    parser.add_argument("-o", "--output", metavar="DIR", type=folder, help="default: a folder named after the kernel")
    parser.add_argument("--emit", metavar="KIND,…", default="cu,cubin", help=f"some of {','.join(EMIT)}")
    parser.add_argument(
        "--verify",
        choices=("auto", "no"),
        default="auto",
        help="auto: run it on the GPU if that is the target, else in the simulator (sampled blocks if it is large)",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Compile one problem, write its files, verify it."""
    emit = read_words("--emit", args.emit, EMIT)
    problem = read_problem(args.problem)
    target = read_target(args)
    strategy, config, origin = _chosen(args, problem, target)
    plan = lower(problem, strategy, config, target)
    source = render(plan)
    binary = compile_cuda(source, target, name=f"{plan.name}.cu")
    artifact = write_artifacts(plan, source, binary, args.output or Path(plan.name), emit)
    if not args.json:
        print(_text(plan, binary, artifact, origin))
    result = _verify(plan, target) if args.verify == "auto" else None
    if args.json:
        files = {kind: [str(path) for path in paths] for kind, paths in artifact.files.items()}
        print_json({**artifact.manifest, "written": files, "verification": result.as_json() if result else None})
    elif result is not None:
        print(result.sentence())
    return result.exit_code if result else 0


def _chosen(args: argparse.Namespace, problem: Problem, target: Target) -> tuple[Strategy, Config | None, str]:
    """The strategy and config asked for, else the best known; and where that comes from."""
    if args.strategy is not None:
        strategy = get_strategy(args.strategy)
        return strategy, read_config(args.config, strategy, problem, target), ""
    from convgen.tuner.decide import decide
    from tuning_db import open_layers

    decision = decide(problem, target, open_layers(read_only=True))
    if args.config is not None:
        return decision.strategy, read_config(args.config, decision.strategy, problem, target), ""
    return decision.strategy, decision.config, decision.sentence()


def _verify(plan: Plan, target: Target) -> VerifyResult | None:
    gpu = gpu_target()
    here = gpu is not None and gpu.compute_capability == target.compute_capability
    backend: Backend = "cuda" if here else "sim"
    try:
        return verify_plan(plan, Settings(target, backend))
    except DeviceError as error:
        note(f"not verified: {error}")
        return None


def _text(plan: Plan, binary: Binary, artifact: Artifact, chosen: str) -> str:
    origin = "from the cache" if binary.cached else f"in {duration(binary.seconds)}"
    lines = [
        str(plan.problem),
        f"{plan.strategy}: {plan.config}",
        *([printable(chosen)] if chosen else []),
        f"target {plan.target}, {binary.compiler}, compiled {origin}",
        "",
        table([row for kernel in report(plan, binary.kernels) for row in _kernel_rows(kernel)]),
    ]
    if plan.workspace:
        lines.append(f"  workspace: {quantity(plan.workspace_bytes(plan.problem.sizes), 'B')}")
    lines += [f"warning: {text}" for kernel in report(plan, binary.kernels) for text in kernel.warnings]
    files = [(path.name, quantity(path.stat().st_size, "B")) for paths in artifact.files.values() for path in paths]
    lines += ["", f"files in {artifact.directory}", table(files)]
    return "\n".join(lines)


def _kernel_rows(kernel: KernelReport) -> list[tuple[str, str]]:
    r, o = kernel.resources, kernel.occupancy
    grid, block, cluster = ("x".join(map(str, dims)) for dims in (kernel.grid, kernel.block, kernel.cluster))
    clusters = f", clusters of {cluster} blocks" if cluster != "1x1x1" else ""
    memory = f"{kernel.shared_bytes} B shared, {r.constant} B constant, {r.stack} B stack"
    return [
        ("kernel", r.name),
        ("launch", f"{grid} blocks of {block} threads{clusters}"),
        ("uses", f"{r.registers} registers, {memory}"),
        ("spills", f"{r.spill_stores} B stored, {r.spill_loads} B loaded"),
        ("occupancy", f"{o.fraction:.0%}: {o.blocks_per_sm} blocks an SM, limited by {o.limiter}"),
    ]
