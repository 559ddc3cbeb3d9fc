# SPDX-License-Identifier: Apache-2.0
"""The compiled module."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

_Progress = Callable[[int, int], None]

def rows_overlap(
    begin_a: int,
    stride_a: int,
    rows_a: int,
    row_bytes_a: int,
    begin_b: int,
    stride_b: int,
    rows_b: int,
    row_bytes_b: int,
    /,
) -> bool:
    """Whether two sets of rows, given in bytes, share a byte."""

MAX_RESIDENT_SLOTS: int

def residency_buckets(slots: int, /) -> int:
    """Columns of the index that `plan_residency` keeps on the CPU."""

def sparse_copy(dst: object, src: object, dst_index: object, src_index: object, count: object, /) -> bool:
    """Makes the call if all is plain and eager; else returns False, and torch.ops is to be used."""

def sparse_copy_ptrs(src_ptrs: object, dst_ptrs: object, lengths: object, count: object, status: object, /) -> bool: ...
def plan_residency(*arguments: object) -> bool: ...

class HostPool:
    @staticmethod
    def create(
        capacity: int,
        alignment: int,
        huge_pages: str,
        numa_node: int,
        prefault_threads: int,
        device: int,
        shared: bool,
        lock: bool,
        name: str,
        progress: _Progress,
        /,
    ) -> HostPool: ...
    @staticmethod
    def attach(
        pid: int, fd: int, inode: int, capacity: int, length: int, page_size: int, name: str, device: int, /
    ) -> HostPool: ...
    def empty(self, sizes: Sequence[int], dtype: torch.dtype, /) -> torch.Tensor: ...
    def view(
        self, offset: int, sizes: Sequence[int], strides: Sequence[int], dtype: torch.dtype, /
    ) -> torch.Tensor: ...
    def close(self) -> None: ...
    def closed(self) -> bool: ...
    def stats(self) -> dict[str, Any]: ...
    def blocks(self) -> list[tuple[int, int, int, bool]]: ...
    def share(self) -> dict[str, Any]: ...
    def capacity(self) -> int: ...
    def name(self) -> str: ...
    def warnings(self) -> list[str]: ...
    def device(self) -> int: ...
    def device_address(self, address: int, size: int, /) -> int: ...
    def host_address(self, device_address: int, /) -> int: ...
    def contains(self, address: int, /) -> bool: ...
    def offset_of(self, address: int, /) -> int: ...

def init_default_pool(
    capacity: int,
    alignment: int,
    huge_pages: str,
    numa_node: int,
    prefault_threads: int,
    device: int,
    shared: bool,
    lock: bool,
    name: str,
    progress: _Progress,
    /,
) -> HostPool: ...
def uninit_default_pool() -> None: ...
def default_pool_is_initialized() -> bool: ...
def default_pool() -> HostPool: ...
def push_current_pool(pool: HostPool, /) -> None: ...
def pop_current_pool() -> None: ...
def last_error() -> str: ...
