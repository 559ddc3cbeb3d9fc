# SPDX-License-Identifier: Apache-2.0
"""What the tests on the simulated CANN runtime share; skips the module that imports it elsewhere."""

import ctypes
import struct
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "sim_cann"))
import sim_cann

if not sim_cann.available():
    pytest.skip("runs on the simulator: tests/sim_cann/run python -m pytest", allow_module_level=True)

import torch
import torch_npu  # noqa: F401

SAMPLES = sim_cann.BUILD / "plain" / "tests"
acl = ctypes.CDLL("libascendcl.so")
P, SIZE, U32, U64 = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint32, ctypes.c_uint64


def kernel(name):
    """The handle of a kernel in the binary that the simulator's own tests use."""
    binary, function = P(), P()
    assert acl.aclrtBinaryLoadFromFile(str(SAMPLES / "kernels.so").encode(), None, ctypes.byref(binary)) == 0
    assert acl.aclrtBinaryGetFunction(binary, name.encode(), ctypes.byref(function)) == 0
    return function


def launch_copy(src, dst, *, size=None, blocks=4):
    """Launches the copy kernel on the current stream (reading `npu_stream` drains torch_npu's task queue)."""
    size = src.numel() * src.element_size() if size is None else size
    args = struct.pack("QQQ", src.data_ptr(), dst.data_ptr(), size)
    stream = P(torch.npu.current_stream().npu_stream)
    launch = _launch_with_host_args if hasattr(acl, "aclrtLaunchKernelWithHostArgs") else _launch_with_handle
    code = launch(_copy_kernel(), U32(blocks), stream, args)
    assert code == 0, code


def _launch_with_host_args(function, blocks, stream, args):
    return acl.aclrtLaunchKernelWithHostArgs(function, blocks, stream, None, args, SIZE(len(args)), None, SIZE(0))


def _launch_with_handle(function, blocks, stream, args):
    """The way of CANN before 8.5."""
    handle, parameter = P(), P()
    assert acl.aclrtKernelArgsInit(function, ctypes.byref(handle)) == 0
    assert acl.aclrtKernelArgsAppend(handle, args, SIZE(len(args)), ctypes.byref(parameter)) == 0
    assert acl.aclrtKernelArgsFinalize(handle) == 0
    return acl.aclrtLaunchKernelWithConfig(function, blocks, stream, None, handle, None)


def _copy_kernel():
    if not hasattr(_copy_kernel, "handle"):
        _copy_kernel.handle = kernel("copy")
    return _copy_kernel.handle


def raises(call, *texts):
    """Like pytest.raises, but without pytest's machinery in a process of its own; returns the exception."""
    try:
        call()
    except Exception as error:
        assert all(text in str(error) for text in texts), error
        return error
    raise AssertionError("nothing was raised")
