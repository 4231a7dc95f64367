"""Runs plans on a GPU: on the caller's arrays and stream, in memory from the caller's array library.

A run only puts work on the stream: nothing waits and nothing is copied to the host, so a CUDA graph can capture it.
Temporary memory comes from the array library's stream-ordered pool, allocated with that stream current. It is
let go when `run` returns: the pool may then hand it out again, but only to work behind ours on the same stream.
"""

from __future__ import annotations

import ctypes
import functools
import struct
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, NamedTuple, Self

from convgen.binding import dynamic_shared, nbytes_of, required_alignment, symbols, textures
from convgen.compiler import Binary, compile_cuda
from convgen.errors import DeviceError, UsageError
from convgen.plan import (
    BatchArg,
    CopyToSymbol,
    Launch,
    Memset,
    Param,
    Plan,
    ScalarArg,
    TensorArg,
    TextureArg,
    WorkspaceArg,
    extent_at,
)
from convgen.problem import TensorSpec
from convgen.render import render
from convgen.runtime.arrays import ACCEPTED_DTYPES, Library, View, native, stream_handle
from convgen.runtime.driver import ActiveContext, CudaError, check, driver, is_capturing

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
        self._input_names = tuple(spec.name for spec in plan.inputs)
        self._output_names = tuple(spec.name for spec in plan.outputs)
        self._sized = functools.lru_cache(MAX_BATCHES)(lambda n: _sized(plan, n))
        self._modules: dict[tuple[int, int], _Module] = {}
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
        _check_names("inputs", inputs, self._input_names, required=True)
        given = outputs or {}
        _check_names("outputs", given, self._output_names, required=self.plan.problem.accumulate)
        library, first = native(self._input_names[0], inputs[self._input_names[0]])
        view = library.view(first)
        device = view.device
        with ActiveContext(device):
            current = library.current_stream(device)
            handle = current if stream is None else stream_handle(stream)
            batch = _batch(self.plan, view, n)
            call = _Call(library, first, device, handle, batch)
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
            elif isinstance(step, CopyToSymbol):
                source = addresses[_key(step.source)]
                check(cuda.cuMemcpyDtoDAsync(module.symbols[step.symbol], source, step.nbytes, stream))
            elif size[0]:
                check(cuda.cuMemsetD8Async(addresses[_key(step.destination)], step.value, size[0], stream))

    # --- what is loaded ----------------------------------------------------------------------------------

    def _module(self, device: int, stream: int) -> _Module:
        key = (device, stream if self._constants else 0)
        module = self._modules.get(key)
        if module is None:
            module = self._modules[key] = _load(self.plan, self.binary)
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
            known = self._texture_objects[key] = _create_texture(texture, spec, height, address)
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
    offsets, at = [], 0
    for buffer in plan.workspace:
        offsets.append((_key(WorkspaceArg(buffer.name)), at))
        at += -(-extent_at(buffer.nbytes, n) // 256) * 256
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
        workspace_bytes=at,
        offsets=tuple(offsets),
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


def _batch(plan: Plan, view: View, n: int | None) -> int:
    problem = plan.problem
    if problem.is_runtime_batch:
        # The first input is x or dy, whose first extent is the batch.
        return n if n is not None else view.shape[0] if view.shape else 0
    if n is not None and n != problem.typical_batch:
        raise UsageError(f"n={n}: the plan is compiled for a batch of {problem.typical_batch}; use n=* in the problem")
    return problem.typical_batch


# --- arrays to addresses -----------------------------------------------------------------------------------


def _check_names(what: str, arrays: Mapping[str, Any], names: tuple[str, ...], required: bool) -> None:
    unknown = [name for name in arrays if name not in names]
    missing = [name for name in names if arrays.get(name) is None]
    if unknown or (missing and required):
        problem = f"unknown {', '.join(unknown)}" if unknown else f"{', '.join(missing)} missing"
        raise UsageError(f"{what}: {problem}; the problem has {', '.join(names)}")


def _input(tensor: _Tensor, array: Any, call: _Call) -> tuple[int, Any]:
    """The address the kernels read, and the copy that was made for them, if one was."""
    library, source = native(tensor.name, array)
    view = library.view(source)
    _check_array(tensor, view, call.device)
    if _is_usable(tensor, view):
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
    _check_array(tensor, view, call.device)
    if any(extent > 1 and stride == 0 for extent, stride in zip(view.shape, view.strides, strict=True)):
        raise UsageError(f"{tensor.name} has stride 0: several of its elements share memory, so it cannot be written")
    end = view.pointer + tensor.nbytes
    overlaps = any(view.pointer < stop and start < end for start, stop in read)
    if _is_usable(tensor, view) and not overlaps:
        return view.pointer, None
    with library.use_stream(call.stream, call.device):
        aside = library.empty(tensor.shape, tensor.strides, tensor.dtype, array)
        if accumulate:
            library.copy(aside, array)
    return library.view(aside).pointer, aside


def _check_array(tensor: _Tensor, view: View, device: int) -> None:
    if view.shape != tensor.shape:
        raise UsageError(f"{tensor.name} has shape {view.shape}, expected {tensor.shape}")
    if view.dtype not in tensor.dtypes:
        raise UsageError(f"{tensor.name} is {view.dtype}, expected {' or '.join(tensor.dtypes)}")
    if view.device != device:
        raise UsageError(
            f"{tensor.name} is on device {view.device}, the first input on device {device}: move one of them"
        )


def _is_usable(tensor: _Tensor, view: View) -> bool:
    wanted = tensor.byte_strides if view.in_bytes else tensor.strides
    if view.pointer % tensor.alignment:
        return False
    if view.strides == wanted or not tensor.nbytes:
        return True
    # The stride of an extent of 1 is never used, and libraries set it as they like.
    return all(
        extent == 1 or stride == want for extent, stride, want in zip(view.shape, view.strides, wanted, strict=True)
    )


# --- modules, textures and kernel arguments -------------------------------------------------------------------


def _key(place: TensorArg | WorkspaceArg) -> str:
    return place.tensor if isinstance(place, TensorArg) else f"workspace.{place.buffer}"


class _Arguments:
    """A launch's parameters as cuLaunchKernel wants them: 8 bytes a value, and an array of pointers to the values.

    What never changes is written here; `slots` lists the rest, as (index, key of the address).
    """

    def __init__(self, launch: Launch, function: Any, all_textures: tuple[TextureArg, ...]) -> None:
        count = len(launch.args)
        self.function = function
        self.values = (ctypes.c_uint64 * max(count, 1))()
        start = ctypes.addressof(self.values)
        self._pointers = (ctypes.c_uint64 * max(count, 1))(*(start + 8 * i for i in range(count)))
        self.pointers_address = ctypes.addressof(self._pointers)
        self.slots: list[tuple[int, str]] = []
        for slot, (arg, parameter) in enumerate(zip(launch.args, launch.kernel.params, strict=True)):
            match arg:
                case TensorArg() | WorkspaceArg():
                    self.slots.append((slot, _key(arg)))
                case BatchArg():
                    self.slots.append((slot, "batch"))
                case TextureArg():
                    self.slots.append((slot, f"texture.{all_textures.index(arg)}"))
                case ScalarArg(value):
                    self.values[slot] = _scalar_bits(value, parameter)


def _scalar_bits(value: int | float, parameter: Param) -> int:
    form = {"float": "<f4x", "double": "<d"}.get(parameter.ctype, "<q")
    return int.from_bytes(struct.pack(form, value), "little")


@dataclass(frozen=True, slots=True)
class _Module:
    """The cubin in a context; `blocks` has the arguments of each launch, None for the other steps."""

    handle: Any
    blocks: tuple[Any, ...]
    symbols: dict[str, Any]


def _load(plan: Plan, binary: Binary) -> _Module:
    cuda = driver()
    try:
        handle = check(cuda.cuModuleLoadData(binary.cubin))
    except CudaError as error:
        if error.name not in ("CUDA_ERROR_NO_BINARY_FOR_GPU", "CUDA_ERROR_INVALID_SOURCE"):
            raise
        raise DeviceError(
            f"{plan.name} is compiled for {binary.arch}, which this GPU does not run: lower it for Target.current()"
        ) from error
    shared = dynamic_shared(plan)
    functions = {}
    for kernel in plan.kernels:
        function = functions[kernel.name] = check(cuda.cuModuleGetFunction(handle, kernel.name.encode()))
        if shared[kernel.name]:
            attribute = cuda.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            check(cuda.cuFuncSetAttribute(function, attribute, shared[kernel.name]))
    used = textures(plan)
    return _Module(
        handle=handle,
        blocks=tuple(
            _Arguments(step, functions[step.kernel.name], used) if isinstance(step, Launch) else None
            for step in plan.steps
        ),
        symbols={name: _global(handle, name) for name in symbols(plan)},
    )


def _global(module: Any, name: str) -> Any:
    cuda = driver()
    status, pointer, _ = cuda.cuModuleGetGlobal(module, name.encode())
    check((status,))
    return pointer


def _create_texture(texture: TextureArg, spec: TensorSpec, height: int, address: int) -> Any:
    cuda = driver()
    formats = {
        "fp32": cuda.CUarray_format.CU_AD_FORMAT_FLOAT,
        "fp16": cuda.CUarray_format.CU_AD_FORMAT_HALF,
        "bf16": cuda.CUarray_format.CU_AD_FORMAT_UNSIGNED_INT16,
        "int8": cuda.CUarray_format.CU_AD_FORMAT_SIGNED_INT8,
        "uint8": cuda.CUarray_format.CU_AD_FORMAT_UNSIGNED_INT8,
    }
    resource = cuda.CUDA_RESOURCE_DESC()
    resource.resType = cuda.CUresourcetype.CU_RESOURCE_TYPE_PITCH2D
    image = resource.res.pitch2D
    image.devPtr = cuda.CUdeviceptr(address)
    image.format = formats[spec.dtype.value]
    image.numChannels = 1
    image.width = texture.width
    image.height = height
    image.pitchInBytes = texture.pitch_bytes
    sampling = cuda.CUDA_TEXTURE_DESC()
    border = cuda.CUaddress_mode.CU_TR_ADDRESS_MODE_BORDER
    sampling.addressMode = [border, border, border]
    sampling.filterMode = cuda.CUfilter_mode.CU_TR_FILTER_MODE_POINT
    sampling.flags = 0 if spec.dtype.value in ("fp32", "fp16") else cuda.CU_TRSF_READ_AS_INTEGER
    return check(cuda.cuTexObjectCreate(resource, sampling, None))
