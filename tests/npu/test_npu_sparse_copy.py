# SPDX-License-Identifier: Apache-2.0
"""The contract of sparse_copy on NPU tensors: the cases of the CPU against the same reference, byte for byte."""

import os

import npu_support as support
import pytest
import torch
from cases import CASES, Builder, by_name
from npu_support import DEVICE, ORDERS, RegisteredMemory, check, host_rows, on_device, own_process, simulated_kernels

import torch_offload

ids = lambda case: case.name  # noqa: E731
ENTRIES = [0, 1, 47, 48, 49, 97, 4096, 70_000]


@pytest.fixture(autouse=True)
def repeated_rows_are_allowed(npu):
    with simulated_kernels(allow_same_writes=1):
        yield


@pytest.mark.parametrize("case", CASES, ids=ids)
def test_device_to_device(case):
    check(case.make)


@pytest.mark.parametrize("which", ["src", "dst", "both"])
@pytest.mark.parametrize("case", CASES, ids=ids)
def test_rows_in_registered_host_memory(case, which, registered):
    check(case.make, lambda sample: host_rows(sample, registered, which))


def test_indices_and_count_in_registered_host_memory(registered):
    src = torch.arange(40 * 16).reshape(40, 16)
    dst = torch.zeros(10, 16, dtype=torch.int64, device=DEVICE)
    place = lambda t: registered.copy_of(t.view(torch.uint8)).view(t.dtype)  # noqa: E731
    index, count = place(torch.tensor([5, 39, 0, 99])), place(torch.tensor([3]))
    torch_offload.sparse_copy(dst, src.to(DEVICE), src_index=index, count=count)
    assert torch.equal(dst.cpu()[:3], src[[5, 39, 0]])
    assert not dst.cpu()[3:].any()


def scattered(n, *, shape=(6,), garbage=0, dtype=torch.int64):
    """`n` entries that count, `garbage` random numbers behind them, and a count if there are any."""
    b = Builder(seed=n + 1)
    rows = n + 13
    tail = torch.randint(-(2**62), 2**62, (garbage,), generator=b.generator).to(dtype).tolist()
    dst_index, src_index = b.index(b.shuffled(rows, n) + tail, dtype), b.index(b.drawn(rows, n) + tail, dtype)
    count = b.index([n], torch.int32) if garbage else None
    return b.sample([b.rows(rows, shape)], [b.rows(rows, shape)], dst_index, src_index, count=count)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("garbage", [0, 50])
@pytest.mark.parametrize("n", ENTRIES)
def test_numbers_of_entries(n, garbage, dtype):
    check(lambda: scattered(n, garbage=garbage, dtype=dtype))


def all_cases(*, orders, cases=CASES, entries=ENTRIES[:-1]):
    """What a process of its own runs; also with the source in host memory."""
    memory = RegisteredMemory()
    for name in orders:
        order, seed = ORDERS[name]
        with simulated_kernels(order=order, seed=seed, allow_same_writes=1):
            for case in cases:
                check(case.make)
            check(by_name("two_components").make, lambda sample: host_rows(sample, memory))
            for n in entries:
                check(lambda n=n: scattered(n, garbage=9))
    memory.close()


@support.simulator
@pytest.mark.parametrize("cores", [1, 2, 24, 40, 48, 64])
def test_numbers_of_cores(cores):
    own_process(SIM_VECTOR_CORES=64, TORCH_OFFLOAD_NPU_CORES=cores)(all_cases_in_two_orders)()


def all_cases_in_two_orders():
    all_cases(orders=["latest", "earliest"])


@support.simulator
@pytest.mark.parametrize("order", ORDERS)
def test_orders_of_dma(order):
    all_cases(orders=[order], entries=[97, 4096])


def test_rows_of_many_sizes():
    for size in (1, 2, 3, 31, 32, 33, 63, 64, 65, 511, 512, 513, 1152, 4096, 100_003):
        check(lambda size=size: scattered(29, shape=(size,)))


def test_183_components_are_one_launch():
    b = Builder(seed=5)
    dst = [b.rows(12, (1 + c % 7,)) for c in range(183)]
    src = [b.rows(20, (1 + c % 7,)) for c in range(183)]
    tables = b.index(b.shuffled(12, 9)), b.index(b.drawn(20, 9))
    launches = launches_of(lambda: check(lambda: b.sample([*dst], [*src], *tables), lambda s: on_device(clone(s))))
    assert launches in (None, 1)


def test_more_components_than_one_launch_carries():
    def make():
        b = Builder(seed=6)
        dst, src = [b.rows(5, (2,)) for _ in range(300)], [b.rows(9, (2,)) for _ in range(300)]
        return b.sample(dst, src, b.index([4, 0, -1]), b.index([8, 1, 2]))

    torch_offload.reset_status(DEVICE)
    assert launches_of(lambda: check(make)) in (None, 2)
    found = torch_offload.status(DEVICE)
    assert (found.copied, found.skipped) == (2, 1)  # an entry counts once, whatever the number of launches


def test_destinations_that_share_bytes_are_written_in_order():
    def make():
        b = Builder(seed=7)
        flat = b.rows(1, (100,))[0]
        dst = [flat[:40].view(5, 8), flat[4:44].view(5, 8), flat[8:48].view(5, 8)]
        return b.sample(dst, [b.rows(9, (8,)) for _ in dst], b.index([0, 3, 4]), b.index([8, 1, 2]))

    assert launches_of(lambda: check(make)) in (None, 3)


def test_rows_beyond_4_gib():
    with support.much_memory():
        copy_far_rows()


def copy_far_rows():
    rows = (1 << 32) // 512 + 5
    src = torch.empty(rows, 512, dtype=torch.uint8, device=DEVICE)
    dst = torch.empty(rows, 512, dtype=torch.uint8, device=DEVICE)
    near = torch.randint(0, 256, (3, 512), dtype=torch.uint8)
    of, to = [rows - 1, 0, (1 << 31) // 512], [0, rows - 2, (1 << 32) // 512]
    for row, data in zip(of, near, strict=True):
        src[row].copy_(data)
    torch_offload.sparse_copy(dst, src, torch.tensor(to).to(DEVICE), torch.tensor(of).to(DEVICE))
    for row, data in zip(to, near, strict=True):
        assert torch.equal(dst[row].cpu(), data)


def test_strides_beyond_2_gib(registered):
    """Layers of a large pool: little memory, far apart."""
    host = torch.randint(0, 256, (3, 64), dtype=torch.uint8)
    src = registered.copy_of(host.flatten()).view(3, 64)
    with support.much_memory():
        copy_to_far_layers(src, host)


def copy_to_far_layers(src, host):
    stride = (1 << 31) + 4096
    storage = torch.empty(3 * stride, dtype=torch.uint8, device=DEVICE)
    pool = storage.as_strided((3, 64), (stride, 1), 17)
    torch_offload.sparse_copy(pool, src, torch.tensor([2, 0, 1]).to(DEVICE), torch.tensor([0, 1, 2]).to(DEVICE))
    assert torch.equal(pool[2].cpu(), host[0])
    assert torch.equal(pool[1].cpu(), host[2])


def test_fixed_arity_operators():
    for arity in range(1, 5):
        src = [torch.arange(40).reshape(10, 4) + 100 * c for c in range(arity)]
        dst = [torch.zeros(5, 4, dtype=torch.int64, device=DEVICE) for _ in range(arity)]
        op = getattr(torch.ops.offload, f"_sparse_copy_{arity}")
        op(*dst, *(s.to(DEVICE) for s in src), None, torch.tensor([9, 3]).to(DEVICE), None)
        for d, s in zip(dst, src, strict=True):
            assert torch.equal(d.cpu()[:2], s[[9, 3]])


def test_version_counters_are_bumped():
    dst = torch.zeros(3, 4, device=DEVICE)
    before = dst._version
    torch_offload.sparse_copy(dst, torch.ones(3, 4, device=DEVICE))
    assert dst._version == before + 1


@support.simulator
@pytest.mark.parametrize("soc", ["Ascend910_9392", "Ascend950PR_9599"])
def test_other_chips(soc):
    ub = 253952 if soc.startswith("Ascend950") else 196608
    own_process(SIM_SOC=soc, ASCENDC_SIM_UB_BYTES=ub)(all_cases_once)()


@support.simulator
@pytest.mark.parametrize("version", ["8.1.RC1", "8.3.RC1", "9.0.0"])
def test_other_versions(version):
    own_process(SIM_CANN_VERSION=version)(all_cases_once)()


def all_cases_once():
    all_cases(orders=["latest"], entries=[97])
    assert os.environ["TORCH_OFFLOAD_NPU_KERNEL"]


def clone(sample):
    return support.Placed(sample, lambda role, t: t.clone()).sample


def launches_of(call):
    """Kernels launched by the call, None on hardware."""
    if not support.ON_SIMULATOR:
        call()
        return None
    with support.sim_cann.counting() as counted:
        call()
    return counted["kernel.sparse_copy.runs"]
