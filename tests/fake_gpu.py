"""A GPU, a driver and a tensor library made of host memory, so that the runtime's own logic is tested without one.

Tensors are NumPy arrays seen through the attributes of a `torch.Tensor`; the driver has the calls the runtime makes,
and runs the kernels of `cuda_sources/scale.cu` as Python functions.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from convgen.compiler import Binary
from convgen.plan import Plan
from convgen.runtime import arrays, bound, cuda, driver, module, prepared
from convgen.runtime.cuda import CudaProgram, load


class Fake:
    """The fake GPU and the programs that run on it."""

    def __init__(self) -> None:
        self.driver = FakeDriver()
        self.torch = FakeTorch()

    def program(self, plan: Plan) -> CudaProgram:
        return load(plan, Binary("sm_90a", b"\x7fELF", "", "", (), "key", "NVRTC", 0.0))


@contextlib.contextmanager
def installed() -> Iterator[Fake]:
    """A fake GPU in place of the driver and of PyTorch."""
    fake = Fake()
    with pytest.MonkeyPatch.context() as patch:
        for part in (driver, cuda, module, bound, prepared):
            patch.setattr(part, "driver", lambda: fake.driver)
        patch.setitem(sys.modules, "torch", fake.torch)
        known = dict(arrays.libraries)
        arrays.libraries.clear()
        driver.primary_context.cache_clear()
        yield fake
        driver.primary_context.cache_clear()
        arrays.libraries.clear()
        arrays.libraries.update(known)


class FakeTensor:
    """What the runtime reads of a torch.Tensor. Elements lie at any `offset` bytes past a 512-byte boundary."""

    def __init__(self, array: Any, dtype: str | None = None, device: int = 0, is_cuda: bool = True) -> None:
        self.array = array
        self.shape = array.shape
        self.dtype = f"torch.{dtype or array.dtype.name}"
        self.device = device
        self.is_cuda = is_cuda
        self.requires_grad = False

    def data_ptr(self) -> int:
        return int(self.array.ctypes.data)

    def stride(self) -> tuple[int, ...]:
        return tuple(s // self.array.itemsize for s in self.array.strides)

    def get_device(self) -> int:
        return self.device

    def detach(self) -> FakeTensor:
        return FakeTensor(self.array, self.dtype.removeprefix("torch."), self.device, self.is_cuda)

    def new_empty_strided(self, shape: Any, strides: Any, dtype: str | None = None) -> FakeTensor:
        return sys.modules["torch"].empty_strided(shape, strides, dtype or self.dtype, self.device)  # type: ignore[no-any-return]

    def __getitem__(self, key: Any) -> FakeTensor:
        return FakeTensor(self.array[key], self.dtype.removeprefix("torch."), self.device)

    def copy_(self, source: FakeTensor) -> None:
        self.array[...] = source.array


def aligned(shape: tuple[int, ...], dtype: Any = np.float32, offset: int = 0) -> Any:
    """A NaN-filled NumPy array whose data begin `offset` bytes after a multiple of 512."""
    element = np.dtype(dtype)
    nbytes = int(np.prod(shape)) * element.itemsize
    raw = np.full(nbytes + 1024 + offset, 0xFF, np.uint8)
    start = -raw.ctypes.data % 512 + offset
    return raw[start : start + nbytes].view(element).reshape(shape)


def tensor(values: Any, offset: int = 0) -> FakeTensor:
    array = aligned(np.shape(values), np.asarray(values).dtype, offset)
    array[...] = values
    return FakeTensor(array)


class FakeTorch(types.ModuleType):
    """The functions of `torch` that the runtime calls; `allocated` counts bytes by the stream they were asked on."""

    float32, bfloat16, uint8 = "torch.float32", "torch.bfloat16", "torch.uint8"
    float8_e4m3fn = "torch.float8_e4m3fn"

    def __init__(self) -> None:
        super().__init__("torch")
        self.stream = 7
        self.device = 0
        self.grad = False
        self.allocated: list[tuple[int, int]] = []
        self.cuda = types.SimpleNamespace(
            current_device=lambda: self.device,
            current_stream=lambda device: types.SimpleNamespace(cuda_stream=self.stream),
            default_stream=lambda device: 0,
            ExternalStream=lambda stream, device: stream,
            stream=self._use,
        )

    @contextlib.contextmanager
    def _use(self, stream: int) -> Iterator[None]:
        before, self.stream = self.stream, stream
        yield
        self.stream = before

    def is_grad_enabled(self) -> bool:
        return self.grad

    def empty_strided(self, shape: Any, strides: Any, dtype: str, device: int) -> FakeTensor:
        element = np.dtype(dtype.removeprefix("torch."))
        array = aligned((int(np.prod(shape)),), element)
        self.allocated.append((self.stream, array.nbytes))
        view = np.lib.stride_tricks.as_strided(array, shape, [s * element.itemsize for s in strides])
        return FakeTensor(view, device=device)

    def empty(self, nbytes: int, dtype: str, device: int) -> FakeTensor:
        return self.empty_strided((nbytes,), (1,), dtype, device)


class Status(int):
    @property
    def name(self) -> str:
        return {0: "CUDA_SUCCESS", 209: "CUDA_ERROR_NO_BINARY_FOR_GPU"}.get(self, "CUDA_ERROR_INVALID_VALUE")


OK = Status(0)


class FakeDriver:
    """`cuda.bindings.driver` as far as the runtime uses it. `calls` records what reached it."""

    CUfunction_attribute = types.SimpleNamespace(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES=8)
    CUevent_flags = types.SimpleNamespace(CU_EVENT_DISABLE_TIMING=2)
    CUlaunchAttributeID = types.SimpleNamespace(CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION=4)
    CUstreamCaptureMode = types.SimpleNamespace(CU_STREAM_CAPTURE_MODE_RELAXED=2)
    CUstreamCaptureStatus = types.SimpleNamespace(CU_STREAM_CAPTURE_STATUS_NONE=0)
    CUarray_format = types.SimpleNamespace(
        CU_AD_FORMAT_FLOAT=32, CU_AD_FORMAT_HALF=16, CU_AD_FORMAT_UNSIGNED_INT16=2, CU_AD_FORMAT_SIGNED_INT8=8,
        CU_AD_FORMAT_UNSIGNED_INT8=1,
    )  # fmt: skip
    CUresourcetype = types.SimpleNamespace(CU_RESOURCE_TYPE_PITCH2D=3)
    CUaddress_mode = types.SimpleNamespace(CU_TR_ADDRESS_MODE_BORDER=3)
    CUfilter_mode = types.SimpleNamespace(CU_TR_FILTER_MODE_POINT=0)
    CU_TRSF_READ_AS_INTEGER = 1
    CUstream = CUdeviceptr = int

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.modules: dict[int, Any] = {}
        self.textures: dict[int, Any] = {}
        self.capturing = False
        self.capture_mode = 0
        self.load_status = OK
        self.launch_status = OK
        self.event_status = OK
        self.current = 0

    def names(self) -> list[str]:
        return [call[0] for call in self.calls]

    def cuInit(self, flags: int) -> tuple[Any, ...]:  # noqa: N802
        return (OK,)

    def cuDeviceGet(self, ordinal: int) -> tuple[Any, ...]:  # noqa: N802
        return OK, ordinal

    def cuDevicePrimaryCtxRetain(self, device: int) -> tuple[Any, ...]:  # noqa: N802
        return OK, 100 + device

    def cuCtxGetCurrent(self) -> tuple[Any, ...]:  # noqa: N802
        return OK, self.current

    def cuCtxPushCurrent(self, context: int) -> tuple[Any, ...]:  # noqa: N802
        self.current = context
        return (OK,)

    def cuCtxPopCurrent(self) -> tuple[Any, ...]:  # noqa: N802
        self.current = 0
        return OK, 0

    def cuCtxSetCurrent(self, context: int) -> tuple[Any, ...]:  # noqa: N802
        self.current = context
        self.calls.append(("set context", context))
        return (OK,)

    def cuEventCreate(self, flags: int) -> tuple[Any, ...]:  # noqa: N802
        assert flags == 2
        return OK, 900

    def cuEventRecord(self, event: int, stream: int) -> tuple[Any, ...]:  # noqa: N802
        self.calls.append(("record", stream))
        return (OK,)

    def cuEventQuery(self, event: int) -> tuple[Any, ...]:  # noqa: N802
        assert self.capture_mode == 2
        return (self.event_status,)

    def cuEventSynchronize(self, event: int) -> tuple[Any, ...]:  # noqa: N802
        assert self.capture_mode == 2
        self.calls.append(("wait for event",))
        return (OK,)

    def cuStreamWaitEvent(self, stream: int, event: int, flags: int) -> tuple[Any, ...]:  # noqa: N802
        self.calls.append(("stream waits", stream))
        return (OK,)

    def cuCtxSynchronize(self) -> tuple[Any, ...]:  # noqa: N802
        self.calls.append(("synchronize",))
        return (OK,)

    def cuGetErrorString(self, status: Status) -> tuple[Any, ...]:  # noqa: N802
        return OK, b"text of the error"

    def cuStreamIsCapturing(self, stream: int) -> tuple[Any, ...]:  # noqa: N802
        return OK, int(self.capturing)

    def cuThreadExchangeStreamCaptureMode(self, mode: int) -> tuple[Any, ...]:  # noqa: N802
        before, self.capture_mode = self.capture_mode, mode
        return OK, before

    def cuModuleLoadData(self, image: bytes) -> tuple[Any, ...]:  # noqa: N802
        if self.load_status:
            return self.load_status, None
        assert self.capture_mode == 2
        handle = len(self.calls) + 1000
        self.modules[handle] = np.zeros(16, np.float32)
        self.calls.append(("load", self.current))
        return OK, handle

    def cuModuleUnload(self, module: int) -> tuple[Any, ...]:  # noqa: N802
        del self.modules[module]
        self.calls.append(("unload",))
        return (OK,)

    def cuModuleGetFunction(self, module: int, name: bytes) -> tuple[Any, ...]:  # noqa: N802
        return OK, (module, name.decode())

    def cuModuleGetGlobal(self, module: int, name: bytes) -> tuple[Any, ...]:  # noqa: N802
        return OK, self.modules[module].ctypes.data, 64

    def cuFuncSetAttribute(self, function: Any, attribute: int, value: int) -> tuple[Any, ...]:  # noqa: N802
        self.calls.append(("attribute", function[1], attribute, value))
        return (OK,)

    def cuMemcpyDtoDAsync(self, to: int, source: int, nbytes: int, stream: int) -> tuple[Any, ...]:  # noqa: N802
        ctypes.memmove(to, source, nbytes)
        self.calls.append(("copy", nbytes, stream))
        return (OK,)

    def cuMemsetD8Async(self, to: int, value: int, nbytes: int, stream: int) -> tuple[Any, ...]:  # noqa: N802
        ctypes.memset(to, value, nbytes)
        self.calls.append(("memset", value, nbytes, stream))
        return (OK,)

    def CUDA_RESOURCE_DESC(self) -> Any:  # noqa: N802
        return types.SimpleNamespace(res=types.SimpleNamespace(pitch2D=types.SimpleNamespace()))

    def CUDA_TEXTURE_DESC(self) -> Any:  # noqa: N802
        return types.SimpleNamespace()

    def cuTexObjectCreate(self, resource: Any, sampling: Any, view: None) -> tuple[Any, ...]:  # noqa: N802
        handle = 5000 + len(self.calls)
        self.textures[handle] = resource.res.pitch2D
        self.calls.append(("texture", sampling.flags))
        return OK, handle

    def cuTexObjectDestroy(self, texture: int) -> tuple[Any, ...]:  # noqa: N802
        del self.textures[texture]
        self.calls.append(("destroy",))
        return (OK,)

    def cuLaunchKernel(  # noqa: N802
        self, function: Any, gx: int, gy: int, gz: int, bx: int, by: int, bz: int, shared: int, stream: int,
        pointers: int, extra: int,
    ) -> tuple[Any, ...]:  # fmt: skip
        if self.launch_status:
            return (self.launch_status,)
        module, name = function
        self.calls.append(("launch", name, (gx, gy, gz), (bx, by, bz), shared, stream))
        getattr(self, f"_{name}")(pointers, self.modules[module])
        return (OK,)

    def CUlaunchConfig(self) -> Any:  # noqa: N802
        return types.SimpleNamespace()

    def CUlaunchAttribute(self) -> Any:  # noqa: N802
        return types.SimpleNamespace(value=types.SimpleNamespace(clusterDim=types.SimpleNamespace()))

    def cuLaunchKernelEx(self, config: Any, function: Any, pointers: int, extra: int) -> tuple[Any, ...]:  # noqa: N802
        [attribute] = config.attrs
        assert (attribute.id, config.numAttrs) == (4, 1)
        extents = attribute.value.clusterDim
        self.calls.append(("cluster", (extents.x, extents.y, extents.z)))
        return self.cuLaunchKernel(
            function, config.gridDimX, config.gridDimY, config.gridDimZ, config.blockDimX, config.blockDimY,
            config.blockDimZ, config.sharedMemBytes, config.hStream, pointers, extra,
        )  # fmt: skip

    def _multiply(self, pointers: int, constants: Any) -> None:
        half, n, length = _read(pointers, 2, "f"), _read(pointers, 3, "i"), _read(pointers, 4, "i")
        x, product = (_floats(_read(pointers, slot, "Q"), n * length) for slot in (0, 1))
        product += x * constants[0] * np.float32(half)

    def _finish(self, pointers: int, constants: Any) -> None:
        twice, n, length = _read(pointers, 2, "d"), _read(pointers, 3, "i"), _read(pointers, 4, "q")
        product, y = (_floats(_read(pointers, slot, "Q"), n * length) for slot in (0, 1))
        y[...] = product * twice

    def _fetch(self, pointers: int, constants: Any) -> None:
        image = self.textures[_read(pointers, 0, "Q")]
        width, height = _read(pointers, 3, "i"), _read(pointers, 4, "i")
        assert (image.width, image.height, image.pitchInBytes, image.format) == (width, height, 4 * width, 32)
        assert image.devPtr % 512 == 0
        w, y = _floats(_read(pointers, 1, "Q"), 1), _floats(_read(pointers, 2, "Q"), width * height)
        y[...] = _floats(image.devPtr, width * height) * w[0]


_C = {"f": ctypes.c_float, "d": ctypes.c_double, "i": ctypes.c_int32, "q": ctypes.c_int64, "Q": ctypes.c_uint64}


def _read(pointers: int, slot: int, kind: str) -> Any:
    address = ctypes.c_uint64.from_address(pointers + 8 * slot).value
    return _C[kind].from_address(address).value


def _floats(address: int, count: int) -> Any:
    return np.ctypeslib.as_array((ctypes.c_float * count).from_address(address)) if count else np.zeros(0, np.float32)
