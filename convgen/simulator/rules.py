"""What a fault says of the rule that was broken, in the order of `Rule` in src/launch.h.

{place} is where in shared memory, {value} what the kernel gave, {wanted} what was expected; {offset} is a number of its
own.
"""

from __future__ import annotations

_APART = "threads come to it at another place, all must come to the same instruction"

RULES = (
    "",
    "waits for parity {value} of the mbarrier at {place}, whose phase never ends",
    "no mbarrier at {place}: mbarrier_init it first",
    "the initialisation of the mbarrier at {place} by another thread may still be to come: a barrier of the block must "
    "come between, of the cluster if it is another block's",
    "the mbarrier at {place} is in use: mbarrier_inval it first, when nobody waits for it",
    "the mbarrier at {place} would count {value} arrivals, expected 1 to 1048575",
    "an mbarrier at {place} beyond the {wanted} that the simulator has for a block",
    "the mbarrier at {place} is told to expect {value} bytes more, it counts up to {wanted}",
    "{value} arrivals at the mbarrier at {place}, whose phase waits for {wanted} more",
    "the block ends and the mbarrier at {place} still expects {value} bytes: the sum of expect_tx differs from the "
    "bytes that were copied",
    "{value} bytes of this copy come when the phase of the mbarrier at {place} in which it was issued is over: "
    "expect_tx said too few",
    "the mbarrier at {place} completes a copy, but no fence_mbarrier_init or fence_proxy_async came between its "
    "initialisation and that",
    "the copy's tensor map is none: it must be a kernel parameter",
    "the tensor map has {wanted} dimensions, the copy {value}",
    "the tensor map is one of boxes and the copy of im2col's pixels, or the other way round",
    "{place} must be a multiple of {wanted}",
    "global address {value:#x} must be a multiple of {wanted}",
    "a copy of {value} bytes, which must be a multiple of {wanted}",
    "the block ends while this copy to {place} is under way: nobody has waited for it",
    "the block ends while this copy from {place} may still read: cp_async_bulk_wait_group first",
    "executed by {value} of the {wanted} threads of the warpgroup, all must come to the same instruction",
    _APART,
    "waits for the other threads of its warpgroup, which never come",
    "the threads of the warpgroup give different descriptors or operands",
    "no wgmma_fence between what the thread did to its registers and this first wgmma",
    "a base offset of {value} in the descriptor: the swizzle follows absolute addresses, expected {wanted}",
    "the block ends while this wgmma is under way: wgmma_wait_group first",
    "more than {wanted} wgmma of a warpgroup under way, which is what the simulator keeps",
    "an accumulator is used while a wgmma may still write it: wgmma_wait_group first",
    "an operand in registers is written while a wgmma may still read it: wgmma_wait_group first",
    "barrier {value}, expected 1 to {wanted}: 0 is that of __syncthreads",
    "barrier {offset} of {value} threads, expected a multiple of 32",
    "barrier {offset} of {value} threads, of which others say that it has {wanted}",
    "waits at barrier {value} of {wanted} threads, of which {offset} have come",
    "setmaxnreg_inc to {value} registers a thread, which has {wanted}",
    "setmaxnreg_dec to {value} registers a thread, which has {wanted}",
    "setmaxnreg_inc to {value} registers a thread needs {wanted} more for its warpgroup; {offset} are free, and nobody "
    "gives any back",
    "rank {value} of a cluster of {wanted} blocks",
    "the block of rank {value} may not have started: a barrier of the cluster must come before",
    "the block of rank {value} may have ended before this access: a barrier of the cluster, or its own wait for it, "
    "must come after",
    "cluster_arrive a second time: cluster_wait must come between",
    "cluster_wait without a cluster_arrive before it",
    "waits at the cluster's barrier, to which {offset} of {value} threads have come and {wanted} have ended before",
    "multicast to the ranks of mask {value:#x} in a cluster of {wanted} blocks",
    "the copy's innermost coordinate lies {value} bytes behind a multiple of {wanted} bytes, where it must begin",
    "the store's box begins {value} before the tensor and reaches into it: stores begin inside or lie outside",
)

APART = RULES.index(_APART)


def mbarrier_text(place: str, phase: int, expected: int, pending: int, nbytes: int) -> str:
    """How an mbarrier stood, for the report of a deadlock."""
    return f"mbarrier at {place}: phase {phase}, {pending} of {expected} arrivals and {nbytes} bytes pending"


def signed(value: int) -> int:
    """A 64-bit pattern as a signed number."""
    return value - (1 << 64) if value >> 63 else value
