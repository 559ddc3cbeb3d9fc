# SPDX-License-Identifier: Apache-2.0
"""What `sparse_copy` becomes while a graph is traced.

Eager calls never come here: the C++ kernels win. In a graph the list operator would make compilers copy whole caches:
functionalization clones a destination when two in one node share a storage, and GE has no mutable lists. So tracing
takes this decomposition into the operators with one to four plain mutable tensors, never two of one storage in one.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from functools import reduce
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols, statically_known_true, sym_or

from torch_offload import _C
from torch_offload.inductor_fixes import lower_storage_offsets

MAX_ARITY = 4

_library = torch.library.Library("offload", "IMPL")


def _decompose(
    dst: Sequence[Tensor],
    src: Sequence[Tensor],
    dst_index: Tensor | None = None,
    src_index: Tensor | None = None,
    count: Tensor | None = None,
    cores: int | None = None,
) -> None:
    named = [(f"dst[{c}]", tensor) for c, tensor in enumerate(dst)]
    named += [(f"src[{c}]", tensor) for c, tensor in enumerate(src)]
    refuse_nested("sparse_copy", *named, ("dst_index", dst_index), ("src_index", src_index), ("count", count))
    _check_devices(dst, src, dst_index, src_index, count)
    if any(isinstance(tensor.storage_offset(), torch.SymInt) for tensor in dst if tensor.layout == torch.strided):
        lower_storage_offsets()
    groups = group_by_storage(dst)
    _check_across_groups(dst, src, groups, by_position=dst_index is None and src_index is None)
    limits: dict[str, Any] = {} if len(groups) == 1 else _row_limits(dst, src)
    if cores is not None:
        limits["cores"] = cores
    # The first operator sees the tensors of all: it refuses what overlaps, in each run, before anything is written.
    others: dict[str, Any] = {}
    if len(groups) > 1:
        others = {"other_dst": dst[len(groups[0]) :], "other_src": src[len(groups[0]) :]}
    for group in groups:
        op = getattr(torch.ops.offload, f"_sparse_copy_{len(group)}").default
        op(*(dst[c] for c in group), *(src[c] for c in group), dst_index, src_index, count, **limits, **others)
        others = {}
    _refuse_overlaps(dst, src)


_library.impl("sparse_copy", _decompose, "CompositeImplicitAutograd")
_library.impl("_sparse_copy_cores", _decompose, "CompositeImplicitAutograd")


def refuse_nested(op: str, *arguments: tuple[str, Tensor | None]) -> None:
    """Raises TypeError for nested tensors.

    Those of the jagged layout are Python objects, which refuse an operator before its kernels are asked.
    """
    for name, tensor in arguments:
        if tensor is not None and tensor.is_nested:
            raise TypeError(f"{op}: expected {name} to be a strided tensor, got layout nested")


def _row_limits(dst: Sequence[Tensor], src: Sequence[Tensor]) -> dict[str, int | torch.SymInt]:
    """Returns the least row counts of both sides, or nothing where all agree.

    Each operator gets them: so the first one refuses what is out of range in any component, before anything is written.
    """
    rows = [[tensor.shape[0] for tensor in side if tensor.dim() > 0] for side in (dst, src)]
    if all(statically_known_true(count == side[0]) for side in rows for count in side):
        return {}
    return {name: reduce(torch.sym_min, side) for name, side in zip(("dst_rows", "src_rows"), rows, strict=True)}


def group_by_storage(dst: Sequence[Tensor]) -> list[list[int]]:
    """Cuts the components, in their order, into groups for one operator each.

    Returns:
        Lists of positions in `dst`: at most four in each, no two of one storage. The order is kept, so that where
        destinations share bytes the last component wins, as in eager mode.
    """
    groups: list[list[int]] = []
    storages: set[int] = set()
    for c, tensor in enumerate(dst):
        storage = storage_id(tensor)
        if not groups or len(groups[-1]) == MAX_ARITY or storage in storages:
            groups.append([])
            storages = set()
        groups[-1].append(c)
        storages.add(storage)
    return groups


def storage_id(tensor: Tensor) -> int:
    """Identifies the storage of a real, fake or functional tensor; equal for views of one base.

    What has no storage, like a sparse tensor, is on its own: the operators refuse it.
    """
    if tensor.is_nested or tensor.layout != torch.strided:
        return id(tensor)
    if isinstance(tensor, FunctionalTensor):
        tensor = torch._from_functional_tensor(tensor.elem)
    return int(tensor.untyped_storage()._cdata)


def _check_devices(
    dst: Sequence[Tensor],
    src: Sequence[Tensor],
    dst_index: Tensor | None,
    src_index: Tensor | None,
    count: Tensor | None,
) -> None:
    """Checks that one device can reach every tensor; Meta kernels cannot, they see no device.

    Host memory may stand beside one accelerator: whether that device can address it, the real kernel knows.
    """
    tensors = [(f"dst[{c}]", tensor) for c, tensor in enumerate(dst)]
    tensors += [(f"src[{c}]", tensor) for c, tensor in enumerate(src)]
    optional = (("dst_index", dst_index), ("src_index", src_index), ("count", count))
    tensors += [(name, tensor) for name, tensor in optional if tensor is not None]
    device = next((tensor.device for _, tensor in tensors if tensor.device.type != "cpu"), None)
    if device is None:
        return
    place = str(device) if device.type == "meta" else f"{device} or in host memory"
    for name, tensor in tensors:
        if tensor.device != device and (tensor.device.type != "cpu" or device.type == "meta"):
            raise ValueError(f"sparse_copy: expected {name} to be on {place}, got {tensor.device}")


def _check_across_groups(
    dst: Sequence[Tensor], src: Sequence[Tensor], groups: list[list[int]], *, by_position: bool
) -> None:
    """Checks what the operators of the groups, which see only their own tensors, cannot.

    The rules and the errors are those of `check_sparse_copy` in C++.
    """
    if not dst:
        raise ValueError("sparse_copy: expected dst to hold at least 1 tensor, got 0")
    if len(src) != len(dst):
        raise ValueError(f"sparse_copy: expected src to hold {len(dst)} tensors like dst, got {len(src)}")
    if len(groups) == 1:
        return
    if by_position and all(tensor.dim() > 0 for tensor in (*dst, *src)):
        rows = dst[0].shape[0]
        for name, tensors in (("dst", dst), ("src", src)):
            for c, tensor in enumerate(tensors):
                torch._check_value(
                    tensor.shape[0] == rows,
                    lambda name=name, c=c, tensor=tensor: (
                        f"sparse_copy: expected {name}[{c}] to have the {rows} rows of dst[0] "
                        f"when dst_index and src_index are None, got {tensor.shape[0]}"
                    ),
                )


def _refuse_overlaps(dst: Sequence[Tensor], src: Sequence[Tensor]) -> None:
    """Raises ValueError where a destination shares bytes with a source.

    The kernels do this for all sizes that are no symbols; a backend that copies what it writes would hide it from them.
    """
    sources: dict[int, list[int]] = {}
    for s, tensor in enumerate(src):
        sources.setdefault(storage_id(tensor), []).append(s)
    for d, tensor in enumerate(dst):
        for s in sources.get(storage_id(tensor), ()):
            if _overlap(tensor, src[s]):
                raise ValueError(
                    f"sparse_copy: expected dst[{d}] not to overlap what the call reads, got bytes shared with src[{s}]"
                )


def _overlap(a: Tensor, b: Tensor) -> bool:
    """Whether two traced tensors of one storage share bytes.

    The usual answer, that one ends before the other begins, becomes a guard of the graph; any other answer holds for
    these sizes alone. Sizes that only the run will know are left to the kernel.
    """
    if statically_known_true(a.numel() == 0) or statically_known_true(b.numel() == 0):
        return False
    (a_rows, a_end), (b_rows, b_end) = _byte_rows(a), _byte_rows(b)
    if free_unbacked_symbols((*a_rows, *b_rows)):
        return False
    if sym_or(a_end <= b_rows[0], b_end <= a_rows[0]):
        return False
    return _C.rows_overlap(*map(int, a_rows), *map(int, b_rows))


def _byte_rows(tensor: Tensor) -> tuple[list[int | torch.SymInt], int | torch.SymInt]:
    """Returns first byte, stride, number and bytes of the rows, and the byte behind the last one."""
    size = tensor.element_size()
    begin, stride, rows = tensor.storage_offset() * size, tensor.stride(0) * size, tensor.shape[0]
    row_bytes = reduce(operator.mul, tensor.shape[1:], 1) * size
    return [begin, stride, rows, row_bytes], begin + (rows - 1) * stride + row_bytes
