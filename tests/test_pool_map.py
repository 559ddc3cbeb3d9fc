# SPDX-License-Identifier: Apache-2.0
"""The map of a pool."""

import re
import subprocess
import sys
import threading

import pytest
import torch

from torch_offload import HostPool
from torch_offload.pool_map import plot_pool_map, pool_map


def drawn(pool, **options):
    return "".join(line[1:-1] for line in pool_map(pool, **options).splitlines() if line.startswith("|"))


def test_live_and_free_memory_stand_where_the_blocks_are():
    pool = HostPool(64 << 10)
    blocks = [pool.empty(16 << 10, dtype=torch.uint8) for _ in range(4)]
    del blocks[2]
    offsets = sorted(block.offset // (16 << 10) for block in pool.blocks() if not block.free)
    expected = "".join(("@" if quarter in offsets else " ") * 16 for quarter in range(4))
    assert drawn(pool, width=32, lines=2) == expected


def test_a_cell_that_is_partly_in_use_is_neither_full_nor_empty():
    pool = HostPool(64 << 10)
    tensor = pool.empty(512, dtype=torch.uint8)
    assert drawn(pool, width=64, lines=1).strip() == "="
    del tensor
    assert drawn(pool, width=64, lines=1).strip() == ""


def test_figures_are_those_of_stats():
    pool = HostPool(1 << 20)
    tensor = pool.empty(100, dtype=torch.uint8)
    last = pool_map(pool).splitlines()[-1]
    assert f"{pool.stats().used} of {pool.stats().capacity} bytes in 1 blocks" in last
    del tensor


def test_no_cells_are_refused():
    with pytest.raises(ValueError, match="expected width and lines to be at least 1, got 0 and 8"):
        pool_map(HostPool(1 << 20), width=0)


@pytest.mark.parametrize("show", [pool_map, lambda pool: plot_pool_map(pool, "unused.png")])
def test_the_map_of_another_process_is_refused(show):
    owner = HostPool(1 << 20, shared=True)
    with pytest.raises(
        ValueError, match=r"pool_map: expected pool to be owned by this process, got HostPool\(.*attached"
    ):
        show(HostPool.attach(owner.share()))


def test_figures_add_up_while_threads_allocate():
    pool = HostPool(1 << 20)
    stop = threading.Event()

    def churn():
        while not stop.is_set():
            kept = [pool.empty(size, dtype=torch.uint8) for size in (100, 5000, 700)]
            del kept

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        for _ in range(200):
            numbers = [int(word) for word in re.findall(r"\d+", pool_map(pool).splitlines()[-1])]
            used, capacity, _, free, *_ = numbers
            assert used + free == capacity == 1 << 20
    finally:
        stop.set()
        thread.join()


def test_picture(tmp_path):
    pool = HostPool(1 << 20)
    tensor = pool.empty(1000, dtype=torch.uint8)
    plot_pool_map(pool, str(tmp_path / "map.png"))
    assert (tmp_path / "map.png").read_bytes().startswith(b"\x89PNG")
    del tensor


def test_module_shows_a_pool():
    result = subprocess.run([sys.executable, "-m", "torch_offload.pool_map"], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "@" in result.stdout and "in the largest of" in result.stdout
