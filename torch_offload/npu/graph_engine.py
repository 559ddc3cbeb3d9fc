# SPDX-License-Identifier: Apache-2.0
"""What torchair makes of our operators in a graph of CANN's graph engine (GE), its mode "max-autotune".

GE knows two operators of ours, `OffloadSparseCopy` and `OffloadSparseCopyPtrs`. What a call writes is an input and an
output of the same name: torchair then finds that the output is the changed input.
"""

from __future__ import annotations

import importlib
import inspect
import warnings
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import torch

from torch_offload.decomposition import MAX_ARITY

SPARSE_COPY = "OffloadSparseCopy"
SPARSE_COPY_PTRS = "OffloadSparseCopyPtrs"

_STATUS = 4  # its place among the inputs of OffloadSparseCopyPtrs


def register(torchair: ModuleType) -> None:
    """Gives torchair the converters of our operators; it has just been imported."""
    ops = torch.ops.offload
    for arity in range(1, MAX_ARITY + 1):
        converter = _sparse_copy_converter(arity)
        torchair.register_fx_node_ge_converter(getattr(ops, f"_sparse_copy_{arity}").default)(converter)
    torchair.register_fx_node_ge_converter(ops.sparse_copy_ptrs.default)(_convert_sparse_copy_ptrs)
    torchair.register_fx_node_ge_converter(ops._sparse_copy_ptrs_cores.default)(_convert_sparse_copy_ptrs)
    _let_copies_be_dropped()


def _sparse_copy_converter(arity: int) -> Callable[..., None]:
    """The converter of `_sparse_copy_<arity>`; torchair calls it with the names of the schema: dst0, ..., src0, ..."""

    def convert(
        *,
        dst_index: Any = None,
        src_index: Any = None,
        count: Any = None,
        dst_rows: int | None = None,
        src_rows: int | None = None,
        cores: int | None = None,
        other_dst: Any = None,
        other_src: Any = None,
        **rows: Any,
    ) -> None:
        del other_dst, other_src  # for checks of the host, which a graph of GE has left when it runs
        _sparse_copy(
            [rows[f"dst{c}"] for c in range(arity)],
            [rows[f"src{c}"] for c in range(arity)],
            {"dst_index": dst_index, "src_index": src_index, "count": count},
            {"dst_rows": dst_rows, "src_rows": src_rows, "cores": cores},
        )

    return convert


def _sparse_copy(dst: Sequence[Any], src: Sequence[Any], tables: dict[str, Any], limits: dict[str, int | None]) -> None:
    ge = importlib.import_module("torchair.ge")

    named = [(f"dst[{c}]", tensor) for c, tensor in enumerate(dst)]
    named += [(f"src[{c}]", tensor) for c, tensor in enumerate(src)]
    _check_devices("sparse_copy", [*named, *((name, table) for name, table in tables.items() if table is not None)])
    for name, tensor in named:
        if tensor.dtype != dst[0].dtype:
            raise TypeError(
                f"sparse_copy: expected {name} to have the dtype of dst[0] in a graph of GE, whose lists have one, got "
                f"{tensor.meta.dtype} beside {dst[0].meta.dtype}; make one call for each dtype"
            )
    attributes = {name: ge.attr.Int(-1 if value is None else value) for name, value in limits.items()}
    inputs = {"dst": list(dst), "src": list(src), **tables}
    ge.custom_op(SPARSE_COPY, inputs=inputs, outputs=[("dst", len(dst))], attrs=attributes)


def _convert_sparse_copy_ptrs(
    src_ptrs: Any, dst_ptrs: Any, lengths: Any, count: Any, status: Any, cores: int | None = None
) -> None:
    ge = importlib.import_module("torchair.ge")

    inputs = {"src_ptrs": src_ptrs, "dst_ptrs": dst_ptrs, "lengths": lengths, "count": count, "status": status}
    _check_devices("sparse_copy_ptrs", list(inputs.items()))
    cores_attribute = {"cores": ge.attr.Int(-1 if cores is None else cores)}
    ge.custom_op(SPARSE_COPY_PTRS, inputs=inputs, outputs=["status"], attrs=cores_attribute)


def _check_devices(op: str, tensors: Sequence[tuple[str, Any]]) -> None:
    """Refuses tensors on the host: GE would move them to the device, whole, in each run."""
    for name, tensor in tensors:
        meta = tensor.meta
        if meta is not None and meta.device.type == "cpu":
            raise ValueError(
                f"{op}: expected {name} to be on an NPU in a graph of GE, which copies what is on the host "
                "to the device, got cpu; for rows in a pool take pool.device_view(rows)"
            )


def _let_copies_be_dropped() -> None:
    """Tells torchair which outputs of our operators are which inputs.

    It copies what an operator writes before the call, and drops the copy again for the operators of a fixed table. The
    table has no entry point, so this wraps its lookup; where that is not what we know, the copies stay.
    """
    graph_pass: Any = importlib.import_module("torchair._ge_concrete_graph.graph_pass")

    lookup = getattr(graph_pass, "_get_output_to_input_ref_idx", None)
    if not callable(lookup) or list(inspect.signature(lookup).parameters) != ["op"]:
        warnings.warn(
            "torch_offload: expected torchair's graph_pass._get_output_to_input_ref_idx(op), got another torchair; "
            "graphs of GE are right, but copy each destination in each run",
            RuntimeWarning,
            stacklevel=2,
        )
        return

    def with_ours(op: Any) -> dict[int, int]:
        if op.type == SPARSE_COPY:
            return {position: position for position in range(len(op.output_desc))}
        if op.type == SPARSE_COPY_PTRS:
            return {0: _STATUS}
        return dict(lookup(op))

    graph_pass._get_output_to_input_ref_idx = with_ours
