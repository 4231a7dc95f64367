"""Arrays to addresses: used where they lie if kernels can, else through a copy that they can use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from convgen.errors import UsageError
from convgen.problem import Sizes
from convgen.runtime.arrays import Library, View, native
from convgen.runtime.sized import Tensor


class Call(NamedTuple):
    """What one run is made on: the first input decides library and device."""

    library: Library
    first: Any
    view: View
    device: int
    stream: int
    sizes: Sizes


def readable(tensor: Tensor, array: Any, call: Call) -> tuple[int, Any]:
    """The address the kernels read, and the copy that was made for them, if one was."""
    if array is call.first:
        library, source, view = call.library, array, call.view
    else:
        library, source = native(tensor.name, array)
        view = library.view(source)
    if is_usable(tensor, view, call.device):
        return view.pointer, None
    with library.use_stream(call.stream, call.device):
        copied = library.empty(tensor.shape, tensor.strides, tensor.dtype, source)
        library.copy(copied, source)
    return library.view(copied).pointer, copied


def writable(
    tensor: Tensor, library: Library, array: Any, call: Call, read: Sequence[tuple[int, int]], accumulate: bool
) -> tuple[int, Any]:
    """The address the kernels write, and the array behind it where that is not the caller's.

    `read` are the ranges of addresses that the kernels read while they write.
    """
    view = library.view(array)
    start, end = view.pointer, view.pointer + tensor.nbytes
    if is_usable(tensor, view, call.device):
        if not any(start < last and first < end for first, last in read):
            return start, None
    elif any(extent > 1 and stride == 0 for extent, stride in zip(view.shape, view.strides, strict=True)):
        raise UsageError(f"{tensor.name} has stride 0: several of its elements share memory, so it cannot be written")
    with library.use_stream(call.stream, call.device):
        aside = library.empty(tensor.shape, tensor.strides, tensor.dtype, array)
        if accumulate:
            library.copy(aside, array)
    return library.view(aside).pointer, aside


def is_usable(tensor: Tensor, view: View, device: int) -> bool:
    """Whether kernels can work on the array where it lies. Raises UsageError for an array that is another tensor."""
    if view.shape != tensor.shape:
        raise UsageError(f"{tensor.name} has shape {tuple(view.shape)}, expected {tensor.shape}")
    if view.dtype not in tensor.dtypes:
        raise UsageError(f"{tensor.name} is {view.dtype}, expected {' or '.join(tensor.dtypes)}")
    if view.device != device:
        raise UsageError(
            f"{tensor.name} is on device {view.device}, the first input on device {device}: move one of them"
        )
    return not view.pointer % tensor.alignment and is_dense(tensor, view)


def is_dense(tensor: Tensor, view: View) -> bool:
    """Whether the array's elements lie in the tensor's order, without gaps."""
    wanted = tensor.byte_strides if view.in_bytes else tensor.strides
    if view.strides == wanted or not tensor.nbytes:
        return True
    # The stride of an extent of 1 is never used, and libraries set it as they like.
    return all(
        extent == 1 or stride == want for extent, stride, want in zip(view.shape, view.strides, wanted, strict=True)
    )
