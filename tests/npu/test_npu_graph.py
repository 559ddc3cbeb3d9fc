# SPDX-License-Identifier: Apache-2.0
"""sparse_copy in captured graphs: arguments are frozen, what the device tensors hold is not."""

import npu_support as support
import pytest
import torch
from npu_support import DEVICE, capture, own_process

import torch_offload


@pytest.fixture(autouse=True)
def device(npu):
    return npu


class Step:
    """Gathers the first `count` of 20 rows; indices and count are tensors that are updated in place."""

    def __init__(self):
        self.host = torch.arange(50 * 24).reshape(50, 24)
        self.src = self.host.to(DEVICE)
        self.dst = torch.zeros(20, 24, dtype=torch.int64, device=DEVICE)
        self.index = torch.zeros(20, dtype=torch.int64, device=DEVICE)
        self.count = torch.zeros(1, dtype=torch.int32, device=DEVICE)

    def __call__(self):
        torch_offload.sparse_copy(self.dst, self.src, src_index=self.index, count=self.count)

    def set(self, index, count):
        self.index.copy_(torch.tensor(index))
        self.count.fill_(count)
        self.dst.zero_()

    def check(self, index, count):
        got = self.dst.cpu()
        assert torch.equal(got[:count], self.host[index[:count]])
        assert not got[count:].any()


def drawn(seed):
    return torch.randint(0, 50, (20,), generator=torch.Generator().manual_seed(seed)).tolist()


def test_replays_with_other_counts_and_indices():
    step = Step()
    step.set(drawn(1), 20)
    graph = capture(step)
    torch.npu.synchronize()
    assert not step.dst.cpu().any()  # captured, not run
    for seed, count in enumerate([20, 0, 3, 20, 1, 19]):
        index = drawn(seed)
        step.set(index, count)
        graph.replay()
        step.check(index, count)
    assert torch_offload.status(DEVICE).copied == 20 + 0 + 3 + 20 + 1 + 19


@own_process()
def test_first_use_of_a_process_inside_a_capture():
    """Nothing has been loaded or allocated before."""
    step = Step()
    torch.npu.synchronize()
    assert support.sim_cann.count("aclrtBinaryLoadFromFile") == 0
    graph = capture(step)
    for count in (3, 0, 20):
        step.set(drawn(count), count)
        graph.replay()
        step.check(drawn(count), count)
    assert torch_offload.status(DEVICE).copied == 23


@support.simulator
def test_a_replay_makes_no_call_of_its_own():
    step = Step()
    graph = capture(step)
    calls = support.calls_of_a_replay(graph)
    assert calls["kernel.sparse_copy.runs"] == 1


def test_several_copies_and_operators_in_one_graph():
    first, second = Step(), Step()

    def call():
        first()
        second.src.copy_(first.src + 1)
        second()

    graph = capture(call)
    for seed in range(3):
        first.set(drawn(seed), 5)
        second.set(drawn(seed + 10), 7)
        graph.replay()
        first.check(drawn(seed), 5)
        assert torch.equal(second.dst.cpu()[:7], first.host[drawn(seed + 10)[:7]] + 1)


def test_two_streams_in_one_graph():
    first, second = Step(), Step()
    side = torch.npu.Stream()

    def call():
        side.wait_stream(torch.npu.current_stream())
        with torch.npu.stream(side):
            second()
        first()
        torch.npu.current_stream().wait_stream(side)

    graph = capture(call)
    first.set(drawn(1), 9)
    second.set(drawn(2), 4)
    graph.replay()
    first.check(drawn(1), 9)
    second.check(drawn(2), 4)
    assert torch_offload.status(DEVICE).copied == 13


def test_graphs_replayed_on_two_streams_lose_no_count():
    """Captured on one stream, replayed at the same time on two, beside calls on a third."""
    steps = [Step() for _ in range(3)]
    for step in steps:
        step.set(drawn(1), 20)
    graphs = [capture(step) for step in steps[:2]]
    torch.npu.synchronize()
    streams = [torch.npu.Stream() for _ in graphs]
    for _ in range(10):
        for graph, stream in zip(graphs, streams, strict=True):
            with torch.npu.stream(stream):
                graph.replay()
        steps[2]()
    assert torch_offload.status(DEVICE).copied == 3 * 10 * 20
    for step in steps:
        step.check(drawn(1), 20)


def test_replay_records_what_is_out_of_range():
    step = Step()
    graph = capture(step)
    step.set([1] * 6 + [50] + [2] * 13, 7)
    graph.replay()
    graph.replay()
    found = torch_offload.status(DEVICE)
    assert (found.copied, found.out_of_range, found.first_bad) == (12, 2, 6)
    with pytest.raises(IndexError, match="got 2 beyond them, the first at position 6"):
        torch_offload.check_status(DEVICE)
    torch_offload.reset_status(DEVICE)
    step.set(drawn(3), 4)
    graph.replay()
    torch_offload.check_status(DEVICE)
    assert torch_offload.status(DEVICE).copied == 4


def test_rows_in_registered_host_memory(registered):
    step = Step()
    step.src = registered.copy_of(step.host.view(torch.uint8).flatten()).view(torch.int64).view(50, 24)
    graph = capture(step)
    step.set(drawn(5), 6)
    graph.replay()
    step.check(drawn(5), 6)
    torch.npu.synchronize()
    step.src[drawn(5)[0]] = -1  # the host changes a row between replays
    graph.replay()
    assert (step.dst.cpu()[0] == -1).all()


@own_process()
def test_status_cannot_be_read_inside_a_capture():
    step = Step()
    with pytest.raises(RuntimeError):
        capture(lambda: (step(), torch_offload.status(DEVICE)))


@own_process(TASK_QUEUE_ENABLE=0)
def test_capture_without_the_task_queue():
    step = Step()
    graph = capture(step)
    step.set(drawn(5), 6)
    graph.replay()
    step.check(drawn(5), 6)
