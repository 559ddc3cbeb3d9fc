# SPDX-License-Identifier: Apache-2.0
"""What the tests of the operators share: run a sample, compare all of its bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import reference
import torch
from cases import Sample
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

import torch_offload


def same_bytes(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and torch.equal(reference.as_bytes(a), reference.as_bytes(b))


def call_wrapper(sample: Sample) -> None:
    torch_offload.sparse_copy(
        sample.dst, sample.src, dst_index=sample.dst_index, src_index=sample.src_index, count=sample.count
    )


def call_operator(sample: Sample) -> None:
    torch.ops.offload.sparse_copy.default(*sample.args())


def check_sparse_copy(make: Callable[[], Sample], call: Callable[[Sample], None] = call_wrapper) -> Sample:
    """Runs one sample through the operator and another through the reference; every byte must agree."""
    got, want = make(), make()
    call(got)
    reference.sparse_copy(*want.args())
    assert_same(got, want)
    return got


def assert_same(got: Sample, want: Sample) -> None:
    for number, (a, b) in enumerate(zip(got.tensors(), want.tensors(), strict=True)):
        if not same_bytes(a, b):
            different = (reference.as_bytes(a) != reference.as_bytes(b)).flatten().nonzero().flatten()
            pytest.fail(f"buffer {number}: {len(different)} bytes differ, the first at {different[:8].tolist()}")


def has_bytes(tensor: Tensor) -> bool:
    return tensor.layout == torch.strided and not (tensor.is_meta or tensor.is_nested)


@contextmanager
def unchanged(*tensors: Tensor) -> Iterator[None]:
    """Expects the body to leave every byte of the tensors as it is."""
    before = [reference.as_bytes(tensor).clone() for tensor in tensors]
    yield
    for tensor, old in zip(tensors, before, strict=True):
        assert torch.equal(reference.as_bytes(tensor), old), "bytes have been written"


def check_refused(sample: Sample, error: type[Exception], match: str) -> None:
    """Expects the wrapper and the operator to raise, and to write nothing."""
    written = [tensor for tensor in sample.dst if has_bytes(tensor)]
    for call in (call_wrapper, call_operator):
        with unchanged(*sample.tensors(), *written), pytest.raises(error, match=match) as info:
            call(sample)
        assert type(info.value) is error


@contextmanager
def num_threads(threads: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def convert(sample: Sample, convert_one: Callable[[Tensor], Tensor]) -> Sample:
    tables = [None if t is None else convert_one(t) for t in (sample.dst_index, sample.src_index, sample.count)]
    return Sample([convert_one(t) for t in sample.dst], [convert_one(t) for t in sample.src], *tables)


class ToMeta:
    """Makes tensors without data that share storages where the given ones do."""

    def __init__(self) -> None:
        self.storages: dict[int, torch.UntypedStorage] = {}

    def __call__(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        meta = torch.empty(storage.nbytes(), dtype=torch.uint8, device="meta").untyped_storage()
        meta = self.storages.setdefault(storage.data_ptr(), meta)
        result = torch.empty(0, dtype=tensor.dtype, device="meta")
        return result.set_(meta, tensor.storage_offset(), tensor.shape, tensor.stride())


@contextmanager
def fake(sample: Sample) -> Iterator[Sample]:
    """The sample as fake tensors, with their mode on."""
    with FakeTensorMode() as mode:
        yield convert(sample, mode.from_tensor)
