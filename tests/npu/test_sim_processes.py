# SPDX-License-Identifier: Apache-2.0
"""The torch_npu wheel on the simulated CANN runtime: what needs other settings or ends in an error.

Each test runs in a process of its own. Run with `tests/sim_cann/run python -m pytest tests/npu`.
"""

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
import sim_support as support
from sim_support import SIZE, P, acl, launch_copy, raises, sim_cann, torch

own_process = sim_cann.own_process


# ---- settings under which everything has to work


def everyday():
    """A bit of everything; fails if something of it does not work."""
    torch.npu.set_device(0)
    host = torch.randn(100, 64)
    x = host.pin_memory().to("npu", non_blocking=True)
    y = torch.zeros_like(x)
    side = torch.npu.Stream()
    side.wait_stream(torch.npu.current_stream())
    with torch.npu.stream(side):
        launch_copy(x, y)
    torch.npu.current_stream().wait_stream(side)
    assert torch.equal((y + 1).cpu(), host + 1)
    outs = []
    for i in range(50):
        x.fill_(i)
        outs.append(x.clone())
    assert [out.cpu()[3, 3].item() for out in outs] == list(range(50))
    if os.environ.get("TASK_QUEUE_ENABLE") != "2":
        graph = torch.npu.NPUGraph()
        with torch.npu.graph(graph):
            launch_copy(x, y)
        x.fill_(5)
        graph.replay()
        assert y.cpu()[0, 0].item() == 5
    del x, y, outs
    torch.npu.empty_cache()


@pytest.mark.parametrize(
    "settings",
    [
        {"SIM_CANN_VERSION": "8.1.RC1"},
        {"SIM_CANN_VERSION": "8.3.RC1"},
        {"SIM_CANN_VERSION": "9.0.0"},
        {"SIM_SOC": "Ascend910_9392"},
        {"SIM_SOC": "Ascend950PR_9599"},
        {"SIM_STREAM_MODE": "inline"},
        {"SIM_DELAY_US": "2000"},
        {"SIM_VA_FLAG": "0"},
        {"SIM_PROTECT": "0"},
        {"TASK_QUEUE_ENABLE": "0"},
        {"TASK_QUEUE_ENABLE": "2"},
        {"ASCEND_LAUNCH_BLOCKING": "1"},
        {"PYTORCH_NPU_ALLOC_CONF": "expandable_segments:True"},
        {"PYTORCH_NO_NPU_MEMORY_CACHING": "1"},
        {"PYTORCH_NPU_ALLOC_CONF": "pinned_mem_register:True"},
    ],
    ids=lambda settings: "=".join(next(iter(settings.items()))),
)
def test_settings(settings):
    own_process(**settings)(everyday)()


# ---- memory that is protected


@own_process(exit_code=-signal.SIGSEGV, writes="the host dereferenced the device address 0x0000")
def test_the_host_cannot_read_device_memory():
    x = torch.arange(100, dtype=torch.uint8).npu()
    ctypes.c_uint8.from_address(x.data_ptr()).value  # noqa: B018


@own_process(SIM_PROTECT=0)
def test_without_protection_it_can():
    x = torch.arange(100, dtype=torch.uint8).npu()
    torch.npu.synchronize()
    assert ctypes.c_uint8.from_address(x.data_ptr() + 5).value == 5


@own_process(PYTORCH_NO_NPU_MEMORY_CACHING=1, TASK_QUEUE_ENABLE=0)
def test_tensors_have_exact_bounds():
    x, y = torch.zeros(1000, dtype=torch.uint8).npu(), torch.zeros(5000, dtype=torch.uint8).npu()
    torch.npu.synchronize()
    size = next(n for n in range(1000, 1100) if sim_cann.translate(x.data_ptr(), n + 1) is None)
    assert size <= 1000 + 24 + 32  # torch_npu itself asks for 32 bytes of padding
    launch_copy(x, y, size=size)
    torch.npu.synchronize()
    launch_copy(x, y, size=size + 1)
    raises(torch.npu.synchronize, "507035", "1 bytes beyond its end")


@own_process()
def test_freed_memory_is_refused():
    x = torch.zeros(100, device="npu")
    torch.npu.synchronize()
    address, out, size = x.data_ptr(), ctypes.create_string_buffer(10), SIZE(10)
    copy = lambda: acl.aclrtMemcpy(out, size, P(address), size, 2)  # noqa: E731
    assert copy() == 0
    del x
    torch.npu.empty_cache()
    assert copy() == 107000 and "freed" in sim_cann.describe(address)
    assert sim_cann.live_device_bytes(0) == 0
    with pytest.raises(ValueError, match="freed"):
        sim_cann.read(address, 10)


@own_process()
def test_a_missing_synchronize_is_seen():
    x = torch.arange(100, dtype=torch.uint8).npu()
    host = torch.full((100,), 255, dtype=torch.uint8).pin_memory()
    torch.npu.synchronize()
    with sim_cann.changed(SIM_DELAY_US=500000):
        host.copy_(x, non_blocking=True)
        assert host[50].item() == 255
        torch.npu.synchronize()
    assert host[50].item() == 50


# ---- several devices, threads, processes


@own_process(SIM_DEVICES=2)
def test_two_devices():
    host = torch.arange(1000.0)
    a = host.to("npu:1")
    assert a.device.index == 1 and torch.equal(a.cpu(), host)
    assert torch.equal(a.to("npu:0").cpu(), host)
    with torch.npu.device(1):
        b = torch.empty(1000, device="npu")
        launch_copy(a, b)
        torch.npu.synchronize()
        assert b.device.index == 1 and torch.equal(b.cpu(), host)
    assert torch.npu.current_device() == 0
    assert sim_cann.live_device_bytes(0) > 0 and sim_cann.live_device_bytes(1) > 0


@own_process(SIM_DEVICES=2, TASK_QUEUE_ENABLE=0)
def test_a_kernel_on_the_wrong_device_is_a_fault():
    a = torch.zeros(1000, device="npu:1")
    torch.npu.synchronize(1)
    with torch.npu.device(0):
        launch_copy(a, torch.empty(1000, device="npu"))
        raises(torch.npu.synchronize, "507035", "device 1")


@own_process()
def test_threads_with_streams_of_their_own():
    wrong = []

    def work(i):
        torch.npu.set_device(0)
        with torch.npu.stream(torch.npu.Stream()):
            for k in range(30):
                x = torch.full((1000,), float(i * 100 + k), device="npu")
                if x.clone().cpu()[-1].item() != i * 100 + k:
                    wrong.append((i, k))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@own_process()
def test_data_loader_workers():
    torch.npu.set_device(0)
    torch.zeros(1, device="npu")
    data = torch.utils.data.TensorDataset(torch.arange(40.0))
    loader = torch.utils.data.DataLoader(data, batch_size=10, pin_memory=True, num_workers=2)
    assert [batch[0].npu(non_blocking=True).sum().item() for batch in loader] == [45.0, 145.0, 245.0, 345.0]


@pytest.mark.parametrize("code", [0, 3])
def test_a_process_may_end_with_work_queued(code):
    own_process(exit_code=code, SIM_DELAY_US=5000)(exit_case)(code)


def exit_case(code):
    x = torch.zeros(10).npu()
    with torch.npu.stream(torch.npu.Stream()):
        for _ in range(20):
            x.clone()
    sys.exit(code)


def test_without_library_path():
    """The libraries may also be loaded by their paths before torch_npu is imported."""
    lib = sim_cann.BUILD / "plain" / "lib"
    first = ["ascendcl", "hccl", "acl_op_compiler", "ge_runner", "graph", "acl_tdt_channel"]
    code = f"""
import ctypes
def preload(name): ctypes.CDLL({str(lib)!r} + "/lib" + name + ".so", mode=ctypes.RTLD_GLOBAL)
for name in {first!r}: preload(name)
import torch
preload("opapi")  # needs libtorch_cpu.so
import torch_npu
assert torch.equal(torch.zeros(3, device="npu").cpu() + 1, torch.ones(3))
"""
    env = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "LD_LIBRARY_PATH": ""}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# ---- errors and injected faults


@own_process(SIM_BUDGET_MB=64)
def test_out_of_memory():
    error = raises(lambda: torch.empty(1 << 30, dtype=torch.uint8, device="npu"))
    assert isinstance(error, torch.OutOfMemoryError)
    assert torch.zeros(10, device="npu").sum().item() == 0


@own_process(SIM_FAIL="aclrtMallocAlign32:2+:207001")
def test_injected_allocation_failure():
    x = torch.zeros(10, device="npu")
    error = raises(lambda: torch.empty(100 << 20, dtype=torch.uint8, device="npu"))
    assert isinstance(error, torch.OutOfMemoryError)
    assert x.sum().item() == 0


@own_process(TASK_QUEUE_ENABLE=0)
def test_injected_call_failure():
    x = torch.arange(10.0).npu()
    torch.npu.synchronize()
    with sim_cann.failing("aclrtSynchronizeStreamWithTimeout", code=507899):
        raises(torch.npu.current_stream().synchronize, "507899", "injected fault")
    with sim_cann.failing("aclnnAdds", code=561103):
        raises(lambda: x + 1, "561103")
    assert torch.equal((x + 1).cpu(), torch.arange(10.0) + 1)


@own_process(TASK_QUEUE_ENABLE=0)
def test_injected_kernel_fault():
    x, y = torch.ones(100, device="npu"), torch.zeros(100, device="npu")
    sim_cann.fail_call("kernel.copy", 2, 507015)
    launch_copy(x, y)
    torch.npu.synchronize()
    launch_copy(x, y)
    raises(torch.npu.synchronize, "507015", "kernel copy")


@own_process()
def test_a_task_that_fails_surfaces_at_synchronize():
    x = torch.zeros(1000).npu()
    torch.npu.synchronize()
    size, stream = SIZE(10), P(torch.npu.current_stream().npu_stream)
    outside = P(x.data_ptr() + (1 << 34))
    assert acl.aclrtMemcpyAsync(outside, size, P(x.data_ptr()), size, 3, stream) == 0
    raises(torch.npu.synchronize, "107000")


@own_process(TASK_QUEUE_ENABLE=0)
def test_an_operator_that_is_not_simulated_says_its_name():
    raises(lambda: torch.linspace(0, 1, 5, device="npu"), "LinSpace", "not simulated")


@own_process()
def test_a_synchronous_copy_in_a_capture_is_refused():
    x, y = torch.ones(1000, device="npu"), torch.zeros(1000, device="npu")
    support.kernel("copy")

    def capture():
        with torch.npu.graph(torch.npu.NPUGraph()):
            launch_copy(x, y)
            x.cpu()

    error = raises(capture, "507903")  # the capture is over; the cause:
    assert "107030" in str(error.__context__)
    torch.npu.synchronize()
    assert x.cpu()[0].item() == 1.0


@own_process(TASK_QUEUE_ENABLE=0)  # the thread of torch_npu's queue is not in the child: it would wait for it
def test_fork_gives_an_error_and_does_not_hang():
    x = torch.zeros(4, device="npu")
    torch.npu.synchronize()
    child = os.fork()
    if not child:
        code = 1
        try:
            x.fill_(1).cpu()
        except RuntimeError:
            code = 0
        os._exit(code)
    deadline = time.time() + 30
    while time.time() < deadline:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            break
        time.sleep(0.05)
    else:
        os.kill(child, signal.SIGKILL)
        raise AssertionError("the child hangs")
    assert os.waitstatus_to_exitcode(status) == 0
    assert x.cpu()[0].item() == 0
