# SPDX-License-Identifier: Apache-2.0
"""What the device records, where the CPU would raise: nothing is written astray, and the host can ask."""

import npu_support as support
import pytest
import torch
from npu_support import DEVICE, own_process

import torch_offload
from torch_offload import SparseCopyStatus


@pytest.fixture(autouse=True)
def device(npu):
    return npu


def run(dst_index, src_index, count=None, *, rows=(8, 12), dtype=torch.int64):
    """Copies into an array of -1; returns it."""
    src = torch.arange(rows[1] * 40).reshape(rows[1], 40).to(DEVICE)
    dst = torch.full((rows[0], 40), -1, device=DEVICE)
    table = lambda values: None if values is None else torch.tensor(values, dtype=dtype).to(DEVICE)  # noqa: E731
    count = None if count is None else torch.tensor(count).to(DEVICE)
    torch_offload.sparse_copy(dst, src, table(dst_index), table(src_index), count=count)
    return dst.cpu()


def test_copied_and_skipped():
    run([0, -1, 2, 3], [1, 5, -7, 4])
    assert torch_offload.status(DEVICE) == SparseCopyStatus(copied=2, skipped=2, out_of_range=0, first_bad=-1)
    torch_offload.check_status(DEVICE)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_out_of_range_rows_are_not_written(dtype):
    got = run([0, 8, 2, 3], [1, 5, 12, 2**31 - 1], dtype=dtype)
    assert torch.equal(got[0], torch.arange(40, 80))
    assert (got[1:] == -1).all()
    assert torch_offload.status(DEVICE) == SparseCopyStatus(1, 0, 3, 1)
    with pytest.raises(IndexError, match=r"below the row counts on npu:0, got 3 beyond them, the first at position 1"):
        torch_offload.check_status(DEVICE)


def test_large_values_do_not_wrap_around():
    got = run([0, 1, 2, 3], [2**62, 2**63 - 1, 2**32, 2**40])
    assert (got == -1).all()
    assert torch_offload.status(DEVICE) == SparseCopyStatus(0, 0, 4, 0)


def test_a_negative_side_skips_whatever_the_other_says():
    run([-1, 99], [99, -1])
    assert torch_offload.status(DEVICE) == SparseCopyStatus(0, 2, 0, -1)


def test_the_smallest_position_is_kept():
    run([0, 1, 9, 9], [0, 0, 0, 0])
    run([0, 9], [0, 0])
    run([9] * 4, [0] * 4, [0])
    assert torch_offload.status(DEVICE) == SparseCopyStatus(3, 0, 3, 1)


@pytest.mark.parametrize(("count", "taken"), [(5, 4), (-1, 0), (2**40, 4), (-(2**40), 0)])
def test_count_is_clamped_and_recorded(count, taken):
    got = run([0, 1, 2, 3], [0, 1, 2, 3], [count])
    assert (got[:taken] >= 0).all()
    assert (got[taken:] == -1).all()
    assert torch_offload.status(DEVICE) == SparseCopyStatus(taken, 0, 0, -1, clamped_counts=1, clamped_count=count)
    with pytest.raises(ValueError, match=rf"count to be in \[0, n\] on npu:0, got 1 counts outside .* such as {count}"):
        torch_offload.check_status(DEVICE)


def test_an_index_out_of_range_comes_before_a_clamped_count():
    run([0, 9], [0, 0], [3])
    with pytest.raises(IndexError, match=r"got 1 beyond them, the first at position 1 .*and 1 counts outside"):
        torch_offload.check_status(DEVICE)


def test_reset():
    run([0, 9], [0, 0], [3])
    torch_offload.reset_status(DEVICE)
    assert torch_offload.status(DEVICE) == SparseCopyStatus(0, 0, 0, -1)
    torch_offload.check_status(DEVICE)
    run([0], [0])
    assert torch_offload.status(DEVICE).copied == 1


@support.simulator
@pytest.mark.parametrize("n", [1, 47, 1000, 5000])
def test_all_cores_are_summed(n):
    index = torch.arange(n)
    index[n // 2] = 10_000
    src = torch.zeros(n, 256, dtype=torch.int64, device=DEVICE)
    torch_offload.sparse_copy(torch.zeros_like(src), src, src_index=index.to(DEVICE))
    assert torch_offload.status(DEVICE) == SparseCopyStatus(n - 1, 0, 1, n // 2)


def test_streams_are_summed():
    streams = [torch.npu.Stream() for _ in range(5)]
    for stream in streams:
        with torch.npu.stream(stream):
            run([0, 9], [0, 0])
    assert torch_offload.status(DEVICE) == SparseCopyStatus(5, 0, 5, 1)


def test_it_waits_for_what_is_under_way():
    src = torch.zeros(64, 1 << 14, device=DEVICE)
    for _ in range(5):
        torch_offload.sparse_copy(torch.empty_like(src), src)
    assert torch_offload.status(DEVICE).copied == 5 * 64


@pytest.mark.parametrize("name", ["npu", "npu:0", 0, torch.device("npu"), torch.device("npu", 0)], ids=repr)
def test_ways_to_name_the_device(name):
    run([0], [0])
    assert torch_offload.status(name).copied == 1
    torch_offload.check_status(name)
    torch_offload.reset_status(name)
    assert torch_offload.status(name).copied == 0


def test_on_the_cpu_nothing_is_recorded():
    dst = torch.zeros(3, 2)
    torch_offload.sparse_copy(dst, torch.ones(3, 2))
    assert torch_offload.status("cpu") == SparseCopyStatus(0, 0, 0, -1)
    torch_offload.check_status(dst.device)
    torch_offload.reset_status("cpu")


@pytest.mark.parametrize("function", ["status", "check_status", "reset_status"])
def test_other_devices(function):
    with pytest.raises(ValueError, match="expected device to be an NPU or the CPU, got 'meta'"):
        getattr(torch_offload, function)("meta")
    with pytest.raises(ValueError, match="expected device to be one of 1 NPUs, got 'npu:7'"):
        getattr(torch_offload, function)("npu:7")


@own_process(SIM_DEVICES=2)
def test_each_device_has_its_own():
    run([0, 9], [0, 0])
    assert torch_offload.status("npu:0") == SparseCopyStatus(1, 0, 1, 1)
    assert torch_offload.status("npu:1") == SparseCopyStatus(0, 0, 0, -1)
    torch_offload.reset_status("npu:1")
    assert torch_offload.status("npu:0").out_of_range == 1
    with torch.npu.device(1):
        torch_offload.sparse_copy(*(torch.zeros(3, 3, device="npu") for _ in range(2)))
        assert torch_offload.status("npu").copied == 3


@own_process()
def test_records_cost_no_memory_per_call():
    src, dst = torch.zeros(9, 9, device=DEVICE), torch.zeros(9, 9, device=DEVICE)
    torch_offload.sparse_copy(dst, src)
    torch.npu.synchronize()
    before = support.sim_cann.live_device_bytes(0)
    for _ in range(50):
        torch_offload.sparse_copy(dst, src)
    torch.npu.synchronize()
    assert support.sim_cann.live_device_bytes(0) == before
