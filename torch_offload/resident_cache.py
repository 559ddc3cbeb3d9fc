# SPDX-License-Identifier: Apache-2.0
"""Rows of a KV cache that stay on the device: planning and copying together, for several layers and components."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torch_offload.ops import sparse_copy
from torch_offload.pool import HostPool
from torch_offload.residency import new_residency_plan, new_residency_state, plan_residency

__all__ = ["Prefetch", "ResidencyStats", "ResidentCache"]


@dataclass(frozen=True)
class ResidencyStats:
    """What a cache has done since it was made.

    Attributes:
        hits: Distinct tokens that were resident, summed over steps and groups of layers.
        misses: Distinct tokens that were loaded.
        bytes_loaded: Bytes moved from the host for them, in all layers.
        bytes_saved: Bytes that did not have to move.
    """

    hits: int
    misses: int
    bytes_loaded: int
    bytes_saved: int


class Prefetch:
    """A load that `ResidentCache.prefetch` has started.

    Attributes:
        event: What the load ends with on its stream (`torch.npu.Event`), or None where it is done: on the CPU.
    """

    def __init__(self, event: Any = None) -> None:
        self.event = event

    def wait(self) -> None:
        """Lets the current stream wait for the load. The host does not."""
        if self.event is not None:
            self.event.wait()


class ResidentCache:
    """The rows of a KV cache that are on the device, for several requests and layers, over host tensors.

    Layers that share an indexer select the same tokens: they form a group, which has one plan and one copy. Everything
    is allocated here once; `fetch` and `append` work under `torch.compile(fullgraph=True)` and in captured graphs. On a
    device nothing waits for the host or lets it wait, and mistakes in what tensors hold are found by
    `torch_offload.check_status` alone.

    Args:
        host (sequence of tensor or of sequence of tensors): For each layer its rows on the host, in one or several
            components; the rows are those of `block_table`, or tokens. For a device: of a `HostPool` of it.
        requests (int): Requests that have slots.
        slots (int): Rows that each request can have on the device; at least the distinct tokens of a step.
        top_k (int): Tokens that a step selects, padding included.
        layers_per_plan (int): How many consecutive layers share a plan.
        block_size (int): Tokens in a block of `block_table`.
        device (torch.device, str or None): Where the slots are; None: where the host tensors are.

    Raises:
        TypeError: `host` holds something else than tensors.
        ValueError: Numbers do not fit, or there is no layer.

    Example:
        >>> pool = torch_offload.HostPool(1 << 20)
        >>> layers = [(pool.empty((512, 64)), pool.empty((512, 8))) for _ in range(2)]
        >>> cache = torch_offload.ResidentCache(layers, requests=1, slots=128, top_k=64)
        >>> slots = cache.fetch(0, torch.arange(64).view(1, 64), torch.tensor([7]))
        >>> keys, scales = cache.rows(0)
        >>> keys[0, slots[0]].shape
        torch.Size([64, 64])
    """

    def __init__(
        self,
        host: Sequence[Tensor | Sequence[Tensor]],
        *,
        requests: int,
        slots: int,
        top_k: int,
        layers_per_plan: int = 1,
        block_size: int = 1,
        device: torch.device | str | None = None,
    ) -> None:
        self.host = [_components(layer, number) for number, layer in enumerate(host)]
        if not self.host:
            raise ValueError("ResidentCache: expected host to have at least one layer, got none")
        if layers_per_plan < 1 or len(self.host) % layers_per_plan:
            raise ValueError(
                f"ResidentCache: expected layers_per_plan to divide the {len(self.host)} layers, got {layers_per_plan}"
            )
        self.layers_per_plan = layers_per_plan
        self.slots = slots
        self.block_size = block_size
        where = self.host[0][0].device if device is None else torch.device(device)
        groups = range(len(self.host) // layers_per_plan)
        self.states = [new_residency_state(requests, slots, device=where) for _ in groups]
        totals = _shared_with_host((len(groups), 2), where)
        self.plans = [
            new_residency_plan(requests, top_k, device=where)._replace(totals=totals[group]) for group in groups
        ]
        self._device = None if where.type == "cpu" else where
        self._side_stream: Any = None  # made by the first prefetch
        self._prefetches: dict[int, Prefetch] = {}  # of groups that have not been fetched since
        # sparse_copy writes rows by number: requests and slots are one dimension there.
        self._buffers = [
            [torch.zeros((requests * slots, *rows.shape[1:]), dtype=rows.dtype, device=where) for rows in layer]
            for layer in self.host
        ]

    def rows(self, layer: int) -> tuple[Tensor, ...]:
        """Returns the slots of a layer, one tensor `[requests, slots, *row]` for each component."""
        return tuple(buffer.view(-1, self.slots, *buffer.shape[1:]) for buffer in self._buffers[layer])

    def fetch(
        self,
        group: int,
        topk: Tensor,
        request_ids: Tensor,
        *,
        block_table: Tensor | None = None,
        stable_prefix: Tensor | None = None,
    ) -> Tensor:
        """Loads what is missing of the selected tokens into the slots of all layers of a group.

        Args:
            group (int): Layers `group * layers_per_plan` and following.
            topk (Tensor `[requests, top_k]`, int32 or int64): Token ids; negative ones are padding.
            request_ids (Tensor `[requests]`): As for `plan_residency`.
            block_table (Tensor or None): As for `plan_residency`.
            stable_prefix (Tensor or None): As for `plan_residency`.

        Returns:
            Tensor: `[requests, top_k]`, int32: the slot of each token, -1 for padding. Overwritten by the next call
            for this group.

        Raises:
            ValueError, TypeError: As for `plan_residency`; nothing is resident that was not before.
            IndexError: A host row does not exist (CPU). Everything of the requests is forgotten.
        """
        self._await_prefetch(group)
        return self._fetch(group, topk, request_ids, block_table, stable_prefix)

    def prefetch(
        self,
        group: int,
        topk: Tensor,
        request_ids: Tensor,
        *,
        block_table: Tensor | None = None,
        stable_prefix: Tensor | None = None,
    ) -> Prefetch:
        """Starts to load a predicted selection, so that the `fetch` of the real one finds most of it.

        On a device it runs on a stream of its own, behind what the current stream has to do now, beside what comes
        later: prefetch the next group, then compute this one. The next `fetch`, `append` or `invalidate` of the group
        waits for it on its stream; a compiled one cannot know of it, so call `wait()` before. From here to that
        moment the group's rows must not be read. In a captured graph both belong into the graph. On the CPU it loads
        at once. What it loads counts as misses in `stats`.

        Args:
            group (int): As for `fetch`, like the others.
            topk (Tensor): The prediction.
            request_ids (Tensor): As for `fetch`.
            block_table (Tensor or None): As for `fetch`.
            stable_prefix (Tensor or None): As for `fetch`.

        Returns:
            Prefetch: Its event, to wait for.
        """
        self._await_prefetch(group)
        if self._device is None:
            self._fetch(group, topk, request_ids, block_table, stable_prefix)
            return Prefetch()
        streams = torch.get_device_module(self._device)
        if self._side_stream is None:
            self._side_stream = streams.Stream(self._device)
        self._side_stream.wait_stream(streams.current_stream(self._device))
        with streams.stream(self._side_stream):
            self._fetch(group, topk, request_ids, block_table, stable_prefix)
            for tensor in (topk, request_ids, block_table, stable_prefix):
                if tensor is not None and tensor.device.type != "cpu":
                    tensor.record_stream(self._side_stream)
            event = streams.Event()
            event.record()
        self._prefetches[group] = Prefetch(event)
        return self._prefetches[group]

    def _await_prefetch(self, group: int) -> None:
        if not torch.compiler.is_compiling() and group in self._prefetches:
            self._prefetches.pop(group).wait()

    def _fetch(
        self,
        group: int,
        topk: Tensor,
        request_ids: Tensor,
        block_table: Tensor | None,
        stable_prefix: Tensor | None,
    ) -> Tensor:
        state, plan = self.states[group], self.plans[group]
        plan_residency(
            topk,
            request_ids,
            state,
            plan,
            stable_prefix=stable_prefix,
            block_table=block_table,
            block_size=self.block_size,
        )
        layers = self._layers_of(group)
        dst = [buffer for layer in layers for buffer in self._buffers[layer]]
        src = [rows for layer in layers for rows in self.host[layer]]
        if torch.compiler.is_compiling():
            sparse_copy(dst, src, plan.dst_index, plan.src_index, count=plan.misses)
            return plan.slots
        try:
            sparse_copy(dst, src, plan.dst_index, plan.src_index, count=plan.misses)
        except BaseException:
            state.owners.fill_(-1)  # the slots that were planned hold other rows
            raise
        return plan.slots

    def append(self, layer: int, rows: Sequence[Tensor], host_rows: Tensor, tokens: Tensor) -> None:
        """Writes one new row for each request to the host, and to its slot if the token is resident.

        Args:
            layer (int): The layer.
            rows (sequence of tensors): For each component `[requests, *row]`.
            host_rows (Tensor `[requests]`, int32 or int64): Where they go on the host; negative: nowhere.
            tokens (Tensor `[requests]`, int32 or int64): Their token ids; negative: the row goes to no slot.
        """
        group = layer // self.layers_per_plan
        self._await_prefetch(group)
        state = self.states[group]
        sparse_copy(self.host[layer], list(rows), dst_index=host_rows)
        same = state.slot_tokens == tokens.view(-1, 1)
        first = torch.arange(0, same.shape[0] * self.slots, self.slots, device=same.device)
        slot = torch.where(same.any(1) & (tokens >= 0), first + same.to(torch.int8).argmax(1), -1)
        sparse_copy(self._buffers[layer], list(rows), dst_index=slot)

    def invalidate(self, request: int) -> None:
        """Forgets what is resident for a request, in all layers: its next step loads everything."""
        for group, state in enumerate(self.states):
            self._await_prefetch(group)
            state.owners.masked_fill_(state.owners == request, -1)

    def stats(self) -> ResidencyStats:
        """Returns what the cache has done, or, on a device, what that has come to: it is not waited for."""
        counts = [0, 0, 0, 0]
        for group, plan in enumerate(self.plans):
            row_bytes = sum(rows[:1].nbytes for layer in self._layers_of(group) for rows in self.host[layer])
            hits, misses = plan.totals.tolist()
            counts = [a + b for a, b in zip(counts, (hits, misses, misses * row_bytes, hits * row_bytes), strict=True)]
        return ResidencyStats(*counts)

    def _layers_of(self, group: int) -> range:
        return range(group * self.layers_per_plan, (group + 1) * self.layers_per_plan)


def _components(layer: Tensor | Sequence[Tensor], number: int) -> list[Tensor]:
    components = [layer] if isinstance(layer, Tensor) else list(layer)
    for component in components:
        if not isinstance(component, Tensor) or component.dim() == 0:
            raise TypeError(f"ResidentCache: expected host[{number}] to hold tensors of rows, got {component!r}")
    return components


def _shared_with_host(size: tuple[int, ...], device: torch.device) -> Tensor:
    """Zeros that both the device writes and the host reads, without a copy."""
    if device.type == "cpu":
        return torch.zeros(size, dtype=torch.int64, device=device)
    return HostPool(4096, device=device, huge_pages="never").empty(size, dtype=torch.int64).zero_()
