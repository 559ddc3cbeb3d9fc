# SPDX-License-Identifier: Apache-2.0
"""One pool, several processes: attached ones, forked ones, killed ones."""

import contextlib
import glob
import os
import pickle
import subprocess
import sys
import threading
import time
import uuid
from dataclasses import replace

import pytest
import torch
from workers import Worker, in_fork

import torch_offload
from torch_offload import HostPool


@pytest.fixture(scope="module")
def workers():
    both = [Worker(), Worker()]
    yield both
    assert [worker.end() for worker in both] == [0, 0]


@pytest.fixture
def shared_pool():
    with HostPool(1 << 20, shared=True) as pool:
        yield pool


def attach(state, handle):
    state["pool"] = HostPool.attach(handle)
    return state["pool"].stats()


def bytes_of(state, meta):
    return state["pool"].import_(meta).contiguous().view(-1).view(torch.uint8).numpy().tobytes()


def fill(state, meta, value):
    state["pool"].import_(meta).fill_(value)


def allocate(state):
    state["pool"].empty(1)


def drop(state):
    state.clear()


# --- attach, export, import


def test_both_sides_see_the_same_bytes(workers, shared_pool):
    t = shared_pool.empty((8, 16), dtype=torch.bfloat16).copy_(torch.randn(8, 16))
    handle = pickle.loads(pickle.dumps(shared_pool.share()))
    for number, worker in enumerate(workers):
        stats = worker.call(attach, handle)
        assert (stats.attached, stats.shared, stats.capacity) == (True, True, 1 << 20)
        for part in (t, t[3], t[:, 4:9], t.t(), t[::2, ::3], t[0, 0], t.view(torch.uint8)):
            expected = part.contiguous().view(-1).view(torch.uint8).numpy().tobytes()
            assert worker.call(bytes_of, shared_pool.export(part)) == expected
        worker.call(fill, shared_pool.export(t[:, 1]), number)
        assert t[:, 1].tolist() == [number] * 8
        t[0, 0] = number + 5
        assert worker.call(bytes_of, shared_pool.export(t[0, :1])) == bytes(t[0, :1].view(torch.uint8).tolist())
        worker.call(drop)
    assert shared_pool.stats().live_blocks == 1


def test_only_the_owner_allocates(workers, shared_pool):
    workers[0].call(attach, shared_pool.share())
    with pytest.raises(RuntimeError, match="only the process that owns"):
        workers[0].call(allocate)
    workers[0].call(drop)
    shared_pool.empty(1)


def test_import_in_the_exporting_process_is_no_copy(shared_pool):
    t = shared_pool.empty((3, 5), dtype=torch.float32)
    again = shared_pool.import_(shared_pool.export(t[1:, 2:]))
    assert (again.data_ptr(), again.shape, again.stride()) == (t[1:, 2:].data_ptr(), t[1:, 2:].shape, t.stride())
    assert shared_pool.stats().live_blocks == 1


@pytest.mark.parametrize("size", [(0,), (0, 3), (4, 0), ()])
def test_tensors_without_extent(shared_pool, size):
    t = shared_pool.empty(size)
    again = HostPool.attach(shared_pool.share()).import_(shared_pool.export(t))
    assert (again.shape, again.stride(), again.dtype) == (t.shape, t.stride(), t.dtype)


def test_an_expanded_tensor(shared_pool):
    t = shared_pool.empty((3, 1)).fill_(7).expand(3, 1000)
    assert torch.equal(shared_pool.import_(shared_pool.export(t)), t)


def test_an_attached_process_exports_too(shared_pool):
    t = shared_pool.empty(10).fill_(1)
    attached = HostPool.attach(shared_pool.share())
    part = attached.import_(shared_pool.export(t))[2:5]
    assert shared_pool.import_(attached.export(part)).data_ptr() == t[2:].data_ptr()


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.empty(4),
        lambda: torch.empty(0),
        lambda: HostPool(1 << 16, shared=True).empty(4),
        lambda: torch.empty(4).to_sparse(),
        lambda: torch.empty(4, device="meta"),
    ],
)
def test_export_refuses_other_memory(shared_pool, make):
    with pytest.raises(ValueError, match=r"HostPool.export: expected a"):
        shared_pool.export(make())


def test_export_refuses_lazy_conjugates(shared_pool):
    t = shared_pool.empty(4, dtype=torch.complex64)
    for lazy in (t.conj(), t.conj().imag):
        with pytest.raises(ValueError, match="lazy conjugation"):
            shared_pool.export(lazy)


def test_import_refuses_other_pools(shared_pool):
    other = HostPool(1 << 20, shared=True)
    meta = other.export(other.empty(4))
    with pytest.raises(ValueError, match="expected a tensor of pool"):
        shared_pool.import_(meta)
    with pytest.raises(TypeError, match="TensorMeta"):
        shared_pool.import_(other.share())


@pytest.mark.parametrize(
    "change",
    [
        {"offset": -4},
        {"offset": (1 << 20) - 12},
        {"offset": 2**64},
        {"size": (2**18 + 1,)},
        {"size": (-1,)},
        {"stride": (-1,)},
        {"stride": (2**63,)},
        {"stride": (2**62,)},
        {"size": (2, 2)},
        {"size": (2**40, 2**40), "stride": (0, 0)},
    ],
)
def test_import_refuses_what_is_out_of_range(shared_pool, change):
    meta = shared_pool.export(shared_pool.empty(4))
    with pytest.raises(ValueError, match="expected"):
        shared_pool.import_(replace(meta, **change))


def test_the_last_bytes_can_be_imported(shared_pool):
    meta = shared_pool.export(shared_pool.empty(4))
    shared_pool.import_(replace(meta, offset=(1 << 20) - 16)).fill_(1)


def test_a_private_pool_has_no_handle():
    pool = HostPool(1 << 16)
    t = pool.empty(4)
    for refused in (pool.share, lambda: pool.export(t)):
        with pytest.raises(RuntimeError, match="shared=True"):
            refused()


# --- ends


def own(state, name):
    state["pool"] = HostPool(1 << 20, shared=True, name=name)
    state["tensor"] = state["pool"].empty(1000, dtype=torch.int32).copy_(torch.arange(1000))
    return state["pool"].share(), state["pool"].export(state["tensor"])


def close_pool(state):
    state["pool"].close()


def holders_of(name):
    """Processes that have a memfd of that name open or mapped."""
    found = set()
    for process in glob.glob("/proc/[0-9]*"):
        holds = ""
        with contextlib.suppress(OSError), open(f"{process}/maps") as maps:
            holds += maps.read()
        for link in glob.glob(f"{process}/fd/*"):
            with contextlib.suppress(OSError):
                holds += os.readlink(link)
        if name in holds:
            found.add(int(os.path.basename(process)))
    return found


def test_the_owner_is_killed():
    name = f"pool-{uuid.uuid4().hex}"
    owner = Worker()
    handle, meta = owner.call(own, name)
    attached = HostPool.attach(handle)
    t = attached.import_(meta)
    owner.kill()
    assert t.tolist() == list(range(1000))
    t.fill_(3)
    assert attached.import_(meta).eq(3).all()
    with pytest.raises(RuntimeError, match="expected the owner"):
        HostPool.attach(handle)
    assert holders_of(name) == {os.getpid()}
    del attached
    assert t.eq(3).all()
    del t
    assert holders_of(name) == set()


def test_the_owner_closes(workers):
    name = f"pool-{uuid.uuid4().hex}"
    handle, meta = workers[0].call(own, name)
    attached = HostPool.attach(handle)
    t = attached.import_(meta)
    workers[0].call(close_pool)
    assert t.tolist() == list(range(1000))
    with pytest.raises(RuntimeError, match="closed"):
        workers[0].call(allocate)
    workers[0].call(drop)
    with pytest.raises(RuntimeError, match="attach expected"):
        HostPool.attach(handle)
    assert t.tolist() == list(range(1000))
    assert holders_of(name) == {os.getpid()}
    del t, attached
    assert holders_of(name) == set()


def test_a_handle_of_another_file_is_refused(shared_pool):
    handle = shared_pool.share()
    for change in ({"inode": handle.inode + 1}, {"length": handle.length * 2}, {"capacity": handle.length + 1}):
        with pytest.raises(RuntimeError, match="attach expected"):
            HostPool.attach(replace(handle, **change))


# --- ranks that share one cache


def gather(state, handle, metas, tokens):
    pool = HostPool.attach(handle)
    sources = [pool.import_(meta) for meta in metas]
    index = torch.tensor(tokens)
    rows = [torch.zeros(len(tokens), source.shape[1], dtype=source.dtype) for source in sources]
    torch_offload.sparse_copy(rows, sources, src_index=index)
    return [part.view(torch.uint8).numpy().tobytes() for part in rows]


def test_ranks_gather_from_one_latent_cache(workers):
    torch.manual_seed(0)
    with HostPool(8 << 20, shared=True) as pool:
        cache = [pool.empty((4096, width), dtype=torch.bfloat16).normal_() for width in (512, 64)]
        metas = [pool.export(part) for part in cache]
        for _ in range(3):
            tokens = [torch.randint(4096, (256,)) for _ in workers]
            for worker, chosen in zip(workers, tokens, strict=True):
                worker.start(gather, pool.share(), metas, chosen.tolist())
            for worker, chosen in zip(workers, tokens, strict=True):
                expected = [part[chosen].view(torch.uint8).numpy().tobytes() for part in cache]
                assert worker.result() == expected
            for part in cache:
                part[::2] += 1
        assert pool.stats().live_blocks == 2


# --- fork


def message_of(call):
    try:
        call()
    except RuntimeError as error:
        return str(error)
    return None


@pytest.mark.parametrize("shared", [False, True])
def test_a_forked_child_reads_and_changes_nothing(shared):
    pool = HostPool(1 << 20, shared=shared)
    kept = pool.empty(100, dtype=torch.int64).copy_(torch.arange(100))
    dropped = [pool.empty(50), pool.empty(0)]
    before = pool.stats()

    def child():
        seen = kept.tolist()
        message = message_of(lambda: pool.empty(1))
        dropped.clear()
        pool.close()
        return seen, message, message_of(lambda: pool.empty(1))

    seen, message, after_close = in_fork(child)
    assert seen == list(range(100))
    assert "fork" in message and "fork" in after_close
    assert pool.stats() == before
    assert kept.tolist() == list(range(100))
    dropped.clear()
    assert pool.stats().live_blocks == 1


def test_a_forked_child_writes_to_its_own_copy_of_private_memory():
    pool = HostPool(1 << 20)
    t = pool.empty(10).zero_()
    assert in_fork(lambda: t.fill_(1).tolist()) == [1] * 10
    assert t.tolist() == [0] * 10


def test_a_forked_child_may_make_its_own_pool():
    pool = HostPool(1 << 20)
    t = pool.empty(10).fill_(2)

    def child():
        with HostPool(1 << 20) as own:
            return own.empty(10).copy_(t).tolist(), own.stats().live_blocks

    assert in_fork(child) == ([2] * 10, 0)


def test_fork_while_other_threads_use_the_pool():
    pool = HostPool(1 << 22)
    kept = pool.empty(1000, dtype=torch.int32).fill_(7)
    stop = threading.Event()

    def churn(seed):
        live = []
        while not stop.is_set():
            live.append(pool.empty(64 + seed, dtype=torch.uint8))
            pool.stats()
            if len(live) > 50:
                live.clear()

    def child():
        return kept.eq(7).all().item(), message_of(lambda: pool.empty(1)), message_of(pool.stats)

    threads = [threading.Thread(target=churn, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(20):
            right, message, stats_message = in_fork(child)
            assert right and "fork" in message and "fork" in stats_message
            time.sleep(0.002)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert pool.stats().live_blocks == 1


EXIT_OF_A_CHILD = """
import os, sys, torch, torch_offload
torch_offload.init(1 << 20)
pool = torch_offload.HostPool(1 << 20, shared=True)
live = [pool.empty(100), torch_offload.empty(100), pool.empty(0)]
before = pool.stats()
if os.fork() == 0:
    sys.exit(7)
assert os.waitstatus_to_exitcode(os.wait()[1]) == 7
assert pool.stats() == before
live.append(pool.empty(100))
live.append(torch_offload.empty(100))
del live
assert pool.stats().used == 0
sys.exit(3)
"""


def test_a_child_that_exits_in_the_ordinary_way():
    result = subprocess.run([sys.executable, "-c", EXIT_OF_A_CHILD], capture_output=True, text=True, timeout=60)
    assert (result.returncode, result.stderr) == (3, "")
