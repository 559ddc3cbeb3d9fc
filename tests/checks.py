# SPDX-License-Identifier: Apache-2.0
"""What the tests of the operators share: run a sample, compare all of its bytes."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import reference
import torch
from cases import Sample
from torch import Tensor

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


@contextmanager
def unchanged(*tensors: Tensor) -> Iterator[None]:
    """Expects the body to leave every byte of the tensors as it is."""
    before = [reference.as_bytes(tensor).clone() for tensor in tensors]
    yield
    for tensor, old in zip(tensors, before, strict=True):
        assert torch.equal(reference.as_bytes(tensor), old), "bytes have been written"


def check_refused(sample: Sample, error: type[Exception], match: str) -> None:
    """Expects the wrapper and the operator to raise, and to write nothing."""
    for call in (call_wrapper, call_operator):
        with unchanged(*sample.tensors()), pytest.raises(error, match=match) as info:
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


def clone(sample: Sample) -> Sample:
    """A sample with memory of its own, in which views share storages as they do in the original."""
    return copy.deepcopy(sample)
