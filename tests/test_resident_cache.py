# SPDX-License-Identifier: Apache-2.0
"""ResidentCache: plan and copy together, several layers and components, new rows, errors."""

from __future__ import annotations

import pytest
import torch
import torch._dynamo.testing
from cache_support import REQUESTS, SLOTS, TOKENS, TOP_K, assert_holds, host_layers, table, topk

from torch_offload import ResidentCache


@pytest.mark.parametrize(("layers", "shared"), [(1, 1), (4, 1), (4, 2), (6, 3)])
def test_every_slot_holds_its_token(layers, shared):
    cache = ResidentCache(
        host_layers(layers), requests=REQUESTS, slots=SLOTS, top_k=TOP_K, layers_per_plan=shared, block_size=1
    )
    ids = torch.tensor([4, 5, 6])
    distinct = 0
    for step in range(20):
        if step == 10:
            ids = torch.tensor([4, 9, 6])
        for group in range(layers // shared):
            wanted = topk(step + group)
            distinct += sum(len(set(row[row >= 0].tolist())) for row in wanted)
            slots = cache.fetch(group, wanted, ids, block_table=table())
            for layer in range(group * shared, (group + 1) * shared):
                assert_holds(cache, layer, wanted, slots)
    stats = cache.stats()
    assert stats.hits + stats.misses == distinct
    assert 0 < stats.misses < distinct
    row_bytes = 16 * 2 + 6
    assert (stats.bytes_loaded, stats.bytes_saved) == (
        stats.misses * row_bytes * shared,
        stats.hits * row_bytes * shared,
    )


def test_new_rows_go_to_the_host_and_to_the_slot_of_a_resident_token():
    cache = ResidentCache(host_layers(2), requests=REQUESTS, slots=SLOTS, top_k=TOP_K)
    ids, wanted = torch.tensor([1, 2, 3]), topk(1).clamp(min=0)
    cache.fetch(1, wanted, ids, block_table=table())
    tokens = torch.tensor([int(wanted[0, 3]), TOKENS - 1, int(wanted[2, 0])])
    assert TOKENS - 1 not in wanted[1]
    new = [torch.rand(REQUESTS, 16).bfloat16(), torch.randint(0, 255, (REQUESTS, 3, 2), dtype=torch.uint8)]
    before = [[rows.clone() for rows in cache.rows(layer)] for layer in range(2)]
    host_rows = torch.arange(REQUESTS) * TOKENS + tokens
    cache.append(1, new, host_rows, tokens)
    for component, rows in enumerate(new):
        assert torch.equal(cache.host[1][component][host_rows], rows)
        now, old = (rows.view(torch.uint8).flatten(2) for rows in (cache.rows(1)[component], before[1][component]))
        assert [r for r, _ in (now != old).any(2).nonzero().tolist()] == [0, 2]  # the other's token is not resident
        assert torch.equal(cache.rows(0)[component].view(torch.uint8), before[0][component].view(torch.uint8))
    slots = cache.fetch(1, wanted, ids, block_table=table())
    assert_holds(cache, 1, wanted, slots)


def test_invalidate_makes_one_request_load_again():
    cache = ResidentCache(host_layers(1), requests=REQUESTS, slots=SLOTS, top_k=TOP_K)
    ids, wanted = torch.tensor([1, 2, 3]), topk(0).clamp(min=0)
    cache.fetch(0, wanted, ids, block_table=table())
    loaded = cache.stats().misses
    cache.fetch(0, wanted, ids, block_table=table())
    assert cache.stats().misses == loaded
    cache.host[0][0][TOKENS : 2 * TOKENS].zero_()
    cache.invalidate(2)
    slots = cache.fetch(0, wanted, ids, block_table=table())
    assert cache.stats().misses == loaded + len(set(wanted[1].tolist()))
    assert_holds(cache, 0, wanted, slots)


def test_changed_rows_beyond_the_stable_prefix_are_seen():
    cache = ResidentCache(host_layers(1), requests=REQUESTS, slots=SLOTS, top_k=TOP_K)
    ids, wanted = torch.tensor([1, 2, 3]), topk(2)
    cache.fetch(0, wanted, ids, block_table=table())
    prefix = torch.tensor([100, 0, TOKENS])
    for r in range(2):
        cache.host[0][0][r * TOKENS + int(prefix[r]) : (r + 1) * TOKENS] += 1
    slots = cache.fetch(0, wanted, ids, block_table=table(), stable_prefix=prefix)
    assert_holds(cache, 0, wanted, slots)


def test_a_host_row_that_does_not_exist_leaves_nothing_resident():
    cache = ResidentCache(host_layers(1), requests=REQUESTS, slots=SLOTS, top_k=TOP_K)
    ids, wanted = torch.tensor([1, 2, 3]), topk(1)
    cache.fetch(0, wanted, ids, block_table=table())
    bad = table()
    bad[0] += REQUESTS * TOKENS
    other = (wanted + 100) % TOKENS
    with pytest.raises(IndexError, match="src_index"):
        cache.fetch(0, other, ids, block_table=bad)
    assert cache.states[0].owners.tolist() == [-1, -1, -1]
    slots = cache.fetch(0, other, ids, block_table=table())
    assert_holds(cache, 0, other, slots)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled_equals_eager_without_recompilation(backend, fresh_compiler):
    results = []
    for compiled in (False, True):
        cache = ResidentCache(host_layers(2), requests=REQUESTS, slots=SLOTS, top_k=TOP_K, layers_per_plan=2)

        def step(wanted, ids, blocks, new, host_rows, tokens, cache=cache):
            cache.append(1, new, host_rows, tokens)
            slots = cache.fetch(0, wanted, ids, block_table=blocks)
            return [rows[0].index_select(0, slots[0].clamp(min=0)) for layer in (0, 1) for rows in cache.rows(layer)]

        counter = torch._dynamo.testing.CompileCounterWithBackend(backend)
        run = torch.compile(step, fullgraph=True, backend=counter) if compiled else step
        outputs = []
        for i in range(6):
            tokens = topk(i)[:, 5].clamp(min=0)
            new = [torch.full((REQUESTS, 16), i / 8).bfloat16(), torch.full((REQUESTS, 3, 2), i, dtype=torch.uint8)]
            rows = run(
                topk(i), torch.tensor([1, 2, 3 + i // 4]), table(), new, torch.arange(3) * TOKENS + tokens, tokens
            )
            outputs.append([*(row.clone() for row in rows), *(t.clone() for t in (*cache.states[0], *cache.plans[0]))])
        if compiled:
            assert counter.frame_count == 1
        results.append(outputs)
    for eager, compiled in zip(*results, strict=True):
        for a, b in zip(eager, compiled, strict=True):
            assert torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))


@pytest.mark.parametrize(
    ("host", "options", "error", "message"),
    [
        ([], {}, ValueError, "expected host to have at least one layer, got none"),
        ([torch.zeros(4, 2)] * 3, {"layers_per_plan": 2}, ValueError, "layers_per_plan to divide the 3 layers, got 2"),
        ([torch.zeros(4, 2)], {"layers_per_plan": 0}, ValueError, "layers_per_plan to divide the 1 layers, got 0"),
        ([torch.zeros(4, 2), [3]], {}, TypeError, r"host\[1\] to hold tensors of rows, got 3"),
        ([torch.zeros(())], {}, TypeError, r"host\[0\] to hold tensors of rows"),
        ([torch.zeros(4, 2)], {"slots": 0}, ValueError, r"slots to be in \[1, 32767\], got 0"),
        ([torch.zeros(4, 2)], {"slots": 40000}, ValueError, r"slots to be in \[1, 32767\], got 40000"),
        ([torch.zeros(4, 2)], {"requests": -1}, ValueError, "requests to be at least 0, got -1"),
        ([torch.zeros(4, 2)], {"top_k": -1}, ValueError, "requests and top_k to be at least 0, got 1 and -1"),
    ],
)
def test_bad_arguments(host, options, error, message):
    with pytest.raises(error, match=message):
        ResidentCache(host, **({"requests": 1, "slots": 4, "top_k": 2} | options))


def test_a_prefetched_selection_is_there():
    cache = ResidentCache(host_layers(2), requests=REQUESTS, slots=SLOTS, top_k=TOP_K)
    ids, predicted = torch.tensor([1, 2, 3]), topk(0).clamp(min=0)
    cache.prefetch(1, predicted, ids, block_table=table()).wait()
    loaded = cache.stats().misses
    wanted = predicted.clone()
    wanted[:, 3] = (wanted[:, 3] + 1) % TOKENS
    slots = cache.fetch(1, wanted, ids, block_table=table())
    assert_holds(cache, 1, wanted, slots)
    assert 0 < cache.stats().misses - loaded <= REQUESTS


def test_padding_is_appended_to_no_slot():
    cache = ResidentCache(host_layers(1), requests=REQUESTS, slots=SLOTS, top_k=TOP_K)
    before = [rows.clone() for rows in cache.rows(0)]
    new = [torch.ones(REQUESTS, 16).bfloat16(), torch.ones(REQUESTS, 3, 2, dtype=torch.uint8)]
    cache.append(0, new, torch.tensor([-1, -1, -1]), torch.tensor([-1, -1, -1]))
    assert all(torch.equal(a, b) for a, b in zip(cache.rows(0), before, strict=True))
