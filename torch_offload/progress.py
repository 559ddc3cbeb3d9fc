# SPDX-License-Identifier: Apache-2.0
"""A progress bar for work that takes longer than a second."""

from __future__ import annotations

import sys
import time
from types import TracebackType

__all__ = ["ProgressBar"]

_SHOW_AFTER_SECONDS = 1.0
_WIDTH = 30


class ProgressBar:
    """Draws `done / total` on a terminal's stderr; silent for short work and where stderr is no terminal.

    Args:
        title (str): What is going on.
        unit (str): What is counted; "B" is shown in GiB.
    """

    def __init__(self, title: str, unit: str = "B") -> None:
        self._title = title
        self._unit = unit
        self._start = time.monotonic()
        self._drawn = False

    def __call__(self, done: int, total: int) -> None:
        """Shows that `done` of `total` are done."""
        elapsed = time.monotonic() - self._start
        if elapsed < _SHOW_AFTER_SECONDS or not sys.stderr.isatty():
            return
        part = done / total if total else 1.0
        bar = "#" * round(part * _WIDTH)
        left = elapsed * (1 - part) / part if part else 0.0
        if self._unit == "B":
            amount = f"{done / 2**30:.1f}/{total / 2**30:.1f} GiB"
        else:
            amount = f"{done}/{total} {self._unit}"
        sys.stderr.write(f"\r{self._title} [{bar:<{_WIDTH}}] {amount}, {left:.0f} s left \x1b[K")
        sys.stderr.flush()
        self._drawn = True

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._drawn:
            sys.stderr.write("\n")
