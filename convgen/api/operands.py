"""A call's arrays: whose they are, where they are, and what they look like."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import numpy as np

from convgen.api.arguments import Described
from convgen.api.prepared import PreparedWeight
from convgen.errors import UsageError
from convgen.runtime.arrays import Library, native
from convgen.runtime.physical import check_unmasked


@dataclass(frozen=True, slots=True)
class Operand:
    """An array that is one of a call's, and the library that handles it, which is none for NumPy's."""

    name: str
    array: Any
    library: Library | None
    described: Described
    device: int

    @property
    def signature(self) -> Callable[[Any], Hashable]:
        """What gives all of such an array but where it lies."""
        return _HOST_SIGNATURE if self.library is None else self.library.signature


def operand(name: str, array: Any) -> Operand:
    """Raises UsageError for what is no array in memory that can be used."""
    if isinstance(array, np.ndarray):
        check_unmasked(name, array)
        if not array.dtype.isnative:
            raise UsageError(
                f"{name} is {array.dtype.str}, in another byte order than this machine's: "
                f"pass {name}.astype({array.dtype.name!r})"
            )
        return Operand(name, array, None, _described(array.shape, array.strides, array.dtype), -1)
    if isinstance(array, PreparedWeight):
        raise UsageError(f"{name} is {array!r}, which stands for the weight of a convolution alone: pass it as weight")
    try:
        library, found = native(name, array)
    except UsageError:
        raise UsageError(
            f"{name} is a {type(array).__module__}.{type(array).__qualname__}, expected a NumPy or CuPy array, a CUDA "
            "tensor, or anything in GPU memory with __cuda_array_interface__ or DLPack; numpy.asarray "
            "makes one of a list or a number"
        ) from None
    # What CuPy raises for an element type that it cannot take over.
    except (TypeError, ValueError, NotImplementedError, BufferError) as error:
        raise UsageError(
            f"{name} is a {type(array).__module__}.{type(array).__qualname__} that CuPy cannot wrap ({error}): "
            "pass a CUDA tensor or a CuPy array of the same memory"
        ) from error
    try:
        view = library.view(found)
    # PyTorch raises a RuntimeError for a tensor that has no strides.
    except (UsageError, RuntimeError) as error:
        raise UsageError(f"{name}: {error}") from None
    if view.in_bytes:
        return Operand(name, found, library, _described(view.shape, view.strides, found.dtype), view.device)
    return Operand(name, found, library, Described(tuple(view.shape), tuple(view.strides), view.dtype), view.device)


def check_same_place(operands: Sequence[Operand]) -> None:
    """Raise UsageError unless all are NumPy arrays, or all on one GPU."""
    first = operands[0]
    for other in operands[1:]:
        if (other.library is None) != (first.library is None):
            host, gpu = (first, other) if first.library is None else (other, first)
            raise UsageError(f"{host.name} is a NumPy array and {gpu.name} in GPU memory: move one of them")
        if other.device != first.device:
            raise UsageError(
                f"{other.name} is on device {other.device}, {first.name} on device {first.device}: move one of them"
            )


def check_writable(out: Operand) -> None:
    """Raise UsageError for a NumPy array that is read-only."""
    if out.library is None and not out.array.flags.writeable:
        raise UsageError(f"{out.name} is a read-only NumPy array, expected one that can be written: {out.name}.copy()")


def _described(shape: tuple[int, ...], strides: tuple[int, ...], dtype: Any) -> Described:
    # A stride that is no whole number of elements is no layout's: 0 stands for it.
    elements = tuple(0 if stride % dtype.itemsize else stride // dtype.itemsize for stride in strides)
    return Described(tuple(shape), elements, str(dtype))


_HOST_SIGNATURE = attrgetter("shape", "strides", "dtype", "flags.writeable")
