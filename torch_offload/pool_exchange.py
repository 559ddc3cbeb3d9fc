# SPDX-License-Identifier: Apache-2.0
"""Tensors of a shared pool as plain values, and back: the same bytes in another process."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from torch_offload import _C
from torch_offload.pool_records import PoolHandle, PoolTensor

__all__ = ["export_tensor", "import_tensor"]


def export_tensor(pool: _C.HostPool, identity: PoolHandle, t: Tensor) -> PoolTensor:
    """Describes `t`; see `HostPool.export`."""
    if not isinstance(t, Tensor):
        raise TypeError(f"HostPool.export: expected t to be a Tensor, got {t!r}")
    if t.layout is not torch.strided or t.is_quantized or t.is_conj() or t.is_neg():
        kind = "a lazy conjugate or negative" if t.layout is torch.strided and not t.is_quantized else t.layout
        raise ValueError(f"HostPool.export: expected t to be a plain strided tensor, got {kind}")
    if t.device.type != "cpu":
        raise ValueError(f"HostPool.export: expected t to be on the CPU, got {t.device}")
    # A tensor without elements says that its address is 0; its storage knows better.
    address = t.data_ptr() if t.numel() else t.untyped_storage().data_ptr()
    inside = pool.contains(address)
    offset = pool.offset_of(address) if inside and t.numel() else 0
    if not inside or offset + _extent(t.shape, t.stride()) * t.element_size() > pool.capacity():
        raise ValueError(f"HostPool.export: expected t to be in the memory of {pool.name()!r}, got another address")
    return PoolTensor(identity, offset, tuple(t.shape), t.stride(), t.dtype)


def import_tensor(pool: _C.HostPool, identity: PoolHandle, meta: PoolTensor) -> Tensor:
    """Maps what `export_tensor` described; see `HostPool.import_`."""
    if not isinstance(meta, PoolTensor):
        raise TypeError(f"HostPool.import_: expected meta to be a PoolTensor, got {meta!r}")
    if meta.pool != identity:
        raise ValueError(f"HostPool.import_: expected meta of this pool ({identity}), got {meta.pool}")
    numbers = (meta.offset, *meta.size, *meta.stride)
    if len(meta.size) != len(meta.stride) or any(not 0 <= number < 2**63 for number in numbers):
        raise ValueError(f"HostPool.import_: expected non-negative size and stride of one length, got {meta}")
    elements = _extent(meta.size, meta.stride)
    if meta.offset + elements * meta.dtype.itemsize > pool.capacity() or _numel(meta.size) >= 2**60:
        raise ValueError(f"HostPool.import_: expected meta inside {pool.capacity()} bytes, got {meta}")
    return pool.view(meta.offset, [elements], meta.dtype).as_strided(meta.size, meta.stride)


def _extent(size: tuple[int, ...], stride: tuple[int, ...]) -> int:
    """Elements from the first to the last one, both included."""
    if _numel(size) == 0:
        return 0
    return 1 + sum((count - 1) * step for count, step in zip(size, stride, strict=True))


def _numel(size: tuple[int, ...]) -> int:
    return math.prod(size)
