# SPDX-License-Identifier: Apache-2.0
"""Which rows have to move: an exact LRU set of resident rows for each request, planned by one operator call."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from torch_offload import _C
from torch_offload.ops import describe, optional_tensor, require_tensor

__all__ = ["ResidencyPlan", "ResidencyState", "new_residency_plan", "new_residency_state", "plan_residency"]


class ResidencyState(NamedTuple):
    """What `plan_residency` keeps from step to step for S requests with C slots each. Made by `new_residency_state`.

    Attributes:
        owners (Tensor `[S]`, int64): Id of the request that the row belongs to; negative: nobody's. Write -1 to forget
            what is resident.
        slot_tokens (Tensor `[S, C]`, int32): Token in each slot, -1 where there is none.
        lru (Tensor `[S, C]`, int16): The slots, least recently used first.
        buckets (Tensor `[S, ...]`, int16): A table from token to slot. Without columns on a device, which needs none: a
            state cannot be moved between the CPU and a device.
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
        totals (Tensor `[2]`, int64): Distinct tokens found and loaded, summed over the steps. May be host memory that
            the device can address, to be read without waiting.
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
        slots (int): C, at most 32767; on a device no more than what fits into the unified buffer of a core.
        device (torch.device, str or None): Where the planning runs.

    Raises:
        ValueError: `requests` is negative, or `slots` is not in [1, 32767].
    """
    if requests < 0:
        raise ValueError(f"new_residency_state: expected requests to be at least 0, got {requests}")
    if not 1 <= slots <= _C.MAX_RESIDENT_SLOTS:
        raise ValueError(f"new_residency_state: expected slots to be in [1, {_C.MAX_RESIDENT_SLOTS}], got {slots}")
    where = torch.get_default_device() if device is None else torch.device(device)
    buckets = _C.residency_buckets(slots) if where.type == "cpu" else 0
    return ResidencyState(
        torch.full((requests,), -1, dtype=torch.int64, device=where),
        torch.full((requests, slots), -1, dtype=torch.int32, device=where),
        torch.arange(slots, dtype=torch.int16, device="cpu").repeat(requests, 1).to(where),
        torch.full((requests, buckets), -1, dtype=torch.int16, device="cpu").to(where),
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
        ValueError: Shapes do not fit, tensors share memory, more slots than a core of the device can hold; on the CPU
            fewer slots than distinct tokens, a token without a block. The state is unchanged. A device, where the host
            does not see the tokens, refuses such a request alone: its slots are -1, its state is unchanged, and
            `torch_offload.check_status` raises.
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
    if not torch.compiler.is_compiling() and _C.plan_residency(*arguments):
        return
    names = ("topk", "request_ids", *state._fields, "slots", "src_index", "dst_index", "misses", "totals")
    for name, value in zip(names, arguments, strict=False):
        require_tensor("plan_residency", name, value)
    optional_tensor("plan_residency", "stable_prefix", stable_prefix)
    optional_tensor("plan_residency", "block_table", block_table)
    if not isinstance(block_size, (int, torch.SymInt)):
        raise TypeError(f"plan_residency: expected block_size to be an int, got {describe(block_size)}")
    torch.ops.offload.plan_residency.default(*arguments)
