# SPDX-License-Identifier: Apache-2.0
"""What the tests of the NPU kernels share: samples placed on the device, registered host memory, orders of DMA.

They run on the simulator (`make test-npu`) and on hardware (`make test-npu-hardware`), where tests marked `simulator`
are left out.
"""

# ruff: noqa: E402  (what follows the checks needs what they look for)

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import mmap
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS), str(TESTS / "sim_cann")]

if importlib.util.find_spec("torch_npu") is None:
    pytest.skip("needs torch_npu (make test-npu)", allow_module_level=True)

import sim_cann

ON_SIMULATOR = sim_cann.available()
if not ON_SIMULATOR and not Path("/dev/davinci_manager").exists():
    pytest.skip("needs an NPU or the simulator (make test-npu)", allow_module_level=True)

import reference
import torch
import torch_npu  # noqa: F401
from cases import Sample
from sim_kernels import EARLIEST, LATEST, RANDOM, Kernels
from torch import Tensor

import torch_offload
from torch_offload import _C_npu

simulator = pytest.mark.simulator
DEVICE = torch.device("npu:0")


def own_process(**settings: object) -> Callable:
    """`sim_cann.own_process` for tests of these kernels; marks them for the simulator alone."""
    decorate = sim_cann.own_process(**settings)
    return lambda body: simulator(decorate(body))


# Graphs.


def capture(call: Callable[[], object]) -> torch.npu.NPUGraph:
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        call()
    return graph


def calls_of_a_replay(graph: torch.npu.NPUGraph) -> dict[str, int]:
    """What the simulator counts in one replay, which must neither launch nor allocate nor copy by calls of its own."""
    torch.npu.synchronize()
    with sim_cann.counting() as calls:
        graph.replay()
        torch.npu.synchronize()
    assert not [name for name in calls if name.startswith(("aclrtLaunchKernel", "aclrtMalloc", "aclrtMem"))], calls
    return calls


# Memory of the host that the device can address.


class RegisteredMemory:
    """Host memory that is registered with the device, as uint8 tensors; given back by `close`."""

    def __init__(self) -> None:
        self._maps: list[tuple[mmap.mmap, int]] = []

    def copy_of(self, data: Tensor) -> Tensor:
        """A CPU tensor with the bytes of a uint8 tensor, at a page's beginning."""
        memory = mmap.mmap(-1, max(1, -(-data.numel() // mmap.PAGESIZE)) * mmap.PAGESIZE)
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        _C_npu.register_host_memory(DEVICE.index, address, len(memory))
        self._maps.append((memory, address))
        tensor = torch.frombuffer(memory, dtype=torch.uint8, count=len(memory))[: data.numel()]
        return tensor.copy_(data)

    def close(self) -> None:
        torch.npu.synchronize()
        for _, address in self._maps:
            _C_npu.unregister_host_memory(address)
        self._maps.clear()


@contextlib.contextmanager
def registered_memory() -> Iterator[RegisteredMemory]:
    memory = RegisteredMemory()
    try:
        yield memory
    finally:
        memory.close()


@contextlib.contextmanager
def much_memory() -> Iterator[None]:
    """Lets tests allocate tens of GiB on the simulator, of which they touch little."""
    with sim_cann.changed(SIM_BUDGET_MB=40_000) if ON_SIMULATOR else contextlib.nullcontext():
        yield
        torch.npu.synchronize()
        torch.npu.empty_cache()


# Samples elsewhere.


class Placed:
    """A sample's tensors in other memory: every storage once, views of it at the same places."""

    def __init__(self, sample: Sample, place: Callable[[str, Tensor], Tensor]) -> None:
        self._place = place
        self._storages: dict[int, tuple[Tensor, Tensor]] = {}
        buffers = [self._storage("buffer", buffer) for buffer in sample.buffers]
        table = lambda t: None if t is None else self._view("table", t)  # noqa: E731
        self.sample = Sample(
            [self._view("dst", t) for t in sample.dst],
            [self._view("src", t) for t in sample.src],
            table(sample.dst_index),
            table(sample.src_index),
            table(sample.count),
            buffers,
        )

    def _storage(self, role: str, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in self._storages:
            old = torch.empty(0, dtype=torch.uint8).set_(storage)
            self._storages[storage._cdata] = (self._place(role, old), old)
        return self._storages[storage._cdata][0]

    def _view(self, role: str, tensor: Tensor) -> Tensor:
        if tensor.untyped_storage().nbytes() == 0:
            return tensor.to(DEVICE)
        flat = self._storage(role, tensor).view(tensor.dtype)
        return flat.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def on_device(sample: Sample) -> Sample:
    return Placed(sample, lambda role, storage: storage.to(DEVICE)).sample


def host_rows(sample: Sample, memory: RegisteredMemory, which: str = "src") -> Sample:
    """The rows of one side in registered memory of the host ("both": of both), the rest on the device."""
    if which == "both":
        return Placed(sample, lambda role, t: t.to(DEVICE) if role == "table" else memory.copy_of(t)).sample
    storages = {t.untyped_storage()._cdata for t in getattr(sample, which)}

    def place(role: str, storage: Tensor) -> Tensor:
        on_host = storage.untyped_storage()._cdata in storages
        return memory.copy_of(storage) if on_host else storage.to(DEVICE)

    return Placed(sample, place).sample


def repeated_rows(sample: Sample) -> list[int]:
    """Destination rows that several entries name: unspecified on a device."""
    if sample.dst_index is None:
        return []
    rows = sample.dst_index.tolist()[: None if sample.count is None else int(sample.count.item())]
    return sorted(row for row, times in Counter(rows).items() if row >= 0 and times > 1)


def check(make: Callable[[], Sample], place: Callable[[Sample], Sample] = on_device, calls: int = 1) -> None:
    """Runs a placed sample through the operator and another through the reference; every byte must agree.

    Rows that several entries name are left out of the comparison, their neighbours are not.
    """
    want = make()
    got = place(make())
    for _ in range(calls):
        torch_offload.sparse_copy(got.dst, got.src, got.dst_index, got.src_index, count=got.count)
    torch.npu.synchronize()
    reference.sparse_copy(*want.args())
    for row in repeated_rows(want):
        for tensor in want.dst:
            reference.as_bytes(tensor)[row] = 0
    results = [buffer.cpu() for buffer in got.buffers]
    shown = Placed(Sample(want.dst, [], buffers=want.buffers), iterate(results)).sample
    for row in repeated_rows(want):
        for tensor in shown.dst:
            reference.as_bytes(tensor)[row] = 0
    for number, (a, b) in enumerate(zip(shown.buffers, want.buffers, strict=True)):
        different = (a != b).nonzero().flatten()
        assert len(different) == 0, f"buffer {number}: {len(different)} bytes differ, first {different[:8].tolist()}"
    for a, b in zip(got.args()[2:], want.args()[2:], strict=True):
        assert a is None or torch.equal(a.cpu(), b)


def iterate(tensors: list[Tensor]) -> Callable[[str, Tensor], Tensor]:
    following = iter(tensors)
    return lambda role, storage: next(following)


# The order of DMA in the simulated kernels.


ORDERS = {"latest": (LATEST, 1), "earliest": (EARLIEST, 1), **{f"random{i}": (RANDOM, 100 + i) for i in range(10)}}


@contextlib.contextmanager
def simulated_kernels(**values: int) -> Iterator[None]:
    """Settings of the simulated kernels for the length of a block; does nothing on hardware."""
    if not ON_SIMULATOR:
        yield
        return
    kernels = Kernels()
    before, changed = kernels.settings(), kernels.changed(**values)
    torch.npu.synchronize()
    kernels.set(changed)
    try:
        yield
    finally:
        torch.npu.synchronize()
        kernels.set(before)


def cores_of_the_last_launch() -> int:
    torch.npu.synchronize()
    return Kernels().number_of_cores()
