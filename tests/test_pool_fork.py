# SPDX-License-Identifier: Apache-2.0
"""A forked child reads what it inherited; what it does otherwise changes nothing in the parent."""

import os
import subprocess
import sys
import threading
import traceback

import pytest
import torch
from pool_support import MIB, check_python, plain_pool

import torch_offload


def in_child(body):
    """Runs `body` in a forked child; fails unless it returned."""
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            body()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_the_child_reads_and_the_parent_keeps_its_bytes():
    pool = plain_pool()
    tensor = pool.empty(1000).copy_(torch.arange(1000))
    before = pool.stats()

    def child():
        assert torch.equal(tensor, torch.arange(1000.0))
        assert tensor[10:].clone()[0] == 10
        tensor.fill_(7)  # private memory: the child's own copy
        assert tensor[3] == 7

    in_child(child)
    assert torch.equal(tensor, torch.arange(1000.0))
    assert pool.stats() == before


def test_allocating_in_the_child_raises_a_clear_error():
    pool = plain_pool()
    tensor = pool.empty(10)

    def child():
        for call in (lambda: pool.empty(1), lambda: pool.empty(0), pool.stats, pool.blocks):
            with pytest.raises(RuntimeError, match=r"got a forked child.*make a pool of its own"):
                call()
        with pytest.warns(UserWarning, match="moved to ordinary memory: .*forked child"):
            tensor.resize_(100).fill_(1)
        own = plain_pool()
        assert own.empty(10).fill_(1).sum() == 10

    in_child(child)
    assert pool.stats().live_blocks == 1


def test_frees_and_close_in_the_child_change_nothing_in_the_parent():
    pool = plain_pool()
    tensors = [pool.empty(1000, dtype=torch.uint8).fill_(i) for i in range(10)]
    before, blocks = pool.stats(), pool.blocks()

    def child():
        nonlocal pool
        tensors.clear()
        pool.close()
        pool.close()
        del pool

    in_child(child)
    assert pool.stats() == before
    assert pool.blocks() == blocks
    assert all((tensor == i).all() for i, tensor in enumerate(tensors))
    other = pool.empty(1000, dtype=torch.uint8).fill_(99)
    assert all((tensor == i).all() for i, tensor in enumerate(tensors))
    del other


def test_the_default_pool_belongs_to_the_parent():
    torch_offload.init(MIB, huge_pages="never")
    try:
        tensor = torch_offload.empty(100).fill_(4)

        def child():
            assert tensor.sum() == 400
            with pytest.raises(RuntimeError, match="belongs to the parent of this forked process: call init"):
                torch_offload.empty(1)
            assert not torch_offload.is_initialized()
            torch_offload.uninit()
            torch_offload.init(2 * MIB, huge_pages="never")
            assert torch_offload.empty(5).fill_(1).sum() == 5
            assert torch_offload.default_pool().stats().capacity == 2 * MIB
            torch_offload.uninit()

        in_child(child)
        assert torch_offload.is_initialized()
        assert torch_offload.default_pool().stats().capacity == MIB
        assert tensor.sum() == 400
    finally:
        torch_offload.uninit()


def test_forks_while_other_threads_hold_the_locks():
    """Were the child to touch a lock that a thread held at the fork, it would hang."""
    pool = plain_pool()
    torch_offload.init(MIB, huge_pages="never")
    mine = pool.empty(100).fill_(1)
    working = [True]

    def work():
        while working[0]:
            kept = pool.empty(100), torch_offload.empty(100)
            pool.blocks(), torch_offload.default_pool().stats()
            plain_pool(4096)
            del kept

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(40):

            def child():
                nonlocal mine
                assert mine.sum() == 100
                with pytest.raises(RuntimeError, match="forked child"):
                    pool.empty(1)
                del mine
                pool.close()
                own = plain_pool()
                assert own.empty(3).numel() == 3
                torch_offload.init(MIB, huge_pages="never")
                torch_offload.empty(3)
                torch_offload.uninit()

            in_child(child)
    finally:
        working[0] = False
        for thread in threads:
            thread.join(60)
        torch_offload.uninit()
    assert mine.sum() == 100
    del mine
    assert (pool.stats().live_blocks, pool.stats().closed) == (0, False)


def test_a_child_that_exits_like_a_program_leaves_the_parent_alone():
    """The child runs the interpreter's whole finalisation over the inherited pool and tensors."""
    check_python("""
pool = HostPool(1 << 20, huge_pages="never")
tensors = [pool.empty(100).fill_(i) for i in range(10)]
before = pool.stats()
for ending in ("falls", "sys.exit", "gc"):
    pid = os.fork()
    if pid == 0:
        if ending == "sys.exit": sys.exit(0)
        if ending == "gc": del pool, tensors[:]; gc.collect()
        break
    assert os.waitpid(pid, 0)[1] == 0, ending
else:
    assert pool.stats() == before
    assert all((t == i).all() for i, t in enumerate(tensors))
""")


def test_multiprocessing_with_fork_reads_inherited_tensors():
    check_python("""
import multiprocessing
pool = HostPool(1 << 20, huge_pages="never")
rows = pool.empty((100, 4)).copy_(torch.arange(400.).view(100, 4))
def work(i): return float(rows[i].sum())
with multiprocessing.get_context("fork").Pool(2) as workers:
    assert workers.map(work, range(100)) == rows.sum(1).tolist()
assert pool.stats().live_blocks == 1
""")


def test_a_started_program_inherits_no_descriptor_of_the_memory():
    pool = plain_pool(shared=True, name="pool_not_inherited")
    listing = subprocess.run(["ls", "-l", "/proc/self/fd"], capture_output=True, text=True, close_fds=False).stdout
    assert "pool_not_inherited" not in listing
    assert pool.stats().shared
