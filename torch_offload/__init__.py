# SPDX-License-Identifier: Apache-2.0
"""Moves scattered KV-cache rows between host memory and the accelerator in one operator call."""

from importlib.metadata import version as _version

import torch  # noqa: F401  (loads the libraries that _C needs)

from torch_offload import _C, decomposition  # noqa: F401  (register the operators)
from torch_offload.npu import attach as _attach_npu
from torch_offload.ops import sparse_copy, sparse_copy_ptrs
from torch_offload.pool import HostPool, PoolBlock, PoolHandle, PoolStats, empty, init, is_initialized, uninit
from torch_offload.status import SparseCopyStatus, check_status, reset_status, status

_attach_npu()

__version__ = _version("torch_offload")

__all__ = [
    "HostPool",
    "PoolBlock",
    "PoolHandle",
    "PoolStats",
    "SparseCopyStatus",
    "check_status",
    "empty",
    "init",
    "is_initialized",
    "reset_status",
    "sparse_copy",
    "sparse_copy_ptrs",
    "status",
    "uninit",
]
