# SPDX-License-Identifier: Apache-2.0
"""Gathers scattered rows with sparse_copy and with what plain torch offers, in one run.

sparse_copy reads rows in a HostPool. index_select(out=) is measured twice: on those same rows, which shows the operator
alone, and on rows in memory from torch.empty, which is what a program without this package has (the pool has huge pages
where the system gives them; torch's memory has not). index_copy_ of gathered rows reads torch's memory. Two loops in
C++ (plain_loops.cpp) read the pool's rows, with as many threads: one memcpy for each row, and the reading alone, which
is the ceiling of any copy.

Every call gathers other rows, so that they are out of the cache. Results are compared before anything is timed. Ratios
above 1 mean that sparse_copy is faster.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import sys

import torch
from compiled import load
from timing import machine, measure

import torch_offload

# Rows gathered, bytes in a row, rows to choose from.
SHAPES = [
    (2048, 1152, 2_000_000),
    (8192, 656, 2_000_000),
    (32768, 1152, 2_000_000),
    (32768, 132, 8_000_000),
]
# Sets of indices that take turns: together far more rows than a cache holds.
ROUNDS_OF_INDICES = 64


def main() -> int:
    """Runs the benchmark and prints a table, or JSON."""
    args = parse_arguments()
    if args.threads:
        torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    shapes = [tuple(args.shape)] if args.shape else SHAPES
    results = []
    rows_of: dict[str, torch.Tensor] = {}
    for rows, row_bytes, pool_rows in shapes:
        if args.quick:
            pool_rows //= 10
        if not rows_of or rows_of["pool"].shape != (pool_rows, row_bytes):
            rows_of.clear()
            rows_of.update(make_sources(pool_rows, row_bytes))
        for shuffled in (False, True):
            result = run_one(rows_of, rows, shuffled, args.seconds / (10 if args.quick else 1))
            results.append(result)
            if not args.json:
                print_row(result, header=len(results) == 1)
    if args.json:
        json.dump({"machine": machine(), "results": results}, sys.stdout, indent=2)
        print()
    else:
        print("\n" + "\n".join(f"{key}: {value}" for key, value in machine().items()))
    return 0


def parse_arguments() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", type=int, nargs=3, metavar=("ROWS", "ROW_BYTES", "POOL_ROWS"), help="one shape only")
    parser.add_argument("--seconds", type=float, default=6.0, help="time for each shape (default %(default)s)")
    parser.add_argument("--threads", type=int, default=0, help="torch's intra-op threads (default: torch's own)")
    parser.add_argument("--seed", type=int, default=0, help="of data and indices (default %(default)s)")
    parser.add_argument("--quick", action="store_true", help="a tenth of the pool and of the time")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    return parser.parse_args()


def make_sources(rows: int, row_bytes: int) -> dict[str, torch.Tensor]:
    """Returns the same distinct rows twice: in a host pool, and in torch's own memory."""
    shape = (rows, row_bytes)
    sources = {
        "pool": torch_offload.HostPool(rows * row_bytes).empty(shape, dtype=torch.uint8),
        "torch": torch.empty(shape, dtype=torch.uint8),
    }
    words = rows * row_bytes // 4
    for source in sources.values():
        torch.arange(words, dtype=torch.int32, out=source.view(-1)[: words * 4].view(torch.int32))
    return sources


def run_one(rows_of: dict[str, torch.Tensor], rows: int, shuffled: bool, seconds: float) -> dict[str, object]:
    """Measures one shape; `shuffled` scatters the destination rows too."""
    pool, plain = rows_of["pool"], rows_of["torch"]
    pool_rows, row_bytes = pool.shape
    sources = [torch.randint(pool_rows, (rows,)) for _ in range(ROUNDS_OF_INDICES)]
    targets = [torch.randperm(rows) for _ in range(ROUNDS_OF_INDICES)] if shuffled else [None] * ROUNDS_OF_INDICES
    # One destination for all, so that none finds it in a nearer cache than the others.
    out = torch.zeros(rows, row_bytes, dtype=torch.uint8)
    order = torch.arange(rows)
    loops = load("plain_loops.cpp")
    sizes = ctypes.c_int64(rows), ctypes.c_int64(row_bytes), ctypes.c_int(torch.get_num_threads())

    def sparse_copy(i: int) -> None:
        torch_offload.sparse_copy(out, pool, targets[i % ROUNDS_OF_INDICES], sources[i % ROUNDS_OF_INDICES])

    def index_select_pool(i: int) -> None:
        torch.index_select(pool, 0, sources[i % ROUNDS_OF_INDICES], out=out)

    def index_select_torch(i: int) -> None:
        torch.index_select(plain, 0, sources[i % ROUNDS_OF_INDICES], out=out)

    def index_copy(i: int) -> None:
        target = targets[i % ROUNDS_OF_INDICES]
        out.index_copy_(0, order if target is None else target, plain[sources[i % ROUNDS_OF_INDICES]])

    def pointers(i: int) -> tuple[object, ...]:
        return ctypes.c_void_p(pool.data_ptr()), ctypes.c_void_p(sources[i % ROUNDS_OF_INDICES].data_ptr()), *sizes

    def memcpy_loop(i: int) -> None:
        loops.memcpy_rows(ctypes.c_void_p(out.data_ptr()), *pointers(i))

    def reading_alone(i: int) -> None:
        loops.read_rows(*pointers(i))

    for i in (0, 1):
        index_copy(i)
        expected = out.clone()
        out.zero_()
        sparse_copy(i)
        if not torch.equal(out, expected):
            raise SystemExit("bench_sparse_copy: sparse_copy and index_copy_ disagree")
    sides = {
        "sparse_copy": sparse_copy,
        "index_select_same_rows": index_select_pool,
        "index_select_torch_memory": index_select_torch,
        "index_copy": index_copy,
        "memcpy_loop": memcpy_loop,
        "reading_alone": reading_alone,
    }
    timings = measure(sides, seconds=seconds)
    median = timings["sparse_copy"].median
    return {
        "rows": rows,
        "row_bytes": row_bytes,
        "pool_rows": pool_rows,
        "shuffled": shuffled,
        "gb_per_s": rows * row_bytes / median / 1e9,
        "ratio": {name: timing.median / median for name, timing in timings.items() if name != "sparse_copy"},
        "seconds": {name: timing.record() for name, timing in timings.items()},
    }


def print_row(result: dict[str, object], *, header: bool) -> None:
    """Prints one line of the table."""
    if header:
        print(f"{'':74}{'index_select(out=)':^25}{'C++ loops':>28}\n"
              f"{'rows x bytes of pool rows':27} {'destination':11} {'us':>8} {'spread':>7} {'GB/s':>6} "
              f"{'same rows':>12} {'torch memory':>13} {'index_copy_':>12} {'memcpy':>9} {'reading':>8}")  # fmt: skip
    seconds, ratio = result["seconds"]["sparse_copy"], result["ratio"]
    shape = f"{result['rows']} x {result['row_bytes']} of {result['pool_rows']}"
    print(f"{shape:27} {'shuffled' if result['shuffled'] else 'in order':11} {seconds['median'] * 1e6:8.1f} "
          f"{seconds['spread']:7.0%} {result['gb_per_s']:6.2f} {ratio['index_select_same_rows']:11.2f}x "
          f"{ratio['index_select_torch_memory']:12.2f}x {ratio['index_copy']:11.2f}x {ratio['memcpy_loop']:8.2f}x "
          f"{ratio['reading_alone']:7.2f}x", flush=True)  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
