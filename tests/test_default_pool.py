# SPDX-License-Identifier: Apache-2.0
"""The process-wide pool: init, uninit, and what happens out of order."""

import threading

import pytest
import torch
from pool_support import MIB, resident_bytes

import torch_offload

PLAIN = {"huge_pages": "never"}


@pytest.fixture(autouse=True)
def no_pool():
    torch_offload.uninit()
    yield
    torch_offload.uninit()


def test_empty_before_init_and_after_uninit_says_what_to_do():
    assert not torch_offload.is_initialized()
    for call in (lambda: torch_offload.empty(1), torch_offload.default_pool):
        with pytest.raises(RuntimeError, match="not initialized: call init first"):
            call()
    torch_offload.init(MIB, **PLAIN)
    assert torch_offload.is_initialized()
    assert torch_offload.empty((2, 3), dtype=torch.int8).shape == (2, 3)
    torch_offload.uninit()
    torch_offload.uninit()
    assert not torch_offload.is_initialized()
    with pytest.raises(RuntimeError, match="not initialized: call init first"):
        torch_offload.empty(1)


def test_init_again_with_equal_arguments_does_nothing():
    torch_offload.init(MIB, **PLAIN)
    tensor = torch_offload.empty(100).fill_(1)
    assert torch_offload.init(MIB, **PLAIN) is None
    torch_offload.init(MIB, **PLAIN, alignment=64, device=None, prefault_threads=None, numa_node=None, name=None)
    torch_offload.init(MIB, **PLAIN, device="cpu", prefault_threads=0, name="host_pool", shared=False, lock=False)
    assert torch_offload.default_pool().stats().live_blocks == 1
    assert tensor.sum() == 100


@pytest.mark.parametrize(
    ("capacity", "options"),
    [
        (2 * MIB, {}),
        (MIB - 1, {}),
        (MIB, {"alignment": 128}),
        (MIB, {"huge_pages": "auto"}),
        (MIB, {"prefault_threads": 1}),
        (MIB, {"name": "other"}),
        (MIB, {"shared": True}),
        (MIB, {"lock": True}),
        (MIB, {"numa_node": 0}),
    ],
)
def test_init_again_with_other_arguments_is_an_error_and_changes_nothing(capacity, options):
    torch_offload.init(MIB, **PLAIN)
    tensor = torch_offload.empty(100).fill_(1)
    before = torch_offload.default_pool().stats()
    with pytest.raises(RuntimeError, match=r"expected the arguments of the first call.*call uninit first"):
        torch_offload.init(capacity, **{**PLAIN, **options})
    assert torch_offload.default_pool().stats() == before
    assert tensor.sum() == 100


@pytest.mark.parametrize(
    ("capacity", "options", "error"),
    [
        (2**61, {}, torch.OutOfMemoryError),
        (2**50, {}, torch.OutOfMemoryError),
        (-1, {}, ValueError),
        (0, {}, ValueError),
        (MIB, {"alignment": 3}, ValueError),
        (MIB, {"numa_node": 999}, ValueError),
        (MIB, {"huge_pages": "sometimes"}, ValueError),
        (MIB, {"device": "npu"}, ValueError),
        (MIB, {"title": "x"}, TypeError),
        (1.5, {}, TypeError),
    ],
)
def test_a_failed_init_leaves_nothing_behind(capacity, options, error):
    with pytest.raises(error):
        torch_offload.init(capacity, **{**PLAIN, **options})
    assert not torch_offload.is_initialized()
    with pytest.raises(RuntimeError, match="not initialized"):
        torch_offload.empty(1)
    torch_offload.init(MIB, **PLAIN)
    assert torch_offload.default_pool().stats().capacity == MIB


def test_a_failure_while_prefaulting_leaves_nothing_behind(monkeypatch):
    class Interrupted(torch_offload.pool.ProgressBar):
        def __call__(self, done, total):
            raise KeyboardInterrupt

    monkeypatch.setattr(torch_offload.pool, "ProgressBar", Interrupted)
    before = resident_bytes()
    with pytest.raises(KeyboardInterrupt):
        torch_offload.init(64 * MIB, **PLAIN, prefault_threads=2)
    assert not torch_offload.is_initialized()
    with pytest.raises(KeyboardInterrupt):
        torch_offload.HostPool(64 * MIB, **PLAIN, prefault_threads=2)
    assert resident_bytes() < before + 32 * MIB


def test_tensors_stay_readable_after_uninit_and_a_new_pool_is_another_one():
    torch_offload.init(MIB, **PLAIN)
    old = torch_offload.empty(1000).fill_(1)
    torch_offload.uninit()
    assert old.sum() == 1000
    torch_offload.init(2 * MIB, **PLAIN)
    new = torch_offload.empty(1000).fill_(2)
    assert torch_offload.default_pool().stats().live_blocks == 1
    assert (old.sum(), new.sum()) == (1000, 2000)
    del old
    assert torch_offload.default_pool().stats().live_blocks == 1


def test_a_thousand_cycles_leave_resident_memory_as_it_was():
    def cycle(count):
        for i in range(count):
            torch_offload.init(2 * MIB, **PLAIN)
            kept = torch_offload.empty(MIB, dtype=torch.uint8).fill_(i % 7)
            torch_offload.uninit()
            assert kept[0] == i % 7
            del kept

    cycle(100)
    before = resident_bytes()
    cycle(1000)
    assert resident_bytes() < before + 2 * MIB


def test_many_threads_init_and_uninit_at_once():
    """Each init either makes the pool, finds an equal one, or finds another one; the last uninit leaves none."""
    outcomes = []

    def work(capacity):
        for _ in range(50):
            try:
                torch_offload.init(capacity, **PLAIN)
                torch_offload.empty(10).fill_(1)
                outcomes.append("made")
            except RuntimeError as error:
                assert "call uninit first" in str(error) or "not initialized" in str(error) or "closed" in str(error)
                outcomes.append("refused")
            torch_offload.uninit()

    threads = [threading.Thread(target=work, args=((i % 2 + 1) * MIB,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert len(outcomes) == 400
    assert "made" in outcomes
    assert not torch_offload.is_initialized()
