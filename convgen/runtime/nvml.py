"""The driver's management library, asked for one GPU: clocks and temperature are read, never set."""

from __future__ import annotations

import ctypes
from typing import Any

_CLOCK_SM, _CLOCK_MEMORY, _TEMPERATURE_GPU = 1, 2, 0


class Nvml:
    """Every reading is None where it cannot be had."""

    def __init__(self, bus_id: str, library: Any | None = None) -> None:
        """`bus_id` is the GPU's on the PCI bus; `library` is NVML itself unless given."""
        self._device = ctypes.c_void_p()
        try:
            self._library = library if library is not None else ctypes.CDLL("libnvidia-ml.so.1")
            found = not self._library.nvmlInit_v2() and not self._library.nvmlDeviceGetHandleByPciBusId_v2(
                bus_id.encode(), ctypes.byref(self._device)
            )
        except (OSError, AttributeError):
            found = False
        self._found = found

    @property
    def driver(self) -> str | None:
        """ "580.159.04"."""
        if not self._found:
            return None
        text = ctypes.create_string_buffer(96)
        return text.value.decode() if not self._library.nvmlSystemGetDriverVersion(text, len(text)) else None

    def reading(self) -> dict[str, float] | None:
        """SM and memory clock in MHz, temperature in degrees Celsius, power in watts; those that can be read."""
        if not self._found:
            return None
        values = {
            "sm_mhz": self._number("nvmlDeviceGetClockInfo", _CLOCK_SM),
            "memory_mhz": self._number("nvmlDeviceGetClockInfo", _CLOCK_MEMORY),
            "celsius": self._number("nvmlDeviceGetTemperature", _TEMPERATURE_GPU),
            "watts": self._number("nvmlDeviceGetPowerUsage", scale=1e-3),
        }
        return {name: value for name, value in values.items() if value is not None}

    def _number(self, function: str, *what: int, scale: float = 1.0) -> float | None:
        value = ctypes.c_uint()
        try:
            failed = getattr(self._library, function)(self._device, *what, ctypes.byref(value))
        except AttributeError:
            return None
        return None if failed else round(value.value * scale, 1)
