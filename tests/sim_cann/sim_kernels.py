# SPDX-License-Identifier: Apache-2.0
"""The simulated device code from Python: its settings and what it counts (`ascendc/ascendc_sim.h`)."""

from __future__ import annotations

import ctypes
import os

LATEST, EARLIEST, RANDOM, LOADS_EARLY, STORES_EARLY = range(5)  # orders of DMA
LOADS = 0  # of shared_lines


class Settings(ctypes.Structure):
    """AscendcSimSettings."""

    _fields_ = (
        ("order", ctypes.c_int32),
        ("threads", ctypes.c_uint32),
        ("seed", ctypes.c_uint64),
        ("ub_bytes", ctypes.c_uint32),
        ("allow_same_writes", ctypes.c_int32),
        ("no_rules", ctypes.c_int32),
    )


class Counters(ctypes.Structure):
    """AscendcSimCounters: one core in the last launch."""

    _fields_ = tuple(
        (name, ctypes.c_uint64)
        for name in (
            *("load_instructions", "load_bursts", "load_bytes", "store_instructions", "store_bursts", "store_bytes"),
            *("zero_length_instructions", "unaligned32_bursts", "scalar_global_loads", "scalar_global_stores"),
            *("scalar_ub_loads", "scalar_ub_stores", "vector_instructions", "set_flags", "wait_flags"),
            *("scalar_waits", "pipe_barriers", "all_barriers", "cache_line_cleans", "ub_high_water"),
            *("peak_bursts_in_flight", "peak_bytes_in_flight"),
        )
    )


class Kernels:
    """The device code that this process uses: the file that TORCH_OFFLOAD_NPU_KERNEL names."""

    def __init__(self) -> None:
        ctypes.CDLL("libascendcl.so", mode=ctypes.RTLD_GLOBAL)  # it takes the runtime's functions from there
        self._library = ctypes.CDLL(os.environ["TORCH_OFFLOAD_NPU_KERNEL"])

    def settings(self) -> Settings:
        settings = Settings()
        self._library.ascendcSimGetSettings(ctypes.byref(settings))
        return settings

    def set(self, settings: Settings) -> None:
        """No kernel may be running or queued."""
        self._library.ascendcSimSetSettings(ctypes.byref(settings))

    def changed(self, **values: int) -> Settings:
        """The settings with other values, which are not set yet."""
        settings = self.settings()
        for name, value in values.items():
            setattr(settings, name, value)
        return settings

    def number_of_cores(self) -> int:
        """Of the last launch."""
        return int(self._library.ascendcSimCores())

    def cores(self) -> list[Counters]:
        """What each core of the last launch has counted."""
        counters = [Counters() for _ in range(self.number_of_cores())]
        for number, counter in enumerate(counters):
            self._library.ascendcSimCountersOfCore(number, ctypes.byref(counter))
        return counters

    def shared_lines(self, address: int, size: int, kind: int = LOADS) -> int:
        """The 512-byte lines of these bytes that more than one core has touched in the last launch."""
        lines, excess = ctypes.c_uint64(), ctypes.c_uint64()
        span = ctypes.c_uint64(address), ctypes.c_uint64(size)
        self._library.ascendcSimSharedLines(kind, *span, ctypes.byref(lines), ctypes.byref(excess))
        return lines.value
