"""The structures exchanged with the compiled simulator, field by field as in `src/launch.h`."""

from __future__ import annotations

import ctypes as c

NO_OBJECT = 0xFFFFFFFF
ARENA_SLOT_BYTES = 1 << 34
GUARD_BYTES = 65536
REGION_BYTES = 128 << 20

MAX_WORKERS = 64
MAX_THREADS = 1024
MAX_MBARRIERS = 64
MAX_CLUSTER = 8
WARP, WARPGROUP = 32, 128
WARPGROUP_AGENTS = MAX_THREADS + MAX_MBARRIERS
OPAQUE_ACTOR = WARPGROUP_AGENTS + 31
STORE_AGENTS = WARPGROUP_AGENTS + MAX_THREADS // WARPGROUP * WARP
KERNEL_BEFORE = 0xFFFFFFFE

SPACES = ("global", "shared", "constant", "texture")


class Index3(c.Structure):
    _fields_ = [("x", c.c_uint32), ("y", c.c_uint32), ("z", c.c_uint32)]


class Fault(c.Structure):
    _fields_ = [
        ("pc", c.c_uint64),
        ("address", c.c_uint64),
        ("wanted", c.c_uint64),
        ("offset", c.c_int64),
        ("count", c.c_uint64),
        ("kind", c.c_uint32),
        ("space", c.c_uint32),
        ("object", c.c_uint32),
        ("bytes", c.c_uint32),
        ("is_write", c.c_uint32),
        ("is_pending", c.c_uint32),
        ("line", c.c_uint32),
        ("other_line", c.c_uint32),
        ("other_thread", c.c_uint32),
        ("other_rank", c.c_uint32),
        ("rank", c.c_uint32),
        ("rule", c.c_uint32),
        ("block", Index3),
        ("thread", Index3),
    ]


class Buffer(c.Structure):
    _fields_ = [
        ("base", c.c_uint64),
        ("bytes", c.c_uint64),
        ("writer", c.c_void_p),
        ("touched", c.c_void_p),
        ("granule_bits", c.c_uint32),
        ("held", c.c_uint32),
        ("held_behind", c.c_uint32),
        ("used", c.c_uint32),
    ]


class ConstantArray(c.Structure):
    _fields_ = [("base", c.c_uint64), ("bytes", c.c_uint64)]


class Texture(c.Structure):
    _fields_ = [
        ("base", c.c_uint64),
        ("pitch", c.c_uint64),
        ("width", c.c_uint32),
        ("height", c.c_uint32),
        ("is_half", c.c_uint32),
        ("buffer", c.c_uint32),
    ]


class Site(c.Structure):
    _fields_ = [
        ("pc", c.c_uint64),
        ("space", c.c_uint32),
        ("is_write", c.c_uint32),
        ("instructions", c.c_uint64),
        ("accesses", c.c_uint64),
        ("bytes", c.c_uint64),
        ("transactions", c.c_uint64),
        ("ideal_transactions", c.c_uint64),
    ]


class MbarrierState(c.Structure):
    _fields_ = [
        ("offset", c.c_uint64),
        ("rank", c.c_uint32),
        ("phase", c.c_uint32),
        ("expected", c.c_uint32),
        ("pending", c.c_uint32),
        ("bytes", c.c_int32),
    ]


class Totals(c.Structure):
    _fields_ = [
        ("flops", c.c_uint64),
        ("barriers", c.c_uint64),
        ("blocks", c.c_uint64),
        ("read_bytes", c.c_uint64 * 4),
        ("written_bytes", c.c_uint64 * 4),
        ("accesses", c.c_uint64 * 4),
    ]


class Launch(c.Structure):
    _fields_ = [
        ("entry", c.c_void_p),
        ("arguments", c.c_void_p),
        ("grid", Index3),
        ("block", Index3),
        ("cluster", Index3),
        ("shared_bytes", c.c_uint32),
        ("check", c.c_uint32),
        ("count", c.c_uint32),
        ("workers", c.c_uint32),
        ("late_copies", c.c_uint32),
        ("timeout_ms", c.c_uint64),
        ("regions", c.c_void_p),
        ("clusters", c.c_void_p),
        ("cluster_count", c.c_uint64),
        ("arena_base", c.c_uint64),
        ("buffers", c.c_void_p),
        ("constants", c.c_void_p),
        ("constants_begin", c.c_uint64),
        ("constants_end", c.c_uint64),
        ("textures", c.c_void_p),
        ("buffer_count", c.c_uint32),
        ("constant_count", c.c_uint32),
        ("texture_count", c.c_uint32),
        ("faults", c.c_void_p),
        ("fault_capacity", c.c_uint32),
        ("fault_count", c.c_uint32),
        ("sites", c.c_void_p),
        ("site_capacity", c.c_uint32),
        ("site_count", c.c_uint32),
        ("mbarriers", c.c_void_p),
        ("mbarriers_taken", c.c_void_p),
        ("waited", c.c_uint32),
        ("totals", Totals),
    ]
