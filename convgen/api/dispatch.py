"""From a call to running work. What a call needs is looked up by its signature; the first of its kind binds it.

A signature is all of a call but where its arrays lie: the operation, its options, the tuning setting, and of each array
shape, strides, dtype and device. The way from there to launches is taken once, and a table remembers where it led.
"""

from __future__ import annotations

import functools
import marshal
import threading
import weakref
from collections.abc import Callable, Collection, Hashable
from dataclasses import dataclass
from typing import Any

from convgen.api import host, settings
from convgen.api.arguments import EXACT, Options, Request, check_extras, described_shape, exact, plain, request
from convgen.api.choice import Chooser
from convgen.api.decision import Decider, Decision
from convgen.api.entries import NAMES, OUT, WEIGHT, Empty, Entry, OnGpu, Operands, bind, refuse_grad
from convgen.api.operands import Operand, check_same_place, check_writable, operand
from convgen.api.prepared import PreparedWeight
from convgen.api.settings import Setting
from convgen.compiler import compile_cuda
from convgen.errors import DeviceError
from convgen.plan import Plan
from convgen.problem import Conv
from convgen.render import render
from convgen.runtime.arrays import Library
from convgen.runtime.cuda import CudaProgram, load
from convgen.runtime.driver import is_capturing, relaxed_capture
from convgen.runtime.prepared import PreparedWeights
from convgen.runtime.sim import SimProgram
from convgen.runtime.transfer import has_gpu
from convgen.target import DEFAULT_TARGET, Target

MAX_CALLS = 4096
"""Signatures remembered; the oldest goes first."""


@dataclass(frozen=True, slots=True)
class _Call:
    """The first call of a signature, understood."""

    op: str
    options: tuple[Any, ...]
    setting: Setting
    wanted: Request
    operands: tuple[Operand, ...]
    free: Operands
    """The arrays as entries take them."""
    prepared: PreparedWeight | None


@dataclass(frozen=True, slots=True)
class _Bound:
    """`decision` is None where none was needed; `is_lasting`: whether later calls may use the entry."""

    entry: Entry
    decision: Decision | None = None
    target: Target | None = None
    is_lasting: bool = True


class Dispatcher:
    """What every call goes through; the package has one for its functions. Thread-safe.

    Programs stay loaded as long as it lives: there is one for each problem met, however many signatures it has.
    """

    def __init__(self, decider: Callable[[], Decider]) -> None:
        """`decider` is called when a decision first asks for one."""
        self.chooser = Chooser(functools.cache(decider))
        self._calls: dict[Hashable, Entry] = {}
        self._weights: weakref.WeakSet[PreparedWeight] = weakref.WeakSet()
        self._signatures: dict[type, Callable[[Any], Hashable]] = {}
        self._programs: dict[Hashable, CudaProgram] = {}
        self._simulated: dict[Hashable, SimProgram] = {}
        self._lock = threading.Lock()

    def call(self, op: str, given: Operands, options: tuple[Any, ...]) -> Any:
        """Compute `op` ("conv2d", …). Raises UsageError, ProblemError, NotApplicableError, DeviceError."""
        x, w, scale, shift, bias, residual, out = operands = given
        calls = self._calls
        if type(w) is PreparedWeight:
            calls, w = w.calls, None
            operands = (x, None, scale, shift, bias, residual, out)
        known = self._signatures
        try:
            # Written out, since a loop over the operands takes as long as all the rest.
            key = (
                op,
                marshal.dumps(options, EXACT),
                settings.current(),
                known[type(x)](x),
                None if w is None else known[type(w)](w),
                None if scale is None else known[type(scale)](scale),
                None if shift is None else known[type(shift)](shift),
                None if bias is None else known[type(bias)](bias),
                None if residual is None else known[type(residual)](residual),
                None if out is None else known[type(out)](out),
            )
            entry = calls[key]
        # A new signature, a new type of array, an option that is not plain, or an array that has no strides.
        except (KeyError, ValueError, TypeError, AttributeError, RuntimeError):
            understood = plain(options)
            return self._call_first(op, given, options) if understood is options else self.call(op, given, understood)
        return entry(operands)

    def prepare(
        self, op: str, weight: PreparedWeight, input: Any, extras: Collection[str], options: tuple[Any, ...]
    ) -> None:
        """Do now what the weights allow for calls like this. `input` is an array or a shape; `extras` names the other
        operands that calls will have. Raises as `call` does."""
        given = operand("weight", weight.weight)
        if isinstance(input, tuple | list):
            example = described_shape(tuple(input), given.described, options[Options._fields.index("layout")])
        else:
            other = operand("input", input)
            check_same_place((other, given))
            example = other.described
        wanted = request(op, example, given.described, extras, Options(*plain(options)))
        if given.library is None:
            if not has_gpu():
                return
            weight = weight.on_gpu()
            given = operand("weight", weight.weight)
        assert given.library is not None
        if 0 not in wanted.shape:
            with self.chooser.lock(wanted.problem):
                self._program(wanted, given.library, given.device, settings.current(), weight)

    def decisions(self) -> str:
        """The decisions taken so far, as text."""
        return self.chooser.decisions()

    def forget(self, problem: Conv | None = None) -> None:
        """Let the next call of a problem, or of every one, be decided anew."""
        self.chooser.forget(problem)
        with self._lock:
            for calls in (self._calls, *(weight.calls for weight in self._weights)):
                for key in [key for key, entry in list(calls.items()) if problem in (None, entry.problem)]:
                    calls.pop(key, None)

    # --- the first call of a signature ------------------------------------------------------------------------

    def _call_first(self, op: str, operands: Operands, options: tuple[Any, ...]) -> Any:
        call = self._understood(op, operands, options)
        problem = call.wanted.problem
        with self.chooser.lock(problem):
            while True:
                bound = self._bind(call)
                try:
                    y = bound.entry(call.free)
                    break
                except DeviceError as error:
                    # CUDA refuses some launches only when it is asked for them.
                    if bound.decision is None or bound.target is None or bound.decision.origin == "predicted":
                        raise
                    self.chooser.reject(problem, bound.target, bound.decision, error)
        if bound.is_lasting:
            self._keep(call, bound.entry)
        return y if operands[OUT] is None else operands[OUT]

    def _understood(self, op: str, operands: Operands, options: tuple[Any, ...]) -> _Call:
        prepared = operands[WEIGHT] if isinstance(operands[WEIGHT], PreparedWeight) else None
        arrays = list(operands) if prepared is None else [operands[0], prepared.weight, *operands[WEIGHT + 1 :]]
        found = {
            name: operand(name, array)
            for name, array in zip(NAMES, arrays, strict=True)
            if array is not None or name in ("input", "weight")
        }
        check_same_place(tuple(found.values()))
        extras = {name: other.described for name, other in found.items() if name not in ("input", "weight")}
        wanted = request(
            op, found["input"].described, found["weight"].described, extras.keys() - {"out"}, Options(*options)
        )
        check_extras(wanted, extras)
        if "out" in found:
            check_writable(found["out"])
        free = tuple(
            None if name not in found or (prepared is not None and name == "weight") else found[name].array
            for name in NAMES
        )
        refuse_grad(free)
        used = tuple(other for name, other in found.items() if prepared is None or name != "weight")
        for other in used:
            self._signatures.setdefault(type(other.array), other.signature)
        return _Call(op, options, settings.current(), wanted, used, free, prepared)

    def _keep(self, call: _Call, entry: Entry) -> None:
        signatures = [None if array is None else self._signatures[type(array)](array) for array in call.free]
        calls = self._calls if call.prepared is None else call.prepared.calls
        with self._lock:
            if call.prepared is not None:
                self._weights.add(call.prepared)
            while len(calls) >= MAX_CALLS:
                calls.pop(next(iter(calls)))
            calls[(call.op, exact(call.options), call.setting, *signatures)] = entry

    def _bind(self, call: _Call) -> _Bound:
        wanted, first = call.wanted, call.operands[0]
        library = first.library
        if library is None:
            return self._bind_host(call)
        [y] = wanted.problem.outputs
        make = library.maker(wanted.shape, wanted.strides, y.dtype, first.array)
        if 0 in wanted.shape:
            return _Bound(Empty(wanted, make, first.device, call.free))
        decision, program, state, is_lasting = self._program(wanted, library, first.device, call.setting, call.prepared)
        if call.prepared is not None and state is None:
            entry = OnGpu(wanted, program, make, first.device, call.free, weight=call.prepared.weight)
        else:
            short = bind(wanted, program, make, call.operands, state)
            entry = OnGpu(wanted, program, make, first.device, call.free, short, state)
        return _Bound(entry, decision, target_of(first.device), is_lasting)

    def _program(
        self, wanted: Request, library: Library, device: int, setting: Setting, prepared: PreparedWeight | None
    ) -> tuple[Decision, CudaProgram, PreparedWeights | None, bool]:
        """The decision, what runs it, what of it is prepared, and whether the same would come of asking again."""
        problem, target = wanted.problem, target_of(device)
        stream = library.current_stream(device)
        capturing = is_capturing(stream)
        if setting.mode == "on_miss" and not capturing and self.chooser.tune(problem, target, device, setting):
            self.forget(problem)

        def make(plan: Plan) -> tuple[CudaProgram, PreparedWeights | None]:
            key = (device, plan.problem, plan.strategy, plan.config)
            program = self._programs.get(key)
            if program is None:
                binary = compile_cuda(render(plan), target, name=f"{plan.name}.cu")
                program = self._programs[key] = load(plan, binary)
            if prepared is None:
                program.load_on(device, stream)
                return program, None
            state = prepared.states.get(program)
            # What a graph captured would be done anew at each of its launches.
            if state is None and not capturing:
                state = prepared.states[program] = program.prepare(prepared.weight)
            return program, state

        # A first call may come while a graph is captured: it loads code and asks for the device's properties.
        with relaxed_capture():
            decision, (program, state) = self.chooser.choose(problem, target, setting, wanted.workspace_limit, make)
        is_lasting = not capturing or (setting.mode != "on_miss" and (prepared is None or state is not None))
        return decision, program, state, is_lasting

    def _bind_host(self, call: _Call) -> _Bound:
        if has_gpu():

            def through(operands: Operands) -> Any:
                return self.call(call.op, operands, call.options)

            return _Bound(host.ThroughGpu(call.wanted, through, call.prepared))
        if call.setting.mode == "on_miss":
            self.chooser.tell("tuning('on_miss') measures nothing without a GPU: what is known is used, as by 'cached'")
        target = Target.preset(DEFAULT_TARGET)

        def make(plan: Plan) -> SimProgram:
            key = (plan.problem, plan.strategy, plan.config)
            if key not in self._simulated:
                self._simulated[key] = host.build_for_cpu(plan)
            return self._simulated[key]

        limit = call.wanted.workspace_limit
        decision, program = self.chooser.choose(call.wanted.problem, target, call.setting, limit, make)
        return _Bound(host.InSimulator(call.wanted, program, call.prepared), decision, target)


@functools.cache
def target_of(device: int) -> Target:
    """The GPU of that number."""
    return Target.current(device)
