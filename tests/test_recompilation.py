# SPDX-License-Identifier: Apache-2.0
"""What compiles a call again, and what does not."""

from collections.abc import Callable

import pytest
import torch
from graphs import BACKENDS, assert_same_bytes, compile_counted
from torch import Tensor

from torch_offload import sparse_copy

pytestmark = [
    pytest.mark.usefixtures("fresh_compiler"),
    pytest.mark.filterwarnings("ignore:dynamo_pgo force disabled"),
]


def copy(dst, src, dst_index=None, src_index=None, count=None):
    sparse_copy(dst, src, dst_index, src_index, count=count)


def pages(*shape: int) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.parametrize("dynamic", [False, True, None])
@pytest.mark.parametrize("backend", BACKENDS)
def test_values_do_not_recompile(backend: str, dynamic: bool | None):
    compiled, counter = compile_counted(copy, backend, dynamic=dynamic)
    src = pages(9, 4)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for n in range(5):
            for values in ([0, 1, 2, 3], [-1, 7, 7, 2]):
                expected, actual = pages(8, 4), pages(8, 4)
                index, count = torch.tensor(values), torch.tensor([n])
                copy(expected, src, index, index + 1, count)
                compiled(actual, src, index, index + 1, count)
                assert torch.equal(actual, expected)
    assert counter.frame_count == 1


@pytest.mark.parametrize("backend", BACKENDS)
def test_row_counts_compile_the_special_and_the_dynamic_variants_only(backend: str):
    compiled, counter = compile_counted(copy, backend, dynamic=True)
    for rows in (0, 1, 2, 7, 4096):
        expected, actual, src = pages(rows, 4), pages(rows, 4), pages(rows + 3, 4)
        index = torch.arange(rows).flip(0)
        copy(expected, src, index, index + 3)
        compiled(actual, src, index, index + 3)
        assert torch.equal(actual, expected)
    assert counter.frame_count <= 3  # 0, 1 and any other


@pytest.mark.parametrize("backend", BACKENDS)
def test_row_counts_become_dynamic_by_themselves(backend: str):
    compiled, counter = compile_counted(copy, backend)
    for rows in (8, 9, 100, 17, 4096, 2):
        expected, actual, src = pages(rows, 4), pages(rows, 4), pages(rows + 3, 4)
        copy(expected, src[:rows])
        compiled(actual, src[:rows])
        assert torch.equal(actual, expected)
    assert counter.frame_count == 2  # the first shape, then any


# AOTAutograd does not guard that inputs which did not share bytes at first never will; a function of plain in-place
# operations is wrong then too. inductor writes in place, and so our calls stay right or are refused.
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_distinct_then_of_one_storage_then_overlapping(backend: str, dynamic: bool):
    compiled, counter = compile_counted(copy, backend, dynamic=dynamic)
    index = torch.tensor([3, 0, 2]), torch.tensor([1, 4, 0])

    def both(dst_of: Callable[[Tensor], list[Tensor]]) -> None:
        expected, actual = pages(2, 8, 4), pages(2, 8, 4)
        src = [pages(9, 4), pages(10, 4)[:9]]
        copy(dst_of(expected), src, *index)
        compiled(dst_of(actual), src, *index)
        assert_same_bytes(actual, expected)

    both(lambda kv: [kv[0], kv[1].clone()])
    both(lambda kv: [kv[0], kv[1]])
    assert counter.frame_count == 1
    if backend == "inductor":
        both(lambda kv: [kv.view(16, 4)[:8], kv.view(16, 4)[2:10]])  # the later component wins
        both(lambda kv: [kv.view(16, 4)[2:10], kv.view(16, 4)[:8]])


@pytest.mark.parametrize(("components", "d", "s"), [(1, 0, 0), (2, 1, 1), (5, 4, 4), (5, 0, 4), (5, 4, 0), (9, 5, 8)])
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_overlap_that_appears_at_run_time_is_refused(dynamic: bool, components: int, d: int, s: int):
    """Five components are two operators, nine are three: what lies in different ones must be seen as well."""
    compiled, counter = compile_counted(copy, "inductor", dynamic=dynamic)
    index = torch.tensor([3, 0, 2]), torch.tensor([1, 4, 0])
    compiled(*([pages(8, 4) for _ in range(components)] for _ in range(2)), *index)
    dst, src = ([pages(8, 4) for _ in range(components)] for _ in range(2))
    pool = pages(20, 4)
    dst[d], src[s] = pool[:8], pool[4:12]
    before = [tensor.clone() for tensor in (pool, *dst)]
    message = rf"expected dst\[{d}\] not to overlap what the call reads, got bytes shared with src\[{s}\]$"
    with pytest.raises(ValueError, match=message):
        compiled(dst, src, *index)
    assert_same_bytes([pool, *dst], before)
    assert counter.frame_count == 1


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_overlap_with_one_half_of_a_cache_that_appears_at_run_time_is_refused(dynamic: bool):
    """Two destinations of one storage are two operators; the first must see what the second would write."""

    def halves(kv, k, v, index):
        sparse_copy([kv[0], kv[1]], [k, v], index, index)

    compiled, counter = compile_counted(halves, "inductor", dynamic=dynamic)
    index = torch.tensor([3, 0, 2])
    compiled(pages(2, 8, 4), pages(8, 4), pages(8, 4), index)
    pool = pages(24, 4)
    before = pool.clone()
    with pytest.raises(
        ValueError, match=r"dst\[1\] not to overlap what the call reads, got bytes shared with src\[0\]$"
    ):
        compiled(pool[:16].view(2, 8, 4), pool[15:23], pages(8, 4), index)
    assert torch.equal(pool, before)
    assert counter.frame_count == 1


@pytest.mark.parametrize("inside", [False, True], ids=["inputs", "taken inside"])
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_destination_that_another_operator_of_the_graph_reads_is_refused(backend: str, dynamic: bool, inside: bool):
    def of_base(kv, other, index):
        sparse_copy([kv[0], kv[1]], [other, kv[0]], src_index=index)

    def of_views(a, b, other, index):
        sparse_copy([a, b], [other, a], src_index=index)

    index = torch.tensor([3, 4, 5])
    kv, other = pages(2, 20, 8), pages(20, 8)
    before = kv.clone()
    compiled, _ = compile_counted(of_base if inside else of_views, backend, dynamic=dynamic)
    with pytest.raises(Exception, match=r"dst\[0\] not to overlap what the call reads, got bytes shared with src\[1\]"):
        compiled(*((kv,) if inside else kv), other, index)
    assert torch.equal(kv, before)


@pytest.mark.parametrize("backend", BACKENDS)
def test_views_of_one_storage_that_lie_apart_or_interleave_stay_dynamic(backend: str):
    """Destinations and sources in one buffer: right for any size, and apart with one compilation."""

    def halves(buffer, rows, index):
        sparse_copy([buffer[:rows, 0], buffer[:rows, 1]], [buffer[rows:, 0], buffer[rows:, 1]], src_index=index)

    compiled, _ = compile_counted(halves, backend, dynamic=True)
    for rows in (8, 9, 17, 30):
        expected, actual = pages(2 * rows, 2, 4), pages(2 * rows, 2, 4)
        index = torch.arange(rows).flip(0)
        halves(expected, rows, index)
        compiled(actual, rows, index)
        assert torch.equal(actual, expected)

    def columns(buffer, index):
        sparse_copy([buffer[:, 0], buffer[:, 1]], [buffer[:, 2], buffer[:, 3]], index, index)

    compiled, _ = compile_counted(columns, backend, dynamic=True)
    for rows in (8, 9, 17):
        expected, actual = pages(rows, 4, 4), pages(rows, 4, 4)
        index = torch.tensor([5, 2])
        columns(expected, index)
        compiled(actual, index)
        assert torch.equal(actual, expected)


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_row_counts_by_position_are_compared_across_operators(backend: str, dynamic: bool):
    compiled, _ = compile_counted(copy, backend, dynamic=dynamic)
    dst = [pages(8, 3) for _ in range(6)]
    src = [pages(8, 3) for _ in range(5)] + [pages(5, 3)]
    before = [tensor.clone() for tensor in dst]
    with pytest.raises(Exception, match=r"src\[5\] to have the (8|s\d+) rows of dst\[0\].*, got (5|s\d+)"):
        compiled(dst, src)
    assert_same_bytes(dst, before)


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_overlap_of_the_first_call_is_refused(backend: str, dynamic: bool):
    compiled, _ = compile_counted(copy, backend, dynamic=dynamic)
    pool = pages(20, 4)
    before = pool.clone()
    with pytest.raises(Exception, match="not to overlap what the call reads"):
        compiled([pool[:8], pages(8, 3)], [pool[4:12], pages(8, 3)])
    assert torch.equal(pool, before)
