# SPDX-License-Identifier: Apache-2.0
"""Samples of the operators' arguments, shared by the tests of every mode and every device.

A case makes its sample anew at each call, always with the same values: make it twice, give one to the operator and the
other to the reference, and compare `tensors()` of both, which hold every byte that either could have touched.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

GUARD_BYTES = 192  # before and after the rows of each buffer; more than any cache line or vector


@dataclass
class Sample:
    """Arguments of sparse_copy. `buffers` are the uint8 storages, guards included, in which dst and src lie."""

    dst: list[Tensor]
    src: list[Tensor]
    dst_index: Tensor | None = None
    src_index: Tensor | None = None
    count: Tensor | None = None
    buffers: list[Tensor] = field(default_factory=list)

    def args(self) -> tuple[list[Tensor], list[Tensor], Tensor | None, Tensor | None, Tensor | None]:
        """The arguments of `torch.ops.offload.sparse_copy`, in its order."""
        return self.dst, self.src, self.dst_index, self.src_index, self.count

    def tensors(self) -> list[Tensor]:
        """All memory of the sample, to be compared with that of another one."""
        return [*self.buffers, *(t for t in (self.dst_index, self.src_index, self.count) if t is not None)]


@dataclass(frozen=True)
class Case:
    """A named sample."""

    name: str
    make: Callable[..., Sample]  # make(device="cpu")


class Builder:
    """Makes the tensors of one sample; every byte that it hands out is pseudo-random, the same at each run."""

    def __init__(self, device: str | torch.device = "cpu", seed: int = 0) -> None:
        self.device = torch.device(device)
        self.generator = torch.Generator().manual_seed(seed)
        self.buffers: list[Tensor] = []

    def buffer(self, size: int) -> Tensor:
        """`size` random bytes of a storage of their own."""
        data = torch.empty(size, dtype=torch.uint8)
        data.random_(0, 256, generator=self.generator)
        self.buffers.append(data.to(self.device))
        return self.buffers[-1]

    def rows(
        self,
        rows: int,
        shape: Sequence[int],
        dtype: torch.dtype = torch.uint8,
        *,
        offset: int = 0,
        gap: int = 0,
    ) -> Tensor:
        """A tensor `[rows, *shape]` between guard bytes, in a storage of its own.

        It begins `offset` elements behind the guard, and `gap` elements lie between a row and the next.
        """
        size = dtype.itemsize
        row = 1
        for length in shape:
            row *= length
        guard = -(-GUARD_BYTES // size)
        elements = guard + offset + rows * (row + gap) + guard
        flat = self.buffer(elements * size).view(dtype)
        strides = [row + gap]
        for length in shape:
            row = row // length if length else 0
            strides.append(row)
        return flat.as_strided((rows, *shape), strides, guard + offset)

    def shuffled(self, size: int, n: int | None = None) -> list[int]:
        """`n` distinct numbers below `size`, in random order."""
        return torch.randperm(size, generator=self.generator)[:n].tolist()

    def drawn(self, size: int, n: int) -> list[int]:
        """`n` numbers below `size`, some of them more than once."""
        return torch.randint(size, (n,), generator=self.generator).tolist()

    def index(self, values: Sequence[int], dtype: torch.dtype = torch.int64) -> Tensor:
        return torch.tensor(values, dtype=dtype).to(self.device)

    def sample(self, dst: Sequence[Tensor], src: Sequence[Tensor], *tables: Tensor | None, **kwargs: Tensor) -> Sample:
        return Sample(list(dst), list(src), *tables, **kwargs, buffers=self.buffers)


CASES: list[Case] = []


def case(function: Callable[[Builder], Sample]) -> Callable[..., Sample]:
    """Adds the sample that `function` builds to `CASES`, under its name."""
    seed = len(CASES) + 1

    def make(device: str | torch.device = "cpu") -> Sample:
        return function(Builder(device, seed))

    CASES.append(Case(function.__name__, make))
    return make


def by_name(name: str) -> Case:
    return next(case for case in CASES if case.name == name)


# Indices.


@case
def gather(b: Builder) -> Sample:
    return b.sample([b.rows(9, (33,))], [b.rows(40, (33,))], None, b.index(b.shuffled(40, 9)))


@case
def scatter(b: Builder) -> Sample:
    return b.sample([b.rows(40, (33,))], [b.rows(9, (33,))], b.index(b.shuffled(40, 9)), None)


@case
def both_indices(b: Builder) -> Sample:
    return b.sample([b.rows(20, (33,))], [b.rows(30, (33,))], b.index(b.shuffled(20, 11)), b.index(b.drawn(30, 11)))


@case
def no_indices(b: Builder) -> Sample:
    return b.sample([b.rows(7, (33,))], [b.rows(7, (33,))])


@case
def no_indices_with_count(b: Builder) -> Sample:
    return b.sample([b.rows(7, (33,))], [b.rows(7, (33,))], count=b.index([5]))


@case
def int32_indices(b: Builder) -> Sample:
    dst_index = b.index(b.shuffled(20, 11), torch.int32)
    return b.sample([b.rows(20, (33,))], [b.rows(30, (33,))], dst_index, b.index(b.drawn(30, 11), torch.int32))


@case
def int32_and_int64_indices(b: Builder) -> Sample:
    dst_index = b.index(b.shuffled(20, 11), torch.int32)
    return b.sample([b.rows(20, (33,))], [b.rows(30, (33,))], dst_index, b.index(b.drawn(30, 11)))


@case
def int64_and_int32_indices(b: Builder) -> Sample:
    dst_index = b.index(b.shuffled(20, 11))
    return b.sample([b.rows(20, (33,))], [b.rows(30, (33,))], dst_index, b.index(b.drawn(30, 11), torch.int32))


@case
def columns_of_one_map_as_indices(b: Builder) -> Sample:
    pairs = b.index(list(zip(b.shuffled(20, 11), b.drawn(30, 11), strict=True)))
    return b.sample([b.rows(20, (33,))], [b.rows(30, (33,))], pairs[:, 0], pairs[:, 1])


@case
def every_other_index(b: Builder) -> Sample:
    src_index = b.index(b.drawn(30, 21), torch.int32)[1::2]
    return b.sample([b.rows(20, (33,))], [b.rows(30, (33,))], b.index(b.shuffled(20, 19))[::2], src_index)


@case
def expanded_source_index(b: Builder) -> Sample:
    return b.sample([b.rows(20, (33,))], [b.rows(30, (33,))], b.index(b.shuffled(20, 6)), b.index([17]).expand(6))


@case
def expanded_destination_index(b: Builder) -> Sample:
    return b.sample([b.rows(20, (33,))], [b.rows(30, (33,))], b.index([3]).expand(6), b.index(b.shuffled(30, 6)))


@case
def repeated_destinations(b: Builder) -> Sample:
    return b.sample([b.rows(5, (33,))], [b.rows(30, (33,))], b.index(b.drawn(5, 24)), b.index(b.drawn(30, 24)))


@case
def negative_entries(b: Builder) -> Sample:
    dst_index = b.index([-1, 4, 2, -2, 11, -1, 7, 0, -20])
    return b.sample(
        [b.rows(20, (33,))], [b.rows(30, (33,))], dst_index, b.index([3, -1, 29, -30, 5, 8, 0, -(2**63), 6])
    )


@case
def only_negative_entries(b: Builder) -> Sample:
    return b.sample([b.rows(4, (33,))], [b.rows(4, (33,))], b.index([-1, -1, 2, -4]), b.index([0, -2, -1, -4]))


@case
def negative_beside_out_of_range(b: Builder) -> Sample:
    return b.sample([b.rows(4, (33,))], [b.rows(4, (33,))], b.index([-1, 99, 2]), b.index([99, -1, 1]))


# Count.


@case
def count_hides_the_rest(b: Builder) -> Sample:
    src_index = b.index([1, 5, 29, 2**63 - 1, 1 << 40, 30])
    return b.sample([b.rows(9, (33,))], [b.rows(30, (33,))], b.index([8, 0, 3, 9, -5, 2]), src_index, b.index([3]))


@case
def count_of_zero(b: Builder) -> Sample:
    return b.sample([b.rows(9, (33,))], [b.rows(30, (33,))], b.index([999, 0]), b.index([0, 999]), b.index([0]))


@case
def count_of_all(b: Builder) -> Sample:
    count = b.index(4, torch.int32)  # a scalar
    return b.sample([b.rows(9, (33,))], [b.rows(30, (33,))], None, b.index(b.shuffled(30, 4)), count)


@case
def count_in_three_dimensions(b: Builder) -> Sample:
    count = b.index([[[2]]], torch.int32)
    return b.sample([b.rows(9, (33,))], [b.rows(30, (33,))], None, b.index(b.shuffled(30, 4)), count)


# Layout.


@case
def misaligned_rows(b: Builder) -> Sample:
    dst = b.rows(20, (17,), offset=3)
    return b.sample([dst], [b.rows(30, (17,), offset=5)], b.index(b.shuffled(20, 7)), b.index(b.shuffled(30, 7)))


@case
def strided_rows(b: Builder) -> Sample:
    dst = b.rows(20, (4, 16), torch.bfloat16, offset=8, gap=24)
    src = b.rows(30, (4, 16), torch.bfloat16, gap=8)
    return b.sample([dst], [src], b.index(b.shuffled(20, 7)), b.index(b.shuffled(30, 7)))


@case
def layer_of_a_page_first_pool(b: Builder) -> Sample:
    dst = b.rows(10, (3, 2, 8), torch.float16)[:, 2]
    src = b.rows(12, (5, 2, 8), torch.float16)[:, 1]
    return b.sample([dst], [src], b.index(b.shuffled(10, 6)), b.index(b.shuffled(12, 6)))


@case
def slices_of_rows(b: Builder) -> Sample:
    dst = b.rows(10, (24,), torch.float32)[2:9, 8:16]
    src = b.rows(12, (32,), torch.float32)[1:, 16:24]
    return b.sample([dst], [src], b.index(b.shuffled(7, 6)), b.index(b.shuffled(11, 6)))


@case
def permuted_rows(b: Builder) -> Sample:
    dst = b.rows(10, (4, 6), torch.int16).transpose(1, 2)
    src = b.rows(12, (4, 6), torch.int16).transpose(1, 2)
    return b.sample([dst], [src], b.index(b.shuffled(10, 6)), b.index(b.shuffled(12, 6)))


@case
def one_source_row_expanded(b: Builder) -> Sample:
    src = b.rows(1, (33,)).expand(50, 33)
    return b.sample([b.rows(20, (33,))], [src], b.index(b.shuffled(20, 6)), b.index(b.drawn(50, 6)))


@case
def every_third_row(b: Builder) -> Sample:
    dst = b.rows(30, (16,))[1::3]
    return b.sample([dst], [b.rows(30, (16,))[::3]], b.index(b.shuffled(10, 6)), b.index(b.shuffled(10, 6)))


@case
def rows_that_are_elements(b: Builder) -> Sample:
    dst = b.rows(20, (), torch.float32)
    return b.sample([dst], [b.rows(30, (), torch.float32)], b.index(b.shuffled(20, 9)), b.index(b.shuffled(30, 9)))


@case
def source_and_destination_in_one_buffer(b: Builder) -> Sample:
    rows = b.rows(30, (33,))
    return b.sample([rows[:12]], [rows[12:]], b.index(b.shuffled(12, 8)), b.index(b.shuffled(18, 8)))


# Nothing to do.


@case
def empty_index(b: Builder) -> Sample:
    return b.sample([b.rows(9, (33,))], [b.rows(30, (33,))], b.index([]), b.index([], torch.int32))


@case
def no_rows(b: Builder) -> Sample:
    return b.sample([b.rows(0, (33,))], [b.rows(0, (33,))])


@case
def rows_of_no_bytes(b: Builder) -> Sample:
    return b.sample([b.rows(9, (0,))], [b.rows(30, (0,))], b.index([8, 0]), b.index([29, 3]))


# Components.


@case
def two_components(b: Builder) -> Sample:
    dst = [b.rows(20, (64,), torch.bfloat16), b.rows(20, (16,), torch.bfloat16)]
    src = [b.rows(30, (64,), torch.bfloat16), b.rows(30, (16,), torch.bfloat16)]
    return b.sample(dst, src, b.index(b.shuffled(20, 12)), b.index(b.shuffled(30, 12)))


@case
def three_components_of_three_dtypes(b: Builder) -> Sample:
    kinds = [((32,), torch.bfloat16), ((16,), torch.int8), ((), torch.float32)]
    dst = [b.rows(20, shape, dtype) for shape, dtype in kinds]
    src = [b.rows(30, shape, dtype) for shape, dtype in kinds]
    return b.sample(dst, src, b.index(b.shuffled(20, 12)), b.index(b.shuffled(30, 12)), b.index([7], torch.int32))


@case
def keys_and_values_of_one_storage(b: Builder) -> Sample:
    dst = b.rows(2, (20, 8), torch.float32)
    src = b.rows(2, (30, 8), torch.float32)
    return b.sample([*dst.unbind()], [*src.unbind()], b.index(b.shuffled(20, 6)), b.index(b.shuffled(30, 6)))


@case
def keys_and_values_interleaved(b: Builder) -> Sample:
    dst = b.rows(20, (2, 8), torch.float32)
    src = b.rows(30, (2, 8), torch.float32)
    return b.sample([*dst.unbind(1)], [*src.unbind(1)], b.index(b.shuffled(20, 6)), b.index(b.shuffled(30, 6)))


@case
def five_components(b: Builder) -> Sample:
    dst = [b.rows(20, (3 + c,), torch.float16) for c in range(5)]
    src = [b.rows(30 + c, (3 + c,), torch.float16) for c in range(5)]
    return b.sample(dst, src, b.index(b.shuffled(20, 12)), b.index(b.shuffled(30, 12)))


@case
def components_without_bytes_among_others(b: Builder) -> Sample:
    dst = [b.rows(20, (5,)), b.rows(20, (0,)), b.rows(20, (2, 3))]
    src = [b.rows(30, (5,)), b.rows(30, (0,)), b.rows(30, (2, 3))]
    return b.sample(dst, src, b.index(b.shuffled(20, 12)), b.index(b.shuffled(30, 12)))


def _of_dtype(dtype: torch.dtype) -> Callable[[Builder], Sample]:
    def build(b: Builder) -> Sample:
        dst, src = b.rows(20, (16,), dtype), b.rows(30, (16,), dtype)
        return b.sample([dst], [src], b.index(b.shuffled(20, 9)), b.index(b.shuffled(30, 9)))

    build.__name__ = str(dtype).replace("torch.", "dtype_")
    return build


for _dtype in (torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.bool, torch.complex64, torch.int8):
    case(_of_dtype(_dtype))
