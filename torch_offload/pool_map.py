# SPDX-License-Identifier: Apache-2.0
"""Shows where a pool's memory went: as text, and as a picture.

`python -m torch_offload.pool_map [--plot FILE.png]` shows a small pool after some churn.
"""

from __future__ import annotations

import argparse
import random

import torch

from torch_offload.pool import HostPool, PoolBlock

__all__ = ["plot_pool_map", "pool_map"]

# A cell of the map by the share of it that is in use.
_SHADES = " .:-=+*#"


def pool_map(pool: HostPool, *, width: int = 64, lines: int = 8) -> str:
    """Draws the memory of a pool with characters: the darker, the more of a cell is in use.

    Args:
        pool (HostPool): What to show.
        width (int): Characters in a line.
        lines (int): Lines at most.

    Returns:
        str: The map and one line of figures.

    Raises:
        ValueError: `width` or `lines` is below 1, or the pool is another process's: only that one knows its blocks.
    """
    if width < 1 or lines < 1:
        raise ValueError(f"pool_map: expected width and lines to be at least 1, got {width} and {lines}")
    blocks = _blocks_of("pool_map", pool)
    used, free, capacity = _sizes(blocks)
    cells = min(width * lines, max(1, capacity // 64))
    shares = _shares_in_use(blocks, capacity, cells)
    drawn = "".join("@" if share >= 1 else _SHADES[int(share * len(_SHADES))] for share in shares)
    rows = [f"|{drawn[begin : begin + width]:<{width}}|" for begin in range(0, cells, width)]
    figures = (
        f"{sum(used)} of {capacity} bytes in {len(used)} blocks, "
        f"{sum(free)} free, {max(free, default=0)} in the largest of {len(free)} free blocks; "
        f"a character is {capacity // cells} bytes: '@' in use, ' ' free"
    )
    return "\n".join([*rows, figures])


def plot_pool_map(pool: HostPool, path: str) -> None:
    """Draws the memory of a pool into an image: live blocks in colour, free memory in grey.

    Args:
        pool (HostPool): What to show.
        path (str): File to write; its ending chooses the format.

    Raises:
        ImportError: matplotlib is not installed.
        ValueError: The pool is another process's.
    """
    blocks = _blocks_of("plot_pool_map", pool)
    used, free, capacity = _sizes(blocks)
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(10, 1.8), layout="constrained")
    for kind, colours in ((False, ["tab:blue", "tab:cyan"]), (True, ["0.88"])):
        spans = [(block.offset / 2**20, block.size / 2**20) for block in blocks if block.free is kind]
        axes.broken_barh(spans, (0, 1), facecolors=colours)
    axes.set_xlim(0, capacity / 2**20)
    axes.set_yticks([])
    axes.set_xlabel("MiB")
    axes.set_title(
        f"{len(used)} blocks, {sum(used) / capacity:.0%} in use, "
        f"largest free block {max(free, default=0) / 2**20:.3g} MiB"
    )
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def _blocks_of(caller: str, pool: HostPool) -> list[PoolBlock]:
    """Returns one snapshot, from which everything that is shown is computed."""
    blocks = pool.blocks()
    if not blocks:
        raise ValueError(f"{caller}: expected pool to be owned by this process, got {pool!r}, which is attached")
    return blocks


def _sizes(blocks: list[PoolBlock]) -> tuple[list[int], list[int], int]:
    """Returns the sizes of the live and of the free blocks, and that of the memory."""
    used = [block.size for block in blocks if not block.free]
    free = [block.size for block in blocks if block.free]
    return used, free, sum(used) + sum(free)


def _shares_in_use(blocks: list[PoolBlock], capacity: int, cells: int) -> list[float]:
    """Returns for each of `cells` equal parts of the memory which share of it lies in live blocks."""
    used = [0] * cells
    for block in blocks:
        if block.free or block.size == 0:
            continue
        end = block.offset + block.size
        for cell in range(block.offset * cells // capacity, (end - 1) * cells // capacity + 1):
            begin_of_cell, end_of_cell = cell * capacity // cells, (cell + 1) * capacity // cells
            used[cell] += max(0, min(end, end_of_cell) - max(block.offset, begin_of_cell))
    return [used[cell] / ((cell + 1) * capacity // cells - cell * capacity // cells) for cell in range(cells)]


def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plot", metavar="FILE.png", help="write a picture too")
    args = parser.parse_args()
    choice = random.Random(0)
    pool = HostPool(4 << 20)
    tensors = [pool.empty(choice.randrange(1, 96 << 10), dtype=torch.uint8) for _ in range(60)]
    kept = [tensor for tensor in tensors if choice.random() < 0.6]
    del tensors
    print(pool_map(pool))
    if args.plot:
        plot_pool_map(pool, args.plot)
    del kept


if __name__ == "__main__":
    _main()
