"""Several emitted sources as one C++ translation unit: a namespace each, and an entry for every kernel."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

INCLUDE = re.compile(r"^#include <.*>$", re.MULTILINE)
LINKAGE = re.compile(r'extern "C"(?=\s+(?:__global__|__constant__|__device__|__launch_bounds__))')
WAIT = re.compile(r"void grid_dependency_wait\(\) \{")
_ALIGN = r"(?:__align__\(\w+\)\s*)?"
CONSTANT = re.compile(rf"__constant__\s+{_ALIGN}(?:[\w:]+\s+)*?[\w:]+\s+{_ALIGN}(\w+)\s*(?:\[|;|=)")


class ParamLike(Protocol):
    """What the builder reads of `plan.Param`."""

    @property
    def ctype(self) -> str: ...


class KernelLike(Protocol):
    """What the builder reads of `plan.Kernel`."""

    @property
    def name(self) -> str: ...
    @property
    def params(self) -> Sequence[ParamLike]: ...


@dataclass(frozen=True)
class Unit:
    """An emitted `.cu`: its text, the kernels to launch from it, and a name for messages."""

    source: str
    kernels: tuple[KernelLike, ...]
    label: str = "kernel.cu"

    @property
    def constants(self) -> tuple[str, ...]:
        """Names of its `__constant__` arrays, in order."""
        return tuple(CONSTANT.findall(self.source))


def entry_name(unit: int, kernel: str) -> str:
    """Exported name of the function that unpacks a kernel's arguments and calls it."""
    return f"convgen_entry_{unit}_{kernel}"


def constants_name(unit: int) -> str:
    """Exported name of the table {address, bytes} of a unit's `__constant__` arrays."""
    return f"convgen_constants_{unit}"


def translation_unit(units: Iterable[Unit]) -> str:
    """The C++ text. The emitted sources stand in it unchanged, but for their C linkage: two may share names; and for
    the simulator's part of grid_dependency_wait.

    What they include is included first, outside their namespaces, and is guarded against being included again.
    """
    listed = list(units)
    headers = dict.fromkeys(line for unit in listed for line in INCLUDE.findall(unit.source))
    return "".join(f"{line}\n" for line in headers) + "".join(_wrap(i, unit) for i, unit in enumerate(listed))


def _wrap(index: int, unit: Unit) -> str:
    namespace = f"convgen_unit_{index}"
    source = LINKAGE.sub(lambda match: " " * len(match.group()), unit.source)
    source = WAIT.sub(lambda match: f"{match.group()} convgen_sim_grid_dependency_wait();", source)
    pieces = [f'namespace {namespace} {{\n#line 1 "{unit.label}"\n{source}\n}}\n#line 1 "entries_{index}"\n']
    for kernel in unit.kernels:
        types = "".join(f"typedef {param.ctype} P{i}; " for i, param in enumerate(kernel.params))
        values = ", ".join(f"*static_cast<P{i}*>(arguments[{i}])" for i in range(len(kernel.params)))
        pieces.append(
            f'extern "C" __attribute__((visibility("default"), no_sanitize("thread")))\n'
            f"void {entry_name(index, kernel.name)}(void** arguments) {{\n"
            f"    using namespace {namespace};\n    {types}\n    {namespace}::{kernel.name}({values});\n}}\n"
        )
    rows = ", ".join(f"{{&{namespace}::{name}, sizeof({namespace}::{name})}}" for name in unit.constants)
    pieces.append(
        f'extern "C" __attribute__((visibility("default")))\n'
        f"struct {{ const void* address; size_t bytes; }} {constants_name(index)}[] = {{{rows or '{nullptr, 0}'}}};\n"
    )
    return "".join(pieces)
