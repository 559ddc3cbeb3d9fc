# SPDX-License-Identifier: Apache-2.0
"""Random calls, right and wrong ones mixed: the result is the reference's, or the error that a model expects."""

from __future__ import annotations

import re
from dataclasses import dataclass

import pytest
import reference
import torch
from cases import Builder, Sample
from checks import assert_same, call_wrapper, fake, num_threads, unchanged
from hypothesis import given, settings
from hypothesis import strategies as st

INDEX_DTYPES = [torch.int32, torch.int64]
DTYPES = [torch.uint8, torch.bfloat16, torch.float32, torch.complex64]
FAULTS = {
    None: None,
    "dtype": TypeError,
    "row_shape": ValueError,
    "rank": ValueError,
    "index_dtype": TypeError,
    "index_length": ValueError,
    "index_rank": ValueError,
    "count_dtype": TypeError,
    "count_shape": ValueError,
    "overlap": ValueError,
    "missing_source": ValueError,
    "gap_in_row": ValueError,
}


@dataclass
class Plan:
    """A call in plain numbers, from which the same sample can be made several times."""

    seed: int
    rows: tuple[int, int]
    components: list[tuple[tuple[int, ...], torch.dtype, int, int]]  # shape, dtype, gap of dst, gap of src
    indices: list[list[int] | None]
    index_dtypes: list[torch.dtype]
    index_stride: int
    count: int | None
    fault: str | None

    def make(self) -> Sample:
        b = Builder(seed=self.seed)
        dst = [b.rows(self.rows[0], shape, dtype, gap=gap, offset=gap) for shape, dtype, gap, _ in self.components]
        src = [b.rows(self.rows[1], shape, dtype, gap=gap) for shape, dtype, _, gap in self.components]
        tables: list[torch.Tensor | None] = []
        for values, dtype in zip(self.indices, self.index_dtypes, strict=True):
            table = None if values is None else b.index(values, dtype).repeat_interleave(self.index_stride)
            tables.append(None if table is None else table[:: self.index_stride])
        count = None if self.count is None else torch.tensor([self.count])
        return spoil(b, b.sample(dst, src, *tables, count), self.fault)


def spoil(b: Builder, sample: Sample, fault: str | None) -> Sample:
    """Puts one fault of structure into a sample."""
    last = sample.src[-1]
    rows, shape = last.shape[0], tuple(last.shape[1:])
    if fault == "dtype":
        sample.src[-1] = b.rows(rows, shape, torch.int16)
    elif fault == "row_shape":
        sample.src[-1] = b.rows(rows, (*shape[:-1], shape[-1] + 1), last.dtype)
    elif fault == "rank":
        sample.src[-1] = b.rows(rows, (*shape, 1), last.dtype)
    elif fault == "gap_in_row":
        sample.src[-1] = b.rows(rows, (*shape[:-1], 2 * shape[-1]), last.dtype)[..., ::2]
    elif fault == "index_dtype":
        sample.src_index = torch.zeros(len(sample.dst_index), dtype=torch.int16)
    elif fault == "index_length":
        sample.src_index = torch.zeros(len(sample.dst_index) + 1, dtype=torch.int64)
    elif fault == "index_rank":
        sample.dst_index = sample.dst_index[:, None]
    elif fault == "count_dtype":
        sample.count = torch.zeros(1)
    elif fault == "count_shape":
        sample.count = torch.zeros(2, dtype=torch.int64)
    elif fault == "overlap":
        sample.src[-1] = sample.dst[-1]
    elif fault == "missing_source":
        sample.src.pop()
    return sample


@st.composite
def plans(draw: st.DrawFn, *, faulty: bool) -> Plan:
    fault = draw(st.sampled_from([name for name in FAULTS if name is not None])) if faulty else None
    rows = draw(st.tuples(st.integers(1, 12), st.integers(1, 12)))
    component = st.tuples(
        st.lists(st.integers(2 if faulty else 0, 7), min_size=1, max_size=2).map(tuple),
        st.sampled_from(DTYPES),
        st.integers(0, 3),
        st.integers(0, 3),
    )
    n = draw(st.integers(0, 20))
    # Mostly valid values, some negative, few beyond the rows.
    value = [st.integers(-2, size - 1) | st.integers(-1, size) for size in rows]
    indices = [draw(st.lists(v, min_size=n, max_size=n)) for v in value]
    if not faulty and rows[0] == rows[1] and draw(st.booleans()):
        indices, n = [None, None], rows[0]
    elif not faulty and draw(st.booleans()):
        indices[draw(st.integers(0, 1))] = None
    return Plan(
        seed=draw(st.integers(0, 1000)),
        rows=rows,
        components=draw(st.lists(component, min_size=1, max_size=6)),
        indices=indices,
        index_dtypes=[draw(st.sampled_from(INDEX_DTYPES)) for _ in range(2)],
        index_stride=draw(st.integers(1, 3)),
        count=draw(st.none() | st.integers(0, n) | st.integers(-1, n + 1)),
        fault=fault,
    )


@settings(max_examples=800, deadline=None, derandomize=True)
@given(plan=plans(faulty=False), threads=st.sampled_from([1, 2, 16]))
def test_values(plan, threads):
    """Indices and counts, some outside their range: as the reference, which raises before it writes."""
    got, want = plan.make(), plan.make()
    try:
        reference.sparse_copy(*want.args())
    except (IndexError, ValueError) as error:
        with unchanged(*got.tensors()), pytest.raises(type(error)) as info:
            call_wrapper(got)
        assert type(info.value) is type(error)
        if isinstance(error, IndexError):
            position = re.search(r"\[(\d+)\]", str(error))[1]
            assert re.search(rf"\b{position}\b", str(info.value))
        return
    with num_threads(threads):
        call_wrapper(got)
    assert_same(got, want)


@settings(max_examples=500, deadline=None, derandomize=True)
@given(plan=plans(faulty=True))
def test_structure(plan):
    """One fault, whatever the values are: its error, from real and from fake tensors."""
    sample = plan.make()
    error = FAULTS[plan.fault]
    with unchanged(*sample.tensors()), pytest.raises(error) as info:
        call_wrapper(sample)
    assert type(info.value) is error
    with fake(sample) as fakes, pytest.raises(error) as info:
        call_wrapper(fakes)
    assert type(info.value) is error


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 1000),
    row_bytes=st.integers(1, 70_000),
    rows=st.integers(1, 200),
    total=st.integers(100_000, 3_000_000),
    repeats=st.booleans(),
    threads=st.sampled_from([2, 3, 5, 16]),
)
def test_sizes_and_threads(seed, row_bytes, rows, total, repeats, threads):
    """Enough bytes for several threads, in rows of any size."""

    def make() -> Sample:
        b = Builder(seed=seed)
        n = total // row_bytes + 1
        dst = b.rows(rows if repeats else n, (row_bytes,), gap=seed % 5, offset=seed % 8)
        src = b.rows(7, (row_bytes,), offset=seed % 3)
        dst_index = b.drawn(rows, n) if repeats else b.shuffled(n)
        return b.sample([dst], [src], b.index(dst_index), b.index(b.drawn(7, n)))

    got, want = make(), make()
    with num_threads(threads):
        call_wrapper(got)
    reference.sparse_copy(*want.args())
    assert_same(got, want)
