# SPDX-License-Identifier: Apache-2.0
"""plan_residency against the rules in plain Python, and what holds after every step."""

from __future__ import annotations

import random

import pytest
import residency_reference as reference
import torch
import torch._dynamo.testing
from residency_reference import PLAN, Step, good
from torch.library import opcheck

import torch_offload
from torch_offload.residency import (
    ResidencyPlan,
    new_residency_plan,
    new_residency_state,
    plan_residency,
)


class Compared:
    """A state and a plan beside the reference."""

    def __init__(self, requests: int, slots: int, *, spare: int = 0) -> None:
        self.slots = slots
        self.state = new_residency_state(requests + spare, slots)
        self.requests = [reference.Request(slots) for _ in range(requests + spare)]
        self.totals = [0, 0]

    def step(self, step: Step) -> ResidencyPlan:
        requests, top_k = step.topk.shape
        plan = new_residency_plan(requests, top_k)
        plan.totals[:] = torch.tensor(self.totals)
        step.run(self.state, plan)
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
        return plan

    def check_state(self) -> None:
        for r, request in enumerate(self.requests):
            assert int(self.state.owners[r]) == (-1 if request.owner is None else request.owner)
            assert self.state.lru[r].tolist() == list(request.order)
            tokens = [-1 if request.order[slot] is None else request.order[slot] for slot in range(self.slots)]
            assert self.state.slot_tokens[r].tolist() == tokens


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


@pytest.mark.parametrize("block_size", [0, 1, 16, 100, 128])
@pytest.mark.parametrize("slots", [1, 2, 63, 64, 65, 200])
def test_random_steps_equal_the_reference(slots, block_size):
    choice = random.Random(slots * 1000 + block_size)
    compared = Compared(3, slots, spare=1)
    tokens = 4 * slots + 3
    for _ in range(340):  # 10,200 in all
        compared.step(random_step(choice, 3, slots, tokens, block_size))


def test_every_returned_slot_holds_the_bytes_of_its_token():
    choice = random.Random(1)
    requests, slots, tokens, block_size = 4, 96, 500, 16
    blocks = -(-tokens // block_size)
    block_table = torch.randperm(requests * blocks).view(requests, blocks)
    host = torch.arange(requests * blocks * block_size * 6, dtype=torch.int32).view(-1, 6)
    buffer = torch.zeros(requests * slots, 6, dtype=torch.int32)
    compared = Compared(requests, slots)
    for _ in range(60):
        step = random_step(choice, requests, slots, tokens, 0)
        step.block_table, step.block_size = block_table, block_size
        plan = compared.step(step)
        torch_offload.sparse_copy(buffer, host, plan.dst_index, plan.src_index, count=plan.misses)
        for r in range(requests):
            if step.request_ids[r] < 0:
                continue
            for token, slot in zip(step.topk[r].tolist(), plan.slots[r].tolist(), strict=True):
                if token >= 0:
                    assert torch.equal(buffer[r * slots + slot], host[step.host_row(r, token)])


def test_a_large_step_on_every_number_of_threads():
    requests, slots, top_k = 16, 512, 256
    generator = torch.Generator().manual_seed(3)
    steps = [Step(torch.randint(900, (requests, top_k), generator=generator), torch.arange(requests)) for _ in range(4)]
    for threads in (1, 2, 3, 5, 16):
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            compared = Compared(requests, slots)
            for step in steps:
                compared.step(step)
        finally:
            torch.set_num_threads(before)


def test_strided_arguments():
    compared = Compared(2, 8)
    wide = torch.tensor([[1, 9, 2, 9, 3, 9], [4, 9, 5, 9, 6, 9]])
    ids = torch.tensor([[3, 0], [4, 0]])[:, 0]
    table = torch.arange(60).view(30, 2).T
    compared.step(Step(wide[:, ::2], ids, block_table=table, block_size=2))
    compared.step(Step(wide.T.contiguous().T[:, ::2], ids, stable_prefix=torch.tensor([2, 0, 5])[::2]))
    compared.step(Step(torch.tensor([[1], [2]]).expand(2, 5), ids))


def test_padding_needs_no_blocks():
    compared = Compared(2, 4)
    padding = torch.tensor([[-1, -1], [-3, -9]])
    compared.step(Step(padding, torch.tensor([1, 2]), block_table=torch.empty(2, 0, dtype=torch.int64), block_size=16))
    with pytest.raises(ValueError, match=r"topk\[1\]\[1\] to be negative or below 0"):
        Step(
            torch.tensor([[-1, -1], [-3, 0]]), torch.tensor([1, 2]), block_table=torch.empty(2, 0, dtype=torch.int64)
        ).run(compared.state, new_residency_plan(2, 2))


def test_negative_owners_forget():
    compared = Compared(1, 4)
    step = Step(torch.tensor([[5, 6]]), torch.tensor([1]))
    compared.step(step)
    compared.state.owners.fill_(-1)
    compared.requests[0].owner = None
    assert int(compared.step(step).misses) == 2


def test_more_tokens_than_slots_where_they_repeat():
    compared = Compared(1, 2)
    compared.step(Step(torch.tensor([[5, 5, 6, -1, 6, 5, -7]]), torch.tensor([1])))
    compared.step(Step(torch.tensor([[6, 6, 6, 7, 7, 7, 6]]), torch.tensor([1])))


def test_the_plan_can_be_used_for_an_int64_count():
    step, state, plan = good()
    step.run(state, plan._replace(misses=torch.zeros((), dtype=torch.int64)))


def test_requires_grad_and_versions():
    step, state, plan = good()
    before = state.lru._version
    step.run(state, plan)
    assert state.lru._version == before + 1
    assert step.topk._version == 0


def test_opcheck():
    step, state, plan = good()
    utilities = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
    opcheck(PLAN, step.args(state, plan), test_utils=utilities)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled_equals_eager_without_recompilation(backend):
    host = torch.arange(400 * 6, dtype=torch.int32).view(400, 6)
    results = []
    for compiled in (False, True):
        buffer = torch.zeros(2 * 32, 6, dtype=torch.int32)
        state, plan = new_residency_state(2, 32), new_residency_plan(2, 24)

        def step(topk, ids, prefix, buffer=buffer, state=state, plan=plan):
            plan_residency(topk, ids, state, plan, stable_prefix=prefix)
            torch_offload.sparse_copy(buffer, host, plan.dst_index, plan.src_index, count=plan.misses)
            return buffer.sum()

        counter = torch._dynamo.testing.CompileCounterWithBackend(backend)
        torch._dynamo.reset()
        run = torch.compile(step, fullgraph=True, backend=counter) if compiled else step
        generator = torch.Generator().manual_seed(9)
        outputs = []
        for i in range(8):
            topk = torch.randint(-1, 400, (2, 24), generator=generator)
            total = run(topk, torch.tensor([1, 2 + i // 5]), torch.tensor([300 + i, 400]))
            outputs.append([total.clone(), buffer.clone(), *(t.clone() for t in (*state, *plan))])
        if compiled:
            assert counter.frame_count == 1
        results.append(outputs)
    for eager, compiled in zip(*results, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(eager, compiled, strict=True))
