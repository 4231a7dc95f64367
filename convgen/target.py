"""GPUs as the compiler and the cost models see them.

The presets need no GPU. Their limits are those of the CUDA Programming Guide's table of compute
capabilities; their peak rates are the vendor's data-sheet numbers (dense, boost clock, fp32 accumulation
where the sheet tells it apart).
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from convgen.errors import DeviceError, UsageError
from convgen.toolkit import load_cupy

DEFAULT_TARGET = "h200"

CONSTANT_BYTES = 65536
WARP = 32


@dataclass(frozen=True, slots=True)
class Rates:
    """What a GPU does in one second.

    `bandwidth` is bytes of device memory, read and written together; `fp32` is FLOP on the FMA pipe; the rest is
    FLOP (OP for int8) on tensor cores, 0 where the GPU has none for that type.
    """

    bandwidth: float
    fp32: float
    tf32: float = 0.0
    fp16: float = 0.0
    bf16: float = 0.0
    fp8: float = 0.0
    int8: float = 0.0

    def of(self, dtype: str) -> float:
        """FLOP/s for a problem's dtype by name ("fp32", "bf16", …); the FMA rate where no tensor core serves it."""
        name = "int8" if dtype == "uint8" else dtype
        if name not in _UNITS:
            raise UsageError(f"dtype {dtype!r}: expected one of {', '.join(_UNITS)}")
        return float(getattr(self, name)) or self.fp32

    def scaled(self, bandwidth: float, compute: float) -> Rates:
        """Every rate times a factor, one for memory and one for arithmetic."""
        values = {f.name: getattr(self, f.name) * compute for f in dataclasses.fields(self)}
        return Rates(**{**values, "bandwidth": self.bandwidth * bandwidth})


_UNITS = ("fp32", "tf32", "fp16", "bf16", "fp8", "int8")


@dataclass(frozen=True, slots=True)
class Target:
    """A GPU. Sizes in bytes, rates in units per second, counts in threads, blocks or 32-bit registers.

    `peak` is the data sheet; `attainable` is what a long copy or a large matrix product reaches, and is what a
    roofline should use. It was measured if `measured`, else it is the data sheet times the H200's fractions.
    """

    name: str
    arch: str
    """As the compiler takes it, "sm_90a"."""
    sm_count: int
    clock_hz: float
    shared_per_block: int
    """The most dynamic shared memory a block may opt in to."""
    shared_per_sm: int
    shared_reserved: int
    """What the driver takes of `shared_per_sm` for every resident block."""
    max_threads_per_sm: int
    max_blocks_per_sm: int
    l2_bytes: int
    peak: Rates
    attainable: Rates
    measured: bool = False
    registers_per_sm: int = 65536
    max_registers_per_thread: int = 255
    max_threads_per_block: int = 1024

    @property
    def compute_capability(self) -> tuple[int, int]:
        """(9, 0) for "sm_90a"."""
        return compute_capability(self.arch)

    @property
    def constant_bytes(self) -> int:
        """What a module may declare `__constant__`: 64 KB on every GPU there is."""
        return CONSTANT_BYTES

    @property
    def warp(self) -> int:
        """Threads of a warp."""
        return WARP

    @property
    def bandwidth(self) -> float:
        """Data-sheet memory bandwidth, bytes per second."""
        return self.peak.bandwidth

    @property
    def fp32_flops(self) -> float:
        """Data-sheet FLOP/s of the FMA pipe."""
        return self.peak.fp32

    def __str__(self) -> str:
        return f"{self.name} ({self.arch}, {self.sm_count} SMs)"

    @classmethod
    def preset(cls, name: str) -> Target:
        """The preset of that name, any case. Raises UsageError that lists the names there are."""
        try:
            return presets()[name.lower()]
        except KeyError:
            raise UsageError(f"target {name!r}: expected one of {', '.join(presets())}") from None

    @classmethod
    def for_arch(cls, arch: str) -> Target:
        """A preset that stands for "sm_86", "sm_90a", …, with its `arch` as given.

        Raises UsageError that lists the architectures there are.
        """
        for target in presets().values():
            if arch in _spellings(target.compute_capability):
                return dataclasses.replace(target, arch=arch)
        capabilities = sorted({t.compute_capability for t in presets().values()})
        known = [spelling for capability in capabilities for spelling in _spellings(capability)]
        raise UsageError(f"arch {arch!r}: expected one of {', '.join(known)}")

    @classmethod
    def current(cls, device: int | None = None) -> Target:
        """The GPU in this machine (CuPy's current device, or the one numbered), its limits as its driver reports them.

        A GPU known by name takes its rates from its preset; for any other they are scaled from its
        architecture's preset by SM count and clock. Raises DeviceError if CuPy or a usable GPU is missing.
        """
        return _query(device)


def compute_capability(arch: str) -> tuple[int, int]:
    """(9, 0) for "sm_90a", (12, 0) for "sm_120"."""
    digits = re.sub(r"\D", "", arch)
    return int(digits[:-1]), int(digits[-1])


def _spellings(capability: tuple[int, int]) -> tuple[str, ...]:
    """What NVRTC calls an architecture: the plain one, its own features (a), those of its family (f)."""
    plain = f"sm_{capability[0]}{capability[1]}"
    suffixes = ["", *(["a"] if capability >= (9, 0) else []), *(["f"] if capability >= (10, 0) else [])]
    return tuple(plain + suffix for suffix in suffixes)


def presets() -> Mapping[str, Target]:
    """Every preset by name; of those that share an architecture, the one that stands for it comes first."""
    return _PRESETS


# --- presets ------------------------------------------------------------------------------------------

# Shared memory of an SM and of a block, reserved bytes a block, threads and blocks of an SM.
_LIMITS = {
    (7, 5): (64 << 10, 64 << 10, 0, 1024, 16),
    (8, 0): (164 << 10, 163 << 10, 1024, 2048, 32),
    (8, 6): (100 << 10, 99 << 10, 1024, 1536, 16),
    (8, 7): (164 << 10, 163 << 10, 1024, 1536, 16),
    (8, 9): (100 << 10, 99 << 10, 1024, 1536, 24),
    (9, 0): (228 << 10, 227 << 10, 1024, 2048, 32),
    (10, 0): (228 << 10, 227 << 10, 1024, 2048, 32),
    (12, 0): (100 << 10, 99 << 10, 1024, 1536, 24),
}

# Fractions of the data sheet that the H200 reaches: copy 4.21 of 4.8 TB/s, fp32 50.2 of 66.9 and bf16 755 of
# 989 TFLOP/s in 8192^3 matrix products. A first guess for a GPU nobody has measured.
_COPY_FRACTION = 0.88
_COMPUTE_FRACTION = 0.76


def _preset(
    name: str, arch: str, sms: int, mhz: float, l2_mib: float, peak: Rates, attainable: Rates | None = None
) -> Target:
    shared_per_sm, shared_per_block, reserved, threads, blocks = _LIMITS[compute_capability(arch)]
    return Target(
        name=name,
        arch=arch,
        sm_count=sms,
        clock_hz=mhz * 1e6,
        shared_per_block=shared_per_block,
        shared_per_sm=shared_per_sm,
        shared_reserved=reserved,
        max_threads_per_sm=threads,
        max_blocks_per_sm=blocks,
        l2_bytes=int(l2_mib * (1 << 20)),
        peak=peak,
        attainable=attainable or peak.scaled(_COPY_FRACTION, _COMPUTE_FRACTION),
        measured=attainable is not None,
    )


def _rates(bandwidth_gb: float, fp32: float, **tensor: float) -> Rates:
    return Rates(bandwidth_gb * 1e9, fp32 * 1e12, **{dtype: tera * 1e12 for dtype, tera in tensor.items()})


_HOPPER = {"tf32": 494.7, "fp16": 989.4, "bf16": 989.4, "fp8": 1978.9, "int8": 1978.9}
_H200_MEASURED = _rates(4210, 50.2, tf32=396, fp16=729, bf16=755, fp8=1310, int8=885)

_PRESETS: Mapping[str, Target] = MappingProxyType(
    {
        target.name: target
        for target in (
            _preset("h200", "sm_90a", 132, 1980, 60, _rates(4800, 66.9, **_HOPPER), _H200_MEASURED),
            _preset("h100", "sm_90a", 132, 1980, 50, _rates(3350, 66.9, **_HOPPER)),
            _preset(
                "b200",
                "sm_100a",
                148,
                1965,
                126,
                _rates(8000, 74.4, tf32=1125, fp16=2250, bf16=2250, fp8=4500, int8=4500),
            ),
            _preset(
                "rtx5090",
                "sm_120",
                170,
                2407,
                96,
                _rates(1792, 104.8, tf32=104.8, fp16=209.5, bf16=209.5, fp8=419, int8=838),
            ),
            _preset("a100", "sm_80", 108, 1410, 40, _rates(2039, 19.5, tf32=156, fp16=312, bf16=312, int8=624)),
            _preset("a10", "sm_86", 72, 1695, 6, _rates(600, 31.2, tf32=62.5, fp16=125, bf16=125, int8=250)),
            _preset("rtx3090", "sm_86", 82, 1695, 6, _rates(936, 35.6, tf32=35.6, fp16=71, bf16=71, int8=284)),
            _preset("orin", "sm_87", 16, 1300, 4, _rates(204.8, 5.3, tf32=21.3, fp16=42.5, bf16=42.5, int8=85)),
            _preset("l40s", "sm_89", 142, 2520, 96, _rates(864, 91.6, tf32=183, fp16=362, bf16=362, fp8=733, int8=733)),
            _preset("l4", "sm_89", 58, 2040, 48, _rates(300, 30.3, tf32=60, fp16=121, bf16=121, fp8=242, int8=242)),
            _preset(
                "rtx4090",
                "sm_89",
                128,
                2520,
                72,
                _rates(1008, 82.6, tf32=82.6, fp16=165.2, bf16=165.2, fp8=330.3, int8=660.6),
            ),
            _preset("t4", "sm_75", 40, 1590, 4, _rates(320, 8.1, fp16=65, int8=130)),
        )
    }
)


# --- the GPU in this machine -----------------------------------------------------------------------------


def _query(device: int | None) -> Target:
    cuda = load_cupy().cuda
    runtime = cuda.runtime
    try:
        number = cuda.Device(device).id

        def attribute(name: str) -> int:
            return int(runtime.deviceGetAttribute(getattr(runtime, f"cudaDevAttr{name}"), number))

        properties = runtime.getDeviceProperties(number)
        reported = properties["name"].decode()
        base = _recognise(
            reported,
            (properties["major"], properties["minor"]),
            attribute("MultiProcessorCount"),
            attribute("ClockRate") * 1e3,
        )
        return dataclasses.replace(
            base,
            shared_per_block=attribute("MaxSharedMemoryPerBlockOptin"),
            shared_per_sm=attribute("MaxSharedMemoryPerMultiprocessor"),
            shared_reserved=attribute("ReservedSharedMemoryPerBlock"),
            registers_per_sm=attribute("MaxRegistersPerMultiprocessor"),
            max_threads_per_sm=attribute("MaxThreadsPerMultiProcessor"),
            max_blocks_per_sm=attribute("MaxBlocksPerMultiprocessor"),
            l2_bytes=attribute("L2CacheSize"),
        )
    except runtime.CUDARuntimeError as error:
        raise DeviceError(f"no usable GPU: {error}") from error


def _recognise(reported: str, capability: tuple[int, int], sm_count: int, clock_hz: float) -> Target:
    plain = re.sub(r"[^a-z0-9]+", " ", reported.lower())
    words = {*plain.split(), *(a + b for a, b in zip(plain.split(), plain.split()[1:], strict=False))}
    for target in presets().values():
        # The name alone is not enough: an H100 PCIe has fewer SMs than the SXM part of the preset.
        if target.name in words and (target.compute_capability, target.sm_count) == (capability, sm_count):
            return target
    kin = [t for t in presets().values() if t.compute_capability == capability]
    # An architecture without a preset has the limits and rates per SM of the newest one before it.
    older = [t for t in presets().values() if t.compute_capability < capability]
    if not kin and not older:
        raise DeviceError(
            f"{reported} has compute capability {capability[0]}.{capability[1]}: convgen needs 7.5 or newer"
        )
    base = kin[0] if kin else max(older, key=lambda t: t.compute_capability)
    speed = sm_count * clock_hz / (base.sm_count * base.clock_hz)
    peak = base.peak.scaled(speed, speed)
    return dataclasses.replace(
        base,
        name=plain.strip().replace(" ", "-"),
        arch=base.arch if kin else f"sm_{capability[0]}{capability[1]}",
        sm_count=sm_count,
        clock_hz=clock_hz,
        peak=peak,
        attainable=peak.scaled(_COPY_FRACTION, _COMPUTE_FRACTION),
        measured=False,
    )
