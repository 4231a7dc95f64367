"""From a call to the program that computes it, looked up by the call's signature: what attention and layers share."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from convgen.api import host, settings
from convgen.api.arguments import exact, plain
from convgen.api.choice import Chooser
from convgen.api.decision import Decision
from convgen.api.dispatch import MAX_CALLS, target_of
from convgen.api.entries import refuse_grad
from convgen.api.operands import Operand, check_same_place
from convgen.compiler import compile_cuda
from convgen.errors import DeviceError
from convgen.plan import Plan
from convgen.problem import Problem
from convgen.render import render
from convgen.runtime.cuda import CudaProgram, load
from convgen.runtime.driver import is_capturing, relaxed_capture
from convgen.runtime.sim import SimProgram
from convgen.runtime.transfer import has_gpu
from convgen.target import DEFAULT_TARGET, Target


class Understood(Protocol):
    """A call whose arguments fit each other."""

    @property
    def problem(self) -> Problem: ...
    @property
    def workspace_limit(self) -> int | None: ...


Request = TypeVar("Request", bound=Understood)


@dataclass(frozen=True, slots=True)
class Entry(Generic[Request]):
    """What calls of one signature need."""

    wanted: Request
    program: CudaProgram | SimProgram | None
    """None where NumPy arrays are computed on a GPU: they are a call of another signature there."""
    decision: Decision | None = None
    target: Target | None = None


class Calls(Generic[Request]):
    """The calls of one kind, each bound when its signature is first seen. Thread-safe."""

    def __init__(
        self, chooser: Chooser, first: str, understand: Callable[[Mapping[str, Operand], Any], Request]
    ) -> None:
        """`first` names the array that tells device and library; `understand` makes a request of arrays and options,
        and raises UsageError or ProblemError for what does not fit."""
        self._chooser = chooser
        self._first = first
        self._understand = understand
        self._entries: dict[Hashable, Entry[Request]] = {}
        self._programs: dict[Hashable, CudaProgram | SimProgram] = {}
        self._lock = threading.Lock()

    def run(self, found: Mapping[str, Operand], options: Any, work: Callable[[Entry[Request]], Any]) -> Any:
        """What `work` makes of all that a call with these arrays needs.

        Raises UsageError, ProblemError, NotApplicableError, DeviceError.
        """
        refuse_grad(tuple(o.array for o in found.values()), tuple(found))
        while True:
            entry = self._entry(found, options)
            try:
                return work(entry)
            except DeviceError as error:
                # CUDA refuses some launches only when it is asked for them.
                if entry.decision is None or entry.target is None or entry.decision.origin == "predicted":
                    raise
                self._chooser.reject(entry.wanted.problem, entry.target, entry.decision, error)
                self._forget(entry.wanted.problem)

    def _entry(self, found: Mapping[str, Operand], options: Any) -> Entry[Request]:
        given = tuple(options)
        try:
            return self._entries[self._key(found, given)]
        except (KeyError, ValueError):  # a new signature, or an option that is not plain
            understood = plain(given)
        if understood is not given:
            return self._entry(found, options._make(understood))
        entry = self._bind(found, options)
        if entry.program is None or not _is_capturing(found[self._first]):
            with self._lock:
                while len(self._entries) >= MAX_CALLS:
                    self._entries.pop(next(iter(self._entries)))
                self._entries[self._key(found, given)] = entry
        return entry

    def _key(self, found: Mapping[str, Operand], options: tuple[Any, ...]) -> Hashable:
        signatures = ((name, type(o.array), o.signature(o.array)) for name, o in found.items())
        return (exact(options), settings.current(), *signatures)

    def _forget(self, problem: Problem) -> None:
        """Let the next call of a problem be decided anew."""
        with self._lock:
            for key in [key for key, entry in self._entries.items() if entry.wanted.problem == problem]:
                del self._entries[key]

    def _bind(self, found: Mapping[str, Operand], options: Any) -> Entry[Request]:
        check_same_place(tuple(found.values()))
        wanted = self._understand(found, options)
        first = found[self._first]
        if first.library is None and has_gpu():
            return Entry(wanted, None)
        setting, problem = settings.current(), wanted.problem
        target = Target.preset(DEFAULT_TARGET) if first.library is None else target_of(first.device)

        def make(plan: Plan) -> CudaProgram | SimProgram:
            place = (first.device, plan.problem, plan.strategy, plan.config)
            if place not in self._programs:
                if first.library is None:
                    self._programs[place] = host.build_for_cpu(plan)
                else:
                    self._programs[place] = load(plan, compile_cuda(render(plan), target, name=f"{plan.name}.cu"))
            program = self._programs[place]
            if first.library is not None and isinstance(program, CudaProgram):
                program.load_on(first.device, first.library.current_stream(first.device))
            return program

        # A first call may come while a graph is captured: it loads code and asks for the device's properties.
        relaxed = contextlib.nullcontext() if first.library is None else relaxed_capture()
        with self._chooser.lock(problem), relaxed:
            tuning = first.library is not None and setting.mode == "on_miss" and not _is_capturing(first)
            if tuning and self._chooser.tune(problem, target, first.device, setting):
                self._forget(problem)
            decision, program = self._chooser.choose(problem, target, setting, wanted.workspace_limit, make)
        return Entry(wanted, program, decision, target)


def _is_capturing(first: Operand) -> bool:
    return first.library is not None and is_capturing(first.library.current_stream(first.device))
