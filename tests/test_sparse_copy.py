# SPDX-License-Identifier: Apache-2.0
"""sparse_copy moves exactly the bytes that it is asked to: sizes, layouts, index forms, count."""

import cases
import pytest
import torch
from cases import CASES, Builder, Sample
from checks import call_operator, call_wrapper, check_sparse_copy, same_bytes

import torch_offload

ROW_BYTES = [0, 1, 2, 3, 15, 17, 63, 65, 132, 584, 656, 1152, 4097, 65536, (1 << 20) + 1]
OFFSETS = [0, 1, 3, 5, 7]


@pytest.mark.parametrize("call", [call_wrapper, call_operator])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_case(case, call):
    check_sparse_copy(case.make, call)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
def test_case_in_mode(case, mode):
    with mode():
        check_sparse_copy(case.make)


def test_cases_copy_something():
    """The samples are worth nothing if the operator could ignore them."""
    idle = {"only_negative_entries", "count_of_zero", "empty_index", "no_rows", "rows_of_no_bytes"}
    for case in CASES:
        got, before = case.make(), case.make()
        call_operator(got)
        changed = not all(same_bytes(a, b) for a, b in zip(got.tensors(), before.tensors(), strict=True))
        assert changed == (case.name not in idle), case.name


@pytest.mark.parametrize("gap", [0, 9])
@pytest.mark.parametrize("offset", OFFSETS)
@pytest.mark.parametrize("row_bytes", ROW_BYTES)
def test_row_size_and_offset(row_bytes, offset, gap):
    entries = 5 if row_bytes >= 65536 else 41

    def make() -> Sample:
        b = Builder(seed=row_bytes + offset)
        dst = b.rows(entries, (row_bytes,), offset=offset, gap=gap)
        src = b.rows(entries + 3, (row_bytes,), offset=OFFSETS[(offset + row_bytes) % len(OFFSETS)], gap=2 * gap)
        dst_index, src_index = b.drawn(entries, entries), b.drawn(entries + 3, entries)
        for skipped in (0, entries // 2):
            dst_index[skipped] = -1
        src_index[-1] = -2
        return b.sample([dst], [src], b.index(dst_index), b.index(src_index))

    check_sparse_copy(make)


@pytest.mark.parametrize("entries", [1, 2, 3, 5])
@pytest.mark.parametrize("row_bytes", ROW_BYTES[1:-2])
def test_few_entries(row_bytes, entries):
    """An odd number of entries is as good as an even one."""

    def make() -> Sample:
        b = Builder(seed=row_bytes)
        dst, src = b.rows(9, (row_bytes,), offset=1), b.rows(9, (row_bytes,), offset=3)
        return b.sample([dst], [src], b.index(b.shuffled(9, entries)), b.index(b.shuffled(9, entries)))

    check_sparse_copy(make)


@pytest.mark.parametrize("row_bytes", [1, 8, 9])
@pytest.mark.parametrize("order", ["increasing", "shuffled", "drawn"])
@pytest.mark.parametrize("entries", [1, 511, 512, 513, 65535, 65536, 65537, 1_000_000])
def test_number_of_entries(entries, order, row_bytes):
    def make() -> Sample:
        b = Builder(seed=entries)
        dst, src = b.rows(entries, (row_bytes,)), b.rows(entries, (row_bytes,))
        dst_index = {"increasing": lambda: list(range(entries)), "shuffled": lambda: b.shuffled(entries)}.get(
            order, lambda: b.drawn(entries, entries)
        )()
        return b.sample([dst], [src], b.index(dst_index, torch.int32), b.index(b.drawn(entries, entries)))

    check_sparse_copy(make)


@pytest.mark.parametrize("place", ["leading", "middle", "trailing", "everywhere"])
@pytest.mark.parametrize("side", ["dst", "src", "both"])
@pytest.mark.parametrize(
    ("value", "dtype"),
    [*((value, torch.int32) for value in (-1, -2, -40, -(2**31))), (-1, torch.int64), (-(2**63), torch.int64)],
)
def test_negative_index_skips(value, dtype, side, place):
    """Never Python's count from the end: neither the last rows nor those before the first are touched."""
    places = {"leading": range(3), "middle": range(9, 13), "trailing": range(17, 20), "everywhere": range(20)}[place]

    def make() -> Sample:
        b = Builder(seed=5)
        # The rows before and behind each view belong to the same buffer.
        dst, src = b.rows(120, (33,))[40:80], b.rows(120, (33,))[40:80]
        dst_index, src_index = b.shuffled(40, 20), b.shuffled(40, 20)
        for i in places:
            if side in ("dst", "both"):
                dst_index[i] = value
            if side in ("src", "both"):
                src_index[i] = value
        return b.sample([dst], [src], b.index(dst_index, dtype), b.index(src_index, dtype))

    check_sparse_copy(make)


@pytest.mark.parametrize("index", ["dst_index", "src_index"])
def test_index_on_one_side_only(index):
    """None stands for 0, 1, 2, ..., also where the entries are fewer than the rows."""

    def make() -> Sample:
        b = Builder(seed=6)
        values = b.index([11, -1, 3, 11, 0], torch.int32)
        return b.sample([b.rows(12, (9,))], [b.rows(12, (9,))], **{index: values})

    check_sparse_copy(make)


COUNTS = {
    "scalar": lambda n, dtype: torch.tensor(n, dtype=dtype),
    "one": lambda n, dtype: torch.tensor([n], dtype=dtype),
    "four_dimensions": lambda n, dtype: torch.tensor([[[[n]]]], dtype=dtype),
    "inside_a_table": lambda n, dtype: torch.tensor([-5, 1 << 30, n, 1 << 30], dtype=dtype)[2],
    "strided": lambda n, dtype: torch.tensor([-5, 1 << 30, n, 1 << 30], dtype=dtype)[2::2][:1],
}


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("form", COUNTS)
@pytest.mark.parametrize("count", [0, 1, 4, 8])
def test_count(count, form, dtype):
    """Whatever stands behind the first `count` entries is not looked at."""

    def make() -> Sample:
        b = Builder(seed=7)
        dst_index, src_index = b.shuffled(9, 8), b.shuffled(30, 8)
        garbage = [2**62, 9, -(2**63), 2**63 - 1, 0, 1 << 32, 9, 30]
        dst_index[count:], src_index[count:] = garbage[count:], garbage[::-1][count:]
        dst, src = [b.rows(9, (33,))], [b.rows(30, (33,))]
        return b.sample(dst, src, b.index(dst_index), b.index(src_index), COUNTS[form](count, dtype))

    check_sparse_copy(make)


def test_count_below_rows_without_indices():
    def make() -> Sample:
        b = Builder(seed=8)
        return b.sample([b.rows(9, (33,))], [b.rows(9, (33,))], count=b.index([[4]]))

    check_sparse_copy(make)


@pytest.mark.parametrize("values", ["strided", "contiguous"])
def test_strided_indices_equal_contiguous_ones(values):
    def make() -> Sample:
        b = Builder(seed=9)
        table = b.index([b.shuffled(20, 12), b.shuffled(20, 12), b.shuffled(20, 12)]).t()  # strides 1, 12
        dst_index, src_index = table[:, 0], table.flip(0).t().contiguous().t()[1:, 2]
        dst_index = dst_index[1:]
        if values == "contiguous":
            dst_index, src_index = dst_index.contiguous(), src_index.contiguous()
        else:
            dst_index = dst_index.repeat_interleave(3)[::3]
            assert dst_index.stride(0) == 3
        return b.sample([b.rows(20, (33,))], [b.rows(20, (33,))], dst_index, src_index)

    check_sparse_copy(make)


def test_tensor_stands_for_a_list_of_one():
    got, want = cases.gather(), cases.gather()
    torch_offload.sparse_copy(got.dst[0], got.src[0], src_index=got.src_index)
    call_wrapper(want)
    assert same_bytes(got.buffers[0], want.buffers[0])


def test_tuples_are_lists():
    got, want = cases.two_components(), cases.two_components()
    torch_offload.sparse_copy(tuple(got.dst), tuple(got.src), got.dst_index, got.src_index)
    call_wrapper(want)
    assert same_bytes(got.buffers[0], want.buffers[0])
    assert same_bytes(got.buffers[1], want.buffers[1])


def test_returns_nothing():
    assert torch_offload.sparse_copy(torch.zeros(2, 2), torch.ones(2, 2)) is None


def test_plain_torch_equivalent():
    """The sentence of the README: dst[i] = src[j], also when rows of each side are listed once."""
    dst, src = torch.zeros(50, 6), torch.randn(80, 6)
    i, j = torch.randperm(50)[:20], torch.randperm(80)[:20]
    want = dst.clone()
    want[i] = src[j]
    torch_offload.sparse_copy(dst, src, i, j)
    assert torch.equal(dst, want)


def test_memory_does_not_grow():
    import resource

    b = Builder()
    n = 65537
    sample = b.sample([b.rows(n, (8,))], [b.rows(n, (8,))], b.index(b.shuffled(n)), b.index(b.shuffled(n)))
    for _ in range(20):
        call_wrapper(sample)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(200):
        call_wrapper(sample)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 4 << 10  # KiB


def resident_kib() -> int:
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))


def test_many_calls_of_many_entries_keep_no_memory():
    entries = 65_537
    dst, src = torch.zeros(entries, 8, dtype=torch.uint8), torch.ones(entries, 8, dtype=torch.uint8)
    index = torch.randperm(entries, generator=torch.Generator().manual_seed(1))
    for call in range(220):
        torch_offload.sparse_copy(dst, src, index, index)
        if call == 19:
            before = resident_kib()
    assert resident_kib() - before < entries * 8 // 1024  # less than one copy of what 200 calls have moved
    assert (dst == 1).all()
