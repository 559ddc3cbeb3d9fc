# SPDX-License-Identifier: Apache-2.0
"""What the operating system gives and denies: pages, nodes, locks. A shortage is an exception, never a signal."""

import ctypes
import os
import re
import shutil
import subprocess
import sys
import warnings

import pytest
import torch
from pool_support import MIB, PRELUDE, check_python, plain_pool, resident_bytes, run_python

import torch_offload
from torch_offload import HostPool

SMALL_PAGE = os.sysconf("SC_PAGESIZE")
HUGE_PAGE = 2 * MIB


def read(path, default=""):
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return default


EXPLICIT_HUGE_PAGES = int(read("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "0"))
SHARED_HUGE_PAGES = "[never]" not in read("/sys/kernel/mm/transparent_hugepage/shmem_enabled", "[never]")


@pytest.fixture
def fresh_warnings(monkeypatch):
    """As in a process that has not warned of anything yet."""
    monkeypatch.setattr(torch_offload.pool, "_warned", set())


def test_prefaulting_makes_every_page_resident():
    for threads in (1, 2, 5):
        before = resident_bytes()
        pool = plain_pool(64 * MIB, prefault_threads=threads)
        assert resident_bytes() > before + 60 * MIB
        tensor = pool.empty(64 * MIB, dtype=torch.uint8)
        assert not tensor.any()  # fresh memory, whoever touched it
        del tensor, pool


def test_without_prefaulting_pages_come_with_their_first_touch():
    for threads in (None, 0):
        before = resident_bytes()
        pool = plain_pool(256 * MIB, prefault_threads=threads)
        assert resident_bytes() < before + 32 * MIB
        pool.empty(MIB).fill_(1)
        assert resident_bytes() < before + 64 * MIB
        del pool


def test_normal_pages_are_reported_as_such():
    stats = plain_pool(4 * MIB, prefault_threads=1).stats()
    assert (stats.page_size, stats.numa_node, stats.locked) == (SMALL_PAGE, None, False)
    assert (stats.device_registered, stats.shared, stats.attached) == (False, False, False)


def test_auto_reports_the_pages_that_really_back_the_memory(fresh_warnings):
    """Every byte is written: whatever the pages, there is no SIGBUS."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        pool = HostPool(8 * MIB, prefault_threads=2)
    stats = pool.stats()
    assert stats.page_size in (SMALL_PAGE, HUGE_PAGE)
    assert (stats.page_size == HUGE_PAGE) == (not caught)
    assert pool.empty(8 * MIB, dtype=torch.uint8).fill_(1).sum() == 8 * MIB


@pytest.mark.skipif(EXPLICIT_HUGE_PAGES > 0 or SHARED_HUGE_PAGES, reason="this system gives huge pages")
def test_no_huge_pages_require_raises_and_auto_warns_once(fresh_warnings):
    """Memory that is shared gets huge pages of neither kind here."""
    with pytest.raises(torch.OutOfMemoryError, match=r"explicit huge pages wanted, 0 free \(vm.nr_hugepages\)"):
        HostPool(8 * MIB, huge_pages="require", shared=True)
    with pytest.warns(RuntimeWarning, match=f"huge pages: ordinary pages of {SMALL_PAGE} bytes are used") as caught:
        pools = [HostPool(8 * MIB, shared=True) for _ in range(3)]
    assert len(caught) == 1
    assert caught[0].filename == __file__  # the caller's line
    for pool in pools:
        assert pool.stats().page_size == SMALL_PAGE
        assert pool.empty(8 * MIB, dtype=torch.uint8).fill_(1).sum() == 8 * MIB


@pytest.mark.skipif(EXPLICIT_HUGE_PAGES > 0 or SHARED_HUGE_PAGES, reason="this system gives huge pages")
def test_where_warnings_are_errors_nothing_is_left_behind(fresh_warnings):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            with pytest.raises(RuntimeWarning, match="huge pages"):
                HostPool(8 * MIB, shared=True)
            with pytest.raises(RuntimeWarning, match="huge pages"):
                torch_offload.init(8 * MIB, shared=True)
            assert not torch_offload.is_initialized()


def test_more_memory_than_there_is_is_refused_at_creation():
    """Whatever kind of pages: before a byte is mapped, with the bytes asked for and free."""
    total = int(re.search(r"MemTotal:\s+(\d+)", read("/proc/meminfo"))[1]) * 1024
    for options in ({}, {"shared": True}, {"huge_pages": "never"}, {"huge_pages": "require"}, {"prefault_threads": 2}):
        with pytest.raises(torch.OutOfMemoryError, match=r"asked for \d+ bytes, .*free"):
            HostPool(2 * total, **options)


def test_an_address_space_limit_is_a_python_error():
    check_python("""
import resource
used = int(open("/proc/self/statm").read().split()[0]) * os.sysconf("SC_PAGESIZE")
resource.setrlimit(resource.RLIMIT_AS, (used + (256 << 20),) * 2)
for options in ({}, {"shared": True}, {"prefault_threads": 2}):
    try: HostPool(1 << 30, huge_pages="never", **options)
    except torch.OutOfMemoryError as error: assert "asked for 1073741824 bytes" in str(error), error
    else: raise AssertionError
assert HostPool(1 << 20, huge_pages="never").empty(10).fill_(1).sum() == 10
""")


def test_numa_nodes_that_do_not_exist_are_refused_and_node_0_is_bound_or_reported(fresh_warnings):
    for node in (17, 1023, 1024, 2**31 - 1):
        with pytest.raises(ValueError, match=f"numa_node: expected a node that is online .*, got {node}"):
            plain_pool(numa_node=node)
    with pytest.raises(ValueError, match="numa_node"):
        plain_pool(numa_node=2**31)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        node = plain_pool(numa_node=0, prefault_threads=1).stats().numa_node
    assert (node, [str(w.message)[:34] for w in caught]) in (
        (0, []),
        (None, ["HostPool: numa_node: not bound to n"[:34]]),
    )


def test_locking_is_reported(fresh_warnings):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        pool = plain_pool(64 << 10, lock=True)
    assert pool.stats().locked == (not caught)


UNPRIVILEGED = """
import warnings
warnings.simplefilter("always")
with warnings.catch_warnings(record=True) as caught:
    pools = [HostPool(1 << 20, huge_pages="never", lock=True, numa_node=0) for _ in range(3)]
    for pool in pools: assert pool.empty(1 << 20, dtype=torch.uint8).fill_(1).sum() == 1 << 20
    assert HostPool(4 << 20, prefault_threads=2).empty(4 << 20, dtype=torch.uint8).fill_(1).sum() == 4 << 20
    assert HostPool(1 << 20, shared=True).empty(10).fill_(1).sum() == 10
stats = pools[0].stats()
print(stats.locked, stats.numa_node)
for warning in caught: print(warning.category.__name__, warning.message)
"""

# A program of the kernel's filter machine that lets chosen system calls fail; see seccomp(2).
DENY = """
import ctypes, struct
def deny(numbers, error):
    rule = lambda code, jt, jf, k: struct.pack("HBBI", code, jt, jf, k)
    rules = [rule(0x20, 0, 0, 0)]  # load the number of the call
    rules += [rule(0x15, len(numbers) - i, 0, n) for i, n in enumerate(numbers)]  # to the last line if equal
    rules += [rule(0x06, 0, 0, 0x7FFF0000), rule(0x06, 0, 0, 0x00050000 | error)]  # allow; fail with errno
    code = ctypes.create_string_buffer(b"".join(rules))
    program = struct.pack("HxxxxxxP", len(rules), ctypes.addressof(code))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, ctypes.c_char_p(program), 0, 0): sys.exit(77)
"""
# mbind, mlock and mlock2 by machine.
NUMBERS = {"x86_64": (237, 149, 325), "aarch64": (235, 228, 284)}


def run_as_ordinary_user(code, **options):
    """Without the privilege that lifts the memlock limit, if this process has it."""
    drop = "import ctypes\nif os.geteuid() == 0: ctypes.CDLL(None).prctl(8, 1, 0, 0, 0); os.setresuid(*[65534] * 3)\n"
    return run_python(drop + code, **options)


def lines_after(done):
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    first, *others = done.stdout.splitlines()
    return first, others


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_a_memlock_limit_of_64_kib_gives_one_warning_that_names_it():
    limited = ("bash", "-c", 'ulimit -l 64 && exec "$@"', "bash")
    first, others = lines_after(run_as_ordinary_user(UNPRIVILEGED.replace(", numa_node=0", ""), command=limited))
    assert first == "False None"
    locks = [line for line in others if "lock:" in line]
    assert len(locks) == 1
    assert "RuntimeWarning HostPool: lock: 1048576 bytes are not locked" in locks[0]
    assert locks[0].endswith("RLIMIT_MEMLOCK (ulimit -l) is 65536 bytes")


@pytest.mark.parametrize(("error", "words"), [(1, "Operation not permitted"), (38, "not implemented"), (22, "Invalid")])
def test_a_denied_memory_policy_gives_one_warning_and_is_told_apart_from_a_bad_node(error, words):
    numbers = NUMBERS.get(os.uname().machine)
    if numbers is None:
        pytest.skip("the numbers of the system calls of this machine are not listed")
    check = "\ntry: HostPool(1 << 20, numa_node=999)\nexcept ValueError as error: print(error)\n"
    done = run_python(DENY + f"deny({numbers}, {error})" + UNPRIVILEGED + check)
    if done.returncode == 77:
        pytest.skip("this system allows no seccomp filters")
    first, others = lines_after(done)
    assert first == "False None"
    for start in ("numa_node: not bound to node 0: mbind: ", "lock: 1048576 bytes are not locked: mlock: "):
        found = [line for line in others if f"RuntimeWarning HostPool: {start}" in line]
        assert len(found) == 1
        assert words in found[0]
    assert "expected a node that is online (0), got 999" in others[-1]


def test_where_shared_memory_is_denied_private_pools_work():
    number = {"x86_64": 319, "aarch64": 279}.get(os.uname().machine)
    if number is None:
        pytest.skip("the numbers of the system calls of this machine are not listed")
    done = run_python(
        f"{DENY}deny([{number}], 1)\n"
        "assert HostPool(1 << 20).empty(10).fill_(1).sum() == 10\n"
        "try: HostPool(1 << 20, shared=True)\n"
        "except torch.OutOfMemoryError: raise\n"
        "except RuntimeError as error: print(error)\n"
    )
    if done.returncode == 77:
        pytest.skip("this system allows no seccomp filters")
    first, _ = lines_after(done)
    assert first.endswith("got memfd_create: Operation not permitted (errno 1)")


def test_without_sys_shared_memory_and_writable_directories(tmp_path):
    """As in a container with a read-only or an empty /sys, no /dev/shm and a home that cannot be written."""
    hide = (
        "unshare",
        "-m",
        "sh",
        "-c",
        'mount -t tmpfs -o ro none /sys && mount -t tmpfs -o ro none /dev/shm && exec "$@"',
    )
    if shutil.which("unshare") is None or subprocess.run([*hide, "sh", "true"], capture_output=True).returncode:
        pytest.skip("no permission for a mount namespace")
    home = {**os.environ, "HOME": "/proc/nowhere", "XDG_CACHE_HOME": "/proc/nowhere", "TMPDIR": str(tmp_path)}
    first, others = lines_after(run_python(UNPRIVILEGED, command=(*hide, "sh"), env=home))
    assert first.endswith(("0", "None"))
    assert all("RuntimeWarning HostPool: " in line for line in others)
    assert len(others) == len(set(others))


def test_a_prefault_that_takes_long_draws_a_progress_bar_on_a_terminal_only():
    code = (
        PRELUDE
        + """
import torch_offload.progress
torch_offload.progress._SHOW_AFTER_SECONDS = 0.0
HostPool(64 << 20, huge_pages="never", prefault_threads=2, name="cache")
"""
    )
    master, slave = os.openpty()
    process = subprocess.Popen([sys.executable, "-c", code], stderr=slave, stdout=subprocess.DEVNULL)
    os.close(slave)
    drawn = b""
    while True:
        try:
            part = os.read(master, 4096)
        except OSError:  # the other end has closed
            break
        if not part:
            break
        drawn += part
    os.close(master)
    assert process.wait(60) == 0
    assert b"\rcache: prefault [" + b"#" * 30 + b"] 0.1/0.1 GiB, 0 s left" in drawn
    assert drawn.endswith(b"\n")
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).stderr == b""


def test_the_progress_bar_is_silent_for_the_first_second(monkeypatch):
    from torch_offload import progress

    now = [100.0]
    written = []
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(progress.sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(progress.sys.stderr, "write", written.append, raising=False)
    with progress.ProgressBar("work", unit="rows") as bar:
        bar(1, 10)
        now[0] += 0.9
        bar(5, 10)
        assert not written
        now[0] += 0.2
        bar(6, 10)
        assert "work [##################            ] 6/10 rows, 1 s left" in written[0]
    assert written[-1] == "\n"


def test_the_pool_does_not_need_torchs_allocator_to_be_page_aligned():
    """Mapped memory starts at 2 MiB, so that every alignment of a block is one of its offset."""
    for _ in range(5):
        tensor = plain_pool(4 * MIB, alignment=HUGE_PAGE).empty(HUGE_PAGE, dtype=torch.uint8)
        assert tensor.data_ptr() % HUGE_PAGE == 0
        ctypes.memset(tensor.data_ptr(), 1, HUGE_PAGE)
        assert tensor.sum() == HUGE_PAGE
