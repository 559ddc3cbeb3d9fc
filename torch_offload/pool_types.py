# SPDX-License-Identifier: Apache-2.0
"""What a pool tells about itself, and what it hands to other processes."""

from __future__ import annotations

from dataclasses import dataclass

import torch

QUANTIZED = {torch.quint8, torch.qint8, torch.qint32, torch.quint4x2, torch.quint2x4}

__all__ = ["QUANTIZED", "PoolBlock", "PoolHandle", "PoolStats", "TensorMeta"]


@dataclass(frozen=True)
class PoolStats:
    """One consistent snapshot of a pool; all sizes in bytes.

    Attributes:
        capacity: Bytes that can be handed out.
        used: Bytes in live blocks, rounding to the alignment included. `used + free == capacity`.
        free: Bytes in free blocks.
        requested: Bytes in live blocks as asked for; `used - requested` is what rounding costs.
        largest_free: The largest block that can be had now.
        peak: The highest `used` so far.
        live_blocks: Blocks handed out, those of size 0 included.
        free_blocks: Free blocks; 1 when everything has come back.
        allocations: Successful allocations so far.
        frees: Blocks given back so far.
        double_frees: Refused frees of free memory (C interface).
        foreign_frees: Refused frees of other addresses (C interface).
        page_size: The smallest page that backs the memory.
        numa_node: The node that the memory is bound to, or None.
        locked: Whether the memory is locked against swapping.
        device_registered: Whether the accelerator can address the memory.
        shared: Whether other processes can attach.
        attached: Whether the memory is another process's pool.
        closed: Whether new allocations are refused.
    """

    capacity: int
    used: int
    free: int
    requested: int
    largest_free: int
    peak: int
    live_blocks: int
    free_blocks: int
    allocations: int
    frees: int
    double_frees: int
    foreign_frees: int
    page_size: int
    numa_node: int | None
    locked: bool
    device_registered: bool
    shared: bool
    attached: bool
    closed: bool


@dataclass(frozen=True)
class PoolBlock:
    """One block of a pool's map.

    Attributes:
        offset: Bytes from the pool's beginning.
        size: Bytes, rounded to the alignment.
        requested: Bytes as asked for; 0 for a free block.
        free: Whether it can be handed out.
    """

    offset: int
    size: int
    requested: int
    free: bool


@dataclass(frozen=True)
class PoolHandle:
    """Names a shared pool to other processes of the same user. Picklable; made by `HostPool.share`.

    Attributes:
        pid: The process that owns the pool.
        fd: Its descriptor of the memory.
        inode: Tells the memory from that of a later pool with the same pid and descriptor.
        capacity: Bytes that can be handed out.
        length: Bytes of the mapping.
        page_size: The smallest page that backs the memory.
        name: The pool's name.
    """

    pid: int
    fd: int
    inode: int
    capacity: int
    length: int
    page_size: int
    name: str

    def __post_init__(self) -> None:
        """Raises TypeError or ValueError where a field cannot be what a pool has put there."""
        _require(self, "name", str)
        for field in ("pid", "fd", "inode", "capacity", "length", "page_size"):
            _require(self, field, int)
            limit = 2**31 if field == "fd" else 2**63
            if not 0 <= getattr(self, field) < limit:
                raise ValueError(f"PoolHandle: expected {field} to be in [0, {limit}), got {getattr(self, field)}")


@dataclass(frozen=True)
class TensorMeta:
    """Where a tensor lies in a shared pool. Picklable; made by `HostPool.export`, read by `HostPool.import_`.

    Attributes:
        pool: The pool.
        offset: Bytes from the pool's beginning to the first element.
        size: The shape.
        stride: In elements, one for each dimension.
        dtype: Of the elements.
    """

    pool: PoolHandle
    offset: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype

    def __post_init__(self) -> None:
        """Raises TypeError where a field is of a type that `HostPool.export` never puts there."""
        _require(self, "pool", PoolHandle)
        _require(self, "offset", int)
        for field in ("size", "stride"):
            _require(self, field, tuple)
            if not all(type(number) is int for number in getattr(self, field)):
                raise TypeError(f"TensorMeta: expected {field} to hold int, got {getattr(self, field)!r}")
        _require(self, "dtype", torch.dtype)
        if self.dtype in QUANTIZED:
            raise TypeError(f"TensorMeta: expected dtype to be plain, got {self.dtype}")


def _require(record: object, field: str, kind: type) -> None:
    value = getattr(record, field)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise TypeError(f"{type(record).__name__}: expected {field} to be {kind.__name__}, got {value!r}")
