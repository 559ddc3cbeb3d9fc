# SPDX-License-Identifier: Apache-2.0
"""plan_residency on an NPU against the rules in plain Python and against the CPU's operator."""

from __future__ import annotations

import random

import npu_support as support
import pytest
import torch
from npu_support import DEVICE, ORDERS, capture, simulated_kernels
from residency_reference import PLAN, Compared, Step, good, random_step
from sim_kernels import Kernels

import torch_offload
from torch_offload.residency import ResidencyPlan, ResidencyState, new_residency_plan, new_residency_state


@pytest.fixture(autouse=True)
def device(npu):
    return npu


@pytest.mark.parametrize("block_size", [0, 1, 16, 100])
@pytest.mark.parametrize("slots", [1, 2, 64, 65, 200])
def test_random_steps_equal_the_reference(slots, block_size):
    """All orders of DMA in turn; duplicates, padding, other requests, shrinking and growing top-k, both dtypes."""
    choice = random.Random(slots * 1000 + block_size)
    compared = Compared(3, slots, spare=1, device=DEVICE)
    for number in range(60):
        with simulated_kernels(order=number % 5, seed=number):
            compared.step(random_step(choice, 3, slots, 4 * slots + 3, block_size))
    torch_offload.check_status(DEVICE)


def both(step: Step, states: list[ResidencyState], plans: list[ResidencyPlan]) -> None:
    """Runs a step on the CPU and on the device; state and plan must agree bit for bit."""
    step.run(states[0], plans[0])
    step.to(DEVICE).run(states[1], plans[1])
    misses = int(plans[0].misses)
    for name, wanted, got in [
        *zip(ResidencyState._fields[:3], states[0], states[1], strict=False),
        *zip(ResidencyPlan._fields, plans[0], plans[1], strict=True),
    ]:
        wanted, got = (t[:misses] if name.endswith("_index") else t for t in (wanted, got.cpu()))
        assert torch.equal(wanted, got), name


def devices(make, *sizes):
    return [make(*sizes), make(*sizes, device=DEVICE)]


@pytest.mark.parametrize("order", ORDERS)
def test_many_requests_equal_the_cpu(order):
    requests, slots, top_k, tokens = 70, 96, 64, 400  # more than there are cores
    generator = torch.Generator().manual_seed(len(order))
    states, plans = devices(new_residency_state, requests, slots), devices(new_residency_plan, requests, top_k)
    ids = torch.arange(requests)
    table = torch.randint(0, 2**40, (requests, -(-tokens // 16)), generator=generator)
    with simulated_kernels(order=ORDERS[order][0], seed=ORDERS[order][1]):
        for number in range(4):
            topk = torch.randint(-20, tokens, (requests, top_k), generator=generator)
            ids[number * 3 :: 20] += 1000
            prefix = torch.randint(0, 2 * tokens, (requests,), generator=generator)
            both(Step(topk, ids, prefix, table, 16), states, plans)
    torch_offload.check_status(DEVICE)


@pytest.mark.parametrize(("requests", "top_k", "slots"), [(2, 2048, 4096), (1, 2048, 8192), (1, 8192, 8192)])
def test_large_sizes_equal_the_cpu(requests, top_k, slots):
    context, block_size = 1 << 20, 128
    generator = torch.Generator().manual_seed(slots)
    states, plans = devices(new_residency_state, requests, slots), devices(new_residency_plan, requests, top_k)
    table = torch.randint(0, 2**31, (requests, context // block_size), generator=generator)
    topk = torch.randint(0, context, (requests, top_k), generator=generator)
    for _ in range(3):
        both(Step(topk, torch.arange(requests), None, table, block_size), states, plans)
        topk[:, ::10] = torch.randint(0, context, topk[:, ::10].shape, generator=generator)  # nine of ten are hits
    torch_offload.check_status(DEVICE)


def test_strided_arguments():
    compared = Compared(2, 8, device=DEVICE)
    wide = torch.tensor([[1, 9, 2, 9, 3, 9], [4, 9, 5, 9, 6, 9]])
    ids = torch.tensor([[3, 0], [4, 0]])[:, 0]
    table = torch.arange(60).view(30, 2).T
    compared.step(Step(wide[:, ::2], ids, block_table=table, block_size=2))
    compared.step(Step(wide.T.contiguous().T[:, ::2], ids, stable_prefix=torch.tensor([2, 0, 5])[::2]))
    compared.step(Step(torch.tensor([[1], [2]]).expand(2, 5), ids))
    torch_offload.check_status(DEVICE)


def test_int64_count_and_totals_in_host_memory(registered):
    states, plans = devices(new_residency_state, 2, 8), devices(new_residency_plan, 2, 4)
    totals = registered.copy_of(torch.zeros(16, dtype=torch.uint8)).view(torch.int64)
    plans[1] = plans[1]._replace(misses=torch.zeros((), dtype=torch.int64, device=DEVICE), totals=totals)
    plans[0] = plans[0]._replace(misses=torch.zeros((), dtype=torch.int64))
    for shift in range(3):
        both(Step(torch.arange(8).view(2, 4) + shift, torch.tensor([1, 2])), states, plans)
    assert totals.tolist() == plans[0].totals.tolist() == [12, 12]


def test_padding_needs_no_blocks():
    compared = Compared(2, 4, device=DEVICE)
    padding = torch.tensor([[-1, -1], [-3, -9]])
    table = torch.empty(2, 0, dtype=torch.int64)
    compared.step(Step(padding, torch.tensor([1, 2]), block_table=table, block_size=16))
    torch_offload.check_status(DEVICE)


def test_nothing_to_plan():
    for requests, top_k in ((0, 0), (0, 4), (3, 0)):
        state, plan = (
            new_residency_state(requests, 4, device=DEVICE),
            new_residency_plan(requests, top_k, device=DEVICE),
        )
        plan.misses.fill_(7)
        topk = torch.zeros(requests, top_k, dtype=torch.int64)
        Step(topk, torch.arange(requests)).to(DEVICE).run(state, plan)
        assert int(plan.misses) == 0 and plan.totals.tolist() == [0, 0]
        assert (state.owners == -1).all()


MISTAKES = {
    "a token beyond the block table": ({"topk": torch.tensor([[1, 2, 3], [4, 160, 1]])}, "beyond its block table"),
    "a token that int32 cannot hold": (
        {"topk": torch.tensor([[1, 2, 3], [4, 2**31 - 1, 1]]), "block_table": None},
        "beyond its block table, or from 2",
    ),
    "a token of 64 bits": ({"topk": torch.tensor([[1, 2, 3], [4, 2**32 + 5, 1]])}, "beyond its block table"),
    "a token without a block": ({"block_table": torch.tensor([[0] * 10, [-1] * 10])}, "is no block"),
    "a token of a huge block": ({"block_table": torch.tensor([[0] * 10, [2**62] * 10])}, "is no block"),
    "more tokens than slots": ({"topk": torch.tensor([[1, 2, 3, 3, -1], [4, 5, 6, 7, 9]])}, "more distinct tokens"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_refuses_its_request_alone(mistake):
    changes, message = MISTAKES[mistake]
    step, state, _ = good()
    state = ResidencyState(*(t.to(DEVICE) for t in state[:3]), torch.empty(2, 0, dtype=torch.int16, device=DEVICE))
    for name, value in changes.items():
        setattr(step, name, value)
    plan = new_residency_plan(*step.topk.shape, device=DEVICE)
    before = [tensor.cpu() for tensor in state]
    for times in (1, 2):
        step.to(DEVICE).run(state, plan)
        assert all(torch.equal(a[1], b.cpu()[1]) for a, b in zip(before, state, strict=True))
        assert (plan.slots.cpu()[1] == -1).all()
        assert int(plan.misses) == (2 if times == 1 else 0)  # of the other request: 2 and 3
        with pytest.raises(ValueError, match=f"got {times} refused, among them row 1: .*{message}"):
            torch_offload.check_status(DEVICE)
    assert plan.totals.tolist() == [1 + 3, 2]
    assert plan.slots.cpu()[0, :3].min() >= 0


def test_garbage_in_the_state_never_writes_astray():
    """The simulator knows of every byte outside of what was given; slots stay slots."""
    generator = torch.Generator().manual_seed(5)
    for _ in range(40):
        state, plan = new_residency_state(2, 16, device=DEVICE), new_residency_plan(2, 12, device=DEVICE)
        ids = torch.tensor([1, 2])
        state.owners.copy_(ids)
        state.lru.copy_(torch.randint(-2 if _ % 2 else 0, 17 if _ % 2 else 16, (2, 16), generator=generator))
        state.slot_tokens.copy_(torch.randint(-5, 30, (2, 16), generator=generator))
        for _ in range(3):
            topk = torch.randint(-2, 40, (2, 12), generator=generator)
            Step(topk, ids, torch.tensor([20, 50])).to(DEVICE).run(state, plan)
            assert ((plan.slots.cpu() >= -1) & (plan.slots.cpu() < 16)).all()
            assert 0 <= int(plan.misses) <= 24
            moved = plan.dst_index.cpu()[: int(plan.misses)]
            assert ((moved >= 0) & (moved < 32)).all()


def test_more_than_a_core_can_hold():
    state, plan = new_residency_state(1, 32767, device=DEVICE), new_residency_plan(1, 4, device=DEVICE)
    step = Step(torch.arange(4).view(1, 4), torch.tensor([1])).to(DEVICE)
    with pytest.raises(ValueError, match=r"fit into the unified buffer of one core, .* got 4 tokens and 32767 slots"):
        step.run(state, plan)
    assert state.owners.tolist() == [-1]


def test_a_state_of_the_cpu_is_refused():
    step, state, plan = good()
    moved = ResidencyState(*(t.to(DEVICE) for t in state)), ResidencyPlan(*(t.to(DEVICE) for t in plan))
    with pytest.raises(ValueError, match=r"buckets to have what new_residency_state makes of the slots \(0\)"):
        step.to(DEVICE).run(*moved)


@pytest.mark.parametrize("name", ["topk", "request_ids", "owners", "slots", "block_table"])
def test_ordinary_host_memory_is_refused(name):
    step, state, plan = good()
    state = new_residency_state(2, 4, device=DEVICE)
    plan = ResidencyPlan(*(t.to(DEVICE) for t in plan))
    arguments = list(step.to(DEVICE).args(state, plan))
    position = [argument.name for argument in PLAN._schema.arguments].index(name)
    arguments[position] = arguments[position].cpu()
    with pytest.raises(ValueError, match=f"expected {name} to be on npu:0 or in host memory that it can"):
        PLAN(*arguments)


@support.simulator
def test_it_reads_no_device_value_and_loads_no_scalar():
    step, states = Step(torch.arange(64).view(2, 32), torch.tensor([1, 2])).to(DEVICE), None
    states = new_residency_state(2, 64, device=DEVICE), new_residency_plan(2, 32, device=DEVICE)
    step.run(*states)
    torch.npu.synchronize()
    with support.sim_cann.counting() as calls:
        step.run(*states)
        torch.npu.synchronize()
    assert calls["kernel.plan_residency.runs"] == calls["kernel.plan_residency_list.runs"] == 1
    assert calls.get("plan_residency.scalar_global_loads", 0) == 0
    assert calls.get("plan_residency_list.scalar_global_loads", 0) == 0
    assert not [name for name in calls if name.startswith(("aclrtMemcpy", "aclrtMalloc"))], calls


class Attended:
    """Plan, copy and a gather of the slots: what a captured decode step consists of."""

    def __init__(self, requests: int, slots: int, top_k: int, tokens: int) -> None:
        self.slots = slots
        self.host = torch.arange(requests * tokens * 6, dtype=torch.int32).view(-1, 6)
        self.src = self.host.to(DEVICE)
        self.table = torch.arange(requests * tokens, device=DEVICE).view(requests, tokens)
        self.buffer = torch.zeros(requests * slots, 6, dtype=torch.int32, device=DEVICE)
        self.state = new_residency_state(requests, slots, device=DEVICE)
        self.plan = new_residency_plan(requests, top_k, device=DEVICE)
        self.topk = torch.zeros(requests, top_k, dtype=torch.int64, device=DEVICE)
        self.ids = torch.zeros(requests, dtype=torch.int64, device=DEVICE)
        self.first = torch.arange(0, requests * slots, slots, device=DEVICE).view(-1, 1)
        self.rows = torch.zeros(requests * top_k, 6, dtype=torch.int32, device=DEVICE)

    def __call__(self) -> None:
        Step(self.topk, self.ids, block_table=self.table).run(self.state, self.plan)
        plan = self.plan
        torch_offload.sparse_copy(self.buffer, self.src, plan.dst_index, plan.src_index, count=plan.misses)
        self.rows.copy_(self.buffer.index_select(0, (plan.slots + self.first).flatten()))


def test_a_captured_step_over_100_replays():
    requests, slots, top_k, tokens = 5, 96, 64, 300
    step = Attended(requests, slots, top_k, tokens)
    step()  # loads the device code
    graph = capture(step)
    choice = random.Random(2)
    compared = Compared(requests, slots)
    compared.step(Step(step.topk.cpu(), step.ids.cpu(), block_table=step.table.cpu()))
    for number in range(100):
        near = choice.randrange(tokens - 80)
        topk = torch.tensor([[near + choice.randrange(80) for _ in range(top_k)] for _ in range(requests)])
        ids = torch.tensor([r + (number // (10 + r)) * 50 for r in range(requests)])
        step.topk.copy_(topk)
        step.ids.copy_(ids)
        graph.replay()
        expected = step.host.view(requests, tokens, 6)
        rows = step.rows.cpu().view(requests, top_k, 6)
        assert all(torch.equal(rows[r], expected[r][topk[r]]) for r in range(requests))
        plan = compared.step(Step(topk, ids, block_table=step.table.cpu()))
        assert torch.equal(step.plan.slots.cpu(), plan.slots)
    assert step.plan.totals.tolist() == compared.totals
    torch_offload.check_status(DEVICE)


@support.simulator
def test_a_replay_makes_no_call_of_its_own():
    step = Attended(2, 32, 16, 100)
    step()
    calls = support.calls_of_a_replay(capture(step))
    assert calls["kernel.plan_residency.runs"] == calls["kernel.plan_residency_list.runs"] == 1
    assert calls["kernel.sparse_copy.runs"] == 1


@support.own_process(TORCH_OFFLOAD_NPU_CORES=2)
def test_two_cores():
    choice = random.Random(7)
    compared = Compared(9, 33, device=DEVICE)
    for _ in range(10):
        compared.step(random_step(choice, 9, 33, 200, 16))
    torch.npu.synchronize()
    assert Kernels().number_of_cores() == 2
