# SPDX-License-Identifier: Apache-2.0
"""Runs the tests only where torch_npu is, on hardware or on the simulator; elsewhere their modules skip themselves."""

import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS), str(TESTS / "sim_cann")]


@pytest.fixture
def npu():
    """The device of the tests that run in this process: idle before and after, with an empty status."""
    import torch

    import torch_offload

    torch.npu.set_device(0)
    torch_offload.reset_status("npu:0")
    yield torch.device("npu:0")
    torch.npu.synchronize()


@pytest.fixture
def registered(npu):
    """Host memory that the device can address."""
    from npu_support import registered_memory

    with registered_memory() as memory:
        yield memory
