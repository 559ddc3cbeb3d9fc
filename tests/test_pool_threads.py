# SPDX-License-Identifier: Apache-2.0
"""Many threads on one pool: no wrong byte, consistent snapshots, no deadlock with the interpreter's lock."""

import contextlib
import faulthandler
import gc
import queue
import random
import threading
import time
import weakref

import pytest
import torch
from pool_support import MIB, check_python, plain_pool

THREADS = 16
SECONDS = 120  # far more than needed: a deadlock ends the run with all stacks instead of hanging it


@pytest.fixture(autouse=True)
def time_limit():
    faulthandler.dump_traceback_later(SECONDS, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


def run_threads(*bodies):
    """Runs the bodies at the same time; raises what the first of them raised."""
    failures = []

    def guarded(body):
        try:
            body()
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=guarded, args=(body,)) for body in bodies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
    if failures:
        raise failures[0]


class Node:
    """Refers to itself, so that only the cyclic collector ends it."""

    def __init__(self, tensor):
        self.tensor, self.me = tensor, self


def test_sixteen_threads_allocate_fill_verify_and_free_elsewhere_while_one_polls():
    pool = plain_pool(8 * MIB)
    handed_over = queue.SimpleQueue()
    working = [True]
    snapshots = []

    def verify(tensor, mark):
        assert (tensor == mark).all(), f"a byte of block {mark} has changed"

    def work(mark):
        choice = random.Random(mark)
        for step in range(150):
            try:
                tensor = pool.empty(
                    choice.choice([0, choice.randrange(100), choice.randrange(64 << 10)]), dtype=torch.uint8
                )
            except torch.OutOfMemoryError:
                continue
            tensor.fill_(mark)
            kind = step % 4
            if kind == 0:
                handed_over.put((tensor, mark))  # verified and freed by whoever comes next
            elif kind == 1:
                Node(tensor)
            elif kind == 2:
                weakref.finalize(tensor, pool.stats)
            verify(tensor, mark)
            del tensor
            if step % 3 == 0:
                with contextlib.suppress(queue.Empty):
                    verify(*handed_over.get_nowait())
            if step % 50 == 0:
                gc.collect()

    def poll():
        while working[0]:
            stats = pool.stats()
            assert stats.used + stats.free == stats.capacity
            assert stats.requested <= stats.used <= stats.peak <= stats.capacity
            assert stats.largest_free <= stats.free
            assert stats.allocations - stats.frees == stats.live_blocks
            blocks = pool.blocks()
            assert sum(block.size for block in blocks) == stats.capacity
            snapshots.append(stats.used)
            time.sleep(0.0005)

    poller = threading.Thread(target=lambda: run_threads(poll))
    poller.start()
    try:
        run_threads(*(lambda mark=mark: work(mark) for mark in range(1, THREADS + 1)))
    finally:
        working[0] = False
        poller.join(SECONDS)
    while not handed_over.empty():
        verify(*handed_over.get())
    gc.collect()
    stats = pool.stats()
    assert (stats.used, stats.live_blocks, stats.free_blocks) == (0, 0, 1)
    assert len(set(snapshots)) > 10


def test_collector_in_one_thread_frees_what_others_made():
    pool = plain_pool()
    made = threading.Semaphore(0)

    def make():
        for _ in range(300):
            Node(pool.empty(64, dtype=torch.uint8))
            made.release()

    def collect():
        for _ in range(30):
            for _ in range(40):
                assert made.acquire(timeout=SECONDS)
            gc.collect()

    gc.disable()
    try:
        run_threads(make, make, make, make, collect)
    finally:
        gc.enable()
    gc.collect()
    assert pool.stats().live_blocks == 0


def test_pools_are_made_and_dropped_in_many_threads():
    def work():
        for _ in range(40):
            pool = plain_pool()
            tensor = pool.empty(100).fill_(3)
            del pool
            assert tensor.sum() == 300

    run_threads(*[work] * 8)


def test_freeing_without_the_interpreters_lock_and_while_others_hold_the_pools():
    """A backward pass frees saved tensors in autograd's own threads, which do not hold the interpreter's lock."""
    code = """
faulthandler = __import__("faulthandler"); faulthandler.dump_traceback_later(60, exit=True)
pool = HostPool(8 << 20, huge_pages="never")
def work():
    for _ in range(100):
        weight = torch.ones(1, requires_grad=True)
        fixed = pool.empty(1000).fill_(2)
        loss = (weight * fixed).sum()
        del fixed
        pool.stats()
        loss.backward()
        assert weight.grad.item() == 2000
threads = [threading.Thread(target=work) for _ in range(4)]
for t in threads: t.start()
for t in threads: t.join()
del threads
gc.collect()
assert pool.stats().live_blocks == 0, pool.stats()
"""
    check_python(code)
