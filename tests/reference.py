# SPDX-License-Identifier: Apache-2.0
"""Slow oracle of the operators in plain torch: what every backend must do, byte for byte.

It knows nothing of how the operators work: entries are looked at one after the other in Python, and whatever the dtype,
rows are moved as bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor


def as_bytes(tensor: Tensor) -> Tensor:
    """The memory of a tensor as uint8 `[*shape, itemsize]`: a view, for any dtype and any strides."""
    size = tensor.element_size()
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(
        tensor.untyped_storage(),
        tensor.storage_offset() * size,
        (*tensor.shape, size),
        (*(stride * size for stride in tensor.stride()), 1),
    )


def sparse_copy(
    dst: Sequence[Tensor],
    src: Sequence[Tensor],
    dst_index: Tensor | None = None,
    src_index: Tensor | None = None,
    count: Tensor | None = None,
) -> None:
    """Does what `torch_offload.sparse_copy` must do, to `dst` itself. Nothing is written when it raises."""
    last: dict[int, int] = {}
    for to, of in entries(dst, src, dst_index, src_index, count):
        last[to] = of
    if not last:
        return
    to = torch.tensor(list(last.keys()), device=dst[0].device)
    of = torch.tensor(list(last.values()), device=src[0].device)
    for d, s in zip(dst, src, strict=True):
        as_bytes(d)[to] = as_bytes(s)[of].to(d.device)


def entries(
    dst: Sequence[Tensor],
    src: Sequence[Tensor],
    dst_index: Tensor | None,
    src_index: Tensor | None,
    count: Tensor | None,
) -> Iterator[tuple[int, int]]:
    """The (destination row, source row) of every entry that is not skipped.

    Raises:
        IndexError: An entry of which neither side is negative is outside the rows; all entries are looked at before
            the first is given.
        ValueError: `count` is outside its range.
    """
    dst_rows = min(tensor.shape[0] for tensor in dst)
    src_rows = min(tensor.shape[0] for tensor in src)
    lengths = [len(index) for index in (dst_index, src_index) if index is not None]
    n = lengths[0] if lengths else dst_rows
    to_rows = list(range(n)) if dst_index is None else dst_index.tolist()
    of_rows = list(range(n)) if src_index is None else src_index.tolist()
    if count is not None:
        if not 0 <= count.item() <= n:
            raise ValueError(f"count {count.item()} of {n}")
        n = int(count.item())
    result = []
    for i, (to, of) in enumerate(zip(to_rows[:n], of_rows[:n], strict=True)):
        if to < 0 or of < 0:
            continue
        if to >= dst_rows:
            raise IndexError(f"dst_index[{i}] = {to}")
        if of >= src_rows:
            raise IndexError(f"src_index[{i}] = {of}")
        result.append((to, of))
    return iter(result)


class Memory:
    """Clones of buffers, addressed by the addresses of the originals."""

    def __init__(self, buffers: Sequence[Tensor]) -> None:
        self.begins = [buffer.data_ptr() for buffer in buffers]
        self.clones = [buffer.to("cpu", copy=True) for buffer in buffers]

    def at(self, address: int, length: int) -> Tensor:
        for begin, clone in zip(self.begins, self.clones, strict=True):
            if begin <= address and address + length <= begin + clone.numel():
                return clone[address - begin : address - begin + length]
        raise AssertionError(f"{length} bytes at {address:#x} are in no buffer of the sample")


def sparse_copy_ptrs(
    buffers: Sequence[Tensor], src_ptrs: Tensor, dst_ptrs: Tensor, lengths: Tensor, count: Tensor
) -> tuple[list[Tensor], list[int]]:
    """What `torch_offload.sparse_copy_ptrs` must leave in the uint8 buffers that hold all the addressed memory.

    Returns:
        The buffers after the call, as new tensors on the CPU, and the four numbers of the status.
    """
    memory = Memory(buffers)
    copied = skipped = refused = 0
    first_refused = -1
    for i in range(int(count.item())):
        src, dst, length = int(src_ptrs[i].item()), int(dst_ptrs[i].item()), int(lengths[i].item())
        if length == 0:
            skipped += 1
        elif length < 0 or src == 0 or dst == 0:
            refused += 1
            first_refused = i if first_refused < 0 else first_refused
        else:
            copied += 1
            memory.at(dst, length).copy_(memory.at(src, length).clone())
    return memory.clones, [copied, skipped, refused, first_refused]
