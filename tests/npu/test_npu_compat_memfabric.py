# SPDX-License-Identifier: Apache-2.0
"""The peer's interface on an NPU: sparse decode and the saving of new rows, eager and captured."""

import pytest
import torch
from npu_support import DEVICE, capture

import torch_offload
from torch_offload.compat import memfabric as offload

TOKENS, SLOTS, ENTRIES = 300, 64, 41
WIDTHS = (1024, 128)


@pytest.fixture(autouse=True)
def pool(npu):
    config = offload.OffloadConfig(device_id=0, alloc_size=8 << 20, reserve_size=8 << 20)
    assert offload.initialize(config) == 0
    yield
    torch.npu.synchronize()
    offload.uninitialize()


def random_bytes(*shape):
    return torch.randint(256, shape, dtype=torch.uint8)


class Decode:
    """K rows, then V rows, by addresses of the device; the tables stay where they are."""

    def __init__(self, to_host):
        self.to_host = to_host
        self.host = [offload.empty([TOKENS, width], dtype=torch.uint8) for width in WIDTHS]
        self.device = [torch.zeros(SLOTS, width, dtype=torch.uint8, device=DEVICE) for width in WIDTHS]
        bases = [offload.get_dva(t.data_ptr()) for t in self.host], [t.data_ptr() for t in self.device]
        assert all(base != 0 for side in bases for base in side)
        self.bases = bases
        n = len(WIDTHS) * ENTRIES
        self.tables = [torch.zeros(n, dtype=torch.int64, device=DEVICE) for _ in range(2)]
        self.lengths = torch.zeros(n, dtype=torch.int32, device=DEVICE)
        self.count = torch.zeros((), dtype=torch.int32, device=DEVICE)

    def __call__(self):
        assert offload.sparse_copy(*self.tables, self.lengths, self.count, DEVICE) == 0

    def step(self, count, run):
        """New contents and tables, then `run`; every byte must be that of a loop."""
        for host, device in zip(self.host, self.device, strict=True):
            host.copy_(random_bytes(*host.shape))
            device.copy_(random_bytes(*device.shape))
        tokens, slots = torch.randperm(TOKENS)[:ENTRIES], torch.randperm(SLOTS)[:ENTRIES]
        sides = [
            torch.cat([base + rows * width for base, width in zip(bases, WIDTHS, strict=True)])
            for bases, rows in zip(self.bases, (tokens, slots), strict=True)
        ]
        lengths = torch.cat([torch.full((ENTRIES,), width) for width in WIDTHS])
        lengths[5] = 0
        for table, numbers in zip(self.tables, reversed(sides) if self.to_host else sides, strict=True):
            table.copy_(numbers)
        self.lengths.copy_(lengths)
        self.count.fill_(count)
        expected = [(host.clone(), device.cpu()) for host, device in zip(self.host, self.device, strict=True)]
        for i in range(count):
            if i != 5:
                host, device = expected[i // ENTRIES]
                token, slot = tokens[i % ENTRIES], slots[i % ENTRIES]
                if self.to_host:
                    host[token] = device[slot]
                else:
                    device[slot] = host[token]
        run()
        torch.npu.synchronize()
        for host, device, (wanted_host, wanted_device) in zip(self.host, self.device, expected, strict=True):
            assert torch.equal(host, wanted_host)
            assert torch.equal(device.cpu(), wanted_device)


@pytest.mark.parametrize("to_host", [False, True], ids=["to device", "to host"])
def test_eager_and_captured(to_host):
    decode = Decode(to_host)
    for count in (2 * ENTRIES, 77, 0):
        decode.step(count, decode)
    graph = capture(decode)
    for count in (33, 2 * ENTRIES, 1):
        decode.step(count, graph.replay)


@pytest.mark.parametrize("device", [0, "npu", "npu:0", torch.device("npu"), torch.device("npu:0")])
def test_spellings_of_a_device(device):
    decode = Decode(to_host=False)
    decode.step(9, lambda: offload.sparse_copy(*decode.tables, decode.lengths, decode.count.view(1), device))


def test_another_device_is_refused():
    decode = Decode(to_host=False)
    for device in (1, "npu:7", 256):
        with pytest.raises(ValueError, match=r"srcPtrs to be on device .*, got npu:0"):
            offload.sparse_copy(*decode.tables, decode.lengths, decode.count, device)


def test_pages():
    """One component of two layers, page-first on the host; the addresses of the host are the device's."""
    size, layers, width = 4, 2, 656
    host = offload.empty([5, layers, size * width], dtype=torch.uint8).copy_(random_bytes(5, layers, size * width))
    device = torch.zeros(layers, 3, size * width, dtype=torch.uint8, device=DEVICE)
    pages = [2, 0], [4, 1]
    indices = [(torch.arange(size) + torch.tensor(side).view(-1, 1) * size).flatten().to(DEVICE) for side in pages]
    page_bytes = size * width
    meta = torch.zeros(44, dtype=torch.int64)
    meta[:7] = torch.tensor([1, 2, size, 1, indices[0].data_ptr(), indices[1].data_ptr(), 0])
    places = [device.data_ptr(), offload.get_dva(host.data_ptr())]
    pitches = [3 * page_bytes, page_bytes, layers * page_bytes, page_bytes]
    meta[8:17] = torch.tensor([*places, *pitches, page_bytes, 0, layers])
    assert offload.kv_exchange_copy(meta.to(DEVICE), 0) == 0
    torch.npu.synchronize()
    expected = torch.zeros(layers, 3, page_bytes, dtype=torch.uint8)
    for a, b in zip(*pages, strict=True):
        expected[:, a] = host[b]
    assert torch.equal(device.cpu(), expected)


def test_memory_is_the_devices():
    address = offload.malloc(4096)
    assert offload.get_dva(address) != 0
    assert torch_offload.default_pool().stats().device_registered
    offload.free(address)
