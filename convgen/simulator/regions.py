"""Memory of the simulator's workers: a region each, kept for the launches of any library, for its warm stacks."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import threading
from collections.abc import Iterator

from convgen.simulator import abi
from convgen.simulator.memory import reserve, unmap

_lock = threading.Lock()
_free: list[int] = []


@contextlib.contextmanager
def regions(count: int) -> Iterator[ctypes.Array[ctypes.c_void_p]]:
    """The addresses of `count` regions that nobody else uses meanwhile. Raises MemoryError."""
    with _lock:
        taken = [_free.pop() for _ in range(min(count, len(_free)))]
    try:
        while len(taken) < count:
            taken.append(_mapped())
        yield (ctypes.c_void_p * count)(*taken)
    finally:
        with _lock:
            _free.extend(taken)


def _mapped() -> int:
    """A fresh region, at a multiple of its size."""
    size = abi.REGION_BYTES
    begin = reserve(2 * size, mmap.PROT_READ | mmap.PROT_WRITE)
    aligned = -(-begin // size) * size
    for address, rest in ((begin, aligned - begin), (aligned + size, begin + size - aligned)):
        if rest:
            unmap(address, rest)
    return aligned
