# SPDX-License-Identifier: Apache-2.0
"""ResidentCache on an NPU: host rows in a pool of the device, captured steps, prefetch on a side stream."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import npu_support as support
import pytest
import torch
import torch._dynamo.utils
from cache_support import REQUESTS, SLOTS, TOKENS, TOP_K, assert_holds, host_layers, table, topk
from npu_support import DEVICE, capture
from torch import Tensor

import torch_offload
from torch_offload import ResidentCache


@pytest.fixture(autouse=True)
def device(npu):
    return npu


def new_cache(layers: int, **options: int) -> ResidentCache:
    sizes = {"requests": REQUESTS, "slots": SLOTS, "top_k": TOP_K} | options
    return ResidentCache(host_layers(layers, DEVICE), device=DEVICE, **sizes)


def on_cpu(layers: int, **options: int) -> ResidentCache:
    sizes = {"requests": REQUESTS, "slots": SLOTS, "top_k": TOP_K} | options
    return ResidentCache(host_layers(layers), **sizes)


def new_rows(seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.rand(REQUESTS, 16, generator=generator).bfloat16(),
        torch.randint(0, 255, (REQUESTS, 3, 2), dtype=torch.uint8, generator=generator),
    ]


def test_the_current_device_needs_no_number():
    cache = ResidentCache(host_layers(1, "npu"), requests=REQUESTS, slots=SLOTS, top_k=TOP_K, device="npu")
    wanted = topk(1)
    arguments = wanted.npu(), torch.tensor([1, 2, 3]).npu()
    cache.prefetch(0, *arguments, block_table=table().npu())
    assert_holds(cache, 0, wanted, cache.fetch(0, *arguments, block_table=table().npu()))


def test_ordinary_host_memory_is_refused():
    cache = ResidentCache(host_layers(1), requests=REQUESTS, slots=SLOTS, top_k=TOP_K, device=DEVICE)
    with pytest.raises(ValueError, match="or in host memory that it can address, got ordinary host memory"):
        cache.fetch(0, topk(1).to(DEVICE), torch.tensor([1, 2, 3], device=DEVICE), block_table=table().to(DEVICE))
    assert cache.states[0].owners.tolist() == [-1, -1, -1]


@pytest.mark.parametrize(("layers", "shared"), [(1, 1), (4, 2)])
def test_every_slot_holds_its_token(layers, shared):
    cache, reference = new_cache(layers, layers_per_plan=shared), on_cpu(layers, layers_per_plan=shared)
    ids, blocks = torch.tensor([4, 5, 6]), table().to(DEVICE)
    for step in range(12):
        if step == 6:
            ids = torch.tensor([4, 9, 6])
        for group in range(layers // shared):
            wanted = topk(step + group)
            slots = cache.fetch(group, wanted.to(DEVICE), ids.to(DEVICE), block_table=blocks)
            assert torch.equal(slots.cpu(), reference.fetch(group, wanted, ids, block_table=table()))
            for layer in range(group * shared, (group + 1) * shared):
                assert_holds(cache, layer, wanted, slots)
    assert cache.stats() == reference.stats()
    torch_offload.check_status(DEVICE)


def test_new_rows_go_to_the_host_and_to_the_slot_of_a_resident_token():
    cache = new_cache(2)
    ids, wanted = torch.tensor([1, 2, 3], device=DEVICE), topk(1).clamp(min=0)
    cache.fetch(1, wanted.to(DEVICE), ids, block_table=table().to(DEVICE))
    tokens = torch.tensor([int(wanted[0, 3]), TOKENS - 1, int(wanted[2, 0])])
    assert TOKENS - 1 not in wanted[1]
    new, host_rows = new_rows(1), torch.arange(REQUESTS) * TOKENS + tokens
    before = [rows.cpu() for rows in cache.rows(1)]
    cache.append(1, [rows.to(DEVICE) for rows in new], host_rows.to(DEVICE), tokens.to(DEVICE))
    torch.npu.synchronize()
    for component, rows in enumerate(new):
        assert torch.equal(cache.host[1][component][host_rows], rows)
        now, old = (t.view(torch.uint8).flatten(2) for t in (cache.rows(1)[component].cpu(), before[component]))
        assert [r for r, _ in (now != old).any(2).nonzero().tolist()] == [0, 2]
    slots = cache.fetch(1, wanted.to(DEVICE), ids, block_table=table().to(DEVICE))
    assert_holds(cache, 1, wanted, slots)
    torch_offload.check_status(DEVICE)


def test_invalidate_makes_one_request_load_again():
    cache = new_cache(1)
    ids, wanted = torch.tensor([1, 2, 3], device=DEVICE), topk(0).clamp(min=0)
    arguments = {"topk": wanted.to(DEVICE), "request_ids": ids, "block_table": table().to(DEVICE)}
    for _ in range(2):
        cache.fetch(0, **arguments)
    torch.npu.synchronize()
    loaded = cache.stats().misses
    cache.host[0][0][TOKENS : 2 * TOKENS].zero_()
    cache.invalidate(2)
    slots = cache.fetch(0, **arguments)
    assert_holds(cache, 0, wanted, slots)
    assert cache.stats().misses == loaded + len(set(wanted[1].tolist()))


class DecodeStep:
    """What a captured graph holds of each layer: the new token's rows go out, the selected ones come in, are read."""

    def __init__(self, cache: ResidentCache, *, predicts: bool = False) -> None:
        self.cache = cache
        self.predicts = predicts
        layers = len(cache.host)
        zeros = lambda *size: torch.zeros(size, dtype=torch.int64, device=DEVICE)  # noqa: E731
        self.topk, self.ids, self.tokens, self.host_rows = (
            zeros(layers, REQUESTS, TOP_K),
            zeros(REQUESTS),
            zeros(REQUESTS),
            zeros(REQUESTS),
        )
        self.predicted = zeros(layers, REQUESTS, TOP_K)
        self.new = [rows.to(DEVICE) for rows in new_rows(0)]
        self.blocks = table().to(DEVICE)
        self.first = torch.arange(0, REQUESTS * SLOTS, SLOTS, device=DEVICE).view(-1, 1)
        row_shapes = [rows.shape[1:] for rows in cache.host[0]]
        dtypes = [rows.dtype for rows in cache.host[0]]
        self.read = [
            [
                torch.zeros(REQUESTS * TOP_K, *shape, dtype=dtype, device=DEVICE)
                for shape, dtype in zip(row_shapes, dtypes, strict=True)
            ]
            for _ in range(layers)
        ]

    def run(self) -> None:
        cache = self.cache
        for layer in range(len(cache.host)):
            cache.append(layer, self.new, self.host_rows, self.tokens)
            if self.predicts and layer + 1 < len(cache.host):
                cache.prefetch(layer + 1, self.predicted[layer + 1], self.ids, block_table=self.blocks)
            slots = cache.fetch(layer, self.topk[layer], self.ids, block_table=self.blocks)
            index = (slots.clamp(min=0) + self.first).flatten()
            for read, rows in zip(self.read[layer], cache.rows(layer), strict=True):
                read.copy_(rows.flatten(0, 1).index_select(0, index))

    def set(self, number: int) -> None:
        for layer in range(len(self.cache.host)):
            self.topk[layer].copy_(topk(number + layer).clamp(min=0))
            self.predicted[layer].copy_(topk(number + layer - 1))
        self.ids.copy_(torch.tensor([1, 2 + number // 20, 3]))
        self.tokens.copy_(self.topk[0, :, number % TOP_K])
        self.host_rows.copy_(torch.arange(REQUESTS) * TOKENS + self.tokens.cpu())
        for rows, value in zip(self.new, new_rows(number), strict=True):
            rows.copy_(value)

    def check(self) -> None:
        torch.npu.synchronize()
        for layer, host in enumerate(self.cache.host):
            tokens = self.topk[layer].cpu() + torch.arange(REQUESTS).view(-1, 1) * TOKENS
            for read, rows in zip(self.read[layer], host, strict=True):
                assert torch.equal(read.cpu().view(torch.uint8), rows[tokens.flatten()].view(torch.uint8))


@pytest.mark.parametrize("predicts", [False, True], ids=["alone", "with a prefetch"])
def test_a_captured_step_reads_what_the_full_cache_holds(predicts):
    step = DecodeStep(new_cache(3), predicts=predicts)
    step.set(0)
    step.run()
    step.check()
    graph = capture(step.run)
    for number in range(100 if not predicts else 30):
        step.set(number)
        graph.replay()
        step.check()
    stats = step.cache.stats()
    assert 0 < stats.misses < stats.hits
    torch_offload.check_status(DEVICE)


def test_a_prefetch_runs_beside_and_is_waited_for():
    cache = new_cache(2)
    ids, blocks, predicted = torch.tensor([1, 2, 3], device=DEVICE), table().to(DEVICE), topk(0).clamp(min=0)
    started = cache.prefetch(1, predicted.to(DEVICE), ids, block_table=blocks)
    cache.fetch(0, topk(5).to(DEVICE), ids, block_table=blocks)
    wanted = predicted.clone()
    wanted[:, 3] = (wanted[:, 3] + 1) % TOKENS
    slots = cache.fetch(1, wanted.to(DEVICE), ids, block_table=blocks)  # behind the prefetch, of its own accord
    assert_holds(cache, 1, wanted, slots)
    assert started.event.query()
    found, loaded = cache.plans[1].totals.tolist()
    assert found >= REQUESTS * (len(set(predicted[0].tolist())) - 1)
    assert loaded <= REQUESTS * (TOP_K + 1)
    torch_offload.check_status(DEVICE)


@support.simulator
def test_statistics_are_read_without_a_wait():
    cache = new_cache(2, layers_per_plan=2)
    cache.fetch(0, topk(0).to(DEVICE), torch.tensor([1, 2, 3], device=DEVICE), block_table=table().to(DEVICE))
    torch.npu.synchronize()
    with support.sim_cann.counting() as calls:
        stats = cache.stats()
    assert stats.misses > 0 and stats.bytes_loaded == stats.misses * 2 * (16 * 2 + 6)
    assert not calls, calls


def test_a_refused_request_is_found_by_the_status():
    cache = new_cache(1)
    wanted = topk(0)
    wanted[1, 0] = TOKENS  # beyond the block table
    slots = cache.fetch(0, wanted.to(DEVICE), torch.tensor([1, 2, 3], device=DEVICE), block_table=table().to(DEVICE))
    assert (slots[1].cpu() == -1).all()
    with pytest.raises(ValueError, match="plan_residency: expected requests without a mistake"):
        torch_offload.check_status(DEVICE)


def test_a_host_row_that_does_not_exist_is_found_by_the_status():
    cache = new_cache(1)
    ids, wanted, bad = torch.tensor([1, 2, 3], device=DEVICE), topk(0), table()
    bad[0] += REQUESTS * TOKENS
    cache.fetch(0, wanted.to(DEVICE), ids, block_table=bad.to(DEVICE))
    with pytest.raises(IndexError, match="sparse_copy: expected indices below the row counts"):
        torch_offload.check_status(DEVICE)
    torch_offload.reset_status(DEVICE)
    cache.invalidate(1)
    slots = cache.fetch(0, wanted.to(DEVICE), ids, block_table=table().to(DEVICE))
    assert_holds(cache, 0, wanted, slots)
    torch_offload.check_status(DEVICE)


@contextlib.contextmanager
def issued() -> Iterator[dict[str, int]]:
    """What is called and run in a block, to its end on the device."""
    with support.sim_cann.counting() as calls:
        yield calls
        torch.npu.synchronize()


@support.simulator
@pytest.mark.parametrize("backend", ["eager", "npugraph_ex"])
def test_compiled_equals_eager_without_recompilation(backend):
    torch._dynamo.reset()
    options = {"clone_input": False} if backend == "npugraph_ex" else None
    results = []
    for compiled in (False, True):
        step = DecodeStep(new_cache(2, layers_per_plan=1))
        run = torch.compile(step.run, fullgraph=True, dynamic=False, backend=backend, options=options)
        torch._dynamo.utils.counters.clear()
        outputs = []
        for number in range(12):
            step.set(number)
            torch.npu.synchronize()
            with torch.no_grad(), issued() as calls:
                (run if compiled else step.run)()
            if compiled and backend == "npugraph_ex" and number > 0:
                assert calls["aclmdlRIExecuteAsync"] == 1
                assert not [name for name in calls if name.startswith(("aclnn", "aclrtLaunch", "aclrtMem"))], calls
            step.check()
            outputs.append([t.cpu().clone() for t in (*step.cache.states[0], *step.cache.plans[1])])
        if compiled:
            assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
        results.append(outputs)
    for eager, compiled in zip(*results, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(eager, compiled, strict=True))
    torch_offload.check_status(DEVICE)
