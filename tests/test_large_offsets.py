# SPDX-License-Identifier: Apache-2.0
"""Rows far behind 2 GiB and 4 GiB: a number that is cut to 32 bits anywhere would hit a guard, or the wrong row.

The buffer is mapped and almost never touched, so it costs address space but no memory. The view begins in its middle:
whichever way an offset wraps, the wrong address is inside the buffer, where it shows.
"""

import mmap

import pytest
import torch
from checks import num_threads

import torch_offload

GIB = 1 << 30
BASE = 5 * GIB + 12345
STRIDE = (1 << 20) + 64
ROWS = 4200  # to a little more than 4 GiB behind the base
ROW_BYTES = 132
WRAPS = (1 << 31, 1 << 32, -(1 << 31), -(1 << 32))

# Around 2^31 and 2^32 bytes behind the base, around 2^31 and 2^32 bytes in all.
INDICES = [0, 1, 2046, 2047, 2048, 2049, 3071, 3072, 4094, 4095, 4096, 4097, ROWS - 1]


@pytest.fixture
def huge():
    """A buffer of 10 GiB of zeros, without memory behind it; freed with the last tensor on it."""
    mapping = mmap.mmap(-1, 10 * GIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0))
    mapping.madvise(mmap.MADV_NOHUGEPAGE)
    return torch.frombuffer(mapping, dtype=torch.uint8)


def rows_of(buffer: torch.Tensor) -> torch.Tensor:
    return buffer.as_strided((ROWS, ROW_BYTES), (STRIDE, 1), BASE)


def window(buffer: torch.Tensor, row: int, wrap: int = 0) -> torch.Tensor:
    """The bytes of a row and of its surroundings, moved by `wrap`."""
    begin = BASE + row * STRIDE + wrap - 64
    return buffer[begin : begin + ROW_BYTES + 128] if 0 <= begin <= len(buffer) - 512 else buffer[:0]


def guard(buffer: torch.Tensor) -> dict[tuple[int, int], torch.Tensor]:
    """Fills the rows and every place where they could wrap to with distinct bytes; returns what is there now."""
    generator = torch.Generator().manual_seed(1)
    places = [(row, wrap) for row in INDICES for wrap in (0, *WRAPS)]
    for place in places:
        window(buffer, *place).random_(0, 256, generator=generator)
    return {place: window(buffer, *place).clone() for place in places}


def assert_guard(buffer: torch.Tensor, before: dict[tuple[int, int], torch.Tensor]) -> None:
    for place, data in before.items():
        assert torch.equal(window(buffer, *place), data), place


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_gather(huge, dtype, threads):
    before = guard(huge)
    dst = torch.zeros(len(INDICES), ROW_BYTES, dtype=torch.uint8)
    with num_threads(threads):
        torch_offload.sparse_copy(dst, rows_of(huge), src_index=torch.tensor(INDICES, dtype=dtype))
    for got, row in zip(dst, INDICES, strict=True):
        assert torch.equal(got, before[row, 0][64:-64])
    assert_guard(huge, before)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_scatter(huge, dtype, threads):
    before = guard(huge)
    src = torch.randint(0, 256, (len(INDICES), ROW_BYTES), dtype=torch.uint8)
    with num_threads(threads):
        torch_offload.sparse_copy(rows_of(huge), src, torch.tensor(INDICES, dtype=dtype))
    for data, row in zip(src, INDICES, strict=True):
        before[row, 0][64:-64] = data
    assert_guard(huge, before)


def test_source_and_destination_in_one_buffer(huge):
    before = guard(huge)
    rows = rows_of(huge)
    torch_offload.sparse_copy(rows[:3000], rows[3000:], torch.tensor([2047, 2048, 1]), torch.tensor([1095, 1096, 72]))
    before[2047, 0][64:-64] = before[4095, 0][64:-64]
    before[2048, 0][64:-64] = before[4096, 0][64:-64]
    before[1, 0][64:-64] = before[3072, 0][64:-64]
    assert_guard(huge, before)


@pytest.mark.parametrize("to_huge", [False, True])
def test_addresses(huge, to_huge):
    before = guard(huge)
    other = torch.randint(0, 256, (len(INDICES), ROW_BYTES), dtype=torch.uint8)
    here = torch.tensor([row.data_ptr() for row in other])
    there = torch.tensor([window(huge, row).data_ptr() + 64 for row in INDICES])
    src, dst = (here, there) if to_huge else (there, here)
    n = len(INDICES)
    status = torch_offload.sparse_copy_ptrs(src, dst, torch.full((n,), ROW_BYTES), torch.tensor(n))
    assert status.tolist() == [n, 0, 0, -1]
    for data, row in zip(other, INDICES, strict=True):
        if to_huge:
            before[row, 0][64:-64] = data
        else:
            assert torch.equal(data, before[row, 0][64:-64])
    assert_guard(huge, before)


def test_more_rows_than_an_int32_counts(huge):
    """Rows of one byte: the index itself is beyond 2^31 and 2^32."""
    places = torch.tensor([(1 << 31) - 1, 1 << 31, (1 << 31) + 1, (1 << 32) - 1, 1 << 32, (1 << 32) + 7, len(huge) - 1])
    data = torch.tensor([11, 22, 33, 44, 55, 66, 77], dtype=torch.uint8)
    torch_offload.sparse_copy(huge, data, places)
    assert torch.equal(huge[places], data)
    for wrap in (1 << 31, 1 << 32):
        wrapped = places[places >= wrap] - wrap
        assert not huge[wrapped[~torch.isin(wrapped, places)]].any()
    back = torch.zeros(7, dtype=torch.uint8)
    torch_offload.sparse_copy(back, huge, src_index=places)
    assert torch.equal(back, data)


@pytest.mark.parametrize("value", [1 << 31, 1 << 32, (1 << 32) + 1, -(1 << 32) + 1])
def test_large_index_is_not_cut(value):
    """2^32 + 1 is not row 1."""
    dst, src = torch.zeros(4, 8), torch.ones(4, 8)
    index = torch.tensor([value])
    if value < 0:
        torch_offload.sparse_copy(dst, src, index, torch.tensor([0]))
    else:
        with pytest.raises(IndexError, match=rf"dst_index\[0\] .* got {value}$"):
            torch_offload.sparse_copy(dst, src, index, torch.tensor([0]))
    assert not dst.any()


def test_index_with_a_huge_stride(huge):
    """The entries of an index lie more than 4 GiB apart."""
    words = huge[: len(huge) // 8 * 8].view(torch.int64)
    index = words.as_strided((3,), (((9 * GIB) >> 1) // 8,), 16)
    index.copy_(torch.tensor([5, -1, 2]))
    dst, src = torch.zeros(3, 8), torch.arange(48.0).view(6, 8)
    torch_offload.sparse_copy(dst, src, src_index=index)
    assert torch.equal(dst, torch.stack([src[5], torch.zeros(8), src[2]]))


@pytest.mark.parametrize("threads", [1, 3])
def test_rows_of_more_than_two_gib(huge, threads):
    """Rows begin and end right beyond 2 GiB; a row that is written is 2 MiB, cut out of a larger one by its stride."""
    row = (1 << 31) + 4097
    dst = huge.as_strided((4, 2 << 20), (row, 1), 100)
    src = torch.randint(0, 256, (3, 2 << 20), dtype=torch.uint8)
    with num_threads(threads):
        torch_offload.sparse_copy(dst, src, torch.tensor([3, 1, 2]), torch.tensor([0, 1, 2]))
    assert torch.equal(dst[[3, 1, 2]], src)
    assert not dst[0].any()
    for i in (1, 2, 3):
        begin = 100 + i * row
        assert not huge[begin - 4096 : begin].any()
        assert not huge[begin + (2 << 20) : begin + (2 << 20) + 4096].any()


def available_memory() -> int:
    with open("/proc/meminfo") as lines:
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable"))


@pytest.mark.skipif(available_memory() < 6 * GIB, reason="needs 2 GiB of memory that is really there")
@pytest.mark.parametrize("form", ["index", "addresses"])
def test_one_row_of_more_than_two_gib(huge, form):
    """Only the destination costs memory: the source is zeros but for a few bytes."""
    length = (1 << 31) + 4097
    marks = torch.tensor([0, 1, 4096, (1 << 31) - 1, 1 << 31, (1 << 31) + 1, length - 1])
    dst, src = huge[100 : 100 + length], huge[length + 5000 : 2 * length + 5000]
    src[marks] = torch.arange(1, 8, dtype=torch.uint8)
    huge[99] = huge[100 + length] = 99
    with num_threads(2):
        if form == "index":
            torch_offload.sparse_copy(dst[None], src[None])
        else:
            src_ptrs, dst_ptrs = torch.tensor([src.data_ptr()]), torch.tensor([dst.data_ptr()])
            torch_offload.sparse_copy_ptrs(src_ptrs, dst_ptrs, torch.tensor([length]), torch.tensor(1))
    assert torch.equal(dst[marks], src[marks])
    assert huge[99] == huge[100 + length] == 99
    assert torch.count_nonzero(dst[: 1 << 20]) == 3
