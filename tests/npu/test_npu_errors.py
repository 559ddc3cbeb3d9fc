# SPDX-License-Identifier: Apache-2.0
"""Mistakes in arguments raise what they raise on the CPU; faults of the runtime name the call, its code and text."""

import re

import npu_support as support
import pytest
import test_bad_kinds
import test_bad_structure
import torch
from cases import Builder, Sample
from checks import call_operator, call_wrapper
from npu_support import DEVICE, own_process

import torch_offload

CALLS = [call_wrapper, call_operator]


@pytest.fixture(autouse=True)
def device(npu):
    return npu


def moved(value):
    """A tensor on the device with the strides of the given one; anything else as it is."""
    if not isinstance(value, torch.Tensor):
        return value
    storage = torch.empty(0, dtype=torch.uint8).set_(value.untyped_storage())
    if storage.numel() == 0:
        return value.to(DEVICE)
    flat = storage.to(DEVICE).view(value.dtype)
    return flat.as_strided(value.shape, value.stride(), value.storage_offset())


def all_moved(sample):
    tables = (moved(t) for t in (sample.dst_index, sample.src_index, sample.count))
    return Sample([moved(t) for t in sample.dst], [moved(t) for t in sample.src], *tables)


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("case", test_bad_structure.BAD, ids=lambda case: case.name)
def test_structure(case, call):
    sample = all_moved(case.build(Builder(seed=41)))
    before = [t.cpu() for t in sample.dst]
    pattern = r"sparse_copy: expected .*" + re.escape(case.text).replace("npu", "cpu")
    with pytest.raises(case.error, match=pattern) as info:
        call(sample)
    assert type(info.value) is case.error
    for tensor, old in zip(sample.dst, before, strict=True):
        assert torch.equal(tensor.cpu(), old)


def good(dtype=torch.float32):
    return all_moved(test_bad_kinds.good(dtype))


ARGUMENTS = ["dst", "src", "dst_index", "src_index", "count"]


def replaced(argument, value):
    sample = good()
    setattr(sample, argument, [value] if argument in ("dst", "src") else value)
    return sample


def of(sample, argument):
    value = getattr(sample, argument)
    return value[0] if isinstance(value, list) else value


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("argument", ARGUMENTS)
@pytest.mark.parametrize("kind", test_bad_kinds.KINDS)
def test_kinds_of_the_cpu_among_device_tensors(kind, argument, call):
    make, text = test_bad_kinds.KINDS[kind]
    sample = replaced(argument, make())
    if kind == "mkldnn" and argument != "dst":  # the dispatcher takes the CPU's kernel, which meets dst first
        with pytest.raises(ValueError, match=r"expected dst\[0\] to be on device type cpu, got npu:0"):
            call(sample)
        return
    with pytest.raises(TypeError, match=rf"expected {argument}(\[0\])? to be a .*{text}"):
        call(sample)


@pytest.mark.parametrize("call", CALLS)
def test_sparse_tensor_on_the_device(call):
    indices, values = torch.tensor([[0, 1], [2, 3]]).to(DEVICE), torch.ones(2, device=DEVICE)
    sparse = torch.sparse_coo_tensor(indices, values, (6, 8), check_invariants=False)
    with pytest.raises(TypeError, match=r"expected src\[0\] to be a strided tensor, got layout Sparse"):
        call(replaced("src", sparse))


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("argument", ARGUMENTS)
def test_negative_view(argument, call):
    sample = good()
    view = torch._neg_view(of(sample, argument))
    with pytest.raises(TypeError, match=rf"expected {argument}(\[0\])? to be a plain tensor, got a negative view"):
        call(replaced(argument, view))


@pytest.mark.parametrize("argument", ["dst", "src"])
def test_conjugate_view(argument):
    sample = good(torch.complex64)
    setattr(sample, argument, [getattr(sample, argument)[0].conj()])
    with pytest.raises(TypeError, match="got a conjugate view"):
        call_wrapper(sample)


@pytest.mark.parametrize("argument", ["dst", "src"])
def test_tensor_that_requires_grad(argument):
    sample = good()
    of(sample, argument).requires_grad_()
    with pytest.raises(NotImplementedError, match=rf"expected {argument} not to require grad"):
        call_wrapper(sample)
    with torch.no_grad():
        call_wrapper(sample)


def test_overlap():
    rows = torch.zeros(10, 8, device=DEVICE)
    index = torch.tensor([1, 0]).to(DEVICE)
    with pytest.raises(
        ValueError, match=r"dst\[0\] not to overlap what the call reads, got bytes shared with src\[0\]"
    ):
        torch_offload.sparse_copy(rows[:6], rows[5:], index, index)


def test_overlap_of_a_host_tensor_with_another_view_of_it(registered):
    """Compared where the kernel finds them: two host tensors of one registered range."""
    rows = registered.copy_of(torch.zeros(80, dtype=torch.uint8)).view(10, 8)
    index = torch.tensor([1, 0]).to(DEVICE)
    with pytest.raises(ValueError, match=r"dst\[0\] not to overlap what the call reads"):
        torch_offload.sparse_copy(rows[:6], rows[5:], index, index)
    torch_offload.sparse_copy(rows[:5], rows[5:], index, index)


# Placement.


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("argument", ARGUMENTS)
def test_ordinary_host_memory(argument, call):
    sample = good()
    value = of(sample, argument).cpu()
    text = (
        rf"expected {argument}(\[0\])? to be on npu:0 or in host memory that it can address, got ordinary host memory; "
        r"allocate it with torch_offload.HostPool\(..., device='npu:0'\), or move the tensor with .to\('npu:0'\)"
    )
    with pytest.raises(ValueError, match=text):
        call(replaced(argument, value))


def test_pinned_memory_is_not_addressable_by_itself():
    with pytest.raises(ValueError, match="got pinned host memory"):
        call_wrapper(replaced("src", torch.zeros(6, 8).pin_memory()))


@own_process(PYTORCH_NPU_ALLOC_CONF="pinned_mem_register:True")
def test_pinned_memory_that_torch_npu_registers():
    host = torch.arange(48.0).reshape(6, 8)
    dst = torch.zeros(6, 8, device=DEVICE)
    torch_offload.sparse_copy(dst, host.pin_memory())
    assert torch.equal(dst.cpu(), host)


def test_host_memory_that_is_npu_tensors():
    host = torch.arange(48.0).reshape(6, 8)
    swapped = support.torch_npu.empty_with_swapped_memory([6, 8], dtype=torch.float32, device=DEVICE)
    torch_offload.sparse_copy(swapped, host.to(DEVICE))
    back = torch.zeros(6, 8, device=DEVICE)
    torch_offload.sparse_copy(back, swapped)
    assert torch.equal(back.cpu(), host)


def test_host_memory_that_is_registered_only_in_part(registered):
    """The tensor ends behind the registration."""
    page = 4096
    memory = registered.copy_of(torch.zeros(3 * page, dtype=torch.uint8))
    beginning = memory.data_ptr()
    support._C_npu.unregister_host_memory(beginning)
    support._C_npu.register_host_memory(0, beginning, 2 * page)
    rows = memory.view(12, 1024)
    torch_offload.sparse_copy(torch.zeros(8, 1024, dtype=torch.uint8, device=DEVICE), rows[:8])
    with pytest.raises(ValueError, match=r"expected src\[0\] to be on npu:0 or in host memory"):
        torch_offload.sparse_copy(torch.zeros(12, 1024, dtype=torch.uint8, device=DEVICE), rows)


def test_empty_host_tensors_have_no_place():
    dst, src = torch.zeros(4, 3, device=DEVICE), torch.zeros(4, 3, device=DEVICE)
    empty = torch.empty(0, dtype=torch.int64)
    torch_offload.sparse_copy(dst, src, empty, empty.to(DEVICE))
    torch_offload.sparse_copy(torch.empty(0, 3), torch.empty(0, 3), empty, empty.to(DEVICE))


@own_process(SIM_DEVICES=2)
def test_two_devices():
    for argument in ARGUMENTS:
        sample = good()
        value = of(sample, argument).to("npu:1")
        first = "npu:1" if argument == "dst" else "npu:0"
        with pytest.raises(ValueError, match=rf"to be on {first} or in host memory that it can address, got npu:"):
            call_wrapper(replaced(argument, value))


@pytest.mark.parametrize("argument", ARGUMENTS)
def test_meta_tensor(argument):
    """Meta wins in the dispatcher; its kernel refuses what is not on meta."""
    with pytest.raises(ValueError, match=r"expected .* to be on"):
        call_wrapper(replaced(argument, of(good(), argument).to("meta")))


# Faults of the runtime. With the task queue on, torch_npu reports them at the next synchronize.


def one_copy(calls=()):
    src = torch.arange(32.0).reshape(4, 8)
    dst, on_device = torch.zeros(4, 8, device=DEVICE), src.to(DEVICE)
    torch.npu.synchronize()
    for call, code in calls:
        support.sim_cann.fail_call(call, code=code)
    torch_offload.sparse_copy(dst, on_device)
    torch.npu.synchronize()
    return torch.equal(dst.cpu(), src)


def failing(function, code, *texts):
    with pytest.raises(RuntimeError) as info:
        one_copy([(function, code)])
    support.sim_cann.clear_failures()
    for text in texts:
        assert text in str(info.value), info.value


@support.simulator
@pytest.mark.parametrize(
    ("function", "code"),
    [
        ("aclrtBinaryLoadFromFile", 507899),
        ("aclrtBinaryGetFunction", 507027),
        ("aclrtGetDeviceInfo", 507899),
        ("aclrtMalloc", 207001),
        ("aclrtMemsetAsync", 507899),
        ("aclrtSynchronizeStream", 507899),
        ("aclmdlRICaptureGetInfo", 507899),
    ],
)
def test_fault_while_a_call_prepares(function, code):
    own_process()(fails_then_works)(function, code)


def fails_then_works(function, code):
    failing(function, code, function, str(code), "injected")
    assert one_copy()  # nothing was left half made


OPERATOR = "offload::sparse_copy"


@support.simulator
@pytest.mark.parametrize("queue", [0, 1, 2])
def test_fault_of_the_launch(queue):
    """torch_npu's error names the operator, ours the call."""
    text = "torch_offload: aclrtLaunchKernelWithHostArgs: expected success, got code 507899: [sim]"
    run = own_process(TASK_QUEUE_ENABLE=queue, writes=text)
    run(failing)("aclrtLaunchKernelWithHostArgs", 507899, OPERATOR)


@support.simulator
@pytest.mark.parametrize(
    "function",
    ["aclrtKernelArgsInit", "aclrtKernelArgsAppend", "aclrtKernelArgsFinalize", "aclrtLaunchKernelWithConfig"],
)
def test_fault_of_the_older_launch_calls(function):
    text = f"torch_offload: {function}: expected success, got code 507899"
    run = own_process(SIM_CANN_VERSION="8.1.RC1", TASK_QUEUE_ENABLE=0, writes=text)
    run(failing)(function, 507899, OPERATOR)


@own_process()
def test_fault_of_the_kernel():
    failing("kernel.sparse_copy", 507015, "507015")


@own_process()
def test_memory_of_the_records_is_given_back_on_failure():
    torch.zeros(3).to(DEVICE)
    torch.npu.synchronize()
    before = support.sim_cann.live_device_bytes(0)
    with support.sim_cann.failing("aclrtMemsetAsync"), pytest.raises(RuntimeError, match="aclrtMemsetAsync"):
        torch_offload.sparse_copy(torch.zeros(0, 3).to(DEVICE).new_empty(2, 2), torch.zeros(2, 2).to(DEVICE))
    torch.npu.empty_cache()
    assert support.sim_cann.live_device_bytes(0) <= before


@own_process(SIM_SOC="Ascend310P3")
def test_a_chip_without_the_instructions():
    with pytest.raises(RuntimeError, match=r"expected an Atlas A2, A3 or A5 device .*got Ascend310P3"):
        one_copy()


@support.simulator
@pytest.mark.parametrize("value", ["0", "-3", "many", "1.5"])
def test_bad_number_of_cores(value):
    own_process(TORCH_OFFLOAD_NPU_CORES=value)(refuses_cores)(value)


def refuses_cores(value):
    with pytest.raises(ValueError, match=rf"TORCH_OFFLOAD_NPU_CORES: expected a number of cores from 1, got '{value}'"):
        one_copy()


@own_process(TORCH_OFFLOAD_NPU_KERNEL="/nowhere/kernels.o")
def test_no_kernel_file():
    text = r"device kernels in /nowhere/kernels.o, got no such file; run 'python -m torch_offload.build_kernel'"
    with pytest.raises(RuntimeError, match=text):
        one_copy()


@own_process(TORCH_OFFLOAD_NPU_KERNEL=__file__)
def test_a_kernel_file_that_does_not_load():
    with pytest.raises(
        RuntimeError, match=r"aclrtBinaryLoadFromFile: expected .*test_npu_errors.py to load on Ascend910B2 .*got code"
    ):
        one_copy()
