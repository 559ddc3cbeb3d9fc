# SPDX-License-Identifier: Apache-2.0
"""Which rows have to move: an exact LRU set of resident rows for each request, planned by one operator call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from torch_offload import _C
from torch_offload.ops import sparse_copy

__all__ = [
    "ResidencyPlan",
    "ResidencyState",
    "ResidencyStats",
    "ResidentCache",
    "new_residency_plan",
    "new_residency_state",
    "plan_residency",
]


class ResidencyState(NamedTuple):
    """What `plan_residency` keeps from step to step for S requests with C slots each. Made by `new_residency_state`.

    Attributes:
        owners (Tensor `[S]`, int64): Id of the request that the row belongs to; negative: nobody's. Write -1 to forget
            what is resident.
        slot_tokens (Tensor `[S, C]`, int32): Token in each slot, -1 where there is none.
        lru (Tensor `[S, C]`, int16): The slots, least recently used first.
        buckets (Tensor `[S, ...]`, int16): A table from token to slot.
    """

    owners: Tensor
    slot_tokens: Tensor
    lru: Tensor
    buckets: Tensor


class ResidencyPlan(NamedTuple):
    """What a step has to do, for R requests with K tokens each. Made by `new_residency_plan`, reused at every step.

    Attributes:
        slots (Tensor `[R, K]`, int32): The slot of each token among those of its request, -1 for padding.
        src_index (Tensor `[R * K]`, int64): Host rows to load; entries behind `misses` are old.
        dst_index (Tensor `[R * K]`, int64): Where each goes: request * C + slot.
        misses (Tensor `[1]`, int32): How many there are: the `count` of `sparse_copy`.
        totals (Tensor `[2]`, int64): Distinct tokens found and loaded, summed over the steps.
    """

    slots: Tensor
    src_index: Tensor
    dst_index: Tensor
    misses: Tensor
    totals: Tensor


def new_residency_state(requests: int, slots: int, *, device: torch.device | str | None = None) -> ResidencyState:
    """Returns the state of requests of whose rows none is resident.

    Args:
        requests (int): S.
        slots (int): C, at most 32767.
        device (torch.device, str or None): Where the planning runs.

    Raises:
        ValueError: `requests` is negative, or `slots` is not in [1, 32767].
    """
    if requests < 0:
        raise ValueError(f"new_residency_state: expected requests to be at least 0, got {requests}")
    if not 1 <= slots <= 32767:
        raise ValueError(f"new_residency_state: expected slots to be in [1, 32767], got {slots}")
    buckets = 1 << (4 * slots - 1).bit_length()
    return ResidencyState(
        torch.full((requests,), -1, dtype=torch.int64, device=device),
        torch.full((requests, slots), -1, dtype=torch.int32, device=device),
        torch.arange(slots, dtype=torch.int16, device=device).repeat(requests, 1),
        torch.full((requests, buckets), -1, dtype=torch.int16, device=device),
    )


def new_residency_plan(requests: int, top_k: int, *, device: torch.device | str | None = None) -> ResidencyPlan:
    """Returns an empty plan for steps of `requests` times `top_k` tokens.

    Raises:
        ValueError: An argument is negative.
    """
    if requests < 0 or top_k < 0:
        raise ValueError(
            f"new_residency_plan: expected requests and top_k to be at least 0, got {requests} and {top_k}"
        )
    entries = requests * top_k
    return ResidencyPlan(
        torch.full((requests, top_k), -1, dtype=torch.int32, device=device),
        torch.full((entries,), -1, dtype=torch.int64, device=device),
        torch.full((entries,), -1, dtype=torch.int64, device=device),
        torch.zeros(1, dtype=torch.int32, device=device),
        torch.zeros(2, dtype=torch.int64, device=device),
    )


def plan_residency(
    topk: Tensor,
    request_ids: Tensor,
    state: ResidencyState,
    plan: ResidencyPlan,
    *,
    stable_prefix: Tensor | None = None,
    block_table: Tensor | None = None,
    block_size: int = 1,
) -> None:
    """Finds for every selected token the slot that holds it, and takes slots for those that must be loaded.

    Rules, for each request by itself: a token that is resident keeps its slot. One that is not is loaded once, however
    often it is listed, into the least recently used slot that this step does not read. Afterwards the order is: slots
    that this step did not use, as they were; those loaded, in the order of `topk`; those read again, as they were.
    A row whose owner is not `request_ids[r]` starts empty. The work is O(top-k + slots), whatever the context.

    What follows is `sparse_copy(buffers, host, plan.dst_index, plan.src_index, count=plan.misses)`, with buffers of
    S * C rows.

    Equivalent, for one request with an `OrderedDict` from token to slot, `free` slots first:

        hits = [token for token in order if token in topk and token < stable_prefix]
        for token in topk:
            if token >= 0 and token not in order: order[token] = slot_of_least_recently_used_not_in(topk)
        for token in hits: order.move_to_end(token)

    Args:
        topk (Tensor `[R, K]`, int32 or int64): Token ids below 2^31 - 1; negative ones are padding.
        request_ids (Tensor `[R]`, int32 or int64): Who owns row r now; negative: nobody, its slots are -1.
        state (ResidencyState): For S >= R requests; written.
        plan (ResidencyPlan): Written, except for the index entries behind `misses`.
        stable_prefix (Tensor `[R]`, int32 or int64, or None): Tokens at or beyond it may have changed since the last
            step: they are loaded again.
        block_table (Tensor `[R, B]`, int32 or int64, or None): The host row of a token is
            `block_table[r, token // block_size] * block_size + token % block_size`; without a table it is the token.
        block_size (int): Tokens in a block.

    Raises:
        TypeError: A tensor has the wrong dtype or is not plain.
        ValueError: Shapes do not fit, fewer slots than distinct tokens, a token without a block, tensors that share
            memory. The state is unchanged.
    """
    arguments = (
        topk,
        request_ids,
        state.owners,
        state.slot_tokens,
        state.lru,
        state.buckets,
        plan.slots,
        plan.src_index,
        plan.dst_index,
        plan.misses,
        plan.totals,
        stable_prefix,
        block_table,
        block_size,
    )
    if torch.compiler.is_compiling() or not _C.plan_residency(*arguments):
        torch.ops.offload.plan_residency.default(*arguments)


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


class ResidentCache:
    """The rows of a KV cache that are on the device, for several requests and layers, over host tensors.

    Layers that share an indexer select the same tokens: they form a group, which has one plan and one copy. Everything
    is allocated here once; `fetch` and `append` work under `torch.compile(fullgraph=True)`.

    Args:
        host (sequence of tensor or of sequence of tensors): For each layer its rows on the host, in one or several
            components; the rows are those of `block_table`, or tokens.
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
        self.plans = [new_residency_plan(requests, top_k, device=where) for _ in groups]
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
            IndexError: A host row does not exist. Everything of the requests is forgotten.
        """
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
            tokens (Tensor `[requests]`, int32 or int64): Their token ids.
        """
        state = self.states[layer // self.layers_per_plan]
        sparse_copy(self.host[layer], list(rows), dst_index=host_rows)
        same = state.slot_tokens == tokens.view(-1, 1)
        first = torch.arange(0, same.shape[0] * self.slots, self.slots, device=same.device)
        slot = torch.where(same.any(1), first + same.to(torch.int8).argmax(1), -1)
        sparse_copy(self._buffers[layer], list(rows), dst_index=slot)

    def invalidate(self, request: int) -> None:
        """Forgets what is resident for a request, in all layers: its next step loads everything."""
        for state in self.states:
            state.owners.masked_fill_(state.owners == request, -1)

    def stats(self) -> ResidencyStats:
        """Returns what the cache has done; waits for the device, if it is one."""
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
