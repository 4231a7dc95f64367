"""Simulated global memory: guarded buffers far apart, with a shadow of who wrote what."""

from __future__ import annotations

import ctypes
import mmap
import weakref
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from convgen.simulator import abi
from convgen.simulator.flight import Flight

CANARY = 0xA5
POISON = 0xFF
SLOTS = 32
BY_HOST, BY_KERNEL = 1, 2  # shadow of what was written before the launch
_MAP_NORESERVE = 0x4000

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


@dataclass(frozen=True, eq=False)
class Block:
    """One named buffer. `bytes` views its memory; `writer` is its shadow, None if kernels may only read it."""

    name: str
    index: int
    address: int
    granule: int
    bytes: npt.NDArray[np.uint8] = field(repr=False)
    writer: npt.NDArray[np.uint64] | None = field(repr=False)
    touched: npt.NDArray[np.uint8] = field(repr=False)
    guards: tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]] = field(repr=False)

    @property
    def nbytes(self) -> int:
        return len(self.bytes)

    def written_by_kernel(self) -> npt.NDArray[np.bool_]:
        """Which granules kernels have written, from the shadow (check and count modes)."""
        return np.zeros(len(self.touched), bool) if self.writer is None else self.writer >= BY_KERNEL

    def footprint(self) -> int:
        """Distinct bytes that kernels touched, to the granule (count mode)."""
        return int(np.count_nonzero(self.touched)) * self.granule

    def canaries_intact(self) -> bool:
        """Whether the guard zones beside the buffer are as they were made."""
        return all(bool((guard == CANARY).all()) for guard in self.guards)

    def mark_written(self) -> None:
        """Say that the host has written all of it."""
        if self.writer is not None:
            self.writer[:] = BY_HOST


class Memory:
    """An arena of up to 32 buffers of up to 16 GB, each with its own range of addresses.

    Nothing but a buffer and its guard zones is mapped, so that no stray address falls into another buffer.
    """

    def __init__(self) -> None:
        self._arena = _Arena(SLOTS * abi.ARENA_SLOT_BYTES)
        self.base = self._arena.base
        self.blocks: list[Block] = []
        self._launched = False
        self._flight = Flight()

    def allocate(
        self, name: str, nbytes: int, *, writable: bool, initialised: bool, granule: int = 4, offset: int = 0
    ) -> Block:
        """A buffer of `nbytes`, its address `offset` bytes past a multiple of 256.

        Writable ones start as 0xFF bytes; `granule` (1, 2, 4, 8 or 16 bytes, the element) is the unit in which
        writes are remembered. Not `initialised`: reading before writing is a fault.
        """
        if len(self.blocks) == SLOTS:
            raise MemoryError(f"the simulator's memory holds {SLOTS} buffers")
        if nbytes > abi.ARENA_SLOT_BYTES - (8 << 20):
            raise MemoryError(f"{name}: {nbytes} bytes; the simulator's buffers hold up to 16 GB")
        index = len(self.blocks)
        start = self.base + index * abi.ARENA_SLOT_BYTES + (1 << 20)
        address = start + abi.GUARD_BYTES + offset
        mapped = abi.GUARD_BYTES * 2 + nbytes + offset + mmap.PAGESIZE & -mmap.PAGESIZE
        if _libc.mprotect(start, mapped, mmap.PROT_READ | mmap.PROT_WRITE):
            raise MemoryError(f"{name}: cannot map {mapped} bytes")
        guards = (
            self._arena.view(start, abi.GUARD_BYTES + offset),
            self._arena.view(address + nbytes, abi.GUARD_BYTES - offset),
        )
        granules = -(-nbytes // granule)
        block = Block(
            name,
            index,
            address,
            granule,
            self._arena.view(address, nbytes),
            _shadow(granules, initialised) if writable else None,
            np.zeros(granules, np.uint8),
            guards,
        )
        if writable:
            block.bytes[:] = POISON
            for guard in guards:
                guard[:] = CANARY
        self.blocks.append(block)
        return block

    def table(self, *, count: bool) -> ctypes.Array[abi.Buffer]:
        """The buffers as the compiled simulator reads them."""
        return (abi.Buffer * max(1, len(self.blocks)))(
            *(
                abi.Buffer(
                    b.address,
                    b.nbytes,
                    None if b.writer is None else b.writer.ctypes.data,
                    b.touched.ctypes.data if count else None,
                    b.granule.bit_length() - 1,
                    self._flight.before.get(b.index, 0),
                    self._flight.behind.get(b.index, 0),
                )
                for b in self.blocks
            )
        )

    def begin_launch(self, is_early: bool = False) -> None:
        """Who wrote what in the launch before no longer matters, only that it was written.

        One that is early may begin while those before still run.
        """
        if not is_early:
            self.settle()
        if self._launched:
            for block in self.blocks:
                if block.writer is not None:
                    np.minimum(block.writer, BY_KERNEL, out=block.writer)
        self._launched = True

    def end_launch(self, used: ctypes.Array[abi.Buffer], has_waited: bool) -> None:
        """Take from the table how the launch used the buffers; it may still run when an early one begins."""
        uses = {block.index: used[block.index].used for block in self.blocks if used[block.index].used}
        self._flight = self._flight.then(uses, has_waited)

    def settle(self) -> None:
        """Say that all kernels have ended."""
        self._flight = Flight()


class _Arena:
    """A range of addresses, given back when neither a Memory nor a view into it is left."""

    def __init__(self, size: int) -> None:
        self.base = reserve(size, 0)
        weakref.finalize(self, unmap, self.base, size)

    def view(self, address: int, nbytes: int) -> npt.NDArray[np.uint8]:
        raw = (ctypes.c_uint8 * nbytes).from_address(address)
        vars(raw)["arena"] = self  # numpy keeps `raw`
        return np.ctypeslib.as_array(raw)


def reserve(size: int, protection: int) -> int:
    """A range of addresses that takes no memory before it is touched. Raises MemoryError."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
    address: int | None = _libc.mmap(None, size, protection, flags, -1, 0)
    if address is None or address == ctypes.c_void_p(-1).value:
        raise MemoryError(f"cannot reserve {size} bytes of addresses for the simulator (ulimit -v?)")
    return address


def unmap(address: int, size: int) -> None:
    """Give a range of addresses back."""
    _libc.munmap(address, size)


def _shadow(granules: int, initialised: bool) -> npt.NDArray[np.uint64]:
    # Zeros take no memory until touched: a large output of which a few blocks are run stays cheap.
    return np.full(granules, BY_HOST, np.uint64) if initialised else np.zeros(granules, np.uint64)
