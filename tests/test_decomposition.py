# SPDX-License-Identifier: Apache-2.0
"""Tracing splits the list operator by storage; eager calls never do."""

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch._subclasses.functional_tensor import FunctionalTensor, FunctionalTensorMode

from torch_offload import decomposition, sparse_copy
from torch_offload.decomposition import group_by_storage, storage_id


def pages(*shape: int) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(sum(shape)))


KV = torch.zeros(3, 8, 4)
OTHER = [torch.zeros(8, 4) for _ in range(12)]


@pytest.mark.parametrize(
    ("dst", "groups"),
    [
        (OTHER[:1], [[0]]),
        (OTHER[:3], [[0, 1, 2]]),
        (OTHER[:4], [[0, 1, 2, 3]]),
        (OTHER[:5], [[0, 1, 2, 3], [4]]),
        (OTHER[:9], [[0, 1, 2, 3], [4, 5, 6, 7], [8]]),
        ([KV[0], KV[1], KV[2]], [[0], [1], [2]]),
        ([KV[0], KV[1], OTHER[0]], [[0], [1, 2]]),
        ([KV[0], OTHER[0], KV[1]], [[0, 1], [2]]),
        ([OTHER[0], KV[0], OTHER[1], OTHER[2], KV[1]], [[0, 1, 2, 3], [4]]),
        ([KV, KV], [[0], [1]]),
        ([], []),
    ],
    ids=lambda value: None if any(isinstance(item, Tensor) for item in value) else str(value),
)
def test_groups(dst: list[Tensor], groups: list[list[int]]):
    assert group_by_storage(dst) == groups
    with FakeTensorMode() as mode:
        assert group_by_storage([mode.from_tensor(tensor) for tensor in dst]) == groups


def test_storage_id_of_real_fake_and_functional_tensors():
    def check(base: Tensor, other: Tensor) -> None:
        views = [base, base[1], base.unbind(1)[0], base.view(torch.int32), base.detach(), base.T]
        assert len({storage_id(view) for view in views}) == 1
        assert storage_id(other) != storage_id(base)

    check(torch.zeros(4, 4), torch.zeros(4, 4))
    with FakeTensorMode():
        check(torch.zeros(4, 4), torch.zeros(4, 4))
        with FunctionalTensorMode():
            base, other = torch.zeros(4, 4), torch.zeros(4, 4)
            assert isinstance(base, FunctionalTensor)
            check(base, other)
            base.add_(1)  # functionalization has given it another value by now
            check(base, other)


def test_eager_calls_never_enter_the_decomposition(monkeypatch: pytest.MonkeyPatch):
    def fail(*_: object) -> None:
        raise AssertionError("an eager call entered the Python decomposition")

    monkeypatch.setattr(decomposition, "group_by_storage", fail)
    kv, src, index = pages(2, 8, 4), pages(9, 4), torch.tensor([1, 2])
    call = lambda: sparse_copy([kv[0], kv[1]], [src, src], index, index)  # noqa: E731
    call()
    with torch.no_grad():
        sparse_copy([kv[0], kv[1]], [src.requires_grad_(), src], index, index)
    with torch.inference_mode():
        call()
        sparse_copy(torch.zeros(8, 4), src, index, index)
    src.requires_grad_(False)
    sparse_copy(torch.empty(8, 4, device="meta"), torch.empty(8, 4, device="meta"))
    with pytest.raises(AssertionError, match="Python decomposition"), FakeTensorMode():
        sparse_copy(torch.empty(8, 4), torch.empty(8, 4))
