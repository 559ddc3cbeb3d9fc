# SPDX-License-Identifier: Apache-2.0
"""Allocation and freeing against a model: nothing overlaps, nothing is lost, everything merges."""

import random
from bisect import bisect_left, insort

import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from pool_support import MIB, plain_pool


class Model:
    """Live tensors, and their intervals in the order of addresses."""

    def __init__(self, pool, alignment):
        self.pool, self.alignment = pool, alignment
        self.live, self.intervals, self.rounded = [], [], 0

    def allocate(self, size, mark):
        """Returns whether the pool had a block."""
        try:
            tensor = self.pool.empty(size, dtype=torch.uint8)
        except torch.OutOfMemoryError:
            assert self.pool.stats().largest_free < size
            return False
        address = tensor.untyped_storage().data_ptr()
        assert address % self.alignment == 0
        if size:
            at = bisect_left(self.intervals, (address, 0))
            assert at == 0 or sum(self.intervals[at - 1]) <= address
            assert at == len(self.intervals) or address + size <= self.intervals[at][0]
            insort(self.intervals, (address, size))
            tensor[0] = tensor[-1] = mark
        self.live.append((tensor, address, mark))
        self.rounded += -(-size // self.alignment) * self.alignment
        return True

    def free(self, index):
        tensor, address, mark = self.live.pop(index)
        size = tensor.numel()
        if size:
            assert tensor[0] == tensor[-1] == mark
            self.intervals.remove((address, size))
        self.rounded -= -(-size // self.alignment) * self.alignment

    def check(self):
        stats = self.pool.stats()
        assert stats.used == self.rounded
        assert stats.used + stats.free == stats.capacity
        assert stats.live_blocks == len(self.live)
        assert stats.requested == sum(size for _, size in self.intervals)


# The core's tests make 200,000 steps of each order; here they go through tensors.
@pytest.mark.parametrize("order", ["lifo", "fifo", "even then odd", "random"])
@pytest.mark.parametrize("alignment", [16, 4096])
def test_long_churn_in_any_order_wedges_nothing(order, alignment):
    """Free blocks merge: after mixed sizes freed in every order one block of the full capacity can be had."""
    choice = random.Random(f"{order} {alignment}")
    pool = plain_pool(4 * MIB, alignment=alignment)
    model = Model(pool, alignment)
    for step in range(6000):
        if not model.live or (len(model.live) < 300 and choice.random() < 0.5):
            size = choice.choice([0, choice.randrange(64), choice.randrange(64 << 10), choice.randrange(MIB + 1)])
            fits = model.allocate(size, step % 251)
        else:
            fits = False
        if not fits and model.live:
            last = len(model.live) - 1
            index = {"lifo": last, "fifo": 0, "random": choice.randint(0, last)}.get(order, min(last, last // 2 * 2))
            model.free(index)
        if step % 50 == 0:
            model.check()
    while model.live:
        model.free({"lifo": -1, "fifo": 0}.get(order, choice.randrange(len(model.live))))
    model.check()
    stats = pool.stats()
    assert (stats.free_blocks, stats.largest_free, stats.allocations) == (1, stats.capacity, stats.frees)
    assert pool.empty(stats.capacity, dtype=torch.uint8).numel() == stats.capacity


class PoolMachine(RuleBasedStateMachine):
    """Allocates, frees, slices and grows in an order that hypothesis chooses."""

    def __init__(self):
        super().__init__()
        self.model = Model(plain_pool(MIB), 64)

    @rule(size=st.one_of(st.integers(0, 300), st.integers(0, MIB // 4)), mark=st.integers(0, 255))
    def allocate(self, size, mark):
        self.model.allocate(size, mark)

    @rule(position=st.floats(0, 1, exclude_max=True))
    def free(self, position):
        if self.model.live:
            self.model.free(int(position * len(self.model.live)))

    @rule(position=st.floats(0, 1, exclude_max=True))
    def keep_a_slice_instead(self, position):
        if self.model.live:
            index = int(position * len(self.model.live))
            tensor, address, mark = self.model.live[index]
            if tensor.numel():
                view = tensor[-1:]
                del tensor
                self.model.live[index] = (view.new_empty(0).set_(view.untyped_storage()), address, mark)

    @invariant()
    def adds_up(self):
        self.model.check()

    def teardown(self):
        while self.model.live:
            self.model.free(0)
        assert self.model.pool.stats().free_blocks == 1


PoolMachine.TestCase.settings = settings(
    max_examples=40, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
)
TestPoolMachine = PoolMachine.TestCase
