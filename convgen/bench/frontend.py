"""cuDNN through its own frontend, where `nvidia-cudnn-frontend` is installed: the best plan of all it offers.

PyTorch's cudnn.benchmark tries the few engines that a heuristic names first. Here every plan that both heuristics name
is built and timed, in both memory formats, as long as SWEEP_SECONDS allow.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from convgen import measure
from convgen.bench.contest import sentence
from convgen.bench.peers import Arrays, Refused, TorchPeers, forms
from convgen.bench.torch_calls import unsqueezed, why_not
from convgen.measure import Replay
from convgen.problem import Conv, Direction, DType, PadMode, TensorSpec

NAME = "cudnn_frontend"
SWEEP_SECONDS = 5.0
"""For each memory format of a problem."""

RUNS = 3
"""Calls of which the fastest ranks a plan."""


def contestant(problem: Conv, peers: TorchPeers, sets: Sequence[Arrays]) -> SweepContestant | Refused | None:
    """The best plan as a contestant; None if the frontend is not installed. Never raises: what fails is the reason."""
    try:
        import cudnn
    except ImportError:
        return None
    reason = why_not(problem) or _bare(problem)
    if reason is not None:
        return Refused(NAME, reason)
    best: SweepContestant | None = None
    reasons: list[str] = []
    for suffix, found_form in forms(problem):
        form = unsqueezed(found_form) if found_form.nd == 1 else found_form
        try:
            found = _sweep(cudnn, problem, form, peers, sets)
        except Exception as error:  # a young library, with an error of its own for everything
            reasons.append(f"{suffix}: {sentence(error)}")
            continue
        if best is None or found.seconds < best.seconds:
            best = found
    return best or Refused(NAME, "; ".join(reasons))


def _bare(problem: Conv) -> str | None:
    if problem.pad_mode is not PadMode.ZEROS:
        return f"cuDNN pads with zeros only, not pad_mode={problem.pad_mode.value}"
    if not problem.epilogue.is_identity or problem.accumulate:
        return "the sweep covers a convolution without an epilogue"
    if problem.out_dtype is not problem.dtype.storage:
        return f"the sweep covers outputs of the operands' type, not {problem.out_dtype}"
    return None


@dataclass(frozen=True)
class _Built:
    """A graph whose plans can be executed; `bind` gives the tensors for a set of buffers."""

    graph: Any
    handle: Any
    workspace: Any
    bind: Callable[[int], dict[Any, Any]]

    def execute(self, index: int, plan: int) -> None:
        self.graph.execute_plan_at_index(self.bind(index), self.workspace, plan, handle=self.handle)


class SweepContestant:
    """A chosen plan. See `contest.Contestant`."""

    def __init__(self, built: _Built, plan: int, seconds: float, outputs: list[Any], peers: TorchPeers) -> None:
        self.name = NAME
        self.seconds = seconds
        self._built = built
        self._plan = plan
        self._outputs = outputs
        self._peers = peers

    def run(self, index: int) -> Any:
        """One call."""
        self._built.execute(index, self._plan)
        return self._outputs[index]

    def answers(self, specs: Sequence[TensorSpec]) -> Mapping[str, Any]:
        """The one output for the first set of buffers, as a CuPy array in logical order."""
        [spec] = specs
        result = self.run(0)
        self._peers.stream.synchronize()
        return {spec.name: self._peers.array(result, spec)}

    def capture(self, repetitions: int) -> Replay:
        """The plan allocates nothing, so it is captured exactly as ours."""
        sets = len(self._outputs)
        return measure.capture(self._peers.stream, [partial(self.run, index % sets) for index in range(repetitions)])


def _sweep(cudnn: Any, problem: Conv, form: Conv, peers: TorchPeers, sets: Sequence[Arrays]) -> SweepContestant:
    """Build every plan, time each, keep the fastest. Raises if none can be built and run."""
    began = time.monotonic()
    tensors = peers.tensors(problem, form, sets)
    outputs = [peers.like(form.outputs[0]) for _ in sets]
    handle = _handle(cudnn, peers.stream.ptr)
    graph, ports = _graph(cudnn, form, handle)
    graph.validate()
    graph.build_operation_graph()
    graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
    notes = cudnn.numerical_note
    exact = [notes.TENSOR_CORE] if form.dtype is DType.FP32 else []
    graph.deselect_numeric_notes([notes.DOWN_CONVERT_INPUTS, *exact])
    graph.check_support()
    plans: list[tuple[int, int]] = []
    for plan in range(graph.get_execution_plan_count()):
        if plans and time.monotonic() - began > SWEEP_SECONDS:
            break
        try:
            graph.build_plan_at_index(plan)
            plans.append((plan, graph.get_workspace_size_plan_at_index(plan)))
        except Exception:  # one that is barred, or not supported after all
            continue
    nbytes = max((size for _, size in plans), default=0)
    workspace = peers.workspace(max(nbytes, 1))

    def bind(index: int) -> dict[Any, Any]:
        values = {**tensors[index], form.outputs[0].name: outputs[index]}
        return {port: values[name] for name, port in ports.items()}

    built = _Built(graph, handle, workspace, bind)
    timed: list[tuple[float, int]] = []
    for plan, _ in plans:
        try:
            timed.append((_fastest(built, plan, peers), plan))
        except Exception:
            continue
        if time.monotonic() - began > 2 * SWEEP_SECONDS:
            break
    if not timed:
        raise RuntimeError(f"none of {graph.get_execution_plan_count()} plans could be built and run")
    seconds, best = min(timed)
    return SweepContestant(built, best, seconds, outputs, peers)


@functools.cache
def _handle(cudnn: Any, stream: int) -> Any:
    handle = cudnn.create_handle()
    cudnn.set_stream(handle=handle, stream=stream)
    return handle


def _fastest(built: _Built, plan: int, peers: TorchPeers) -> float:
    cuda = peers.cupy.cuda
    times = []
    for _ in range(RUNS + 1):
        begin, end = cuda.Event(), cuda.Event()
        begin.record(peers.stream)
        built.execute(0, plan)
        end.record(peers.stream)
        end.synchronize()
        times.append(float(cuda.get_elapsed_time(begin, end)) * 1e-3)
    return min(times[1:])


def _graph(cudnn: Any, form: Conv, handle: Any) -> tuple[Any, dict[str, Any]]:
    """cuDNN's description of the problem, and its tensors by our names. A transposed convolution is a dgrad."""
    kind = {DType.FP32: "FLOAT", DType.FP16: "HALF", DType.BF16: "BFLOAT16"}[form.dtype.storage]
    element, exact = getattr(cudnn.data_type, kind), cudnn.data_type.FLOAT
    graph = cudnn.pygraph(io_data_type=element, intermediate_data_type=exact, compute_data_type=exact, handle=handle)
    ports = {
        spec.name: graph.tensor(name=spec.name, dim=list(spec.shape), stride=list(spec.strides), data_type=element)
        for spec in form.inputs
    }
    options = {
        "pre_padding": list(form.pad_lo),
        "post_padding": list(form.pad_hi),
        "stride": list(form.stride),
        "dilation": list(form.dilation),
    }
    [output] = form.outputs
    fine, coarse = ("y", "x") if form.transposed else ("x", "y")
    named = {name.removeprefix("d"): port for name, port in ports.items()}
    if form.direction is Direction.WGRAD:
        result = graph.conv_wgrad(image=named[fine], loss=named[coarse], **options)
    elif output.name.removeprefix("d") == coarse:
        result = graph.conv_fprop(image=named[fine], weight=named["w"], **options)
    else:
        result = graph.conv_dgrad(loss=named[coarse], filter=named["w"], **options)
    result.set_output(True).set_data_type(element).set_dim(list(output.shape)).set_stride(list(output.strides))
    return graph, {**ports, output.name: result}
