"""A plan's cubin in a CUDA context: its kernels with their packed arguments, its symbols, and its textures."""

from __future__ import annotations

import ctypes
import struct
from dataclasses import dataclass
from typing import Any

from convgen.binding import TEXTURE_FORMATS, dynamic_shared, symbols, textures
from convgen.compiler import Binary
from convgen.errors import DeviceError
from convgen.plan import BatchArg, Launch, Param, Plan, ScalarArg, TensorArg, TextureArg, WorkspaceArg
from convgen.problem import TensorSpec
from convgen.runtime.driver import CudaError, check, driver


def address_key(place: TensorArg | WorkspaceArg) -> str:
    """The name under which a run keeps the address of a tensor or workspace buffer."""
    return place.tensor if isinstance(place, TensorArg) else f"workspace.{place.buffer}"


class Arguments:
    """A launch's parameters as cuLaunchKernel wants them: 8 bytes a value, and an array of pointers to the values.

    What never changes is written here; `slots` lists the rest, as (index, key of the address).
    """

    def __init__(self, launch: Launch, function: Any, all_textures: tuple[TextureArg, ...]) -> None:
        count = len(launch.args)
        self.function = function
        self.values = (ctypes.c_uint64 * max(count, 1))()
        start = ctypes.addressof(self.values)
        self._pointers = (ctypes.c_uint64 * max(count, 1))(*(start + 8 * i for i in range(count)))
        self.pointers_address = ctypes.addressof(self._pointers)
        self.slots: list[tuple[int, str]] = []
        for slot, (arg, parameter) in enumerate(zip(launch.args, launch.kernel.params, strict=True)):
            match arg:
                case TensorArg() | WorkspaceArg():
                    self.slots.append((slot, address_key(arg)))
                case BatchArg():
                    self.slots.append((slot, "batch"))
                case TextureArg():
                    self.slots.append((slot, f"texture.{all_textures.index(arg)}"))
                case ScalarArg(value):
                    self.values[slot] = _scalar_bits(value, parameter)


def _scalar_bits(value: int | float, parameter: Param) -> int:
    form = {"float": "<f4x", "double": "<d"}.get(parameter.ctype, "<q")
    return int.from_bytes(struct.pack(form, value), "little")


@dataclass(frozen=True, slots=True)
class Module:
    """The cubin in a context; `blocks` has the arguments of each launch, None for the other steps."""

    handle: Any
    blocks: tuple[Any, ...]
    symbols: dict[str, Any]


def load_module(plan: Plan, binary: Binary) -> Module:
    """Load the cubin into the current context. Raises DeviceError, with a reason if it is for another GPU."""
    cuda = driver()
    try:
        handle = check(cuda.cuModuleLoadData(binary.cubin))
    except CudaError as error:
        if error.name not in ("CUDA_ERROR_NO_BINARY_FOR_GPU", "CUDA_ERROR_INVALID_SOURCE"):
            raise
        raise DeviceError(
            f"{plan.name} is compiled for {binary.arch}, which this GPU does not run: lower it for Target.current()"
        ) from error
    shared = dynamic_shared(plan)
    functions = {}
    for kernel in plan.kernels:
        function = functions[kernel.name] = check(cuda.cuModuleGetFunction(handle, kernel.name.encode()))
        if shared[kernel.name]:
            attribute = cuda.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            check(cuda.cuFuncSetAttribute(function, attribute, shared[kernel.name]))
    used = textures(plan)
    return Module(
        handle=handle,
        blocks=tuple(
            Arguments(step, functions[step.kernel.name], used) if isinstance(step, Launch) else None
            for step in plan.steps
        ),
        symbols={name: _global(handle, name) for name in symbols(plan)},
    )


def _global(module: Any, name: str) -> Any:
    cuda = driver()
    status, pointer, _ = cuda.cuModuleGetGlobal(module, name.encode())
    check((status,))
    return pointer


def create_texture(texture: TextureArg, spec: TensorSpec, height: int, address: int) -> Any:
    """A texture object over device memory: point sampling, zero outside. Belongs to the current context."""
    cuda = driver()
    resource = cuda.CUDA_RESOURCE_DESC()
    resource.resType = cuda.CUresourcetype.CU_RESOURCE_TYPE_PITCH2D
    image = resource.res.pitch2D
    image.devPtr = cuda.CUdeviceptr(address)
    image.format = getattr(cuda.CUarray_format, TEXTURE_FORMATS[spec.dtype])
    image.numChannels = 1
    image.width = texture.width
    image.height = height
    image.pitchInBytes = texture.pitch_bytes
    sampling = cuda.CUDA_TEXTURE_DESC()
    border = cuda.CUaddress_mode.CU_TR_ADDRESS_MODE_BORDER
    sampling.addressMode = [border, border, border]
    sampling.filterMode = cuda.CUfilter_mode.CU_TR_FILTER_MODE_POINT
    sampling.flags = 0 if spec.dtype.value in ("fp32", "fp16") else cuda.CU_TRSF_READ_AS_INTEGER
    return check(cuda.cuTexObjectCreate(resource, sampling, None))
