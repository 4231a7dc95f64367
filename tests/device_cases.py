"""Kernels of tests/simulator_cases behind the device headers they use, for the simulator and for NVRTC."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from typing import Any

from test_simulator import CASES, Kernel, Param

from convgen.render import environment, template_root
from convgen.simulator import Fault, FaultKind, Library, Mode, Report, Unit, build


def _header(name: str, constants: Mapping[str, Any]) -> str:
    found = next((template_root() / "device").glob(f"{name}.cuh*"))
    return environment().get_template(f"device/{found.name}").render(**constants)


@functools.cache
def unit(file: str, headers: Sequence[str], constants: tuple[tuple[str, Any], ...] = ()) -> Unit:
    """A case behind the device headers it uses, rendered with these constants."""
    devices = "".join(_header(name, dict(constants)) for name in headers)
    text = (CASES / file).read_text()
    source = devices + (environment().from_string(text).render(**dict(constants)) if file.endswith(".j2") else text)
    found = re.findall(r'extern "C" __global__ void (\w+)\((.*?)\)', source)
    kernels = tuple(
        Kernel(name, tuple(Param(n, t.strip()) for t, n in re.findall(r"(.*?\W)(\w+)(?:,|$)", parameters)))
        for name, parameters in found
    )
    return Unit(source, kernels, file)


@functools.lru_cache(maxsize=32)
def library(
    file: str, headers: Sequence[str], mode: Mode, compiler: str, constants: tuple[tuple[str, Any], ...] = ()
) -> Library:
    """The case built by the compiler that the fixture chose."""
    return build([unit(file, headers, constants)], mode)


def marked(unit: Unit, kernel: str, mark: str) -> int:
    """Line of the first `// MARK` comment of that name from a kernel's (or function's) beginning on."""
    lines = unit.source.splitlines()
    start = next(i for i, line in enumerate(lines) if f" {kernel}(" in line)
    return next(i + 1 for i in range(start, len(lines)) if f"// {mark}" in lines[i])


def fault_at(report: Report, kind: FaultKind, line: int) -> Fault:
    """The one fault of a kind at a line."""
    found = [fault for fault in report.faults if fault.kind is kind and line in fault.lines]
    assert len(found) == 1, "\n".join(map(str, report.faults))
    return found[0]
