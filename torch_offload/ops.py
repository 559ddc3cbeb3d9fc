# SPDX-License-Identifier: Apache-2.0
"""Typed wrappers of the operators in `torch.ops.offload`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torch_offload import _C
from torch_offload.decomposition import refuse_nested

__all__ = ["sparse_copy", "sparse_copy_ptrs"]


def sparse_copy(
    dst: Tensor | Sequence[Tensor],
    src: Tensor | Sequence[Tensor],
    dst_index: Tensor | None = None,
    src_index: Tensor | None = None,
    *,
    count: Tensor | None = None,
    cores: int | None = None,
) -> None:
    """Copies scattered rows of one or several tensors in one call.

    For every pair of tensors and every `i` in `[0, n)`: `dst[c][dst_index[i]] = src[c][src_index[i]]`. Rows are
    copied as bits, in any dtype. `n` is the length of the index tensors, or `count` if given.

    Equivalent in plain torch, up to speed and checks::

        n = len(index) if count is None else int(count)
        for d, s in zip(dst, src):
            for i in range(n):
                to = i if dst_index is None else int(dst_index[i])
                of = i if src_index is None else int(src_index[i])
                if to >= 0 and of >= 0:
                    d[to] = s[of]

    An entry that is negative on either side is skipped, whatever stands on the other side. What stands behind
    `count` is never looked at. If a destination row is named twice, the last entry wins on the CPU; on a device
    that row is unspecified. The row stride is free, so layer views and slices may be passed as they are. `dst` must
    share no bytes with `src`, the indices or `count`; destinations may share a storage with each other. The call is
    for inference: with grad mode on, no tensor may require grad.

    Args:
        dst (Tensor or sequence of Tensor, each `[rows, ...]`): Written in place. The dimensions after the first are
            the row; inside a row memory is dense.
        src (Tensor or sequence of Tensor, each `[rows, ...]`): As many as `dst`; each agrees with its destination
            in dtype and row shape. Row counts may differ.
        dst_index (Tensor `[n]`, int32 or int64, any stride): Rows of `dst`. None means 0, 1, 2, ...
        src_index (Tensor `[n]`, int32 or int64, any stride): Rows of `src`. None means 0, 1, 2, ... With both None
            all row counts must be equal.
        count (Tensor with one element, int32 or int64): Number of leading entries to copy. It may live on the
            device; the host then never reads it.
        cores (int): Cores of a device to use at most, so that others can compute meanwhile; a constant of a compiled or
            captured graph. None: all of them, or as many as TORCH_OFFLOAD_NPU_CORES says. The CPU ignores it, there
            `torch.set_num_threads` rules.

    Raises:
        TypeError: A tensor has the wrong dtype or is not plain (sparse, quantized, nested, conjugate, negative).
        ValueError: Shapes or row layouts disagree, `count` is outside `[0, n]`, `dst` overlaps what is read, or a
            tensor is in a place that the others cannot reach.
        IndexError: An index is beyond the rows (CPU). Nothing has been written.
        NotImplementedError: A tensor requires grad while grad mode is on.

    Example:
        >>> pool = torch.arange(12.0).view(6, 2)
        >>> rows = torch.zeros(2, 2)
        >>> torch_offload.sparse_copy(rows, pool, src_index=torch.tensor([4, 1]))
        >>> rows
        tensor([[8., 9.],
                [2., 3.]])
    """
    eager = cores is None and not torch.compiler.is_compiling()
    if eager and _C.sparse_copy(dst, src, dst_index, src_index, count):
        return
    arguments = (
        _tensors("dst", dst),
        _tensors("src", src),
        optional_tensor("sparse_copy", "dst_index", dst_index),
        optional_tensor("sparse_copy", "src_index", src_index),
        optional_tensor("sparse_copy", "count", count),
    )
    if cores is None:
        torch.ops.offload.sparse_copy.default(*arguments)
    else:
        torch.ops.offload._sparse_copy_cores.default(*arguments, _cores("sparse_copy", cores))


def sparse_copy_ptrs(
    src_ptrs: Tensor,
    dst_ptrs: Tensor,
    lengths: Tensor,
    count: Tensor,
    *,
    status: Tensor | None = None,
    cores: int | None = None,
) -> Tensor:
    """Copies byte ranges given by addresses: `lengths[i]` bytes from `src_ptrs[i]` to `dst_ptrs[i]`.

    Equivalent, for each `i < count`: `memcpy(dst_ptrs[i], src_ptrs[i], lengths[i])`. An entry of length zero is
    skipped; one with a negative length, or with a null address and a length, is refused and recorded. The addresses
    are trusted otherwise: they must be valid for the length while the call runs. Ranges that overlap give the result
    of copying the entries in order on the CPU; on a device what they share is unspecified.

    All tensors of a call are on one device. On an NPU the addresses are those that the NPU knows: `data_ptr()` of its
    tensors, and for host memory the address that it is mapped to. There `count` is clamped to `[0, n]`, since the host
    does not read it.

    No tensor of the same compiled graph may alias the addressed memory, since a graph cannot order raw addresses
    against tensors: `sparse_copy` is for that.

    Args:
        src_ptrs (Tensor `[n]`, int64 or uint64): Source addresses.
        dst_ptrs (Tensor `[n]`, int64 or uint64): Destination addresses.
        lengths (Tensor `[n]`, int32 or int64): Bytes of each entry.
        count (Tensor with one element, int32 or int64): Number of leading entries to copy, in `[0, n]`.
        status (Tensor `[4]`, int64): Receives entries copied, skipped, refused, and the position of the first
            refused entry or -1. Made anew if None; inside a compiled graph it must be a tensor from outside the
            graph, because that is what keeps the call alive and in order.
        cores (int): As for `sparse_copy`.

    Returns:
        `status`.

    Raises:
        TypeError: A table has the wrong dtype or is not plain.
        ValueError: Tables differ in length or rank, `count` is outside `[0, n]` (CPU), `status` is not `[4]` or shares
            bytes with a table,
            it is missing in a compiled graph, or the tensors are on several devices.
    """
    tables = (("src_ptrs", src_ptrs), ("dst_ptrs", dst_ptrs), ("lengths", lengths), ("count", count))
    for name, table in tables:
        require_tensor("sparse_copy_ptrs", name, table)
    optional_tensor("sparse_copy_ptrs", "status", status)
    refuse_nested("sparse_copy_ptrs", *tables, ("status", status))
    if status is None:
        if torch.compiler.is_compiling():
            raise ValueError(
                "sparse_copy_ptrs: expected status to be a tensor from outside the compiled graph, got None"
            )
        status = torch.empty(4, dtype=torch.int64, device=src_ptrs.device)
    if torch.compiler.is_compiling() or type(status) is not Tensor:
        # Meta kernels see no devices.
        for name, table in tables:
            if table.device != status.device:
                raise ValueError(
                    f"sparse_copy_ptrs: expected {name} to be on {status.device} like status, got {table.device}"
                )
    if cores is None:
        if torch.compiler.is_compiling() or not _C.sparse_copy_ptrs(src_ptrs, dst_ptrs, lengths, count, status):
            torch.ops.offload.sparse_copy_ptrs.default(src_ptrs, dst_ptrs, lengths, count, status)
    else:
        cores = _cores("sparse_copy_ptrs", cores)
        torch.ops.offload._sparse_copy_ptrs_cores.default(src_ptrs, dst_ptrs, lengths, count, status, cores)
    return status


def _tensors(name: str, value: Any) -> Sequence[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        for tensor in value:
            if not isinstance(tensor, Tensor):
                break
        else:
            return value
    raise TypeError(f"sparse_copy: expected {name} to be a tensor or a list or tuple of tensors, got {describe(value)}")


def require_tensor(op: str, name: str, value: Any) -> Tensor:
    """Returns `value`, or raises TypeError if it is no tensor."""
    if isinstance(value, Tensor):
        return value
    raise TypeError(f"{op}: expected {name} to be a tensor, got {describe(value)}")


def optional_tensor(op: str, name: str, value: Any) -> Tensor | None:
    """Returns `value`, or raises TypeError if it is neither a tensor nor None."""
    if value is None or isinstance(value, Tensor):
        return value
    raise TypeError(f"{op}: expected {name} to be a tensor or None, got {describe(value)}")


def _cores(op: str, value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{op}: expected cores to be an int or None, got {describe(value)}")
    if not 1 <= value < 2**31:
        raise ValueError(f"{op}: expected cores to be a number of cores from 1, got {value}")
    return value


def describe(value: Any) -> str:
    """What a message says that it got."""
    if isinstance(value, (list, tuple)):
        return f"{type(value).__name__} of {', '.join(type(item).__name__ for item in value)}"
    return f"{value!r} ({type(value).__name__})"
