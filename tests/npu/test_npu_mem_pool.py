# SPDX-License-Identifier: Apache-2.0
"""`HostPool.use`: tensors of the device whose bytes are a pool's, through torch's own allocator."""

import gc
import itertools
import threading

import npu_support as support
import pytest
import torch
from npu_support import DEVICE, own_process

import torch_offload

sim_cann = support.sim_cann
MIB = 1 << 20


def make(pool, elements=1000):
    with pool.use():
        return torch.empty(elements, device="npu")


def is_in(pool, tensor):
    try:
        pool.host_view(tensor)
    except ValueError:
        return False
    return True


def released(pool):
    gc.collect()
    torch.npu.empty_cache()
    torch.npu.synchronize()
    return pool.stats().used == 0


@own_process()
def test_tensors_of_the_pool_are_memory_of_the_host():
    pool = torch_offload.HostPool(64 * MIB, device="npu:0")
    before = torch.empty(1000, device="npu")
    with pool.use() as inside:
        assert inside is pool
        tensor, other = torch.empty(1000, device="npu"), torch.zeros(3 * MIB, dtype=torch.uint8, device="npu")
        on_host = torch.empty(5)
    after = torch.empty(1000, device="npu")
    assert [is_in(pool, t) for t in (before, tensor, other, after)] == [False, True, True, False]
    assert on_host.device.type == "cpu"
    with sim_cann.counting() as calls:
        tensor.fill_(3)
        torch.npu.synchronize()
        view = pool.host_view(tensor)
        assert bool((view == 3).all())  # what the device wrote
        view.mul_(2)
        doubled = tensor * 2  # what the host wrote
    assert not any(name.startswith("aclrtMemcpy") for name in calls), calls
    assert bool((doubled.cpu() == 12).all())
    assert view.storage_offset() == tensor.storage_offset()
    used = pool.stats().used
    del tensor, other
    assert not released(pool)
    assert int(view[3]) == 6  # the view keeps the tensor
    del view
    assert released(pool)
    assert used == 2 * MIB + 20 * MIB


@own_process()
def test_sparse_copy_between_them():
    pool = torch_offload.HostPool(64 * MIB, device="npu:0")
    with pool.use():
        source = torch.empty(500, 64, dtype=torch.int64, device="npu")
    host = pool.host_view(source).copy_(torch.arange(500 * 64).reshape(500, 64))
    rows, index = torch.zeros(3, 64, dtype=torch.int64, device=DEVICE), torch.tensor([499, 3, 70]).to(DEVICE)
    torch_offload.sparse_copy(rows, source, src_index=index)
    torch_offload.sparse_copy(source, rows + 1, dst_index=index)
    torch_offload.sparse_copy(rows, host, src_index=index)
    torch.npu.synchronize()
    assert torch.equal(rows.cpu(), torch.arange(500 * 64).reshape(500, 64)[[499, 3, 70]] + 1)
    assert torch.equal(host[[499, 3, 70]], rows.cpu())


@own_process()
def test_freed_in_every_order():
    """Of the tensor, a view of it, the pool and the context."""
    elsewhere = torch.empty(1000, device="npu")
    for order in itertools.permutations(["tensor", "view", "pool", "context"]):
        pool = torch_offload.HostPool(32 * MIB, device="npu:0")
        context = pool.use()
        context.__enter__()
        tensor = torch.empty(1000, device="npu").fill_(2)
        held = {"tensor": tensor, "view": pool.host_view(tensor), "pool": pool, "context": context}
        torch.npu.synchronize()
        del tensor, pool, context
        for name in order:
            if name == "context":
                held["context"].__exit__(None, None, None)
            if name == "pool":
                held["pool"].close()
            del held[name]
            if "view" in held:
                assert bool((held["view"] == 2).all())
            if "tensor" in held:
                torch.add(held["tensor"], 1, out=elsewhere)
                assert bool((elsewhere.cpu() == 3).all())
        gc.collect()
        torch.npu.empty_cache()
        assert sim_cann.live_registrations() == 0, order


@own_process()
def test_empty_cache_gives_segments_back():
    pool = torch_offload.HostPool(64 * MIB, device="npu:0")
    tensors = [make(pool) for _ in range(5)]
    assert pool.stats().used == 5 * 2 * MIB  # each context has segments of its own
    tensors = tensors[:2]
    torch.npu.empty_cache()
    assert pool.stats().used == 2 * 2 * MIB
    with pool.use():
        kept = torch.empty(1000, device="npu")
        del kept
        again = torch.empty(1000, device="npu")
        assert pool.stats().used == 3 * 2 * MIB
        del again
        torch.npu.empty_cache()
    del tensors
    assert released(pool)
    assert pool.empty(64 * MIB, dtype=torch.uint8).numel() == 64 * MIB


@own_process()
def test_nested_pools():
    outer, inner = (torch_offload.HostPool(32 * MIB, device="npu:0") for _ in range(2))
    with outer.use():
        first = torch.empty(1000, device="npu")
        with inner.use():
            second = torch.empty(1000, device="npu")
            with outer.use():
                third = torch.empty(1000, device="npu")
            fourth = torch.empty(1000, device="npu")
        fifth = torch.empty(1000, device="npu")
    sixth = torch.empty(1000, device="npu")
    tensors = [first, second, third, fourth, fifth, sixth]
    assert [is_in(outer, t) for t in tensors] == [True, False, True, False, True, False]
    assert [is_in(inner, t) for t in tensors] == [False, True, False, True, False, False]
    del tensors, first, second, third, fourth, fifth
    assert released(outer)
    assert released(inner)


@own_process()
def test_an_exception_leaves_the_context():
    pool = torch_offload.HostPool(32 * MIB, device="npu:0")
    with pytest.raises(KeyError), pool.use():
        raise KeyError
    assert not is_in(pool, torch.empty(1000, device="npu"))


@own_process()
def test_a_pool_that_is_dropped_inside_its_context():
    pool = torch_offload.HostPool(32 * MIB, device="npu:0")
    with pool.use():
        del pool
        gc.collect()
        tensor = torch.empty(1000, device="npu").fill_(4)
    assert bool(((tensor + 1).cpu() == 5).all())
    assert sim_cann.live_registrations() == 1
    del tensor
    gc.collect()
    torch.npu.empty_cache()
    assert sim_cann.live_registrations() == 0


@own_process()
def test_another_thread_is_unaffected():
    pool = torch_offload.HostPool(64 * MIB, device="npu:0")
    inside, done, seen = threading.Event(), threading.Event(), []

    def work():
        torch.npu.set_device(0)
        inside.wait()
        seen.extend(torch.empty(1000, device="npu") for _ in range(50))
        done.set()

    thread = threading.Thread(target=work)
    thread.start()
    with pool.use():
        mine = [torch.empty(1000, device="npu")]
        inside.set()
        mine += [torch.empty(1000, device="npu") for _ in range(50)]
        done.wait()
        mine.append(torch.empty(1000, device="npu"))
    thread.join()
    assert all(is_in(pool, t) for t in mine)
    assert not any(is_in(pool, t) for t in seen)


@own_process()
def test_two_threads_with_a_pool_each():
    failures = []

    def work(number):
        try:
            torch.npu.set_device(0)
            pool = torch_offload.HostPool(32 * MIB, device="npu:0", name=f"pool{number}")
            for _ in range(20):
                tensor = make(pool).fill_(number)
                torch.npu.synchronize()
                assert bool((pool.host_view(tensor) == number).all())
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures


@own_process()
def test_exhaustion_is_torchs_out_of_memory_error():
    pool = torch_offload.HostPool(32 * MIB, device="npu:0", name="small")
    with pool.use():
        tensor = torch.empty(12 * MIB, dtype=torch.uint8, device="npu").fill_(1)
        with pytest.raises(torch.OutOfMemoryError, match=r"NPU out of memory. Tried to allocate 26.00 MiB"):
            torch.empty(24 * MIB, dtype=torch.uint8, device="npu")
    with pytest.raises(torch.OutOfMemoryError) as info, pool.use():
        torch.empty(24 * MIB, dtype=torch.uint8, device="npu")
    assert "small: HostPool: out of memory: asked for 27262976 bytes" in info.value.__notes__[0]
    assert torch.empty(24 * MIB, dtype=torch.uint8, device="npu").numel()  # of the device itself
    torch.npu.synchronize()
    assert bool((pool.host_view(tensor) == 1).all())
    del tensor, info
    with pool.use():  # what is cached is given back to the pool first
        assert torch.empty(24 * MIB, dtype=torch.uint8, device="npu").numel()


@own_process(SIM_DELAY_US=100_000)
def test_a_segment_is_not_handed_out_while_a_kernel_writes_it():
    pool = torch_offload.HostPool(2 * MIB, device="npu:0")
    rows, source = make(pool, 1000), torch.full((1000,), 5.0, device=DEVICE)
    torch.npu.synchronize()
    torch_offload.sparse_copy(rows.view(100, 10), source.view(100, 10))
    del rows
    gc.collect()
    torch.npu.empty_cache()
    host = pool.empty(2 * MIB, dtype=torch.uint8).fill_(9)
    torch.npu.synchronize()
    assert bool((host == 9).all())


@own_process()
def test_closed_and_attached_pools():
    pool = torch_offload.HostPool(8 * MIB, device="npu:0", shared=True)
    attached = torch_offload.HostPool.attach(pool.share(), device="npu:0")
    with pytest.raises(RuntimeError, match="only the process that owns a shared pool"), attached.use():
        pass
    tensor = make(pool)
    with pool.use():
        pool.close()
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(1000, device="npu")
    with pytest.raises(RuntimeError, match=r"HostPool.use: expected an open pool, got a closed one"), pool.use():
        pass
    tensor.fill_(3)
    torch.npu.synchronize()
    assert bool((pool.host_view(tensor) == 3).all())


@own_process()
def test_the_c_functions_with_the_default_pool():
    """As in `NPUPluggableAllocator(liboffload.so, "offload_alloc_fn", "offload_free_fn")` without a HostPool."""
    import ctypes
    from pathlib import Path

    library = Path(torch_offload.__file__).with_name("liboffload.so")
    c = ctypes.CDLL(str(library))
    c.offload_alloc_fn.restype = ctypes.c_void_p
    torch_offload.init(8 * MIB, device="npu:0")
    allocator = support.torch_npu.npu.memory.NPUPluggableAllocator(str(library), "offload_alloc_fn", "offload_free_fn")
    mem_pool = torch.npu.MemPool(allocator.allocator())
    pool = torch_offload.default_pool()
    with torch.npu.use_mem_pool(mem_pool):
        tensor = torch.empty(1000, device="npu").fill_(6)
    torch.npu.synchronize()
    assert bool((pool.host_view(tensor) == 6).all())
    assert pool.stats().used == 2 * MIB
    for size, device in ((64, 1), (64, -1), (9 * MIB, 0), (-1, 0)):
        assert c.offload_alloc_fn(ctypes.c_ssize_t(size), device, None) is None
    nothing = c.offload_alloc_fn(ctypes.c_ssize_t(0), 0, None)
    c.offload_free_fn(ctypes.c_void_p(nothing), ctypes.c_ssize_t(0), 0, None)
    c.offload_free_fn(ctypes.c_void_p(12345), ctypes.c_ssize_t(64), 0, None)
    c.offload_free_fn(ctypes.c_void_p(tensor.data_ptr()), ctypes.c_ssize_t(64), 1, None)  # another device's
    assert pool.stats().used == 2 * MIB
    assert pool.stats().foreign_frees == 1
    del tensor, mem_pool
    assert released(pool)
    torch_offload.uninit()
