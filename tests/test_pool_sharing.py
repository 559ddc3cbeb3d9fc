# SPDX-License-Identifier: Apache-2.0
"""One pool, several processes: the same bytes without a copy, and nothing left when all have ended."""

import copy
import dataclasses
import os
import pickle
import signal
import subprocess
import sys
import time

import pytest
import torch
from pool_support import MIB, PRELUDE, guarded_block, plain_pool, processes_that_map

import torch_offload
from torch_offload import HostPool


@pytest.fixture
def pool():
    return plain_pool(shared=True)


class Peer:
    """Another process, which runs what it is sent and answers with the value of `answer`."""

    def __init__(self, name=""):
        code = PRELUDE + "import pickle\nscope = dict(globals())\nwhile True:\n"
        code += "    code, values = pickle.load(sys.stdin.buffer)\n    scope.update(values)\n    exec(code, scope)\n"
        code += "    pickle.dump(scope.get('answer'), sys.stdout.buffer)\n    sys.stdout.buffer.flush()\n"
        self.process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def run(self, code, **values):
        pickle.dump((code, values), self.process.stdin)
        self.process.stdin.flush()
        return pickle.load(self.process.stdout)

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(30)
        self.process.stdin.close()
        self.process.stdout.close()


@pytest.fixture
def peers():
    started = [Peer(), Peer()]
    yield started
    for peer in started:
        peer.kill()


def test_another_process_reads_and_writes_the_same_bytes(pool, peers):
    """Tensor-parallel ranks that share one latent cache: strided views, every dtype, both directions."""
    cache = pool.empty((2, 64, 576), dtype=torch.bfloat16).copy_(torch.randn(2, 64, 576))
    views = [cache, cache[1], cache[0, :, 512:], cache[:, ::7].transpose(0, 2), cache[0, 0, 0], cache[:, 5:5]]
    metas = [pool.export(view) for view in views]
    code = "pool = HostPool.attach(handle); tensors = [pool.import_(m) for m in metas]\n"
    code += "answer = [(t.clone(), t.stride()) for t in tensors]"
    for peer in peers:
        received = peer.run(code, handle=pool.share(), metas=metas)
        for view, (values, strides) in zip(views, received, strict=True):
            assert torch.equal(values, view)
            assert strides == view.stride()
    peers[0].run("tensors[1][7] = 42; tensors[4].fill_(-1)")
    assert (cache[1, 7] == 42).all()
    assert cache[0, 0, 0] == -1
    assert peers[1].run("answer = tensors[1][7].sum().item()") == cache[1, 7].sum().item()
    assert pool.stats().live_blocks == 1


def test_sparse_copy_out_of_a_shared_cache(pool, peers):
    rows = pool.empty((100, 32), dtype=torch.uint8).random_()
    index = torch.randperm(100)[:40]
    code = "rows = HostPool.attach(handle).import_(meta); answer = torch.empty((40, 32), dtype=torch.uint8)\n"
    code += "torch_offload.sparse_copy(answer, rows, src_index=index)"
    for peer in peers:
        assert torch.equal(peer.run(code, handle=pool.share(), meta=pool.export(rows), index=index), rows[index])


def test_only_the_owner_allocates(pool, peers):
    code = """
pool = HostPool.attach(handle)
answer = [pool.stats().attached, pool.stats().shared, pool.blocks()]
for call in (lambda: pool.empty(1), pool.share):
    try: call()
    except RuntimeError as error: answer.append(str(error))
"""
    attached, shared, blocks, no_empty, no_share = peers[0].run(code, handle=pool.share())
    assert (attached, shared, blocks) == (True, True, [])
    assert "only the process that owns a shared pool allocates" in no_empty
    assert "got an attached one" in no_share


def test_an_imported_tensor_keeps_the_memory(pool):
    """In one process: attach works there too, at another address."""
    tensor = pool.empty(100).fill_(3)
    other = HostPool.attach(pool.share())
    twin = other.import_(pool.export(tensor))
    assert twin.data_ptr() != tensor.data_ptr()
    again = pool.import_(other.export(twin[10:20]))
    assert again.data_ptr() == tensor[10:].data_ptr()
    assert pool.stats().live_blocks == 1
    other.close()
    del other
    twin.fill_(4)
    assert (tensor == 4).all()
    pool.close()
    del pool, tensor
    assert (again == 4).all()
    assert (twin == 4).all()


def test_an_imported_tensor_that_grows_leaves_the_shared_memory(pool):
    with guarded_block(pool) as (tensor,):
        tensor.fill_(3)
        twin = HostPool.attach(pool.share()).import_(pool.export(tensor))
        with pytest.warns(UserWarning, match="moved to ordinary memory: .*only the process that owns"):
            twin.resize_(2000)
        twin.fill_(4)
        again = pool.import_(pool.export(tensor))
        again.resize_(2000).fill_(5)  # the owner has a block for it
        assert pool.stats().live_blocks == 4
        assert (tensor == 3).all()


def test_handles_and_metadata_are_picklable_values(pool):
    meta = pool.export(pool.empty((3, 4), dtype=torch.float8_e4m3fn).T)
    for value in (pool.share(), meta):
        assert pickle.loads(pickle.dumps(value)) == copy.deepcopy(value) == value
    assert (meta.pool, meta.size, meta.stride, meta.dtype) == (pool.share(), (4, 3), (1, 4), torch.float8_e4m3fn)
    with pytest.raises(TypeError):
        pickle.dumps(pool)


def test_export_refuses_what_is_not_in_this_pool(pool):
    tensor = pool.empty(100)
    moved = pool.empty(100).share_memory_()
    other = plain_pool(shared=True).empty(100)
    complex_ = pool.empty(4, dtype=torch.complex64)
    for bad in (torch.empty(3), torch.empty(0), moved, other, tensor.clone(), tensor.to("meta"), tensor.to_sparse()):
        with pytest.raises(ValueError, match=r"HostPool\.export: expected"):
            pool.export(bad)
    for bad in (complex_.conj(), complex_.conj().imag):
        with pytest.raises(ValueError, match="lazy"):
            pool.export(bad)
    for bad in (None, 3, tensor.numpy()):
        with pytest.raises(TypeError, match="expected a Tensor"):
            pool.export(bad)
    private = plain_pool()
    with pytest.raises(RuntimeError, match="shared=True"):
        private.export(private.empty(1))


def test_import_refuses_metadata_of_another_pool_and_of_bytes_outside(pool):
    meta = pool.export(pool.empty((10, 10)))
    another = plain_pool(shared=True)
    with pytest.raises(ValueError, match="expected a tensor of pool 'host_pool' of process"):
        another.import_(meta)
    with pytest.raises(ValueError, match="expected a tensor of pool"):
        HostPool.attach(another.share()).import_(meta)
    for change in (
        {"offset": MIB},
        {"offset": 2**63},
        {"offset": 2},
        {"size": (10, MIB)},
        {"size": (10, -1)},
        {"stride": (2**62, 1)},
        {"stride": (-10, 1)},
        {"stride": (1,)},
        {"size": (2**40, 2**40)},
    ):
        with pytest.raises(ValueError, match=r"(view|HostPool\.import_): expected"):
            pool.import_(dataclasses.replace(meta, **change))
    for bad in (None, "meta", pool.share()):
        with pytest.raises(TypeError, match="TensorMeta"):
            pool.import_(bad)
    with pytest.raises(RuntimeError, match="shared=True"):
        plain_pool().import_(meta)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"pid": "1"}, TypeError, "PoolHandle: expected pid to be int, got '1'"),
        ({"fd": True}, TypeError, "PoolHandle: expected fd to be int, got True"),
        ({"fd": 2**31}, ValueError, r"PoolHandle: expected fd to be in \[0, 2147483648\), got 2147483648"),
        ({"length": -1}, ValueError, "PoolHandle: expected length to be in"),
        ({"name": b"x"}, TypeError, "PoolHandle: expected name to be str, got b'x'"),
    ],
)
def test_handles_hold_what_a_pool_puts_there(change, error, message):
    handle = plain_pool(shared=True).share()
    with pytest.raises(error, match=message):
        dataclasses.replace(handle, **change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pool": "host_pool"}, "expected pool to be PoolHandle, got 'host_pool'"),
        ({"offset": 1.0}, "expected offset to be int, got 1.0"),
        ({"size": [3]}, r"expected size to be tuple, got \[3\]"),
        ({"stride": (1, "1")}, "expected stride to hold int"),
        ({"dtype": "float32"}, "expected dtype to be dtype, got 'float32'"),
        ({"dtype": torch.qint8}, "expected dtype to be plain, got torch.qint8"),
    ],
)
def test_metadata_holds_what_export_puts_there(change, message):
    pool = plain_pool(shared=True)
    meta = pool.export(pool.empty(3))
    with pytest.raises(TypeError, match=message):
        dataclasses.replace(meta, **change)


def test_attach_refuses_what_is_not_there():
    pool = plain_pool(shared=True)
    handle = pool.share()
    for change in ({"pid": 2**22 + 1}, {"fd": 10**6}, {"inode": 1}, {"length": 2 * MIB}, {"capacity": 2 * MIB}):
        with pytest.raises(RuntimeError, match="HostPool: attach expected"):
            HostPool.attach(dataclasses.replace(handle, **change))
    with pytest.raises(TypeError, match="PoolHandle"):
        HostPool.attach(pool)
    with pytest.raises(RuntimeError, match="shared=True"):
        plain_pool().share()
    pool.close()
    with pytest.raises(RuntimeError, match="closed"):
        pool.share()
    del pool
    with pytest.raises(RuntimeError, match="HostPool: attach expected"):
        HostPool.attach(handle)


def test_the_default_pool_is_shared_too():
    torch_offload.init(MIB, huge_pages="never", shared=True)
    try:
        tensor = torch_offload.empty(100).fill_(6)
        owner = torch_offload.default_pool()
        assert (HostPool.attach(owner.share()).import_(owner.export(tensor)) == 6).all()
    finally:
        torch_offload.uninit()


@pytest.mark.parametrize("survivor_is_killed", [False, True])
def test_the_memory_outlives_a_killed_owner_and_goes_with_the_last_process(peers, survivor_is_killed):
    owner, other = peers
    name = f"pool_of_{os.getpid()}_{survivor_is_killed}"
    code = "pool = HostPool(4 << 20, huge_pages='never', shared=True, name=name)\n"
    code += "tensor = pool.empty(1 << 18, dtype=torch.int32).copy_(torch.arange(1 << 18))\n"
    code += "answer = pool.share(), pool.export(tensor)"
    handle, meta = owner.run(code, name=name)
    check = "assert torch.equal(tensor, torch.arange(1 << 18, dtype=torch.int32)); tensor[:10] += 0; answer = True"
    assert other.run("pool = HostPool.attach(handle); tensor = pool.import_(meta)\n" + check, handle=handle, meta=meta)
    owner.kill()
    assert other.run(check)
    with pytest.raises(RuntimeError, match="attach expected the owner of pool"):
        HostPool.attach(handle)
    assert processes_that_map(name) == {other.process.pid}
    if survivor_is_killed:
        other.kill()
    else:
        other.run("del tensor, pool; gc.collect()")
    deadline = time.monotonic() + 10
    while processes_that_map(name) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not processes_that_map(name)


def test_spawned_workers_get_tensors_through_a_queue(tmp_path):
    script = tmp_path / "ranks.py"
    script.write_text("""
import multiprocessing, torch
from torch_offload import HostPool

def rank(number, handle, meta, queue):
    cache = HostPool.attach(handle).import_(meta)
    cache[number] = number
    queue.put(int(cache[2].sum()))

if __name__ == "__main__":
    pool = HostPool(1 << 20, huge_pages="never", shared=True)
    cache = pool.empty((3, 100), dtype=torch.int32).fill_(5)
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    ranks = [context.Process(target=rank, args=(i, pool.share(), pool.export(cache), queue)) for i in range(2)]
    for process in ranks: process.start()
    assert [queue.get(timeout=60) for _ in ranks] == [500, 500]
    for process in ranks: process.join()
    assert [process.exitcode for process in ranks] == [0, 0]
    assert cache[:, 0].tolist() == [0, 1, 5]
""")
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
