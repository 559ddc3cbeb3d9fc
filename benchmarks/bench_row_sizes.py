# SPDX-License-Identifier: Apache-2.0
"""Gathers of random rows over row sizes and counts, and of three components in one call.

Each shape is compared with `torch.index_select(out=)` on the same rows in a host pool, and with one contiguous `copy_`
of as many bytes. Calls take turns through sixteen sets of random rows: small ones together fit into a cache, large ones
do not. Results are compared before anything is timed. Ratios above 1 mean that sparse_copy is faster.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable

import torch
from timing import machine, measure

import torch_offload

ROW_SIZES = [64, 128, 132, 256, 512, 656, 1152, 4096, 16 << 10, 64 << 10, 1 << 20]
COUNTS = [1, 64, 1024, 2048, 16384, 262144]
COMPONENTS = [1024, 128, 132]  # bytes in a row of each, as of K, of its index key and of V with scales
COMPONENT_ROWS = 2048
# A result is at most this large: more says nothing new about the memory.
MAX_RESULT = 256 << 20
ROUNDS = 16


def main() -> int:
    """Runs the benchmark and prints a table, or JSON."""
    args = parse_arguments()
    torch.manual_seed(args.seed)
    pool = torch_offload.HostPool(int(args.gigabytes * 2**30)).empty((int(args.gigabytes * 2**30),), dtype=torch.uint8)
    torch.arange(pool.numel() // 4, dtype=torch.int32, out=pool[: pool.numel() // 4 * 4].view(torch.int32))
    shapes = [(row_bytes, rows) for row_bytes in ROW_SIZES for rows in COUNTS if row_bytes * rows <= MAX_RESULT]
    if args.quick:
        shapes = [(row_bytes, rows) for row_bytes, rows in shapes if rows in (64, 2048)]
    results = []
    if not args.json:
        print(f"{'rows x bytes':20} {'us':>10} {'spread':>7} {'GB/s':>7} {'index_select(out=)':>20} {'copy_':>18}")
    for row_bytes, rows in shapes:
        results.append(gather(pool, row_bytes, rows, args.seconds))
        if not args.json:
            print_row(f"{rows} x {row_bytes}", results[-1])
    results.append(gather_components(pool, args.seconds))
    if not args.json:
        print_row(f"{COMPONENT_ROWS} x ({' + '.join(map(str, COMPONENTS))})", results[-1])
        print("\n" + "\n".join(f"{key}: {value}" for key, value in machine().items()))
    else:
        json.dump({"machine": machine(), "results": results}, sys.stdout, indent=2)
        print()
    if args.plot:
        plot(args.plot, results[:-1])
    return 0


def parse_arguments() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=2.0, help="size of the pool (default %(default)s)")
    parser.add_argument("--seconds", type=float, default=0.7, help="time for each shape (default %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the indices (default %(default)s)")
    parser.add_argument("--quick", action="store_true", help="two counts only")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--plot", metavar="FILE.png", help="draw GB/s over the row size")
    return parser.parse_args()


def gather(pool: torch.Tensor, row_bytes: int, rows: int, seconds: float) -> dict[str, object]:
    """Measures one shape."""
    table = pool[: pool.numel() // row_bytes * row_bytes].view(-1, row_bytes)
    indices = [torch.randint(len(table), (rows,)) for _ in range(ROUNDS)]
    out = torch.empty(rows, row_bytes, dtype=torch.uint8)
    spans = [begin * rows * row_bytes for begin in range(max(1, pool.numel() // (rows * row_bytes)))]

    def sparse_copy(i: int) -> None:
        torch_offload.sparse_copy(out, table, src_index=indices[i % ROUNDS])

    def index_select(i: int) -> None:
        torch.index_select(table, 0, indices[i % ROUNDS], out=out)

    def contiguous(i: int) -> None:
        begin = spans[i * 7 % len(spans)]
        out.view(-1).copy_(pool[begin : begin + out.numel()])

    index_select(0)
    expected = out.clone()
    sparse_copy(1)
    sparse_copy(0)
    if not torch.equal(out, expected):
        raise SystemExit(f"bench_row_sizes: expected {rows} rows of {row_bytes} bytes as index_select has them")
    return measured(
        {"sparse_copy": sparse_copy, "index_select": index_select, "contiguous": contiguous},
        seconds,
        row_bytes=row_bytes,
        rows=rows,
    )


def gather_components(pool: torch.Tensor, seconds: float) -> dict[str, object]:
    """Measures three components in one call against three calls of index_select."""
    share = pool.numel() // len(COMPONENTS)
    tables = [
        pool[c * share :][: share // row_bytes * row_bytes].view(-1, row_bytes)
        for c, row_bytes in enumerate(COMPONENTS)
    ]
    tokens = min(map(len, tables))
    indices = [torch.randint(tokens, (COMPONENT_ROWS,)) for _ in range(ROUNDS)]
    outs = [torch.empty(COMPONENT_ROWS, row_bytes, dtype=torch.uint8) for row_bytes in COMPONENTS]

    def sparse_copy(i: int) -> None:
        torch_offload.sparse_copy(outs, tables, src_index=indices[i % ROUNDS])

    def index_select(i: int) -> None:
        for out, table in zip(outs, tables, strict=True):
            torch.index_select(table, 0, indices[i % ROUNDS], out=out)

    index_select(0)
    expected = [out.clone() for out in outs]
    sparse_copy(1)
    sparse_copy(0)
    if not all(map(torch.equal, outs, expected)):
        raise SystemExit("bench_row_sizes: expected three components as index_select has them")
    sides = {"sparse_copy": sparse_copy, "index_select": index_select}
    return measured(sides, seconds, row_bytes=sum(COMPONENTS), rows=COMPONENT_ROWS)


def measured(
    sides: dict[str, Callable[[int], object]], seconds: float, *, row_bytes: int, rows: int
) -> dict[str, object]:
    """Times the sides and puts the figures of a shape together."""
    timings = measure(sides, seconds=seconds)
    ours = timings["sparse_copy"]
    return {
        "rows": rows,
        "row_bytes": row_bytes,
        "gb_per_s": {name: rows * row_bytes / timing.median / 1e9 for name, timing in timings.items()},
        "ratio": {name: timing.median / ours.median for name, timing in timings.items() if timing is not ours},
        "seconds": {name: timing.record() for name, timing in timings.items()},
    }


def print_row(shape: str, result: dict[str, object]) -> None:
    """Prints one line of the table."""
    ours, ratio = result["seconds"]["sparse_copy"], result["ratio"]
    contiguous = f"{ratio['contiguous']:17.2f}x" if "contiguous" in ratio else f"{'-':>18}"
    print(f"{shape:20} {ours['median'] * 1e6:10.1f} {ours['spread']:7.0%} {result['gb_per_s']['sparse_copy']:7.2f} "
          f"{ratio['index_select']:19.2f}x {contiguous}", flush=True)  # fmt: skip


def plot(path: str, results: list[dict[str, object]]) -> None:
    """Draws the largest count of each row size: both operators, and the contiguous copy as the ceiling."""
    from matplotlib import pyplot

    largest = {result["row_bytes"]: result for result in results if result["rows"] >= 64}
    figure, axes = pyplot.subplots(figsize=(7, 4.5))
    for name, label, style in (
        ("contiguous", "contiguous copy_", "k--"),
        ("sparse_copy", "sparse_copy", "o-"),
        ("index_select", "index_select(out=)", "s-"),
    ):
        axes.plot(list(largest), [result["gb_per_s"][name] for result in largest.values()], style, label=label)
    axes.set(xscale="log", xlabel="bytes in a row", ylabel="GB/s", ylim=(0, None))
    axes.set_title(f"Rows gathered at random, {machine()['threads']} threads, {machine()['cpu']}")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    sys.exit(main())
