# SPDX-License-Identifier: Apache-2.0
"""sparse_copy_ptrs on an NPU: captured and compiled graphs, the order of calls, wrong arguments, faults."""

import time

import npu_support as support
import pytest
import test_bad_pointers
import torch
from cases import Builder
from npu_support import DEVICE, capture, own_process
from pointer_cases import PTR_CASES, PtrSample, ranges, sample_of
from pointer_support import PlacedPointers, check, moved

import torch_offload
from torch_offload import sparse_copy_ptrs


@pytest.fixture(autouse=True)
def device(npu):
    return npu


class Step:
    """16-byte rows of one tensor to another by their addresses; the tables are updated in place."""

    ENTRIES = 60

    def __init__(self):
        self.host = torch.arange(2 * 100).reshape(100, 2)
        self.src = self.host.to(DEVICE)
        self.dst = torch.zeros(self.ENTRIES, 2, dtype=torch.int64, device=DEVICE)
        self.src_ptrs, self.dst_ptrs, self.lengths = (
            torch.zeros(self.ENTRIES, dtype=torch.int64, device=DEVICE) for _ in range(3)
        )
        self.count = torch.zeros(1, dtype=torch.int32, device=DEVICE)
        self.status = torch.full((4,), -7, device=DEVICE)

    def __call__(self):
        sparse_copy_ptrs(self.src_ptrs, self.dst_ptrs, self.lengths, self.count, status=self.status)

    def set(self, seed, count, *, skip=None, refuse=None):
        self.rows = torch.randint(0, 100, (self.ENTRIES,), generator=torch.Generator().manual_seed(seed))
        self.taken = count
        lengths = torch.full((self.ENTRIES,), 16)
        if skip is not None:
            lengths[skip] = 0
        if refuse is not None:
            lengths[refuse] = -16
        self.untouched = [place for place in (skip, refuse) if place is not None and place < count]
        self.numbers = [count - len(self.untouched), int(skip is not None), int(refuse is not None)]
        self.numbers.append(-1 if refuse is None else refuse)
        self.src_ptrs.copy_(self.src.data_ptr() + 16 * self.rows)
        self.dst_ptrs.copy_(self.dst.data_ptr() + 16 * torch.arange(self.ENTRIES))
        self.lengths.copy_(lengths)
        self.count.fill_(count)
        self.dst.zero_()

    def check(self):
        want = torch.zeros_like(self.dst, device="cpu")
        want[: self.taken] = self.host[self.rows[: self.taken]]
        want[self.untouched] = 0
        assert torch.equal(self.dst.cpu(), want)
        assert self.status.cpu().tolist() == self.numbers


CHANGES = [
    {"seed": 1, "count": 60},
    {"seed": 2, "count": 0},
    {"seed": 3, "count": 17, "skip": 4},
    {"seed": 4, "count": 60, "skip": 0, "refuse": 59},
    {"seed": 5, "count": 1},
    {"seed": 6, "count": 59, "refuse": 3},
]


def replays_with_other_tables():
    step = Step()
    step.set(0, 60)
    graph = capture(step)
    torch.npu.synchronize()
    assert not step.dst.cpu().any()  # captured, not run
    for change in CHANGES:
        step.set(**change)
        graph.replay()
        step.check()


def test_replays_with_other_tables():
    replays_with_other_tables()


@support.simulator
@pytest.mark.parametrize("queue", [0, 1])
def test_first_use_of_a_process_inside_a_capture(queue):
    own_process(TASK_QUEUE_ENABLE=queue)(replays_with_other_tables)()


@support.simulator
def test_a_replay_makes_no_call_of_its_own():
    step = Step()
    graph = capture(step)
    step.set(9, 30)
    calls = support.calls_of_a_replay(graph)
    assert calls["kernel.sparse_copy_ptrs.runs"] == calls["kernel.sparse_copy_ptrs_status.runs"] == 1
    step.check()


def test_several_calls_and_operators_in_one_graph():
    first, second = Step(), Step()

    def call():
        first()
        second.src.copy_(first.src + 1)
        second()

    graph = capture(call)
    for seed in range(3):
        first.set(seed, 50)
        second.set(seed + 10, 20, skip=3)
        graph.replay()
        first.check()
        second.host = first.host + 1
        second.check()


def test_graphs_replayed_on_two_streams():
    """Each keeps its records: the statuses are right although the graphs run at the same time, beside plain calls."""
    steps = [Step() for _ in range(3)]
    for seed, step in enumerate(steps):
        step.set(seed, 60 - seed, skip=seed)
    graphs = [capture(step) for step in steps[:2]]
    torch.npu.synchronize()
    streams = [torch.npu.Stream() for _ in graphs]
    for _ in range(10):
        for graph, stream in zip(graphs, streams, strict=True):
            with torch.npu.stream(stream):
                graph.replay()
        steps[2]()
    torch.npu.synchronize()
    for step in steps:
        step.check()


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_compiled(backend, dynamic):
    torch._dynamo.reset()

    def function(src_ptrs, dst_ptrs, lengths, count, status):
        sparse_copy_ptrs(src_ptrs, dst_ptrs, lengths, count, status=status)

    compiled = torch.compile(function, backend=backend, fullgraph=True, dynamic=dynamic)
    for case in PTR_CASES:
        if not dynamic:
            torch._dynamo.reset()
        check(case.make(), run=lambda placed: compiled(*placed.args))


def test_compiled_calls_are_executed_in_order():
    torch._dynamo.reset()
    memory = [torch.tensor([value], device=DEVICE) for value in (1, 2, 3, 4)]
    addresses = [torch.tensor([cell.data_ptr()]).to(DEVICE) for cell in memory]
    eight, one = torch.tensor([8]).to(DEVICE), torch.tensor([1]).to(DEVICE)
    status = torch.zeros(4, dtype=torch.int64, device=DEVICE)

    def function(a, b, c, d, status):
        for src, dst in ((a, b), (b, c), (c, d), (a, b)):
            sparse_copy_ptrs(src, dst, eight, one, status=status)

    torch.compile(function, backend="aot_eager", fullgraph=True)(*addresses, status)
    assert [cell.item() for cell in memory] == [1, 1, 1, 1]
    assert status.cpu().tolist() == [1, 0, 0, -1]


# The host goes on at once.


@own_process()
def test_the_host_neither_waits_nor_allocates_nor_copies():
    step = Step()
    step.set(1, 60)
    step()  # the first call loads and allocates
    torch.npu.synchronize()
    sim_cann = support.sim_cann
    with sim_cann.changed(SIM_DELAY_US=200_000), sim_cann.counting() as calls:
        start = time.monotonic()
        step()
        assert time.monotonic() - start < 0.1
        while sim_cann.count("aclrtLaunchKernelWithHostArgs") < 4:
            time.sleep(0.001)
        time.sleep(0.02)
    memory = [name for name in calls if any(part in name for part in ("Malloc", "Memcpy", "Memset", "Synchronize"))]
    assert not memory, calls
    assert calls["aclrtLaunchKernelWithHostArgs"] == 2
    step.check()


@own_process(SIM_DELAY_US=50_000)
def test_tables_overwritten_and_dropped_right_after_the_call():
    step = Step()
    step.set(1, 60)
    torch.npu.synchronize()
    step()
    step.src_ptrs.fill_(1)
    step.count.fill_(0)
    del step.src_ptrs, step.dst_ptrs, step.lengths, step.count
    garbage = [torch.full((Step.ENTRIES,), 5, device=DEVICE) for _ in range(8)]  # takes the memory, in stream order
    step.check()
    del garbage


@own_process(SIM_DEVICES=2)
def test_the_device_of_the_tables_counts_not_the_current_one():
    src, dst = torch.arange(6).to("npu:1"), torch.zeros(6, dtype=torch.int64).to("npu:1")
    table = lambda value: torch.tensor([value]).to("npu:1")  # noqa: E731
    status = sparse_copy_ptrs(table(src.data_ptr()), table(dst.data_ptr()), table(48), table(1))
    assert status.device == torch.device("npu:1")
    assert torch.npu.current_device() == 0
    assert status.cpu().tolist() == [1, 0, 0, -1]
    assert torch.equal(dst.cpu(), torch.arange(6))


# Wrong arguments.


@pytest.mark.parametrize("call", test_bad_pointers.CALLS)
@pytest.mark.parametrize("kind", test_bad_pointers.STRUCTURE)
def test_structure(kind, call):
    argument, make, error, text = test_bad_pointers.STRUCTURE[kind]
    sample = PlacedPointers(test_bad_pointers.good())
    names = test_bad_pointers.ARGUMENTS
    sample.args[names.index(argument)] = moved(make())
    before = [buffer.cpu() for buffer in sample.buffers]
    with pytest.raises(error, match=rf"sparse_copy_ptrs: expected {argument} to {text}") as info:
        call(PtrSample(*sample.args))
    assert type(info.value) is error
    assert all(torch.equal(buffer.cpu(), old) for buffer, old in zip(sample.buffers, before, strict=True))


@pytest.mark.parametrize("argument", test_bad_pointers.ARGUMENTS)
def test_tensors_of_the_host_among_those_of_the_device(argument, registered):
    """Registered or not: a traced graph could not tell."""
    place = test_bad_pointers.ARGUMENTS.index(argument)
    sample = PlacedPointers(test_bad_pointers.good())
    host = sample.args[place].cpu()
    in_reach = registered.copy_of(host.view(torch.uint8)).view(host.dtype)
    first, text = ("src_ptrs", "cpu like status, got npu:0") if argument == "status" else (argument, "npu:0 like")
    for value in (host, in_reach):
        sample.args[place] = value
        with pytest.raises(ValueError, match=rf"sparse_copy_ptrs: expected {first} to be on {text}"):
            sample.run()


@pytest.mark.parametrize("table", ["src_ptrs", "dst_ptrs", "lengths", "count"])
def test_status_inside_a_table(table):
    both = torch.zeros(12, dtype=torch.int64, device=DEVICE)
    sample = PlacedPointers(test_bad_pointers.good())
    place = test_bad_pointers.ARGUMENTS.index(table)
    sample.args[place] = both[3 : 3 + sample.args[place].numel()]
    sample.args[4] = both[:4]
    with pytest.raises(ValueError, match=rf"expected status not to overlap .* shared with {table}"):
        sample.run()


@pytest.mark.parametrize("argument", test_bad_pointers.ARGUMENTS)
@pytest.mark.parametrize("kind", ["meta", "coordinates", "nested"])
def test_kinds(kind, argument):
    sample = PlacedPointers(test_bad_pointers.good())
    sample.args[test_bad_pointers.ARGUMENTS.index(argument)] = test_bad_pointers.KINDS[kind]()
    with pytest.raises((TypeError, ValueError), match=r"sparse_copy_ptrs: expected \w+ to be"):
        sample.run()


# Faults of the runtime. With the task queue on, torch_npu reports them at the next synchronize.


def one_call():
    b = Builder(seed=2)
    check(sample_of(b, *ranges(b, [50] * 9), [50] * 9))


def failing(function, code, nth, *texts):
    PlacedPointers(test_bad_pointers.good()).run()  # loads and allocates
    torch.npu.synchronize()
    support.sim_cann.fail_call(function, nth=nth, code=code)
    with pytest.raises(RuntimeError) as info:
        one_call()
    support.sim_cann.clear_failures()
    for text in texts:
        assert text in str(info.value), info.value


@support.simulator
@pytest.mark.parametrize("nth", [1, 2])
@pytest.mark.parametrize("queue", [0, 1])
def test_fault_of_either_launch(queue, nth):
    text = "torch_offload: aclrtLaunchKernelWithHostArgs: expected success, got code 507899: [sim]"
    run = own_process(TASK_QUEUE_ENABLE=queue, writes=text)
    run(failing)("aclrtLaunchKernelWithHostArgs", 507899, nth, "offload::sparse_copy_ptrs")


@support.simulator
@pytest.mark.parametrize("nth", [1, 2])
@pytest.mark.parametrize("function", ["aclrtKernelArgsInit", "aclrtKernelArgsFinalize", "aclrtLaunchKernelWithConfig"])
def test_fault_of_the_older_launch_calls(function, nth):
    text = f"torch_offload: {function}: expected success, got code 507899"
    run = own_process(SIM_CANN_VERSION="8.1.RC1", TASK_QUEUE_ENABLE=0, writes=text)
    run(failing)(function, 507899, nth, "offload::sparse_copy_ptrs")


@support.simulator
@pytest.mark.parametrize("kernel", ["sparse_copy_ptrs", "sparse_copy_ptrs_status"])
def test_fault_of_a_kernel(kernel):
    own_process()(failing)(f"kernel.{kernel}", 507015, 1, "507015")


@support.simulator
@pytest.mark.parametrize(("function", "code"), [("aclrtMalloc", 207001), ("aclmdlRICaptureGetInfo", 507899)])
def test_fault_while_a_call_prepares(function, code):
    own_process()(fails_then_works)(function, code)


def fails_then_works(function, code):
    sample = PlacedPointers(test_bad_pointers.good())
    torch.npu.synchronize()
    with support.sim_cann.failing(function, code=code), pytest.raises(RuntimeError, match=f"{function}.*{code}"):
        sample.run()
    one_call()


@own_process()
def test_a_stray_address_is_a_fault_that_names_the_kernel():
    """Addresses are trusted: what they point to is the caller's."""
    table = lambda value: torch.tensor([value]).to(DEVICE)  # noqa: E731
    status = torch.zeros(4, dtype=torch.int64, device=DEVICE)
    sparse_copy_ptrs(table(64), table(status.data_ptr()), table(8), table(1))
    with pytest.raises(RuntimeError, match="507035"):
        torch.npu.synchronize()


def test_calls_are_counted_for_the_operator_alone():
    one_call()
    assert torch_offload.status(DEVICE) == torch_offload.SparseCopyStatus(0, 0, 0, -1)
