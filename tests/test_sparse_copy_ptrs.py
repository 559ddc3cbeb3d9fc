# SPDX-License-Identifier: Apache-2.0
"""sparse_copy_ptrs moves exactly the byte ranges of its tables, and says truthfully what it did."""

import random

import pytest
import reference
import torch
from cases import GUARD_BYTES, Builder
from checks import num_threads, same_bytes, unchanged
from pointer_cases import PTR_CASES, PtrSample, ranges, sample_of

import torch_offload

THREADS = [1, 2, 3, 5, 16]


def check(sample: PtrSample) -> None:
    """Runs the operator on a sample; memory and status must be what the reference says."""
    want, status = reference.sparse_copy_ptrs(sample.buffers, *sample.tables())
    with unchanged(*sample.tables()):
        returned = torch_offload.sparse_copy_ptrs(*sample.tables(), status=sample.status)
    assert returned is sample.status
    assert sample.status.tolist() == status
    for got, expected in zip(sample.buffers, want, strict=True):
        assert same_bytes(got, expected)


@pytest.mark.parametrize("threads", [1, 2, 16])
@pytest.mark.parametrize("case", PTR_CASES, ids=lambda case: case.name)
def test_case(case, threads):
    with num_threads(threads):
        check(case.make())


@pytest.mark.parametrize("offset", [0, 1, 3, 5, 7])
@pytest.mark.parametrize("length", [1, 2, 3, 15, 17, 63, 65, 132, 584, 656, 1152, 4097, 65536, (1 << 20) + 1])
def test_length_and_offset(length, offset):
    b = Builder(seed=length)
    lengths = [length] * 5
    src, dst = ranges(b, lengths, gap=offset)
    check(sample_of(b, src, dst, lengths))


@pytest.mark.parametrize("entries", [1, 2, 3, 5, 65535, 65536, 65537, 300_000])
def test_number_of_entries(entries):
    """Against an indexed copy in torch, because the reference is slow with so many."""
    b = Builder(seed=entries)
    dst, src = b.rows(entries, (8,)), b.rows(entries, (8,))
    to, of = b.index(b.shuffled(entries)), b.index(b.drawn(entries, entries))
    want = b.buffers[0].clone()
    want[GUARD_BYTES : GUARD_BYTES + 8 * entries].view(entries, 8)[to] = src[of]
    src_ptrs, dst_ptrs = src.data_ptr() + 8 * of, dst.data_ptr() + 8 * to
    lengths = torch.tensor(8, dtype=torch.int32).expand(entries)
    status = torch_offload.sparse_copy_ptrs(src_ptrs, dst_ptrs, lengths, torch.tensor(entries))
    assert status.tolist() == [entries, 0, 0, -1]
    assert torch.equal(b.buffers[0], want)


LENGTHS = {
    "few_large": [1_000_003, 700_001, 65_537],
    "one_holds_most": [5, 64, 3_000_001, 1, 132],
    "as_many_as_threads": [200_000] * 16,
    "keys_and_values": [1024, 128] * 2000,
    "many": [1 + i * 613 % 3000 for i in range(1500)],
    "zeros_between": [0, 4000, 0] * 400,
}


@pytest.mark.parametrize("order", ["increasing", "shuffled"])
@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("kind", LENGTHS)
def test_threads(kind, threads, order):
    b = Builder(seed=7)
    lengths = LENGTHS[kind]
    src, dst = ranges(b, lengths)
    if order == "increasing":
        dst = [b.buffer(2 * GUARD_BYTES + sum(lengths)).data_ptr() + GUARD_BYTES]
        for length in lengths[:-1]:
            dst.append(dst[-1] + length)
    with num_threads(threads):
        check(sample_of(b, src, dst, lengths, sizes=torch.int32))


def overlapping(seed: int, entries: int, longest: int, size: int, *, one_buffer: bool) -> PtrSample:
    """Entries at random places, so that destinations overlap each other and, in one buffer, sources too."""
    rng = random.Random(seed)
    b = Builder(seed=seed)
    target = b.buffer(size)
    source = target if one_buffer else b.buffer(size)
    lengths = [rng.randint(0, longest) for _ in range(entries)]
    src = [source.data_ptr() + rng.randint(0, size - length) for length in lengths]
    dst = [target.data_ptr() + rng.randint(0, size - length) for length in lengths]
    return sample_of(b, src, dst, lengths)


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("one_buffer", [False, True])
@pytest.mark.parametrize(
    ("entries", "longest", "size"), [(40, 300, 2000), (60, 300_000, 2_000_000), (900, 9000, 99_999)]
)
def test_overlapping_entries_are_copied_in_order(entries, longest, size, one_buffer, threads):
    with num_threads(threads):
        for seed in range(4):
            check(overlapping(seed, entries, longest, size, one_buffer=one_buffer))


@pytest.mark.parametrize("threads", [1, 16])
@pytest.mark.parametrize("shared", [1, 2, 100_000, 299_999])
@pytest.mark.parametrize("direction", [-1, 1])
def test_chain_of_entries(direction, shared, threads):
    """Each entry reads what the one before has written, as far as the two share bytes."""
    b = Builder(seed=8)
    buffer = b.buffer(3_000_000)
    length, step = 300_000, 300_000 - shared
    starts = [400_000 + i * step for i in range(7)][::direction]
    src = [buffer.data_ptr() + start for start in starts]
    dst = [buffer.data_ptr() + start + direction * step for start in starts]
    with num_threads(threads):
        check(sample_of(b, src, dst, [length] * 7))


@pytest.mark.parametrize("threads", [1, 16])
@pytest.mark.parametrize("shift", [-100_001, -1, 0, 1, 100_001])
def test_entry_that_overlaps_itself(shift, threads):
    b = Builder(seed=9)
    address = b.buffer(1_500_000).data_ptr() + 200_000
    with num_threads(threads):
        check(sample_of(b, [address], [address + shift], [1_000_000]))


@pytest.mark.parametrize("threads", THREADS)
def test_last_of_equal_destinations_wins_in_full(threads):
    b = Builder(seed=10)
    src, dst = torch.arange(64, dtype=torch.uint8)[:, None].repeat(1, 100_000), b.buffer(100_000)
    with num_threads(threads):
        for repeat in range(20):
            order = torch.arange(64).roll(repeat)
            src_ptrs = src.data_ptr() + 100_000 * order
            dst_ptrs = torch.tensor(dst.data_ptr()).expand(64)
            torch_offload.sparse_copy_ptrs(src_ptrs, dst_ptrs, torch.full((64,), 100_000), torch.tensor(64))
            assert (dst == order[-1]).all()


REFUSALS = {  # entry: source, destination, length; None leaves what is there
    "negative_length": (None, None, -1),
    "least_length": (None, None, -(2**63)),
    "null_source": (0, None, None),
    "null_destination": (None, 0, None),
    "both_null": (0, 0, None),
    "null_and_negative": (0, 0, -5),
}


@pytest.mark.parametrize("places", [[0], [4], [8], [2, 3, 7], list(range(9))], ids=str)
@pytest.mark.parametrize("kind", REFUSALS)
def test_refused_entries(kind, places):
    b = Builder(seed=11)
    table = [*ranges(b, [33] * 9), [33] * 9]
    for place in places:
        for column, value in zip(table, REFUSALS[kind], strict=True):
            column[place] = column[place] if value is None else value
    sample = sample_of(b, *table)
    check(sample)
    assert sample.status.tolist() == [9 - len(places), 0, len(places), places[0]]


def test_null_addresses_of_no_bytes_are_skipped():
    b = Builder(seed=12)
    sample = sample_of(b, [0, 1, -1, *ranges(b, [9])[0]], [0, 0, 0, b.buffer(9).data_ptr()], [0, 0, 0, 9])
    check(sample)
    assert sample.status.tolist() == [1, 3, 0, -1]


@pytest.mark.parametrize("count", [0, 3, 6])
def test_count_is_where_the_status_ends(count):
    b = Builder(seed=13)
    lengths = [9, 0, -1, 17, 5, -3]
    src, dst = ranges(b, [abs(length) for length in lengths])
    sample = sample_of(b, src, dst, lengths, count=torch.tensor([[count]], dtype=torch.int32))
    check(sample)
    assert sample.status.tolist() == {0: [0, 0, 0, -1], 3: [1, 1, 1, 2], 6: [3, 1, 2, 2]}[count]


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_strided_tables(dtype):
    b = Builder(seed=14)
    lengths = [9, 17, 0, 65, 3]
    src, dst = ranges(b, lengths)
    sample = sample_of(b, src, dst, lengths)
    garbage = torch.full((5, 3), 1, dtype=torch.int64)
    for name, stride in (("src_ptrs", 2), ("dst_ptrs", 3)):
        table = getattr(sample, name)
        setattr(sample, name, torch.stack([table, *garbage.t()[: stride - 1]], dim=1).flatten()[::stride])
    sample.lengths = torch.stack([garbage[:, 0], torch.tensor(lengths)], dim=1).to(dtype)[:, 1]
    assert not sample.lengths.is_contiguous()
    check(sample)


def test_one_source_for_all():
    b = Builder(seed=15)
    src, dst = ranges(b, [33] * 6)
    sample = sample_of(b, src, dst, [33] * 6)
    sample.src_ptrs = sample.src_ptrs[2:3].expand(6)
    sample.lengths = torch.tensor(33, dtype=torch.int32).expand(6)
    check(sample)


def test_addresses_above_the_sign_bit_are_not_negative():
    """The table holds them as they come; no entry is refused for it."""
    b = Builder(seed=16)
    src, dst = ranges(b, [5])
    sample = sample_of(b, [2**64 - 4096, *src], [2**64 - 4096, *dst], [0, 5], addresses=torch.uint64)
    check(sample)


def test_status_between_other_numbers():
    b = Builder(seed=17)
    src, dst = ranges(b, [5, 6])
    sample = sample_of(b, src, dst, [5, -6])
    numbers = torch.full((13,), -99)
    sample.status = numbers[2:12:3]
    check(sample)
    assert numbers.tolist() == [-99, -99, 1, -99, -99, 0, -99, -99, 1, -99, -99, 1, -99]


def test_status_is_made_when_none_is_given():
    b = Builder(seed=18)
    sample = sample_of(b, *ranges(b, [5, 6]), [5, 6])
    status = torch_offload.sparse_copy_ptrs(*sample.tables())
    assert status.dtype == torch.int64
    assert status.tolist() == [2, 0, 0, -1]


def test_status_does_not_add_up():
    """It tells of one call, whatever it held before."""
    b = Builder(seed=19)
    sample = sample_of(b, *ranges(b, [5, 6]), [5, 6])
    for _ in range(3):
        check(sample)
