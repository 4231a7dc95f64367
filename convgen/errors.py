"""Every error convgen raises on purpose.

ConvgenError
|- OutputError         something cannot be written or stored     exit 1
|- UsageError          bad option or argument                    exit 2
|- ProblemError        the problem itself is malformed           exit 2
|- ConfigError         a config breaks a rule of its strategy    exit 2
|- NotApplicableError  no (or not this) strategy applies         exit 3
|- CompileError        a compiler refused the source             exit 4
|- WrongResultError    a kernel's numbers are outside the bound  exit 5
|- SimulatorFault      the simulator caught the kernel misbehaving  exit 5
`- DeviceError         no usable GPU, driver or library          exit 6
   `- MemoryShortage   less memory than the work takes           exit 6
"""

from __future__ import annotations


class ConvgenError(Exception):
    """Base of all errors raised on purpose; `exit_code` is the command line's."""

    exit_code = 1


class OutputError(ConvgenError):
    """A file that cannot be written, or a database that cannot be stored to."""


class UsageError(ConvgenError):
    """An option or argument that cannot be used as given."""

    exit_code = 2


class ProblemError(ConvgenError):
    """A problem that means nothing: names the key, the value and what was expected."""

    exit_code = 2

    def __init__(self, key: str, value: object, expected: str) -> None:
        super().__init__(f"{key}={value}: expected {expected}")
        self.key = key
        self.value = value
        self.expected = expected


class ConfigError(ConvgenError):
    """A config that breaks a rule of its strategy; the message says which rule and why."""

    exit_code = 2


class NotApplicableError(ConvgenError):
    """The strategy does not cover the problem on this target; the message is its reason."""

    exit_code = 3


class CompileError(ConvgenError):
    """NVRTC or the host compiler refused the source; the message holds its log."""

    exit_code = 4


class WrongResultError(ConvgenError):
    """An answer outside the stated error bound."""

    exit_code = 5


class SimulatorFault(ConvgenError):
    """A kernel broke a rule of the CUDA execution model, seen by the simulator."""

    exit_code = 5


class DeviceError(ConvgenError):
    """No GPU, no driver, or a CUDA call that failed."""

    exit_code = 6


class MemoryShortage(DeviceError):
    """Less memory than the work takes; `needed` and `available` are bytes."""

    def __init__(self, work: str, needed: int, available: int, instead: str) -> None:
        super().__init__(f"{work} takes about {needed:,} bytes of memory, {available:,} are available: {instead}")
        self.needed = needed
        self.available = available
