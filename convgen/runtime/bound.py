"""The short way through a program: all that does not change between calls on like arrays is looked up once.

`CudaProgram.run` takes any arrays and checks them. A bound call is for arrays known to be of the right shapes, strides,
dtypes and device; it only reads where they lie. What it cannot do, it leaves undone and says so.
"""

from __future__ import annotations

import struct
import threading
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from convgen.binding import WEIGHTS
from convgen.plan import CopyToSymbol, Launch
from convgen.problem import Sizes
from convgen.runtime.arrays import Library
from convgen.runtime.cuda import CudaProgram
from convgen.runtime.driver import adopt_context, driver, is_capturing
from convgen.runtime.module import Arguments, Module, address_key, launch_call, size_key
from convgen.runtime.prepared import PreparedWeights
from convgen.runtime.tensor_map import TENSOR_MAP_WORDS, encode
from convgen.tensor_map import Im2colMap, TensorMap

MAX_STREAMS = 64
MAX_ADDRESSES = 64
"""Of one tensor, whose maps a block keeps: an allocator gives out few."""


class BoundCall:
    """A program on one device, for arrays that differ from call to call only in where they lie.

    May be called from several threads and on several streams at once: each call has argument blocks of its own.
    """

    __slots__ = (
        "_address",
        "_alignments",
        "_device",
        "_keys",
        "_library",
        "_make",
        "_mask",
        "_nbytes",
        "_offsets",
        "_pack",
        "_prepared",
        "_program",
        "_size",
        "_sizes",
        "_streams",
        "_workspace_bytes",
    )

    def __init__(
        self,
        program: CudaProgram,
        library: Library,
        device: int,
        sizes: Sizes,
        make: Callable[[Any], Any],
        prepared: PreparedWeights | None = None,
    ) -> None:
        """`make` returns a new output, given the first input. The program must have one output and no textures."""
        preparation = program.preparation
        self._program = program
        self._library = library
        self._address = library.address
        self._device = device
        self._make = make
        self._prepared = prepared
        self._size = program.sized(sizes, () if prepared is None else preparation.buffers)
        inputs = [t for t in self._size.inputs if prepared is None or t.name != WEIGHTS]
        tensors = (*inputs, *self._size.outputs)
        self._sizes = sizes
        self._keys = (*(tensor.name for tensor in tensors), *(key for key, _ in self._size.offsets))
        self._alignments = tuple(tensor.alignment for tensor in tensors)
        self._mask = max(self._alignments) - 1
        self._nbytes = tuple(tensor.nbytes for tensor in tensors)
        self._workspace_bytes = self._size.workspace_bytes
        self._offsets = tuple(offset for _, offset in self._size.offsets)
        self._pack = struct.Struct(f"={len(self._keys)}Q").pack_into
        self._streams: dict[int, _OnStream] = {}

    def __call__(self, arrays: Sequence[Any], out: Any = None) -> Any:
        """Put the work on the library's current stream and return the output: `out`, or a new array.

        `arrays` are the program's inputs in their order, without the weights if they are prepared. None if something is
        unusual and nothing was done that matters: a misaligned array, an overlap, another current device, an error.
        """
        library = self._library
        if library.current_device() != self._device:
            return None
        stream = library.current_stream(self._device)
        result = self._make(arrays[0]) if out is None else out
        addresses = [*map(self._address, arrays), self._address(result)]
        together = 0
        for address in addresses:
            together |= address
        if together & self._mask and not self._is_aligned(addresses):
            return None
        if out is not None and self._overlaps(addresses):
            return None
        if self._workspace_bytes:
            if not library.owns_graph_memory and is_capturing(stream):
                return None
            # Its owner must live until the launch.
            base, _owner = library.workspace(self._workspace_bytes, arrays[0])
            addresses += [base + offset for offset in self._offsets]
        if self._prepared is not None and not self._prepared.is_settled:
            self._prepared.order(stream)
        ready = self._streams.get(stream) or self._on_stream(stream)
        try:
            block = ready.spare.pop()
        except IndexError:
            block = self._block(ready.module, stream)
        self._pack(block.values, 0, *addresses)
        for tensor_map in block.maps:
            if addresses[tensor_map.index] != tensor_map.address:
                tensor_map.move(addresses[tensor_map.index])
        if ready.lock is None:
            done = _put(block.work, addresses)
        else:
            with ready.lock:
                done = _put(block.work, addresses)
        ready.spare.append(block)
        if done:
            return result
        adopt_context(self._device)
        return None

    def _is_aligned(self, addresses: Sequence[int]) -> bool:
        return not any(address % wanted for address, wanted in zip(addresses, self._alignments, strict=True))

    def _overlaps(self, addresses: Sequence[int]) -> bool:
        *starts, start = addresses
        *lengths, length = self._nbytes
        ranges = [(first, first + nbytes) for first, nbytes in zip(starts, lengths, strict=True)]
        if self._prepared is not None:
            ranges.append(self._prepared.weights_range)
        return any(start < last and first < start + length for first, last in ranges)

    def _on_stream(self, stream: int) -> _OnStream:
        if len(self._streams) >= MAX_STREAMS:
            self._streams.clear()
        own = None if self._prepared is None else self._prepared.module
        module = own or self._program.load_on(self._device, stream)
        filled = self._program.constants and own is None
        ready = self._streams[stream] = _OnStream(module, module.lock if filled else None, [])
        return ready

    def _block(self, module: Module, stream: int) -> _Block:
        """Arguments with all that stays written into them, and the calls that use them."""
        arguments = Arguments(self._program.plan, first=self._keys)
        known = {size_key(name): value for name, value in self._sizes.items}
        if self._prepared is not None:
            known |= self._prepared.addresses
        for key, slot in arguments.slots.items():
            arguments.values[slot] = known.get(key, 0)
        maps = self._maps(arguments, known)
        return _Block(
            arguments.values, maps, self._work(module, driver().CUstream(stream), arguments, known), arguments
        )

    def _maps(self, arguments: Arguments, known: Mapping[str, int]) -> tuple[_Map, ...]:
        """The tensor maps that move with the call's addresses; those that do not are written here."""
        moving: list[_Map] = []
        if 0 in self._sizes.as_dict().values():
            return ()  # nothing is launched, and there is no such map
        for argument, slot in zip(self._program.tensor_maps, arguments.maps, strict=True):
            place = address_key(argument.source)
            index = self._keys.index(place) if place in self._keys else -1
            tensor_map = _Map(argument.at(self._sizes), index, arguments.values, slot)
            if index >= 0:
                moving.append(tensor_map)
            elif place in known:
                tensor_map.move(known[place])
        return tuple(moving)

    def _work(self, module: Module, stream: Any, arguments: Arguments, known: Mapping[str, int]) -> tuple[_Work, ...]:
        cuda = driver()
        skipped = frozenset() if self._prepared is None else self._program.preparation.steps
        work: list[_Work] = []
        for index, step in enumerate(self._program.plan.steps):
            sizes = self._size.steps[index]
            if index in skipped or self._size.does_nothing(index):
                continue
            if isinstance(step, Launch):
                function = module.functions[step.kernel.name]
                work.append((*launch_call(step, sizes, function, stream, arguments.pointers[index]), None, ()))
            elif isinstance(step, CopyToSymbol):
                place, behind = address_key(step.source), (step.nbytes, stream)
                work.append(
                    self._on_address(cuda.cuMemcpyDtoDAsync, (module.symbols[step.symbol],), place, behind, known)
                )
            else:
                place, behind = address_key(step.destination), (step.value, *sizes, stream)
                work.append(self._on_address(cuda.cuMemsetD8Async, (), place, behind, known))
        return tuple(work)

    def _on_address(
        self, call: Callable[..., Any], before: tuple[Any, ...], place: str, after: tuple[Any, ...],
        known: Mapping[str, int],
    ) -> _Work:  # fmt: skip
        if place in self._keys:
            return call, before, self._keys.index(place), after
        return call, (*before, known[place], *after), None, ()


_Work = tuple[Callable[..., Any], tuple[Any, ...], int | None, tuple[Any, ...]]
"""A driver call: itself, what it takes before and after an address, and which of the call's addresses that is."""


def _put(work: tuple[_Work, ...], addresses: Sequence[int]) -> bool:
    """Put the work on its stream; whether CUDA took all of it."""
    for call, before, index, after in work:
        answer = call(*before) if index is None else call(*before, addresses[index], *after)
        if answer[0]:
            return False
    return True


class _Map:
    """A tensor map among a block's values: of the call's `index`-th address, and where it is now."""

    __slots__ = ("_encoded", "_map", "_slot", "_values", "address", "index")

    def __init__(self, tensor_map: TensorMap | Im2colMap, index: int, values: array[int], slot: int) -> None:
        self.index = index
        self.address = 0
        self._map = tensor_map
        self._values = values
        self._slot = slot
        self._encoded: dict[int, array[int]] = {}

    def move(self, address: int) -> None:
        """Write the map of the tensor at that address."""
        words = self._encoded.get(address)
        if words is None:
            if len(self._encoded) >= MAX_ADDRESSES:
                self._encoded.clear()
            words = self._encoded[address] = encode(self._map, address)
        self._values[self._slot : self._slot + TENSOR_MAP_WORDS] = words
        self.address = address


@dataclass(slots=True)
class _Block:
    """What one call at a time needs."""

    values: array[int]
    maps: tuple[_Map, ...]
    work: tuple[_Work, ...]
    arguments: Arguments


@dataclass(slots=True)
class _OnStream:
    """What serves a stream: the module, what is held while constant memory is filled, blocks that nobody uses."""

    module: Module
    lock: threading.Lock | None
    spare: list[_Block]
