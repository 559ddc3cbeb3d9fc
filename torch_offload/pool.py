# SPDX-License-Identifier: Apache-2.0
"""Host memory pools whose tensors free themselves, and the process-wide default pool."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Sequence
from dataclasses import astuple
from types import TracebackType
from typing import Any

import torch
from torch import Tensor

from torch_offload import _C
from torch_offload.pool_exchange import export_tensor, import_tensor
from torch_offload.pool_records import PoolBlock, PoolHandle, PoolStats, PoolTensor
from torch_offload.progress import ProgressBar

__all__ = [
    "HostPool",
    "PoolBlock",
    "PoolHandle",
    "PoolStats",
    "PoolTensor",
    "empty",
    "init",
    "is_initialized",
    "uninit",
]


class HostPool:
    """A fixed amount of host memory that hands out CPU tensors.

    The memory is one mapping. Blocks are chosen by best fit and joined with their free neighbours when they come
    back; sizes are rounded to the alignment only. A block comes back when the last reference to its storage goes:
    the tensor itself, a view, a numpy array, a DLPack capsule. All methods may be called from any thread.

    In a forked child the tensors can be read; the pool can neither hand out nor take back blocks there.

    Args:
        capacity (int): Bytes, rounded up to the page size and the alignment.
        device (torch.device, str or None): Accelerator that shall address the memory. None keeps it plain.
        alignment (int): Of every block, in bytes; a power of two from 16 to 2 MiB.
        huge_pages (str): `"auto"` takes explicit huge pages, else transparent ones, else normal pages;
            `"require"` raises instead of falling back to normal pages; `"never"` takes normal pages. What came of
            it is in `stats().page_size`.
        numa_node (int or None): Node to bind the memory to. Where the system denies it, a warning is given and
            `stats().numa_node` is None.
        prefault_threads (int or None): Threads that touch every page at creation. 0 or None: pages come with their
            first use.
        name (str or None): For messages and the pool map.
        shared (bool): Whether other processes can `attach`.
        lock (bool): Whether to lock the memory against swapping, as far as the limits allow.

    Raises:
        ValueError: An argument is outside its rule, or the NUMA node does not exist.
        torch.OutOfMemoryError: The system, or the control group of this process, has not that much memory (or,
            with `"require"`, not that many huge pages).

    Warns:
        RuntimeWarning: Huge pages, locking or the NUMA node were denied. Once per text in a process.

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
        options = _options(capacity, device, alignment, huge_pages, numa_node, prefault_threads, name, shared, lock)
        with ProgressBar(f"{options[-1]}: prefault") as progress:
            self._pool = _C.HostPool.create(*options, progress)
        self._handle: PoolHandle | None = None
        _warn(self._pool)

    @classmethod
    def _wrap(cls, pool: _C.HostPool, handle: PoolHandle | None = None) -> HostPool:
        self = cls.__new__(cls)
        self._pool = pool
        self._handle = handle
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
            Tensor: On the CPU. Its storage cannot grow; its block goes back with the last reference.

        Raises:
            TypeError: `size` or `dtype` is of the wrong type.
            ValueError: A negative size, more than 2^63 bytes, or another device.
            torch.OutOfMemoryError: No free block is large enough. The message gives the bytes asked for, free, and
                in the largest free block.
            RuntimeError: The pool is closed, attached, or inherited through a fork.
        """
        _check_cpu(device)
        return self._pool.empty(_shape(size), _plain_dtype(dtype))

    def stats(self) -> PoolStats:
        """Returns one consistent snapshot of the pool."""
        return PoolStats(**self._pool.stats())

    def blocks(self) -> list[PoolBlock]:
        """Returns the map of the pool: every block, live or free, in the order of addresses, without gaps."""
        return [PoolBlock(*block) for block in self._pool.blocks()]

    def close(self) -> None:
        """Refuses new tensors from now on; waits for copies of the C interface that are under way.

        Tensors that are alive stay valid: the memory goes with the last of them. May be called again.
        """
        self._pool.close()

    def share(self) -> PoolHandle:
        """Returns what another process of the same user needs to `attach`; the pool must be made with `shared`.

        Raises:
            RuntimeError: The pool was made without `shared`.
        """
        self._handle = PoolHandle(**self._pool.share())
        return self._handle

    @classmethod
    def attach(cls, handle: PoolHandle) -> HostPool:
        """Maps the pool of another process: the same bytes, without a copy.

        The memory stays until the last process that has it mapped ends. Only its owner hands out tensors; here
        `import_` gives them.

        Args:
            handle (PoolHandle): From `share`.

        Raises:
            RuntimeError: The owner is gone, or may not be read.
        """
        return cls._wrap(_C.HostPool.attach(*astuple(handle)), handle)

    def export(self, t: Tensor) -> PoolTensor:
        """Returns what another process that has this pool needs to `import_` a tensor in its memory.

        No bytes are copied. `t`, or another tensor of its storage, must live as long as the others use it.

        Args:
            t (Tensor): A strided tensor in this pool's memory; views too.

        Raises:
            TypeError: `t` is no tensor.
            ValueError: `t` is not strided, or lies elsewhere.
            RuntimeError: The pool was made without `shared`, or was closed before it was shared.
        """
        return export_tensor(self._pool, self._identity(), t)

    def import_(self, meta: PoolTensor) -> Tensor:
        """Returns the tensor that another process has exported: the same bytes, without a copy.

        It keeps the memory mapped, but no block: that is the exporter's.

        Args:
            meta (PoolTensor): From `export` of this pool, in any process.

        Raises:
            TypeError: `meta` is no `PoolTensor`.
            ValueError: `meta` belongs to another pool, or is out of its range.
            RuntimeError: As for `export`.
        """
        return import_tensor(self._pool, self._identity(), meta)

    def _identity(self) -> PoolHandle:
        return self._handle or self.share()

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

    Args:
        capacity (int): Bytes.
        **options: Those of `HostPool`.

    Raises:
        RuntimeError: The default pool exists with other arguments.
        ValueError, torch.OutOfMemoryError: As for `HostPool`. Nothing is left behind.
    """
    values = _options(capacity, **{**_DEFAULTS, **options})
    existed = _C.default_pool_is_initialized()
    with ProgressBar(f"{values[-1]}: prefault") as progress:
        pool = _C.init_default_pool(*values, progress)
    if not existed:
        try:
            _warn(pool)
        except RuntimeWarning:  # warnings are errors: a failed init leaves nothing behind
            _C.uninit_default_pool()
            raise


def uninit() -> None:
    """Closes the default pool, if there is one. Tensors that are alive stay valid."""
    _C.uninit_default_pool()


def is_initialized() -> bool:
    """Returns whether the default pool exists."""
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
    return HostPool._wrap(_C.default_pool()).empty(size, dtype=dtype, device=device)


_DEFAULTS: dict[str, Any] = {
    "device": None,
    "alignment": 64,
    "huge_pages": "auto",
    "numa_node": None,
    "prefault_threads": None,
    "name": None,
    "shared": False,
    "lock": False,
}


def _options(
    capacity: int,
    device: torch.device | str | None,
    alignment: int,
    huge_pages: str,
    numa_node: int | None,
    prefault_threads: int | None,
    name: str | None,
    shared: bool,
    lock: bool,
) -> tuple[int, int, str, int, int, int, bool, bool, str]:
    """Checks the types and ranges that the compiled side cannot be given; it checks the rest."""
    _check_cpu(device)
    numbers = {"capacity": capacity, "alignment": alignment, "prefault_threads": prefault_threads or 0}
    numbers["numa_node"] = 0 if numa_node is None else numa_node
    limits = {"capacity": 2**62, "alignment": 2**62, "prefault_threads": 1024, "numa_node": 2**31 - 1}
    for key, value in numbers.items():
        try:
            numbers[key] = operator.index(value)
        except TypeError:
            raise TypeError(f"HostPool: expected {key} to be an int, got {value!r}") from None
        if not 0 <= numbers[key] <= limits[key]:
            raise ValueError(f"HostPool: expected {key} to be in [0, {limits[key]}], got {value}")
    for key, text in (("huge_pages", huge_pages), ("name", name or "")):
        if not isinstance(text, str):
            raise TypeError(f"HostPool: expected {key} to be a str, got {text!r}")
    return (
        numbers["capacity"],
        numbers["alignment"],
        huge_pages,
        _NO_NUMA_NODE if numa_node is None else numbers["numa_node"],
        numbers["prefault_threads"],
        _NO_DEVICE,
        bool(shared),
        bool(lock),
        name or "host_pool",
    )


_NO_NUMA_NODE = -1
_NO_DEVICE = -1


def _check_cpu(device: torch.device | str | None) -> None:
    if device is not None and torch.device(device).type != "cpu":
        raise ValueError(f"HostPool: expected device to be None or 'cpu', got {str(device)!r}")


def _shape(size: int | Sequence[int]) -> list[int]:
    try:
        sizes = [operator.index(size)] if not isinstance(size, Sequence) else [operator.index(s) for s in size]
    except TypeError:
        raise TypeError(f"HostPool.empty: expected size to be an int or a sequence of int, got {size!r}") from None
    for value in sizes:
        if not -(2**63) <= value < 2**63:
            raise ValueError(f"HostPool.empty: expected size to hold values below 2^63, got {value}")
    return sizes


def _plain_dtype(dtype: torch.dtype | None) -> torch.dtype:
    if dtype is None:
        return torch.get_default_dtype()
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"HostPool.empty: expected dtype to be a torch.dtype or None, got {dtype!r}")
    if dtype in _QUANTIZED:
        raise TypeError(f"HostPool.empty: expected dtype to be plain, got {dtype}")
    return dtype


_QUANTIZED = {torch.quint8, torch.qint8, torch.qint32, torch.quint4x2, torch.quint2x4}


def _warn(pool: _C.HostPool) -> None:
    """Warns of every wish that the system denied, once per text."""
    for text in pool.warnings():
        if text not in _warned:
            warnings.warn(f"HostPool: {text}", RuntimeWarning, stacklevel=3)
            _warned.add(text)


_warned: set[str] = set()
