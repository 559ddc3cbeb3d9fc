# SPDX-License-Identifier: Apache-2.0
"""A graph writes destinations in place: the generated code allocates and copies none of them."""

from collections.abc import Callable, Sequence

import pytest
import torch
from graphs import assert_nothing_is_copied, assert_same_bytes, generated_code, operators_of
from torch import Tensor

from torch_offload import sparse_copy

pytestmark = [
    pytest.mark.usefixtures("fresh_compiler"),
    pytest.mark.filterwarnings("ignore:dynamo_pgo force disabled"),
]

DYNAMIC = pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
DST_INDEX, SRC_INDEX = torch.tensor([1, 0, 3]), torch.tensor([2, -1, 4], dtype=torch.int32)


def copy(dst, src, dst_index, src_index, count=None):
    sparse_copy(dst, src, dst_index, src_index, count=count)


def pages(*shape: int) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def check(function: Callable, make: Callable[[], tuple], operators: Sequence[str], dynamic: bool) -> None:
    expected, actual = make(), make()
    function(*expected, DST_INDEX, SRC_INDEX)
    code = generated_code(function, *actual, DST_INDEX, SRC_INDEX, dynamic=dynamic)
    assert operators_of(code) == list(operators)
    assert_nothing_is_copied(code)
    assert_same_bytes(actual, expected)


@DYNAMIC
def test_separate_tensors(dynamic: bool):
    def make():
        return [pages(8, width) for width in (3, 4, 5)], [pages(9, width) for width in (3, 4, 5)]

    check(copy, make, ["_sparse_copy_3"], dynamic)


@DYNAMIC
def test_five_components_of_five_row_counts(dynamic: bool):
    def make():
        return [pages(8 + c, 3 + c) for c in range(5)], [pages(19 - c, 3 + c) for c in range(5)]

    check(copy, make, ["_sparse_copy_4", "_sparse_copy_1"], dynamic)


@DYNAMIC
def test_keys_and_values_of_one_storage_as_inputs(dynamic: bool):
    def make():
        kv, src = pages(2, 8, 4), pages(2, 9, 4)
        return [kv[0], kv[1]], [src[0], src[1]]

    check(copy, make, ["_sparse_copy_1", "_sparse_copy_1"], dynamic)


def selects(kv, src, *index):
    sparse_copy([kv[0], kv[1]], [src, src], *index)


def unbound_columns(kv, src, *index):
    sparse_copy(kv.unbind(1), [src, src], *index)


def slices(kv, src, *index):
    sparse_copy([kv[0, 2:6], kv[1, 2:]], [src, src], *index)


def slices_of_rows(kv, src, *index):
    pool = kv[0]
    sparse_copy([pool[:4], pool[4:]], [src, src], *index)


def split_columns(kv, src, *index):
    pool = kv[0]
    sparse_copy([*pool.split([3, 1], 1)], [*src.split([3, 1], 1)], *index)


@DYNAMIC
@pytest.mark.parametrize(
    "function", [selects, slices, slices_of_rows, split_columns], ids=lambda function: function.__name__
)
def test_views_taken_inside_the_graph(function: Callable, dynamic: bool):
    check(function, lambda: (pages(2, 10, 4), pages(9, 4)), ["_sparse_copy_1", "_sparse_copy_1"], dynamic)


@DYNAMIC
def test_interleaved_keys_and_values_taken_inside_the_graph(dynamic: bool):
    check(unbound_columns, lambda: (pages(10, 2, 4), pages(9, 4)), ["_sparse_copy_1", "_sparse_copy_1"], dynamic)


@DYNAMIC
def test_slices_of_two_tensors_stay_one_operator(dynamic: bool):
    def function(k, v, src, *index):
        sparse_copy([k[2:6], v[2:6]], [src, src], *index)

    check(function, lambda: (pages(10, 4), pages(11, 4), pages(9, 4)), ["_sparse_copy_2"], dynamic)


@DYNAMIC
def test_two_calls_with_different_indices(dynamic: bool):
    def function(dst, src, dst_index, src_index):
        sparse_copy(dst, src, dst_index, src_index)
        sparse_copy(dst, src, src_index, dst_index)

    check(function, lambda: (pages(8, 4), pages(9, 4)), ["_sparse_copy_1", "_sparse_copy_1"], dynamic)


def allocated_bytes(function: Callable, *args: object) -> int:
    """All that `function` allocates on the CPU, freed again or not."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        function(*args)
    return sum(
        max(0, event.nbytes()) for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"
    )


def test_a_large_base_is_neither_allocated_nor_copied():
    rows = 256 * 1024  # of 1 KiB: 256 MiB
    base = torch.empty(rows, 256)
    pool = torch.ones(16, 256)

    def function(base, pool, dst_index, src_index):
        sparse_copy([base[4:2048], base[4096:, 16:32]], [pool, pool[:, 16:32]], dst_index, src_index)

    compiled = torch.compile(function, backend="inductor", fullgraph=True)
    base[5], base[4098], base[4097] = 0, 0, 0
    compiled(base, pool, DST_INDEX, SRC_INDEX)
    assert allocated_bytes(compiled, base, pool, DST_INDEX, SRC_INDEX) < 1 << 20
    assert base[5].sum() == 256 and base[4097].sum() == 16 and base[4098].sum() == 0
    assert allocated_bytes(torch.clone, pool) >= pool.nbytes, "the profiler counts allocations"
