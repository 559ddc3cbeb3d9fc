# SPDX-License-Identifier: Apache-2.0
"""What the system gives to a pool, and what it denies: huge pages, nodes, locking, prefaulting."""

import ctypes
import ctypes.util
import os
import pty
import resource
import subprocess
import sys
import warnings

import pytest
import torch

from torch_offload import HostPool

MIB = 1 << 20
HUGE = 2 * MIB


def fill_and_check(pool):
    """Writes every byte. Memory that is not there would kill the process."""
    t = pool.empty(pool.stats().capacity, dtype=torch.uint8)
    for value in (255, 1):
        assert t.fill_(value).eq(value).all()
    return t


def huge_bytes_of(t):
    """How many bytes huge pages back at the moment, by the system's own account."""
    found, inside = 0, False
    with open("/proc/self/smaps") as smaps:
        for line in smaps:
            first, _, rest = line.partition(" ")
            if not first.endswith(":"):
                begin, end = (int(part, 16) for part in first.split("-"))
                inside = begin < t.data_ptr() + t.nbytes and t.data_ptr() < end
            elif inside and first in ("AnonHugePages:", "ShmemPmdMapped:", "Private_Hugetlb:", "Shared_Hugetlb:"):
                found += int(rest.split()[0]) * 1024
    return found


def resident_pages(t):
    libc = ctypes.CDLL(ctypes.util.find_library("c"), use_errno=True)
    pages = (t.nbytes + resource.getpagesize() - 1) // resource.getpagesize()
    answer = (ctypes.c_ubyte * pages)()
    assert libc.mincore(ctypes.c_void_p(t.data_ptr()), ctypes.c_size_t(t.nbytes), answer) == 0
    return sum(page & 1 for page in answer)


def run(code, **options):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, **options)


# --- huge pages


@pytest.mark.filterwarnings("ignore:HostPool. huge pages:RuntimeWarning")
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("prefault_threads", [0, 2])
@pytest.mark.parametrize("huge_pages", ["auto", "never"])
def test_page_size_is_what_backs_the_memory(huge_pages, prefault_threads, shared):
    pool = HostPool(8 * MIB, huge_pages=huge_pages, prefault_threads=prefault_threads, shared=shared)
    claimed = pool.stats().page_size
    t = fill_and_check(pool)
    assert claimed in (resource.getpagesize(), HUGE)
    if claimed == HUGE:
        assert huge_bytes_of(t) == t.nbytes
    if huge_pages == "never":
        assert (claimed, huge_bytes_of(t)) == (resource.getpagesize(), 0)


def test_required_huge_pages_are_there_or_an_error():
    try:
        pool = HostPool(8 * MIB, huge_pages="require")
    except torch.OutOfMemoryError as error:
        assert "huge pages" in str(error)
    else:
        t = fill_and_check(pool)
        assert (pool.stats().page_size, huge_bytes_of(t)) == (HUGE, t.nbytes)


def test_required_huge_pages_that_nobody_has():
    # Shared memory has huge pages only where the administrator has reserved some, or has allowed transparent ones.
    with open("/proc/meminfo") as meminfo:
        reserved = any(line.startswith("HugePages_Total:") and line.split()[1] != "0" for line in meminfo)
    setting = "/sys/kernel/mm/transparent_hugepage/shmem_enabled"
    with open(setting) if os.path.exists(setting) else open(os.devnull) as file:
        never = "[never]" in file.read()
    if reserved or not never:
        pytest.skip("this system has huge pages for shared memory")
    with pytest.raises(torch.OutOfMemoryError, match=r"0 free.*switched off"):
        HostPool(8 * MIB, huge_pages="require", shared=True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            pool = HostPool(10 * MIB, shared=True)
    assert ["huge pages: ordinary pages" in str(one.message) for one in caught] == [True]
    assert (caught[0].category, caught[0].filename) == (RuntimeWarning, __file__)
    assert pool.stats().page_size == resource.getpagesize()
    fill_and_check(pool)


def test_a_small_pool_takes_no_huge_page():
    assert HostPool(4096).stats().capacity == 4096


# --- limits


@pytest.mark.parametrize("huge_pages", ["auto", "require", "never"])
@pytest.mark.parametrize("capacity", [1 << 40, 1 << 62])
def test_more_than_the_machine_has(capacity, huge_pages):
    with pytest.raises(torch.OutOfMemoryError, match=f"asked for {capacity} bytes"):
        HostPool(capacity, huge_pages=huge_pages)


def test_an_address_space_limit_is_an_error():
    code = """
import resource, torch
from torch_offload import HostPool
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20),) * 2)
try:
    HostPool(256 << 20)
except torch.OutOfMemoryError as error:
    print(error)
HostPool(8 << 20, huge_pages="never").empty(1 << 20).fill_(1)
"""
    result = run(code)
    assert result.returncode == 0, result.stderr
    assert "asked for 268435456 bytes" in result.stdout


@pytest.mark.parametrize("node", [1023, 1024, 2**31 - 1])
def test_a_node_that_does_not_exist(node):
    with pytest.raises(ValueError, match=f"numa_node.*got {node}"):
        HostPool(MIB, numa_node=node)


def test_a_node_that_exists_is_bound_or_reported():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        pool = HostPool(MIB, numa_node=0)
    denied = [one for one in caught if "numa_node" in str(one.message)]
    assert pool.stats().numa_node == (None if denied else 0)
    fill_and_check(pool)


LOCK = """
import warnings, torch
from torch_offload import HostPool
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for _ in range(2):
        pool = HostPool(1 << 20, lock=True, huge_pages="never")
        pool.empty(1 << 18).fill_(1)
print(pool.stats().locked, [str(one.message) for one in caught])
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="changes the user")
def test_locking_beyond_the_limit_of_an_ordinary_user():
    def limit():
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (64 << 10, 64 << 10))

    # The modules are loaded before: an ordinary user may be barred from where they are.
    code = f"import os, torch_offload\nos.setgroups([])\nos.setgid(65534)\nos.setuid(65534)\n{LOCK}"
    result = run(code, preexec_fn=limit)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("False ['HostPool: lock: 1048576 bytes are not locked: ")
    assert "RLIMIT_MEMLOCK (ulimit -l) is 65536 bytes" in result.stdout
    assert result.stdout.count("HostPool:") == 1


def test_locking_within_the_limit():
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if os.geteuid() != 0 and 0 <= soft < MIB:
        pytest.skip("the limit of locked memory is lower")
    result = run(LOCK)
    assert result.stdout == "True []\n", result.stderr


DENIED_POLICY = """
import ctypes, platform, struct
number = {"x86_64": 237, "aarch64": 235}[platform.machine()]  # mbind
def instruction(code, value, yes=0, no=0):
    return struct.pack("HBBI", code, yes, no, value)
program = ctypes.create_string_buffer(
    instruction(0x20, 0)  # the number of the system call
    + instruction(0x15, number, 0, 1)
    + instruction(0x06, 0x00050001)  # answer EPERM
    + instruction(0x06, 0x7FFF0000)  # allow
)
filters = ctypes.create_string_buffer(struct.pack("HxxxxxxP", 4, ctypes.addressof(program)))
libc = ctypes.CDLL(None)
assert libc.prctl(38, 1, 0, 0, 0) == 0  # PR_SET_NO_NEW_PRIVS
if libc.prctl(22, 2, filters, 0, 0) != 0:  # PR_SET_SECCOMP
    raise SystemExit(77)

import warnings
from torch_offload import HostPool
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for _ in range(2):
        pool = HostPool(1 << 20, numa_node=0)
        pool.empty(1 << 18).fill_(1)
print(pool.stats().numa_node, [str(one.message) for one in caught])
"""


def test_a_container_that_denies_memory_policy():
    result = run(DENIED_POLICY)
    if result.returncode == 77:
        pytest.skip("this system lets no filter be set")
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("None ['HostPool: numa_node: not bound to node 0: mbind: Operation not permitted")
    assert result.stdout.count("HostPool:") == 1


def test_warnings_as_errors_leave_no_default_pool():
    code = """
import torch_offload
torch_offload._C.HostPool.warnings = lambda pool: ["something was denied"]
for _ in range(2):
    try:
        torch_offload.init(1 << 20)
    except RuntimeWarning as warning:
        print(warning, torch_offload.is_initialized())
"""
    result = run(code, env={**os.environ, "PYTHONWARNINGS": "error::RuntimeWarning"})
    assert result.stdout == "HostPool: something was denied False\n" * 2, result.stderr


# --- prefaulting


@pytest.mark.parametrize("shared", [False, True])
def test_prefaulting_touches_every_page(shared):
    size = 64 * MIB + 12288
    pool = HostPool(size, prefault_threads=2, huge_pages="never", shared=shared)
    t = pool.empty(size, dtype=torch.uint8)
    assert resident_pages(t) == size // resource.getpagesize()
    assert not t.any()


def test_without_prefaulting_pages_come_with_their_use():
    t = HostPool(64 * MIB, huge_pages="never").empty(64 * MIB, dtype=torch.uint8)
    assert resident_pages(t) == 0
    t[MIB] = 1
    assert 1 <= resident_pages(t) < 100


SLOW = """
import torch_offload.progress
torch_offload.progress._SHOW_AFTER_SECONDS = 0.0
from torch_offload import HostPool
HostPool(256 << 20, prefault_threads=1, huge_pages="never", name="keys")
"""


def test_a_terminal_shows_progress():
    ours, theirs = pty.openpty()
    with subprocess.Popen([sys.executable, "-c", SLOW], stderr=theirs, stdout=subprocess.PIPE) as process:
        os.close(theirs)
        shown = b""
        try:
            while part := os.read(ours, 4096):
                shown += part
        except OSError:  # the other end is closed
            pass
        assert (process.wait(), process.stdout.read()) == (0, b"")
    os.close(ours)
    assert b"keys: prefault [" + b"#" * 30 + b"] 0.2/0.2 GiB" in shown
    assert shown.endswith(b"\n")


def test_a_pipe_shows_nothing():
    result = run(SLOW)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


INTERRUPTED = """
import os, signal
import torch_offload
from torch_offload import HostPool, progress

seen = []
class Interrupt(progress.ProgressBar):
    def __call__(self, done, total):
        seen.append(done)
        signal.raise_signal(signal.SIGINT)

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096

torch_offload.pool.ProgressBar = Interrupt
before, descriptors, tasks = resident(), os.listdir("/proc/self/fd"), os.listdir("/proc/self/task")
for make in (HostPool, torch_offload.init):
    try:
        make(512 << 20, prefault_threads=2, huge_pages="never", shared=True, name="interrupted")
    except KeyboardInterrupt:
        print("interrupted")
assert seen
assert os.listdir("/proc/self/fd") == descriptors
assert "interrupted" not in open("/proc/self/maps").read()
assert resident() - before < 64 << 20, resident() - before
assert os.listdir("/proc/self/task") == tasks
assert not torch_offload.is_initialized()
"""


def test_an_interrupt_leaves_nothing_behind():
    result = run(INTERRUPTED)
    assert (result.returncode, result.stdout) == (0, "interrupted\ninterrupted\n"), result.stderr
