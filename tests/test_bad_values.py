# SPDX-License-Identifier: Apache-2.0
"""Indices outside the rows and counts outside the entries: IndexError or ValueError before anything is written."""

import re

import pytest
import torch
from cases import Builder, Sample
from checks import ToMeta, call_operator, call_wrapper, check_refused, convert, fake

from torch_offload import sparse_copy

ENTRIES = 8
DST_ROWS, SRC_ROWS = 9, 12


def sample_with(dst_index=None, src_index=None, *, dtype=torch.int64, components=1, count=None) -> Sample:
    b = Builder(seed=51)
    dst, src = (
        [b.rows(DST_ROWS, (33,)) for _ in range(components)],
        [b.rows(SRC_ROWS, (33,)) for _ in range(components)],
    )
    tables = [None if values is None else b.index(values, dtype) for values in (dst_index, src_index)]
    return b.sample(dst, src, *tables, count=count)


def valid(side: str) -> list[int]:
    return Builder(seed=52).shuffled({"dst": DST_ROWS, "src": SRC_ROWS}[side], ENTRIES)


def refused(side: str, position: int, value: int) -> str:
    rows = {"dst": DST_ROWS, "src": SRC_ROWS}[side]
    return re.escape(
        f"sparse_copy: expected {side}_index[{position}] to be negative or below the {rows} rows of {side}, got {value}"
    )


BEYOND = {
    "rows": lambda rows: (rows, torch.int64),
    "rows_plus_1": lambda rows: (rows + 1, torch.int64),
    "int32": lambda rows: ((1 << 31) - 1, torch.int32),
    "2^31": lambda rows: (1 << 31, torch.int64),
    "2^32": lambda rows: (1 << 32, torch.int64),
    "int64": lambda rows: ((1 << 63) - 1, torch.int64),
}


@pytest.mark.parametrize("position", [0, 3, ENTRIES - 1])
@pytest.mark.parametrize("beyond", BEYOND)
@pytest.mark.parametrize("side", ["dst", "src"])
def test_index_beyond_the_rows(side, beyond, position):
    value, dtype = BEYOND[beyond]({"dst": DST_ROWS, "src": SRC_ROWS}[side])
    indices = {"dst": valid("dst"), "src": valid("src")}
    indices[side][position] = value
    for dst_index, src_index in (
        (indices["dst"], indices["src"]),
        tuple(indices[s] if s == side else None for s in indices),
    ):
        check_refused(sample_with(dst_index, src_index, dtype=dtype), IndexError, refused(side, position, value))


@pytest.mark.parametrize("side", ["dst", "src"])
def test_strided_index_beyond_the_rows(side):
    """The position is that of the entry, not of the memory."""
    sample = sample_with(valid("dst"), valid("src"))
    table = torch.stack([sample.dst_index, sample.src_index], dim=1)
    table[5, ["dst", "src"].index(side)] = 77
    sample.dst_index, sample.src_index = table.unbind(1)
    check_refused(sample, IndexError, refused(side, 5, 77))


def test_first_of_several_is_named():
    dst_index, src_index = valid("dst"), valid("src")
    dst_index[6], src_index[4], dst_index[2], src_index[1] = 99, 98, -1, -5
    check_refused(sample_with(dst_index, src_index), IndexError, refused("src", 4, 98))


def test_negative_other_side_excuses_only_its_own_entry():
    dst_index, src_index = valid("dst"), valid("src")
    dst_index[2], src_index[2] = 99, -1
    dst_index[7] = 9
    check_refused(sample_with(dst_index, src_index), IndexError, refused("dst", 7, 9))


def test_last_counted_entry_is_checked():
    dst_index = valid("dst")
    dst_index[4] = 9
    for count in (5, ENTRIES):
        sample = sample_with(dst_index, valid("src"), count=torch.tensor(count))
        check_refused(sample, IndexError, refused("dst", 4, 9))
    call_wrapper(sample_with(dst_index, valid("src"), count=torch.tensor(4)))


@pytest.mark.parametrize("components", [2, 5])
def test_nothing_is_written_in_any_component(components):
    src_index = valid("src")
    src_index[-1] = SRC_ROWS
    sample = sample_with(valid("dst"), src_index, components=components)
    check_refused(sample, IndexError, refused("src", ENTRIES - 1, SRC_ROWS))


@pytest.mark.parametrize("side", ["dst", "src"])
def test_component_with_the_fewest_rows_decides(side):
    b = Builder(seed=53)
    rows = {"dst": [9, 9, 9], "src": [12, 12, 12]}
    rows[side][1] -= 2
    dst, src = [b.rows(n, (5,)) for n in rows["dst"]], [b.rows(n, (5,)) for n in rows["src"]]
    last = rows[side][1]
    indices = {"dst": [0, 1], "src": [0, 1]}
    indices[side] = [0, last]
    sample = b.sample(dst, src, b.index(indices["dst"]), b.index(indices["src"]))
    check_refused(sample, IndexError, rf"{side}_index\[1\] .* got {last}$")
    indices[side] = [0, last - 1]
    call_wrapper(b.sample(dst, src, b.index(indices["dst"]), b.index(indices["src"])))


def test_index_into_no_rows():
    b = Builder(seed=54)
    sample = b.sample([b.rows(9, (5,))], [b.rows(0, (5,))], b.index([-1, 3]), b.index([0, 0]))
    check_refused(sample, IndexError, r"src_index\[1\] to be negative or below the 0 rows of src, got 0")


def test_index_into_rows_of_no_bytes_is_checked_too():
    b = Builder(seed=55)
    sample = b.sample([b.rows(9, (0,))], [b.rows(9, (0,))], b.index([9]), b.index([0]))
    check_refused(sample, IndexError, r"dst_index\[0\] .* got 9")


def test_more_source_entries_than_destination_rows():
    """Without dst_index, entry 9 goes to row 9, which is not there."""
    sample = sample_with(None, Builder(seed=56).shuffled(SRC_ROWS))
    check_refused(sample, IndexError, r"expected dst to have a row for entry 9 \(dst_index is None\), got 9 rows")
    call_wrapper(sample_with(None, Builder(seed=56).shuffled(SRC_ROWS), count=torch.tensor(9)))


def test_more_destination_entries_than_source_rows():
    sample = sample_with([i % DST_ROWS for i in range(SRC_ROWS + 2)], None)
    check_refused(sample, IndexError, r"expected src to have a row for entry 12 \(src_index is None\), got 12 rows")
    skipped = [i % DST_ROWS for i in range(SRC_ROWS)] + [-1, -1]
    call_wrapper(sample_with(skipped, None))


@pytest.mark.parametrize(
    ("value", "dtype"),
    [(value, torch.int32) for value in (-1, -(2**31), ENTRIES + 1, (1 << 31) - 1)]
    + [(value, torch.int64) for value in (-1, -(2**63), ENTRIES + 1, 1 << 31, (1 << 32) + 1, (1 << 63) - 1)],
)
def test_count_outside_the_entries(value, dtype):
    sample = sample_with(valid("dst"), valid("src"), count=torch.tensor([value], dtype=dtype))
    check_refused(sample, ValueError, rf"sparse_copy: expected count to be in \[0, {ENTRIES}\], got {value}$")


@pytest.mark.parametrize("count", [-1, 10])
def test_count_outside_the_rows_without_indices(count):
    b = Builder(seed=57)
    sample = b.sample([b.rows(9, (5,))], [b.rows(9, (5,))], count=b.index(count))
    check_refused(sample, ValueError, rf"expected count to be in \[0, 9\], got {count}$")


@pytest.mark.parametrize("call", [call_wrapper, call_operator])
def test_values_are_not_looked_at_without_data(call):
    """Fake and meta tensors have no values: such calls pass."""
    sample = sample_with([99] * ENTRIES, valid("src"), count=torch.tensor([77]))
    call(convert(sample, ToMeta()))
    with fake(sample) as fakes:
        call(fakes)


@pytest.mark.parametrize("shrunk", ["dst", "src", "index"])
def test_storage_that_was_shrunk_under_its_tensor(shrunk):
    tensors = {"dst": torch.zeros(4, 8), "src": torch.rand(10, 8), "index": torch.arange(4)}
    tensors[shrunk].untyped_storage().resize_(16)
    with pytest.raises(ValueError, match=r"to lie inside its storage, got \d+ bytes in a storage of 16"):
        sparse_copy(tensors["dst"], tensors["src"], src_index=tensors["index"])
