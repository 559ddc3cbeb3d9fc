# SPDX-License-Identifier: Apache-2.0
"""Copies and snapshots of the C interface, called from threads of Python, and the end of the pool under them."""

import ctypes
import threading
from ctypes import POINTER, byref, c_int32, c_int64, c_uint64, c_void_p
from pathlib import Path

import pytest
import torch
from pool_support import MIB

import torch_offload

OK, STATE = 0, -4
THREADS, ROWS, ROW_BYTES = 4, 256, 1152
SECONDS = 60  # far more than needed


class Component(ctypes.Structure):
    _fields_ = [
        ("src", c_void_p),
        ("dst", c_void_p),
        *((name, c_int64) for name in ("src_rows", "dst_rows", "src_stride", "dst_stride", "row_bytes")),
    ]


class Copy(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_uint64),
        ("component_size", c_uint64),
        ("components", POINTER(Component)),
        ("num_components", c_int64),
        ("dst_index", c_void_p),
        ("src_index", c_void_p),
        ("n", c_int64),
        ("threads", c_int32),
        ("reserved", c_int32),
    ]


SIZES = (
    "capacity used free largest_free peak requested live_blocks allocations frees double_frees foreign_frees page_size"
)
FLAGS = "numa_node locked device_registered reserved"


class Stats(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_uint64),
        *((name, c_uint64) for name in SIZES.split()),
        *((name, c_int32) for name in FLAGS.split()),
    ]


@pytest.fixture(scope="module")
def library():
    library = ctypes.CDLL(str(Path(torch_offload.__file__).with_name("liboffload.so")))
    library.offload_sparse_copy.argtypes = [POINTER(Copy)]
    library.offload_stats.argtypes = [POINTER(Stats)]
    library.offload_malloc.argtypes = [c_uint64, c_uint64, POINTER(c_void_p)]
    library.offload_free.argtypes = [c_void_p]
    return library


@pytest.fixture(autouse=True)
def pool():
    torch_offload.uninit()
    torch_offload.init(4 * MIB, huge_pages="never")
    yield torch_offload.default_pool()
    torch_offload.uninit()


def stats_of(library):
    stats = Stats(ctypes.sizeof(Stats))
    assert library.offload_stats(byref(stats)) == OK
    return stats


def copy_of(target, source, index=None):
    """The call that copies the rows of one tensor to those of another; the caller keeps the tensors."""
    count, row_bytes = source.shape
    component = Component(source.data_ptr(), target.data_ptr(), count, count, row_bytes, row_bytes, row_bytes)
    where = None if index is None else index.data_ptr()
    return Copy(ctypes.sizeof(Copy), ctypes.sizeof(Component), ctypes.pointer(component), 1, where, where, count, 0, 0)


def test_stats_of_c_are_those_of_python(library, pool):
    tensor = torch_offload.empty(1001, dtype=torch.uint8)
    block = c_void_p()
    assert library.offload_malloc(300, 4096, byref(block)) == OK
    assert library.offload_free(block.value + 1) != OK
    seen, expected = stats_of(library), pool.stats()
    for name in SIZES.split():
        assert getattr(seen, name) == getattr(expected, name), name
    assert (seen.numa_node, seen.locked, seen.device_registered) == (-1, 0, 0)
    assert (seen.live_blocks, seen.requested, seen.foreign_frees) == (2, 1301, 1)
    assert library.offload_free(block) == OK
    del tensor
    assert stats_of(library).used == 0


def test_snapshots_of_c_add_up_while_threads_allocate(library, pool):
    done = threading.Event()
    wrong = []

    def poll():
        while not done.is_set():
            stats = stats_of(library)
            if stats.used + stats.free != stats.capacity or stats.allocations - stats.frees != stats.live_blocks:
                wrong.append({name: getattr(stats, name) for name in SIZES.split()})

    def allocate():
        block = c_void_p()
        for size in range(1, 2000):
            assert library.offload_malloc(size, 0, byref(block)) == OK
            assert library.offload_free(block) == OK

    poller = threading.Thread(target=poll)
    workers = [threading.Thread(target=allocate) for _ in range(THREADS)]
    for thread in (poller, *workers):
        thread.start()
    for thread in workers:
        thread.join(SECONDS)
    done.set()
    poller.join(SECONDS)
    assert not wrong
    stats = pool.stats()
    assert (stats.used, stats.allocations, stats.frees) == (0, THREADS * 1999, THREADS * 1999)


@pytest.mark.parametrize("end", ["uninit", "close"])
def test_the_pool_ends_while_threads_copy(library, pool, end):
    """Copies that have started finish, later ones are refused: every row is whole, and no other byte is written."""
    generator = torch.Generator().manual_seed(1)
    stop, all_copy = threading.Event(), threading.Barrier(THREADS + 1)
    outcomes = []

    def copy_until_refused(mark, index):
        source = torch_offload.empty((ROWS, ROW_BYTES), dtype=torch.uint8).fill_(mark)
        target = torch_offload.empty((ROWS, ROW_BYTES), dtype=torch.uint8).zero_()
        call = copy_of(target, source, index)
        code = library.offload_sparse_copy(byref(call))
        all_copy.wait(SECONDS)
        while code == OK and not stop.is_set():
            target.zero_()
            code = library.offload_sparse_copy(byref(call))
        # The refused call came right after zero_, and has written nothing.
        outcomes.append((code, source.unique().tolist() == [mark], target.count_nonzero().item()))

    threads = [
        threading.Thread(target=copy_until_refused, args=(mark, torch.randperm(ROWS, generator=generator)))
        for mark in range(1, THREADS + 1)
    ]
    for thread in threads:
        thread.start()
    all_copy.wait(SECONDS)
    if end == "close":
        pool.close()
    else:
        torch_offload.uninit()
    for thread in threads:
        thread.join(SECONDS)
        assert not thread.is_alive()
    stop.set()
    assert outcomes == [(STATE, True, 0)] * THREADS
    stats = pool.stats()
    assert (stats.closed, stats.used, stats.live_blocks) == (True, 0, 0)


def test_the_last_component_wins_where_destinations_share_bytes(library):
    rows, row_bytes = 512, 1152
    sources = [torch.full((rows, row_bytes), mark, dtype=torch.uint8) for mark in (1, 2)]
    for threads in (0, 1, 2, 4, 8):
        target = torch.zeros((rows + 1, row_bytes), dtype=torch.uint8)
        components = (Component * 2)(
            *(
                Component(source.data_ptr(), target[c:].data_ptr(), rows, rows, row_bytes, row_bytes, row_bytes)
                for c, source in enumerate(sources)
            )
        )
        call = Copy(ctypes.sizeof(Copy), ctypes.sizeof(Component), components, 2, None, None, rows, threads, 0)
        assert library.offload_sparse_copy(byref(call)) == OK
        assert (target[0] == 1).all() and (target[1:] == 2).all()


def test_the_last_error_is_that_of_its_thread(library):
    library.offload_last_error.restype = ctypes.c_char_p
    here, there, other = threading.Event(), threading.Event(), []

    def fail_otherwise():
        here.wait(SECONDS)
        library.offload_malloc(2**60, 0, byref(c_void_p()))
        other.append(library.offload_last_error())
        there.set()

    thread = threading.Thread(target=fail_otherwise)
    thread.start()
    library.offload_malloc(16, 3, byref(c_void_p()))
    mine = library.offload_last_error()
    here.set()
    there.wait(SECONDS)
    assert b"alignment" in mine and b"out of memory" in other[0]
    assert library.offload_last_error() == mine
    thread.join()


def test_a_name_in_another_encoding(library):
    torch_offload.uninit()
    library.offload_init.argtypes = [c_void_p]
    fields = [(name, c_uint64) for name in ("struct_size", "capacity", "alignment")]
    fields += [(name, c_int32) for name in ("device", "huge_pages", "numa_node", "prefault_threads", "flags", "rest")]
    config_type = type("Config", (ctypes.Structure,), {"_fields_": [*fields, ("name", ctypes.c_char_p)]})
    config = config_type(ctypes.sizeof(config_type), MIB, 0, -1, 2, -1, 0, 0, 0, b"pool\xe9")
    assert library.offload_init(byref(config)) == OK
    assert torch_offload.default_pool().name == "pool\ufffd"
    assert "pool" in repr(torch_offload.default_pool())
