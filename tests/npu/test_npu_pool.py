# SPDX-License-Identifier: Apache-2.0
"""A pool whose memory a device addresses: registration, copies, the same bytes as host and device tensors, the end."""

import gc
import mmap
import time
import warnings

import npu_support as support
import pytest
import torch
from npu_support import DEVICE, own_process

import torch_offload

sim_cann = support.sim_cann
MIB = 1 << 20


@pytest.fixture(autouse=True)
def device(npu):
    return npu


@pytest.fixture
def pool():
    return torch_offload.HostPool(8 * MIB, device="npu:0")


def numbered(pool, rows, columns=64, dtype=torch.int64):
    return pool.empty((rows, columns), dtype=dtype).copy_(torch.arange(rows * columns).reshape(rows, columns))


def to_device(*numbers):
    return torch.tensor(numbers).to(DEVICE)


# Copies.


def test_rows_from_the_pool_and_back(pool):
    assert pool.stats().device_registered
    source, target = numbered(pool, 500), numbered(pool, 500).zero_()
    rows, index = torch.zeros(3, 64, dtype=torch.int64, device=DEVICE), to_device(499, 0, 77)
    torch_offload.sparse_copy(rows, source, src_index=index)
    torch_offload.sparse_copy(target, rows, dst_index=index)
    torch.npu.synchronize()
    assert torch.equal(rows.cpu(), source[[499, 0, 77]])
    assert torch.equal(target[[499, 0, 77]], source[[499, 0, 77]])
    assert int(target.count_nonzero()) == int(source[[499, 0, 77]].count_nonzero())


def test_indices_and_count_in_the_pool(pool):
    source = numbered(pool, 50)
    index, count = pool.empty(4, dtype=torch.int32), pool.empty((), dtype=torch.int64).fill_(2)
    index.copy_(torch.tensor([7, 3, 1, 1]))
    rows = torch.zeros(4, 64, dtype=torch.int64, device=DEVICE)
    torch_offload.sparse_copy(rows, source, src_index=index, count=count)
    torch.npu.synchronize()
    assert torch.equal(rows.cpu()[:2], source[[7, 3]])
    assert not rows.cpu()[2:].any()


def test_the_message_for_ordinary_memory_names_what_works():
    rows, source = torch.zeros(4, 8, device=DEVICE), torch.ones(4, 8)
    with pytest.raises(ValueError, match=r"torch_offload.HostPool\(..., device='npu:0'\)"):
        torch_offload.sparse_copy(rows, source)
    pool = torch_offload.HostPool(MIB, device="npu:0")
    torch_offload.sparse_copy(rows, pool.empty((4, 8)).copy_(source))
    assert torch.equal(rows.cpu(), source)


@pytest.mark.parametrize("device", ["npu", "npu:0", torch.device("npu:0"), torch.device("npu")])
def test_ways_to_name_the_device(device):
    assert torch_offload.HostPool(MIB, device=device).stats().device_registered


@pytest.mark.parametrize(
    ("device", "error", "text"),
    [
        ("npu:9", ValueError, "expected device to be one of the 1 NPUs of this machine, got 'npu:9'"),
        ("npu:-1", ValueError, "expected device to be None, 'cpu' or 'npu:<number>', got 'npu:-1'"),
        ("cuda:0", ValueError, "expected device to be None, 'cpu' or 'npu:<number>', got 'cuda:0'"),
        (0, TypeError, "expected device to be a torch.device, a str or None, got 0"),
    ],
)
@support.simulator
def test_bad_devices(device, error, text):
    with pytest.raises(error, match=text):
        torch_offload.HostPool(MIB, device=device)


def test_a_plain_pool_is_not_registered():
    pool = torch_offload.HostPool(MIB)
    assert not pool.stats().device_registered
    with pytest.raises(ValueError, match=r"expected src\[0\] to be on npu:0 or in host memory"):
        torch_offload.sparse_copy(torch.zeros(2, 4, device=DEVICE), pool.empty((2, 4)))


def test_the_default_pool():
    torch_offload.init(MIB, device="npu:0")
    try:
        rows, source = torch.zeros(4, 8, device=DEVICE), torch_offload.empty((4, 8)).fill_(3)
        torch_offload.sparse_copy(rows, source)
        assert bool((rows.cpu() == 3).all())
        torch_offload.init(MIB, device="npu:0")
        with pytest.raises(RuntimeError, match="expected the arguments of the first call"):
            torch_offload.init(MIB)
    finally:
        torch_offload.uninit()


def test_a_pool_of_another_process_is_registered_here():
    """Attached by the same process here: what counts is that each mapping has its own registration."""
    pool = torch_offload.HostPool(MIB, shared=True)
    source = numbered(pool, 20)
    attached = torch_offload.HostPool.attach(pool.share(), device="npu:0")
    imported = attached.import_(pool.export(source))
    rows = torch.zeros(20, 64, dtype=torch.int64, device=DEVICE)
    torch_offload.sparse_copy(rows, imported)
    del imported, attached  # the copy may still run
    assert torch.equal(rows.cpu(), source)


@own_process(SIM_DEVICES=2)
def test_one_pool_for_each_of_two_devices():
    pools = [torch_offload.HostPool(8 * MIB, device=f"npu:{i}") for i in range(2)]
    assert torch.npu.current_device() == 0
    for i, pool in enumerate(pools):
        rows = torch.zeros(20, 64, dtype=torch.int64, device=f"npu:{i}")
        source = numbered(pool, 20) + 0
        torch_offload.sparse_copy(rows, numbered(pool, 20))
        assert torch.equal(rows.cpu(), source)
        with pytest.raises(ValueError, match=f"expected src.0. to be on npu:{1 - i} or in host memory"):
            torch_offload.sparse_copy(rows.to(f"npu:{1 - i}"), numbered(pool, 20))
        with pool.use():
            assert pool.host_view(torch.empty(5, device=f"npu:{i}")).numel() == 5
            elsewhere = torch.empty(5, device=f"npu:{1 - i}")
        with pytest.raises(ValueError, match=f"expected a tensor on the CPU or npu:{i}, got npu:{1 - i}"):
            pool.host_view(elsewhere)
    del pools, pool
    gc.collect()


# Registration.


@support.simulator
@pytest.mark.parametrize("version", ["8.1.RC1", "8.5.0"])
@pytest.mark.parametrize("limit", [0, 1, 3])
@pytest.mark.parametrize("addresses", ["apart", "adjacent"])
def test_chunks(version, limit, addresses):
    settings = {"SIM_REGISTER_LIMIT_MB": limit, "SIM_MAPPED_ADDRESSES": addresses, "SIM_CANN_VERSION": version}
    own_process(**settings)(in_chunks)(limit, addresses)


def in_chunks(limit, addresses):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        pool = torch_offload.HostPool(5 * MIB, device="npu:0", huge_pages="never")
    chunk = {0: 5, 1: 1, 3: 2}[limit]
    assert sim_cann.live_registrations() == -(-5 // chunk)
    apart = addresses == "apart" and limit != 0
    assert any("no tensor can be larger than a piece" in str(w.message) for w in caught) == apart
    assert pool.stats().largest_free == (chunk if apart else 5) * MIB
    # Rows of 656 bytes over all of the memory: those across a seam are right, or there are none.
    tensors = []
    while pool.stats().largest_free >= 656:
        tensors.append(pool.empty((min(pool.stats().largest_free, 700_000) // 656, 656), dtype=torch.uint8))
    assert sum(t.nbytes for t in tensors) > 5 * MIB - 10_000
    for t in tensors:
        t.copy_(torch.randint(256, t.shape, dtype=torch.uint8))
        rows = torch.zeros(t.shape, dtype=torch.uint8).to(DEVICE)
        torch_offload.sparse_copy(rows, t)
        assert torch.equal(rows.cpu(), t)
        assert pool.device_view(t).data_ptr()
    del tensors, t
    torch.npu.synchronize()
    stats = pool.stats()
    assert stats.used == 0
    assert stats.free_blocks == (-(-5 // chunk) if apart else 1)
    del pool
    assert sim_cann.live_registrations() == 0


@own_process(SIM_REGISTER_LIMIT_MB=2, SIM_MAPPED_ADDRESSES="apart")
def test_a_tensor_of_another_process_across_pieces_that_lie_apart():
    with sim_cann.changed(SIM_REGISTER_LIMIT_MB=0):
        pool = torch_offload.HostPool(4 * MIB, shared=True, huge_pages="never")
    tensor = pool.empty((3 * MIB,), dtype=torch.uint8)
    attached = torch_offload.HostPool.attach(pool.share(), device="npu:0")
    imported = attached.import_(pool.export(tensor))
    with pytest.raises(ValueError, match=r"expected src\[0\] to be on npu:0 or in host memory that it can address"):
        torch_offload.sparse_copy(torch.zeros(3 * MIB, dtype=torch.uint8, device=DEVICE), imported)
    with pytest.raises(ValueError, match="got one across two"):
        attached.device_view(imported)
    torch_offload.sparse_copy(torch.zeros(MIB, dtype=torch.uint8, device=DEVICE), imported[:MIB])


def mapped_file():
    return torch.frombuffer(mmap.mmap(-1, 4 * 64), dtype=torch.uint8).view(4, 64)


@support.simulator
@pytest.mark.parametrize("function", ["aclrtHostGetDevicePointer", "aclrtPointerGetAttributes"])
@pytest.mark.parametrize("make", [lambda: torch.zeros(4, 64, dtype=torch.uint8), mapped_file])
def test_memory_that_the_runtime_knows_nothing_of(make, function):
    """Also when it fails to answer: never taken for memory that the device can address."""
    rows = torch.zeros(4, 64, dtype=torch.uint8, device=DEVICE)
    text = r"got ordinary host memory; allocate it with torch_offload.HostPool\(..., device='npu:0'\)"
    with pytest.raises(ValueError, match=text):
        torch_offload.sparse_copy(rows, make())
    with sim_cann.failing(function), pytest.raises((ValueError, RuntimeError)):
        torch_offload.sparse_copy(rows, make())
    torch_offload.sparse_copy(rows, torch_offload.HostPool(MIB, device="npu:0").empty((4, 64), dtype=torch.uint8))


@support.simulator
def test_memory_is_not_registered_twice(pool):
    tensor = numbered(pool, 20)
    for address in (tensor.data_ptr() // 4096 * 4096, tensor.data_ptr() // 4096 * 4096 + 4096):
        with pytest.raises(RuntimeError, match=r"aclrtHostRegisterV2: expected .* to map .*, got code 507910"):
            support._C_npu.register_host_memory(0, address, 8192)
    assert pool.stats().device_registered
    rows = torch.zeros(20, 64, dtype=torch.int64, device=DEVICE)
    torch_offload.sparse_copy(rows, tensor)
    assert torch.equal(rows.cpu(), tensor)


# The same bytes.


def test_device_view(pool):
    host = numbered(pool, 50)
    view = pool.device_view(host)
    assert view.device == DEVICE
    assert (view.shape, view.stride(), view.dtype) == (host.shape, host.stride(), host.dtype)
    view.add_(1)
    torch.npu.synchronize()
    assert int(host[0, 0]) == 1
    host[0, 0] = 100
    assert int((view + 1).cpu()[0, 0]) == 101
    assert pool.device_view(view) is view
    assert pool.host_view(view).data_ptr() == host.data_ptr()


def test_views_of_slices_and_transposes(pool):
    host = numbered(pool, 50)[3:40:2].t()[5:]
    view = pool.device_view(host)
    assert torch.equal((view + 0).cpu(), host)
    back = pool.host_view(view[1:, ::3])
    assert torch.equal(back, host[1:, ::3])
    assert back.data_ptr() == host[1:].data_ptr()


def test_sparse_copy_on_both_views(pool):
    host = numbered(pool, 50)
    rows = pool.device_view(numbered(pool, 4).zero_())
    torch_offload.sparse_copy(rows, pool.device_view(host), src_index=to_device(9, 49, 0, 1))
    torch.npu.synchronize()
    assert torch.equal(pool.host_view(rows), host[[9, 49, 0, 1]])


def test_views_keep_the_block(pool):
    host = numbered(pool, 50)
    expected = host.clone()
    view = pool.device_view(host)
    back = pool.host_view(view)
    del host, view
    other = numbered(pool, 50).zero_()
    assert torch.equal(back, expected)
    del back, other
    torch.npu.synchronize()
    assert pool.stats().used == 0


def test_views_without_elements(pool):
    host = pool.empty((0, 5))
    view = pool.device_view(host)
    assert (view.device, view.shape) == (DEVICE, host.shape)
    assert pool.host_view(view).shape == host.shape


def test_views_outlive_the_pool():
    pool = torch_offload.HostPool(MIB, device="npu:0")
    view = pool.device_view(numbered(pool, 5))
    pool.close()
    del pool
    assert int((view + 1).cpu()[4, 63]) == 5 * 64


@pytest.mark.parametrize("name", ["host_view", "device_view"])
def test_views_refuse_what_is_not_in_the_pool(pool, name):
    view = getattr(pool, name)
    other = torch_offload.HostPool(MIB, device="npu:0")
    with pytest.raises(TypeError, match=f"HostPool.{name}: expected a Tensor, got 3"):
        view(3)
    for tensor in (torch.zeros(3), torch.zeros(3, device=DEVICE), other.empty(3), other.device_view(other.empty(3))):
        with pytest.raises(ValueError, match="expected a tensor in the memory of pool 'host_pool', got one"):
            view(tensor)
    with pytest.raises(ValueError, match=r"expected a tensor on the CPU or npu:0, got meta"):
        view(torch.zeros(3, device="meta"))
    with pytest.raises(TypeError, match="lazy conjugation"):
        view(pool.empty(3, dtype=torch.complex64).conj())
    with pytest.raises(TypeError, match="expected a plain strided tensor"):
        view(torch.zeros(3, 3).to_sparse())


def test_what_needs_a_device_says_so():
    pool = torch_offload.HostPool(MIB)
    tensor = pool.empty(3)
    assert pool.host_view(tensor) is tensor
    with pytest.raises(ValueError, match=r"HostPool.device_view: expected a pool made with device='npu:<number>'"):
        pool.device_view(tensor)
    with pytest.raises(ValueError, match=r"HostPool.use: expected a pool made with device='npu:<number>'"), pool.use():
        pass


# The end, in any order.


@own_process()
def test_the_end_in_every_order():
    for order in (["pool", "tensor", "view"], ["tensor", "view", "pool"], ["view", "pool", "tensor"]):
        pool = torch_offload.HostPool(MIB, device="npu:0")
        tensor = pool.empty(1000)
        held = {"pool": pool, "tensor": tensor, "view": pool.device_view(tensor)}
        del pool, tensor
        for number, name in enumerate(order):
            assert sim_cann.live_registrations() == 1, (order, number)
            if name == "pool":
                held[name].close()
            del held[name]
        assert sim_cann.live_registrations() == 0, order


@own_process(SIM_DELAY_US=200_000)
def test_the_memory_is_unregistered_after_the_copy():
    pool = torch_offload.HostPool(MIB, device="npu:0")
    source = numbered(pool, 50)
    expected, rows = source.clone(), torch.zeros(50, 64, dtype=torch.int64, device=DEVICE)
    torch.npu.synchronize()
    torch_offload.sparse_copy(rows, source)
    pool.close()
    start = time.monotonic()
    del source, pool
    assert time.monotonic() - start > 0.1  # the end of the pool waits
    assert sim_cann.live_registrations() == 0
    assert torch.equal(rows.cpu(), expected)


@support.simulator
@pytest.mark.parametrize("queue", [0, 1])
def test_the_end_of_the_process(queue):
    own_process(TASK_QUEUE_ENABLE=queue, SIM_DELAY_US=20_000, exit_code=7)(ends_with_everything_alive)()


def ends_with_everything_alive():
    import atexit
    import builtins

    pool = torch_offload.HostPool(64 * MIB, device="npu:0")
    source, rows = numbered(pool, 50), torch.zeros(50, 64, dtype=torch.int64, device=DEVICE)
    with pool.use():
        served = torch.empty(1000, device="npu")
    cycle = [pool, source, pool.device_view(source), pool.host_view(served)]
    cycle.append(cycle)
    builtins.kept = (pool, source, rows, served, cycle)
    atexit.register(lambda: torch_offload.sparse_copy(rows, source))  # before the runtime goes down
    for _ in range(10):
        torch_offload.sparse_copy(rows, source)
    raise SystemExit(7)


@own_process()
def test_a_forked_child_leaves_the_device_alone():
    import os

    pool = torch_offload.HostPool(MIB, device="npu:0")
    tensor = pool.empty(100).fill_(4)
    torch.npu.synchronize()
    before = dict(sim_cann.counters())
    child = os.fork()
    if child == 0:
        ok = bool((tensor == 4).all())
        del tensor, pool
        os._exit(0 if ok else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert sim_cann.counters() == before
    assert pool.stats().used == 448
