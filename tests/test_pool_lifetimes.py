# SPDX-License-Identifier: Apache-2.0
"""A block goes back with the last reference to its memory, whichever that is."""

import gc
import threading
import weakref

import numpy
import pytest
import torch
from pool_support import MIB, plain_pool

import torch_offload


def numpy_array(tensor):
    return tensor.numpy()


def numpy_of_bf16(tensor):
    return tensor.view(torch.bfloat16)[3:5].view(torch.uint8).numpy()[1:]


def memory_view(tensor):
    return memoryview(tensor.numpy())[2:]


def capsule(tensor):
    return torch.utils.dlpack.to_dlpack(tensor)


HOLDERS = {
    "tensor": lambda tensor: tensor,
    "slice": lambda tensor: tensor[10:20:3],
    "empty slice": lambda tensor: tensor[5:5],
    "view of another dtype": lambda tensor: tensor.view(torch.int64),
    "transposed": lambda tensor: tensor.view(10, 100).T,
    "expanded": lambda tensor: tensor[0].expand(7),
    "detached": lambda tensor: tensor.detach(),
    "alias": lambda tensor: torch.ops.aten.alias(tensor),
    "Parameter": lambda tensor: torch.nn.Parameter(tensor, requires_grad=False),
    "storage": lambda tensor: tensor.untyped_storage(),
    "storage of a view": lambda tensor: tensor.view(torch.int16)[5:].untyped_storage(),
    "set_": lambda tensor: torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage()),
    "numpy": numpy_array,
    "numpy of a view of a view": numpy_of_bf16,
    "tensor of numpy": lambda tensor: torch.from_numpy(tensor.numpy()[1:]),
    "memoryview": memory_view,
    "DLPack capsule": capsule,
    "DLPack tensor": lambda tensor: torch.from_dlpack(capsule(tensor)),
    "numpy by DLPack": lambda tensor: numpy.from_dlpack(tensor),
    "frombuffer": lambda tensor: torch.frombuffer(memoryview(tensor.numpy()), dtype=torch.uint8),
    "bound method": lambda tensor: tensor.sum,
    "closure": lambda tensor: lambda: tensor,
    "saved for backward": lambda tensor: torch.ones(1, requires_grad=True) * tensor.view(torch.float64),
}


@pytest.mark.parametrize("holder", HOLDERS)
def test_the_last_reference_keeps_the_block_and_its_end_gives_it_back(holder):
    pool = plain_pool()
    tensor = pool.empty(1000, dtype=torch.uint8).zero_()
    held = HOLDERS[holder](tensor)
    del tensor
    assert pool.stats().live_blocks == 1
    other = pool.empty(1000, dtype=torch.uint8)  # does not get the same bytes
    assert pool.stats().live_blocks == 2
    del held, other
    assert (pool.stats().live_blocks, pool.stats().used) == (0, 0)


def test_a_reference_cycle_gives_the_block_back_when_it_is_collected():
    pool = plain_pool()
    gc.collect()
    gc.disable()
    try:
        tensor = pool.empty(1000)
        cycle = {"tensor": tensor}
        cycle["self"] = cycle
        tensor.cycle = cycle  # through the tensor's own dictionary too
        del tensor, cycle
        assert pool.stats().live_blocks == 1
        gc.collect()
        assert pool.stats().live_blocks == 0
    finally:
        gc.enable()


def test_an_exception_that_is_dropped_gives_the_block_back():
    pool = plain_pool()

    def fails():
        tensor = pool.empty(1000)
        raise ValueError(str(tensor.shape))

    with pytest.raises(ValueError):
        fails()
    gc.collect()
    assert pool.stats().live_blocks == 0


def test_an_exception_that_is_kept_keeps_the_block_until_its_traceback_goes():
    pool = plain_pool()

    def fails():
        tensor = pool.empty(1000)
        raise ValueError(str(tensor.shape))

    try:
        fails()
    except ValueError as error:
        kept = error
    assert pool.stats().live_blocks == 1
    kept.__traceback__ = None
    assert pool.stats().live_blocks == 0


def test_a_block_is_freed_inside_a_finaliser_of_another_block():
    pool = plain_pool()
    inner = [pool.empty(100) for _ in range(10)]
    outer = pool.empty(100)
    weakref.finalize(outer, inner.clear)
    assert pool.stats().live_blocks == 11
    del outer
    assert pool.stats().live_blocks == 0


def test_a_finaliser_may_use_the_pool():
    pool = plain_pool()
    seen = []
    tensor = pool.empty(100)
    weakref.finalize(tensor, lambda: seen.append((pool.stats().capacity, pool.empty(200).numel())))
    del tensor
    assert seen == [(MIB, 200)]


def test_the_last_reference_may_go_in_another_thread():
    pool = plain_pool()
    box = [pool.empty(1000)]
    thread = threading.Thread(target=box.clear)
    thread.start()
    thread.join()
    assert pool.stats().live_blocks == 0


def test_tensors_keep_their_pool():
    tensor = plain_pool().empty(MIB // 4, dtype=torch.int32)
    torch.arange(tensor.numel(), out=tensor)
    gc.collect()
    assert torch.equal(tensor, torch.arange(MIB // 4, dtype=torch.int32))


def test_a_freed_block_is_handed_out_again_and_not_before():
    pool = plain_pool(64 << 10)
    first = pool.empty(64 << 10, dtype=torch.uint8)
    address = first.data_ptr()
    view = first[-1:]
    del first
    with pytest.raises(torch.OutOfMemoryError):
        pool.empty(1)
    del view
    assert pool.empty(64 << 10, dtype=torch.uint8).data_ptr() == address


def test_sparse_copy_keeps_nothing():
    pool = plain_pool()
    rows = pool.empty((100, 16), dtype=torch.uint8).random_()
    index = pool.empty(10, dtype=torch.int64).copy_(torch.randperm(100)[:10])
    out = pool.empty((10, 16), dtype=torch.uint8)
    torch_offload.sparse_copy(out, rows, src_index=index)
    assert torch.equal(out, rows[index])
    del rows, index, out
    assert pool.stats().live_blocks == 0
