"""CUDA's execution model on a CPU: the emitted source compiled as C++, run, checked and counted.

`build` makes a `Library` of several sources; `Library.launch` runs a kernel on buffers of a `Memory`
and returns a `Report` of faults and counters.
"""

from __future__ import annotations

from convgen.simulator.library import Argument, BoundTensorMap, Copies, Library, Mode, Texture, build, launch_timeout
from convgen.simulator.memory import Block, Memory
from convgen.simulator.report import Counters, Fault, FaultKind, Report, Site, SourceLine
from convgen.simulator.units import Unit

__all__ = [
    "Argument",
    "Block",
    "BoundTensorMap",
    "Copies",
    "Counters",
    "Fault",
    "FaultKind",
    "Library",
    "Memory",
    "Mode",
    "Report",
    "Site",
    "SourceLine",
    "Texture",
    "Unit",
    "build",
    "launch_timeout",
]
