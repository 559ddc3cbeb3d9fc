# SPDX-License-Identifier: Apache-2.0
"""The interpreter ends with tensors of a pool alive: the exit code is the one asked for, stderr is empty."""

from pathlib import Path

import pytest
from pool_support import check_python, run_python

START = """
import atexit, weakref
pool = HostPool(4 << 20, huge_pages="never")
torch_offload.init(4 << 20, huge_pages="never")
tensor = pool.empty((100, 10)).fill_(1)
default = torch_offload.empty(1000).fill_(2)
view, array, capsule = tensor[5:], tensor.numpy()[3:], torch.utils.dlpack.to_dlpack(tensor)
"""

ROWS = """
rows, copied = pool.empty((1000, 64), dtype=torch.uint8).fill_(1), pool.empty((1000, 64), dtype=torch.uint8)
index, going = torch.arange(1000), threading.Event()
"""
DAEMON = """
threading.Thread(target=copy, daemon=True).start()
assert going.wait(60)
"""
COPIES = f"""{ROWS}
def copy():
  while True: torch_offload.sparse_copy(copied, rows, index, index); going.set()
{DAEMON}"""
# With a status of its own: torch itself aborts when a daemon thread makes or drops a tensor while the interpreter ends.
COPIES_RANGES = f"""{ROWS}
lengths, count, status = torch.full((1000,), 64), torch.tensor([1000]), torch.empty(4, dtype=torch.int64)
sources, targets = ((torch.arange(1000) * 64 + t.data_ptr()) for t in (rows, copied))
def copy():
  while True: torch_offload.sparse_copy_ptrs(sources, targets, lengths, count, status=status); going.set()
{DAEMON}"""
# Whoever calls the C interface keeps what it copies: here for ever, as modules lose their globals while the call runs.
COPIES_IN_C = f"""{ROWS}
import ctypes
for kept in (rows, copied, index): ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))
sys.path.append({str(Path(__file__).parent)!r})
from test_pool_c_copies import copy_of
library = ctypes.CDLL(os.path.join(os.path.dirname(torch_offload.__file__), "liboffload.so"))
call = copy_of(copied, rows, index)
def copy():
  while library.offload_sparse_copy(ctypes.byref(call)) == 0: going.set()
{DAEMON}"""

ENDINGS = {
    "falling off the end with module globals": ("", 0),
    "pool deleted before its tensors": ("del pool; torch_offload.uninit()", 0),
    "tensors deleted before the pool": ("del tensor, view, array, capsule, default", 0),
    "a cycle of pool and tensors": (
        "tensor.me = [tensor, pool, view]; tensor.me.append(tensor.me); del tensor, pool",
        0,
    ),
    "a cycle with a finaliser": (
        "class Loop:\n  def __del__(self): self.t.fill_(3); self.p.stats(); self.p.close()\n"
        "loop = Loop(); loop.t, loop.p, loop.me = tensor, pool, loop",
        0,
    ),
    "attributes of modules": ("torch.kept = tensor; sys.kept = pool; torch_offload.kept = view; os.kept = default", 0),
    # Its thread must not drop tensors while the interpreter ends: torch 2.13 itself aborts then, for any tensor.
    "a daemon thread that polls, makes pools and keeps what it allocates": (
        "def run():\n  while True:\n"
        "    pool.stats(), pool.blocks(), HostPool(4096, huge_pages='never'), kept.append(pool.empty(0))\n"
        "kept = []; threading.Thread(target=run, daemon=True).start()",
        0,
    ),
    "a daemon thread that calls init and uninit": (
        "def run():\n  while True: torch_offload.uninit(); torch_offload.init(4096, huge_pages='never')\n"
        "threading.Thread(target=run, daemon=True).start()",
        0,
    ),
    "an ordinary thread that still runs": (
        "def run():\n  import time; time.sleep(0.3); assert pool.empty(100).fill_(1).sum() == 100\n"
        "threading.Thread(target=run).start()",
        0,
    ),
    "a thread's own variables": (
        "local = threading.local()\n"
        "def run():\n  local.t = pool.empty(9); local.event = threading.Event(); local.event.wait()\n"
        "threading.Thread(target=run, daemon=True).start()",
        0,
    ),
    "atexit uses and closes the pool": (
        "atexit.register(lambda: (pool.empty(5).fill_(1), pool.close(), pool.close(), torch_offload.uninit()))",
        0,
    ),
    "a finaliser at exit": ("weakref.finalize(torch, lambda t, p: (t.fill_(1), p.stats()), tensor, pool)", 0),
    "atexit makes the first pool": ("del pool, tensor; atexit.register(lambda: HostPool(1 << 20).empty(5))", 0),
    "a closed pool": ("pool.close(); torch_offload.uninit()", 0),
    "sys.exit(3)": ("sys.exit(3)", 3),
    "sys.exit(3) while a daemon thread copies rows": (COPIES + "sys.exit(3)", 3),
    "sys.exit(3) while a daemon thread copies ranges": (COPIES_RANGES + "sys.exit(3)", 3),
    "sys.exit(3) while a daemon thread copies rows in C": (COPIES_IN_C + "sys.exit(3)", 3),
    "os._exit(4) while a daemon thread copies rows": (COPIES + "os._exit(4)", 4),
    "atexit ends the pools while a daemon thread copies rows": (
        COPIES + "atexit.register(lambda: (pool.close(), torch_offload.uninit()))",
        0,
    ),
    "atexit ends the pools while a daemon thread copies rows in C": (
        COPIES_IN_C + "atexit.register(lambda: (pool.close(), torch_offload.uninit()))",
        0,
    ),
    "tensors made in atexit, after the pools were closed": (
        "def late():\n  global last\n  pool.close(); torch_offload.uninit(); last = HostPool(4096).empty(9)\n"
        "atexit.register(late); sys.exit(6)",
        6,
    ),
    "blocks of the C interface that nobody frees": (
        "import ctypes; lib = ctypes.CDLL(os.path.join(os.path.dirname(torch_offload.__file__), 'liboffload.so'))\n"
        "block = ctypes.c_void_p()\n"
        "assert lib.offload_malloc(ctypes.c_uint64(99), ctypes.c_uint64(0), ctypes.byref(block)) == 0\n"
        "atexit.register(torch_offload.uninit); sys.exit(2)",
        2,
    ),
    "sys.exit in a thread's join": (
        "t = threading.Thread(target=lambda: pool.empty(9)); t.start(); t.join(); sys.exit(7)",
        7,
    ),
    "os._exit": ("os._exit(5)", 5),
    "a forked child that ends": (
        "pid = os.fork()\nif pid: sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) + 4)",
        4,
    ),
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_exit_with_live_tensors(ending):
    code, status = ENDINGS[ending]
    done = run_python(START + code)
    assert (done.returncode, done.stdout, done.stderr) == (status, "", "")


def test_an_exception_ends_the_program_with_its_traceback_alone():
    done = run_python(START + "raise ValueError('as asked')")
    assert done.returncode == 1
    assert done.stderr.startswith("Traceback")
    assert done.stderr.endswith("ValueError: as asked\n")
    assert done.stderr.count("\n") <= 4


def test_a_subinterpreter_free_exit_with_many_pools():
    check_python("""
pools = [HostPool(1 << 20, huge_pages="never") for _ in range(50)]
tensors = [pool.empty(100).fill_(i) for i, pool in enumerate(pools)]
tensors += [pool.empty(0) for pool in pools]
del pools[::2]
""")
