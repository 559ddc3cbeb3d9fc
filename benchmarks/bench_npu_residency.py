# SPDX-License-Identifier: Apache-2.0
"""Counts what planning on an NPU does for each request, on the simulated CANN runtime, with a top-k of 2048.

The simulator measures no time. Every result is compared with the CPU's operator. Run it with `make bench-npu`, or
`tests/sim_cann/run python benchmarks/bench_npu_residency.py`.

Columns, for each request: what was found resident; transfers in and out of both kernels and their KiB; accesses of the
scalar unit to the unified buffer, which are most of the work; and over all cores: scalar loads from global memory.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "sim_cann"))

import torch
from torch import Tensor

from torch_offload.residency import new_residency_plan, new_residency_state, plan_residency

TOP_K, CONTEXT, BLOCK = 2048, 1 << 20, 128
STEPS = 5  # the last one is counted
KERNELS = ("plan_residency", "plan_residency_list")


def steps(requests: int, hit_rate: float, generator: torch.Generator) -> Iterator[Tensor]:
    """Selections of which each shares so many tokens with the one before."""
    tokens = torch.stack([torch.randperm(CONTEXT, generator=generator)[:TOP_K] for _ in range(requests)])
    while True:
        yield tokens
        fresh = torch.randint(0, CONTEXT, (requests, TOP_K - round(TOP_K * hit_rate)), generator=generator)
        tokens = tokens[:, torch.randperm(TOP_K, generator=generator)].clone()
        tokens[:, : fresh.shape[1]] = fresh


def measure(requests: int, slots: int, hit_rate: float) -> None:
    """Runs some steps on both devices and prints what the last one cost."""
    import sim_cann

    generator = torch.Generator().manual_seed(slots)
    ids = torch.arange(requests)
    table = torch.randint(0, 2**31, (requests, CONTEXT // BLOCK), dtype=torch.int64, generator=generator)
    sides = [
        (
            new_residency_state(requests, slots, device=device),
            new_residency_plan(requests, TOP_K, device=device),
            device,
        )
        for device in ("cpu", "npu:0")
    ]
    cost: dict[str, int] = {}
    before = 0
    for number, topk in zip(range(STEPS), steps(requests, hit_rate, generator), strict=False):
        for state, plan, device in sides:
            tokens, owners, blocks = (tensor.to(device) for tensor in (topk, ids, table))
            torch.npu.synchronize()
            if number == STEPS - 1:
                before = int(plan.totals[0])
            with sim_cann.counting() as calls:
                plan_residency(tokens, owners, state, plan, block_table=blocks, block_size=BLOCK)
                torch.npu.synchronize()
            cost = dict(calls)
        misses = int(sides[0][1].misses)
        for expected, got in zip(sides[0][1], sides[1][1], strict=True):
            cut = misses if expected.dim() == 1 and expected.numel() == requests * TOP_K else None
            if not torch.equal(expected[:cut], got.cpu()[:cut]):
                sys.exit(f"bench_npu_residency: another plan than the CPU's for {requests} requests, {slots} slots")
    hits = int(sides[1][1].totals[0]) - before

    def total(name: str) -> int:
        return sum(cost.get(f"{kernel}.{name}", 0) for kernel in KERNELS)

    print(
        f"{requests:8} {slots:6} {hits / requests / TOP_K:6.0%} {total('load_instructions') / requests:8.0f} "
        f"{total('load_bytes') / requests / 1024:8.1f} {total('store_instructions') / requests:8.1f} "
        f"{total('store_bytes') / requests / 1024:8.1f} {total('scalar_ub_accesses') / requests:10.0f} "
        f"{total('scalar_global_loads'):9}",
        flush=True,
    )


def main() -> int:
    """Prints the table."""
    import sim_cann

    if not sim_cann.available() or "TORCH_OFFLOAD_NPU_KERNEL" not in os.environ:
        sys.exit("bench_npu_residency: expected to run on the simulated CANN runtime, got none; use make bench-npu")
    import torch_npu  # noqa: F401

    print(f"plan_residency, top-k {TOP_K}, contexts of {CONTEXT} tokens, blocks of {BLOCK}")
    print(
        f"{'requests':>8} {'slots':>6} {'found':>6} {'loads':>8} {'KiB in':>8} {'stores':>8} {'KiB out':>8} "
        f"{'scalar UB':>10} {'scalar GM':>9}"
    )
    for requests in (1, 16, 64):
        for slots in (4096, 8192):
            for hit_rate in (0.5, 0.9, 0.99):
                measure(requests, slots, hit_rate)
    return 0


if __name__ == "__main__":
    sys.exit(main())
