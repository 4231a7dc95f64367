"""Arrays of other libraries, read by their own attributes: CuPy, PyTorch, and all that CuPy can wrap.

PyTorch is never imported here: whoever hands over a tensor has imported it. Attributes are read instead of going
through DLPack because a DLPack import takes longer than a small convolution.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable, Collection, Hashable, Mapping
from contextlib import AbstractContextManager
from operator import attrgetter, methodcaller
from typing import Any, NamedTuple, Protocol

import numpy as np

from convgen.errors import UsageError
from convgen.toolkit import load_cupy

# Names of array dtypes that hold a problem's element type. CuPy has no bf16 or fp8 of its own: raw bits pass.
ACCEPTED_DTYPES = {
    "fp32": ("float32",),
    "fp16": ("float16",),
    "bf16": ("bfloat16", "uint16"),
    "fp8": ("float8_e4m3fn", "uint8"),
    "int8": ("int8",),
    "uint8": ("uint8",),
    "int32": ("int32",),
}

_CUDA_DEVICE_TYPES = (2, 13)  # kDLCUDA and kDLCUDAManaged


class View(NamedTuple):
    """Where an array's elements are."""

    pointer: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    in_bytes: bool
    """Whether `strides` count bytes (CuPy) or elements (PyTorch)."""
    dtype: str
    device: int


class Library(Protocol):
    """What the runtime needs of an array library. Work goes to the library's current stream."""

    owns_graph_memory: bool
    """Whether memory allocated while a graph is captured stays the graph's own."""

    signature: Callable[[Any], Hashable]
    """All of an array but where it lies: arrays with equal signatures are handled alike."""

    address: Callable[[Any], int]
    """Where an array's first element is."""

    def view(self, array: Any) -> View: ...

    def current_device(self) -> int: ...

    def current_stream(self, device: int) -> int: ...

    def use_stream(self, stream: int, device: int) -> AbstractContextManager[Any]:
        """Make a stream current for a `with` block, for the library's allocator too."""

    def empty(self, shape: tuple[int, ...], strides: tuple[int, ...], dtype: str, like: Any) -> Any:
        """A new array on the device of `like`; strides in elements; `dtype` is a problem's ("bf16")."""

    def maker(self, shape: tuple[int, ...], strides: tuple[int, ...], dtype: str, like: Any) -> Callable[[Any], Any]:
        """What makes a new array of that shape, fast, given one with the dtype and device of `like`.

        The device must be the current one. Strides in elements; `dtype` is a problem's, and the new array has that type
        itself, not its bits. Raises UsageError where the library has none.
        """

    def workspace(self, nbytes: int, like: Any) -> tuple[int, Any]:
        """Address and owner of device memory, aligned to 256 bytes or more."""

    def copy(self, destination: Any, source: Any) -> None:
        """Copy elements between arrays of equal shape and dtype, any strides."""


def native(name: str, array: Any) -> tuple[Library, Any]:
    """The library that handles an array, and the array as that library has it (the same memory).

    Raises UsageError for an array that is not in device memory.
    """
    library = libraries.get(type(array))
    if library is not None:
        return library, array
    module = type(array).__module__.partition(".")[0]
    if module == "torch" or (hasattr(array, "data_ptr") and hasattr(array, "is_cuda")):
        libraries[type(array)] = _TORCH
        return _TORCH, array
    # Whoever hands over a CuPy array has imported CuPy; what is no array needs none to be refused.
    cupy = sys.modules.get("cupy")
    if cupy is not None and isinstance(array, cupy.ndarray):
        libraries[type(array)] = _CUPY
        return _CUPY, array
    if hasattr(array, "__cuda_array_interface__"):
        return _CUPY, _cupy().asarray(array)
    if hasattr(array, "__dlpack__") and array.__dlpack_device__()[0] in _CUDA_DEVICE_TYPES:
        return _CUPY, _cupy().from_dlpack(array)
    raise UsageError(
        f"{name} is a {type(array).__module__}.{type(array).__qualname__}, not an array in GPU memory: pass a CuPy "
        "array, a CUDA tensor, or anything with __cuda_array_interface__ or DLPack; cupy.asarray moves a NumPy array"
    )


def numpy_type(dtype: str) -> np.dtype[Any]:
    """NumPy's and CuPy's type of a problem's elements. Raises UsageError for one that neither has yet."""
    name = ACCEPTED_DTYPES[dtype][0]
    try:
        return np.dtype(name)
    except TypeError:
        raise UsageError(f"{name} is no type of NumPy's or CuPy's own: import ml_dtypes first, which adds it") from None


def wrong_names(what: str, arrays: Mapping[str, Any], names: Collection[str]) -> UsageError:
    """What to raise where the arrays ("inputs" or "outputs") are not those that the problem has."""
    unknown = [str(name) for name in arrays if name not in names]
    missing = sorted(name for name in names if name not in arrays)
    problem = f"unknown {', '.join(unknown)}" if unknown else f"{', '.join(missing)} missing"
    return UsageError(f"{what}: {problem}; the problem has {', '.join(sorted(names))}")


def stream_handle(stream: Any) -> int:
    """The address of a stream given as an int, a CuPy or PyTorch stream, or an object with `__cuda_stream__`."""
    if isinstance(stream, int):
        return stream
    for attribute in ("ptr", "cuda_stream"):
        if hasattr(stream, attribute):
            return int(getattr(stream, attribute))
    if hasattr(stream, "__cuda_stream__"):
        return int(stream.__cuda_stream__()[1])
    try:
        return int(stream)
    except (TypeError, ValueError):
        raise UsageError(f"stream={stream!r}: expected an int, a CuPy or PyTorch stream, or __cuda_stream__") from None


class _CupyLibrary:
    # CuPy's pool would hand a graph's memory to the next caller.
    owns_graph_memory = False

    def __init__(self) -> None:
        self.signature: Callable[[Any], Hashable] = attrgetter("shape", "strides", "dtype", "data.device_id")
        self.address: Callable[[Any], int] = attrgetter("data.ptr")
        self._names: dict[Any, str] = {}

    def current_device(self) -> int:
        return int(_cupy().cuda.runtime.getDevice())

    def view(self, array: Any) -> View:
        dtype = array.dtype
        name = self._names.get(dtype)
        if name is None:
            name = self._names[dtype] = str(dtype)
        memory = array.data
        return View(memory.ptr, array.shape, array.strides, True, name, memory.device_id)

    def current_stream(self, device: int) -> int:
        return int(_cupy().cuda.get_current_stream(device).ptr)

    def use_stream(self, stream: int, device: int) -> AbstractContextManager[Any]:
        cupy = _cupy()
        if stream == 0:
            return cupy.cuda.Stream.null  # type: ignore[no-any-return]
        if hasattr(cupy.cuda.Stream, "from_external"):
            return cupy.cuda.Stream.from_external(_Stream(stream))  # type: ignore[no-any-return]
        return cupy.cuda.ExternalStream(stream, device)  # type: ignore[no-any-return]

    def empty(self, shape: tuple[int, ...], strides: tuple[int, ...], dtype: str, like: Any) -> Any:
        cupy = _cupy()
        names = ACCEPTED_DTYPES[dtype]
        element = like.dtype if self.view(like).dtype in names else cupy.dtype(names[-1])
        size = element.itemsize
        memory = cupy.cuda.alloc(math.prod(shape) * size or 1)
        return cupy.ndarray(shape, element, memory, strides=tuple(stride * size for stride in strides))

    def maker(self, shape: tuple[int, ...], strides: tuple[int, ...], dtype: str, like: Any) -> Callable[[Any], Any]:
        cupy = _cupy()
        ndarray, alloc, element = cupy.ndarray, cupy.cuda.alloc, numpy_type(dtype)
        nbytes = math.prod(shape) * element.itemsize or 1
        byte_strides = tuple(stride * element.itemsize for stride in strides)
        return lambda like: ndarray(shape, element, alloc(nbytes), byte_strides)

    def workspace(self, nbytes: int, like: Any) -> tuple[int, Any]:
        memory = _cupy().cuda.alloc(nbytes)
        return memory.ptr, memory

    def copy(self, destination: Any, source: Any) -> None:
        # CuPy copies no elements of types that it has no kernels for.
        bits = f"u{source.itemsize}"
        destination.view(bits)[...] = source.view(bits)


class _TorchLibrary:
    owns_graph_memory = True

    def __init__(self) -> None:
        self.signature: Callable[[Any], Hashable] = _torch_signature
        self.address: Callable[[Any], int] = methodcaller("data_ptr")
        self._names: dict[Any, str] = {}

    def current_device(self) -> int:
        return int(_torch().cuda.current_device())

    def view(self, array: Any) -> View:
        if not array.is_cuda:
            raise UsageError(f"a tensor is on {array.device}, expected a CUDA device: move it with .cuda()")
        dtype = array.dtype
        name = self._names.get(dtype)
        if name is None:
            name = self._names[dtype] = str(dtype).removeprefix("torch.")
        return View(array.data_ptr(), array.shape, array.stride(), False, name, array.get_device())

    def current_stream(self, device: int) -> int:
        return _raw_stream_of(_torch())(device)

    def use_stream(self, stream: int, device: int) -> AbstractContextManager[Any]:
        cuda = _torch().cuda
        chosen = cuda.default_stream(device) if stream == 0 else cuda.ExternalStream(stream, device)
        return cuda.stream(chosen)  # type: ignore[no-any-return]

    def empty(self, shape: tuple[int, ...], strides: tuple[int, ...], dtype: str, like: Any) -> Any:
        torch = _torch()
        element = getattr(torch, ACCEPTED_DTYPES[dtype][0])
        return torch.empty_strided(shape, strides, dtype=element, device=like.device)

    def maker(self, shape: tuple[int, ...], strides: tuple[int, ...], dtype: str, like: Any) -> Callable[[Any], Any]:
        element = getattr(_torch(), ACCEPTED_DTYPES[dtype][0])
        other = {} if element == like.dtype else {"dtype": element}
        return methodcaller("new_empty_strided", shape, strides, **other)

    def workspace(self, nbytes: int, like: Any) -> tuple[int, Any]:
        torch = _torch()
        memory = torch.empty(nbytes, dtype=torch.uint8, device=like.device)
        return memory.data_ptr(), memory

    def copy(self, destination: Any, source: Any) -> None:
        destination.detach().copy_(source.detach())


def _torch_signature(array: Any) -> Hashable:
    return array.shape, array.stride(), array.dtype, array.device, array.requires_grad


@functools.cache
def _raw_stream_of(torch: Any) -> Callable[[int], int]:
    """What returns the address of a device's current stream, without making a Stream object if it need not."""
    found = getattr(torch._C, "_cuda_getCurrentRawStream", None) if hasattr(torch, "_C") else None
    return found or (lambda device: int(torch.cuda.current_stream(device).cuda_stream))


class _Stream:
    """A bare stream address in the form of the CUDA stream protocol."""

    def __init__(self, address: int) -> None:
        self._address = address

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._address


def _torch() -> Any:
    return sys.modules["torch"]


_cupy = functools.cache(load_cupy)
_CUPY = _CupyLibrary()
_TORCH = _TorchLibrary()
libraries: dict[type, Library] = {}
"""The library of each type of array that has been seen; what `native` had to wrap is not among them."""
