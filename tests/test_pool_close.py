# SPDX-License-Identifier: Apache-2.0
"""Closing a pool that is in use: nothing new, and everything old stays valid."""

import threading

import pytest
import torch
from pool_support import MIB, guarded_block, plain_pool, resident_bytes

import torch_offload


def test_close_refuses_new_tensors_and_keeps_the_old_ones():
    pool = plain_pool()
    tensor = pool.empty(1000).copy_(torch.arange(1000))
    pool.close()
    pool.close()
    with pytest.raises(RuntimeError, match="expected an open pool, got a closed one"):
        pool.empty(1)
    with pytest.raises(RuntimeError, match="closed"):
        pool.empty(0)
    stats = pool.stats()
    assert (stats.closed, stats.live_blocks) == (True, 1)
    assert torch.equal(tensor, torch.arange(1000.0))
    tensor.fill_(5)
    del tensor
    assert pool.stats().used == 0
    assert "closed" in repr(pool)


def test_the_context_manager_closes():
    with plain_pool() as pool:
        tensor = pool.empty(10)
    assert pool.stats().closed
    assert tensor.fill_(1).sum() == 10
    with pytest.raises(ZeroDivisionError), plain_pool() as pool:
        1 / 0  # noqa: B018
    assert pool.stats().closed


def test_memory_goes_with_the_last_tensor_after_close():
    before = resident_bytes()
    pool = plain_pool(64 * MIB)
    tensor = pool.empty(64 * MIB, dtype=torch.uint8).fill_(1)
    pool.close()
    del pool
    assert resident_bytes() > before + 48 * MIB
    assert tensor[-1] == 1
    del tensor
    assert resident_bytes() < before + 16 * MIB


@pytest.mark.parametrize("default", [False, True])
def test_closing_while_threads_copy(default):
    """Copies of other threads go on during close and uninit, and their results are right."""
    for _ in range(10):
        if default:
            torch_offload.init(4 * MIB, huge_pages="never")
            pool = torch_offload.default_pool()
        else:
            pool = plain_pool(4 * MIB)
        with guarded_block(pool, 512 << 10) as blocks:
            source = pool.empty((4096, 128), dtype=torch.uint8).random_()
            target = blocks[0].view(4096, 128)
            blocks.clear()
            order = [torch.randperm(4096) for _ in range(2)]
            started, errors = threading.Barrier(3), []

            def copy(rows, source=source, target=target, started=started, errors=errors):
                started.wait(30)
                for _ in range(30):
                    torch_offload.sparse_copy(target, source, rows, rows)
                    if not torch.equal(target, source):  # both threads write the same values
                        errors.append(rows)

            threads = [threading.Thread(target=copy, args=(rows,)) for rows in order]
            torch_offload.sparse_copy(target, source)
            for thread in threads:
                thread.start()
            started.wait(30)
            pool.close()
            if default:
                torch_offload.uninit()
            with pytest.raises(RuntimeError):
                pool.empty(1)
            for thread in threads:
                thread.join(60)
                assert not thread.is_alive()
            assert not errors
            assert torch.equal(target, source)
            del source, target, copy, threads
        assert pool.stats().live_blocks == 0


def test_closing_while_threads_allocate():
    for _ in range(20):
        pool = plain_pool()
        started, outcomes = threading.Barrier(5), []

        def allocate(pool=pool, started=started, outcomes=outcomes):
            started.wait(30)
            try:
                while True:
                    tensor = pool.empty(100).fill_(1)
                    assert tensor.sum() == 100
            except RuntimeError as error:
                outcomes.append(str(error))

        threads = [threading.Thread(target=allocate) for _ in range(4)]
        for thread in threads:
            thread.start()
        started.wait(30)
        pool.close()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
        assert len(outcomes) == 4
        assert all("closed" in outcome for outcome in outcomes)
        assert pool.stats().live_blocks == 0


def test_closing_from_many_threads_at_once():
    pool = plain_pool()
    tensor = pool.empty(10).fill_(2)
    threads = [threading.Thread(target=pool.close) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert pool.stats().closed
    assert tensor.sum() == 20
