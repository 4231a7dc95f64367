"""Plans on the CPU: built by the simulator, run on NumPy arrays."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from convgen.errors import SimulatorFault, UsageError
from convgen.plan import (
    Arg,
    CopyToSymbol,
    Launch,
    Memset,
    Plan,
    ScalarArg,
    SizeArg,
    TensorArg,
    TensorMapArg,
    TextureArg,
    WorkspaceArg,
    extent_at,
)
from convgen.problem import DType, Problem, TensorSpec
from convgen.runtime.arrays import wrong_names
from convgen.runtime.physical import check_array, check_writable, flat, unflat
from convgen.runtime.sampling import BlockSample
from convgen.simulator import (
    Argument,
    Block,
    BoundTensorMap,
    Copies,
    Fault,
    FaultKind,
    Library,
    Memory,
    Mode,
    Report,
    Texture,
    Unit,
)
from convgen.simulator import build as build_library

__all__ = ["BlockSample", "Mode", "SimProgram", "SimResult", "build"]

_ELEMENT_BYTES = {"float": 4, "int": 4, "unsigned": 4, "double": 8, "__half": 2, "__nv_bfloat16": 2, "half": 2}


@dataclass(frozen=True)
class SimResult:
    """A run's report, and which elements of each output it wrote (logical shape)."""

    report: Report
    written: Mapping[str, npt.NDArray[np.bool_]]

    def require_clean(self) -> None:
        """Raise SimulatorFault that tells every fault, if there is one."""
        if self.report.faults:
            raise SimulatorFault("\n".join(map(str, self.report.faults)))


@dataclass(frozen=True)
class SimProgram:
    """A plan whose source has been built for the CPU."""

    plan: Plan
    library: Library
    unit: int

    def run(
        self,
        inputs: Mapping[str, npt.NDArray[Any]],
        outputs: Mapping[str, npt.NDArray[Any]],
        *,
        blocks: BlockSample | None = None,
        workers: int | None = None,
        copies: Copies = Copies.LATE,
    ) -> SimResult:
        """Run the plan's steps. Arrays have logical shapes, any strides, and the storage type (bf16: uint16).

        `outputs` are filled; with `problem.accumulate` their values are read first. Elements that no block wrote
        are left as 0xFF bytes. `blocks` samples the last launch; earlier ones always run whole. `copies`: when
        asynchronous copies move their bytes.
        Raises UsageError for an array that is missing, none of the problem's, no NumPy array, of another shape, type or
        byte order, or an output that cannot be written; ProblemError for a size beyond the problem's bound;
        SimulatorFault for a copy past a symbol.
        """
        _check_names("inputs", inputs, self.plan.inputs)
        _check_names("outputs", outputs, self.plan.outputs)
        problem = self._problem(inputs)
        for spec in problem.inputs:
            check_array(spec, inputs[spec.name])
        for spec in problem.outputs:
            check_array(spec, outputs[spec.name])
            check_writable(spec, outputs[spec.name])
        run = _Run(self, problem, inputs, outputs, blocks, workers, copies)
        report = run.steps()
        return SimResult(report, run.results(outputs))

    def _problem(self, inputs: Mapping[str, npt.NDArray[Any]]) -> Problem:
        """The problem with its sizes fixed."""
        problem = self.plan.problem
        if not problem.runtime_sizes:
            return problem
        return problem.with_sizes(problem.sizes_of(lambda name: np.shape(inputs[name])))


def build(plans: Sequence[Plan], sources: Sequence[str], mode: Mode = Mode.CHECK) -> list[SimProgram]:
    """One program a plan, all in one library. Raises CompileError, DeviceError (no host compiler)."""
    units = [Unit(source, plan.kernels, f"{plan.name}.cu") for plan, source in zip(plans, sources, strict=True)]
    library = build_library(units, mode)
    return [SimProgram(plan, library, unit) for unit, plan in enumerate(plans)]


class _Run:
    def __init__(
        self,
        program: SimProgram,
        problem: Problem,
        inputs: Mapping[str, npt.NDArray[Any]],
        outputs: Mapping[str, npt.NDArray[Any]],
        blocks: BlockSample | None,
        workers: int | None,
        copies: Copies,
    ) -> None:
        self.program = program
        self.problem = problem
        self.sizes = problem.sizes
        self.sample = blocks
        self.workers = workers
        self.copies = copies
        self.memory = Memory()
        self.tensors: dict[str, Block] = {}
        for spec in problem.inputs:
            self._bind(spec, inputs, writable=False, filled=True)
        for spec in problem.outputs:
            self._bind(spec, outputs, writable=True, filled=problem.accumulate)
        self.workspace = {
            buffer.name: self.memory.allocate(
                buffer.name,
                extent_at(buffer.nbytes, self.sizes),
                writable=True,
                initialised=False,
                granule=_granule(program.plan, buffer.name),
            )
            for buffer in program.plan.workspace
        }

    def _bind(self, spec: TensorSpec, arrays: Mapping[str, npt.NDArray[Any]], *, writable: bool, filled: bool) -> None:
        array = arrays[spec.name]
        block = self.memory.allocate(
            spec.name, spec.nbytes, writable=writable, initialised=filled, granule=spec.dtype.itemsize
        )
        if filled:
            unflat(spec, block.bytes.view(array.dtype))[...] = array
        self.tensors[spec.name] = block

    def steps(self) -> Report:
        report = Report()
        launches = self.program.plan.launches
        for step in self.program.plan.steps:
            match step:
                case Launch():
                    report += self._launch(step, self.sample if step is launches[-1] else None)
                case CopyToSymbol():
                    self.memory.settle()
                    self._copy(step)
                case Memset():
                    self.memory.settle()
                    block = self._block(step.destination)
                    block.bytes[:] = step.value
                    block.mark_written()
        broken = [b.name for b in self.memory.blocks if b.writer is not None and not b.canaries_intact()]
        known = any(f.kind is FaultKind.OUT_OF_BOUNDS for f in report.faults)
        if broken and not known:
            detail = f"write beyond the ends of {', '.join(broken)}"
            report += Report((Fault(FaultKind.OUT_OF_BOUNDS, self.program.plan.name, (), *_NOWHERE, detail),))
        return report

    def _launch(self, step: Launch, sample: BlockSample | None) -> Report:
        x, y, z = (extent_at(extent, self.sizes) for extent in step.grid)
        grid = (x, y, z)
        if 0 in grid:
            return Report()
        return self.program.library.launch(
            self.program.unit,
            step.kernel,
            grid,
            step.block,
            step.shared_bytes,
            [self._argument(arg) for arg in step.args],
            self.memory,
            cluster=step.cluster,
            is_early=step.is_early,
            blocks=None if sample is None else sample.pick(grid),
            workers=self.workers,
            copies=self.copies,
        )

    def _argument(self, arg: Arg) -> Argument:
        match arg:
            case TensorArg() | WorkspaceArg():
                return self._block(arg)
            case SizeArg(size):
                return self.sizes[size]
            case ScalarArg():
                return arg.value
            case TextureArg():
                half = self.problem.tensor(arg.tensor).dtype is DType.FP16
                height = extent_at(arg.height, self.sizes)
                return Texture(self.tensors[arg.tensor], arg.width, height, arg.pitch_bytes, half)
            case TensorMapArg():
                return BoundTensorMap(self._block(arg.source), arg.at(self.sizes))

    def _block(self, arg: TensorArg | WorkspaceArg) -> Block:
        return self.tensors[arg.tensor] if isinstance(arg, TensorArg) else self.workspace[arg.buffer]

    def _copy(self, step: CopyToSymbol) -> None:
        address, size = self.program.library.symbol(self.program.unit, step.symbol)
        source = self._block(step.source)
        if step.nbytes > min(size, source.nbytes):
            raise SimulatorFault(
                f"copy of {step.nbytes} bytes from {source.name} ({source.nbytes}) to {step.symbol} ({size})"
            )
        ctypes.memmove(address, source.address, step.nbytes)

    def results(self, outputs: Mapping[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[np.bool_]]:
        written = {}
        for spec in self.problem.outputs:
            block = self.tensors[spec.name]
            got = block.bytes.view(outputs[spec.name].dtype)
            mask = self._written(spec, block, outputs[spec.name])
            outputs[spec.name][...] = unflat(spec, got)
            written[spec.name] = unflat(spec, mask)
        return written

    def _written(self, spec: TensorSpec, block: Block, before: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
        if self.sample is None:
            return np.ones(spec.size, bool)
        if self.program.library.mode is not Mode.FAST:
            return block.written_by_kernel()
        bits = np.dtype(f"u{spec.dtype.itemsize}")  # as integers: NaN differs from itself
        start = flat(spec, before).view(bits) if self.problem.accumulate else np.iinfo(bits).max
        return np.asarray(block.bytes.view(bits) != start)


def _check_names(what: str, arrays: Any, specs: Sequence[TensorSpec]) -> None:
    names = sorted(spec.name for spec in specs)
    if not isinstance(arrays, Mapping):
        raise UsageError(f"{what}: a {type(arrays).__qualname__}, expected a mapping of {', '.join(names)} to arrays")
    if set(arrays) != set(names):
        raise wrong_names(what, arrays, names)


_NOWHERE = ((0, 0, 0), (0, 0, 0))


def _granule(plan: Plan, buffer: str) -> int:
    """Element size of a workspace buffer, from the type of the parameters it is bound to; 1 if they differ."""
    sizes = {
        _ELEMENT_BYTES.get(param.ctype.replace("const", "").replace("__restrict__", "").strip("* "), 1)
        for launch in plan.launches
        for param, arg in zip(launch.kernel.params, launch.args, strict=True)
        if isinstance(arg, WorkspaceArg) and arg.buffer == buffer
    }
    return sizes.pop() if len(sizes) == 1 else 1
