# SPDX-License-Identifier: Apache-2.0
"""Samples of sparse_copy_ptrs on an NPU: the buffers on the device or in host memory that it can address.

A sample is made on the CPU; placing it moves its buffers, and its tables then hold what the device calls the
same bytes.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import reference
import torch
from npu_support import DEVICE, RegisteredMemory, simulated_kernels
from pointer_cases import PtrSample
from torch import Tensor

import torch_offload

KINDS = ["device_to_device", "host_to_device", "device_to_host", "host_to_host"]


def device_address(host: Tensor) -> int:
    """Where the device finds registered memory of the host."""
    address = ctypes.c_void_p()
    acl = ctypes.CDLL("libascendcl.so")
    code = acl.aclrtHostGetDevicePointer(ctypes.c_void_p(host.data_ptr()), ctypes.byref(address), 0)
    assert code == 0, code
    return address.value or 0


def moved(table: Tensor) -> Tensor:
    """A table on the device, with the strides of the given one."""
    if table.untyped_storage().nbytes() == 0:
        return table.to(DEVICE)
    storage = torch.empty(0, dtype=torch.uint8).set_(table.untyped_storage())
    return storage.to(DEVICE).view(table.dtype).as_strided(table.shape, table.stride(), table.storage_offset())


class PlacedPointers:
    """A sample of the CPU in the device's reach. `kind` is one of KINDS: sources are even buffers, the others odd."""

    def __init__(
        self, sample: PtrSample, kind: str = "device_to_device", memory: RegisteredMemory | None = None
    ) -> None:
        on_host = [side == "host" for side in kind.split("_to_")]
        self.buffers: list[Tensor] = []
        self._ranges: list[tuple[int, int, int]] = []
        for number, buffer in enumerate(sample.buffers):
            if on_host[number % 2]:
                assert memory is not None
                self.buffers.append(memory.copy_of(buffer))
                address = device_address(self.buffers[-1])
            else:
                self.buffers.append(buffer.to(DEVICE))
                address = self.buffers[-1].data_ptr()
            self._ranges.append((buffer.data_ptr(), buffer.numel(), address))
        tables = [self._translated(sample.src_ptrs), self._translated(sample.dst_ptrs), sample.lengths, sample.count]
        self.args = [moved(table) for table in (*tables, sample.status)]

    def _translated(self, table: Tensor) -> Tensor:
        """The table with the same strides and with other addresses; what points to no buffer stays."""
        result = torch.empty(0, dtype=torch.uint8).set_(table.untyped_storage()).clone().view(table.dtype)
        result = result.as_strided(table.shape, table.stride(), table.storage_offset())
        signed = result.view(torch.int64)
        for i, value in enumerate(signed.tolist()):
            for begin, size, address in self._ranges:
                if begin <= value < begin + size:
                    signed[i] = value - begin + address
        return result

    def run(self) -> None:
        torch_offload.sparse_copy_ptrs(*self.args[:4], status=self.args[4])


def check(
    sample: PtrSample,
    kind: str = "device_to_device",
    memory: RegisteredMemory | None = None,
    *,
    run: Callable[[PlacedPointers], None] = PlacedPointers.run,
) -> None:
    """Runs the sample on the device; every byte of its buffers, tables and status must be what the reference says."""
    want, numbers = reference.sparse_copy_ptrs(sample.buffers, *sample.tables())
    placed = PlacedPointers(sample, kind, memory)
    before = [reference.as_bytes(table.cpu()) for table in placed.args[:4]]
    run(placed)
    torch.npu.synchronize()
    assert placed.args[4].cpu().tolist() == numbers
    for number, (got, expected) in enumerate(zip(placed.buffers, want, strict=True)):
        different = (got.cpu() != expected).nonzero().flatten()
        assert len(different) == 0, f"buffer {number}: {len(different)} bytes differ, first {different[:8].tolist()}"
    for table, old in zip(placed.args[:4], before, strict=True):
        assert torch.equal(reference.as_bytes(table.cpu()), old)


def check_in_orders(sample: PtrSample, orders: dict[str, tuple[int, int]], **places: object) -> None:
    for order, seed in orders.values():
        with simulated_kernels(order=order, seed=seed):
            check(sample, **places)
