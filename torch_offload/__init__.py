# SPDX-License-Identifier: Apache-2.0
"""Moves scattered KV-cache rows between host memory and the accelerator in one operator call."""

from importlib.metadata import version as _version

from torch_offload.load_extension import load_extension as _load_extension

_load_extension()

# ruff: noqa: E402  (what follows needs the compiled module)
from torch_offload import decomposition  # noqa: F401  (registers what sparse_copy becomes in graphs)
from torch_offload.npu import attach as _attach_npu
from torch_offload.ops import sparse_copy, sparse_copy_ptrs
from torch_offload.pool import (
    HostPool,
    PoolBlock,
    PoolHandle,
    PoolStats,
    TensorMeta,
    default_pool,
    empty,
    init,
    is_initialized,
    uninit,
)
from torch_offload.residency import (
    ResidencyPlan,
    ResidencyState,
    new_residency_plan,
    new_residency_state,
    plan_residency,
)
from torch_offload.resident_cache import Prefetch, ResidencyStats, ResidentCache
from torch_offload.status import SparseCopyStatus, check_status, reset_status, status

_attach_npu()

__version__ = _version("torch_offload")

__all__ = [
    "HostPool",
    "PoolBlock",
    "PoolHandle",
    "PoolStats",
    "Prefetch",
    "ResidencyPlan",
    "ResidencyState",
    "ResidencyStats",
    "ResidentCache",
    "SparseCopyStatus",
    "TensorMeta",
    "check_status",
    "default_pool",
    "empty",
    "init",
    "is_initialized",
    "new_residency_plan",
    "new_residency_state",
    "plan_residency",
    "reset_status",
    "sparse_copy",
    "sparse_copy_ptrs",
    "status",
    "uninit",
]
