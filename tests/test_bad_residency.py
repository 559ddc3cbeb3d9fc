# SPDX-License-Identifier: Apache-2.0
"""Wrong arguments of plan_residency: typed errors, nothing written; a state of garbage never crashes."""

import pytest
import torch
from residency_reference import PLAN, Step, good
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from torch_offload.residency import new_residency_plan, new_residency_state, plan_residency

NAMES = [argument.name for argument in PLAN._schema.arguments]
BAD = {
    "a token beyond the block table": (
        "topk",
        torch.tensor([[1, 2, 3], [4, 160, 1]]),
        ValueError,
        r"topk\[1\]\[1\] to be negative or below 160 \(the blocks of block_table\), got 160",
    ),
    "a token that int32 cannot hold": (
        "topk",
        torch.tensor([[1, 2, 2**31 - 1], [4, 5, 1]]),
        ValueError,
        r"topk\[0\]\[2\] to be negative or below 2147483647",
    ),
    "a token without a block": (
        "block_table",
        torch.tensor([[0] * 10, [-1] * 10]),
        ValueError,
        r"block_table\[1\]\[0\] to be a block \(token 5 needs it\), got -1",
    ),
    "a token of a huge block": ("block_table", torch.full((2, 10), 2**62), ValueError, "to be a block"),
    "tokens as floats": ("topk", torch.zeros(2, 3), TypeError, "topk to have dtype Int or Long, got Float"),
    "tokens of one dimension": (
        "topk",
        torch.zeros(3, dtype=torch.int64),
        ValueError,
        "topk to have 2 dimensions, got 1",
    ),
    "more requests than rows": (
        "topk",
        torch.zeros(3, 3, dtype=torch.int64),
        ValueError,
        "request_ids to have as many as topk",
    ),
    "few ids": ("request_ids", torch.zeros(1, dtype=torch.int64), ValueError, "request_ids to have as many as topk"),
    "few owners": ("owners", torch.zeros(1, dtype=torch.int64), ValueError, "owners to have at least as many as topk"),
    "owners of int32": ("owners", torch.zeros(2, dtype=torch.int32), TypeError, "owners to have dtype Long, got Int"),
    "other slots": ("lru", torch.zeros(2, 5, dtype=torch.int16), ValueError, "lru to have as many as slot_tokens"),
    "no slots": ("slot_tokens", torch.zeros(2, 0, dtype=torch.int32), ValueError, "lru to have as many as slot_tokens"),
    "other buckets": (
        "buckets",
        torch.zeros(2, 8, dtype=torch.int16),
        ValueError,
        "buckets to have what new_residency_state makes",
    ),
    "the state of a device": (
        "buckets",
        torch.zeros(2, 0, dtype=torch.int16),
        ValueError,
        r"buckets to have what new_residency_state makes of the slots \(16\) in dimension 1, got 0",
    ),
    "an order with a number that is no slot": (
        "lru",
        torch.full((2, 4), 4, dtype=torch.int16),
        ValueError,
        "the state of request [01] to be what",
    ),
    "an order with a negative number": (
        "lru",
        torch.full((2, 4), -1, dtype=torch.int16),
        ValueError,
        "the state of request [01] to be what",
    ),
    "buckets with a number that is no slot": (
        "buckets",
        torch.full((2, 16), 4, dtype=torch.int16),
        ValueError,
        "the state of request [01] to be what",
    ),
    "a state with strides": (
        "slot_tokens",
        torch.zeros(2, 8, dtype=torch.int32)[:, ::2],
        ValueError,
        "slot_tokens to be contiguous",
    ),
    "other slots than tokens": (
        "slots",
        torch.zeros(2, 4, dtype=torch.int32),
        ValueError,
        "slots to have as many as topk",
    ),
    "a short list": (
        "src_index",
        torch.zeros(5, dtype=torch.int64),
        ValueError,
        "src_index to have at least one entry",
    ),
    "two counts": ("count", torch.zeros(2, dtype=torch.int64), ValueError, "count to have one element, got 2"),
    "totals of three": ("totals", torch.zeros(3, dtype=torch.int64), ValueError, "totals to have hits and misses"),
    "no block size": ("block_size", 0, ValueError, r"block_size to be in \[1, 2147483647\], got 0"),
    "sparse": ("topk", torch.zeros(2, 3, dtype=torch.int64).to_sparse(), TypeError, "topk to be a strided tensor"),
    "another device": ("topk", torch.zeros(2, 3, dtype=torch.int64, device="meta"), ValueError, "to be on device type"),
    "prefixes of another length": (
        "stable_prefix",
        torch.zeros(3, dtype=torch.int64),
        ValueError,
        "stable_prefix to have as many as topk",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input(case):
    name, value, error, message = BAD[case]
    step, state, plan = good()
    arguments = list(step.args(state, plan))
    arguments[NAMES.index(name)] = value
    tensors = [a for a in arguments if isinstance(a, Tensor) and a.layout == torch.strided and not a.is_meta]
    before = [tensor.clone() for tensor in tensors]
    with pytest.raises(error, match=message) as info:
        PLAN(*arguments)
    assert type(info.value) is error
    for tensor, old in zip(tensors, before, strict=True):
        assert torch.equal(tensor, old)


def test_more_distinct_tokens_than_slots():
    state, plan = new_residency_state(2, 4), new_residency_plan(2, 6)
    ids = torch.tensor([10, 11])
    Step(torch.tensor([[1, 2], [3, 4]]), ids).run(state, new_residency_plan(2, 2))
    before = [tensor.clone() for tensor in (*state, *plan)]
    for row in ([1, 2, 3, 4, 5, -1], [5, 6, 7, 8, 9, 5], [2, 2, 1, 9, 8, 7]):
        with pytest.raises(ValueError, match=r"distinct tokens in topk\[0\], which are 5, got 4"):
            Step(torch.tensor([row, [3, 4, 5, 6, 3, -1]]), ids).run(state, plan)
        assert all(torch.equal(a, b) for a, b in zip((*state, *plan), before, strict=True))


# A fake tensor does not tell whether it is one of a device, where the state has no buckets.
FAKE = [case for case, (_, _, _, message) in BAD.items() if " to have " in message and case != "the state of a device"]


@pytest.mark.parametrize("case", FAKE)
def test_fake_tensors_raise_the_same(case):
    name, value, error, message = BAD[case]
    step, state, plan = good()
    arguments = list(step.args(state, plan))
    arguments[NAMES.index(name)] = value
    with FakeTensorMode() as mode, pytest.raises(error, match=message):
        PLAN(*(mode.from_tensor(a) if isinstance(a, Tensor) else a for a in arguments))


def test_written_tensors_must_not_share_memory():
    step, state, plan = good()
    shared = plan._replace(dst_index=plan.src_index)
    with pytest.raises(ValueError, match="written tensors not to share memory"):
        step.run(state, shared)
    with pytest.raises(ValueError, match="topk"):
        Step(state.slot_tokens[:, :3], step.request_ids).run(state, plan)


def test_garbage_in_the_state_never_crashes():
    generator = torch.Generator().manual_seed(5)
    for _ in range(300):
        state = new_residency_state(2, 16)
        ids = torch.tensor([1, 2])
        state.owners.copy_(ids)
        state.lru.random_(0, 16, generator=generator)
        state.buckets.random_(-1, 16, generator=generator)
        state.slot_tokens.random_(-5, 30, generator=generator)
        plan = new_residency_plan(2, 12)
        for _ in range(5):
            topk = torch.randint(-2, 40, (2, 12), generator=generator)
            try:
                Step(topk, ids, torch.tensor([20, 50])).run(state, plan)
            except ValueError as error:
                assert "plan_residency: expected" in str(error)
            assert ((plan.slots >= -1) & (plan.slots < 16)).all()


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("topk", None, r"topk to be a tensor, got None \(NoneType\)"),
        ("request_ids", [10, 11], "request_ids to be a tensor, got list of int, int"),
        ("stable_prefix", 100, r"stable_prefix to be a tensor or None, got 100 \(int\)"),
        ("block_table", [[0]], "block_table to be a tensor or None, got list of list"),
        ("block_size", "16", r"block_size to be an int, got '16' \(str\)"),
        ("block_size", 16.0, r"block_size to be an int, got 16.0 \(float\)"),
        ("lru", None, r"lru to be a tensor, got None \(NoneType\)"),
        ("misses", 3, r"misses to be a tensor, got 3 \(int\)"),
    ],
)
def test_arguments_of_the_wrong_type(name, value, message):
    step, state, plan = good()
    arguments = dict(vars(step))
    if name in state._fields:
        state = state._replace(**{name: value})
    elif name in plan._fields:
        plan = plan._replace(**{name: value})
    else:
        arguments[name] = value
    topk, ids = arguments.pop("topk"), arguments.pop("request_ids")
    with pytest.raises(TypeError, match=f"^plan_residency: expected {message}"):
        plan_residency(topk, ids, state, plan, **arguments)
