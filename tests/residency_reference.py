# SPDX-License-Identifier: Apache-2.0
"""The rules of plan_residency, one token after another in plain Python, and arguments to try them with."""

from __future__ import annotations

import random
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

    def to(self, device: torch.device | str) -> Step:
        """The same on a device, with the same strides."""
        if str(device) == "cpu":
            return self
        moved = [_moved(t, device) for t in (self.topk, self.request_ids)]
        tables = [None if t is None else _moved(t, device) for t in (self.stable_prefix, self.block_table)]
        return Step(*moved, *tables, self.block_size)

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


def _moved(tensor: Tensor, device: torch.device | str) -> Tensor:
    base = torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage())
    return base.to(device).as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


class Compared:
    """A state and a plan on a device beside the reference."""

    def __init__(self, requests: int, slots: int, *, spare: int = 0, device: torch.device | str = "cpu") -> None:
        self.slots = slots
        self.device = device
        self.state = new_residency_state(requests + spare, slots, device=device)
        self.requests = [Request(slots) for _ in range(requests + spare)]
        self.totals = [0, 0]

    def step(self, step: Step) -> ResidencyPlan:
        requests, top_k = step.topk.shape
        planned = new_residency_plan(requests, top_k, device=self.device)
        planned.totals[:] = torch.tensor(self.totals, device=self.device)
        step.to(self.device).run(self.state, planned)
        plan = ResidencyPlan(*(tensor.cpu() for tensor in planned))
        loads = []
        for r, request in enumerate(self.requests[:requests]):
            prefix = 2**62 if step.stable_prefix is None else int(step.stable_prefix[r])
            wanted, loaded = request.step(
                int(step.request_ids[r]), step.topk[r].tolist(), prefix, lambda token, r=r: step.host_row(r, token)
            )
            assert plan.slots[r].tolist() == wanted
            loads += [(row, r * self.slots + slot) for row, slot in loaded]
            self.totals[0] += request.hits
            self.totals[1] += len(loaded)
        count = int(plan.misses)
        pairs = zip(plan.src_index[:count].tolist(), plan.dst_index[:count].tolist(), strict=True)
        assert list(pairs) == loads
        assert (plan.src_index[count:] == -1).all() and (plan.dst_index[count:] == -1).all()
        assert plan.totals.tolist() == self.totals
        self.check_state()
        return planned

    def check_state(self) -> None:
        state = ResidencyState(*(tensor.cpu() for tensor in self.state))
        for r, request in enumerate(self.requests):
            assert int(state.owners[r]) == (-1 if request.owner is None else request.owner)
            assert state.lru[r].tolist() == list(request.order)
            tokens = [-1 if request.order[slot] is None else request.order[slot] for slot in range(self.slots)]
            assert state.slot_tokens[r].tolist() == tokens


def random_step(choice: random.Random, requests: int, slots: int, tokens: int, block_size: int) -> Step:
    dtype = choice.choice([torch.int32, torch.int64])
    top_k = choice.randrange(0, slots + 1) if choice.random() < 0.5 else slots
    rows = []
    for _ in range(requests):
        # Near ones more often, so that there are hits; repeated ones and padding come by themselves.
        middle = choice.randrange(tokens)
        row = [min(tokens - 1, max(-2, int(choice.gauss(middle, slots)))) for _ in range(top_k)]
        rows.append([token if choice.random() < 0.9 else -1 - choice.randrange(5) for token in row])
    step = Step(
        torch.tensor(rows, dtype=dtype).view(requests, top_k),
        torch.tensor([choice.choice([-1, 7, 7, 7, 7, 7, 7, 7, 7, 2**40 + r]) for r in range(requests)]),
    )
    if choice.random() < 0.5:
        step.stable_prefix = torch.tensor([choice.randrange(tokens * 2) for _ in range(requests)], dtype=dtype)
    if block_size:
        blocks = -(-tokens // block_size)
        table = [choice.sample(range(100 * blocks), blocks) for _ in range(requests)]
        step.block_table = torch.tensor(table, dtype=choice.choice([torch.int32, torch.int64]))
        step.block_size = block_size
    return step


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
