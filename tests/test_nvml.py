"""Clocks and temperature, as far as the driver's library tells them."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from convgen.runtime.nvml import Nvml

READINGS = {
    ("nvmlDeviceGetClockInfo", 1): 1980,
    ("nvmlDeviceGetClockInfo", 2): 3201,
    ("nvmlDeviceGetTemperature", 0): 41,
    ("nvmlDeviceGetPowerUsage",): 123_456,
}


class Library:
    """NVML for one GPU; `lacking` functions do not exist, `failing` ones return an error."""

    def __init__(self, lacking: str = "", failing: str = "") -> None:
        self._lacking = lacking
        self._failing = failing

    def __getattr__(self, name: str) -> Any:
        if name == self._lacking:
            raise AttributeError(name)

        def call(*arguments: Any) -> int:
            if name == self._failing:
                return 3
            if name == "nvmlDeviceGetHandleByPciBusId_v2":
                return 0 if arguments[0] == b"0000:9b:00.0" else 6
            if name == "nvmlSystemGetDriverVersion":
                arguments[0].value = b"580.159.04"
            elif name != "nvmlInit_v2":
                _, *what, value = arguments
                ctypes.cast(value, ctypes.POINTER(ctypes.c_uint))[0] = READINGS[(name, *what)]
            return 0

        return call


def test_what_the_library_tells() -> None:
    nvml = Nvml("0000:9b:00.0", Library())
    assert nvml.driver == "580.159.04"
    assert nvml.reading() == {"sm_mhz": 1980, "memory_mhz": 3201, "celsius": 41, "watts": 123.5}


@pytest.mark.parametrize("broken", [{"lacking": "nvmlDeviceGetTemperature"}, {"failing": "nvmlDeviceGetTemperature"}])
def test_what_it_does_not_tell_is_left_out(broken: dict[str, str]) -> None:
    assert Nvml("0000:9b:00.0", Library(**broken)).reading() == {"sm_mhz": 1980, "memory_mhz": 3201, "watts": 123.5}


@pytest.mark.parametrize("library", [Library(failing="nvmlInit_v2"), Library(lacking="nvmlInit_v2")])
def test_without_the_library_or_the_gpu_nothing_is_told(library: Library) -> None:
    for nvml in (Nvml("0000:9b:00.0", library), Nvml("0000:01:00.0", Library())):
        assert (nvml.driver, nvml.reading()) == (None, None)
