# SPDX-License-Identifier: Apache-2.0
"""A compiled call leaves in memory, guard bytes included, what an eager call leaves there."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from cases import CASES, Case, Sample, by_name
from graphs import BACKENDS, assert_like_eager, compile_counted
from torch import Tensor
from torch._inductor.exc import InductorError

from torch_offload import sparse_copy

pytestmark = [
    pytest.mark.usefixtures("fresh_compiler"),
    pytest.mark.filterwarnings("ignore:dynamo_pgo force disabled"),
]


def copy(dst, src, dst_index=None, src_index=None, count=None):
    sparse_copy(dst, src, dst_index, src_index, count=count)


COMPLEX = pytest.mark.xfail(reason="inductor compiles no operator that writes a complex tensor", raises=InductorError)


def compiled_cases() -> Iterator[Any]:
    for case in CASES:
        for backend in BACKENDS:
            unsupported = backend == "inductor" and case.name == "dtype_complex64"
            yield pytest.param(case, backend, marks=[COMPLEX] if unsupported else [], id=f"{case.name}-{backend}")


def make(case: Case) -> Sample:
    sample = case.make()
    if case.name == "dtype_bool":  # aot_eager writes into a clone, and torch clones only 0 and 1
        for buffer in sample.buffers:
            buffer &= 1
    return sample


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize(("case", "backend"), compiled_cases())
def test_every_case(case: Case, backend: str, dynamic: bool):
    expected, actual = make(case), make(case)
    copy(*expected.args())
    compiled, counter = compile_counted(copy, backend, dynamic=dynamic)
    compiled(*actual.args())
    assert counter.frame_count == 1
    for a, e in zip(actual.tensors(), expected.tensors(), strict=True):
        assert torch.equal(a, e)


MARKABLE = ["gather", "both_indices", "strided_rows", "slices_of_rows", "count_hides_the_rest", "five_components"]


@pytest.mark.parametrize("mark", ["mark_dynamic", "mark_unbacked"])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", MARKABLE)
def test_marked_row_counts(name: str, backend: str, mark: str):
    expected, actual = by_name(name).make(), by_name(name).make()
    copy(*expected.args())
    marker = torch._dynamo.mark_dynamic if mark == "mark_dynamic" else torch._dynamo.decorators.mark_unbacked
    dst, src, *tables, _ = actual.args()
    for tensor in [*src, *(table for table in tables if table is not None)]:
        marker(tensor, 0)
    if mark == "mark_dynamic":
        for tensor in dst:
            marker(tensor, 0)
    compiled, counter = compile_counted(copy, backend)
    compiled(*actual.args())
    assert counter.frame_count == 1
    for a, e in zip(actual.tensors(), expected.tensors(), strict=True):
        assert torch.equal(a, e)


def pages(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


MASK = torch.tensor([True, False, True, True, False, False, True, False])


def rows_where_true(dst, src, mask):
    rows = mask.nonzero().squeeze(1)
    sparse_copy(dst, src, rows, rows)


def rows_taken_by_mask(dst, src, mask, dst_index, src_index):
    taken = src[mask]
    sparse_copy(dst, [taken, taken], dst_index, src_index)


def rows_made_inside(src, mask, src_index):
    taken = src[mask]
    made = torch.zeros_like(taken)
    sparse_copy(made, taken)
    sparse_copy(made, taken, None, src_index)
    return made


@pytest.mark.parametrize("backend", BACKENDS)
@torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True)
def test_unbacked_row_counts(backend: str):
    index = torch.tensor([2, -1, 0])
    assert_like_eager(rows_where_true, lambda: (pages(8, 3), pages(8, 3, seed=1), MASK), backend)
    dst = lambda: [pages(6, 3), pages(6, 3, seed=1)]  # noqa: E731
    assert_like_eager(
        rows_taken_by_mask, lambda: (dst(), pages(8, 3, seed=2), MASK, index, torch.tensor([3, 1, 0])), backend
    )
    assert_like_eager(rows_made_inside, lambda: (pages(8, 3, seed=2), MASK, torch.tensor([3, 1])), backend)


def two_calls(dst, src, i, j):
    sparse_copy(dst, src, i, j)
    sparse_copy(dst, src, j, i)


def read_copy_read(dst, src, i, j):
    before = dst[i]
    sparse_copy(dst, src, i, j)
    between = dst[i]
    sparse_copy(dst, src, i, i)
    return before, between, dst[i]


def into_a_new_tensor(dst, src, i, j):
    made = torch.zeros_like(dst)
    sparse_copy(made, src, i, j)
    return made


def copied_onwards(dst, src, i, j):
    made = torch.zeros_like(dst)
    sparse_copy(made, src, i, j)
    sparse_copy(dst, made, j, i)


CHAINS = [two_calls, read_copy_read, into_a_new_tensor, copied_onwards]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("function", CHAINS, ids=lambda function: function.__name__)
def test_calls_survive_and_keep_their_order(function: Callable, backend: str):
    index = torch.tensor([1, 4, 2]), torch.tensor([4, 1, 5])
    assert_like_eager(function, lambda: (pages(8, 3), pages(8, 3, seed=1), *index), backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_grad_mode(mode: Callable, backend: str):
    with mode():
        index = torch.tensor([1, 4, 2])
        assert_like_eager(copy, lambda: (pages(8, 3), pages(8, 3, seed=1), index, index), backend)
        weights = torch.nn.Parameter(pages(8, 3, seed=1))
        assert_like_eager(copy, lambda: (pages(8, 3), weights, index, index), backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_inference_mode_inside_the_graph(backend: str):
    @torch.inference_mode()
    def function(dst, src, index):
        sparse_copy(dst, src, index, index)

    assert_like_eager(function, lambda: (pages(8, 3), pages(8, 3, seed=1), torch.tensor([3, 3, 0])), backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_bad_values_raise_what_eager_raises(backend: str):
    dst, src = pages(8, 3), pages(8, 3, seed=1)
    before = dst.clone()
    compiled, _ = compile_counted(copy, backend)
    with pytest.raises(IndexError, match=r"src_index\[1\]"):
        compiled(dst, src, torch.tensor([0, 1]), torch.tensor([0, 8]))
    with pytest.raises(ValueError, match="count"):
        compiled(dst, src, torch.tensor([0, 1]), torch.tensor([0, 1]), torch.tensor(3))
    assert torch.equal(dst, before)


def test_requires_grad_is_refused_while_compiling():
    compiled, _ = compile_counted(copy, "aot_eager")
    with pytest.raises(Exception, match="not to require grad"):
        compiled(pages(8, 3), pages(8, 3).requires_grad_(), None, None)
