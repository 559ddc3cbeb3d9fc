# SPDX-License-Identifier: Apache-2.0
"""The contract of sparse_copy_ptrs on an NPU: the cases of the CPU against the same reference, byte for byte."""

import os

import npu_support as support
import pytest
import torch
from cases import GUARD_BYTES, Builder
from npu_support import DEVICE, ORDERS, RegisteredMemory, own_process
from pointer_cases import PTR_CASES, ranges, sample_of
from pointer_support import KINDS, PlacedPointers, check, check_in_orders

import torch_offload

KIB = 1 << 10
SOME_ORDERS = {name: ORDERS[name] for name in ("latest", "earliest", "random1")}


@pytest.fixture(autouse=True)
def device(npu):
    return npu


def entries(lengths, seed=1, *, count=None, sizes=torch.int64, addresses=torch.int64):
    b = Builder(seed=seed)
    return sample_of(b, *ranges(b, lengths), lengths, count=count, sizes=sizes, addresses=addresses)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", PTR_CASES, ids=lambda case: case.name)
def test_case(case, kind, registered):
    check(case.make(), kind, registered)


MIXTURES = {
    "odd_number": [100] * 97,
    "even_number": [100] * 96,
    "one_less_than_cores": [1 + i % 90 for i in range(47)],
    "as_many_as_cores": [1 + i % 90 for i in range(48)],
    "one_more_than_cores": [1 + i % 90 for i in range(49)],
    "one": [3],
    "two": [70_000, 1],
    "keys_and_values": [1024, 128] * 200,
    "key_no_multiple_of_32": [656, 132] * 49,
    "most_bytes_first": [1_500_000, *[64] * 60],
    "most_bytes_last": [*[64] * 60, 1_500_001],
    "most_bytes_in_between": [*[7] * 30, 999_999, *[7] * 31],
    "zeros_between": [0, 400, 0] * 70,
    "nothing_but_zeros": [0] * 60,
    "many": [1 + i * 613 % 3000 for i in range(1500)],
}


@pytest.mark.parametrize("sizes", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("kind", ["host_to_device", "device_to_host"])
@pytest.mark.parametrize("mixture", MIXTURES)
def test_mixture(mixture, kind, sizes, registered):
    check(entries(MIXTURES[mixture], sizes=sizes), kind, registered)


@pytest.mark.parametrize("value", [1, 128, 4096])
@pytest.mark.parametrize("around", [64, 88, 176, 192, 1024])
def test_lengths_around_the_buffers(around, value, registered):
    """Keys of about so many KiB beside short values: on 48 cores, and on 2, where several share a buffer."""
    for key in (around * KIB - 1, around * KIB, around * KIB + 1, around * KIB + 33):
        check(entries([key, value] * 3, seed=key), "host_to_device", registered)
    check(entries([around * KIB, around * KIB - value] * 2), "device_to_host", registered)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("number", [0, 1, 2, 4096, 70_000, 140_000])
def test_numbers_of_entries(number, dtype):
    """Against an indexed copy in torch, because the reference is slow with so many."""
    b = Builder(seed=number + 3)
    for _ in range(2):
        b.rows(number, (8,))
    to, of = b.index(b.shuffled(number)), b.index(b.drawn(max(1, number), number))
    want = b.buffers[0].clone()
    rows = slice(GUARD_BYTES, GUARD_BYTES + 8 * number)
    want[rows].view(number, 8)[to] = b.buffers[1][rows].view(number, 8)[of]
    buffers = [buffer.to(DEVICE) for buffer in b.buffers]
    src_ptrs = (buffers[1].data_ptr() + GUARD_BYTES + 8 * of).to(DEVICE)
    dst_ptrs = (buffers[0].data_ptr() + GUARD_BYTES + 8 * to).to(DEVICE)
    lengths = torch.full((number,), 8, dtype=dtype).to(DEVICE)
    status = torch_offload.sparse_copy_ptrs(src_ptrs, dst_ptrs, lengths, torch.tensor([number]).to(DEVICE))
    assert status.device == DEVICE
    assert status.cpu().tolist() == [number, 0, 0, -1]
    assert torch.equal(buffers[0].cpu(), want)


@pytest.mark.parametrize("places", [[0], [8], [2, 3, 7], list(range(9))], ids=str)
@pytest.mark.parametrize("bad", ["negative", "least", "null_source", "null_destination", "all"])
def test_refused_entries(bad, places):
    b = Builder(seed=11)
    src, dst = ranges(b, [33] * 9)
    lengths = [33] * 9
    for place in places:
        lengths[place] = {"negative": -1, "least": -(2**63), "all": -5}.get(bad, 33)
        src[place] = 0 if bad in ("null_source", "all") else src[place]
        dst[place] = 0 if bad in ("null_destination", "all") else dst[place]
    check(sample_of(b, src, dst, lengths))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize(("count", "taken"), [(0, 0), (1, 1), (60, 60), (61, 61), (62, 61), (2**31 - 1, 61), (-1, 0)])
def test_count_is_clamped(count, taken, dtype):
    sample = entries([1 + i for i in range(61)], count=torch.tensor([[count]], dtype=dtype))
    right = entries([1 + i for i in range(61)], count=torch.tensor(taken))

    def run(placed):
        placed.args[3] = sample.count.to(DEVICE)
        placed.run()
        placed.args[3] = right.count.to(DEVICE)

    check(right, run=run)


def test_what_stands_behind_count_is_never_looked_at():
    b = Builder(seed=12)
    src, dst = ranges(b, [9] * 50)
    garbage = [1, -1, 2**62]
    lengths = [9] * 50 + [1 << 50, -3, 9]
    check(sample_of(b, src + garbage, dst + garbage, lengths, count=torch.tensor([50], dtype=torch.int32)))


@pytest.mark.parametrize("stride", [1, 2, 3, 20])
def test_strided_tables_and_status(stride):
    lengths = [9, 17, 0, 65, 3, 4000, 1] * 20
    sample = entries(lengths)
    spread = lambda t: torch.stack([t, *[torch.full_like(t, 5)] * (stride - 1)], 1).flatten()[::stride]  # noqa: E731
    sample.src_ptrs, sample.dst_ptrs, sample.lengths = map(spread, (sample.src_ptrs, sample.dst_ptrs, sample.lengths))
    numbers = torch.full((1 + 4 * stride,), -99)
    sample.status = numbers[1 : 2 + 3 * stride : stride]

    def run(placed):
        placed.run()
        torch.npu.synchronize()
        whole = placed.args[4].as_strided((4 * stride,), (1,), 1).cpu().view(4, stride)
        assert (whole[:, 1:] == -99).all()

    check(sample, run=run)


def test_one_source_for_all():
    sample = entries([33] * 60)
    sample.src_ptrs = sample.src_ptrs[2:3].expand(60)
    sample.lengths = torch.tensor(33, dtype=torch.int32).expand(60)
    check(sample)


def test_status_tells_of_one_call():
    sample = entries([5, 0, 6])
    check(sample, run=lambda placed: [placed.run() for _ in range(3)])


def test_calls_in_a_row_share_no_record():
    """The status of a call is summed before the next one overwrites the records, and after its own copy."""
    samples = [entries([100] * n, seed=n) for n in (3, 700, 0, 48)]
    placed = [PlacedPointers(sample) for sample in samples]
    for one in placed:
        one.run()
    torch.npu.synchronize()
    assert [one.args[4].cpu()[0].item() for one in placed] == [3, 700, 0, 48]
    assert torch_offload.status(DEVICE).copied == 0  # that counts the entries of sparse_copy


def test_streams_at_the_same_time():
    samples = [entries([3000] * 40, seed=seed) for seed in range(4)]
    placed = [PlacedPointers(sample) for sample in samples]
    torch.npu.synchronize()
    streams = [torch.npu.Stream() for _ in placed]
    for _ in range(5):
        for one, stream in zip(placed, streams, strict=True):
            with torch.npu.stream(stream):
                one.run()
    torch.npu.synchronize()
    assert [one.args[4].cpu().tolist() for one in placed] == [[40, 0, 0, -1]] * 4


def test_version_of_the_status_is_bumped():
    sample = PlacedPointers(entries([4]))
    before = sample.args[4]._version
    sample.run()
    assert sample.args[4]._version == before + 1


# Cores, orders of DMA, chips, versions of CANN.


def all_cases():
    memory = RegisteredMemory()
    for case in PTR_CASES:
        check_in_orders(case.make(), SOME_ORDERS, kind="host_to_device", memory=memory)
    for mixture in ("keys_and_values", "most_bytes_in_between", "zeros_between"):
        check_in_orders(entries(MIXTURES[mixture]), SOME_ORDERS)
    for key in (64 * KIB, 192 * KIB + 1):
        check_in_orders(entries([key, 128] * 3), SOME_ORDERS, kind="device_to_host", memory=memory)
    memory.close()


def all_cases_on_the_cores():
    all_cases()
    torch_offload.sparse_copy(torch.zeros(4096, 256, device=DEVICE), torch.zeros(4096, 256, device=DEVICE))
    assert support.cores_of_the_last_launch() == int(os.environ["TORCH_OFFLOAD_NPU_CORES"])


@support.simulator
@pytest.mark.parametrize("cores", [1, 2, 8, 24, 40, 48, 64])
def test_numbers_of_cores(cores):
    own_process(SIM_VECTOR_CORES=64, TORCH_OFFLOAD_NPU_CORES=cores)(all_cases_on_the_cores)()


@support.simulator
@pytest.mark.parametrize("order", ORDERS)
def test_orders_of_dma(order, registered):
    orders = {order: ORDERS[order]}
    for case in PTR_CASES:
        check_in_orders(case.make(), orders, kind="host_to_device", memory=registered)
    for mixture in ("many", "key_no_multiple_of_32", "most_bytes_first"):
        check_in_orders(entries(MIXTURES[mixture]), orders, kind="device_to_host", memory=registered)


@support.simulator
@pytest.mark.parametrize("soc", ["Ascend910_9392", "Ascend950PR_9599"])
def test_other_chips(soc):
    ub = 253952 if soc.startswith("Ascend950") else 196608
    own_process(SIM_SOC=soc, ASCENDC_SIM_UB_BYTES=ub)(all_cases)()


@support.simulator
@pytest.mark.parametrize("version", ["8.1.RC1", "8.3.RC1", "9.0.0"])
def test_other_versions(version):
    own_process(SIM_CANN_VERSION=version)(device_cases)()


def device_cases():
    for case in PTR_CASES:
        check(case.make())
