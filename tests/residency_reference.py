# SPDX-License-Identifier: Apache-2.0
"""The rules of plan_residency, one token after another in plain Python, and arguments to try them with."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from torch_offload.residency import (
    ResidencyPlan,
    ResidencyState,
    new_residency_plan,
    new_residency_state,
    plan_residency,
)

PLAN = torch.ops.offload.plan_residency.default
EMPTY = None


class Request:
    """What is resident for one request: slots from the least to the most recently used, each with its token."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.owner: int | None = None
        self.order: OrderedDict[int, int | None] = OrderedDict((slot, EMPTY) for slot in range(slots))
        self.hits = 0

    def step(
        self, owner: int, topk: Sequence[int], stable_prefix: int, host_row: Callable[[int], int]
    ) -> tuple[list[int], list[tuple[int, int]]]:
        """Returns the slot of every token, and what to load as pairs of host row and slot."""
        self.hits = 0
        if owner < 0 or not topk:
            return [-1] * len(topk), []
        if owner != self.owner:
            self.__init__(self.slots)
            self.owner = owner
        for slot, token in self.order.items():
            if token is not EMPTY and token >= stable_prefix:
                self.order[slot] = EMPTY
        slot_of = {token: slot for slot, token in self.order.items() if token is not EMPTY}
        read_again = [slot for slot, token in self.order.items() if token is not EMPTY and token in topk]
        self.hits = len(read_again)
        victims = [slot for slot in self.order if slot not in read_again]
        loads = []
        for token in topk:
            if token < 0 or token in slot_of:
                continue
            slot = victims.pop(0)
            slot_of.pop(self.order[slot], None)
            slot_of[token] = slot
            self.order[slot] = token
            loads.append((host_row(token), slot))
        for slot in [slot for _, slot in loads] + read_again:
            self.order.move_to_end(slot)
        return [slot_of[token] if token >= 0 else -1 for token in topk], loads


@dataclass
class Step:
    """The arguments of one step besides state and plan."""

    topk: Tensor
    request_ids: Tensor
    stable_prefix: Tensor | None = None
    block_table: Tensor | None = None
    block_size: int = 1

    def run(self, state: ResidencyState, plan: ResidencyPlan) -> None:
        options = {"stable_prefix": self.stable_prefix, "block_table": self.block_table, "block_size": self.block_size}
        plan_residency(self.topk, self.request_ids, state, plan, **options)

    def args(self, state: ResidencyState, plan: ResidencyPlan) -> tuple:
        tables = (self.stable_prefix, self.block_table, self.block_size)
        return (self.topk, self.request_ids, *state, *plan, *tables)

    def host_row(self, request: int, token: int) -> int:
        if self.block_table is None:
            return token
        block = int(self.block_table[request, token // self.block_size])
        return block * self.block_size + token % self.block_size


def good() -> tuple[Step, ResidencyState, ResidencyPlan]:
    step = Step(
        torch.tensor([[1, 2, 3], [4, 5, -1]]),
        torch.tensor([10, 11]),
        torch.tensor([100, 100]),
        torch.arange(20).view(2, 10),
        16,
    )
    state, plan = new_residency_state(2, 4), new_residency_plan(2, 3)
    Step(torch.tensor([[1, 7], [4, 8]]), step.request_ids).run(state, new_residency_plan(2, 2))
    return step, state, plan
