# SPDX-License-Identifier: Apache-2.0
"""Destinations that share bytes with what the call reads are refused, exactly: views that interleave are not."""

import itertools
import random
from contextlib import nullcontext

import pytest
import torch
from cases import Builder, Sample
from checks import ToMeta, call_operator, call_wrapper, check_refused, check_sparse_copy, convert, fake

MESSAGE = r"sparse_copy: expected dst\[0\] not to overlap what the call reads, got bytes shared with src\[0\]$"


def rows_sample(dst_of, src_of, dst_index, src_index) -> Sample:
    b = Builder(seed=61)
    rows = b.rows(12, (32,))
    return b.sample([dst_of(rows)], [src_of(rows)], b.index(dst_index), b.index(src_index))


OVERLAPPING = {
    "swap_two_rows": (lambda t: t, lambda t: t, [3, 7], [7, 3]),
    "cycle_of_three": (lambda t: t, lambda t: t, [1, 2, 3], [2, 3, 1]),
    "shift_by_one": (lambda t: t[1:], lambda t: t[:-1], [0, 1, 2], [0, 1, 2]),
    "rows_that_are_not_touched": (lambda t: t, lambda t: t, [1], [2]),  # the tensors count, not the values
    "nothing_to_copy": (lambda t: t, lambda t: t, [], []),
    "one_common_row": (lambda t: t[:7], lambda t: t[6:], [0], [5]),
    "columns_share_one_byte": (lambda t: t[:, :16], lambda t: t[:, 15:31], [0], [5]),
    "every_other_row_and_all": (lambda t: t[::2, :8], lambda t: t[:, 7:15], [0], [5]),
    "two_strides_that_meet_once": (lambda t: t[::5], lambda t: t[1::3], [0], [1]),
    "half_a_row_later": (lambda t: t[:11], lambda t: t.flatten()[16:-16].view(11, 32), [0], [9]),
    "expanded_source_inside": (lambda t: t, lambda t: t[4:5].expand(20, 32), [0], [9]),
}

DISJOINT = {
    "front_and_back": (lambda t: t[:6], lambda t: t[6:], [0, 5], [5, 0]),
    "columns": (lambda t: t[:, :16], lambda t: t[:, 16:], [0, 11], [11, 0]),
    "columns_and_rows": (lambda t: t[2:9, 16:], lambda t: t[::1, :16], [0, 6], [11, 0]),
    "odd_and_even_rows": (lambda t: t[::2], lambda t: t[1::2], [0, 5], [5, 0]),
    "two_strides_with_a_divisor": (lambda t: t[::4], lambda t: t[1::2], [0, 2], [1, 0]),
    "two_strides_that_do_not_meet": (lambda t: t[::5], lambda t: t[1:4:2], [0, 2], [1, 0]),
    "expanded_source_outside": (lambda t: t[1:], lambda t: t[:1].expand(11, 32), [0, 5], [5, 0]),
    "empty_source_inside": (lambda t: t, lambda t: t[5:5], [], []),
    "no_bytes_inside": (lambda t: t[:, 3:3], lambda t: t[:, 5:5], [0], [5]),
}


@pytest.mark.parametrize("kind", OVERLAPPING)
def test_overlap_is_refused(kind):
    check_refused(rows_sample(*OVERLAPPING[kind]), ValueError, MESSAGE)


@pytest.mark.parametrize("kind", DISJOINT)
def test_views_that_interleave_are_copied(kind):
    check_sparse_copy(lambda: rows_sample(*DISJOINT[kind]))


@pytest.mark.parametrize("call", [call_wrapper, call_operator])
@pytest.mark.parametrize("kind", [*OVERLAPPING, *DISJOINT])
def test_without_data(kind, call):
    """Fake and meta tensors know where they lie in their storage."""
    sample = rows_sample(*{**OVERLAPPING, **DISJOINT}[kind])
    refusal = nullcontext() if kind in DISJOINT else pytest.raises(ValueError, match=MESSAGE)
    with refusal:
        call(convert(sample, ToMeta()))
    with fake(sample) as fakes, refusal:
        call(fakes)


def test_random_views_of_one_buffer():
    """Refused exactly when a byte is shared, counted byte by byte; else copied as the reference does."""
    rng = random.Random(1)
    refused = 0
    for seed in range(600):
        width = rng.choice([1, 2, 7, 16, 40])
        views = []
        for _ in range(2):
            rows, step = rng.randint(1, 9), rng.choice([width, width + 1, 2 * width, 3 * width + 1, 64, 80])
            views.append((rows, max(step, width), rng.randint(0, 1000 - 9 * 121 % 7)))

        def make(views=views, width=width, seed=seed) -> Sample:
            b = Builder(seed=seed)
            buffer = b.buffer(2200)
            dst, src = (buffer.as_strided((rows, width), (step, 1), offset) for rows, step, offset in views)
            n = min(len(dst), len(src))
            return b.sample([dst], [src], b.index(b.shuffled(len(dst), n)), b.index(b.shuffled(len(src), n)))

        touched = [{offset + i * step + k for i in range(rows) for k in range(width)} for rows, step, offset in views]
        if touched[0] & touched[1]:
            refused += 1
            check_refused(make(), ValueError, MESSAGE)
        else:
            check_sparse_copy(make)
    assert 100 < refused < 500


@pytest.mark.parametrize(("d", "s"), list(itertools.product(range(3), range(3))))
@pytest.mark.parametrize("components", [3, 6])
def test_any_destination_against_any_source(components, d, s):
    """Six components are two operators while tracing: what lies in different ones must be seen as well."""
    b = Builder(seed=62)
    dst, src = [b.rows(9, (32,)) for _ in range(components)], [b.rows(9, (32,)) for _ in range(components)]
    s = components - 1 - s
    src[s] = dst[d]
    sample = b.sample(dst, src, b.index([1]), b.index([2]))
    match = rf"expected dst\[{d}\] not to overlap what the call reads, got bytes shared with src\[{s}\]$"
    check_refused(sample, ValueError, match)
    with fake(sample) as fakes, pytest.raises(ValueError, match=match):
        call_wrapper(fakes)
    with pytest.raises(ValueError, match=match):
        call_wrapper(convert(sample, ToMeta()))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("table", ["dst_index", "src_index", "count"])
def test_destination_holds_a_table(table, dtype):
    """An index inside the destination would change while it is read."""
    b = Builder(seed=63)
    dst = b.rows(9, (4,), dtype)
    dst[5] = torch.tensor([1, 1, 1, 1])
    sample = b.sample([dst], [b.rows(9, (4,), dtype)], b.index([0]), b.index([2]), b.index([1]))
    setattr(sample, table, dst[5, 2:3])
    check_refused(sample, ValueError, rf"expected dst\[0\] not to overlap .* shared with {table}$")
    with fake(sample) as fakes, pytest.raises(ValueError, match=table):
        call_wrapper(fakes)


@pytest.mark.parametrize("table", ["dst_index", "src_index", "count"])
def test_table_beside_the_rows_of_a_destination(table):
    """The last column of a buffer may hold the index of the copy into the others."""

    def make() -> Sample:
        b = Builder(seed=64)
        both = b.rows(6, (5,), torch.int64)
        both[:, 4] = b.index([1, 0, 2, 5, 4, 3])
        sample = b.sample([both[:, :4]], [b.rows(6, (4,), torch.int64)], b.index(b.shuffled(6)), b.index(b.shuffled(6)))
        setattr(sample, table, both[:, 4] if table != "count" else both[2:3, 4])
        return sample

    check_sparse_copy(make)


def test_sources_may_overlap_each_other():
    def make() -> Sample:
        b = Builder(seed=65)
        src = b.rows(9, (32,))
        dst = [b.rows(9, (32,)), b.rows(8, (32,)), b.rows(9, (8,))]
        return b.sample(dst, [src, src[1:], src[:, 4:12]], b.index([1, 7]), b.index([2, 0]))

    check_sparse_copy(make)


def test_source_may_hold_the_indices():
    def make() -> Sample:
        b = Builder(seed=66)
        src = b.rows(9, (4,), torch.int64)
        src[0] = torch.tensor([3, 1, 0, 2])
        return b.sample([b.rows(9, (4,), torch.int64)], [src], src[0], src[0])

    check_sparse_copy(make)


def test_destinations_may_overlap_each_other_but_not_their_sources():
    b = Builder(seed=67)
    dst = b.rows(9, (32,))
    sample = b.sample([dst, dst], [b.rows(9, (32,)), dst], b.index([1]), b.index([2]))
    check_refused(sample, ValueError, r"expected dst\[0\] not to overlap .* shared with src\[1\]")


def test_overlap_through_numpy():
    """Two storages of one memory: addresses decide, not storages."""
    memory = torch.arange(64, dtype=torch.uint8).view(8, 8)
    other = torch.from_numpy(memory.numpy())
    assert other.untyped_storage()._cdata != memory.untyped_storage()._cdata
    check_refused(Sample([memory[:5]], [other[4:]], torch.tensor([0]), torch.tensor([1])), ValueError, MESSAGE)
    call_wrapper(Sample([memory[:4]], [other[4:]], torch.tensor([0]), torch.tensor([1])))
    assert torch.equal(memory[0], other[5])
