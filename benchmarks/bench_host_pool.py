# SPDX-License-Identifier: Apache-2.0
"""What the host pool costs: allocations per second, prefaulting, and memory lost to rounding and fragmentation.

The torch-free core is timed by `host_pool_bench.cpp` (built on the first run, needs a C++ compiler and make) against
malloc and against a first touch by one thread; tensors are timed against `torch.empty`. The serving trace is made by a
seed: requests arrive, their caches grow token by token in chunks, and everything goes back when a request ends.
"""

from __future__ import annotations

import argparse
import heapq
import json
import random
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import torch
from timing import machine, measure

from torch_offload import HostPool

ROOT = Path(__file__).resolve().parent.parent
CORE_BENCH = ROOT / "build/cpp/plain/benchmarks/host_pool_bench.cpp.run"
# Bytes of a token in one layer: latent and rope in bf16, indexer key in fp8, its scale.
TOKEN_BYTES = (1152, 128, 4)
CHUNK_TOKENS = 256


def main() -> int:
    """Runs the benchmark and prints tables, or JSON."""
    args = parse_arguments()
    results: dict[str, object] = {"fragmentation": fragmentation(args.requests, args.layers, args.seed)}
    results["tensors"] = [tensors(threads, args.seed, args.seconds) for threads in (1, 2)]
    results["core"] = core(args.repeats, args.gib)
    if args.json:
        json.dump({"machine": machine(), **results}, sys.stdout, indent=2)
        print()
    else:
        print_tables(results)
        print("\n" + "\n".join(f"{key}: {value}" for key, value in machine().items()))
    return 0


def parse_arguments() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--seconds", type=float, default=4.0, help="for each comparison of tensors (default %(default)s)"
    )
    parser.add_argument("--repeats", type=int, default=5, help="of each comparison of the core (default %(default)s)")
    parser.add_argument("--gib", type=float, default=1.0, help="memory to prefault (default %(default)s)")
    parser.add_argument("--requests", type=int, default=600, help="of the serving trace (default %(default)s)")
    parser.add_argument("--layers", type=int, default=4, help="of the serving trace (default %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of both traces (default %(default)s)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    return parser.parse_args()


# Allocations per second.


def random_sizes(count: int, seed: int) -> list[tuple[int, int]]:
    """Returns (slot, bytes): whose tensor is replaced, by one of which size; small ones as often as large ones."""
    choice = random.Random(seed)
    return [(choice.randrange(1000), 1 + choice.randrange(64 << choice.randrange(13))) for _ in range(count)]


def tensors(threads: int, seed: int, seconds: float) -> dict[str, object]:
    """Times pairs of making and dropping a tensor; the threads share the interpreter's lock."""
    pool = HostPool(1 << 30, huge_pages="never")
    traces = [random_sizes(5000, seed + thread) for thread in range(threads)]

    def replay(empty) -> None:
        def work(trace: list[tuple[int, int]]) -> None:
            live: list[torch.Tensor | None] = [None] * 1000
            for slot, size in trace:
                live[slot] = None
                live[slot] = empty(size, dtype=torch.uint8)

        workers = [threading.Thread(target=work, args=(trace,)) for trace in traces]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()

    timings = measure(
        {"HostPool.empty": lambda i: replay(pool.empty), "torch.empty": lambda i: replay(torch.empty)}, seconds=seconds
    )
    pairs = sum(len(trace) for trace in traces)
    return {
        "threads": threads,
        "pairs_per_second": {name: pairs / timing.median for name, timing in timings.items()},
        "spread": {name: timing.spread for name, timing in timings.items()},
    }


def core(repeats: int, gib: float) -> list[dict[str, object]] | None:
    """Builds and runs the benchmark of the core; None where it cannot be built."""
    if shutil.which("make") is None or shutil.which("g++") is None:
        return None
    subprocess.run(
        ["make", "-s", "-C", ROOT / "tests/cpp", "FLAVOUR=plain", "bench"], check=True, stdout=subprocess.DEVNULL
    )
    lines = subprocess.run([CORE_BENCH, str(repeats), str(gib)], check=True, capture_output=True, text=True).stdout
    return [json.loads(line) for line in lines.splitlines()]


# Memory lost.


def serving_trace(requests: int, layers: int, seed: int) -> Iterator[tuple[str, int, int]]:
    """Yields ("new", request, bytes) and ("end", request, 0) as a server with up to 32 running requests makes them.

    A request brings a prompt of 1 to some 8,000 tokens, one block for each component of each layer, and generates up
    to 2,000 tokens: whenever its blocks are full, each component gets one for the next 256 tokens.
    """
    choice = random.Random(seed)
    events: list[tuple[int, int, int, int]] = []  # time, order, request, tokens still to come
    time = order = 0
    for request in range(requests):
        while len(events) >= 32 or (events and events[0][0] <= time):
            time, _, grown, left = heapq.heappop(events)
            if left <= 0:
                yield "end", grown, 0
                continue
            tokens = min(left, CHUNK_TOKENS)
            yield from (("new", grown, tokens * size) for size in TOKEN_BYTES * layers)
            order += 1
            heapq.heappush(events, (time + tokens, order, grown, left - tokens))
        prompt = 1 + int(choice.lognormvariate(6.5, 1.0)) % 8000
        yield from (("new", request, prompt * size) for size in TOKEN_BYTES * layers)
        order += 1
        heapq.heappush(events, (time + choice.randrange(64), order, request, choice.randrange(1, 2000)))
        time += choice.randrange(64)
    for _, _, request, _ in events:
        yield "end", request, 0


def power_of_two(size: int) -> int:
    """Returns the size that a caching host allocator would take."""
    return 1 << (size - 1).bit_length()


def fits(trace: list[tuple[str, int, int]], capacity: int, round_up: bool) -> tuple[bool, float]:
    """Replays the trace; returns whether everything fitted, and the highest ratio of used to requested at a peak."""
    pool = HostPool(capacity, huge_pages="never")
    live: dict[int, list[torch.Tensor]] = {}
    requested, peak, ratio = 0, 0, 0.0
    sizes: dict[int, int] = {}
    for kind, request, size in trace:
        if kind == "end":
            del live[request]
            requested -= sizes.pop(request)
            continue
        try:
            tensor = pool.empty(power_of_two(size) if round_up else size, dtype=torch.uint8)
        except torch.OutOfMemoryError:
            return False, 0.0
        live.setdefault(request, []).append(tensor)
        sizes[request] = sizes.get(request, 0) + size
        requested += size
        if requested > peak:
            peak, ratio = requested, pool.stats().used / requested
    return True, ratio


def fragmentation(requests: int, layers: int, seed: int) -> dict[str, object]:
    """Compares bytes used, and the smallest pool that the trace needs, with the bytes requested at the peak."""
    trace = list(serving_trace(requests, layers, seed))
    live: dict[int, int] = {}
    total = peak = 0
    for kind, request, size in trace:
        total += size if kind == "new" else -live.pop(request)
        if kind == "new":
            live[request] = live.get(request, 0) + size
        peak = max(peak, total)
    result: dict[str, object] = {
        "blocks": sum(kind == "new" for kind, _, _ in trace),
        "peak_requested_bytes": peak,
    }
    for name, round_up in (("pool", False), ("power_of_two", True)):
        _, ratio = fits(trace, 4 * peak, round_up)
        low, high = peak, 4 * peak
        while high - low > peak // 500:
            middle = (low + high) // 2
            low, high = (low, middle) if fits(trace, middle, round_up)[0] else (middle, high)
        result[name] = {"used_over_requested": ratio, "smallest_pool_over_requested": high / peak}
    return result


# Output.


def print_tables(results: dict[str, object]) -> None:
    """Prints everything for people."""
    lost = results["fragmentation"]
    print(f"serving trace: {lost['blocks']} blocks, at most {lost['peak_requested_bytes'] / 1e6:.0f} MB at a time")
    print(f"{'':32} {'used / requested':>18} {'smallest pool / requested':>27}")
    for name, words in (("pool", "HostPool"), ("power_of_two", "sizes rounded to powers of two")):
        row = lost[name]
        print(f"{words:32} {row['used_over_requested']:18.3f} {row['smallest_pool_over_requested']:27.3f}")
    print(f"\n{'pairs of making and dropping':32} {'M/s':>9} {'spread':>8}")
    for row in results["tensors"]:
        for name, rate in row["pairs_per_second"].items():
            words = f"{name}, {row['threads']} thread{'s' * (row['threads'] > 1)}"
            print(f"{words:32} {rate / 1e6:9.3f} {row['spread'][name]:8.0%}")
    if results["core"] is None:
        print("\nthe core was not timed: make or g++ is missing")
        return
    what = ""
    for row in results["core"]:
        if row["what"] != what:
            what, base = row["what"], row["median"]
            print(f"\n{what:32} {'median':>9} {'low':>9} {'high':>9} {'ratio':>7}")
        unit = 1e9 if "bytes" in what else 1e6
        print(f"{row['side']:32} {row['median'] / unit:9.2f} {row['low'] / unit:9.2f} {row['high'] / unit:9.2f} "
              f"{row['median'] / base:6.2f}x")  # fmt: skip
    print("(pairs in millions, bytes in GB; the ratio is to the first line)")


if __name__ == "__main__":
    sys.exit(main())
