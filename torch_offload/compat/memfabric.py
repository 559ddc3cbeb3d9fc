# SPDX-License-Identifier: Apache-2.0
"""What callers of `memfabric_hybrid.offload` use, over this package.

They change one import: `from torch_offload.compat import memfabric as offload`. Names, arguments and return codes are
those of its version 1.3, in the scene LOCAL, on a CPU and on an NPU. Better here:

- Memory of `empty` is given back with the tensor. A caller's own `free(tensor.data_ptr())` does nothing, now and later.
- Counts may be odd, rows of any length; tables are checked, and what is wrong with them raises TypeError or ValueError.
- Calls may run in several threads, `uninitialize` beside them; the device number is not narrowed.

The scene SHARED, and with it `register_entry_table` and `entry_gather`, answer NOT_SUPPORTED.
"""

from __future__ import annotations

import enum
import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from torch_offload import pool as _pool
from torch_offload.ops import describe, require_tensor, sparse_copy_ptrs
from torch_offload.ops import sparse_copy as _sparse_copy_rows

__all__ = [
    "OFFLOAD_FLAG_GIANT_PAGE",
    "OffloadConfig",
    "Scene",
    "empty",
    "entry_gather",
    "free",
    "get_dva",
    "group_pack_copy",
    "initialize",
    "kv_exchange_copy",
    "malloc",
    "register_entry_table",
    "sparse_copy",
    "uninitialize",
]

OK = 0
ERROR = -1
INVALID_PARAM = -2
MALLOC_FAILED = -3
NOT_SUPPORTED = -100

OFFLOAD_FLAG_GIANT_PAGE = 1

# Sizes of a configuration count in these.
_GIB = 1 << 30

# The table of kv_exchange_copy: eight numbers of the call, then nine of each component.
_META_NUMBERS = 44
_META_HEAD = 8
_META_COMPONENT = 9
_DEVICE_TO_HOST = 2

_log = logging.getLogger(__name__)
_lock = threading.Lock()
_blocks: dict[int, Tensor] = {}  # of `malloc`, by address; guarded by _lock


class Scene(enum.IntEnum):
    """Whose memory it is: of this process, or of several ranks together."""

    LOCAL = 0
    SHARED = 1


@dataclass
class OffloadConfig:
    """What `initialize` is told.

    Attributes:
        device_id: Number of the NPU; without one in this process it means nothing.
        reserve_size: Bytes; in the scene LOCAL as many GiB as `alloc_size`, rounded up.
        alloc_size: Bytes of the pool.
        world_size: Of the scene SHARED, as the next ones.
        rank_id: Number of this rank.
        scene: Whose memory it is.
        store_url: Where ranks meet.
        flags: OFFLOAD_FLAG_GIANT_PAGE asks for huge pages, which the pool takes where it can in any case.
        local_world_size: Ranks on this machine.
    """

    device_id: int = 0
    reserve_size: int = 0
    alloc_size: int = 0
    world_size: int = 0
    rank_id: int = 0
    scene: Scene | int = Scene.LOCAL
    store_url: str = ""
    flags: int = 0
    local_world_size: int = 0


def initialize(config: OffloadConfig) -> int:
    """Makes the pool: this package's default pool, which `torch_offload.empty` serves from, too.

    Returns:
        int: 0, also where there is a pool already (a warning is logged, `config` ignored); INVALID_PARAM, MALLOC_FAILED
        or NOT_SUPPORTED, with the reason in the log.

    Raises:
        TypeError: `config` is no OffloadConfig.
    """
    if not isinstance(config, OffloadConfig):
        raise TypeError(f"initialize: expected config to be an OffloadConfig, got {describe(config)}")
    if _pool.is_initialized():
        _log.warning("initialize: there is a pool already; the configuration is ignored")
        return OK
    if config.scene == Scene.SHARED:
        _log.error("initialize: the scene SHARED is not supported; share a HostPool (HostPool.share, HostPool.attach)")
        return NOT_SUPPORTED
    if (
        config.scene != Scene.LOCAL
        or config.device_id < 0
        or config.alloc_size <= 0
        or _gib(config.alloc_size) != _gib(config.reserve_size)
    ):
        _log.error(
            "initialize: expected scene LOCAL, device_id from 0, reserve_size and alloc_size of as many GiB, got %s",
            config,
        )
        return INVALID_PARAM
    device = f"npu:{config.device_id}" if _npu_is_there() else None
    try:
        _pool.init(config.alloc_size, device=device)
    except torch.OutOfMemoryError as error:
        _log.error("initialize: %s", error)
        return MALLOC_FAILED
    except (RuntimeError, ValueError) as error:
        _log.error("initialize: %s", error)
        return INVALID_PARAM if isinstance(error, ValueError) else ERROR
    return OK


def uninitialize() -> None:
    """Gives the pool up. It waits for copies; memory of tensors that live stays until the last of them dies."""
    with _lock:
        _blocks.clear()
    if _pool.is_initialized():
        _pool.uninit()


def malloc(size: int, flags: int = 0) -> int:
    """Returns the address of `size` bytes, aligned to 64, valid until `free`; 0 on failure and for size 0."""
    del flags
    if size <= 0 or not _pool.is_initialized():
        return 0
    try:
        block = _pool.empty((size,), dtype=torch.uint8)
    except (RuntimeError, ValueError) as error:  # also torch.OutOfMemoryError
        _log.error("malloc: %s", error)
        return 0
    with _lock:
        _blocks[block.data_ptr()] = block
    return block.data_ptr()


def free(ptr: int, flags: int = 0) -> None:
    """Gives back what `malloc` has returned. Other addresses, such as those of tensors of `empty`, are left alone."""
    del flags
    with _lock:
        block = _blocks.pop(ptr, None)
    if block is None:
        _log.debug("free: %#x was not returned by malloc, or has been freed; nothing is done", ptr)


def get_dva(ptr: int) -> int:
    """Returns the address under which the device knows a byte of the pool, 0 if it is none. On a CPU, the same one."""
    if not _pool.is_initialized():
        return 0
    native = _pool.default_pool()._pool
    if not native.contains(ptr):
        return 0
    return native.device_address(ptr, 1) if native.device() >= 0 else ptr


def empty(sizes: Sequence[int], dtype: torch.dtype | None = None, pin_memory: bool = False) -> Tensor:
    """Returns a tensor in the pool, of bfloat16 unless said otherwise; its memory goes with its last reference.

    Args:
        sizes (sequence of int): Shape, without a zero.
        dtype (torch.dtype or None): None: bfloat16.
        pin_memory (bool): Ignored: the pool is what the device can reach.

    Raises:
        RuntimeError: There is no pool.
        ValueError: A size is zero or negative.
        torch.OutOfMemoryError: The pool is full.
    """
    del pin_memory
    if any(size <= 0 for size in sizes):
        raise ValueError(f"empty: expected sizes of at least 1, got {list(sizes)}")
    return _pool.empty(tuple(sizes), dtype=torch.bfloat16 if dtype is None else dtype)


def sparse_copy(
    srcPtrs: Tensor, dstPtrs: Tensor, lenPtrs: Tensor, sizePtr: Tensor, deviceId: torch.device | str | int
) -> int:
    """Copies `lenPtrs[i]` bytes from `srcPtrs[i]` to `dstPtrs[i]`, for i below the count in `sizePtr`; 0 skips.

    Args:
        srcPtrs (Tensor `[n]`, int64 or uint64): Addresses.
        dstPtrs (Tensor `[n]`, int64 or uint64): Addresses.
        lenPtrs (Tensor `[n]`, int32 or int64): Bytes.
        sizePtr (Tensor of one element, int32 or int64): The count, read on the device.
        deviceId (torch.device, str or int): Where the tables are; without a number the current device.

    Returns:
        int: 0: queued on the current stream.

    Raises:
        TypeError, ValueError: As for `torch_offload.sparse_copy_ptrs`, or the tables are on another device.
    """
    _check_device("sparse_copy", "srcPtrs", srcPtrs, deviceId)
    sparse_copy_ptrs(srcPtrs, dstPtrs, lenPtrs, sizePtr, status=_status(srcPtrs.device))
    return OK


def group_pack_copy(
    srcPtrs: Tensor,
    dstPtrs: Tensor,
    lenPtrs: Tensor,
    numLocalExpertPtr: Tensor,
    groupList: Tensor,
    packedGroupList: Tensor,
    deviceId: torch.device | str | int,
) -> int:
    """Copies the inputs of experts that have tokens to the front outputs, in order.

    With n experts, the j-th i whose `groupList[i]` is not zero copies `lenPtrs[i]` bytes from `srcPtrs[i]` to
    `dstPtrs[j]` and writes `groupList[i]` to `packedGroupList[j]`. What stands behind stays.

    Args:
        srcPtrs (Tensor `[N]`, int64 or uint64): Addresses of inputs.
        dstPtrs (Tensor `[N]`, int64 or uint64): Addresses of outputs.
        lenPtrs (Tensor `[N]`, int32 or int64): Bytes of inputs.
        numLocalExpertPtr (Tensor of one element, int32 or int64): n, read on the device.
        groupList (Tensor `[N]`, int32 or int64): Tokens of each expert.
        packedGroupList (Tensor `[N]`, of the same dtype): Written.
        deviceId (torch.device, str or int): As for `sparse_copy`.

    Returns:
        int: 0: queued on the current stream.

    Raises:
        TypeError, ValueError: As for `sparse_copy`.
    """
    _check_device("group_pack_copy", "srcPtrs", srcPtrs, deviceId)
    for name, table in (
        ("dstPtrs", dstPtrs),
        ("lenPtrs", lenPtrs),
        ("numLocalExpertPtr", numLocalExpertPtr),
        ("groupList", groupList),
        ("packedGroupList", packedGroupList),
    ):
        require_tensor("group_pack_copy", name, table)
    if groupList.shape != srcPtrs.shape or packedGroupList.shape != srcPtrs.shape:
        raise ValueError(
            f"group_pack_copy: expected groupList and packedGroupList to have the shape of srcPtrs, "
            f"{tuple(srcPtrs.shape)}, got {tuple(groupList.shape)} and {tuple(packedGroupList.shape)}"
        )
    position = torch.arange(groupList.numel(), device=groupList.device)
    present = (groupList != 0) & (position < numLocalExpertPtr.reshape(()))
    place = torch.where(present, present.cumsum(0) - 1, -1)
    count = torch.full((1,), groupList.numel(), dtype=torch.int64, device=groupList.device)
    targets = dstPtrs.view(torch.int64).gather(0, place.clamp(min=0))
    lengths = torch.where(present, lenPtrs, 0)
    sparse_copy_ptrs(srcPtrs, targets, lengths, count, status=_status(srcPtrs.device))
    _sparse_copy_rows(packedGroupList.view(-1, 1), groupList.view(-1, 1), dst_index=place)
    return OK


def kv_exchange_copy(metaPtr: Tensor, deviceId: torch.device | str | int) -> int:
    """Exchanges pages of up to four components between a layer-first cache on the device and a host pool.

    The table is read on the host: the call waits for the stream and cannot be captured. `torch_offload.layouts` with
    `sparse_copy` can.

    Args:
        metaPtr (Tensor `[44]`, int64): Components, pages, page size, direction (2: to the host, else to the device),
            addresses of the token numbers of each page on the device and on the host, layout of the host, 0; then for
            each component: device base, host base, device layer pitch, device page pitch, host page pitch, host layer
            pitch, bytes of a page of a layer, first layer, layer behind the last.
        deviceId (torch.device, str or int): As for `sparse_copy`.

    Returns:
        int: 0: queued on the current stream; INVALID_PARAM: the table holds what cannot be.

    Raises:
        TypeError, ValueError: `metaPtr` is no such tensor, or it is on another device.
    """
    _check_device("kv_exchange_copy", "metaPtr", metaPtr, deviceId)
    if metaPtr.dtype != torch.int64 or metaPtr.numel() != _META_NUMBERS:
        raise ValueError(
            f"kv_exchange_copy: expected metaPtr to be {_META_NUMBERS} numbers of int64, "
            f"got {metaPtr.numel()} of {metaPtr.dtype}"
        )
    meta = metaPtr.flatten().tolist()
    components, pages, page_size, direction, device_tokens, host_tokens = meta[:6]
    if not 1 <= components <= 4 or pages < 0 or page_size < 1:
        _log.error("kv_exchange_copy: expected 1 to 4 components, pages and a page size, got %s", meta[:3])
        return INVALID_PARAM
    if pages == 0:
        return OK
    device = metaPtr.device
    device_page = _read(device_tokens, pages * page_size, device)[::page_size] // page_size
    host_page = _read(host_tokens, pages * page_size, device)[::page_size] // page_size
    ours, theirs, lengths = [], [], []
    for c in range(components):
        begin = _META_HEAD + c * _META_COMPONENT
        (base, host_base, layer_pitch, page_pitch, host_page_pitch, host_layer_pitch, width, low, high) = meta[
            begin : begin + _META_COMPONENT
        ]
        if width <= 0 or low >= high:
            continue
        layer = torch.arange(low, high, device=device).view(-1, 1)
        ours.append((base + layer * layer_pitch + device_page * page_pitch).view(-1))
        theirs.append((host_base + layer * host_layer_pitch + host_page * host_page_pitch).view(-1))
        lengths.append(torch.full_like(ours[-1], width))
    if not ours:
        return OK
    sides = torch.cat(ours), torch.cat(theirs)
    dst, src = reversed(sides) if direction == _DEVICE_TO_HOST else sides
    count = torch.full((1,), src.numel(), dtype=torch.int64, device=device)
    sparse_copy_ptrs(src, dst, torch.cat(lengths), count, status=_status(device))
    return OK


def register_entry_table(entryBytes: int, rowsPerSlot: int) -> int:
    """Belongs to the scene SHARED: returns NOT_SUPPORTED."""
    del entryBytes, rowsPerSlot
    return NOT_SUPPORTED


def entry_gather(dst: Tensor | int, ids: Tensor, count: Tensor, deviceId: torch.device | str | int) -> int:
    """Belongs to the scene SHARED: returns NOT_SUPPORTED."""
    del dst, ids, count, deviceId
    return NOT_SUPPORTED


def _gib(size: int) -> int:
    return -(-size // _GIB)


def _npu_is_there() -> bool:
    npu = getattr(torch, "npu", None)
    return npu is not None and npu.is_available()


def _check_device(op: str, name: str, table: Tensor, device: torch.device | str | int) -> None:
    """Checks that a table is on the device that the caller names in any of the usual spellings."""
    require_tensor(op, name, table)
    if isinstance(device, bool) or not isinstance(device, (int, str, torch.device)):
        raise TypeError(f"{op}: expected deviceId to be a torch.device, a str or an int, got {describe(device)}")
    # A torch without torch_npu knows no device of that name: the string is read here.
    kind, _, digits = ("npu", ":", str(device)) if isinstance(device, int) else str(device).partition(":")
    if kind not in ("npu", "cpu", "privateuseone") or not (digits == "" or digits.isdecimal()):
        raise ValueError(f"{op}: expected deviceId to be 'npu', 'npu:<number>' or a number from 0, got {device!r}")
    number = int(digits) if digits else None
    if table.device.type != "cpu" and number is not None and number != table.device.index:
        raise ValueError(f"{op}: expected {name} to be on device {number}, got {table.device}")


class _PerThread(threading.local):
    """What the copies of a thread report into, for each device; it outlives every call and captured graph."""

    def __init__(self) -> None:
        self.status: dict[torch.device, Tensor] = {}


_per_thread = _PerThread()


def _status(device: torch.device) -> Tensor:
    if device not in _per_thread.status:
        _per_thread.status[device] = torch.empty(4, dtype=torch.int64, device=device)
    return _per_thread.status[device]


def _read(address: int, count: int, device: torch.device) -> Tensor:
    """Copies `count` int64 from an address that the device knows."""
    out = torch.empty(count, dtype=torch.int64, device=device)
    numbers = torch.tensor([[address], [out.data_ptr()], [out.nbytes], [1]], dtype=torch.int64).to(device)
    sparse_copy_ptrs(numbers[0], numbers[1], numbers[2], numbers[3], status=_status(device))
    return out
