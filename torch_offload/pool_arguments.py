# SPDX-License-Identifier: Apache-2.0
"""Checks the types and ranges that the compiled side of the pool cannot be given; it checks the rest."""

from __future__ import annotations

import operator
import re
from collections.abc import Sequence

import torch
from torch import Tensor

from torch_offload.pool_device import device_index
from torch_offload.pool_types import QUANTIZED

__all__ = ["check_cpu", "plain_dtype", "pool_options", "require_dense_memory", "shape_of"]

_NO_NUMA_NODE = -1


def pool_options(
    capacity: int,
    *,
    device: torch.device | str | None = None,
    alignment: int = 64,
    huge_pages: str = "auto",
    numa_node: int | None = None,
    prefault_threads: int | None = None,
    name: str | None = None,
    shared: bool = False,
    lock: bool = False,
) -> tuple[int, int, str, int, int, int, bool, bool, str]:
    """Returns the options of `HostPool` as the compiled side takes them, or raises TypeError or ValueError."""
    index = device_index("HostPool", device)
    values = {
        "capacity": (capacity, 2**62),
        "alignment": (alignment, 2**62),
        "prefault_threads": (0 if prefault_threads is None else prefault_threads, 1024),
        "numa_node": (0 if numa_node is None else numa_node, 2**31 - 1),
    }
    numbers = {key: _number(key, value, limit) for key, (value, limit) in values.items()}
    texts = {"huge_pages": huge_pages, "name": "host_pool" if name is None else name}
    for key, text in texts.items():
        if not isinstance(text, str):
            raise TypeError(f"HostPool: expected {key} to be a str, got {text!r}")
        if re.search("[\\0\ud800-\udfff]", text):
            raise ValueError(f"HostPool: expected {key} to be text without NUL or surrogates, got {text!r}")
    for key, flag in (("shared", shared), ("lock", lock)):
        if not isinstance(flag, bool):
            raise TypeError(f"HostPool: expected {key} to be a bool, got {flag!r}")
    return (
        numbers["capacity"],
        numbers["alignment"],
        huge_pages,
        _NO_NUMA_NODE if numa_node is None else numbers["numa_node"],
        numbers["prefault_threads"],
        index,
        shared,
        lock,
        texts["name"],
    )


def check_cpu(what: str, device: torch.device | str | None) -> None:
    """Raises unless `device` is None or the CPU."""
    if device is None:
        return
    if not isinstance(device, (str, torch.device)):
        raise TypeError(f"{what}: expected device to be a torch.device, a str or None, got {device!r}")
    # The string of a device that this torch does not know is no torch.device.
    if str(device).partition(":")[0] != "cpu":
        raise ValueError(
            f"{what}: expected device to be None or 'cpu', got {str(device)!r}; `use` and `device_view` of a pool that "
            "the NPU backend serves give tensors on its NPU"
        )


def shape_of(size: int | Sequence[int]) -> list[int]:
    """Returns a shape as a list of numbers that fit into 64 bits."""
    try:
        if isinstance(size, (bytes, bytearray, memoryview)):  # sequences of int as well, but no shapes
            raise TypeError
        sizes = [operator.index(size)] if not isinstance(size, Sequence) else [operator.index(s) for s in size]
    except TypeError:
        raise TypeError(f"HostPool.empty: expected size to be an int or a sequence of int, got {size!r}") from None
    for value in sizes:
        if not 0 <= value < 2**63:
            raise ValueError(f"HostPool.empty: expected size to hold values from 0 to 2^63 - 1, got {value}")
    return sizes


def plain_dtype(dtype: torch.dtype | None) -> torch.dtype:
    """Returns `dtype`, torch's default for None."""
    if dtype is None:
        return torch.get_default_dtype()
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"HostPool.empty: expected dtype to be a torch.dtype or None, got {dtype!r}")
    if dtype in QUANTIZED:
        raise TypeError(f"HostPool.empty: expected dtype to be plain, got {dtype}")
    return dtype


def require_dense_memory(tensor: Tensor) -> None:
    """Raises unless the tensor is a plain one on the CPU, whose values are what its memory holds."""
    if not isinstance(tensor, Tensor):
        raise TypeError(f"HostPool.export: expected a Tensor, got {tensor!r}")
    if tensor.device.type != "cpu" or tensor.layout != torch.strided or tensor.dtype in QUANTIZED:
        raise ValueError(
            "HostPool.export: expected a strided CPU tensor of a plain dtype, "
            f"got {tensor.layout}, {tensor.device}, {tensor.dtype}"
        )
    if tensor.is_conj() or tensor.is_neg():
        raise ValueError("HostPool.export: expected a tensor without a lazy conjugation or negation, got one with it")


def _number(key: str, value: int, limit: int) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"HostPool: expected {key} to be an int, got {value!r}") from None
    if not 0 <= number <= limit:
        raise ValueError(f"HostPool: expected {key} to be in [0, {limit}], got {value}")
    return number
