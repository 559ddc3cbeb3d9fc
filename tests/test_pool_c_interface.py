# SPDX-License-Identifier: Apache-2.0
"""The C functions of liboffload.so serve from the same default pool as torch_offload.init."""

import ctypes
import threading
from ctypes import POINTER, byref, c_char_p, c_int, c_int32, c_ssize_t, c_uint32, c_uint64, c_void_p
from pathlib import Path

import pytest
import torch
from pool_support import MIB

import torch_offload

VALUE, INDEX, MEMORY, STATE, POINTER_ERROR = -1, -2, -3, -4, -5
NO_DEVICE = -1


class Config(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_uint64),
        ("capacity", c_uint64),
        ("alignment", c_uint64),
        ("device", c_int32),
        ("huge_pages", c_int32),
        ("numa_node", c_int32),
        ("prefault_threads", c_int32),
        ("flags", c_uint32),
        ("reserved", c_uint32),
        ("name", c_char_p),
    ]


@pytest.fixture(scope="module")
def library():
    library = ctypes.CDLL(str(Path(torch_offload.__file__).with_name("liboffload.so")))
    signatures = {
        "offload_init": (c_int32, [POINTER(Config)]),
        "offload_uninit": (c_int32, []),
        "offload_malloc": (c_int32, [c_uint64, c_uint64, POINTER(c_void_p)]),
        "offload_free": (c_int32, [c_void_p]),
        "offload_last_error": (c_char_p, []),
        "offload_alloc_fn": (c_void_p, [c_ssize_t, c_int, c_void_p]),
        "offload_free_fn": (None, [c_void_p, c_ssize_t, c_int, c_void_p]),
    }
    for name, (result, arguments) in signatures.items():
        getattr(library, name).restype = result
        getattr(library, name).argtypes = arguments
    return library


@pytest.fixture
def pool(library):
    torch_offload.uninit()
    torch_offload.init(MIB, huge_pages="never")
    yield torch_offload.default_pool()
    torch_offload.uninit()


def malloc(library, size, alignment=0):
    block = c_void_p(1)
    code = library.offload_malloc(size, alignment, byref(block))
    return block.value if code == 0 else code


def last_error(library):
    return library.offload_last_error().decode()


def test_c_and_python_share_one_pool(library, pool):
    block = malloc(library, 1000)
    tensor = torch_offload.empty(1000, dtype=torch.uint8).fill_(1)
    assert pool.stats().live_blocks == 2
    assert abs(tensor.data_ptr() - block) >= 1000
    ctypes.memset(block, 2, 1000)
    assert tensor.sum() == 1000
    assert library.offload_free(block) == 0
    assert pool.stats().live_blocks == 1


def test_init_from_c_is_seen_from_python_and_counts_as_the_first_call(library):
    torch_offload.uninit()
    config = Config(ctypes.sizeof(Config), MIB, 0, NO_DEVICE, 2, -1, 0, 0, 0, None)
    assert library.offload_init(byref(config)) == 0
    try:
        assert torch_offload.is_initialized()
        torch_offload.init(MIB, huge_pages="never")
        with pytest.raises(RuntimeError, match="call uninit first"):
            torch_offload.init(2 * MIB, huge_pages="never")
        tensor = torch_offload.empty(10).fill_(1)
        config.capacity = 2 * MIB
        assert library.offload_init(byref(config)) == STATE
    finally:
        assert library.offload_uninit() == 0
    assert not torch_offload.is_initialized()
    assert tensor.sum() == 10


def test_wrong_frees_are_counted_reported_and_change_nothing(library, pool):
    """Twice, into a block, of another allocator, of a tensor, of memory that is in use again."""
    tensor = torch_offload.empty(1000, dtype=torch.uint8).fill_(3)
    block, gone = malloc(library, 256), malloc(library, 256)
    assert library.offload_free(gone) == 0
    ordinary = ctypes.create_string_buffer(64)
    before = pool.stats()
    blocks = pool.blocks()
    wrong = {
        gone: "free memory",
        block + 16: "inside of one",
        ctypes.addressof(ordinary): "expected a block of offload_malloc",
        tensor.data_ptr(): "expected a block of offload_malloc",
        tensor.data_ptr() + 64: "inside of one",
    }
    for address, words in wrong.items():
        assert library.offload_free(address) == POINTER_ERROR
        assert words in last_error(library)
        library.offload_free_fn(address, 256, NO_DEVICE, None)  # reports nothing, and must not do anything either
    stats = pool.stats()
    assert (stats.double_frees, stats.foreign_frees) == (2, 8)
    assert (stats.used, stats.live_blocks, stats.frees) == (before.used, before.live_blocks, before.frees)
    assert pool.blocks() == blocks
    assert library.offload_free(None) == 0
    assert (tensor == 3).all()
    # The freed block belongs to somebody else now: a late second free of it must not take it away.
    owner = torch_offload.empty(256, dtype=torch.uint8).fill_(4)
    assert owner.data_ptr() == gone
    assert library.offload_free(gone) == POINTER_ERROR
    assert torch_offload.empty(256, dtype=torch.uint8).fill_(5).data_ptr() != gone
    assert (owner == 4).all()
    assert library.offload_free(block) == 0


def test_blocks_of_an_earlier_pool_go_back_to_that_pool(library, pool):
    """A block is freed after uninit, and while a later pool exists: by the pool that made it."""
    block = malloc(library, 1000)
    ctypes.memset(block, 7, 1000)
    torch_offload.uninit()
    assert malloc(library, 1) == STATE
    assert "not initialized" in last_error(library)
    assert ctypes.string_at(block, 1000) == b"\7" * 1000
    torch_offload.init(2 * MIB, huge_pages="never")
    later = torch_offload.default_pool()
    assert library.offload_free(block) == 0
    assert library.offload_free(block) == POINTER_ERROR
    assert (pool.stats().closed, pool.stats().frees, pool.stats().double_frees) == (True, 1, 1)
    assert (later.stats().frees, later.stats().foreign_frees) == (0, 0)
    torch_offload.uninit()


def test_a_block_keeps_its_pool_and_a_free_after_that_finds_nobody(library):
    torch_offload.init(MIB, huge_pages="never")
    block = malloc(library, 1000)
    torch_offload.uninit()
    assert library.offload_free(block) == 0  # the pool ends here
    assert library.offload_free(block) == STATE


def test_the_pluggable_allocator_functions(library, pool):
    """Past the capacity, size 0, negative sizes, another device, an unknown pointer: NULL and a message, no abort."""
    blocks = [library.offload_alloc_fn(200 << 10, NO_DEVICE, None) for _ in range(6)]
    assert blocks[5] is None
    for number in (200 << 10, MIB - (1000 << 10)):
        assert f" {number} bytes" in last_error(library)
    assert all(block % 512 == 0 for block in blocks[:5])
    nothing = library.offload_alloc_fn(0, NO_DEVICE, None)
    assert nothing
    for size, device, words in ((-1, NO_DEVICE, "size"), (1, 0, "device"), (1, 255, "device"), (1, 256 - 1, "device")):
        assert library.offload_alloc_fn(size, device, None) is None
        assert words in last_error(library)
    library.offload_free_fn(blocks[0], 200 << 10, 0, None)  # of the wrong device: refused
    assert pool.stats().live_blocks == 6
    for block in blocks[:5]:
        library.offload_free_fn(block, 1, NO_DEVICE, None)  # the size is not taken from the caller
    library.offload_free_fn(nothing, 0, NO_DEVICE, None)
    library.offload_free_fn(None, 0, NO_DEVICE, None)
    stats = pool.stats()
    assert (stats.used, stats.live_blocks, stats.allocations, stats.frees) == (0, 0, 6, 6)
    assert library.offload_alloc_fn(MIB, NO_DEVICE, None)


def test_allocator_functions_in_other_threads_while_python_allocates(library, pool):
    failures = []

    def work(mark):
        for _ in range(300):
            block = library.offload_alloc_fn(1000, NO_DEVICE, None)
            tensor = torch_offload.empty(1000, dtype=torch.uint8).fill_(mark)
            ctypes.memset(block, mark, 1000)
            if not (tensor == mark).all() or ctypes.string_at(block, 1000) != bytes([mark]) * 1000:
                failures.append(mark)
            library.offload_free_fn(block, 1000, NO_DEVICE, None)

    threads = [threading.Thread(target=work, args=(mark,)) for mark in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures
    stats = pool.stats()
    assert (stats.used, stats.allocations, stats.frees) == (0, 4800, 4800)


def test_full_and_sizes_that_wrap(library, pool):
    for size in (MIB + 1, 2**63, 2**64 - 1, 2**64 - 63):
        assert malloc(library, size) == MEMORY
        assert f"asked for {size} bytes" in last_error(library)
    for alignment in (3, 8, 2**40):
        assert malloc(library, 1, alignment) == VALUE
    assert pool.stats().allocations == 0
