"""Runs plans on a GPU: on the caller's arrays and stream, in memory from the caller's array library.

A run only puts work on the stream: nothing waits and nothing is copied to the host, so a CUDA graph can capture it.
Temporary memory comes from the array library's stream-ordered pool, allocated with that stream current. It is
let go when `run` returns: the pool may then hand it out again, but only to work behind ours on the same stream.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import threading
import weakref
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Self

from convgen.binding import WEIGHTS, preparation, symbols, tensor_maps, textures
from convgen.compiler import Binary, compile_cuda
from convgen.errors import UsageError
from convgen.plan import CopyToSymbol, Launch, Plan, TextureArg
from convgen.problem import Sizes
from convgen.render import render
from convgen.runtime.arrays import Library, native, stream_handle, wrong_names
from convgen.runtime.driver import ActiveContext, check, driver, is_capturing, relaxed_capture
from convgen.runtime.module import Module, address_key, create_texture, launch_call, load_module, size_key
from convgen.runtime.prepared import PreparedWeights
from convgen.runtime.sized import Sized, sized
from convgen.runtime.staging import Call, readable, writable
from convgen.runtime.tensor_map import TENSOR_MAP_WORDS, encode

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
    captured on one such stream must not be replayed at the same time. Prepared weights have a module of their own,
    which serves every stream. `close` (or a `with` block) waits for the GPU and unloads all but what prepared weights
    that are still held use; without it the modules stay loaded until the process ends.
    """

    def __init__(self, plan: Plan, binary: Binary) -> None:
        self.plan = plan
        self.binary = binary
        self.preparation = preparation(plan)
        self.textures = textures(plan)
        self.tensor_maps = tensor_maps(plan)
        self.constants = bool(symbols(plan))
        self._fixed = None if plan.problem.runtime_sizes else plan.problem.sizes
        self._first = plan.inputs[0].name
        self._input_names = {spec.name for spec in plan.inputs}
        self._output_names = {spec.name for spec in plan.outputs}
        self.sized = functools.lru_cache(MAX_BATCHES)(lambda sizes, without=(): sized(plan, sizes, without))
        self._modules: dict[tuple[int, int], Module] = {}
        # Of prepared weights that were let go: code cannot be unloaded while it may still run, but it can be reused.
        self._retired: list[tuple[int, Module]] = []
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
        prepared: PreparedWeights | None = None,
        unread: Collection[str] = (),
    ) -> dict[str, Any]:
        """Put the plan's work on a stream and return the outputs by name; those not given are allocated.

        Arrays are CuPy's, CUDA tensors, or anything with `__cuda_array_interface__` or DLPack, in the logical shapes of
        `plan.inputs` and `plan.outputs`; bf16 may come as uint16 and fp8 as uint8, which CuPy lacks. Strides and
        alignment are free: what the kernels cannot read is copied first, what they cannot write (or what overlaps an
        input) is computed aside and copied back. New outputs have the problem's layout and the first input's library.
        `stream` is an int, a CuPy or PyTorch stream or one with `__cuda_stream__`, the library's current one unless
        given. Sizes that are known at launch only are read from the arrays. `prepared` stands for the weights: what
        `prepare` returned, on the same device. `unread` names outputs that the caller lets go of at once: they are kept
        as long as the plan's own temporary memory.

        Raises UsageError for an array of another shape, dtype or device, or one that is missing; DeviceError for a
        failing CUDA call; ProblemError for a size beyond the problem's bound.
        """
        given = outputs or {}
        expected = self._input_names - {WEIGHTS} if prepared is not None else self._input_names
        if inputs.keys() != expected:
            raise wrong_names("inputs", inputs, expected)
        if not given.keys() <= self._output_names:
            raise wrong_names("outputs", given, self._output_names)
        library, first = native(self._first, inputs[self._first])
        view = library.view(first)
        device = view.device
        if prepared is not None and prepared.device != device:
            raise UsageError(f"{WEIGHTS} is prepared on device {prepared.device}, the first input on device {device}")
        with ActiveContext(device):
            current = library.current_stream(device)
            handle = current if stream is None else stream_handle(stream)
            call = Call(library, first, view, device, handle, self._sizes(inputs))
            with contextlib.nullcontext() if handle == current else library.use_stream(handle, device):
                return self._run(call, inputs, given, prepared, unread)

    def prepare(self, weights: Any, *, stream: Any = None) -> PreparedWeights:
        """Do on a stream, once, what depends on the weights alone, for any number of runs that are given the result.

        The weights must not change afterwards, nor be let go before the result. Not while a graph is captured.
        """
        library, array = native(WEIGHTS, weights)
        view = library.view(array)
        with ActiveContext(view.device):
            current = library.current_stream(view.device)
            handle = current if stream is None else stream_handle(stream)
            call = Call(library, array, view, view.device, handle, self.plan.problem.sizes)
            with contextlib.nullcontext() if handle == current else library.use_stream(handle, view.device):
                return self._prepare(call)

    def load_on(self, device: int, stream: int) -> Module:
        """The module that serves a stream, loaded if it is not. Raises DeviceError."""
        with ActiveContext(device):
            return self._module(device, stream)

    def close(self) -> None:
        """Wait for the GPU and unload everything. The program loads itself again if it is run again."""
        with self._lock:
            for device in {device for device, _ in self._modules} | {device for device, _ in self._retired}:
                with ActiveContext(device):
                    self._unload(device)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _sizes(self, inputs: Mapping[str, Any]) -> Sizes:
        if self._fixed is not None:
            return self._fixed

        def shape(name: str) -> tuple[int, ...]:
            library, array = native(name, inputs[name])
            return library.view(array).shape

        return self.plan.problem.sizes_of(shape)

    # --- one run --------------------------------------------------------------------------------------

    def _run(
        self,
        call: Call,
        inputs: Mapping[str, Any],
        given: Mapping[str, Any],
        prepared: PreparedWeights | None,
        unread: Collection[str],
    ) -> dict[str, Any]:
        size = self.sized(call.sizes, () if prepared is None else self.preparation.buffers)
        addresses = {size_key(name): value for name, value in call.sizes.items}
        if prepared is not None:
            addresses |= prepared.addresses
        kept: list[Any] = []
        read: list[tuple[int, int]] = []
        for tensor in size.inputs:
            if tensor.name == WEIGHTS and prepared is not None:
                read.append(prepared.weights_range)
                continue
            address, copied = readable(tensor, inputs[tensor.name], call)
            addresses[tensor.name] = address
            if copied is None:
                read.append((address, address + tensor.nbytes))
            else:
                kept.append(copied)

        results: dict[str, Any] = {}
        write_back: list[tuple[Library, Any, Any]] = []
        for tensor in size.outputs:
            array = given.get(tensor.name)
            if array is None:
                if self.plan.problem.accumulate:
                    raise UsageError(f"outputs: {tensor.name} missing; the problem adds to what it holds")
                array = call.library.empty(tensor.shape, tensor.strides, tensor.dtype, call.first)
                addresses[tensor.name] = call.library.view(array).pointer
                if tensor.name in unread:
                    kept.append(array)
            else:
                library, destination = native(tensor.name, array)
                address, aside = writable(tensor, library, destination, call, read, self.plan.problem.accumulate)
                addresses[tensor.name] = address
                if aside is not None:
                    kept.append(aside)
                    write_back.append((library, destination, aside))
            results[tensor.name] = array

        if size.workspace_bytes:
            base, owner = call.library.workspace(size.workspace_bytes, call.first)
            kept.append(owner)
            for key, offset in size.offsets:
                addresses[key] = base + offset
        if kept and not call.library.owns_graph_memory and is_capturing(call.stream):
            self._graph_memory.extend(kept)

        if prepared is None:
            self._enqueue(call, size, addresses, self._module(call.device, call.stream), filling=self.constants)
        else:
            prepared.order(call.stream)
            module = prepared.module or self._module(call.device, call.stream)
            self._enqueue(call, size, addresses, module, skip=self.preparation.steps)
        for library, destination, aside in write_back:
            with library.use_stream(call.stream, call.device):
                library.copy(destination, aside)
        return results

    def _prepare(self, call: Call) -> PreparedWeights:
        size = self.sized(call.sizes)
        tensor = next(tensor for tensor in size.inputs if tensor.name == WEIGHTS)
        address, copied = readable(tensor, call.first, call)
        nbytes, offsets = self.plan.arranged(call.sizes, self.preparation.buffers)
        owners: list[Any] = []
        addresses = {WEIGHTS: address}
        if nbytes:
            base, owner = call.library.workspace(nbytes, call.first)
            owners.append(owner)
            addresses |= {f"workspace.{name}": base + offset for name, offset in offsets.items()}
        if copied is not None and self.preparation.weights_used_later:
            owners.append(copied)
            nbytes += tensor.nbytes
        module = None
        if self.preparation.constants:
            nbytes += sum(step.nbytes for step in self.plan.steps if isinstance(step, CopyToSymbol))
            module = self._own_module(call.device)
        if self.preparation.steps:
            others = frozenset(range(len(self.plan.steps))) - self.preparation.steps
            used = module or self._module(call.device, call.stream)
            self._enqueue(call, size, addresses, used, skip=others, alone=True)
        prepared = PreparedWeights(
            device=call.device,
            module=module,
            addresses=addresses,
            weights_range=(address, address + tensor.nbytes),
            owners=owners,
            nbytes=nbytes,
            stream=call.stream if copied is not None or self.preparation.steps else None,
        )
        if module is not None:
            weakref.finalize(prepared, self._retired.append, (call.device, module)).atexit = False
        return prepared

    def _enqueue(
        self,
        call: Call,
        size: Sized,
        addresses: dict[str, int],
        module: Module,
        *,
        skip: frozenset[int] = frozenset(),
        filling: bool = False,
        alone: bool = False,
    ) -> None:
        """Put the steps but those to `skip` on the stream; `filling`: constant memory is written, and used, by them.

        `alone`: without those that they follow in the plan. Then none begins early, before who made the weights ends.
        """
        cuda = driver()
        stream = cuda.CUstream(call.stream)
        block = module.take()
        with self._guard(module, filling):
            for index, texture in enumerate(self.textures):
                if texture.tensor in addresses:
                    addresses[f"texture.{index}"] = self._texture(
                        call, texture, size.heights[index], addresses[texture.tensor]
                    )
            for tensor_map, slot in zip(self.tensor_maps, block.maps, strict=True):
                place = address_key(tensor_map.source)
                if place in addresses and 0 not in call.sizes.as_dict().values():
                    words = encode(tensor_map.at(call.sizes), addresses[place])
                    block.values[slot : slot + TENSOR_MAP_WORDS] = words
            for key, slot in block.slots.items():
                block.values[slot] = addresses.get(key, 0)
            for index, step in enumerate(self.plan.steps):
                if index in skip or size.does_nothing(index):
                    continue
                if isinstance(step, Launch):
                    function = module.functions[step.kernel.name]
                    launch = dataclasses.replace(step, is_early=False) if alone else step
                    call_driver, taken = launch_call(launch, size.steps[index], function, stream, block.pointers[index])
                    check(call_driver(*taken))
                elif isinstance(step, CopyToSymbol):
                    source = addresses[address_key(step.source)]
                    check(cuda.cuMemcpyDtoDAsync(module.symbols[step.symbol], source, step.nbytes, stream))
                else:
                    [nbytes] = size.steps[index]
                    check(cuda.cuMemsetD8Async(addresses[address_key(step.destination)], step.value, nbytes, stream))
        module.give_back(block)

    def _guard(self, module: Module, filling: bool) -> AbstractContextManager[Any]:
        """What no other thread may do meanwhile: destroy the textures in use, or refill constant memory."""
        if self.textures:
            return self._lock
        return module.lock if filling else contextlib.nullcontext()

    # --- what is loaded ----------------------------------------------------------------------------------

    def _module(self, device: int, stream: int) -> Module:
        key = (device, stream if self.constants else 0)
        module = self._modules.get(key)
        if module is None:
            with self._lock, relaxed_capture():
                module = self._modules.get(key)
                if module is None:
                    module = self._modules[key] = load_module(self.plan, self.binary)
        return module

    def _own_module(self, device: int) -> Module:
        """A module for prepared weights: a new one, or that of weights which were let go, once no work uses it."""
        with self._lock, relaxed_capture():
            for retired in self._retired:
                if retired[0] == device and not driver().cuCtxSynchronize()[0]:
                    self._retired.remove(retired)
                    return retired[1]
            return load_module(self.plan, self.binary)

    def _texture(self, call: Call, texture: TextureArg, height: int, address: int) -> int:
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
        for retired in [retired for retired in self._retired if retired[0] == device]:
            self._retired.remove(retired)
            check(driver().cuModuleUnload(retired[1].handle))
        self._graph_textures.clear()
        self._graph_memory.clear()

    def _destroy_textures(self, device: int, keep: set[tuple[int, TextureArg, int, int]]) -> None:
        # Work that was put on any stream may still read through them.
        check(driver().cuCtxSynchronize())
        for key in [key for key in self._texture_objects if key[0] == device and key not in keep]:
            check(driver().cuTexObjectDestroy(self._texture_objects.pop(key)))
