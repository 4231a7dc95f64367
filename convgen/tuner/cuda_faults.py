"""Errors of CUDA, told apart: those that are one launch's, and those after which a context is lost."""

from __future__ import annotations

from dataclasses import dataclass

from convgen.errors import DeviceError
from convgen.runtime.driver import CudaError, driver
from convgen.tuner.outcome import TrialStatus

# By number, which the driver's and the runtime's errors share. All of these stay with the context.
_STICKY: dict[int, TrialStatus] = {
    700: "illegal_access",  # illegal address
    702: "hang",  # launch timeout
    710: "illegal_access",  # device-side assert
    714: "illegal_access",  # hardware stack error
    715: "illegal_access",  # illegal instruction
    716: "illegal_access",  # misaligned address
    717: "illegal_access",  # invalid address space
    718: "illegal_access",  # invalid program counter
    719: "illegal_access",  # launch failed: an exception that has no number of its own
}
# What CUDA refuses to load or launch; the context is as before.
_REFUSED = {
    1,  # invalid value: a block or grid beyond the limits
    9,  # invalid configuration, as the runtime calls it
    200,  # invalid image
    209,  # no binary for this GPU
    218,  # invalid PTX
    300,  # invalid source
    500,  # not found
    701,  # too many registers or too much shared memory for the block
    703,  # incompatible texturing mode
    720,  # cooperative launch too large
    801,  # not supported
    912,  # invalid cluster size
    915,  # invalid resource configuration
}
_OUT_OF_MEMORY = 2

_OF_CUPY = ("CUDARuntimeError", "CUDADriverError")
"""Told by name: this module is imported where there is no CuPy too."""


@dataclass(frozen=True)
class CudaFault:
    """What an error makes of the candidate, and whether the context can be used afterwards."""

    status: TrialStatus
    reason: str
    trusted: bool


def classified(error: BaseException) -> CudaFault:
    """The fault behind an exception that loading, launching or waiting for a kernel raised."""
    reason = str(error) or type(error).__name__
    if isinstance(error, MemoryError):
        return CudaFault("out_of_memory", reason, True)
    number = _number(error)
    if number == _OUT_OF_MEMORY:
        return CudaFault("out_of_memory", reason, True)
    if number in _STICKY:
        return CudaFault(_STICKY[number], reason, False)
    if number in _REFUSED:
        return CudaFault("launch_failure", reason, True)
    # An error that says nothing of CUDA is the caller's; any other means that something is wrong with the device.
    return CudaFault("failed", f"{type(error).__name__}: {reason}", number is None and isinstance(error, DeviceError))


def _number(error: BaseException | None) -> int | None:
    """CUDA's number for the first error of the chain that has one."""
    while error is not None:
        if isinstance(error, CudaError):
            return int(getattr(driver().CUresult, error.name))
        if type(error).__name__ in _OF_CUPY:
            return int(error.status)  # type: ignore[attr-defined]
        error = error.__cause__ or error.__context__
    return None
