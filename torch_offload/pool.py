# SPDX-License-Identifier: Apache-2.0
"""Host memory pools whose tensors free themselves, and the process-wide default pool."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Sequence
from types import TracebackType
from typing import Any

import torch
from torch import Tensor

from torch_offload import _C
from torch_offload.pool_arguments import check_cpu, plain_dtype, pool_options, require_dense_memory, shape_of
from torch_offload.pool_device import DeviceAccess, device_index
from torch_offload.pool_types import PoolBlock, PoolHandle, PoolStats, TensorMeta
from torch_offload.progress import ProgressBar

__all__ = [
    "HostPool",
    "PoolBlock",
    "PoolHandle",
    "PoolStats",
    "TensorMeta",
    "default_pool",
    "empty",
    "init",
    "is_initialized",
    "uninit",
]

# What has been warned of in this process: once is enough.
_warned: set[str] = set()


class HostPool(DeviceAccess):
    """A fixed amount of host memory that hands out CPU tensors.

    The memory is one mapping. Blocks are chosen by best fit and joined with their free neighbours when they come
    back; sizes are rounded to the alignment only. A block comes back when the last reference to its storage goes:
    the tensor itself, a view, a numpy array, a DLPack capsule. All methods may be called from any thread. A tensor that
    outgrows its storage (`resize_`) moves to another block of the pool, or, with a warning, to ordinary memory.

    In a forked child the tensors can be read; the pool can neither hand out nor take back blocks there.

    A wish that the system denies (huge pages with `"auto"`, binding to a NUMA node, locking) is a RuntimeWarning, once
    in a process for the same text, and `stats()` tells what came of it.

    Args:
        capacity (int): Bytes, rounded up to the page size and the alignment.
        device (torch.device, str or None): NPU that shall address the memory, like "npu:0": `sparse_copy` then takes
            tensors of the pool as they are, and `use` and `device_view` give tensors on it. None or "cpu" keeps the
            memory plain.
        alignment (int): Of every block, in bytes; a power of two from 16 to 2 MiB.
        huge_pages (str): `"auto"` takes explicit huge pages, else transparent ones, else normal pages;
            `"require"` raises instead of falling back to normal pages; `"never"` takes normal pages. What came of
            it is in `stats().page_size`.
        numa_node (int or None): Node to bind the memory to. Where the system denies it, a warning is given and
            `stats().numa_node` is None.
        prefault_threads (int or None): Threads that back every page with memory at creation; a terminal shows a
            progress bar when that takes longer than a second. 0 or None: pages come with their first use (explicit
            huge pages always at creation).
        name (str or None): For messages and the pool map.
        shared (bool): Whether other processes can `attach`.
        lock (bool): Whether to lock the memory against swapping, as far as the limits allow.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: An argument is outside its rule, or the NUMA node does not exist.
        torch.OutOfMemoryError: The system, or the control group of this process, has not that much memory (or,
            with `"require"`, not that many huge pages).
        RuntimeError: The system denies memory that processes can share, or the device does not map the memory; the
            message names the call and its code.

    Example:
        >>> pool = torch_offload.HostPool(1 << 20)
        >>> keys = pool.empty((64, 512), dtype=torch.bfloat16)
        >>> pool.stats().used
        65536
    """

    def __init__(
        self,
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
    ) -> None:
        options = pool_options(
            capacity,
            device=device,
            alignment=alignment,
            huge_pages=huge_pages,
            numa_node=numa_node,
            prefault_threads=prefault_threads,
            name=name,
            shared=shared,
            lock=lock,
        )
        with ProgressBar(f"{options[-1]}: prefault") as progress:
            self._pool = _C.HostPool.create(*options, progress)
        self._handle: PoolHandle | None = None
        _warn(self._pool)

    @classmethod
    def _wrap(cls, pool: _C.HostPool, handle: PoolHandle | None = None) -> HostPool:
        self = cls.__new__(cls)
        self._pool = pool
        self._handle = handle  # of an attached pool, or once share() has been called
        return self

    def empty(
        self,
        size: int | Sequence[int],
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> Tensor:
        """Returns an uninitialized contiguous tensor in the pool's memory, like `torch.empty`.

        Args:
            size (int or sequence of int): Its shape.
            dtype (torch.dtype or None): None means torch's default dtype.
            device (torch.device, str or None): None or "cpu".

        Returns:
            Tensor: On the CPU; its block goes back with the last reference to its storage.

        Raises:
            TypeError: `size` or `dtype` is of the wrong type.
            ValueError: A negative size, more than 2^63 bytes, or another device.
            torch.OutOfMemoryError: No free block is large enough. The message gives the bytes asked for, free, and
                in the largest free block.
            RuntimeError: The pool is closed, attached, or inherited through a fork.
        """
        check_cpu("HostPool.empty", device)
        return self._pool.empty(shape_of(size), plain_dtype(dtype))

    @property
    def name(self) -> str:
        """The pool's name, as in messages."""
        return str(self._pool.name())

    @property
    def capacity(self) -> int:
        """Bytes that can be handed out."""
        return int(self._pool.capacity())

    def stats(self) -> PoolStats:
        """Returns one consistent snapshot of the pool.

        `page_size` and `huge_bytes` of transparent huge pages are measured at most once a second.
        """
        return PoolStats(**self._pool.stats())

    def blocks(self) -> list[PoolBlock]:
        """Returns the map of the pool: every block, live or free, in the order of addresses, without gaps."""
        return [PoolBlock(*block) for block in self._pool.blocks()]

    def close(self) -> None:
        """Refuses new tensors from now on; waits for copies of the C interface that are under way.

        Tensors that are alive stay valid: the memory goes with the last of them, and not before the streams of the
        device that have used it have passed. May be called again.
        """
        self._pool.close()

    def share(self) -> PoolHandle:
        """Returns what another process of the same user needs to `attach`; the pool must be made with `shared`.

        Raises:
            RuntimeError: The pool was made without `shared`, is attached, or is closed.
        """
        self._handle = PoolHandle(**self._pool.share())
        return self._handle

    @classmethod
    def attach(cls, handle: PoolHandle, *, device: torch.device | str | None = None) -> HostPool:
        """Maps the pool of another process: the same bytes, without a copy.

        The memory stays until the last process that has it mapped ends. Only its owner hands out tensors; here
        `import_` gives them, and `stats` shows no blocks.

        Args:
            handle (PoolHandle): From `share`.
            device (torch.device, str or None): NPU of this process that shall address the memory, whichever the owner
                has chosen for itself.

        Raises:
            TypeError: `handle` is no PoolHandle, or `device` no device.
            ValueError: `device` is neither the CPU nor an NPU of this machine.
            RuntimeError: The owner is gone, or may not be read, or the device does not map the memory.

        Example:
            >>> pool = torch_offload.HostPool(1 << 30, shared=True)      # one process
            >>> latent = pool.empty((1024, 576), dtype=torch.bfloat16)
            >>> queue.put((pool.share(), pool.export(latent)))
            >>> handle, meta = queue.get()                               # another one
            >>> latent = torch_offload.HostPool.attach(handle).import_(meta)
        """
        if not isinstance(handle, PoolHandle):
            raise TypeError(f"HostPool.attach: expected a PoolHandle, got {handle!r}")
        values = [getattr(handle, field.name) for field in dataclasses.fields(handle)]
        values.append(device_index("HostPool.attach", device))
        pool = cls._wrap(_C.HostPool.attach(*values), handle)
        _warn(pool._pool)
        return pool

    def export(self, tensor: Tensor) -> TensorMeta:
        """Returns where a tensor lies in a shared pool, for `import_` in another process; no byte is copied.

        The tensor's block stays this process's: keep the tensor as long as others use it.

        Args:
            tensor (Tensor): Any view of a tensor of this pool.

        Raises:
            TypeError: `tensor` is no tensor.
            ValueError: It does not lie in this pool.
            RuntimeError: The pool was made without `shared`.
        """
        require_dense_memory(tensor)
        storage = tensor.untyped_storage()
        first = self._pool.offset_of(storage.data_ptr()) if self._pool.contains(storage.data_ptr()) else -1
        offset = first + tensor.storage_offset() * tensor.element_size()
        if first < 0 or (tensor.numel() and offset >= self._pool.capacity()):
            raise ValueError(
                f"HostPool.export: expected a tensor in the memory of pool {self._pool.name()!r}, "
                f"got one at {storage.data_ptr():#x} outside of it"
            )
        handle = self._handle or self.share()
        # Nothing of an empty tensor lies anywhere.
        return TensorMeta(
            handle,
            int(offset) if tensor.numel() else 0,
            tuple(tensor.shape),
            tuple(map(int, tensor.stride())),
            tensor.dtype,
        )

    def import_(self, meta: TensorMeta) -> Tensor:
        """Returns the tensor that another process has exported: the same bytes.

        The tensor keeps the memory, not the block: the process that exported it must keep its own tensor.

        Args:
            meta (TensorMeta): From `export` of this pool's owner, or of another process that has attached it.

        Raises:
            TypeError: `meta` is no TensorMeta.
            ValueError: It is of another pool, or does not lie in this one.
            RuntimeError: The pool was made without `shared`.
        """
        if not isinstance(meta, TensorMeta):
            raise TypeError(f"HostPool.import_: expected a TensorMeta, got {meta!r}")
        handle = self._handle or self.share()
        if meta.pool != handle:
            raise ValueError(
                f"HostPool.import_: expected a tensor of pool {handle.name!r} of process {handle.pid}, "
                f"got one of pool {meta.pool.name!r} of process {meta.pool.pid}"
            )
        if not all(0 <= number < 2**63 for number in (meta.offset, *meta.size, *meta.stride)):
            raise ValueError(f"HostPool.import_: expected offset, size and stride in [0, 2^63), got {meta}")
        return self._pool.view(meta.offset, meta.size, meta.stride, meta.dtype)

    def __enter__(self) -> HostPool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._pool.closed() else "open"
        return f"HostPool({self._pool.name()!r}, capacity={self._pool.capacity()}, {state})"


def init(capacity: int, **options: Any) -> None:
    """Makes the process-wide default pool. Again with the same arguments it does nothing.

    A default pool that was closed through `default_pool().close()` is replaced.

    Args:
        capacity (int): Bytes.
        **options: Those of `HostPool`.

    Raises:
        RuntimeError: The default pool exists with other arguments.
        TypeError, ValueError, torch.OutOfMemoryError: As for `HostPool`. Nothing is left behind.
    """
    try:
        values = pool_options(capacity, **options)
    except TypeError as error:
        raise TypeError(str(error).replace("pool_options()", "init()")) from None
    existed = _C.default_pool_is_initialized()
    with ProgressBar(f"{values[-1]}: prefault") as progress:
        pool = _C.init_default_pool(*values, progress)
    try:
        _warn(pool)
    except Warning:  # warnings are errors: the call has failed
        if not existed:
            uninit()
        raise


def uninit() -> None:
    """Closes the default pool, if there is one. Tensors that are alive stay valid."""
    _C.uninit_default_pool()


def is_initialized() -> bool:
    """Returns whether the default pool exists and is open."""
    return _C.default_pool_is_initialized()


def empty(
    size: int | Sequence[int],
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> Tensor:
    """Returns an uninitialized tensor from the default pool; see `HostPool.empty`.

    Raises:
        RuntimeError: `init` has not been called.
    """
    return default_pool().empty(size, dtype=dtype, device=device)


def default_pool() -> HostPool:
    """Returns the default pool, for its `stats`, `share` and `blocks`.

    Raises:
        RuntimeError: `init` has not been called.
    """
    return HostPool._wrap(_C.default_pool())


def _warn(pool: _C.HostPool) -> None:
    for text in pool.warnings():
        if text not in _warned:
            # Of the caller of HostPool() or init(). Raises where warnings are errors: then it has not been seen.
            warnings.warn(f"HostPool: {text}", RuntimeWarning, stacklevel=3)
            _warned.add(text)
