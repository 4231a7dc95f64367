"""The compile pool: candidates to binaries, on as many cores as asked, in processes that may hang or crash."""

from __future__ import annotations

import dataclasses
import functools
import re
import signal
import time
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Literal

from convgen.cache import content_key
from convgen.compiler import Binary, compile_cuda
from convgen.errors import CompileError, ConvgenError, DeviceError
from convgen.lowering import lower
from convgen.plan import Plan
from convgen.problem import Problem
from convgen.processes import Announce, Child, ChildDied, ChildHung, ChildNotStarted, ChildRaised, Pool, Serve
from convgen.render import render
from convgen.space import Config
from convgen.strategies import Strategy
from convgen.target import Target

Backend = Literal["cuda", "sim"]
BuildStatus = Literal["ok", "compile_error", "compile_timeout", "worker_died", "failed"]


@dataclass(frozen=True)
class Build:
    """A candidate made ready to run, or the reason it is not. For the simulator there is no binary."""

    strategy: str
    config: Config
    plan: Plan | None = None
    binary: Binary | None = None
    source: str = ""
    source_key: str = ""
    """Equal for candidates that are the same program; "" if it was not rendered."""
    predicted: float | None = None
    """Seconds, by the strategy's cost model."""
    status: BuildStatus = "ok"
    reason: str = ""
    seconds: float = 0.0
    """What building took."""


@dataclass(frozen=True)
class _Task:
    problem: Problem
    strategy: Strategy
    config: Config
    target: Target


class Builder:
    """`workers` processes that lower, render and compile, each stopped and replaced after `timeout` seconds of a task.

    They start when there is work for them, and are kept. A strategy must be picklable: defined in a module.
    """

    def __init__(self, workers: int, timeout: float, *, backend: Backend = "cuda") -> None:
        self.workers = workers
        self._timeout = timeout
        self._closed = False
        self._pool = Pool(workers, _server, backend, name="building")

    def submit(self, problem: Problem, strategy: Strategy, config: Config, target: Target) -> Future[Build]:
        """Build a candidate; whatever is wrong with it is the build's status. Can be cancelled until it begins.

        Its result raises DeviceError for what is wrong with the machine (no compiler, memory or space), ChildDied if
        the builder was closed meanwhile.
        """
        return self._pool.submit(functools.partial(self._build, _Task(problem, strategy, config, target)))

    def close(self) -> None:
        """End all processes at once."""
        self._closed = True
        self._pool.close()

    def _build(self, task: _Task, child: Child) -> Build:
        began = time.perf_counter()

        def lost(status: BuildStatus, reason: str) -> Build:
            seconds = time.perf_counter() - began
            return Build(task.strategy.name, task.config, status=status, reason=reason, seconds=seconds)

        try:
            reply: Build | DeviceError = child.call(task, self._timeout)
        except ChildHung as error:
            return lost("compile_timeout", f"building it took longer than {error.seconds:g} s and was stopped")
        except ChildDied as error:
            if self._closed:
                raise
            if isinstance(error, ChildNotStarted) or error.signal == signal.SIGKILL:
                raise DeviceError(f"free memory, or build with fewer processes (--jobs): {error}") from error
            return lost("worker_died", str(error))
        except ChildRaised as error:
            return lost("failed", str(error))
        if isinstance(reply, DeviceError):
            raise reply
        return reply


def _server(backend: Backend) -> Serve:
    return functools.partial(_built, backend)


def _built(backend: Backend, task: _Task, announce: Announce) -> Build | DeviceError:
    began = time.perf_counter()
    build = Build(task.strategy.name, task.config)
    try:
        plan = lower(task.problem, task.strategy, task.config, task.target)
        source = render(plan)
        predicted = task.strategy.cost(task.problem, task.config, task.target)
        build = dataclasses.replace(
            build, plan=plan, source=source, source_key=program_key(plan, source, backend), predicted=predicted
        )
        if backend == "cuda":
            build = dataclasses.replace(build, binary=compile_cuda(source, plan.target, name=f"{plan.name}.cu"))
    except DeviceError as error:
        return error
    except (OSError, MemoryError) as error:
        return DeviceError(f"{task.strategy.name} cannot be built on this machine: {error!r}")
    except CompileError as error:
        build = dataclasses.replace(build, status="compile_error", reason=str(error))
    except ConvgenError as error:
        build = dataclasses.replace(build, status="failed", reason=str(error))
    return dataclasses.replace(build, seconds=time.perf_counter() - began)


def program_key(plan: Plan, source: str, backend: Backend) -> str:
    """A hash of what runs: the code but for comments and kernels' names, the launches, the architecture.

    Two configs may make the same program; their names, and the comment that tells the config, differ all the same.
    """
    code = re.sub(r"//[^\n]*", "", source)
    # What was recorded before launches could have clusters, or be early, or extents a constant part, has no word of it.
    steps = repr((plan.steps, plan.workspace))
    for unused in (", cluster=(1, 1, 1)", ", is_early=False", ", plus=0"):
        steps = steps.replace(unused, "")
    for number, name in enumerate(sorted((kernel.name for kernel in plan.kernels), key=len, reverse=True)):
        code, steps = (text.replace(name, f"kernel_{number}") for text in (code, steps))
    lines = filter(None, map(str.strip, code.splitlines()))
    return content_key(backend, plan.target.arch, "\n".join(lines), steps)
