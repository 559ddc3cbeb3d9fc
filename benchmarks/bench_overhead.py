# SPDX-License-Identifier: Apache-2.0
"""What a call costs beside its bytes: one row, from Python, against torch's operators on the same row.

Eager calls are compared with `torch.index_select(out=)`, compiled ones with a compiled `index_copy_`. Calls are timed
in batches, since one takes about as long as reading the clock. Ratios above 1 mean that sparse_copy is faster.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable

import torch
from timing import Timing, machine, measure

import torch_offload

ROWS, ROW_BYTES = 64, 128


def main() -> int:
    """Runs the benchmark and prints a table, or JSON."""
    args = parse_arguments()
    timings = measure(batches(sides(args.components), args.batch), seconds=args.seconds / (10 if args.quick else 1))
    timings = {
        name: Timing(*(seconds / args.batch for seconds in (timing.median, timing.low, timing.high)))
        for name, timing in timings.items()
    }
    if args.json:
        record = {name: timing.record() for name, timing in timings.items()}
        json.dump({"machine": machine(), "components": args.components, "seconds": record}, sys.stdout, indent=2)
        print()
        return 0
    print(f"{'one row, components: ' + str(args.components):34} {'us':>8} {'spread':>7} {'against':>26} {'ratio':>7}")
    for name, timing in timings.items():
        other = "index_copy_, compiled" if "compiled" in name else "index_select(out=)"
        ratio = timings[other].median / timing.median
        print(f"{name:34} {timing.median * 1e6:8.2f} {timing.spread:7.0%} {other:>26} {ratio:6.2f}x")
    print("\n" + "\n".join(f"{key}: {value}" for key, value in machine().items()))
    return 0


def parse_arguments() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--components", type=int, default=1, help="tensors in a call (default %(default)s)")
    parser.add_argument("--batch", type=int, default=200, help="calls timed together (default %(default)s)")
    parser.add_argument("--seconds", type=float, default=6.0, help="time in all (default %(default)s)")
    parser.add_argument("--quick", action="store_true", help="a tenth of the time")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    return parser.parse_args()


def sides(components: int) -> dict[str, Callable[[], object]]:
    """Returns the calls to compare, each of which has been seen to do the same."""
    src = [torch.randint(255, (ROWS, ROW_BYTES), dtype=torch.uint8) for _ in range(components)]
    dst = [torch.zeros(1, ROW_BYTES, dtype=torch.uint8) for _ in range(components)]
    index, first = torch.tensor([ROWS - 3]), torch.tensor([0])
    op = torch.ops.offload.sparse_copy.default

    def wrapper(dst: list[torch.Tensor], src: list[torch.Tensor], index: torch.Tensor) -> None:
        torch_offload.sparse_copy(dst, src, src_index=index)

    def index_copy(dst: list[torch.Tensor], src: list[torch.Tensor], index: torch.Tensor) -> None:
        for to, of in zip(dst, src, strict=True):
            to.index_copy_(0, first, of[index])

    def index_select() -> None:
        for to, of in zip(dst, src, strict=True):
            torch.index_select(of, 0, index, out=to)

    compiled = torch.compile(wrapper, fullgraph=True)
    compiled_index_copy = torch.compile(index_copy, fullgraph=True)
    calls = {
        "sparse_copy": lambda: wrapper(dst, src, index),
        "torch.ops.offload.sparse_copy": lambda: op(dst, src, None, index),
        "index_select(out=)": index_select,
        "sparse_copy, compiled": lambda: compiled(dst, src, index),
        "index_copy_, compiled": lambda: compiled_index_copy(dst, src, index),
    }
    for name, call in calls.items():
        for to in dst:
            to.zero_()
        call()
        if not all(torch.equal(to[0], of[ROWS - 3]) for to, of in zip(dst, src, strict=True)):
            raise SystemExit(f"bench_overhead: {name} copied something else")
    return calls


def batches(calls: dict[str, Callable[[], object]], size: int) -> dict[str, Callable[[int], object]]:
    """Makes of each call one that calls it `size` times."""

    def repeat(call: Callable[[], object]) -> Callable[[int], object]:
        def batch(_: int) -> None:
            for _ in range(size):
                call()

        return batch

    return {name: repeat(call) for name, call in calls.items()}


if __name__ == "__main__":
    sys.exit(main())
