# SPDX-License-Identifier: Apache-2.0
"""The operators have no derivative: they refuse tensors that require grad and tell autograd what they write."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from torch_offload import sparse_copy, sparse_copy_ptrs

INDEX = torch.tensor([1, 0])


def pages(*shape: int) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def address(tensor: Tensor) -> Tensor:
    return torch.tensor([tensor.data_ptr()])


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad])
def test_every_destination_has_its_version_bumped_by_one(mode: Callable):
    dst, src = [pages(4, 2) for _ in range(5)], [pages(4, 2) for _ in range(5)]
    tensors = [*dst, *src, INDEX]
    versions = [tensor._version for tensor in tensors]
    with mode():
        sparse_copy(dst, src, INDEX, INDEX)
    assert [tensor._version - v for tensor, v in zip(tensors, versions, strict=True)] == [1] * 5 + [0] * 6


def test_views_share_the_version_of_their_base():
    kv = pages(2, 4, 2)
    version = kv._version
    sparse_copy([kv[0], kv[1]], [pages(4, 2)] * 2, INDEX, INDEX)
    assert kv._version == version + 2


def test_a_call_that_fails_bumps_nothing():
    dst = pages(4, 2)
    version = dst._version
    with pytest.raises(IndexError):
        sparse_copy(dst, pages(4, 2), torch.tensor([4]))
    assert dst._version == version


@pytest.mark.parametrize("arity", range(1, 5))
def test_fixed_arity_operators_bump_too(arity: int):
    dst, src = [pages(4, 2) for _ in range(arity)], [pages(4, 2) for _ in range(arity)]
    versions = [tensor._version for tensor in dst]
    getattr(torch.ops.offload, f"_sparse_copy_{arity}")(*dst, *src)
    assert [tensor._version for tensor in dst] == [version + 1 for version in versions]


def test_the_status_of_the_pointer_operator_is_bumped():
    src, dst, status = torch.ones(1), torch.zeros(1), torch.zeros(4, dtype=torch.int64)
    tables = address(src), address(dst), torch.tensor([4]), torch.tensor([1])
    versions = [table._version for table in tables]
    version = status._version
    sparse_copy_ptrs(*tables, status=status)
    assert status._version == version + 1
    assert [table._version for table in tables] == versions


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled_calls_bump_at_least_once(backend: str):
    torch._dynamo.reset()
    dst, src = pages(4, 2), pages(4, 2)
    version = dst._version
    torch.compile(sparse_copy, backend=backend, fullgraph=True)(dst, src, INDEX, INDEX)
    assert dst._version > version


def written_after_saving(copy: Callable) -> Tensor:
    weights = pages(4, 2).requires_grad_()
    cache = pages(4, 2)
    result = (weights * cache).sum()  # saves cache
    copy(cache, pages(4, 2), INDEX, INDEX)
    return result


def test_a_destination_that_was_saved_for_backward_is_noticed():
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        written_after_saving(sparse_copy).backward()


def test_a_destination_that_was_saved_for_backward_is_noticed_when_the_call_is_compiled():
    torch._dynamo.reset()
    compiled = torch.compile(sparse_copy, backend="aot_eager", fullgraph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        written_after_saving(compiled).backward()


@pytest.mark.parametrize("argument", ["dst", "src"])
@pytest.mark.parametrize("component", [0, 1, 4])
def test_tensors_that_require_grad_are_refused(argument: str, component: int):
    tensors = {"dst": [pages(4, 2) for _ in range(5)], "src": [pages(4, 3)[:, :2].clone() for _ in range(5)]}
    tensors[argument][component].requires_grad_()
    before = [tensor.detach().clone() for tensor in tensors["dst"]]
    with pytest.raises(NotImplementedError, match=rf"sparse_copy: expected {argument} not to require grad"):
        sparse_copy(**tensors, dst_index=INDEX, src_index=INDEX)
    assert all(torch.equal(a, e) for a, e in zip(tensors["dst"], before, strict=True))
    with torch.no_grad():
        sparse_copy(**tensors, dst_index=INDEX, src_index=INDEX)
    for dst, src in zip(tensors["dst"], tensors["src"], strict=True):
        assert torch.equal(dst[:2], src[:2])


def test_tables_that_require_grad_are_refused_by_their_dtype_or_by_grad():
    """Integers cannot require grad, so a table that does is a float table; grad mode decides which rule it meets."""
    table = torch.tensor([0.0]).requires_grad_()
    for arguments in ({"dst_index": table}, {"src_index": table}, {"count": table}):
        with pytest.raises(NotImplementedError, match=f"expected {next(iter(arguments))} not to require grad"):
            sparse_copy(pages(4, 2), pages(4, 2), **arguments)
        with torch.no_grad(), pytest.raises(TypeError, match=next(iter(arguments))):
            sparse_copy(pages(4, 2), pages(4, 2), **arguments)


def test_a_view_of_a_leaf_is_refused_as_destination():
    leaf = pages(4, 2).requires_grad_()
    for dst in (leaf, leaf[:2], leaf * 2):
        with pytest.raises(NotImplementedError, match="expected dst not to require grad"):
            sparse_copy(dst, pages(4, 2), INDEX, INDEX)
    sparse_copy(leaf.detach(), pages(4, 2), INDEX, INDEX)


def test_no_result_is_attached_to_a_graph():
    cache = pages(4, 2)
    sparse_copy(cache, pages(4, 2), INDEX, INDEX)
    assert not cache.requires_grad and cache.grad_fn is None and cache.is_leaf


def test_inference_tensors():
    with torch.inference_mode():
        made_inside = pages(4, 2)
        src = pages(4, 3)[:, :2]
        sparse_copy(made_inside, src, INDEX, INDEX)
        assert torch.equal(made_inside[:2], src[:2])
    outside = pages(4, 2)
    with torch.inference_mode():
        sparse_copy([outside, made_inside], [src, src], INDEX, INDEX)
    assert torch.equal(outside[:2], src[:2])
    sparse_copy([outside, made_inside], [src, src], INDEX + 2, INDEX)  # inference tensors have no version to bump
    assert torch.equal(made_inside[2:], src[:2])


def test_a_parameter_is_a_source_without_grad_mode():
    weights = torch.nn.Parameter(pages(4, 2))
    dst = torch.zeros(4, 2)
    with torch.no_grad():
        sparse_copy(dst, weights, INDEX, INDEX)
    assert torch.equal(dst[:2], weights[:2]) and not dst.requires_grad


@pytest.mark.parametrize("side", ["dst", "src"])
def test_dual_tensors_are_refused(side: str):
    tensors = {"dst": torch.zeros(4, 2), "src": pages(4, 2)}
    with torch.autograd.forward_ad.dual_level():
        plain = tensors[side]
        tensors[side] = torch.autograd.forward_ad.make_dual(plain, torch.ones(4, 2))
        for context in (torch.enable_grad, torch.no_grad):
            with context(), pytest.raises(NotImplementedError, match=rf"expected {side} to be no dual tensor"):
                sparse_copy(tensors["dst"], tensors["src"], INDEX, INDEX)
    assert (tensors["dst"] == 0).all()


def test_forward_derivatives_are_refused():
    def copied(src: Tensor) -> Tensor:
        dst = torch.zeros(4, 2)
        sparse_copy(dst, src)
        return dst.sum()

    with pytest.raises(NotImplementedError, match="expected src to be no dual tensor"):
        torch.func.jvp(copied, (pages(4, 2),), (torch.ones(4, 2),))
