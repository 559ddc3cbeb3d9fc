# SPDX-License-Identifier: Apache-2.0
"""Host memory that the simulated device can reach, as torch_npu offers it: pinned, mapped, allocators.

Each test runs in a process of its own.
"""

import ctypes
import gc

import pytest
import sim_support as support
from sim_support import P, launch_copy, raises, sim_cann, torch, torch_npu

own_process = sim_cann.own_process


# ---- mapped memory


@own_process(TASK_QUEUE_ENABLE=0)
def test_mapped_memory_is_for_kernels_only():
    x = torch.arange(64.0).npu()
    lib, pool = allocator_and_pool()
    with torch.npu.use_mem_pool(pool):
        mapped = torch.empty(64, device="npu")
    launch_copy(x, mapped)
    torch.npu.synchronize()
    assert torch.equal(host_tensor(lib, mapped), x.cpu())
    raises(mapped.cpu, "107000", "for kernels only")
    with sim_cann.changed(SIM_MAPPED_COPIES="allow"):
        assert torch.equal(mapped.cpu(), x.cpu())


@pytest.mark.parametrize("va_flag", [1, 0])
def test_pinned_memory_with_and_without_va_flag(va_flag):
    own_process(SIM_VA_FLAG=va_flag, PYTORCH_NPU_ALLOC_CONF="pinned_mem_register:True")(pinned_case)(va_flag)


def pinned_case(va_flag):
    pinned = torch.arange(4096.0).pin_memory()
    assert pinned.is_pinned()
    assert sim_cann.live_host_bytes() >= pinned.nbytes
    # With the flag the pinned pointer is the device's as well, without it torch_npu does not register.
    assert (sim_cann.translate(pinned.data_ptr(), pinned.nbytes) is not None) == bool(va_flag)
    if va_flag:
        x = torch.zeros(4096, device="npu")
        launch_copy(pinned, x)
        assert torch.equal(x.cpu(), pinned)


# ---- pluggable allocators and pools


def allocator():
    path = str(support.SAMPLES / "host_allocator.so")
    lib = ctypes.CDLL(path)
    lib.host_pointer.restype, lib.host_pointer.argtypes = P, [P]
    return lib, torch_npu.npu.memory.NPUPluggableAllocator(path, "host_alloc", "host_free")


def allocator_and_pool(**options):
    torch.npu.set_device(0)
    lib, alloc = allocator()
    allocator_and_pool.alive = alloc
    return lib, torch.npu.MemPool(alloc.allocator(), **options)


def host_tensor(lib, tensor):
    address = lib.host_pointer(tensor.data_ptr())
    view = (ctypes.c_float * tensor.numel()).from_address(address)
    return torch.frombuffer(view, dtype=torch.float32)


@own_process()
def test_memory_pool_on_host_memory():
    lib, pool = allocator_and_pool()
    before = torch.empty(1000, device="npu")
    with torch.npu.use_mem_pool(pool):
        t = torch.empty(1000, device="npu")
        u = torch.empty(1000, device="npu")
    after = torch.empty(1000, device="npu")
    assert lib.host_pointer(before.data_ptr()) is None and lib.host_pointer(after.data_ptr()) is None
    assert lib.host_pointer(t.data_ptr()) and lib.host_pointer(u.data_ptr())
    assert lib.host_allocations() == 1  # small tensors share a segment
    t.fill_(3)
    torch.npu.synchronize()
    host = host_tensor(lib, t)
    assert host.min().item() == 3
    host.mul_(2)  # the tensor is host memory: no copy
    assert (t + 0).cpu()[999].item() == 6
    del host, t, u
    gc.collect()
    torch.npu.empty_cache()
    assert lib.host_frees() == 0  # not while the pool lives
    del pool
    gc.collect()
    assert lib.host_frees() == 1
    assert sim_cann.live_registrations() == 0


@own_process()
def test_memory_pool_without_splitting_and_outlived():
    lib, pool = allocator_and_pool(no_split=True)
    with torch.npu.use_mem_pool(pool):
        tensors = [torch.ones(1000, device="npu") for _ in range(5)]
    assert lib.host_allocations() == 5
    del pool
    gc.collect()
    assert lib.host_frees() == 0 and tensors[4].sum().item() == 1000
    del tensors
    gc.collect()
    torch.npu.empty_cache()
    assert lib.host_frees() == 5


@own_process()
def test_allocator_for_everything():
    lib, alloc = allocator()
    torch_npu.npu.memory.change_current_allocator(alloc)
    t = torch.empty(1000, device="npu")
    assert lib.host_pointer(t.data_ptr())
    del t
    gc.collect()
    assert lib.host_frees() == lib.host_allocations() > 0


@own_process()
def test_allocator_comes_too_late():
    torch.empty(1, device="npu")
    alloc = allocator()[1]
    raises(lambda: torch_npu.npu.memory.change_current_allocator(alloc), "already initialized")
