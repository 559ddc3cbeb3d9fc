# SPDX-License-Identifier: Apache-2.0
"""The interface of memfabric_hybrid.offload, as its callers use it, against plain loops over bytes."""

import gc
import logging
import subprocess
import sys
import threading

import pytest
import torch
from torch import Tensor

import torch_offload
from torch_offload.compat import memfabric as offload

MIB = 1 << 20
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def pool():
    config = offload.OffloadConfig()
    config.alloc_size = config.reserve_size = 64 * MIB
    assert offload.initialize(config) == 0
    yield
    offload.uninitialize()


def distinct(tensor: Tensor, seed: int) -> Tensor:
    numbers = torch.randint(256, (tensor.nbytes,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))
    tensor.view(-1).view(torch.uint8).copy_(numbers)
    return tensor


def addresses(cache: Tensor, rows: Tensor) -> Tensor:
    return cache.data_ptr() + rows * cache.stride(0) * cache.element_size()


@pytest.mark.parametrize("device", [CPU, "npu:0", "npu", 0, 3])
@pytest.mark.parametrize("lengths_dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("address_dtype", [torch.int64, torch.uint64])
def test_sparse_decode(device, lengths_dtype, address_dtype):
    """Descriptors of all K rows, then all V rows; padding of length zero; an odd count."""
    k, v = (distinct(offload.empty([512, width]), seed) for seed, width in ((1, 512), (2, 64)))
    out_k, out_v = torch.zeros(64, 512, dtype=torch.bfloat16), torch.zeros(64, 64, dtype=torch.bfloat16)
    tokens, slots = torch.randperm(512)[:47], torch.randperm(64)[:47]
    src = torch.cat([addresses(k, tokens), addresses(v, tokens), torch.full((5,), -7)])
    dst = torch.cat([addresses(out_k, slots), addresses(out_v, slots), torch.full((5,), -7)])
    lengths = torch.cat([torch.full((47,), 1024), torch.full((47,), 128), torch.full((5,), 99)]).to(lengths_dtype)
    lengths[3] = 0
    count = torch.tensor(93, dtype=torch.int32)  # one V row fewer
    tables = [table.view(torch.int64).view(address_dtype) for table in (src, dst)]
    assert offload.sparse_copy(*tables, lengths, count, device) == 0
    expected_k, expected_v = torch.zeros_like(out_k), torch.zeros_like(out_v)
    for i in range(47):
        if i != 3:
            expected_k[slots[i]] = k[tokens[i]]
        if i < 46:
            expected_v[slots[i]] = v[tokens[i]]
    assert torch.equal(out_k.view(torch.int16), expected_k.view(torch.int16))
    assert torch.equal(out_v.view(torch.int16), expected_v.view(torch.int16))


def test_save_to_the_host():
    """New rows go to the host; slots that are invalid have length zero."""
    host = distinct(offload.empty([300, 656], dtype=torch.uint8), 1)
    new = distinct(torch.zeros(9, 656, dtype=torch.uint8), 2)
    slots = torch.tensor([5, -1, 299, 0, -1, 7, 8, 9, 100])
    expected = host.clone()
    for i, slot in enumerate(slots.tolist()):
        if slot >= 0:
            expected[slot] = new[i]
    lengths = torch.where(slots < 0, 0, 656).int()
    count = torch.tensor([9], dtype=torch.int32)
    assert offload.sparse_copy(addresses(new, torch.arange(9)), addresses(host, slots), lengths, count, 0) == 0
    assert torch.equal(host, expected)


@pytest.mark.parametrize("n", [0, 1, 5, 8])
def test_group_pack(n):
    inputs = [distinct(torch.zeros(40 + i, dtype=torch.uint8), i) for i in range(8)]
    outputs = [torch.full((64,), 0xA5, dtype=torch.uint8) for _ in range(8)]
    groups, packed = torch.tensor([3, 0, 2, 0, 0, 9, 1, 4], dtype=torch.int32), torch.full((8,), -5, dtype=torch.int32)
    expected, expected_packed, j = [t.clone() for t in outputs], packed.clone(), 0
    for i in range(n):
        if groups[i] != 0:
            expected[j][: len(inputs[i])] = inputs[i]
            expected_packed[j] = groups[i]
            j += 1
    src, dst = (torch.tensor([t.data_ptr() for t in side]) for side in (inputs, outputs))
    lengths = torch.tensor([len(t) for t in inputs], dtype=torch.int32)
    assert offload.group_pack_copy(src, dst, lengths, torch.tensor([n]), groups, packed, CPU) == 0
    assert all(torch.equal(a, b) for a, b in zip(outputs, expected, strict=True))
    assert torch.equal(packed, expected_packed)


@pytest.mark.parametrize("to_host", [False, True], ids=["to device", "to host"])
@pytest.mark.parametrize("page_first", [False, True], ids=["layer_first", "page_first"])
def test_kv_exchange(page_first, to_host):
    """Two components, a part of the layers, scattered pages."""
    layers, size, device_pages, host_pages = 4, 16, 6, 9
    chosen_device, chosen_host = [5, 0, 3], [2, 8, 1]
    meta = torch.zeros(44, dtype=torch.int64)
    indices = [torch.cat([torch.arange(size) + page * size for page in side]) for side in (chosen_device, chosen_host)]
    meta[:7] = torch.tensor(
        [2, 3, size, 2 if to_host else 1, indices[0].data_ptr(), indices[1].data_ptr(), 0 if page_first else 1]
    )
    caches, expected = [], []
    for c, (width, low, high) in enumerate(((656, 0, 4), (128, 1, 3))):
        page_bytes = width * size
        device = distinct(torch.zeros(layers, device_pages, page_bytes, dtype=torch.uint8), c)
        shape = (host_pages, layers) if page_first else (layers, host_pages)
        host = distinct(offload.empty([*shape, page_bytes], dtype=torch.uint8), 10 + c)
        pitches = (layers * page_bytes, page_bytes) if page_first else (page_bytes, host_pages * page_bytes)
        meta[8 + 9 * c : 17 + 9 * c] = torch.tensor(
            [device.data_ptr(), host.data_ptr(), device_pages * page_bytes, page_bytes, *pitches, page_bytes, low, high]
        )
        caches += [device, host]
        after_device, after_host = device.clone(), host.clone()
        for layer in range(low, high):
            for a, b in zip(chosen_device, chosen_host, strict=True):
                place = (b, layer) if page_first else (layer, b)
                if to_host:
                    after_host[place] = device[layer, a]
                else:
                    after_device[layer, a] = host[place]
        expected += [after_device, after_host]
    assert offload.kv_exchange_copy(meta, 0) == 0
    assert all(torch.equal(a, b) for a, b in zip(caches, expected, strict=True))


def test_exchange_of_nothing_and_of_nonsense():
    meta = torch.zeros(44, dtype=torch.int64)
    assert offload.kv_exchange_copy(meta, 0) == offload.INVALID_PARAM
    meta[0], meta[2] = 1, 16
    assert offload.kv_exchange_copy(meta, 0) == 0
    meta[1], index = 1, torch.arange(16)
    meta[4] = meta[5] = index.data_ptr()
    assert offload.kv_exchange_copy(meta, 0) == 0  # width 0
    for bad in (meta[:43], meta.int()):
        with pytest.raises(ValueError, match="metaPtr to be 44 numbers of int64"):
            offload.kv_exchange_copy(bad, 0)


def test_memory():
    used = torch_offload.default_pool().stats().used
    address = offload.malloc(1000)
    assert address % 16 == 0
    assert offload.get_dva(address + 999) == address + 999
    assert offload.get_dva(torch.zeros(1).data_ptr()) == 0
    assert offload.malloc(0) == offload.malloc(-1) == offload.malloc(1 << 40) == 0
    offload.free(address)
    offload.free(address)
    tensor = offload.empty((3, 5))
    assert (tensor.dtype, tensor.shape, tensor.is_pinned()) == (torch.bfloat16, (3, 5), False)
    offload.free(tensor.data_ptr())
    assert tensor.fill_(2).sum() == 30
    del tensor
    gc.collect()
    assert torch_offload.default_pool().stats().used == used
    with pytest.raises(ValueError, match="sizes of at least 1"):
        offload.empty([4, 0])
    with pytest.raises(torch.OutOfMemoryError):
        offload.empty([1 << 40])


def test_initialize(caplog):
    config = offload.OffloadConfig(alloc_size=1, reserve_size=1)
    with caplog.at_level(logging.WARNING):
        assert offload.initialize(config) == 0
    assert "there is a pool already" in caplog.text
    offload.uninitialize()
    offload.uninitialize()
    assert offload.malloc(5) == offload.get_dva(5) == 0
    assert offload.initialize(offload.OffloadConfig()) == offload.INVALID_PARAM
    assert offload.initialize(offload.OffloadConfig(alloc_size=1, reserve_size=2 << 30)) == offload.INVALID_PARAM
    assert offload.initialize(offload.OffloadConfig(alloc_size=1, scene=offload.Scene.SHARED)) == offload.NOT_SUPPORTED
    assert offload.register_entry_table(256, 8) == offload.NOT_SUPPORTED
    assert offload.entry_gather(torch.zeros(1), torch.zeros(1), torch.zeros(1), 0) == offload.NOT_SUPPORTED
    with pytest.raises(TypeError, match="config to be an OffloadConfig, got 3"):
        offload.initialize(3)
    with pytest.raises(RuntimeError):
        offload.empty([1])


def tables() -> list[Tensor]:
    return [torch.zeros(2, dtype=torch.int64) for _ in range(3)] + [torch.zeros(1, dtype=torch.int32)]


@pytest.mark.parametrize(
    ("position", "value", "error", "message"),
    [
        (0, 17, TypeError, r"srcPtrs to be a tensor, got 17 \(int\)"),
        (1, None, TypeError, "dst_ptrs to be a tensor, got None"),
        (2, torch.zeros(2), TypeError, "lengths to have dtype Int or Long, got Float"),
        (2, torch.zeros(3, dtype=torch.int32), ValueError, "lengths to have the length of src_ptrs, 2, got 3"),
        (3, torch.zeros(2, dtype=torch.int32), ValueError, "count to have one element, got 2"),
        (3, torch.tensor([3]), ValueError, r"count to be in \[0, 2\], got 3"),
        (4, None, TypeError, "deviceId to be a torch.device, a str or an int, got None"),
        (4, True, TypeError, "deviceId to be"),
        (4, -1, ValueError, "deviceId to be .* or a number from 0, got -1"),
        (4, "no device", ValueError, "deviceId to be 'npu', .*, got 'no device'"),
        (4, "npu:x", ValueError, "deviceId to be 'npu', .*, got 'npu:x'"),
    ],
)
def test_bad_arguments(position, value, error, message):
    arguments = [*tables(), 0]
    arguments[position] = value
    with pytest.raises(error, match=message):
        offload.sparse_copy(*arguments)


def test_copies_of_threads_while_the_pool_goes():
    """The peer's tables of functions went away under other threads."""
    rows, out = offload.empty([64, 64], dtype=torch.uint8).fill_(1), torch.zeros(64, 64, dtype=torch.uint8)
    index, failed = torch.arange(64), []
    stop = threading.Event()

    def copy():
        lengths, count = torch.full((64,), 64), torch.tensor([64])
        while not stop.is_set():
            if offload.sparse_copy(addresses(rows, index), addresses(out, index), lengths, count, 0) != 0:
                failed.append(1)
            offload.free(offload.malloc(100))

    threads = [threading.Thread(target=copy) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(20):
        offload.uninitialize()
        assert offload.initialize(offload.OffloadConfig(alloc_size=MIB, reserve_size=MIB)) == 0
    stop.set()
    for thread in threads:
        thread.join()
    assert not failed
    assert (out == 1).all()


def test_one_import_changes():
    code = (
        "from torch_offload.compat import memfabric as offload\n"
        "c = offload.OffloadConfig(); c.alloc_size = c.reserve_size = 1 << 20; c.scene = offload.Scene.LOCAL\n"
        "assert offload.initialize(c) == 0; t = offload.empty([4, 4], pin_memory=True); offload.free(t.data_ptr())\n"
        "offload.uninitialize(); t.fill_(1)"
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
