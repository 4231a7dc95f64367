"""cuDNN and PyTorch as contestants: on the same numbers and stream, captured in a graph as often as ours.

Where the layout is the same, the tensors are the same memory as our arrays. PyTorch is imported here alone, and only
when a benchmark asks for peers.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from convgen.bench import torch_attention, torch_layers
from convgen.bench.torch_calls import DTYPES, Windowed, call_of, unsqueezed, why_not
from convgen.measure import Replay
from convgen.problem import Attention, BatchNorm, Conv, DType, Layout, Pool, Problem, TensorSpec

GROUPS = ("cudnn", "torch")
"""What `--against` chooses from: cuDNN's best engine by benchmark, and PyTorch as it comes (cudnn.benchmark off). Of
attention and batch normalisation: every backend of PyTorch's, and the one that it takes by itself."""

DEVICE = "cuda"

Arrays = Mapping[str, Any]


class Refused(NamedTuple):
    """A peer that cannot compute a problem, and why."""

    name: str
    reason: str


class TorchPeers:
    """PyTorch on one CuPy stream. Raises ImportError if it is not installed, RuntimeError if it sees no GPU."""

    def __init__(self, stream: Any, against: Collection[str]) -> None:
        import cupy
        import torch

        if not torch.cuda.is_available():
            raise RuntimeError(f"PyTorch {torch.__version__} sees no GPU")
        self.torch = torch
        self.cupy = cupy
        self.stream = stream
        self.against = tuple(against)
        self._side = torch.cuda.ExternalStream(stream.ptr)
        self._tensors: dict[tuple[Problem, Layout], list[dict[str, Any]]] = {}

    @property
    def versions(self) -> dict[str, str | None]:
        """Of PyTorch, and of the CUDA and cuDNN it brings."""
        number = self.torch.backends.cudnn.version()
        cudnn = None if number is None else f"{number // 10000}.{number // 100 % 100}.{number % 100}"
        return {"torch": str(self.torch.__version__), "cuda": self.torch.version.cuda, "cudnn": cudnn}

    @property
    def settings(self) -> dict[str, Any]:
        """What the times depend on besides the versions."""
        return {"benchmark_limit": self.torch.backends.cudnn.benchmark_limit}

    def contestants(self, problem: Problem, sets: Sequence[Arrays]) -> Iterator[TorchContestant | Refused]:
        """Each peer on each memory format. `sets` are our buffers: inputs, and for `accumulate` the output's old value
        as `old`. Raises what PyTorch raises for want of memory."""
        if isinstance(problem, Conv):
            yield from self._convolutions(problem, sets)
        elif isinstance(problem, Attention):
            yield from self._attentions(problem, sets)
        elif isinstance(problem, Pool | BatchNorm):
            yield from self._layers(problem, sets)

    def _convolutions(self, problem: Conv, sets: Sequence[Arrays]) -> Iterator[TorchContestant | Refused]:
        reason = why_not(problem)
        for group in self.against:
            for suffix, form in forms(problem):
                name = f"{group}_{suffix}"
                if reason is not None:
                    yield Refused(name, reason)
                    continue
                active = functools.partial(self.active, group == "cudnn", form.dtype is DType.TF32)
                tensors = self.tensors(problem, form, sets)
                yield TorchContestant(name, self, tensors, call_of(form, self.torch, self.like), active)

    def _attentions(self, problem: Attention, sets: Sequence[Arrays]) -> Iterator[TorchContestant | Refused]:
        reason = torch_attention.why_not(problem)
        tensors = [{spec.name: self._alias(arrays[spec.name], spec) for spec in problem.inputs} for arrays in sets]
        call = torch_attention.call_of(problem, self.torch)
        wanted = [f"sdpa_{name}" for name in torch_attention.BACKENDS] if "cudnn" in self.against else []
        for name in [*wanted, *(["sdpa"] if "torch" in self.against else [])]:
            if reason is not None:
                yield Refused(name, reason)
            else:
                yield TorchContestant(name, self, tensors, call, functools.partial(self._attending, name))

    def _layers(self, problem: Pool | BatchNorm, sets: Sequence[Arrays]) -> Iterator[TorchContestant | Refused]:
        wanted = dict.fromkeys(name for group in self.against for name in torch_layers.backends(problem, group))
        for backend, (suffix, form) in itertools.product(wanted, forms(problem)):
            name, reason = f"{backend}_{suffix}", torch_layers.why_not(form, backend)
            if reason is not None:
                yield Refused(name, reason)
                continue
            tensors = [self._with_own_statistics(form, some) for some in self.tensors(problem, form, sets)]
            call = torch_layers.call_of(form, backend, self.torch)
            yield TorchContestant(name, self, tensors, call, functools.partial(self.active, False, False))

    def _with_own_statistics(self, form: Pool | BatchNorm, tensors: dict[str, Any]) -> dict[str, Any]:
        """Training writes the running statistics it reads, which are other contestants' inputs as well."""
        if isinstance(form, Pool) or not (form.is_training and form.running):
            return tensors
        own = {name: tensors[name].clone() for name in torch_layers.STATISTICS}
        self.torch.cuda.synchronize()
        return tensors | own

    @contextlib.contextmanager
    def _attending(self, name: str) -> Iterator[None]:
        backend = torch_attention.BACKENDS.get(name.removeprefix("sdpa_"))
        attention = self.torch.nn.attention
        chosen = attention.sdpa_kernel(getattr(attention.SDPBackend, backend)) if backend else contextlib.nullcontext()
        with self.active(False, False), chosen:
            yield

    def tensors(self, problem: Windowed, form: Windowed, sets: Sequence[Arrays]) -> list[dict[str, Any]]:
        """Our buffers as the tensors of another form of the problem: the same memory if the layout is the same."""
        key = (form, problem.layout)
        if key not in self._tensors:
            ours = dataclasses.replace(form, layout=problem.layout)
            self._tensors[key] = [self._converted(form, ours, arrays) for arrays in sets]
            self.torch.cuda.synchronize()
        return self._tensors[key]

    def like(self, spec: TensorSpec) -> Any:
        """An uninitialised tensor, its strides exactly the layout's: PyTorch reads the memory format off them."""
        dtype = getattr(self.torch, DTYPES[spec.dtype])
        return self.torch.empty_strided(spec.shape, spec.strides, dtype=dtype, device=DEVICE)

    def workspace(self, nbytes: int) -> Any:
        """Uninitialised memory."""
        return self.torch.empty(nbytes, dtype=self.torch.uint8, device=DEVICE)

    def array(self, tensor: Any, spec: TensorSpec) -> Any:
        """A result as a CuPy array of the tensor's logical shape; bf16 as its bits."""
        shaped = tensor.reshape(spec.shape)
        if spec.dtype is DType.BF16:
            return self.cupy.from_dlpack(shaped.view(self.torch.int16)).view(self.cupy.uint16)
        return self.cupy.from_dlpack(shaped)

    @contextlib.contextmanager
    def active(self, benchmark: bool, tf32: bool) -> Iterator[None]:
        """PyTorch's work goes to the stream, under these settings."""
        cudnn = self.torch.backends.cudnn
        cudnn.benchmark, cudnn.allow_tf32 = benchmark, tf32
        with self.torch.cuda.stream(self._side), self.torch.no_grad():
            yield

    def release(self) -> None:
        """Let go of what belonged to the last problem."""
        self._tensors.clear()
        self.torch.cuda.synchronize()
        self.torch.cuda.empty_cache()

    def _converted(self, form: Windowed, ours: Windowed, arrays: Arrays) -> dict[str, Any]:
        specs = {spec.name: spec for spec in ours.inputs}
        if form.accumulate:
            specs["old"] = ours.outputs[0]
        made = {}
        for name, spec in specs.items():
            made[name] = self._alias(arrays[name], spec)
            if form.layout is not ours.layout and len(spec.shape) > 1:
                wanted = dataclasses.replace(spec, layout=form.layout)
                made[name] = self.like(wanted).copy_(made[name])
        return made

    def _alias(self, array: Any, spec: TensorSpec) -> Any:
        if spec.dtype is DType.BF16:
            tensor = self.torch.from_dlpack(array.view(self.cupy.int16)).view(self.torch.bfloat16)
        else:
            tensor = self.torch.from_dlpack(array)
        return tensor.as_strided(spec.shape, spec.strides)


def forms(problem: Windowed) -> list[tuple[str, Windowed]]:
    """The problem in each memory format, by the peer's suffix. PyTorch has no channels-last for 1-D tensors: there the
    same memory is a 2-D image of height 1. Without spatial dimensions there is one format."""
    if not problem.nd:
        return [("nchw", problem)]
    first, last = (dataclasses.replace(problem, layout=layout) for layout in Layout)
    if problem.nd == 1:
        return [("nchw", first), ("1d_nhwc", unsqueezed(last))]
    return [("nchw", first), ("nhwc", last)]


class TorchContestant:
    """One call of PyTorch on one memory format. See `contest.Contestant`."""

    def __init__(
        self,
        name: str,
        peers: TorchPeers,
        tensors: Sequence[Mapping[str, Any]],
        call: Callable[[Mapping[str, Any]], Any],
        active: Callable[[], AbstractContextManager[None]],
    ) -> None:
        """`call` computes the output of `tensors[index]`, or a tuple of outputs, where `active()` holds."""
        self.name = name
        self._peers = peers
        self._tensors = tensors
        self._call = call
        self._active = active

    def run(self, index: int) -> Any:
        """One call, eagerly; the first of a shape is when cudnn.benchmark searches."""
        with self._active():
            return self._call(self._tensors[index])

    def answers(self, specs: Sequence[TensorSpec]) -> Mapping[str, Any]:
        """The outputs for the first set of buffers, as CuPy arrays in logical order."""
        result = self.run(0)
        self._peers.stream.synchronize()
        results = result if isinstance(result, tuple) else (result,)
        return {spec.name: self._peers.array(some, spec) for spec, some in zip(specs, results, strict=True)}

    def capture(self, repetitions: int) -> Replay:
        """As `measure.capture`, but by PyTorch, whose allocator must know.

        Every call's output is kept until the graph is complete, so that each has memory of its own, as ours have.
        """
        torch, stream = self._peers.torch, self._peers.stream
        graph = torch.cuda.CUDAGraph()
        with self._active(), _no_collection():
            self._call(self._tensors[0])
            stream.synchronize()
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                outputs = [self._call(self._tensors[index % len(self._tensors)]) for index in range(repetitions)]
            finally:
                graph.capture_end()
            del outputs
        return Replay(lambda: self._launch(graph), repetitions)

    def _launch(self, graph: Any) -> None:
        # Launched as ours are: PyTorch's own replay goes to the current stream, and first refills random seeds there.
        self._peers.cupy.cuda.runtime.graphLaunch(graph.raw_cuda_graph_exec(), self._peers.stream.ptr)


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Nothing is freed by chance while a graph is captured, which CUDA would refuse."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
