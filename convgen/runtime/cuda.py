"""Runs plans on a GPU: on the caller's arrays and stream, in memory from the caller's array library.

A run only puts work on the stream: nothing waits and nothing is copied to the host, so a CUDA graph can capture it.
Temporary memory comes from the array library's stream-ordered pool, allocated with that stream current. It is
let go when `run` returns: the pool may then hand it out again, but only to work behind ours on the same stream.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, NamedTuple, Self

from convgen.binding import nbytes_of, required_alignment, symbols, textures
from convgen.compiler import Binary, compile_cuda
from convgen.errors import UsageError
from convgen.plan import CopyToSymbol, Launch, Memset, Plan, TextureArg, WorkspaceArg, extent_at
from convgen.problem import TensorSpec
from convgen.render import render
from convgen.runtime.arrays import ACCEPTED_DTYPES, Library, View, native, stream_handle, wrong_names
from convgen.runtime.driver import ActiveContext, check, driver, is_capturing, relaxed_capture
from convgen.runtime.module import Module, address_key, create_texture, load_module

MAX_TEXTURES = 256
MAX_BATCHES = 64


def load(plan: Plan, binary: Binary) -> CudaProgram:
    """A compiled plan, ready to run. The cubin is loaded on a device when the first array of that device comes."""
    return CudaProgram(plan, binary)


def build_and_load(plan: Plan, options: Sequence[str] = ()) -> CudaProgram:
    """Render, compile for the plan's target (or take it from the cache), and load."""
    return load(plan, compile_cuda(render(plan), plan.target, options, name=f"{plan.name}.cu"))


class CudaProgram:
    """A plan on the GPU. May be used from several threads, on several devices and streams.

    Constant memory belongs to a loaded module, so a plan that uses it is loaded once for each stream it runs on; graphs
    captured on one such stream must not be replayed at the same time. `close` (or a `with` block) waits for the GPU and
    unloads; without it the module stays loaded until the process ends.
    """

    def __init__(self, plan: Plan, binary: Binary) -> None:
        self.plan = plan
        self.binary = binary
        self._constants = bool(symbols(plan))
        self._textures = textures(plan)
        self._fixed_batch = None if plan.problem.is_runtime_batch else plan.problem.typical_batch
        self._first = plan.inputs[0].name
        self._input_names = {spec.name for spec in plan.inputs}
        self._output_names = {spec.name for spec in plan.outputs}
        self._sized = functools.lru_cache(MAX_BATCHES)(lambda n: _sized(plan, n))
        self._modules: dict[tuple[int, int], Module] = {}
        self._texture_objects: dict[tuple[int, TextureArg, int, int], Any] = {}
        # A captured graph replays with the memory and textures it was captured with: they live as long as the program.
        self._graph_textures: set[tuple[int, TextureArg, int, int]] = set()
        self._graph_memory: list[Any] = []
        self._lock = threading.Lock()

    def run(
        self,
        inputs: Mapping[str, Any],
        outputs: Mapping[str, Any] | None = None,
        *,
        stream: Any = None,
        n: int | None = None,
    ) -> dict[str, Any]:
        """Put the plan's work on a stream and return the outputs by name; those not given are allocated.

        Arrays are CuPy's, CUDA tensors, or anything with `__cuda_array_interface__` or DLPack, in the logical shapes of
        `plan.inputs` and `plan.outputs`; bf16 may come as uint16 and fp8 as uint8, which CuPy lacks. Strides and
        alignment are free: what the kernels cannot read is copied first, what they cannot write (or what overlaps an
        input) is computed aside and copied back. New outputs have the problem's layout and the first input's library.
        `stream` is an int, a CuPy or PyTorch stream or one with `__cuda_stream__`, the library's current one unless
        given. `n` may be given for a runtime batch, and must agree with the arrays.

        Raises UsageError for an array of another shape, dtype or device, or one that is missing; DeviceError for a
        failing CUDA call; ProblemError for a batch beyond the problem's bound.
        """
        given = outputs or {}
        if inputs.keys() != self._input_names:
            raise wrong_names("inputs", inputs, self._input_names)
        if not given.keys() <= self._output_names:
            raise wrong_names("outputs", given, self._output_names)
        library, first = native(self._first, inputs[self._first])
        view = library.view(first)
        device = view.device
        with ActiveContext(device):
            current = library.current_stream(device)
            handle = current if stream is None else stream_handle(stream)
            call = _Call(library, first, view, device, handle, self._batch(view, n))
            if handle == current:
                return self._run(call, inputs, given)
            with library.use_stream(handle, device):
                return self._run(call, inputs, given)

    def close(self) -> None:
        """Wait for the GPU and unload everything. The program loads itself again if it is run again."""
        with self._lock:
            for device in {device for device, _ in self._modules}:
                with ActiveContext(device):
                    self._unload(device)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _batch(self, view: View, n: int | None) -> int:
        fixed = self._fixed_batch
        if fixed is None:
            # The first input is x or dy, whose first extent is the batch.
            return n if n is not None else view.shape[0] if view.shape else 0
        if n is not None and n != fixed:
            raise UsageError(f"n={n}: the plan is compiled for a batch of {fixed}; use n=* in the problem")
        return fixed

    # --- one run --------------------------------------------------------------------------------------

    def _run(self, call: _Call, inputs: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
        sized = self._sized(call.n)
        addresses = {"batch": call.n}
        kept: list[Any] = []
        read: list[tuple[int, int]] = []
        for tensor in sized.inputs:
            address, copied = _input(tensor, inputs[tensor.name], call)
            addresses[tensor.name] = address
            if copied is None:
                read.append((address, address + tensor.nbytes))
            else:
                kept.append(copied)

        results: dict[str, Any] = {}
        write_back: list[tuple[Library, Any, Any]] = []
        for tensor in sized.outputs:
            array = given.get(tensor.name)
            if array is None:
                if self.plan.problem.accumulate:
                    raise UsageError(f"outputs: {tensor.name} missing; the problem adds to what it holds")
                array = call.library.empty(tensor.shape, tensor.strides, tensor.dtype, call.first)
                addresses[tensor.name] = call.library.view(array).pointer
            else:
                library, destination = native(tensor.name, array)
                address, aside = _output(tensor, library, destination, call, read, self.plan.problem.accumulate)
                addresses[tensor.name] = address
                if aside is not None:
                    kept.append(aside)
                    write_back.append((library, destination, aside))
            results[tensor.name] = array

        if sized.workspace_bytes:
            base, owner = call.library.workspace(sized.workspace_bytes, call.first)
            kept.append(owner)
            for key, offset in sized.offsets:
                addresses[key] = base + offset
        if kept and not call.library.owns_graph_memory and is_capturing(call.stream):
            self._graph_memory.extend(kept)

        with self._lock:
            self._enqueue(call, sized, addresses)
        for library, destination, aside in write_back:
            with library.use_stream(call.stream, call.device):
                library.copy(destination, aside)
        return results

    def _enqueue(self, call: _Call, sized: _Sized, addresses: dict[str, int]) -> None:
        cuda = driver()
        stream = cuda.CUstream(call.stream)
        module = self._module(call.device, call.stream)
        for index, texture in enumerate(self._textures):
            addresses[f"texture.{index}"] = self._texture(
                call, texture, sized.heights[index], addresses[texture.tensor]
            )
        for step, size, block in zip(self.plan.steps, sized.steps, module.blocks, strict=True):
            if isinstance(step, Launch):
                x, y, z = size
                if not x or not y or not z:
                    continue
                values = block.values
                for slot, key in block.slots:
                    values[slot] = addresses[key]
                check(
                    cuda.cuLaunchKernel(
                        block.function, x, y, z, *step.block, step.shared_bytes, stream, block.pointers_address, 0
                    )
                )
            elif not size[0]:
                continue
            elif isinstance(step, CopyToSymbol):
                source = addresses[address_key(step.source)]
                check(cuda.cuMemcpyDtoDAsync(module.symbols[step.symbol], source, step.nbytes, stream))
            else:
                check(cuda.cuMemsetD8Async(addresses[address_key(step.destination)], step.value, size[0], stream))

    # --- what is loaded ----------------------------------------------------------------------------------

    def _module(self, device: int, stream: int) -> Module:
        key = (device, stream if self._constants else 0)
        module = self._modules.get(key)
        if module is None:
            with relaxed_capture():
                module = self._modules[key] = load_module(self.plan, self.binary)
        return module

    def _texture(self, call: _Call, texture: TextureArg, height: int, address: int) -> int:
        key = (call.device, texture, height, address)
        known = self._texture_objects.get(key)
        capturing = is_capturing(call.stream)
        if capturing:
            self._graph_textures.add(key)
        if known is None:
            if len(self._texture_objects) >= MAX_TEXTURES and not capturing:
                self._destroy_textures(call.device, keep=self._graph_textures)
            spec = self.plan.problem.tensor(texture.tensor)
            known = self._texture_objects[key] = create_texture(texture, spec, height, address)
        return int(known)

    def _unload(self, device: int) -> None:
        """In the device's context: wait for all work, then let go of everything."""
        self._destroy_textures(device, keep=set())
        for key in [key for key in self._modules if key[0] == device]:
            check(driver().cuModuleUnload(self._modules.pop(key).handle))
        self._graph_textures.clear()
        self._graph_memory.clear()

    def _destroy_textures(self, device: int, keep: set[tuple[int, TextureArg, int, int]]) -> None:
        # Work that was put on any stream may still read through them.
        check(driver().cuCtxSynchronize())
        for key in [key for key in self._texture_objects if key[0] == device and key not in keep]:
            check(driver().cuTexObjectDestroy(self._texture_objects.pop(key)))


class _Call(NamedTuple):
    """What one run is made on: the first input decides library and device."""

    library: Library
    first: Any
    view: View
    device: int
    stream: int
    n: int


# --- sizes for one batch -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Tensor:
    name: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    byte_strides: tuple[int, ...]
    dtype: str
    dtypes: tuple[str, ...]
    alignment: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class _Sized:
    """A plan with its batch fixed: the grid of every launch, the bytes of every memset (in `steps`), …"""

    inputs: tuple[_Tensor, ...]
    outputs: tuple[_Tensor, ...]
    steps: tuple[tuple[int, ...], ...]
    heights: tuple[int, ...]
    workspace_bytes: int
    offsets: tuple[tuple[str, int], ...]


def _sized(plan: Plan, n: int) -> _Sized:
    problem = plan.problem.at(n) if plan.problem.is_runtime_batch else plan.problem
    steps: list[tuple[int, ...]] = []
    for step in plan.steps:
        if isinstance(step, Launch):
            steps.append(tuple(extent_at(extent, n) for extent in step.grid))
        elif isinstance(step, Memset):
            steps.append((extent_at(nbytes_of(plan, step.destination), n),))
        else:
            steps.append((step.nbytes,))
    return _Sized(
        inputs=tuple(_tensor(plan, spec) for spec in problem.inputs),
        outputs=tuple(_tensor(plan, spec) for spec in problem.outputs),
        steps=tuple(steps),
        heights=tuple(extent_at(texture.height, n) for texture in textures(plan)),
        workspace_bytes=plan.workspace_bytes(n),
        offsets=tuple((address_key(WorkspaceArg(name)), at) for name, at in plan.workspace_offsets(n).items()),
    )


def _tensor(plan: Plan, spec: TensorSpec) -> _Tensor:
    return _Tensor(
        name=spec.name,
        shape=spec.shape,
        strides=spec.strides,
        byte_strides=tuple(stride * spec.dtype.itemsize for stride in spec.strides),
        dtype=spec.dtype.value,
        dtypes=ACCEPTED_DTYPES[spec.dtype.value],
        alignment=required_alignment(plan, spec),
        nbytes=spec.nbytes,
    )


# --- arrays to addresses -----------------------------------------------------------------------------------


def _input(tensor: _Tensor, array: Any, call: _Call) -> tuple[int, Any]:
    """The address the kernels read, and the copy that was made for them, if one was."""
    if array is call.first:
        library, source, view = call.library, array, call.view
    else:
        library, source = native(tensor.name, array)
        view = library.view(source)
    if _is_usable(tensor, view, call.device):
        return view.pointer, None
    with library.use_stream(call.stream, call.device):
        copied = library.empty(tensor.shape, tensor.strides, tensor.dtype, source)
        library.copy(copied, source)
    return library.view(copied).pointer, copied


def _output(
    tensor: _Tensor, library: Library, array: Any, call: _Call, read: list[tuple[int, int]], accumulate: bool
) -> tuple[int, Any]:
    """The address the kernels write, and the array behind it where that is not the caller's."""
    view = library.view(array)
    start, end = view.pointer, view.pointer + tensor.nbytes
    if _is_usable(tensor, view, call.device):
        for first, last in read:
            if start < last and first < end:
                break
        else:
            return start, None
    elif any(extent > 1 and stride == 0 for extent, stride in zip(view.shape, view.strides, strict=True)):
        raise UsageError(f"{tensor.name} has stride 0: several of its elements share memory, so it cannot be written")
    with library.use_stream(call.stream, call.device):
        aside = library.empty(tensor.shape, tensor.strides, tensor.dtype, array)
        if accumulate:
            library.copy(aside, array)
    return library.view(aside).pointer, aside


def _is_usable(tensor: _Tensor, view: View, device: int) -> bool:
    """Whether kernels can work on the array where it lies. Raises UsageError for an array that is another tensor."""
    if view.shape != tensor.shape:
        raise UsageError(f"{tensor.name} has shape {tuple(view.shape)}, expected {tensor.shape}")
    if view.dtype not in tensor.dtypes:
        raise UsageError(f"{tensor.name} is {view.dtype}, expected {' or '.join(tensor.dtypes)}")
    if view.device != device:
        raise UsageError(
            f"{tensor.name} is on device {view.device}, the first input on device {device}: move one of them"
        )
    wanted = tensor.byte_strides if view.in_bytes else tensor.strides
    if view.pointer % tensor.alignment:
        return False
    if view.strides == wanted or not tensor.nbytes:
        return True
    # The stride of an extent of 1 is never used, and libraries set it as they like.
    return all(
        extent == 1 or stride == want for extent, stride, want in zip(view.shape, view.strides, wanted, strict=True)
    )
