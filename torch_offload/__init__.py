# SPDX-License-Identifier: Apache-2.0
"""Moves scattered KV-cache rows between host memory and the accelerator in one operator call."""

from importlib.metadata import version as _version

from torch_offload.load_extension import load_extension as _load_extension

_load_extension()

# ruff: noqa: E402  (what follows needs the compiled module)
from torch_offload import decomposition  # noqa: F401  (registers what sparse_copy becomes in graphs)
from torch_offload.ops import sparse_copy, sparse_copy_ptrs
from torch_offload.pool import (
    HostPool,
    PoolBlock,
    PoolHandle,
    PoolStats,
    PoolTensor,
    empty,
    init,
    is_initialized,
    uninit,
)

__version__ = _version("torch_offload")

__all__ = [
    "HostPool",
    "PoolBlock",
    "PoolHandle",
    "PoolStats",
    "PoolTensor",
    "empty",
    "init",
    "is_initialized",
    "sparse_copy",
    "sparse_copy_ptrs",
    "uninit",
]
