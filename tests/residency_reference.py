# SPDX-License-Identifier: Apache-2.0
"""The rules of plan_residency, one token after another in plain Python."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence

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
