"""The CUDA driver, reached through cuda-bindings: errors become DeviceError, contexts are a device's primary one."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from types import TracebackType
from typing import Any

from convgen.errors import DeviceError
from convgen.toolkit import INSTALL


@functools.cache
def driver() -> Any:
    """The module `cuda.bindings.driver`. Raises DeviceError if it is not installed."""
    try:
        from cuda.bindings import driver as module
    except ImportError as error:
        raise DeviceError(f"cuda-bindings is not installed: {INSTALL}") from error
    return module


def check(answer: tuple[Any, ...]) -> Any:
    """What a driver call returned beside its status. Raises DeviceError with CUDA's name for the error."""
    status = answer[0]
    if status:
        raise CudaError(status)
    return answer[1] if len(answer) > 1 else None


class CudaError(DeviceError):
    """A driver call that failed; `name` is CUDA's, "CUDA_ERROR_NO_BINARY_FOR_GPU"."""

    def __init__(self, status: Any) -> None:
        self.name: str = status.name
        _, text = driver().cuGetErrorString(status)
        super().__init__(f"{self.name}: {text.decode() if text else 'unknown error'}")


@functools.cache
def primary_context(device: int) -> Any:
    """The context that CuPy and PyTorch use on a device. Held until the process ends."""
    cuda = driver()
    try:
        started = cuda.cuInit(0)
    # Releases of cuda-bindings differ in what they raise where the driver's library is missing.
    except Exception as error:
        raise DeviceError(f"no NVIDIA driver: {error}") from error
    check(started)
    return check(cuda.cuDevicePrimaryCtxRetain(check(cuda.cuDeviceGet(device))))


class ActiveContext:
    """Make a device's primary context the thread's current one for a `with` block."""

    __slots__ = ("_context", "_pushed")

    def __init__(self, device: int) -> None:
        self._context = primary_context(device)
        self._pushed = False

    def __enter__(self) -> None:
        cuda = driver()
        if int(check(cuda.cuCtxGetCurrent())) != int(self._context):
            check(cuda.cuCtxPushCurrent(self._context))
            self._pushed = True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pushed:
            check(driver().cuCtxPopCurrent())


def adopt_context(device: int) -> None:
    """Make a device's primary context this thread's current one if it has none, as the libraries do on first use."""
    cuda = driver()
    if not int(check(cuda.cuCtxGetCurrent())):
        check(cuda.cuCtxSetCurrent(primary_context(device)))


def is_capturing(stream: int) -> bool:
    """Whether the stream is recording a CUDA graph. The legacy default stream never does, nor may it be asked then."""
    if not stream:
        return False
    cuda = driver()
    status = check(cuda.cuStreamIsCapturing(cuda.CUstream(stream)))
    return bool(status != cuda.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE)


@contextlib.contextmanager
def relaxed_capture() -> Iterator[None]:
    """Let this thread load code and allocate while it captures a graph, which CUDA forbids by default."""
    cuda = driver()
    before = check(cuda.cuThreadExchangeStreamCaptureMode(cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED))
    try:
        yield
    finally:
        check(cuda.cuThreadExchangeStreamCaptureMode(before))
