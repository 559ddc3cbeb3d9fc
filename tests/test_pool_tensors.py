# SPDX-License-Identifier: Apache-2.0
"""What torch does to tensors, done to tensors of a pool: right values, and no byte written outside the block."""

import copy
import io
import pickle

import numpy
import pytest
import torch
from pool_support import MIB, check_python, guarded_block, plain_pool


def whole(block):
    return block


def offset_view(block):
    return block[40:900:4]


VIEWS = pytest.mark.parametrize("view_of", [whole, offset_view])


def test_values_and_strides_are_those_of_an_ordinary_tensor():
    ours = plain_pool().empty((10, 100), dtype=torch.int16)
    ordinary = torch.randint(-999, 999, (10, 100), dtype=torch.int16)
    ours.copy_(ordinary)
    for act in (lambda t: t.T, lambda t: t[2:7, ::3], lambda t: t.view(torch.int32)[:, 5:], lambda t: t.flatten()[7:]):
        assert torch.equal(act(ours), act(ordinary))
        assert act(ours).stride() == act(ordinary).stride()
        assert act(ours).storage_offset() == act(ordinary).storage_offset()
    assert numpy.array_equal(ours.numpy(), ordinary.numpy())
    assert ours.untyped_storage().nbytes() == ordinary.untyped_storage().nbytes()
    assert ours.tolist() == ordinary.tolist()


@VIEWS
def test_is_pinned_is_false_for_tensor_and_views(view_of):
    block = plain_pool().empty(1000)
    assert view_of(block).is_pinned() is block.is_pinned() is torch.empty(1).is_pinned() is False
    assert not block.is_shared()
    assert not block.untyped_storage().is_shared()


@VIEWS
@pytest.mark.parametrize("how", ["deepcopy", "copy.copy", "pickle", "torch.save", "clone"])
def test_copies_have_the_values_and_are_ordinary_tensors(view_of, how):
    pool = plain_pool()
    with guarded_block(pool) as blocks:
        source = view_of(blocks[0].copy_(torch.arange(1000)))
        values = source.tolist()
        if how == "deepcopy":
            twin = copy.deepcopy({"a": source, "b": source[1:]})
            assert twin["b"].untyped_storage().data_ptr() == twin["a"].untyped_storage().data_ptr()  # still related
            twin = twin["a"]
        elif how == "pickle":
            twin = pickle.loads(pickle.dumps(source))
        elif how == "torch.save":
            file = io.BytesIO()
            torch.save({"kv": source}, file)
            file.seek(0)
            twin = torch.load(file, weights_only=True)["kv"]
        elif how == "clone":
            twin = source.clone()
        else:
            twin = copy.copy(source)  # shares the memory, as for every tensor
            assert twin.data_ptr() == source.data_ptr()
        assert twin.tolist() == values
        assert twin.dtype == source.dtype
        assert how == "clone" or twin.stride() == source.stride()
        assert pool.stats().live_blocks == 3
        if how != "copy.copy":
            twin.fill_(7)
            assert source.tolist() == values
        blocks.clear()
        del source
        assert pool.stats().live_blocks == (3 if how == "copy.copy" else 2)
        del twin
        assert pool.stats().live_blocks == 2


@VIEWS
def test_share_memory_moves_the_tensor_out_and_gives_the_block_back_once(view_of):
    pool = plain_pool()
    with guarded_block(pool) as blocks:
        tensor = view_of(blocks[0].copy_(torch.arange(1000)))
        blocks.clear()
        values = tensor.tolist()
        assert tensor.share_memory_() is tensor
        assert tensor.is_shared()
        assert tensor.tolist() == values
        assert pool.stats().live_blocks == 2
        tensor.fill_(3)
        frees = pool.stats().frees
        del tensor
        assert pool.stats().frees == frees


def test_resize_within_the_block_keeps_it():
    pool = plain_pool()
    with guarded_block(pool) as (tensor,):
        address = tensor.data_ptr()
        tensor.copy_(torch.arange(1000)).resize_(10, 10)
        assert tensor.data_ptr() == address
        assert tensor.flatten().tolist() == list(range(100))
        assert tensor.resize_(1000).data_ptr() == address
        assert pool.stats().live_blocks == 3


@VIEWS
def test_growing_moves_the_tensor_to_another_block_of_the_pool(view_of):
    pool = plain_pool()
    with guarded_block(pool) as blocks:
        old = blocks[0].copy_(torch.arange(1000)).data_ptr()
        tensor = view_of(blocks.pop())
        values = tensor.tolist()
        tensor.resize_(3000)
        stats = pool.stats()
        assert stats.live_blocks == 3
        assert stats.requested >= 3000 + 2 * 512
        assert tensor.data_ptr() != old
        assert tensor.untyped_storage().data_ptr() % 64 == 0
        if view_of is whole:
            assert tensor[:1000].tolist() == values
        tensor.fill_(9)
        del tensor
        assert pool.stats().live_blocks == 2


def test_growing_beyond_the_pool_moves_to_ordinary_memory_with_a_warning():
    """Torch changes the sizes before it asks for memory: were it refused, the tensor would reach behind its block."""
    pool = plain_pool()
    with guarded_block(pool) as blocks:
        tensor = blocks.pop().copy_(torch.arange(1000))
        values = tensor.tolist()
        with pytest.warns(UserWarning, match=f"moved to ordinary memory: .*asked for {2 * MIB} bytes"):
            tensor.resize_(2 * MIB)
        assert tensor[:1000].tolist() == values
        tensor.fill_(1)
        assert tensor.sum() == 2 * MIB
        assert pool.stats().live_blocks == 2


def test_growing_in_a_closed_pool_moves_to_ordinary_memory_with_a_warning():
    pool = plain_pool()
    tensor = pool.empty(10).fill_(1)
    pool.close()
    with pytest.warns(UserWarning, match="moved to ordinary memory: .*got a closed one"):
        tensor.resize_(100)
    assert tensor.untyped_storage().nbytes() == 400
    assert tensor[:10].sum() == 10
    assert pool.stats().live_blocks == 0


def test_a_storage_emptied_by_resize_gives_its_block_back_and_may_outlive_the_pool():
    pool = plain_pool()
    tensor = pool.empty(1000)
    storage = tensor.untyped_storage()
    storage.resize_(0)
    assert pool.stats().used == 0
    storage.resize_(4000)  # as sharded data parallelism does
    assert pool.stats().requested == 4000
    tensor.fill_(1)
    storage.resize_(0)
    del pool
    with pytest.warns(UserWarning, match="moved to ordinary memory: the pool has ended"):
        storage.resize_(4000)
    assert tensor.fill_(1).sum() == 1000


def test_out_arguments_of_the_wrong_size_grow_too():
    pool = plain_pool()
    with guarded_block(pool, 64) as (tensor,):
        tensor.resize_(0)
        torch.ones(500, dtype=torch.uint8, out=tensor)
        assert tensor.sum() == 500
        assert pool.stats().live_blocks == 3
        del tensor


def test_set_and_data_let_go_of_the_block():
    pool = plain_pool()
    with guarded_block(pool) as blocks:
        blocks[0].set_(torch.ones(4, dtype=torch.uint8))
        assert blocks[0].tolist() == [1] * 4
        assert pool.stats().live_blocks == 2
        blocks[0] = pool.empty(1000, dtype=torch.uint8)
        blocks[0].data = torch.zeros(3, dtype=torch.uint8)
        assert blocks[0].tolist() == [0] * 3
        assert pool.stats().live_blocks == 2


def test_set_and_data_take_a_block_over():
    pool = plain_pool()
    with guarded_block(pool) as blocks:
        taker, other = torch.empty(0, dtype=torch.uint8), torch.nn.Parameter(torch.empty(5))
        taker.set_(blocks[0].untyped_storage(), 10, (5, 7), (20, 2))
        other.data = pool.empty(8)
        blocks.clear()
        taker.fill_(1)
        other.data.fill_(1)
        assert pool.stats().live_blocks == 4
        with pytest.raises(RuntimeError, match="out of bounds"):
            taker.as_strided((2000,), (1,))
        del taker, other
        assert pool.stats().live_blocks == 2


def test_a_dataset_in_a_pool_goes_through_a_dataloader_with_spawn(tmp_path):
    """Workers get the rows; what comes back are ordinary shared tensors; the pool ends up empty."""
    script = tmp_path / "loader.py"
    script.write_text("""
import torch
from torch.utils.data import DataLoader, TensorDataset
from torch_offload import HostPool

if __name__ == "__main__":
    pool = HostPool(1 << 20, huge_pages="never")
    rows = pool.empty((64, 8)).copy_(torch.arange(512.0).view(64, 8))
    loader = DataLoader(TensorDataset(rows), batch_size=16, num_workers=2, multiprocessing_context="spawn")
    seen = torch.cat([batch for (batch,) in loader])
    assert torch.equal(seen, torch.arange(512.0).view(64, 8))
    del rows, loader
    assert pool.stats().live_blocks == 0, pool.stats()
    print("done")
""")
    assert check_python(f"import runpy; runpy.run_path({str(script)!r}, run_name='__main__')") == "done\n"
