# SPDX-License-Identifier: Apache-2.0
"""A block of a pool is not handed out again while work of a stream may still use it."""

import gc
import threading
import time

import npu_support as support
import pytest
import torch
from npu_support import DEVICE, own_process

import torch_offload

sim_cann = support.sim_cann
MIB = 1 << 20
SLOWLY = {"SIM_DELAY_US": 150_000}


def block(pool, value):
    return pool.empty((1000, 64), dtype=torch.int64).fill_(value)


def dropped_during_a_copy(to_pool, watch=True, queue_before=0):
    """Whether the next tensor of a pool with room for one keeps its pattern, and the copy its bytes."""
    pool = torch_offload.HostPool(1000 * 64 * 8, device="npu:0")
    if not watch:
        torch_offload._C_npu.watch_streams(False)
    on_device = torch.full((1000, 64), 5, device=DEVICE)
    warm_up = torch_offload.HostPool(MIB, device="npu:0").empty((2, 64), dtype=torch.int64)
    torch_offload.sparse_copy(on_device[:2] + 0, warm_up)
    torch.npu.synchronize()
    first = block(pool, 7)
    address = first.data_ptr()
    with sim_cann.changed(**SLOWLY):
        for _ in range(queue_before):
            on_device += 0
        if to_pool:
            torch_offload.sparse_copy(first, on_device)
        else:
            torch_offload.sparse_copy(on_device, first)
        del first
        second = block(pool, 9)
        assert second.data_ptr() == address
        torch.npu.synchronize()
    if to_pool:
        return bool((second == 9).all())
    return bool((on_device.cpu() == 7).all())


@support.simulator
@pytest.mark.parametrize("to_pool", [True, False])
@pytest.mark.parametrize("queue", [0, 1, 2])
def test_dropped_during_a_copy(to_pool, queue):
    own_process(TASK_QUEUE_ENABLE=queue)(protected)(to_pool)


def protected(to_pool):
    assert dropped_during_a_copy(to_pool)
    assert dropped_during_a_copy(to_pool, queue_before=3)


@support.simulator
@pytest.mark.parametrize("to_pool", [True, False])
def test_without_the_protection_it_is_wrong(to_pool):
    own_process()(unprotected)(to_pool)


def unprotected(to_pool):
    assert not dropped_during_a_copy(to_pool, watch=False)


@own_process(**SLOWLY)
def test_another_block_is_handed_out_at_once():
    pool = torch_offload.HostPool(4 * MIB, device="npu:0")
    rows, first = torch.zeros(1000, 64, dtype=torch.int64, device=DEVICE), block(pool, 7)
    torch.npu.synchronize()
    torch_offload.sparse_copy(rows, first)
    address = first.data_ptr()
    del first
    start = time.monotonic()
    second = block(pool, 9)
    assert time.monotonic() - start < 0.1
    assert second.data_ptr() != address
    assert pool.stats().live_blocks == 2
    torch.npu.synchronize()
    assert pool.stats().live_blocks == 1
    assert bool((rows.cpu() == 7).all())


@own_process(**SLOWLY)
def test_a_block_of_a_side_stream():
    pool = torch_offload.HostPool(1000 * 64 * 8, device="npu:0")
    rows, first, side = torch.zeros(1000, 64, dtype=torch.int64, device=DEVICE), block(pool, 7), torch.npu.Stream()
    torch.npu.synchronize()
    with torch.npu.stream(side):
        torch_offload.sparse_copy(rows, first)
    del first
    second = block(pool, 9)
    side.synchronize()
    assert bool((rows.cpu() == 7).all())
    assert bool((second == 9).all())


@own_process(**SLOWLY)
def test_dropped_by_another_thread_and_by_the_collector():
    pool = torch_offload.HostPool(1000 * 64 * 8, device="npu:0")
    rows = torch.zeros(1000, 64, dtype=torch.int64, device=DEVICE)

    for in_a_cycle in (False, True):
        held = [block(pool, 7)]
        torch.npu.synchronize()
        torch_offload.sparse_copy(rows, held[0])
        if in_a_cycle:
            held.append(held)
            del held
            thread = threading.Thread(target=gc.collect)
        else:
            thread = threading.Thread(target=held.clear)
        thread.start()
        thread.join()
        second = block(pool, 9)
        assert bool((rows.cpu() == 7).all())
        del second


@own_process(**SLOWLY)
def test_asynchronous_copies_of_torch():
    """Torch takes registered memory for pinned, and does not wait; the stream must be the current one."""
    pool = torch_offload.HostPool(1000 * 64 * 8, device="npu:0")
    on_device, first = torch.full((1000, 64), 5, device=DEVICE), block(pool, 7)
    torch.npu.synchronize()
    first.copy_(on_device, non_blocking=True)
    del first
    second = block(pool, 9)
    torch.npu.synchronize()
    assert bool((second == 9).all())
    on_device.copy_(second, non_blocking=True)
    del second
    third = block(pool, 11)
    assert bool((on_device.cpu() == 9).all())
    del third


@own_process(**SLOWLY)
def test_a_device_view_protects_the_block_that_it_shows():
    pool = torch_offload.HostPool(1000 * 64 * 8, device="npu:0")
    first = block(pool, 7)
    torch.npu.synchronize()
    doubled = pool.device_view(first) * 2
    del first
    second = block(pool, 9)
    assert bool((doubled.cpu() == 14).all())
    del second


@own_process()
def test_a_tensor_that_is_dropped_inside_a_capture():
    """Its block comes free after the capture; what the graph shall use has to live as long as the graph."""
    pool = torch_offload.HostPool(4 * MIB, device="npu:0")
    rows, kept = torch.zeros(1000, 64, dtype=torch.int64, device=DEVICE), block(pool, 7)
    torch_offload.sparse_copy(rows, kept)
    torch.npu.synchronize()
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        torch_offload.sparse_copy(rows, kept)
        dropped = block(pool, 8)
        del dropped
        assert pool.stats().live_blocks == 2
        other = block(pool, 9)
        del other
    torch.npu.synchronize()
    assert pool.stats().live_blocks == 1
    kept.fill_(3)
    graph.replay()
    assert bool((rows.cpu() == 3).all())


@own_process()
def test_nothing_is_asked_of_the_device_for_idle_streams():
    pool = torch_offload.HostPool(4 * MIB, device="npu:0")
    rows, first = torch.zeros(1000, 64, dtype=torch.int64, device=DEVICE), block(pool, 7)
    torch_offload.sparse_copy(rows, first)
    torch.npu.synchronize()
    with sim_cann.counting() as calls:
        del first
        assert pool.stats().used == 0
    assert not any("Event" in name or "Synchronize" in name for name in calls), calls


@own_process(SIM_DELAY_US=2_000)
def test_threads_that_copy_and_drop():
    pool = torch_offload.HostPool(4 * 1000 * 64 * 8, device="npu:0")
    failures = []

    def work(number):
        try:
            with torch.npu.stream(torch.npu.Stream()):
                rows = torch.zeros(1000, 64, dtype=torch.int64, device=DEVICE)
                for step in range(12):
                    source = block(pool, 100 * number + step)
                    torch_offload.sparse_copy(rows, source)
                    del source
                    assert bool((rows.cpu() == 100 * number + step).all()), (number, step)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures
    torch.npu.synchronize()
    assert pool.stats().used == 0
