# SPDX-License-Identifier: Apache-2.0
"""The unmodified torch_npu wheel on the simulated CANN runtime, in one process with the standard settings.

Run with `tests/sim_cann/run python -m pytest tests/npu/test_sim_runtime.py`.
"""

import ctypes
import mmap
import time

import pytest
import sim_support as support
from sim_support import U64, P, acl, launch_copy, sim_cann, torch, torch_npu


@pytest.fixture(autouse=True)
def device():
    torch.npu.set_device(0)
    yield
    torch.npu.synchronize()


# ---- tensors


def test_the_device():
    assert torch.npu.is_available() and torch.npu.device_count() == 1
    assert torch.npu.get_device_name(0) == "Ascend910B2"
    free, total = torch.npu.mem_get_info()
    assert 0 < free <= total


@pytest.mark.parametrize(
    "dtype",
    [
        torch.float32,
        torch.float16,
        torch.bfloat16,
        torch.int8,
        torch.int32,
        torch.int64,
        torch.bool,
        torch.uint8,
        torch.float8_e4m3fn,
        torch.complex64,
    ],
    ids=str,
)
def test_to_the_device_and_back(dtype):
    host = torch.randint(0, 2, (7, 33)).to(dtype)
    device = host.npu()
    assert device.device.type == "npu"
    assert torch.equal(device.cpu().view(torch.uint8), host.view(torch.uint8))
    assert torch.equal(device.clone().cpu().view(torch.uint8), host.view(torch.uint8))


def test_views_and_strides():
    host = torch.arange(24.0).reshape(4, 6)
    device = host.npu()
    assert torch.equal(host.t().npu().cpu(), host.t())
    assert torch.equal(device[1:3].cpu(), host[1:3])
    assert torch.equal(device[:, 2].cpu(), host[:, 2])
    assert torch.equal(device.t().contiguous().cpu(), host.t())
    assert torch.equal(torch.empty(4, 6, device="npu").copy_(device).cpu(), host)
    assert device[2, 3].item() == host[2, 3].item()


I = torch.tensor([3, 0, 2])  # noqa: E741
OPERATIONS = {
    "zeros": lambda x: torch.zeros(5, device=x.device),
    "full": lambda x: torch.full((3,), 7, device=x.device),
    "fill_": lambda x: x.clone().fill_(3),
    "cast": lambda x: x.half(),
    "add": lambda x: x + x,
    "add number": lambda x: x + 1,
    "sub": lambda x: torch.sub(x, x, alpha=2),
    "mul": lambda x: x * x,
    "div": lambda x: x / 4,
    "floor_divide": lambda x: x // 4,
    "remainder": lambda x: x % 5,
    "compare": lambda x: (x > 3) & (x != 9),
    "where": lambda x: torch.where(x > 3, x, -x),
    "clamp": lambda x: x.clamp(2, 9),
    "arange": lambda x: torch.arange(3, 30, 4, device=x.device),
    "index_select": lambda x: x.index_select(0, I.to(x.device)),
    "index": lambda x: x[I.to(x.device)],
    "mask": lambda x: x[x > 7],
    "index_put": lambda x: x.clone().index_put_((I.to(x.device),), torch.tensor(5.0, device=x.device)),
    "index_copy": lambda x: x.clone().index_copy_(0, I.to(x.device), x[:3]),
    "gather": lambda x: x.gather(0, I.to(x.device)[:, None].expand(3, 6)),
    "scatter": lambda x: x.scatter(0, I.to(x.device)[:, None].expand(3, 6), x),
    "masked_fill": lambda x: x.masked_fill(x > 3, 0),
    "cat": lambda x: torch.cat([x, x[:1]]),
    "stack": lambda x: torch.stack([x, x], 1),
    "sum": lambda x: x.sum(1),
    "max": lambda x: x.max(),
    "argmax": lambda x: x.argmax(1),
    "any": lambda x: (x > 22).any(),
    "cumsum": lambda x: x.cumsum(1),
    "sort": lambda x: x.sort(descending=True)[1],
    "topk": lambda x: x.topk(2)[0],
    "nonzero": lambda x: (x > 20).nonzero(),
    "mm": lambda x: x @ x.t(),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_operators(name):
    host = torch.arange(24.0).reshape(4, 6)
    expected = OPERATIONS[name](host)
    result = OPERATIONS[name](host.npu())
    assert result.device.type == "npu" and result.dtype == expected.dtype
    assert torch.allclose(result.cpu().double(), expected.double())


def test_equality_and_random_numbers():
    a = torch.arange(5.0).npu()
    assert torch.equal(a, a.clone()) and not torch.equal(a, a + 1)
    assert torch.allclose(a, a + 1e-9)
    assert sorted(torch.randperm(50, device="npu").cpu().tolist()) == list(range(50))
    torch.npu.manual_seed(3)
    first = torch.rand(100, device="npu")
    assert first.min().item() >= 0 and first.max().item() < 1
    torch.npu.manual_seed(3)
    assert torch.equal(torch.rand(100, device="npu"), first)
    assert set(torch.randint(0, 3, (100,), device="npu").cpu().tolist()) == {0, 1, 2}


def test_print():
    assert "npu:0" in repr(torch.arange(3.0).npu())


def test_autograd_and_modules():
    w = torch.ones(4).npu().requires_grad_()
    (w * 3).sum().backward()
    assert torch.equal(w.grad.cpu(), torch.full((4,), 3.0))
    module, x = torch.nn.Linear(8, 4), torch.randn(2, 8)
    expected = module(x)
    assert torch.allclose(module.npu()(x.npu()).cpu(), expected, atol=1e-5)


# ---- pinned memory, streams, events


def test_asynchronous_copies_make_no_synchronous_call():
    pinned = torch.arange(1000.0).pin_memory()
    assert pinned.is_pinned()
    back = torch.empty(1000, pin_memory=True)
    device = torch.empty(1000, device="npu")
    with sim_cann.counting() as calls:
        device.copy_(pinned, non_blocking=True)
        back.copy_(device, non_blocking=True)
        torch.npu.current_stream().synchronize()
    assert torch.equal(back, pinned)
    assert "aclrtMemcpy" not in calls
    assert calls["aclrtMemcpyAsync"] + calls.get("aclrtMemcpyAsyncWithCondition", 0) == 2


def test_streams_and_events():
    pinned = torch.arange(1000.0).pin_memory()
    side, current = torch.npu.Stream(), torch.npu.current_stream()
    with torch.npu.stream(side):
        device = pinned.to("npu", non_blocking=True)
        event = torch.npu.Event()
        event.record(side)
    current.wait_event(event)
    assert torch.equal(device.cpu(), pinned)
    assert event.query()
    side.synchronize()  # the event has passed a moment before the stream is idle
    assert side.query()
    begin, end = torch.npu.Event(enable_timing=True), torch.npu.Event(enable_timing=True)
    with sim_cann.changed(SIM_DELAY_US=300000):
        begin.record()
        device.copy_(pinned, non_blocking=True)
        end.record()
        assert not end.query()
        end.synchronize()
    assert begin.elapsed_time(end) >= 300


def test_a_missing_wait_between_streams_is_seen():
    side = torch.npu.Stream()
    for wait, expected in ((True, 5.0), (False, 1.0)):
        x, y = torch.ones(64, device="npu"), torch.zeros(64, device="npu")
        torch.npu.synchronize()
        with sim_cann.changed(SIM_DELAY_US=600000):
            x.fill_(5)
            time.sleep(0.1)  # the delay counts when a task starts
        with torch.npu.stream(side):
            if wait:
                side.wait_stream(torch.npu.default_stream())
            y.copy_(x)
            side.synchronize()
        torch.npu.synchronize()
        assert y.cpu()[0].item() == expected


def test_a_tensor_freed_behind_the_device_stays_usable_for_it():
    side = torch.npu.Stream()
    x, y = torch.ones(1 << 18, device="npu"), torch.empty(1 << 18, device="npu")
    side.wait_stream(torch.npu.current_stream())
    with sim_cann.changed(SIM_DELAY_US=20000):
        with torch.npu.stream(side):
            y.copy_(x)
        x.record_stream(side)
        del x
        torch.zeros(1 << 18, device="npu")
        side.synchronize()
    assert y.cpu().min().item() == 1.0


def test_host_function():
    got, stream = [], torch.npu.Stream()
    with pytest.raises(RuntimeError, match="107015"):
        torch_npu.npu._launch_host_func(stream, got.append, 5)
    torch_npu.npu._subscribe_report(stream)
    torch_npu.npu._launch_host_func(stream, got.append, 5)
    torch.npu.synchronize()
    torch_npu.npu._unsubscribe_report(stream)
    assert got == [5]


# ---- kernels through the public launch calls


@pytest.mark.parametrize("blocks", [1, 7, 48])
def test_launch(blocks):
    x, y = torch.randn(1000).npu(), torch.zeros(1000, device="npu")
    with sim_cann.counting() as calls:
        launch_copy(x, y, blocks=blocks)
        torch.npu.synchronize()
    assert torch.equal(x.cpu(), y.cpu())
    assert calls["kernel.copy.launches"] == calls["kernel.copy.runs"] == 1
    assert calls["copy.bytes"] == 4000


# ---- graphs


def test_graph_capture_and_replay():
    x, y = torch.zeros(1000, device="npu"), torch.zeros(1000, device="npu")
    graph = torch.npu.NPUGraph()
    support.kernel("copy")
    with sim_cann.counting() as calls:
        with torch.npu.graph(graph):
            launch_copy(x, y)
            z = y + 1  # in the graph's own pool
        assert y.cpu()[0].item() == 0
        for value in (3.0, 5.0):
            x.fill_(value)
            graph.replay()
            assert y.cpu()[7].item() == value and z.cpu()[9].item() == value + 1
        other = torch.npu.Stream()
        x.fill_(7.0)
        other.wait_stream(torch.npu.current_stream())
        with torch.npu.stream(other):
            graph.replay()
        other.synchronize()
        assert z.cpu()[0].item() == 8.0
    assert calls["kernel.copy.launches"] == 1 and calls["kernel.copy.runs"] == 3


def test_graph_over_two_streams_with_pinned_copies(tmp_path):
    x, y = torch.zeros(100, device="npu"), torch.zeros(100, device="npu")
    pinned = torch.ones(100).pin_memory()
    graph, side = torch.npu.NPUGraph(), torch.npu.Stream()
    with torch.npu.graph(graph):
        capturing = torch.npu.current_stream()
        x.copy_(pinned, non_blocking=True)
        side.wait_stream(capturing)
        with torch.npu.stream(side):
            launch_copy(x, y)
        capturing.wait_stream(side)
        z = y * 2
    pinned.fill_(11.0)
    graph.replay()
    torch.npu.synchronize()
    assert z.cpu()[0].item() == 22.0
    graph.debug_dump(str(tmp_path / "graph.json"))
    assert "kernel copy" in (tmp_path / "graph.json").read_text()


def test_graphed_callables_and_the_generic_graph():
    graphed = torch.npu.make_graphed_callables(lambda a: a * 2, (torch.zeros(10, device="npu"),))
    assert graphed(torch.full((10,), 4.0).npu()).cpu()[9].item() == 8.0
    graph, side = torch.accelerator.Graph(), torch.npu.Stream()
    x, y = torch.full((100,), 42.0, device="npu"), torch.zeros(100, device="npu")
    side.wait_stream(torch.npu.current_stream())
    with torch.npu.stream(side):
        graph.capture_begin()
        launch_copy(x, y)
        graph.capture_end()
        graph.replay()
    side.synchronize()
    assert y.cpu()[0].item() == 42.0


def test_graph_arguments_can_be_updated():
    x, other, y = (torch.full((100,), v, device="npu") for v in (1.0, 42.0, 0.0))
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        stream = torch.npu.current_stream()
        torch.npu.graph_task_group_begin(stream)
        launch_copy(x, y)
        handle = torch.npu.graph_task_group_end(stream)
    graph.replay()
    assert y.cpu()[0].item() == 1.0
    updates = torch.npu.Stream()
    with torch.npu.stream(updates):
        torch.npu.graph_task_update_begin(updates, handle)
        launch_copy(other, y)
        torch.npu.graph_task_update_end(updates)
    graph.replay()
    assert y.cpu()[0].item() == 42.0


def test_graph_waits_for_an_external_event():
    event, graph = torch.npu.ExternalEvent(), torch.npu.NPUGraph()
    x, y = torch.ones(100, device="npu"), torch.zeros(100, device="npu")
    with torch.npu.graph(graph):
        stream = torch.npu.current_stream()
        event.wait(stream)
        event.reset(stream)
        launch_copy(x, y)
    graph.replay()
    time.sleep(0.05)
    assert not torch.npu.current_stream().query()
    side = torch.npu.Stream()
    with torch.npu.stream(side):
        event.record(side)
    torch.npu.synchronize()
    assert y.cpu()[0].item() == 1.0


@pytest.mark.parametrize("backend", ["aot_eager", "npugraphs", "npugraph_ex"])
def test_compile(backend):
    torch._dynamo.reset()
    compiled = torch.compile(lambda a: a * 2 + 1, backend=backend, fullgraph=True, dynamic=False)
    x = torch.zeros(16).npu()
    with torch.no_grad():
        for value in (0.0, 3.0, 8.0):
            x.fill_(value)
            assert compiled(x).cpu()[5].item() == value * 2 + 1


# ---- host memory


def test_swapped_memory_is_host_memory():
    registrations = sim_cann.live_registrations()
    swapped = torch_npu.empty_with_swapped_memory([4096], dtype=torch.float32, device=torch.device("npu:0"))
    x = torch.arange(4096.0).npu()
    assert sim_cann.live_registrations() == registrations + 1
    launch_copy(x, swapped)
    torch.npu.synchronize()
    view = sim_cann.translate(swapped.data_ptr(), 4 * 4096)
    host = torch.frombuffer((ctypes.c_float * 4096).from_address(view), dtype=torch.float32)
    assert torch.equal(host, x.cpu())
    del host, swapped
    assert sim_cann.live_registrations() == registrations


def test_registration_through_torch_npu():
    runtime = torch.npu.npurt()
    block = mmap.mmap(-1, 1 << 16)
    address = ctypes.addressof(ctypes.c_char.from_buffer(block))
    codes = [runtime.npuHostRegister(address, 1 << 16, flag) for flag in (0, 2, 2)]
    assert codes == [107000, 0, 507910]
    assert [runtime.npuHostUnregister(address) for _ in range(2)] == [0, 507911]
    device = P()
    assert acl.aclrtHostRegister(P(address + 8), U64(100), 0, ctypes.byref(device)) == 107000
    assert acl.aclrtHostRegister(P(address), U64(1 << 16), 0, ctypes.byref(device)) == 0
    x = torch.arange(100, dtype=torch.uint8).npu()
    args = type("Mapped", (), {"data_ptr": lambda _: device.value + 50})()
    launch_copy(x, args)
    torch.npu.synchronize()
    assert block[50:150] == bytes(range(100))
    assert acl.aclrtHostUnregister(P(address)) == 0
