# SPDX-License-Identifier: Apache-2.0
"""plan_residency against the rules in plain Python, and what holds after every step."""

from __future__ import annotations

import random

import pytest
import torch
import torch._dynamo.testing
from residency_reference import PLAN, Compared, Step, good, random_step
from torch.library import opcheck

import torch_offload
from torch_offload.residency import new_residency_plan, new_residency_state, plan_residency


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
