# SPDX-License-Identifier: Apache-2.0
"""What the examples show people: a table, and a plot."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def print_table(title: str, rows: Sequence[tuple[str, str]]) -> None:
    """Prints pairs of name and value, aligned."""
    width = max(len(name) for name, _ in rows)
    print(f"\n{title}")
    for name, value in rows:
        print(f"  {name:<{width}}  {value}")


def size(count: float) -> str:
    """Returns bytes as people read them."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:.4g} GiB"


def note_progress(step: int, steps: int, seconds: float) -> None:
    """Tells on stderr how far the work is: on a terminal in place, elsewhere ten lines in all."""
    terminal = sys.stderr.isatty()
    if not terminal and step % max(1, steps // 10) and step != steps:
        return
    text = f"step {step}/{steps}, {step / seconds:.1f} tokens/s"
    sys.stderr.write(f"\r{text}\x1b[K" + ("\n" if step == steps else "") if terminal else text + "\n")
    sys.stderr.flush()


def plot_steps(path: str, rows_moved: Sequence[int], step_seconds: Sequence[float], title: str) -> None:
    """Draws rows moved and time, over the steps, into a PNG file.

    Raises:
        SystemExit: matplotlib is not installed.
    """
    try:
        import matplotlib
    except ImportError:
        raise SystemExit("--plot: expected matplotlib to be installed, got none: pip install matplotlib") from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    steps = range(1, len(rows_moved) + 1)
    figure, (above, below) = pyplot.subplots(2, 1, sharex=True, figsize=(9, 5.5), layout="constrained")
    figure.suptitle(title)
    above.plot(steps, rows_moved, color="tab:blue", drawstyle="steps-mid")
    above.set_ylabel("rows moved")
    above.set_ylim(bottom=0)
    below.plot(steps, [seconds * 1e3 for seconds in step_seconds], color="tab:orange")
    below.set_ylabel("time per step [ms]")
    below.set_ylim(bottom=0)
    below.set_xlabel("step")
    for axes in (above, below):
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
