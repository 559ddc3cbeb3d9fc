# SPDX-License-Identifier: Apache-2.0
"""What a pool offers on its device: the same bytes as a host or device tensor, and device tensors from its memory."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torch_offload import _C
from torch_offload.npu import load

__all__ = ["DeviceAccess", "device_index"]

_NO_DEVICE = -1
_LIBRARY = Path(__file__).with_name("liboffload.so")

_allocators: list[
    Any
] = []  # torch_npu's object over the functions of _LIBRARY, made once and kept: MemPools refer to it


def device_index(what: str, device: torch.device | str | None) -> int:
    """Returns the number of an NPU, -1 for the host; brings the NPU up.

    Raises:
        TypeError: `device` is no device.
        ValueError: It is neither the CPU nor an NPU of this machine, or the NPU backend cannot be loaded.
    """
    if device is None:
        return _NO_DEVICE
    if not isinstance(device, (str, torch.device)):
        raise TypeError(f"{what}: expected device to be a torch.device, a str or None, got {device!r}")
    # The string of a device that this torch does not know is no torch.device.
    kind, _, number = str(device).partition(":")
    if kind == "cpu":
        return _NO_DEVICE
    if kind != "npu" or not (number == "" or number.isdecimal()):
        raise ValueError(f"{what}: expected device to be None, 'cpu' or 'npu:<number>', got {str(device)!r}")
    try:
        load()
    except ImportError as error:
        raise ValueError(
            f"{what}: expected device to be None or 'cpu', got {str(device)!r}; a pool that an NPU can address needs "
            f"the NPU backend, which is not loaded: {error}"
        ) from error
    npu = _npu()
    count = npu.device_count()
    index = int(number) if number else (npu.current_device() if count else 0)
    if index >= count:
        raise ValueError(f"{what}: expected device to be one of the {count} NPUs of this machine, got {str(device)!r}")
    npu.init()
    return index


class DeviceAccess:
    """The part of `HostPool` that needs a device; a base class of it."""

    _pool: _C.HostPool

    def host_view(self, tensor: Tensor) -> Tensor:
        """Returns the same bytes as a CPU tensor, without a copy.

        What the device has been told to do with the tensor may still be under way: wait for it (`synchronize`) before
        the host reads or writes, and the host's writes are visible to what is launched after them. The view keeps the
        tensor's storage. torch's own copies cannot read this memory through the device (`tensor.cpu()` fails): copy
        from the view.

        Args:
            tensor (Tensor): In this pool's memory: on the device (`use`, `device_view`), or on the CPU, which is
                returned as it is.

        Returns:
            Tensor: On the CPU, with the same shape and strides.

        Raises:
            TypeError: `tensor` is no plain tensor.
            ValueError: It does not lie in this pool.
        """
        what = "HostPool.host_view"
        _require_plain(what, tensor)
        if tensor.device.type == "cpu":
            self._require_in_pool(what, tensor)
            return tensor
        if tensor.device.type != "npu" or tensor.device.index != self._pool.device():
            raise ValueError(f"{what}: expected a tensor on the CPU or {self._device_name()}, got {tensor.device}")
        storage = tensor.untyped_storage()
        if storage.nbytes() == 0:
            return torch.empty_strided(tuple(tensor.shape), tensor.stride(), dtype=tensor.dtype)
        address = self._pool.host_address(storage.data_ptr())
        if address == 0:
            raise ValueError(
                f"{what}: expected a tensor in the memory of pool {self._pool.name()!r}, got one in other memory of "
                f"{tensor.device}"
            )
        view: Tensor = load().host_view(tensor, address)
        return view

    def device_view(self, tensor: Tensor) -> Tensor:
        """Returns the same bytes as a tensor on the pool's device, without a copy.

        The device's operators read and write host memory through it; torch's copies between host and device do not
        support such addresses (copy from the CPU tensor). The view keeps the tensor's storage. When it dies, the block
        comes free once the streams that were current when it was made and when it died have passed; work on other
        streams has to be waited for before.

        Args:
            tensor (Tensor): In this pool's memory: on the CPU, or on the device, which is returned as it is.

        Returns:
            Tensor: On the device, with the same shape and strides.

        Raises:
            TypeError: `tensor` is no plain tensor.
            ValueError: It does not lie in this pool, or the pool was made without a device.
        """
        what = "HostPool.device_view"
        _require_plain(what, tensor)
        index = self._require_device(what)
        if tensor.device.type != "cpu":
            self.host_view(tensor)  # checks
            return tensor
        self._require_in_pool(what, tensor)
        if tensor.numel() == 0:
            return torch.empty_strided(
                tuple(tensor.shape), tensor.stride(), dtype=tensor.dtype, device=self._device_name()
            )
        last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
        address = self._pool.device_address(tensor.data_ptr(), (last + 1) * tensor.element_size())
        if address == 0:
            raise ValueError(
                f"{what}: expected a tensor inside one piece of the pool's memory, got one across two "
                "(HostPool has warned that the device finds the pieces apart)"
            )
        view: Tensor = load().device_view(tensor, address, index)
        return view

    @contextlib.contextmanager
    def use(self) -> Iterator[Any]:
        """Serves new tensors on the pool's device from the pool: `torch.empty(..., device="npu")` is host memory.

        Holds for the current thread, and for the innermost of several nested contexts. torch's allocator takes the
        memory in segments (2 MiB for small tensors, 20 MiB for those from 1 MiB on, above 10 MiB what is needed) and
        keeps a segment until its last tensor has died and the context has ended or `torch.npu.empty_cache()` is called.
        A tensor may outlive the context and the pool. `host_view` gives the bytes to the host.

        Yields:
            HostPool: This pool.

        Raises:
            ValueError: The pool was made without a device.
            RuntimeError: The pool is closed, or another process's.
            torch.OutOfMemoryError: By torch, where a tensor is made, when the pool has no room for a segment.

        Example:
            >>> pool = torch_offload.HostPool(1 << 30, device="npu:0")
            >>> with pool.use():
            ...     rows = torch.empty(4096, 576, dtype=torch.bfloat16, device="npu")
            >>> pool.host_view(rows).shape
            torch.Size([4096, 576])
        """
        index = self._require_device("HostPool.use")
        if self._pool.closed():
            raise RuntimeError("HostPool.use: expected an open pool, got a closed one")
        if self._pool.stats()["attached"]:
            raise RuntimeError("HostPool.use: only the process that owns a shared pool allocates from it")
        npu = _npu()
        with npu.device(index):  # a MemPool belongs to the device that is current when it is made
            mem_pool = npu.MemPool(_allocator().allocator())
        with npu.use_mem_pool(mem_pool, index):
            _C.push_current_pool(self._pool)
            try:
                yield self
            except torch.OutOfMemoryError as error:
                if hasattr(error, "add_note"):  # Python 3.11; torch's text tells of the device's own memory
                    error.add_note(f"{self._pool.name()}: {_C.last_error()}")
                raise
            finally:
                _C.pop_current_pool()

    def _device_name(self) -> str:
        index = self._pool.device()
        return "the CPU" if index == _NO_DEVICE else f"npu:{index}"

    def _require_device(self, what: str) -> int:
        index: int = self._pool.device()
        if index == _NO_DEVICE:
            raise ValueError(f"{what}: expected a pool made with device='npu:<number>', got one without a device")
        return index

    def _require_in_pool(self, what: str, tensor: Tensor) -> None:
        address = tensor.untyped_storage().data_ptr()
        if not self._pool.contains(address):
            raise ValueError(
                f"{what}: expected a tensor in the memory of pool {self._pool.name()!r}, got one at {address:#x} "
                "outside of it"
            )


def _require_plain(what: str, tensor: Tensor) -> None:
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{what}: expected a Tensor, got {tensor!r}")
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_nested:
        raise TypeError(f"{what}: expected a plain strided tensor, got layout {tensor.layout}, dtype {tensor.dtype}")
    if tensor.is_conj() or tensor.is_neg():
        raise TypeError(f"{what}: expected a tensor without a lazy conjugation or negation, got one with it")


def _npu() -> Any:
    return importlib.import_module("torch_npu").npu


def _allocator() -> Any:
    if not _allocators:
        memory = importlib.import_module("torch_npu.npu.memory")
        _allocators.append(memory.NPUPluggableAllocator(str(_LIBRARY), "offload_alloc_fn", "offload_free_fn"))
    return _allocators[0]
