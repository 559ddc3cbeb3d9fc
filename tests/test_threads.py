# SPDX-License-Identifier: Apache-2.0
"""The result of sparse_copy is the same for any number of threads; of entries with one destination the last wins."""

import threading

import pytest
import torch
from cases import Builder, Sample
from checks import call_wrapper, check_sparse_copy, num_threads, same_bytes

import torch_offload

THREADS = [1, 2, 3, 5, 16]

# Row bytes and entries: enough of them for sixteen threads to have work.
SIZES = [(1, 1_100_000), (15, 90_000), (132, 9_000), (656, 2_000), (4097, 300), (65536, 20), (300_000, 7)]


def destinations(b: Builder, order: str, rows: int, entries: int) -> list[int]:
    if order == "increasing":
        return sorted(b.shuffled(rows, entries))
    if order == "shuffled":
        return b.shuffled(rows, entries)
    if order == "repeated":
        return b.drawn(1 + rows // 3, entries)
    values = sorted(b.drawn(rows, entries))  # not strictly increasing: neighbours repeat
    return values


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("order", ["increasing", "shuffled", "repeated", "neighbours_repeat"])
@pytest.mark.parametrize(("row_bytes", "entries"), SIZES[1:])
def test_order_of_destinations(row_bytes, entries, order, threads):
    def make() -> Sample:
        b = Builder(seed=row_bytes)
        rows = entries + entries // 8 + 1
        dst, src = b.rows(rows, (row_bytes,), offset=3, gap=5), b.rows(61, (row_bytes,), offset=1)
        dst_index = b.index(destinations(b, order, rows, entries))
        dst_index[entries // 2] = -1
        return b.sample([dst], [src], dst_index, b.index(b.drawn(61, entries)))

    with num_threads(threads):
        check_sparse_copy(make)


@pytest.mark.parametrize("threads", [2, 16])
@pytest.mark.parametrize("order", ["increasing", "repeated"])
def test_rows_of_one_byte(order, threads):
    row_bytes, entries = SIZES[0]

    def make() -> Sample:
        b = Builder(seed=4)
        dst, src = b.rows(entries, (row_bytes,)), b.rows(251, (row_bytes,))
        dst_index = b.index(destinations(b, order, entries, entries), torch.int32)
        return b.sample([dst], [src], dst_index, b.index(b.drawn(251, entries), torch.int32))

    with num_threads(threads):
        check_sparse_copy(make)


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("order", ["increasing", "repeated"])
def test_components_of_unequal_rows(order, threads):
    """A large row is cut into columns; its small and empty neighbours are cut with it."""
    shapes = [(200_000,), (1,), (63,), (0,), (65,), (4097,)]

    def make() -> Sample:
        b = Builder(seed=5)
        dst, src = [b.rows(12, shape, offset=1) for shape in shapes], [b.rows(9, shape) for shape in shapes]
        return b.sample(dst, src, b.index(destinations(b, order, 12, 10)), b.index(b.drawn(9, 10)))

    with num_threads(threads):
        check_sparse_copy(make)


@pytest.mark.parametrize("threads", THREADS)
def test_count_below_many_entries(threads):
    def make() -> Sample:
        b = Builder(seed=6)
        dst_index, src_index = b.shuffled(9000), b.drawn(500, 9000)
        dst_index[7001:] = [2**40] * 1999
        dst, src = b.rows(9000, (132,)), b.rows(500, (132,))
        return b.sample([dst], [src], b.index(dst_index), b.index(src_index), b.index([7001]))

    with num_threads(threads):
        check_sparse_copy(make)


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize(("row_bytes", "repeats"), [(17, 20), (1152, 40), (65536, 40), ((1 << 20), 10)])
def test_last_of_constant_rows_wins_in_full(row_bytes, repeats, threads):
    """64 sources of distinct constant value into one row: a mix of two would show."""
    src = torch.arange(64, dtype=torch.uint8)[:, None].repeat(1, row_bytes)
    dst = torch.full((3, row_bytes), 255, dtype=torch.uint8)
    entries = max(64, (1 << 20) // row_bytes // 64 * 64)
    dst_index = torch.ones(entries, dtype=torch.int64)
    with num_threads(threads):
        for repeat in range(repeats):
            src_index = (torch.arange(entries) + repeat) % 64
            torch_offload.sparse_copy(dst, src, dst_index, src_index)
            assert (dst[1] == src_index[-1]).all()
    assert (dst[0] == 255).all()
    assert (dst[2] == 255).all()


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("row_bytes", [132, 65537, 1 << 20])
def test_sources_that_differ_in_the_last_byte(row_bytes, threads):
    src = torch.zeros(64, row_bytes, dtype=torch.uint8)
    src[:, -1] = torch.arange(64)
    dst = torch.full((1, row_bytes), 255, dtype=torch.uint8)
    with num_threads(threads):
        for repeat in range(5):
            order = torch.arange(64).roll(repeat)
            torch_offload.sparse_copy(dst, src, torch.zeros(64, dtype=torch.int32), order)
            assert torch.equal(dst[0], src[order[-1]])


@pytest.mark.parametrize("threads", [1, 16])
def test_index_out_of_range_far_behind(threads):
    """The last of many entries is checked before the first row is written, whatever the threads do."""
    b = Builder(seed=7)
    dst_index = b.shuffled(20_000)
    dst_index[-1] = 20_000
    sample = b.sample([b.rows(20_000, (132,))], [b.rows(9, (132,))], b.index(dst_index), b.index(b.drawn(9, 20_000)))
    before = sample.buffers[0].clone()
    with num_threads(threads), pytest.raises(IndexError, match=r"dst_index\[19999\] .* got 20000"):
        call_wrapper(sample)
    assert torch.equal(sample.buffers[0], before)


def test_calls_from_several_threads():
    """Calls at the same time, into destinations of one storage that share no bytes."""

    def make() -> list[Sample]:
        b = Builder(seed=8)
        dst, src = b.rows(800, (8, 656)), b.rows(500, (656,))
        return [
            b.sample([dst[:, t]], [src], b.index(b.shuffled(800, 700)), b.index(b.drawn(500, 700))) for t in range(8)
        ]

    got, want = make(), make()
    with num_threads(3):
        threads = [threading.Thread(target=lambda s=s: [call_wrapper(s) for _ in range(20)]) for s in got]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=60)
            assert not thread.is_alive()
    for sample in want:
        sample.dst[0][sample.dst_index] = sample.src[0][sample.src_index]
    assert same_bytes(got[0].buffers[0], want[0].buffers[0])
