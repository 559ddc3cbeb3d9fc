# SPDX-License-Identifier: Apache-2.0
"""The host pool against malloc, torch.empty, touching pages one after another, and power-of-two rounding, in one run.

Pairs of allocate and free: a random-size trace (up to 64 B, 128 B, ... 512 KiB, each bound as often, 1000 blocks alive
per thread) through the C++ core (`make -C tests/cpp bench`), and `HostPool.empty` against `torch.empty` from Python,
where two threads share the interpreter's lock.

Memory: a trace like that of a serving engine. Requests arrive, their caches grow and move to a larger block every 64
tokens, and are freed at completion. It is replayed with the sizes as they are and with sizes rounded to powers of two.
"rounding" is used over requested bytes at the peak; "footprint" is the highest address ever used over the peak of
requested bytes: what the pool must hold to serve the trace, fragmentation included.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from timing import machine, measure

import torch_offload

ROOT = Path(__file__).resolve().parent.parent
CORE = ROOT / "build/cpp/plain/benchmarks/host_pool_bench.cpp.run"

PAIRS_PER_CALL = 2000
LIVE_TENSORS = 200

TOKEN_BYTES = 656  # one layer of one token: fp8 latent, scales, rope part
REALLOCATE_EVERY = 64  # tokens
CONCURRENT = 48


@dataclass(frozen=True)
class Event:
    """A request gets a block of `size` bytes and gives its former one back; 0 bytes: it has completed."""

    request: int
    size: int


def main() -> int:
    """Runs the benchmark and prints figures, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=2.0, help="time for each Python measurement (%(default)s)")
    parser.add_argument("--requests", type=int, default=600, help="in the serving trace (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of every trace (%(default)s)")
    parser.add_argument("--no-core", action="store_true", help="leave the C++ part out")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    args = parser.parse_args()
    report: dict[str, Any] = {"machine": machine()}
    report["core"] = [] if args.no_core else run_core()
    report["python"] = [compare_empty(threads, args.seconds, args.seed) for threads in (1, 2)]
    report["serving"] = compare_rounding(serving_trace(args.requests, args.seed))
    if args.json:
        json.dump(report, sys.stdout, indent=2)
        print()
    else:
        print_report(report)
    return 0


def run_core() -> list[dict[str, Any]]:
    """Builds and runs the C++ part."""
    subprocess.run(["make", "-s", "-C", str(ROOT / "tests/cpp"), "bench"], check=True, stdout=sys.stderr)
    lines = subprocess.run([CORE, "--json"], check=True, capture_output=True, text=True).stdout.splitlines()
    return [json.loads(line) for line in lines]


def compare_empty(threads: int, seconds: float, seed: int) -> dict[str, Any]:
    """Times pairs of `empty` and drop on one trace of random sizes."""
    rng = random.Random(seed)
    trace = [(rng.randrange(LIVE_TENSORS), rng.randint(1, 64 << rng.randrange(14))) for _ in range(PAIRS_PER_CALL)]
    pool = torch_offload.HostPool(1 << 28)

    def churn(empty: Callable[..., torch.Tensor]) -> None:
        live: list[torch.Tensor | None] = [None] * LIVE_TENSORS
        for slot, size in trace:
            live[slot] = None
            live[slot] = empty(size, dtype=torch.uint8)

    with ThreadPoolExecutor(threads) as workers:
        timings = measure(
            {
                "HostPool.empty": lambda _: list(workers.map(churn, [pool.empty] * threads)),
                "torch.empty": lambda _: list(workers.map(churn, [torch.empty] * threads)),
            },
            seconds=seconds,
        )
    return {
        "threads": threads,
        "pairs_per_s": {name: threads * PAIRS_PER_CALL / timing.median for name, timing in timings.items()},
        "seconds": {name: asdict(timing) | {"spread": timing.spread} for name, timing in timings.items()},
    }


def serving_trace(requests: int, seed: int) -> list[Event]:
    """Requests of long-tailed lengths, `CONCURRENT` at a time; each step every one of them grows by one token."""
    rng = random.Random(seed)
    waiting = [(int(rng.lognormvariate(6, 1)) + 1, int(rng.expovariate(1 / 300)) + 1) for _ in range(requests)]
    running: dict[int, list[int]] = {}  # request -> tokens now, tokens at the end, tokens in its block
    events: list[Event] = []
    started = 0
    while started < requests or running:
        while len(running) < CONCURRENT and started < requests:
            prompt, answer = waiting[started]
            running[started] = [prompt, prompt + answer, prompt]
            events.append(Event(started, prompt * TOKEN_BYTES))
            started += 1
        for request, state in list(running.items()):
            state[0] += 1
            if state[0] > state[1]:
                events.append(Event(request, 0))
                del running[request]
            elif state[0] > state[2]:
                state[2] = state[0] + REALLOCATE_EVERY - 1
                events.append(Event(request, state[2] * TOKEN_BYTES))
    return events


def replay(events: list[Event], round_size: Callable[[int], int]) -> dict[str, float]:
    """Serves a trace from a pool with room to spare."""
    pool = torch_offload.HostPool(2 << 30, huge_pages="never")  # nothing touches it
    base = pool.empty(pool.stats().capacity, dtype=torch.uint8).data_ptr()
    live: dict[int, torch.Tensor] = {}
    sizes: dict[int, int] = {}
    requested = peak_requested = peak_used = highest = 0
    for event in events:
        requested += event.size - sizes.get(event.request, 0)
        if event.size:
            # The old block lives until the new one is there: its bytes have to be copied.
            t = pool.empty(round_size(event.size), dtype=torch.uint8)
            highest = max(highest, t.data_ptr() - base + t.nbytes)
            moving = sizes.get(event.request, 0)
            if requested + moving > peak_requested:
                peak_requested, peak_used = requested + moving, pool.stats().used
            live[event.request], sizes[event.request] = t, event.size
            del t
        else:
            del live[event.request], sizes[event.request]
    return {
        "peak_requested": peak_requested,
        "rounding": peak_used / peak_requested,
        "footprint": highest / peak_requested,
        "events": len(events),
    }


def compare_rounding(events: list[Event]) -> dict[str, dict[str, float]]:
    """Replays with exact sizes and with powers of two."""
    return {
        "best fit, exact sizes": replay(events, lambda size: size),
        "powers of two": replay(events, lambda size: 1 << (size - 1).bit_length()),
    }


def print_report(report: dict[str, Any]) -> None:
    """Prints all figures."""
    for line in report["core"]:
        print(f"C++     {line['what']:24} {line['threads']} thread(s) {line['median']:9.2f} {line['unit']:9} "
              f"({line['low']:.2f} to {line['high']:.2f})")  # fmt: skip
    speeds = {(line["what"], line["threads"]): line["median"] for line in report["core"]}
    if speeds:
        touch = speeds["first touch of 1 GiB", 1]
        print(f"C++     prefault over first touch: {speeds['prefault of 1 GiB', 1] / touch:.2f}x with 1 thread, "
              f"{speeds['prefault of 1 GiB', 2] / touch:.2f}x with 2")  # fmt: skip
    for result in report["python"]:
        for name, speed in result["pairs_per_s"].items():
            print(f"Python  {name + ' + drop':24} {result['threads']} thread(s) {speed / 1e6:9.2f} M pairs/s "
                  f"(spread {result['seconds'][name]['spread']:.0%})")  # fmt: skip
    for name, figures in report["serving"].items():
        print(f"trace   {name:24} {figures['events']} blocks, {figures['peak_requested'] / 2**20:.0f} MiB at the peak: "
              f"rounding {figures['rounding']:.4f}, footprint {figures['footprint']:.3f}")  # fmt: skip
    print("\n" + "\n".join(f"{key}: {value}" for key, value in report["machine"].items()))


if __name__ == "__main__":
    sys.exit(main())
