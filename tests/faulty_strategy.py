"""A strategy that is right, or wrong in the way its config says: for the tests of what must survive it."""

from __future__ import annotations

import errno
import math
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from convgen.errors import ConfigError
from convgen.plan import Arg, Buffer, Kernel, Launch, Param, Plan, TensorArg, WorkspaceArg
from convgen.problem import Conv, Direction, DType, Layout, PadMode
from convgen.space import Config, Space
from convgen.strategies.common import kernel_name
from convgen.target import Target

TEMPLATE = Path(__file__).resolve().parent / "faulty_templates" / "faulty.cu.j2"

STATUSES = {
    "none": "ok",
    "wrong_element": "wrong_result",
    "illegal_address": "illegal_access",
    "canary": "illegal_access",
    "endless_loop": "hang",
    "launch_failure": "launch_failure",
    "out_of_memory": "out_of_memory",
    "compile_error": "compile_error",
    "slow_compile": "compile_timeout",
    "kill_worker": "worker_died",
}
"""What a tuner is to call each fault. On a GPU no kernel kills its process: there `kill_worker` is right."""

SIMULATED = STATUSES | {"endless_loop": "run_timeout"}
"""The same in the simulator, where what takes long may be right."""

THREADS = (32, 64, 128, 256)
BEST = 128
"""Block size that the cost model prefers."""


@dataclass(frozen=True)
class FaultyConfig(Config):
    fault: str
    threads: int


class Faulty:
    """See `Strategy`. 2-D fprop in fp32, channels first, one group, no epilogue."""

    solves = Conv
    template = str(TEMPLATE)
    calibrated = True
    name = "faulty"
    summary = "the textbook kernel with faults to order"

    def why_not(self, problem: Conv, target: Target) -> str | None:
        plain = (
            problem.op == "conv2d"
            and problem.direction is Direction.FPROP
            and problem.dtype is DType.FP32
            and problem.layout is Layout.CHANNELS_FIRST
            and problem.pad_mode is PadMode.ZEROS
            and (problem.groups, problem.stride, problem.dilation) == (1, (1, 1), (1, 1))
            and not (problem.is_runtime_batch or problem.accumulate or problem.epilogue.operands)
        )
        return None if plain else "it computes plain 2-D convolutions alone"

    def space(self, problem: Conv, target: Target) -> Space:
        return Space(FaultyConfig, {"fault": tuple(STATUSES), "threads": THREADS})

    def check(self, problem: Conv, config: FaultyConfig, target: Target) -> None:
        if config.fault not in STATUSES or config.threads not in THREADS:
            raise ConfigError(f"{config}: expected one of {', '.join(STATUSES)}, and threads of {THREADS}")

    def default(self, problem: Conv, target: Target) -> FaultyConfig:
        return FaultyConfig("none", THREADS[0])

    def cost(self, problem: Conv, config: FaultyConfig, target: Target) -> float:
        return 1e-5 * (1 + 0.2 * abs(math.log2(config.threads / BEST)))

    def lower(self, problem: Conv, config: FaultyConfig, target: Target) -> Plan:
        if config.fault == "slow_compile":
            time.sleep(600)
        name = kernel_name(problem, self.name, config)
        params = [Param("x", "const float*"), Param("w", "const float*"), Param("y", "float*")]
        args: list[Arg] = [TensorArg("x"), TensorArg("w"), TensorArg("y")]
        workspace = ()
        if config.fault == "out_of_memory":
            params.append(Param("unused", "float*"))
            args.append(WorkspaceArg("unused"))
            workspace = (Buffer("unused", 1 << 45),)
        kernel = Kernel(name, tuple(params))
        threads = 2048 if config.fault == "launch_failure" else config.threads
        blocks = -(-problem.outputs[0].size // config.threads)
        return Plan(
            problem=problem,
            strategy=self.name,
            config=config,
            target=target,
            template=self.template,
            constants={
                "kernel": name, "problem": str(problem), "config": str(config), "fault": config.fault,
                "n": problem.n, "c": problem.c, "k": problem.k, "in_h": problem.spatial[0], "in_w": problem.spatial[1],
                "out_h": problem.out[0], "out_w": problem.out[1],
                "filter_h": problem.filter[0], "filter_w": problem.filter[1],
                "pad_h": problem.pad_lo[0], "pad_w": problem.pad_lo[1],
            },
            kernels=(kernel,),
            steps=(Launch(kernel, (blocks, 1, 1), (threads, 1, 1), tuple(args)),),
            workspace=workspace,
        )  # fmt: skip


class Crashing(Faulty):
    """Takes the process down that lowers it."""

    name = "crashing"

    def lower(self, problem: Conv, config: FaultyConfig, target: Target) -> Plan:
        os.abort()


class Hindered(Faulty):
    """Meets with what is wrong with the machine: no memory, or whoever kills what takes too much of it."""

    name = "hindered"

    def lower(self, problem: Conv, config: FaultyConfig, target: Target) -> Plan:
        if config.fault == "kill_worker":
            os.kill(os.getpid(), signal.SIGKILL)
        if config.fault == "out_of_memory":
            raise MemoryError
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/tmp/kernel")


class Raising(Faulty):
    """Has a bug."""

    name = "raising"

    def lower(self, problem: Conv, config: FaultyConfig, target: Target) -> Plan:
        raise ZeroDivisionError("a bug of the strategy's")


FAULTY, CRASHING, HINDERED, RAISING = Faulty(), Crashing(), Hindered(), Raising()
