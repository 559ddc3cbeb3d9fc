# SPDX-License-Identifier: Apache-2.0
"""Timing that all benchmarks share: sides take turns in one run, medians with their spread."""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import torch

# Rounds between two sides' use of the same input.
SIDE_SHIFT = 17


@dataclass(frozen=True)
class Timing:
    """Seconds per call.

    Attributes:
        median: Half of the calls took no longer.
        low: The first quartile.
        high: The third quartile.
    """

    median: float
    low: float
    high: float

    @property
    def spread(self) -> float:
        """The distance of the quartiles, as a share of the median."""
        return (self.high - self.low) / self.median

    def record(self) -> dict[str, float]:
        """What a benchmark's JSON tells of it."""
        return asdict(self) | {"spread": self.spread}


def measure(sides: dict[str, Callable[[int], object]], *, seconds: float, warm_up: int = 3) -> dict[str, Timing]:
    """Times several ways to do the same job.

    The sides take turns call by call, so that a change of the machine's mood hits all of them alike.

    Args:
        sides: Name to function. The function gets a number by which it varies its input: the round, shifted for each
            side, because rows that another call has just read would be found in the cache.
        seconds: How long to measure in all; at least 5 rounds are run.
        warm_up: Rounds that are not measured.

    Returns:
        Name to timing.
    """
    samples: dict[str, list[float]] = {name: [] for name in sides}
    start = time.perf_counter()
    rounds = 0
    while rounds < warm_up + 5 or time.perf_counter() - start < seconds:
        for side, (name, call) in enumerate(sides.items()):
            before = time.perf_counter()
            call(rounds + side * SIDE_SHIFT)
            if rounds >= warm_up:
                samples[name].append(time.perf_counter() - before)
        rounds += 1
    return {name: summarize(values) for name, values in samples.items()}


def summarize(samples: list[float]) -> Timing:
    """Median and quartiles of seconds per call."""
    low, median, high = statistics.quantiles(samples, n=4)
    return Timing(median, low, high)


def machine() -> dict[str, str]:
    """What the figures depend on."""
    return {
        "cpu": _cpu_name(),
        "threads": str(torch.get_num_threads()),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
    }


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo") as info:
            for line in info:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or "unknown"
