# SPDX-License-Identifier: Apache-2.0
"""One pool, one thread: what is handed out, what it costs, what is refused."""

import pickle

import pytest
import torch
from pool_support import KIB, MIB, guarded_block, plain_pool

from torch_offload import HostPool


def test_a_tensor_is_an_ordinary_contiguous_cpu_tensor():
    pool = plain_pool()
    tensor = pool.empty((3, 5), dtype=torch.bfloat16)
    assert type(tensor) is torch.Tensor
    assert (tensor.shape, tensor.stride(), tensor.dtype) == ((3, 5), (5, 1), torch.bfloat16)
    assert tensor.device.type == "cpu"
    assert tensor.is_contiguous()
    assert tensor.is_leaf
    assert not tensor.requires_grad
    assert tensor.untyped_storage().nbytes() == 30
    tensor.fill_(2)
    assert (tensor + 1).sum() == 45


def test_sizes_and_dtypes_follow_torch_empty():
    pool = plain_pool()
    for size in (3, (3,), [2, 3], torch.Size([2, 0, 3]), (), torch.tensor(4)):
        shape = size if isinstance(size, (list, tuple)) else (int(size),)
        assert pool.empty(size).shape == torch.empty(shape).shape
    assert pool.empty(3).dtype == torch.get_default_dtype()
    assert pool.empty((0, 2**62)).stride() == torch.empty((0, 2**62)).stride()
    assert pool.empty(3, device="cpu", dtype=torch.int32).dtype == torch.int32
    assert pool.empty(3, device=torch.device("cpu")).numel() == 3


def test_the_default_dtype_is_torchs_at_the_time_of_the_call():
    pool = plain_pool()
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        assert pool.empty(3).dtype == torch.float64
        assert pool.stats().requested == 0  # the temporary has gone
        assert pool.empty(3).nbytes == 24
    finally:
        torch.set_default_dtype(before)
    assert pool.empty(3).dtype == before


@pytest.mark.parametrize(
    ("size", "options", "error", "words"),
    [
        (-1, {}, ValueError, "got -1"),
        ((2, -3), {}, ValueError, "got -3"),
        (2**63, {}, ValueError, "2\\^63"),
        (2**64 - 1, {}, ValueError, "2\\^63"),
        (2**63 - 1, {"dtype": torch.int16}, ValueError, "fewer than 2\\^63 bytes"),
        ((2**32, 2**32), {}, ValueError, "fewer than 2\\^63 bytes"),
        ((2**62, 4, 0), {}, ValueError, "fewer than 2\\^63 bytes"),
        ((0, 2**62, 2**62), {}, ValueError, "fewer than 2\\^63 bytes"),  # its strides would wrap
        (2**63 - 1, {"dtype": torch.uint8}, torch.OutOfMemoryError, f"asked for {2**63 - 1} bytes"),
        (2.0, {}, TypeError, "an int or a sequence of int"),
        ("12", {}, TypeError, "an int or a sequence of int"),
        (b"12", {}, TypeError, "an int or a sequence of int"),
        (memoryview(b"12"), {}, TypeError, "an int or a sequence of int"),
        ((2, None), {}, TypeError, "an int or a sequence of int"),
        (2, {"dtype": "float32"}, TypeError, "torch.dtype"),
        (2, {"dtype": torch.quint8}, TypeError, "plain"),
        (2, {"device": "meta"}, ValueError, "NPU backend"),
        (2, {"device": "npu:0"}, ValueError, "NPU backend"),
        (2, {"device": 0}, TypeError, "device"),
    ],
)
def test_bad_sizes_are_refused_and_change_nothing(size, options, error, words):
    pool = plain_pool()
    before = pool.stats()
    with pytest.raises(error, match=words):
        pool.empty(size, **options)
    assert pool.stats() == before


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"capacity": 0}, ValueError, "capacity"),
        ({"capacity": -1}, ValueError, "capacity.*got -1"),
        ({"capacity": 2**64 - 1}, ValueError, "capacity"),
        ({"capacity": 2**62}, torch.OutOfMemoryError, f"asked for {2**62} bytes"),
        ({"capacity": 2**62 - 1}, torch.OutOfMemoryError, "asked for"),
        ({"capacity": 1e9}, TypeError, "capacity to be an int"),
        ({"capacity": "1"}, TypeError, "capacity to be an int"),
        ({"capacity": None}, TypeError, "capacity to be an int"),
        ({"alignment": 0}, ValueError, "power of two from 16 to 2097152, got 0"),
        ({"alignment": 3}, ValueError, "power of two"),
        ({"alignment": 8}, ValueError, "power of two"),
        ({"alignment": 2**40}, ValueError, "power of two"),
        ({"alignment": 64.0}, TypeError, "alignment"),
        ({"huge_pages": "always"}, ValueError, "'auto', 'require' or 'never', got 'always'"),
        ({"huge_pages": True}, TypeError, "huge_pages"),
        ({"numa_node": 512}, ValueError, "a node that is online"),
        ({"numa_node": -1}, ValueError, "numa_node"),
        ({"numa_node": "0"}, TypeError, "numa_node"),
        ({"prefault_threads": -1}, ValueError, "prefault_threads"),
        ({"prefault_threads": 10**6}, ValueError, "prefault_threads"),
        ({"prefault_threads": 2.0}, TypeError, "prefault_threads"),
        ({"name": b"pool"}, TypeError, "name"),
        ({"name": "a\0b"}, ValueError, "NUL"),
        ({"shared": 1}, TypeError, "shared"),
        ({"lock": "yes"}, TypeError, "lock"),
        ({"device": "npu:0"}, ValueError, "expected device to be None or 'cpu', got 'npu:0'.*NPU backend"),
        ({"device": "cuda"}, ValueError, "got 'cuda'"),
        ({"device": torch.device("meta")}, ValueError, "got 'meta'"),
        ({"device": 1}, TypeError, "device"),
        ({"size": 1}, TypeError, "unexpected keyword"),
    ],
)
def test_bad_options_are_refused(arguments, error, words):
    with pytest.raises(error, match=words):
        HostPool(**{"capacity": MIB, **arguments})


def test_names_of_any_length():
    name = "größter Pool " * 100
    pool = plain_pool(shared=True, name=name)
    assert repr(pool) == f"HostPool({name!r}, capacity={MIB}, open)"
    assert HostPool.attach(pool.share()).stats().attached


def test_a_full_pool_raises_torchs_own_error_with_asked_free_and_largest_bytes():
    pool = plain_pool()
    blocks = [pool.empty(256 * KIB, dtype=torch.uint8) for _ in range(4)]
    del blocks[0], blocks[1]  # two holes that are no neighbours
    before = pool.stats()
    with pytest.raises(torch.OutOfMemoryError) as caught:
        pool.empty(300 * KIB, dtype=torch.uint8)
    for number in (300 * KIB, 512 * KIB, 256 * KIB):
        assert f" {number} bytes" in str(caught.value)
    assert pool.stats() == before
    del blocks
    assert pool.empty(MIB, dtype=torch.uint8).numel() == MIB


def test_size_zero_is_valid_also_when_full():
    pool = plain_pool()
    everything = pool.empty(MIB, dtype=torch.uint8)
    nothing = [pool.empty((0, 7)) for _ in range(100)]
    stats = pool.stats()
    assert (stats.used, stats.free, stats.live_blocks) == (MIB, 0, 101)
    assert all(tensor.shape == (0, 7) for tensor in nothing)
    assert torch.equal(nothing[0], torch.empty(0, 7))
    assert pickle.loads(pickle.dumps(nothing[0])).shape == (0, 7)
    del nothing, everything
    assert (pool.stats().live_blocks, pool.stats().free_blocks) == (0, 1)


@pytest.mark.parametrize("alignment", [2**i for i in range(4, 22)])
def test_every_block_is_aligned_and_costs_less_than_one_alignment(alignment):
    pool = plain_pool(64 * alignment, alignment=alignment)
    tensors = []
    for size in (1, 15, alignment - 1, alignment, alignment + 1, 3 * alignment // 2, 0):
        before = pool.stats()
        tensors.append(pool.empty(size, dtype=torch.uint8))
        stats = pool.stats()
        assert tensors[-1].untyped_storage().data_ptr() % alignment == 0
        assert stats.requested - before.requested == size
        assert 0 <= stats.used - before.used - size < alignment
        del tensors[len(tensors) // 2]  # churn
    assert pool.stats().used + pool.stats().free == pool.stats().capacity


def test_rounding_is_to_the_alignment_only_and_visible_in_the_stats():
    """Five tensors of 1.2 MiB fit into 8 MiB; with sizes rounded to powers of two they would not."""
    pool = plain_pool(8 * MIB)
    size = 12 * MIB // 10
    tensors = [pool.empty(size, dtype=torch.uint8) for _ in range(5)]
    stats = pool.stats()
    assert stats.requested == 5 * size
    assert stats.used == sum(block.size for block in pool.blocks() if not block.free) < 5 * (size + 64)
    assert [block.requested for block in pool.blocks() if not block.free] == [size] * 5
    del tensors


def test_capacity_is_rounded_up_and_all_of_it_can_be_had():
    for capacity in (1, 4095, 4097, 3 * MIB + 1):
        pool = plain_pool(capacity)
        rounded = -(-capacity // 4096) * 4096
        assert pool.stats().capacity == rounded
        assert pool.empty(rounded, dtype=torch.uint8).fill_(1).sum() == rounded


def test_an_eighth_a_thousand_times_leaves_nothing_in_use():
    pool = plain_pool(8 * MIB)
    for _ in range(1000):
        pool.empty(MIB, dtype=torch.uint8)
        assert pool.stats().used == 0
    stats = pool.stats()
    assert (stats.allocations, stats.frees, stats.peak, stats.free_blocks) == (1000, 1000, MIB, 1)


def test_slightly_smaller_requests_leak_nothing():
    """The size of a block that comes back is the one that was handed out, not the one that was asked for."""
    pool = plain_pool(4 * MIB)
    for _ in range(3000):
        for size in (MIB, MIB - 1, MIB - 63):
            tensor = pool.empty(size, dtype=torch.uint8)
            del tensor
        assert pool.stats().used == 0
    assert pool.empty(4 * MIB - 1, dtype=torch.uint8) is not None
    assert pool.empty(4 * MIB, dtype=torch.uint8) is not None
    with pytest.raises(torch.OutOfMemoryError):
        pool.empty(4 * MIB + 1, dtype=torch.uint8)


def test_the_map_shows_every_byte_once():
    pool = plain_pool()
    tensors = [pool.empty(100 * i, dtype=torch.uint8) for i in range(1, 20)]
    del tensors[::2]
    blocks = pool.blocks()
    assert blocks[0].offset == 0
    for one, other in zip(blocks, [*blocks[1:], None], strict=True):
        assert one.offset + one.size == (other.offset if other else pool.stats().capacity)
        assert other is None or not (one.free and other.free)
    assert sum(not block.free for block in blocks) == pool.stats().live_blocks == len(tensors)


def test_name_and_capacity():
    pool = HostPool(10000, name="kv", huge_pages="never")
    assert (pool.name, pool.capacity) == ("kv", pool.stats().capacity)
    pool.close()
    assert (pool.name, pool.capacity) == ("kv", 12288)


def test_writing_a_whole_block_leaves_its_neighbours():
    pool = plain_pool()
    for size in (1, 63, 64, 65, 1000):
        with guarded_block(pool, size) as (block,):
            block.fill_(1)
            assert block.sum() == size
            del block
    assert pool.stats().used == 0
