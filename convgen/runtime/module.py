"""A plan's cubin in a CUDA context: its kernels, its symbols, its textures, and the launches' packed arguments."""

from __future__ import annotations

import struct
import threading
from array import array
from collections.abc import Callable, Sequence
from typing import Any

from convgen.binding import TEXTURE_FORMATS, dynamic_shared, symbols, tensor_maps, textures
from convgen.compiler import Binary
from convgen.errors import DeviceError
from convgen.plan import Launch, Param, Plan, ScalarArg, SizeArg, TensorArg, TensorMapArg, TextureArg, WorkspaceArg
from convgen.problem import TensorSpec
from convgen.runtime.driver import CudaError, check, driver
from convgen.runtime.tensor_map import TENSOR_MAP_WORDS


def address_key(place: TensorArg | WorkspaceArg) -> str:
    """The name under which a run keeps the address of a tensor or workspace buffer."""
    return place.tensor if isinstance(place, TensorArg) else f"workspace.{place.buffer}"


class Arguments:
    """The parameters of a plan's launches as cuLaunchKernel wants them: values of 8 bytes, and for each launch an array
    of pointers to its values.

    Launches that take the same address share its value. `slots` tells where each address goes, by key: those of `first`
    lead, in their order, taken by a launch or not. `maps` tells where each of the plan's tensor maps goes, 16 values
    each. Scalars are written here. A block belongs to one call at a time: CUDA copies the values when it is given them.
    """

    __slots__ = ("_arrays", "maps", "pointers", "slots", "values")

    def __init__(self, plan: Plan, first: Sequence[str] = ()) -> None:
        all_textures = textures(plan)
        self.slots = {key: slot for slot, key in enumerate(first)}
        all_maps = tensor_maps(plan)
        values = [0] * (len(first) + len(all_maps) * TENSOR_MAP_WORDS)
        self.maps = tuple(len(first) + index * TENSOR_MAP_WORDS for index in range(len(all_maps)))
        places: list[list[int] | None] = []
        for step in plan.steps:
            if not isinstance(step, Launch):
                places.append(None)
                continue
            taken: list[int] = []
            for arg, parameter in zip(step.args, step.kernel.params, strict=True):
                if isinstance(arg, ScalarArg):
                    taken.append(len(values))
                    values.append(_scalar_bits(arg.value, parameter))
                    continue
                if isinstance(arg, TensorMapArg):
                    taken.append(self.maps[all_maps.index(arg)])
                    continue
                key = _key(arg, all_textures)
                if key not in self.slots:
                    self.slots[key] = len(values)
                    values.append(0)
                taken.append(self.slots[key])
            places.append(taken)
        self.values = array("Q", values or [0])
        start = self.values.buffer_info()[0]
        self._arrays = [
            None if taken is None else array("Q", [start + 8 * slot for slot in taken] or [0]) for taken in places
        ]
        self.pointers = tuple(0 if a is None else a.buffer_info()[0] for a in self._arrays)
        """For each step of the plan the address to hand to cuLaunchKernel; 0 where it is no launch."""


def _key(arg: TensorArg | WorkspaceArg | SizeArg | TextureArg, all_textures: tuple[TextureArg, ...]) -> str:
    match arg:
        case SizeArg(size):
            return size_key(size)
        case TextureArg():
            return f"texture.{all_textures.index(arg)}"
    return address_key(arg)


def size_key(size: str) -> str:
    """The key of a size that is known at launch only."""
    return f"size.{size}"


def _scalar_bits(value: int | float, parameter: Param) -> int:
    form = {"float": "<f4x", "double": "<d"}.get(parameter.ctype, "<q")
    return int.from_bytes(struct.pack(form, value), "little")


def launch_call(
    launch: Launch, grid: Sequence[int], function: Any, stream: Any, pointers: int
) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """The driver call that puts a launch of `grid` blocks on a stream, and what it takes."""
    cuda = driver()
    if launch.cluster_blocks == 1 and not launch.is_early:
        return cuda.cuLaunchKernel, (function, *grid, *launch.block, launch.shared_bytes, stream, pointers, 0)
    config = cuda.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = grid
    config.blockDimX, config.blockDimY, config.blockDimZ = launch.block
    config.sharedMemBytes = launch.shared_bytes
    config.hStream = stream
    attributes = []
    if launch.cluster_blocks > 1:
        cluster = cuda.CUlaunchAttribute()
        cluster.id = cuda.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        extents = cluster.value.clusterDim
        extents.x, extents.y, extents.z = launch.cluster
        attributes.append(cluster)
    if launch.is_early:
        early = cuda.CUlaunchAttribute()
        early.id = cuda.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        early.value.programmaticStreamSerializationAllowed = 1
        attributes.append(early)
    config.attrs = attributes
    config.numAttrs = len(attributes)
    return cuda.cuLaunchKernelEx, (config, function, pointers, 0)


class Module:
    """The cubin in a context. `lock` is held while its `__constant__` arrays are filled and used."""

    def __init__(self, plan: Plan, handle: Any, functions: dict[str, Any], addresses: dict[str, Any]) -> None:
        self.handle = handle
        self.functions = functions
        self.symbols = addresses
        self.lock = threading.Lock()
        self._plan = plan
        self._spare: list[Arguments] = []

    def take(self) -> Arguments:
        """A block of arguments for one call, to be given back."""
        try:
            return self._spare.pop()
        except IndexError:
            return Arguments(self._plan)

    def give_back(self, block: Arguments) -> None:
        self._spare.append(block)


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
    return Module(plan, handle, functions, {name: _global(handle, name) for name in symbols(plan)})


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
