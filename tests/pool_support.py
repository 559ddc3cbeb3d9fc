# SPDX-License-Identifier: Apache-2.0
"""What the tests of the host pool share."""

import os
import re
import subprocess
import sys
from contextlib import contextmanager

import torch

import torch_offload

KIB, MIB = 1 << 10, 1 << 20
GUARD = 0xA5


def plain_pool(capacity=MIB, **options):
    """A pool of ordinary pages: quickly made, and without a word about huge pages."""
    return torch_offload.HostPool(capacity, **{"huge_pages": "never", **options})


@contextmanager
def guarded_block(pool, size=1000, dtype=torch.uint8):
    """Yields a one-element list with a tensor between two neighbours, whose bytes must be the same afterwards.

    A list, so that the test can drop the last reference.
    """
    before = pool.empty(512, dtype=torch.uint8)
    block = pool.empty(size, dtype=dtype)
    after = pool.empty(512, dtype=torch.uint8)
    end = block.data_ptr() + block.nbytes
    assert 0 <= block.data_ptr() - before.data_ptr() - 512 < 64
    assert 0 <= after.data_ptr() - end < 64
    holder = [block]
    del block
    before.fill_(GUARD)
    after.fill_(GUARD)
    yield holder
    assert (before == GUARD).all()
    assert (after == GUARD).all()


def run_python(code, *, command=(), timeout=120, **options):
    """Runs `code` in an interpreter of its own; returns the finished process with its output as text."""
    return subprocess.run(
        [*command, sys.executable, "-c", PRELUDE + code], capture_output=True, text=True, timeout=timeout, **options
    )


def check_python(code, **options):
    """Runs `code` in an interpreter of its own; fails unless it ends with 0 and without a word on stderr."""
    done = run_python(code, **options)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    return done.stdout


PRELUDE = """
import gc, os, sys, threading
import torch, torch_offload
from torch_offload import HostPool
"""


def resident_bytes():
    """Resident memory of this process."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")


def processes_that_map(name):
    """Processes in whose memory or descriptors a memfd of this name occurs."""
    found = set()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/maps") as maps:
                if re.search(rf"memfd:{name}\b", maps.read()):
                    found.add(int(pid))
            for fd in os.listdir(f"/proc/{pid}/fd"):
                if f"memfd:{name} " in os.readlink(f"/proc/{pid}/fd/{fd}") + " ":
                    found.add(int(pid))
        except OSError:  # gone, or not ours
            continue
    return found
