# SPDX-License-Identifier: Apache-2.0
"""The number of cores that a launch takes: of the chip, of the environment, of the stream, of the call."""

import npu_support as support
import pytest
import torch
from npu_support import DEVICE, capture, own_process

import torch_offload

pytestmark = support.simulator


@pytest.fixture(autouse=True)
def device(npu):
    return npu


class Rows:
    """4 MiB in 4096 rows: enough for every core."""

    def __init__(self):
        self.host = torch.arange(4096 * 128).reshape(4096, 128)
        self.src = self.host.to(DEVICE)
        self.dst = torch.zeros_like(self.src)
        self.index = torch.randperm(4096, generator=torch.Generator().manual_seed(1))
        self.on_device = self.index.to(DEVICE)

    def copy(self, cores=None):
        torch_offload.sparse_copy(self.dst, self.src, src_index=self.on_device, cores=cores)

    def check(self):
        assert torch.equal(self.dst.cpu(), self.host[self.index])
        self.dst.zero_()


def cores_of(call):
    call()
    return support.cores_of_the_last_launch()


@pytest.mark.parametrize(("cores", "used"), [(None, 48), (1, 1), (7, 7), (48, 48), (1000, 48)])
def test_of_the_call(cores, used):
    rows = Rows()
    assert cores_of(lambda: rows.copy(cores)) == used
    rows.check()
    assert cores_of(rows.copy) == 48  # it holds for one call


@own_process(TORCH_OFFLOAD_NPU_CORES=8)
def test_of_the_environment():
    rows = Rows()
    assert [cores_of(lambda cores=cores: rows.copy(cores)) for cores in (None, 5, 20)] == [8, 5, 8]


@own_process()
def test_of_the_stream():
    rows = Rows()
    torch.npu.set_stream_limit(torch.npu.current_stream(), 3, 6)
    assert [cores_of(lambda cores=cores: rows.copy(cores)) for cores in (None, 5, 20)] == [6, 5, 6]


def test_in_a_captured_graph():
    """Each call keeps its number, whatever the replay's surroundings say."""
    rows = Rows()
    for cores in (3, 11):
        graph = capture(lambda cores=cores: rows.copy(cores))
        assert cores_of(graph.replay) == cores
        rows.check()


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_in_a_compiled_graph(backend):
    torch._dynamo.reset()
    rows = Rows()

    def function(dst, src, index, cores):
        torch_offload.sparse_copy(dst, src, src_index=index, cores=cores)

    compiled = torch.compile(function, backend=backend, fullgraph=True)
    for cores in (9, 4, None):
        assert cores_of(lambda cores=cores: compiled(rows.dst, rows.src, rows.on_device, cores)) == (cores or 48)
        rows.check()


def records_summed(call):
    """The cores whose records the status of sparse_copy_ptrs was summed from."""
    torch.npu.synchronize()
    with support.sim_cann.counting() as calls:
        call()
        torch.npu.synchronize()
    return calls["sparse_copy_ptrs_status.load_bytes"] // 64


@pytest.mark.parametrize(("cores", "used"), [(None, 48), (1, 1), (7, 7), (1000, 48)])
def test_by_addresses(cores, used):
    rows = Rows()
    src_ptrs = (rows.src.data_ptr() + 1024 * rows.index).to(DEVICE)
    dst_ptrs = (rows.dst.data_ptr() + 1024 * torch.arange(4096)).to(DEVICE)
    lengths, count = torch.full((4096,), 1024).to(DEVICE), torch.tensor([4096]).to(DEVICE)
    status = torch.zeros(4, dtype=torch.int64, device=DEVICE)

    def call():
        torch_offload.sparse_copy_ptrs(src_ptrs, dst_ptrs, lengths, count, status=status, cores=cores)

    assert records_summed(call) == used
    rows.check()
    assert status.cpu().tolist() == [4096, 0, 0, -1]
    assert records_summed(capture(call).replay) == used
    rows.check()


def test_wrong_numbers():
    rows = Rows()
    with pytest.raises(ValueError, match="sparse_copy: expected cores to be a number of cores from 1, got 0"):
        rows.copy(0)
    with pytest.raises(ValueError, match="sparse_copy: expected cores to be a number of cores from 1, got 0"):
        torch.ops.offload._sparse_copy_cores([rows.dst], [rows.src], None, None, None, 0)
