# SPDX-License-Identifier: Apache-2.0
"""A lowering that inductor lacks in torch 2.13 and that destinations in a graph need."""

from __future__ import annotations

from typing import Any

import torch

_OFFSET = torch.ops.aten.sym_storage_offset.default


def lower_storage_offsets() -> None:
    """Makes inductor read a symbolic storage offset from the graph, as it does sizes and strides.

    Without this, inductor computes the offset on a stand-in tensor, gets 0, and the destination `kv[1]` of a graph
    with dynamic shapes is written at `kv[0]` (pytorch/pytorch#198068). Nothing is done where torch has the lowering.
    """
    from torch._inductor import lowering
    from torch._inductor.virtualized import V

    if _OFFSET in lowering.lowerings and _OFFSET not in lowering.fallbacks:
        return

    def sym_storage_offset(_: Any) -> Any:
        offset = V.graph.current_node.meta["val"]
        return offset.node.expr if isinstance(offset, torch.SymInt) else int(offset)

    lowering.fallbacks.discard(_OFFSET)
    lowering.register_lowering(_OFFSET, type_promotion_kind=None)(sym_storage_offset)
