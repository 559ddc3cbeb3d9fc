# SPDX-License-Identifier: Apache-2.0
"""Wrong kinds, dtypes, shapes, layouts and lists: the typed error names argument, rule and value; nothing is written.

What is wrong with the tensors themselves, not with the numbers in them, real, fake and meta tensors refuse alike.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from cases import Builder, Sample
from checks import ToMeta, call_operator, call_wrapper, check_refused, convert, fake


@dataclass(frozen=True)
class Bad:
    """Arguments that are refused, and how."""

    name: str
    build: Callable[[Builder], Sample]
    error: type[Exception]
    text: str  # a part of the message, literally


BAD: list[Bad] = []


def bad(error: type[Exception], text: str) -> Callable[[Callable[[Builder], Sample]], None]:
    def add(build: Callable[[Builder], Sample]) -> None:
        BAD.append(Bad(build.__name__, build, error, text))

    return add


def good(b: Builder, **changes: object) -> Sample:
    """A valid sample with some of its arguments replaced."""
    sample = b.sample([b.rows(9, (8,))], [b.rows(12, (8,))], b.index([1, 5, 3]), b.index([0, 11, 4]), b.index([2]))
    for name, value in changes.items():
        setattr(sample, name, value)
    return sample


# Row shapes and dtypes.


@bad(ValueError, "src[0] to have the row shape [576] of dst, got [656]")
def widths_differ(b):
    return good(b, dst=[b.rows(9, (576,))], src=[b.rows(12, (656,))])


@bad(ValueError, "src[0] to have the row shape [4, 2] of dst, got [2, 4]")
def shapes_differ(b):
    return good(b, dst=[b.rows(9, (4, 2))], src=[b.rows(12, (2, 4))])


@bad(ValueError, "src[1] to have the row shape [8] of dst, got [9]")
def widths_of_the_second_component_differ(b):
    return good(b, dst=[b.rows(9, (8,)), b.rows(9, (8,))], src=[b.rows(12, (8,)), b.rows(12, (9,))])


@bad(ValueError, "src[0] to have 2 dimensions like dst, got 1")
def source_lacks_a_dimension(b):
    return good(b, src=[b.rows(12, ())])


@bad(ValueError, "src[0] to have 2 dimensions like dst, got 3")
def source_has_one_dimension_more(b):
    return good(b, src=[b.rows(12, (1, 8))])


@bad(ValueError, "dst[0] to have at least 1 dimension, got 0")
def both_are_scalars(b):
    return good(b, dst=[torch.tensor(1)], src=[torch.tensor(2)])


@bad(ValueError, "src[0] to have 2 dimensions like dst, got 0")
def source_is_a_scalar(b):
    return good(b, src=[torch.tensor(2, dtype=torch.uint8)])


@bad(ValueError, "dst[0] to have at least 1 dimension, got 0")
def destination_is_a_scalar(b):
    return good(b, dst=[torch.tensor(2, dtype=torch.uint8)])


@bad(TypeError, "src[0] to have the dtype of dst, Byte, got BFloat16")
def dtypes_differ(b):
    return good(b, src=[b.rows(12, (8,), torch.bfloat16)])


@bad(TypeError, "src[1] to have the dtype of dst, Half, got BFloat16")
def dtypes_of_the_second_component_differ(b):
    dst, src = b.rows(9, (8,), torch.float16), b.rows(12, (8,), torch.bfloat16)
    return good(b, dst=[b.rows(9, (8,)), dst], src=[b.rows(12, (8,)), src])


@bad(ValueError, "src[0] to have the 9 rows of dst[0] when dst_index and src_index are None, got 12")
def row_counts_differ_without_indices(b):
    return good(b, dst_index=None, src_index=None, count=None)


@bad(ValueError, "rows of dst[0] when dst_index and src_index are None, got 12")
def row_counts_differ_without_indices_with_count(b):
    return good(b, dst_index=None, src_index=None)


@bad(ValueError, "to have the 9 rows of dst[0] when dst_index and src_index are None, got 10")
def row_counts_of_the_components_differ(b):
    rows = [b.rows(n, (8,)) for n in (9, 10, 9, 10)]
    return good(b, dst=rows[:2], src=rows[2:], dst_index=None, src_index=None, count=None)


# Layouts.


@bad(
    ValueError,
    "src[0] to have dense rows, laid out alike in dst and src, got strides [8, 1] in dst and [16, 2]",
)
def source_rows_have_gaps(b):
    return good(b, src=[b.rows(12, (16,))[:, ::2]])


@bad(
    ValueError,
    "dst[0] to have dense rows, laid out alike in dst and src, got strides [16, 2] in dst and [8, 1]",
)
def destination_rows_have_gaps(b):
    return good(b, dst=[b.rows(9, (16,))[:, ::2]])


@bad(ValueError, "dst[0] to have dense rows")
def both_rows_have_gaps(b):
    return good(b, dst=[b.rows(9, (16,))[:, ::2]], src=[b.rows(12, (16,))[:, ::2]])


@bad(ValueError, "src[0] to have dense rows")
def source_rows_are_one_element(b):
    return good(b, src=[b.rows(12, (1,)).expand(12, 8)])


@bad(ValueError, "dst[0] to have dense rows")
def destination_rows_are_one_element(b):
    return good(b, dst=[b.rows(9, (1,)).expand(9, 8)])


@bad(ValueError, "src[0] to have dense rows, laid out alike")
def source_rows_are_transposed(b):
    return good(b, dst=[b.rows(9, (4, 3))], src=[b.rows(12, (3, 4)).transpose(1, 2)])


@bad(ValueError, "dst[0] to have dense rows, laid out alike")
def rows_are_permuted_differently(b):
    return good(b, dst=[b.rows(9, (2, 3, 4)).permute(0, 3, 1, 2)], src=[b.rows(12, (3, 2, 4)).permute(0, 3, 2, 1)])


@bad(ValueError, "dst[0] to have rows that do not overlap each other, got row stride 0 for rows of 8 elements")
def destination_is_expanded(b):
    return good(b, dst=[b.rows(1, (8,)).expand(9, 8)])


@bad(ValueError, "dst[0] to have rows that do not overlap each other, got row stride 7 for rows of 8 elements")
def destination_rows_overlap_each_other(b):
    return good(b, dst=[b.buffer(200).unfold(0, 8, 7)])


# Indices and count.

for _side, _name in (("dst", "dst_index"), ("src", "src_index")):
    for _dtype, _spelled in (
        (torch.uint8, "Byte"),
        (torch.int8, "Char"),
        (torch.int16, "Short"),
        (torch.bool, "Bool"),
        (torch.float32, "Float"),
        (torch.uint32, "UInt32"),
        (torch.uint64, "UInt64"),
    ):

        def _index_dtype(b, name=_name, dtype=_dtype):
            return good(b, **{name: b.index([1, 0, 1], dtype)})

        _text = f"{_name} to have dtype Int or Long, got {_spelled}"
        BAD.append(Bad(f"{_name}_{_spelled}", _index_dtype, TypeError, _text))

    for _rank, _shape in ((0, ()), (2, (3, 1)), (2, (1, 3))):

        def _index_rank(b, name=_name, shape=_shape):
            return good(b, **{name: torch.zeros(shape, dtype=torch.int64)})

        BAD.append(Bad(f"{_name}_{_shape}", _index_rank, ValueError, f"{_name} to have 1 dimension, got {_rank}"))


@bad(ValueError, "src_index to have the length of dst_index, 3, got 4")
def source_index_is_longer(b):
    return good(b, src_index=b.index([1, 2, 3, 4]))


@bad(ValueError, "src_index to have the length of dst_index, 3, got 0")
def source_index_is_empty(b):
    return good(b, src_index=b.index([]))


for _dtype, _spelled in ((torch.float32, "Float"), (torch.bool, "Bool"), (torch.uint8, "Byte"), (torch.int16, "Short")):

    def _count_dtype(b, dtype=_dtype):
        return good(b, count=b.index([1], dtype))

    _text = f"count to have dtype Int or Long, got {_spelled}"
    BAD.append(Bad(f"count_{_spelled}", _count_dtype, TypeError, _text))

for _shape, _numel in (((0,), 0), ((2,), 2), ((1, 3), 3)):

    def _count_shape(b, shape=_shape):
        return good(b, count=torch.ones(shape, dtype=torch.int64))

    BAD.append(Bad(f"count_{_shape}", _count_shape, ValueError, f"count to have one element, got {_numel}"))


# Lists.


@bad(ValueError, "dst to hold at least 1 tensor, got 0")
def no_tensors(b):
    return good(b, dst=[], src=[])


@bad(ValueError, "dst to hold at least 1 tensor, got 0")
def no_destinations(b):
    return good(b, dst=[])


@bad(ValueError, "src to hold 1 tensors like dst, got 0")
def no_sources(b):
    return good(b, src=[])


@bad(ValueError, "src to hold 2 tensors like dst, got 3")
def more_sources_than_destinations(b):
    return good(b, dst=[b.rows(9, (8,)) for _ in range(2)], src=[b.rows(12, (8,)) for _ in range(3)])


@bad(ValueError, "src to hold 6 tensors like dst, got 5")
def fewer_sources_than_destinations(b):
    return good(b, dst=[b.rows(9, (8,)) for _ in range(6)], src=[b.rows(12, (8,)) for _ in range(5)])


@pytest.mark.parametrize("case", BAD, ids=lambda case: case.name)
def test_eager(case):
    check_refused(case.build(Builder(seed=41)), case.error, r"sparse_copy: expected .*" + re.escape(case.text))


@pytest.mark.parametrize("call", [call_wrapper, call_operator])
@pytest.mark.parametrize("case", BAD, ids=lambda case: case.name)
def test_fake(case, call):
    """The decomposition and the meta kernels raise what the kernel raises."""
    with fake(case.build(Builder(seed=41))) as sample, pytest.raises(case.error, match="expected ") as info:
        call(sample)
    assert type(info.value) is case.error


@pytest.mark.parametrize("call", [call_wrapper, call_operator])
@pytest.mark.parametrize("case", BAD, ids=lambda case: case.name)
def test_meta(case, call):
    sample = case.build(Builder(seed=41))
    with pytest.raises(case.error, match="expected ") as info:
        call(convert(sample, ToMeta()))
    assert type(info.value) is case.error


@pytest.mark.parametrize("call", [call_wrapper, call_operator])
def test_what_is_right_is_accepted_without_data(call):
    """The refusals above mean nothing if meta or fake tensors were always refused."""
    call(convert(good(Builder()), ToMeta()))
    with fake(good(Builder())) as sample:
        call(sample)
