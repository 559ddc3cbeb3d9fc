# SPDX-License-Identifier: Apache-2.0
"""Counts what the NPU kernel does, on the simulated CANN runtime: instructions, bytes, balance, shared lines.

The simulator measures no time. What it counts decides the time on hardware: how many bytes are moved beside the
payload, how evenly the cores share the work, how many rows each has in flight, how often it waits for single words of
global memory. Run it with `make bench-npu`, or `tests/sim_cann/run python benchmarks/bench_npu_counters.py`.

Columns: load and store instructions; bytes moved over payload (the larger of loads and stores); payload of the
heaviest core over the mean; cores without payload; the least that a core lets be in flight, in rows of the first
component and in KiB; scalar loads from global memory; 512-byte lines of the index table that several cores read;
barriers beside that of the kernel's end; unified buffer in KiB.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import mmap
import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "sim_cann"))

import torch
from sim_kernels import LOADS_EARLY, Counters, Kernels
from torch import Tensor

import torch_offload


@dataclass(frozen=True)
class Shape:
    """One call: how many entries, the bytes of a row in each component, one of how many entries is not skipped."""

    name: str
    entries: int
    row_bytes: tuple[int, ...]
    one_of: int = 1


SHAPES = [
    Shape("4096 x 1152 B", 4096, (1152,)),
    Shape("2048 x (1024 + 128 + 132) B", 2048, (1024, 128, 132)),
    Shape("294,912 x 656 B", 294_912, (656,)),
    Shape("48 x 4 MiB", 48, (4 << 20,)),
    Shape("3 x 1 MiB", 3, (1 << 20,)),
    Shape("97 x 656 B", 97, (656,)),
    Shape("2048 x 1152 B, 95 % skipped", 2048, (1152,), one_of=20),
]
DIRECTIONS = ("H2D", "D2H")
CORES = (48, 8)

RECORD_BYTES = 64  # of the status, which every core that has seen an entry stores


@dataclass(frozen=True)
class Result:
    """What one call cost. The docstring of the module explains the numbers."""

    shape: str
    direction: str
    cores: int
    loads: int
    stores: int
    bytes_over_payload: float
    heaviest_over_mean: float
    idle_cores: int
    least_rows_in_flight: int
    least_kib_in_flight: int
    scalar_global_loads: int
    shared_table_lines: int
    barriers: int
    ub_kib: int


class HostMemory:
    """Host memory that the device can address; given back at the end of the block."""

    def __init__(self) -> None:
        from torch_offload import _C_npu

        self._npu = _C_npu
        self._maps: list[tuple[mmap.mmap, int]] = []

    def __enter__(self) -> HostMemory:
        return self

    def empty(self, rows: int, row_bytes: int) -> Tensor:
        """Rows of bytes."""
        memory = mmap.mmap(-1, -(-rows * row_bytes // mmap.PAGESIZE) * mmap.PAGESIZE)
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        self._npu.register_host_memory(0, address, len(memory))
        self._maps.append((memory, address))
        return torch.frombuffer(memory, dtype=torch.uint8, count=rows * row_bytes).view(rows, row_bytes)

    def __exit__(self, *_: object) -> None:
        torch.npu.synchronize()
        for _, address in self._maps:
            self._npu.unregister_host_memory(address)


def count_in_flight() -> Kernels:
    """The simulated kernels, with the order of transfers that shows what they let be in flight."""
    kernels = Kernels()
    kernels.set(kernels.changed(order=LOADS_EARLY))
    return kernels


def run(shape: Shape, direction: str, cores: int, kernels: Kernels) -> Result:
    """One call: a gather out of host memory (H2D), or a scatter into it (D2H). Its result is compared, too."""
    generator = torch.Generator().manual_seed(7)
    pool_rows = 2 * shape.entries
    index = torch.randperm(pool_rows, generator=generator)[: shape.entries]
    index[torch.arange(shape.entries) % shape.one_of != 0] = -1
    on_device = index.to("npu")
    with HostMemory() as memory:
        pools = [memory.empty(pool_rows, size).random_(0, 256, generator=generator) for size in shape.row_bytes]
        rows = [torch.zeros(shape.entries, size, dtype=torch.uint8) for size in shape.row_bytes]
        if direction == "D2H":
            for one in rows:
                one.random_(0, 256, generator=generator)
        want = [row.clone() for row in (rows if direction == "H2D" else pools)]
        moved = [row.to("npu") for row in rows]
        if direction == "H2D":
            torch_offload.sparse_copy(moved, pools, src_index=on_device, cores=cores)
        else:
            torch_offload.sparse_copy(pools, moved, dst_index=on_device, cores=cores)
        torch.npu.synchronize()
        counters, lines = kernels.cores(), kernels.shared_lines(on_device.data_ptr(), 8 * shape.entries)
        taken = index >= 0
        for c, expected in enumerate(want):
            if direction == "H2D":
                expected[taken] = pools[c][index[taken]]
            else:
                expected[index[taken]] = rows[c][taken]
            got = moved[c].cpu() if direction == "H2D" else pools[c]
            if not torch.equal(got, expected):
                sys.exit(f"bench_npu_counters: wrong bytes for {shape.name}, {direction}, {cores} cores")
    payload = int(taken.sum()) * sum(shape.row_bytes)
    return summary(shape, direction, counters, payload, lines)


def summary(shape: Shape, direction: str, counters: list[Counters], payload: int, lines: int) -> Result:
    """The numbers of all cores together."""

    def total(name: str) -> int:
        return sum(getattr(core, name) for core in counters)

    stored = [max(0, core.store_bytes - RECORD_BYTES) for core in counters]
    busy = [core.peak_bytes_in_flight for core, bytes_ in zip(counters, stored, strict=True) if bytes_]
    return Result(
        shape=shape.name,
        direction=direction,
        cores=len(counters),
        loads=total("load_instructions"),
        stores=total("store_instructions"),
        bytes_over_payload=round(max(total("load_bytes"), total("store_bytes")) / payload, 4),
        heaviest_over_mean=round(max(stored) * len(counters) / payload, 3),
        idle_cores=stored.count(0),
        least_rows_in_flight=min(busy) // shape.row_bytes[0],
        least_kib_in_flight=min(busy) >> 10,
        scalar_global_loads=total("scalar_global_loads"),
        shared_table_lines=lines,
        barriers=total("pipe_barriers") + total("all_barriers"),
        ub_kib=max(core.ub_high_water for core in counters) >> 10,
    )


HEADER = (
    f"{'':28} {'':4}{'cores':>5} {'loads':>7} {'stores':>7} {'bytes/':>7} {'heaviest':>8} {'idle':>5} {'rows in':>8} "
    f"{'KiB in':>6} {'scalar':>6} {'shared':>6} {'barr-':>5} {'UB':>4}\n"
    f"{'':28} {'':4}{'':5} {'':7} {'':7} {'payload':>7} {'/ mean':>8} {'cores':>5} {'flight':>8} {'flight':>6} "
    f"{'loads':>6} {'lines':>6} {'iers':>5} {'KiB':>4}"
)


def print_row(r: Result) -> None:
    """One line of the table."""
    print(
        f"{r.shape:28} {r.direction:4}{r.cores:5} {r.loads:7} {r.stores:7} {r.bytes_over_payload:7.4f} "
        f"{r.heaviest_over_mean:8.3f} {r.idle_cores:5} {r.least_rows_in_flight:8} {r.least_kib_in_flight:6} "
        f"{r.scalar_global_loads:6} {r.shared_table_lines:6} {r.barriers:5} {r.ub_kib:4}",
        flush=True,
    )


def main() -> int:
    """Runs all calls and prints a table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--only", default="", metavar="TEXT", help="shapes whose name contains the text")
    args = parser.parse_args()
    import sim_cann

    if not sim_cann.available() or "TORCH_OFFLOAD_NPU_KERNEL" not in os.environ:
        sys.exit("bench_npu_counters: expected to run on the simulated CANN runtime, got none; use make bench-npu")
    import torch_npu  # noqa: F401

    kernels = count_in_flight()
    results = []
    if not args.json:
        print(HEADER)
    for shape in SHAPES:
        for direction in DIRECTIONS if args.only in shape.name else ():
            for cores in CORES:
                results.append(run(shape, direction, cores, kernels))
                if not args.json:
                    print_row(results[-1])
    if args.json:
        json.dump({"results": [asdict(result) for result in results]}, sys.stdout, indent=2)
        print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
