# SPDX-License-Identifier: Apache-2.0
"""Samples of the arguments of sparse_copy_ptrs, as `cases` has them for sparse_copy.

The tables hold addresses inside the sample's own buffers, so a sample must stay alive while they are used, and two
samples of one case differ in their tables only by where their buffers are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from cases import GUARD_BYTES, Builder
from torch import Tensor


@dataclass
class PtrSample:
    """Arguments of sparse_copy_ptrs. `buffers` are the uint8 storages in which all addresses lie."""

    src_ptrs: Tensor
    dst_ptrs: Tensor
    lengths: Tensor
    count: Tensor
    status: Tensor
    buffers: list[Tensor] = field(default_factory=list)

    def tables(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """All arguments of `torch.ops.offload.sparse_copy_ptrs` but the status, in its order."""
        return self.src_ptrs, self.dst_ptrs, self.lengths, self.count

    def args(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """The arguments of `torch.ops.offload.sparse_copy_ptrs`, in its order."""
        return (*self.tables(), self.status)


@dataclass(frozen=True)
class PtrCase:
    """A named sample."""

    name: str
    make: Callable[..., PtrSample]  # make(device="cpu")


PTR_CASES: list[PtrCase] = []


def ptr_case(function: Callable[[Builder], PtrSample]) -> Callable[..., PtrSample]:
    """Adds the sample that `function` builds to `PTR_CASES`, under its name."""
    seed = 1000 + len(PTR_CASES)

    def make(device: str | torch.device = "cpu") -> PtrSample:
        return function(Builder(device, seed))

    PTR_CASES.append(PtrCase(function.__name__, make))
    return make


def sample_of(
    b: Builder,
    src: Sequence[int],
    dst: Sequence[int],
    lengths: Sequence[int],
    *,
    count: Tensor | None = None,
    addresses: torch.dtype = torch.int64,
    sizes: torch.dtype = torch.int64,
) -> PtrSample:
    count = b.index([len(lengths)]) if count is None else count
    status = torch.full((4,), -77, dtype=torch.int64, device=b.device)
    tables = b.index(src, addresses), b.index(dst, addresses), b.index(lengths, sizes), count
    return PtrSample(*tables, status, b.buffers)


def ranges(b: Builder, lengths: Sequence[int], *, gap: int = 5) -> tuple[list[int], list[int]]:
    """Addresses of sources and of destinations for the lengths: disjoint, between guards, in shuffled order."""
    result = []
    for _ in range(2):
        order = b.shuffled(len(lengths))
        buffer = b.buffer(2 * GUARD_BYTES + sum(lengths) + gap * len(lengths))
        address = buffer.data_ptr() + GUARD_BYTES
        addresses = [0] * len(lengths)
        for i in order:
            addresses[i] = address
            address += lengths[i] + gap
        result.append(addresses)
    return result[0], result[1]


@ptr_case
def one_entry(b: Builder) -> PtrSample:
    return sample_of(b, *ranges(b, [1000]), [1000])


@ptr_case
def odd_number_of_entries(b: Builder) -> PtrSample:
    lengths = [1, 2, 3, 15, 17, 63, 65, 132, 584, 656, 4097]
    return sample_of(b, *ranges(b, lengths), lengths)


@ptr_case
def keys_and_values_of_two_lengths(b: Builder) -> PtrSample:
    lengths = [1024, 128] * 9
    return sample_of(b, *ranges(b, lengths), lengths, sizes=torch.int32)


@ptr_case
def unsigned_addresses(b: Builder) -> PtrSample:
    lengths = [7, 64, 33]
    return sample_of(b, *ranges(b, lengths), lengths, addresses=torch.uint64)


@ptr_case
def signed_and_unsigned_addresses(b: Builder) -> PtrSample:
    lengths = [7, 64, 33]
    sample = sample_of(b, *ranges(b, lengths), lengths)
    sample.dst_ptrs = sample.dst_ptrs.view(torch.uint64)
    return sample


@ptr_case
def columns_of_one_table(b: Builder) -> PtrSample:
    lengths = [7, 64, 33, 1, 0]
    src, dst = ranges(b, lengths)
    table = b.index(list(zip(src, dst, lengths, strict=True)))
    sample = sample_of(b, src, dst, lengths)
    sample.src_ptrs, sample.dst_ptrs, sample.lengths = table.unbind(1)
    return sample


@ptr_case
def zero_lengths(b: Builder) -> PtrSample:
    lengths = [0, 9, 0, 0, 65, 0]
    src, dst = ranges(b, lengths)
    src[0] = dst[2] = 0
    src[3], dst[5] = 1, -1  # never looked at
    return sample_of(b, src, dst, lengths)


@ptr_case
def refused_entries(b: Builder) -> PtrSample:
    lengths = [9, 65, 12, 13, 14, 0]
    src, dst = ranges(b, lengths)
    src[1] = 0
    dst[3] = 0
    lengths[4] = -14
    return sample_of(b, src, dst, lengths, sizes=torch.int32)


@ptr_case
def one_entry_with_most_bytes(b: Builder) -> PtrSample:
    lengths = [3, 8, 1_000_003, 5, 64]
    return sample_of(b, *ranges(b, lengths), lengths)


@ptr_case
def more_entries_than_threads(b: Builder) -> PtrSample:
    lengths = [1 + i * 37 % 3000 for i in range(300)]
    return sample_of(b, *ranges(b, lengths), lengths)


@ptr_case
def count_of_the_first_entries(b: Builder) -> PtrSample:
    lengths = [9, 65, 12, 13]
    src, dst = ranges(b, lengths)
    src[2], dst[3], lengths[3] = 1, 1, 1 << 40  # never looked at
    return sample_of(b, src, dst, lengths, count=b.index(2, torch.int32))


@ptr_case
def no_entries(b: Builder) -> PtrSample:
    b.buffer(64)
    return sample_of(b, [], [], [])
