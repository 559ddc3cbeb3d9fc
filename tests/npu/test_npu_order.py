# SPDX-License-Identifier: Apache-2.0
"""When a call runs: in its stream's order, without the host waiting, with the values that it was given."""

import signal
import threading
import time

import npu_support as support
import pytest
import torch
from npu_support import DEVICE, own_process

import torch_offload


def copy_chain(length=200):
    """Each copy reads what the one before it has written; operators of torch_npu lie between."""
    rows, n = 64, 40
    generator = torch.Generator().manual_seed(3)
    host = torch.randint(0, 1000, (rows, 16), generator=generator)
    a, b = host.to(DEVICE), torch.zeros_like(host).to(DEVICE)
    other = torch.zeros_like(host)
    for step in range(length):
        to = torch.randperm(rows, generator=generator)[:n]
        of = torch.randperm(rows, generator=generator)[:n]
        torch_offload.sparse_copy(b, a, to.to(DEVICE), of.to(DEVICE))
        other[to] = host[of]
        if step % 10 == 0:
            b += 1
            other += 1
        a, b, host, other = b, a, other, host
    assert torch.equal(a.cpu(), host)
    assert torch.equal(b.cpu(), other)


def test_200_dependent_copies(npu):
    copy_chain()


@support.simulator
@pytest.mark.parametrize("queue", [0, 1, 2])
@pytest.mark.parametrize("delay", [0, 1000])
def test_200_dependent_copies_with_every_task_queue(queue, delay):
    own_process(TASK_QUEUE_ENABLE=queue, SIM_DELAY_US=delay)(copy_chain)()


@own_process(ASCEND_LAUNCH_BLOCKING=1)
def test_blocking_launches():
    copy_chain(20)


def operands(rows=50, columns=64):
    src = torch.arange(rows * columns).reshape(rows, columns)
    return src, src.to(DEVICE), torch.zeros(rows, columns, dtype=torch.int64, device=DEVICE)


# The host goes on at once.


@own_process()
def test_the_host_neither_waits_nor_allocates_nor_copies():
    _, src, dst = operands()
    index, count = torch.arange(20).to(DEVICE), torch.tensor([7]).to(DEVICE)
    torch_offload.sparse_copy(dst, src, src_index=index)  # the first call loads and allocates
    torch.npu.synchronize()
    sim_cann = support.sim_cann
    with sim_cann.changed(SIM_DELAY_US=200_000), sim_cann.counting() as calls:
        start = time.monotonic()
        torch_offload.sparse_copy(dst, src, src_index=index, count=count)
        assert time.monotonic() - start < 0.1
        while not sim_cann.count("aclrtLaunchKernelWithHostArgs"):
            time.sleep(0.001)
        time.sleep(0.02)
    memory = [name for name in calls if any(part in name for part in ("Malloc", "Memcpy", "Memset", "Synchronize"))]
    assert not memory, calls
    assert calls["aclrtLaunchKernelWithHostArgs"] == 1


@own_process(SIM_DELAY_US=100_000)
def test_index_overwritten_and_everything_dropped_right_after_the_call():
    host, src, dst = operands()
    values = torch.tensor([3, 1, 49, 7])
    index, count = values.to(DEVICE), torch.tensor([4]).to(DEVICE)
    torch.npu.synchronize()
    torch_offload.sparse_copy(dst, src, src_index=index, count=count)
    index.fill_(11)
    count.fill_(0)
    del index, count, src
    garbage = [torch.full((50, 64), 5, device=DEVICE) for _ in range(4)]  # takes the memory, in stream order
    assert torch.equal(dst.cpu()[:4], host[values])
    del garbage


@own_process(SIM_DELAY_US=100_000, PYTORCH_NPU_ALLOC_CONF="pinned_mem_register:True")
def test_pinned_source_dropped_right_after_the_call():
    """torch_npu's pinned memory is not handed out again while the kernel reads it."""
    host, _, dst = operands()
    pinned = host.pin_memory()
    address = pinned.data_ptr()
    torch_offload.sparse_copy(dst, pinned, src_index=torch.tensor([4, 2]).to(DEVICE))
    del pinned
    again = torch.empty(host.shape, dtype=torch.int64).pin_memory()
    again.fill_(-1)
    assert again.data_ptr() != address
    assert torch.equal(dst.cpu()[:2], host[[4, 2]])


# Streams.


def two_streams(wait):
    """Produces the source on one stream and copies on another."""
    _, src, dst = operands()
    index = torch.tensor([5, 6, 7]).to(DEVICE)
    side = torch.npu.Stream()
    torch.npu.synchronize()
    with support.sim_cann.changed(SIM_DELAY_US=150_000):
        src.fill_(9)
        time.sleep(0.03)  # the delay counts when a task starts
    with torch.npu.stream(side):
        if wait:
            side.wait_stream(torch.npu.default_stream())
        torch_offload.sparse_copy(dst, src, src_index=index)
    side.synchronize()
    seen = dst.cpu()[:3]
    torch.npu.synchronize()
    return bool((seen == 9).all())


@own_process()
def test_two_streams_with_the_documented_wait():
    assert two_streams(wait=True)


@own_process()
def test_two_streams_without_it_are_wrong():
    assert not two_streams(wait=False)


def test_the_current_stream_is_used(npu):
    host, src, dst = operands()
    side = torch.npu.Stream()
    side.wait_stream(torch.npu.current_stream())
    with torch.npu.stream(side):
        for _ in range(20):
            torch_offload.sparse_copy(dst, src, src_index=torch.tensor([8, 3]).to(DEVICE))
            dst[:2] += 1
    torch.npu.current_stream().wait_stream(side)
    assert torch.equal(dst.cpu()[:2], host[[8, 3]] + 1)


@own_process(SIM_DEVICES=2)
def test_the_destinations_device_counts_not_the_current_one():
    host = torch.arange(640).reshape(40, 16)
    src, dst = host.to("npu:1"), torch.zeros(4, 16, dtype=torch.int64, device="npu:1")
    assert torch.npu.current_device() == 0
    torch_offload.sparse_copy(dst, src, src_index=torch.tensor([4, 39]).to("npu:1"))
    assert torch.npu.current_device() == 0
    assert torch.equal(dst.cpu()[:2], host[[4, 39]])
    assert torch_offload.status("npu:1").copied == 2
    assert torch_offload.status("npu:0").copied == 0


# Threads.


def in_threads(count, work):
    failures = []

    def run(number):
        try:
            work(number)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures


def test_worker_threads_with_streams_of_their_own(npu):
    host, src, _ = operands()
    torch.npu.synchronize()

    def work(number):
        stream = torch.npu.Stream()
        with torch.npu.stream(stream):
            for step in range(10):
                of = torch.randint(0, 50, (20,), generator=torch.Generator().manual_seed(100 * number + step))
                dst = torch.zeros(20, 64, dtype=torch.int64, device=DEVICE)
                torch_offload.sparse_copy(dst, src, src_index=of.to(DEVICE))
                stream.synchronize()
                assert torch.equal(dst.cpu(), host[of])

    in_threads(4, work)
    assert torch_offload.status(DEVICE).copied == 4 * 10 * 20


@own_process()
def test_the_first_call_of_a_process_in_many_threads():
    host, src, _ = operands()
    torch.npu.synchronize()
    start = threading.Barrier(6)

    def work(number):
        dst = torch.zeros(2, 64, dtype=torch.int64, device=DEVICE)
        index = torch.tensor([number, 40]).to(DEVICE)
        start.wait()
        torch_offload.sparse_copy(dst, src, src_index=index)
        assert torch.equal(dst.cpu(), host[[number, 40]])

    in_threads(6, work)
    assert support.sim_cann.count("aclrtBinaryLoadFromFile") == 1


# The host never reads device memory.


@own_process(exit_code=-signal.SIGSEGV, writes="the host dereferenced the device address")
def test_a_host_read_of_a_device_value_would_be_seen():
    """What the next test relies on: reading `count` on the host ends the process."""
    import ctypes

    count = torch.tensor([3]).to(DEVICE)
    torch.npu.synchronize()
    ctypes.c_int64.from_address(count.data_ptr()).value  # noqa: B018


@support.simulator
@pytest.mark.parametrize("level", ["0", "1", "3"])
def test_no_log_level_makes_the_host_read_device_values(level):
    levels = {"ASCEND_GLOBAL_LOG_LEVEL": level, "ASCEND_SLOG_PRINT_TO_STDOUT": "1", "TORCH_NPU_LOGS": "+all"}
    levels |= {"TORCH_CPP_LOG_LEVEL": "INFO", "TORCH_SHOW_DISPATCH_TRACE": "1", "SIM_TRACE": "1"}
    own_process(**levels, TASK_QUEUE_ENABLE=int(level) % 2)(with_device_values)()


def with_device_values():
    host, src, dst = operands()
    index, count = torch.tensor([5, 1, 99]).to(DEVICE), torch.tensor([2]).to(DEVICE)
    torch_offload.sparse_copy([dst, dst.clone()], [src, src], src_index=index, count=count)
    assert torch.equal(dst.cpu()[:2], host[[5, 1]])
    assert torch_offload.status(DEVICE).copied == 2


@own_process(SIM_DELAY_US=50_000, exit_code=7)
def test_work_that_is_queued_at_exit_is_harmless():
    _, src, dst = operands()
    for _ in range(20):
        torch_offload.sparse_copy(dst, src)
    raise SystemExit(7)
